"""`tools.scale`: predictions where the answer is known, and of a step that was recorded."""

import itertools
import json
import random
from dataclasses import replace

import pytest

import flowvm as flow
from flowvm import nn
from flowvm.commands.launch import mpiexec
from flowvm.errors import ArgumentError, CaptureError, CommunicationError
from flowvm.graph.plan.actors import ActorDesc
from tools.scale.__main__ import main, mix_of, mixes
from tools.scale.links import ALGORITHMS, Link, Network, fitted
from tools.scale.memory import held
from tools.scale.models import program
from tools.scale.playing import Acting, play
from tools.scale.ranks import Mix, predict
from tools.scale.recording import Place, Task, Work, record
from tools.scale.splitting import split

FREE = Network(Link(0.0, 1e30), Link(0.0, 1e30))  # exchanges cost nothing
BYTES = 1 << 20


def network(algorithm: str = "ring", latency: float = 0.25, bandwidth: float = BYTES) -> Network:
    link = Link(latency, bandwidth)
    return Network(link, link, 0, algorithm)


def layered(layers: int, update: float = 0.0) -> Work:
    """A chain of products: forward takes 1 s, backward 2 s each; each has a weight, two states, an
    activation behind it and a gradient, of a MiB each.
    """
    places, tasks = [Place("x", "input", BYTES, 2, 0, 4 * layers)], []

    def place(role: str, first: int = 0, last: int = 4 * layers) -> int:
        places.append(Place(role, role, BYTES, 2, first, last))
        return len(places) - 1

    weights = [place("parameter") for _ in range(layers)]
    states = [[place("state"), place("state")] for _ in range(layers)]
    h, inputs = 0, []
    for k in range(layers):
        out = place("activation", k, 2 * layers - k)
        tasks.append(Task("matmul", "forward", 1.0, (h, weights[k]), (out,)))
        inputs.append(h)
        h = out
    flow_back, gradients = h, []
    for k in reversed(range(layers)):
        before, gradient = place("other", len(tasks), len(tasks) + 1), place("gradient", len(tasks))
        reads = (flow_back, weights[k], inputs[k])
        tasks.append(Task("matmul", "backward", 2.0, reads, (before, gradient)))
        gradients.append((k, gradient))
        flow_back = before
    for k, gradient in gradients:
        reads = (weights[k], gradient, *states[k])
        tasks.append(Task("adam", "optimizer", update / layers, reads, (weights[k], *states[k])))
    return Work("layered", tuple(tasks), tuple(places), 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_actors_on_streams_of_their_own_end_when_those_they_wait_for_have(seed):
    rng = random.Random(seed)
    actors = []
    for k in range(rng.randint(2, 12)):
        inputs = sorted(rng.sample(range(k), rng.randint(0, min(3, k))))
        actors.append(Acting(ActorDesc(k, k, 0, 1, inputs), rng.randint(1, 9)))
        for j in inputs:
            actors[j].desc.credits.append((k, rng.randint(1, 3)))
    launches = rng.randint(1, 8)
    ends = [[0.0] * launches for _ in actors]
    for n in range(launches):
        for k, actor in enumerate(actors):
            waits = [ends[j][n] for j in actor.desc.inputs]
            waits += [ends[j][n - c] for j, c in actor.desc.credits if n >= c]
            waits += [ends[k][n - 1]] if n else []
            ends[k][n] = max(waits, default=0.0) + actor.seconds
    assert play(actors, launches).ends == ends, f"seed {seed}"


@pytest.mark.parametrize("seed", range(20))
def test_actors_of_one_stream_keep_the_rules(seed):
    rng = random.Random(seed)
    actors = []
    for k in range(10):
        inputs = sorted(rng.sample(range(k), rng.randint(0, min(2, k))))
        actors.append(Acting(ActorDesc(k, rng.randrange(3), 0, 1, inputs), rng.randint(1, 9)))
        for j in inputs:
            actors[j].desc.credits.append((k, rng.randint(1, 3)))
    played = play(actors, 6)
    begins = [[end - a.seconds for end in ends]
              for a, ends in zip(actors, played.ends, strict=True)]  # fmt: skip
    for k, actor in enumerate(actors):
        for n in range(6):
            assert all(played.ends[j][n] <= begins[k][n] for j in actor.desc.inputs)
            assert all(played.ends[j][n - c] <= begins[k][n]
                       for j, c in actor.desc.credits if n >= c)  # fmt: skip
    for stream in range(3):
        spans = sorted(
            (b, e) for k, a in enumerate(actors) if a.desc.stream == stream
            for b, e in zip(begins[k], played.ends[k], strict=True)
        )  # fmt: skip
        assert all(e <= b for (_, e), (b, _) in itertools.pairwise(spans))


def test_actors_that_wait_for_each_other_are_an_error_and_no_hang():
    actors = [Acting(ActorDesc(0, 0, 0, 1, [1]), 1.0), Acting(ActorDesc(1, 1, 0, 1, [0]), 1.0)]
    with pytest.raises(CaptureError, match="waits for ever, for actors 1"):
        play(actors, 1)


def test_a_worker_that_sleeps_wakes_later():
    chain = [Acting(ActorDesc(0, 0, 0, 1, []), 1.0), Acting(ActorDesc(1, 1, 0, 1, [0]), 2.0)]
    assert play(chain, 3, handover=0.5).ends == [[1, 2, 3], [3.5, 5.5, 7.5]]  # busy from then on
    chain[1].desc.stream = 0
    assert play(chain, 2, handover=0.5) == play(chain, 2)  # nobody sleeps


def test_an_actor_for_several_launches_acts_once_for_them():
    actors = [
        Acting(ActorDesc(0, 0, 0, 1, [], [(1, 1)]), 1.0),
        Acting(ActorDesc(1, 0, 0, 1, [0]), 5.0, every=4),
    ]
    assert play(actors, 8).ends == [[1, 2, 3, 4, 10, 11, 12, 13], [9, 18]]


@pytest.mark.parametrize("ranks", [2, 3, 8, 100, 4096])
def test_exchanges_cost_what_their_algorithms_say(ranks):
    parts = (ranks - 1) / ranks * 8
    rounds = len(bin(ranks - 1)) - 2
    assert network().all_reduce(8 * BYTES, ranks) == 2 * (ranks - 1) * 0.25 + 2 * parts
    assert network().all_gather(8 * BYTES, ranks) == (ranks - 1) * 0.25 + parts
    assert network("halving").all_reduce(8 * BYTES, ranks) == 2 * rounds * 0.25 + 2 * parts
    assert network("doubling").all_reduce(8 * BYTES, ranks) == rounds * (0.25 + 8)
    best = network("best").all_reduce(8 * BYTES, ranks)
    assert best == min(network(a).all_reduce(8 * BYTES, ranks) for a in ALGORITHMS[1:])
    assert network().send(8 * BYTES, 1) == 8.25
    assert network().all_reduce(8 * BYTES, 1) == network().all_gather(8 * BYTES, 1) == 0


def test_ranks_of_a_host_have_its_link():
    between, inside = Link(1.0, 1.0), Link(2.0, 2.0)
    links = Network(between, inside, 8)
    assert links.link(8) is links.link(4, 2) is inside
    assert links.link(9) is links.link(8, 2) is between


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_link_is_found_from_two_all_reduces(ranks):
    link = Link(2e-6, 3e9)
    links = Network(link, link)
    few, many = (links.all_reduce(nbytes, ranks) for nbytes in (0, 4 * BYTES))
    fit = fitted(few, many, 4 * BYTES, ranks)
    assert fit.latency == pytest.approx(link.latency)
    assert fit.bandwidth == pytest.approx(link.bandwidth)
    with pytest.raises(ArgumentError, match="no bandwidth"):
        fitted(1.0, 0.5, 4 * BYTES, ranks)


# --- steps whose time is known ----------------------------------------------------------------


def test_one_rank_takes_what_the_replay_did():
    work = replace(layered(4, update=2.0), rest=0.5)
    prediction = predict(work, Mix(), network())
    assert prediction.seconds == pytest.approx(work.seconds) == pytest.approx(14.5)
    assert prediction.efficiency == pytest.approx(1)
    assert prediction.exchange == 0
    cut = predict(layered(4), Mix(data=4, weak=False), FREE)
    assert (cut.seconds, cut.efficiency) == pytest.approx((3, 1))
    in_parts = predict(replace(work, rest=0.0), Mix(micro=4), network())
    assert in_parts.seconds == pytest.approx(14)


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_data_parallel_ranks_wait_for_the_last_bucket_alone(ranks):
    ring = 2 * (ranks - 1) / ranks  # seconds of a MiB
    alone = predict(layered(1), Mix(data=ranks), network(latency=0.0))
    assert alone.seconds == pytest.approx(3 + ring)
    hidden = predict(layered(4), Mix(data=ranks), network(latency=0.0))
    assert ring < 2
    assert hidden.seconds == pytest.approx(12 + ring)
    assert hidden.exchange == pytest.approx(4 * ring)
    whole = predict(layered(4), Mix(data=ranks), network(latency=0.0), bucket=4 * BYTES)
    assert whole.seconds == pytest.approx(12 + 4 * ring)  # goes out when the last is there
    slow = predict(layered(4), Mix(data=ranks), network(latency=0.0, bandwidth=BYTES / 10))
    assert slow.seconds == pytest.approx(6 + 40 * ring)  # from the first gradient on


@pytest.mark.parametrize(("stages", "micro"), [(2, 1), (2, 8), (4, 4), (4, 16), (8, 3)])
def test_a_pipeline_has_the_bubble_of_1f1b(stages, micro):
    prediction = predict(layered(8), Mix(stages=stages, micro=micro), FREE)
    each = 24 / stages / micro
    assert prediction.seconds == pytest.approx((micro + stages - 1) * each)
    assert prediction.idle == pytest.approx((stages - 1) / (micro + stages - 1))


def test_a_stage_holds_no_more_micro_batches_than_stages_are_behind_it():
    work, mix = layered(4), Mix(stages=4, micro=8)
    memory = held(work, mix)
    # the layer's input so often, and the gradients that come and go; first the whole batch
    assert [h.stage for h in memory] == [0, 1, 2, 3]
    assert [8 * h.activations / BYTES for h in memory] == [8 + 2, 3 + 2, 2 + 2, 1 + 2]
    assert all(h.parameters == BYTES and h.states == 2 * BYTES for h in memory)


def test_zero_divides_what_each_stage_of_it_says():
    work = layered(8)
    plain, *others = (held(work, Mix(data=16, zero=k))[0] for k in range(4))
    for stage, prediction in enumerate(others, 1):
        assert prediction.states == plain.states // 16
        assert prediction.gradients == plain.gradients // (16 if stage >= 2 else 1)
        assert prediction.parameters == plain.parameters // (16 if stage == 3 else 1)
        assert prediction.activations == plain.activations


def test_zero_costs_what_it_exchanges():
    links, n = network(latency=0.0, bandwidth=1e3 * BYTES), 8
    part = (n - 1) / n / 1e3  # of a MiB
    plain, *others = (predict(layered(4), Mix(data=n, zero=k), links) for k in range(4))
    assert plain.exchange == pytest.approx(8 * part)
    assert [p.exchange for p in others] == pytest.approx([8 * part, 8 * part, 12 * part])
    once, each = (predict(layered(4), Mix(data=n, zero=k, micro=4), links) for k in (1, 2))
    assert once.exchange == pytest.approx(8 * part)  # of them 4 are of parameters
    assert each.exchange == pytest.approx((4 * 4 + 4) * part)


def test_tensor_parallel_layers_are_cut_in_turn():
    work = layered(2)
    cut = split(work, 1, True)
    assert all(p.divided for p in cut.parts if p.task.phase != "optimizer")
    # forward behind the second, backward behind the first
    assert [p.number for p in cut.parts if p.summed] == [1, 3]
    prediction = predict(work, Mix(tensor=4), FREE)
    assert (prediction.seconds, prediction.efficiency) == pytest.approx((6 / 4, 1))
    memory = held(work, Mix(tensor=4))[0]
    assert (memory.parameters, memory.states) == (2 * BYTES // 4, 4 * BYTES // 4)


@pytest.mark.parametrize("mix", mixes(64, 8, True) + mixes(4096, 8, False) + mixes(7, 3, True))
def test_no_mix_is_quicker_than_its_ranks_could_be(mix):
    prediction = predict(layered(8), mix, network("best", 1e-4, 50 * BYTES))
    assert 0 < prediction.efficiency <= 1 + 1e-9
    assert 0 <= prediction.idle < 1
    assert prediction.seconds >= prediction.compute * (1 - 1e-9)
    assert all(h.total > 0 for h in held(layered(8), mix))


# --- a step that was recorded -----------------------------------------------------------------


def test_a_recorded_step_is_played_as_it_was():
    graph, inputs = program("transformer", 32, 1, 2)
    work = record(graph, *inputs, launches=3)
    plan = graph.plan
    assert predict(work, Mix(), FREE).seconds == pytest.approx(work.seconds)
    assert Work.from_json(json.loads(json.dumps(work.to_json()))) == work
    parameters = sum(4 * p.numel() for p in graph.network.parameters())
    assert work.nbytes("parameter") == parameters
    assert work.nbytes("state") >= 2 * parameters
    report = plan.memory_report()
    whole = plan.memory.lower_bound + report.outputs + report.variables + work.nbytes("input")
    assert held(work, Mix())[0].total == whole
    cut = split(work, 1, True)
    summed = [p for p in cut.parts if p.summed and "cross_entropy" not in p.task.op]
    # attention and the layers behind it: one in forward and one in backward each; the head's
    assert [p.task.phase for p in summed] == ["forward"] * 2 + ["backward"] * 3
    halves = split(work, 2, False)
    assert {p.stage for p in halves.parts if p.task.phase == "backward"} == {0, 1}
    assert sum(h.parameters for h in held(work, Mix(stages=2))) == parameters


class Forward(nn.Graph):
    def build(self, x: flow.Tensor) -> flow.Tensor:
        return x.relu()


def test_what_cannot_be_recorded_says_why():
    with pytest.raises(ArgumentError, match="a training step is an nn"):
        record(lambda x: x, flow.ones(2))
    with pytest.raises(ArgumentError, match="does not train"):
        record(Forward(), flow.ones(2), launches=1)


# --- the command ------------------------------------------------------------------------------

SMALL = ["--model", "mlp", "--width", "16", "--layers", "2", "--batch", "4", "--launches", "2"]


def test_the_command_prints_a_table_or_json(capsys):
    assert main([*SMALL, "--ranks", "8", "--host-ranks", "4"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "between hosts" in printed[1]
    assert printed[2].split()[:3] == ["ranks", "mix", "step"]
    assert len({len(line.rstrip()) for line in printed[2:]}) == 1  # columns
    assert main([*SMALL, "--ranks", "8", "--mix", "tensor=2,zero=1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [m["ranks"] for m in data["mixes"]] == [1, 8]
    assert data["mixes"][1]["mix"]["data"] == 4
    assert data["mixes"][0]["seconds"] == pytest.approx(data["seconds"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--mix", "rows=2"], "--mix is data=N"),
        (["--mix", "data=2,data=4"], "--mix is data=N"),
        (["--mix", "tensor=0"], "tensor is 1 or more"),
        (["--mix", "zero=4"], "zero is 0, 1, 2 or 3"),
        (["--mix", "tensor=3", "--ranks", "8"], "8 ranks are not a multiple of 3"),
        (["--mix", "stages=64", "--ranks", "64"], "forward tasks: 1 to so many stages"),
        (["--model", "nothing"], "--model is one of transformer, mlp"),
        (["--model", "flowvm.nowhere:f"], "No module named"),
        (["--latency-us", "-1"], "a latency is 0 or more"),
        (["--bandwidth-gbs", "0"], "a bandwidth is above 0"),
        (["--bucket-mb", "0"], "a bucket has 1 byte or more"),
        (["--handover-us", "-1"], "a hand-over takes 0 seconds or more"),
        (["--launches", "0"], "--launches is 1 or more"),
        (["--width", "0"], "--width is 1 or more"),
        (["--real", "1"], "--real: 2 ranks or more"),
        (["--real", "2", "--model", "a:b"], "--real is for transformer and mlp"),
    ],
)
def test_bad_arguments_are_told(args, message, capsys):
    assert main([*SMALL, *args]) == 2
    assert message in capsys.readouterr().err


def test_ranks_are_numbers_and_what_is_left_of_them_is_data_parallel():
    assert mix_of("tensor=4,stages=2", 64, True) == Mix(8, 4, 2)
    assert mix_of("data=2,tensor=4", 64, True) == Mix(2, 4)
    with pytest.raises(SystemExit):
        main(["--ranks", "8,x"])


def test_predictions_are_compared_with_real_ranks(capsys):
    try:
        mpiexec(2)
    except CommunicationError as error:
        pytest.skip(str(error))
    assert main([*SMALL[:-1], "1", "--real", "2", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["ranks"] == 2
    assert min(record["measured"], record["predicted"], record["alone"]) > 0
    assert record["predicted"] >= record["alone"]
