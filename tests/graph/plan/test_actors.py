"""Plans on several streams: actors, credits, launches in flight beside each other, Eord.

`Spec` says independently, over all pairs of executions, what must come before what; the actors'
edges are held against it in random orders of acting.  The rest runs on the VM, with kernels that
wait for a gate.
"""

from __future__ import annotations

import gc
import os
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import OutOfRangeError, ScheduleError, VMError
from flowvm.graph.capture.capture import capturing
from flowvm.graph.logical.interpret import interpret
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import BufferKind
from flowvm.graph.plan import actors as actors_module
from flowvm.graph.plan.actors import actors_of, by_actor
from flowvm.graph.plan.plan import Plan, _closing, compile_plan
from flowvm.graph.plan.words import ActorWords
from flowvm.profiler import profile
from flowvm.vm.machine.plan_words import ACTOR, RUNTIME
from tests.vm.kernels import USER_STATUS, Gate, fail, mix, tensor, update, wait_for_gate
from tests.vm.live import Background, in_flight, until

STREAMS = [flow.Stream(f"actors{k}") for k in range(3)]


def captured(seed: int, length: int = 24, times: int = 1) -> tuple[LogicalGraph, list[Any]]:
    """A random program on random streams, and its variables; all but its beginning and its end are
    repeated `times` times.
    """
    rng = random.Random(seed)
    variables = [tensor() for _ in range(3)]
    x = tensor()
    with capturing("random", [(x, "x")]) as capture:
        tensors = [x, *variables]
        for k in range(length):
            capture.repeat = times if 3 <= k < length - 3 else 1
            if times > 1 and k == 3:
                before = len(tensors)
            if times > 1 and k == length - 3:  # what is another one in each repetition is gone
                del tensors[before:-2]
            stream = rng.choice([None, *STREAMS[:2]])
            with flow.stream(stream):
                a, b = rng.choice(tensors), rng.choice(tensors)
                if rng.random() < 0.4:
                    target = rng.choice([t for t in tensors if t is not x])
                    update(target, b if b is not target else x, k)
                else:
                    tensors.append(mix(a, b, k))
        for t in tensors[-3:]:
            capture.output(t)
    return capture.graph, variables


# --- edges, held against a specification ---------------------------------------------------------


class Spec:
    """The pairs of executions (launch, node) that must be ordered, from operands alone."""

    def __init__(self, graph: LogicalGraph, launches: int) -> None:
        self.pairs = []
        touched = []
        for node in graph.nodes:
            writes = {o.buffer for o in node.written()}
            touched.append({o.buffer: o.buffer in writes for _, o in node.accesses()})
        for a, first in enumerate(touched):
            for b, second in enumerate(touched):
                shared = [x for x in first if x in second and (first[x] or second[x])]
                if shared and a < b:
                    self.pairs += [((k, a), (k, b)) for k in range(launches)]
                if any(x.kind is BufferKind.VARIABLE for x in shared):
                    self.pairs += [((k, a), (k + 1, b)) for k in range(launches - 1)]

    def broken_by(self, order: list[tuple[int, int]]) -> list[Any]:
        place = {execution: k for k, execution in enumerate(order)}
        return [(a, b) for a, b in self.pairs if place[a] >= place[b]]


def played(actors: list[Any], launches: int, depth: int, choose: Any) -> list[tuple[int, int]]:
    """Executions (launch, node) in an order that the actors' rules allow; `choose` picks."""
    acted = [0] * len(actors)
    order: list[tuple[int, int]] = []

    def may_act(actor: Any) -> bool:
        n = acted[actor.number]
        return (
            n < min(launches, min(acted) + depth)
            and all(acted[p] > n for p in actor.inputs)
            and all(acted[c] > n - credit for c, credit in actor.credits)
        )

    while ready := [a for a in actors if may_act(a)]:
        actor = choose(ready)
        order += [(acted[actor.number], actor.first + k) for k in range(actor.count)]
        acted[actor.number] += 1
    assert acted == [launches] * len(actors), "actors wait for each other"
    return order


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_edges_keep_every_conflict_in_order(seed, depth):
    graph = by_actor(captured(seed)[0])
    spec, rng = Spec(graph, 4), random.Random(seed)
    actors = actors_of(graph, depth)
    for choose in (rng.choice, rng.choice, max_number, min_number):
        assert not spec.broken_by(played(actors, 4, depth, choose))


def max_number(ready: list[Any]) -> Any:
    return ready[-1]


def min_number(ready: list[Any]) -> Any:
    return ready[0]


@pytest.mark.parametrize("left_out", ["_carried", "inputs"])
def test_the_specification_notices_what_is_missing(left_out, monkeypatch):
    count = 0
    for seed in range(12):
        graph = by_actor(captured(seed)[0])
        if left_out == "_carried":
            monkeypatch.setattr(actors_module, "_carried", lambda graph, actors: set())
        actors = actors_of(graph, 2)
        for actor in actors:
            if left_out == "inputs" and actor.inputs:
                actor.inputs.pop()
        rng = random.Random(seed)
        count += any(
            Spec(graph, 4).broken_by(played(actors, 4, 2, c)) for c in (rng.choice, max_number)
        )
    assert count > 6


def test_chains_are_cut_where_streams_talk():
    x = tensor()
    with capturing("chain", [(x, "x")]) as capture:
        a = mix(mix(x, x, 1), x, 2)
        with flow.stream(STREAMS[0]):
            b = mix(mix(a, a, 3), a, 4)
        capture.output(mix(mix(b, b, 5), b, 6))
    graph = by_actor(capture.graph)
    actors = actors_of(graph, 2)
    assert [(a.stream, a.count, a.inputs) for a in actors] == [
        (0, 2, []),
        (STREAMS[0].number, 2, [0]),
        (0, 2, [0, 1]),  # behind the first one too: a stream runs in order
    ]
    assert (1, 2) in actors[0].credits
    assert (2, 2) in actors[1].credits


# --- on the VM ----------------------------------------------------------------------------------


def runtime(plan: Plan) -> ActorWords:
    (words,) = [k for k in plan.references if isinstance(k, ActorWords)]
    return words


@pytest.mark.parametrize("seed", range(8))
def test_replays_equal_node_by_node(seed):
    graph, variables = captured(seed)
    start = [v.numpy().copy() for v in variables]
    inputs = [tensor() for _ in range(6)]
    expected = [[t.numpy().copy() for t in interpret(graph, [x])] for x in inputs]
    final_values = [v.numpy().copy() for v in variables]
    for regst_num in (1, 2, 4):
        plan = compile_plan(replace(graph, regst_num=regst_num))
        for v, values in zip(variables, start, strict=True):
            v.copy_(tensor(values))
        actual = [plan.launch([x]) for x in inputs]  # nobody waits in between
        assert [[t.numpy().tolist() for t in outs] for outs in actual] == [
            [e.tolist() for e in outs] for outs in expected
        ]
        assert all((v.numpy() == n).all() for v, n in zip(variables, final_values, strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_sections_equal_node_by_node(seed):
    times = 2 + seed % 4
    graph, variables = captured(seed, 24, times)
    start = [v.numpy().copy() for v in variables]
    inputs = [tensor() for _ in range(3)]
    expected = [[t.numpy().tolist() for t in interpret(graph, [x])] for x in inputs]
    final_values = [v.numpy().copy() for v in variables]
    copies = 0
    for launches, regst_num in ((1, 2), (2, 1), (3, 2), (8, 2)):
        plan = compile_plan(replace(graph, regst_num=regst_num, in_flight=launches))
        copies = max(copies, *(r.copies for r in plan.registers.values()))
        for v, values in zip(variables, start, strict=True):
            v.copy_(tensor(values))
        actual = [plan.launch([x]) for x in inputs]
        assert [[t.numpy().tolist() for t in outs] for outs in actual] == expected
        assert all((v.numpy() == n).all() for v, n in zip(variables, final_values, strict=True))
        assert {a.times for a in plan.actors} == {1, times}
    assert copies > 1


@pytest.mark.parametrize("abreast", [1, 2, 3])
@pytest.mark.parametrize("times", [2, 5])
def test_collectives_of_a_section_have_one_order(abreast, times, monkeypatch):
    """On one stream, collectives of forward and of backward come as in 1F1B, whoever acts when."""
    order, x = tensor(), tensor()
    with capturing("lane", [(x, "x")]) as capture:
        capture.repeat, capture.phase = times, "forward"
        total = x
        for k, phase in enumerate(("forward", "forward", "backward", "backward")):
            capture.phase = phase
            total = mix(total, x, k)
            with flow.stream(STREAMS[0]):
                update(order, total, k)
                total = mix(total, order, k)
        capture.output(total)
    lane = next(b for b in capture.graph.variables() if b.held is order.storage())
    monkeypatch.setattr(actors_module, "_orders", lambda graph: {lane})
    graph = by_actor(replace(capture.graph, in_flight=3, abreast=abreast))
    actors = actors_of(graph, 2)
    phases = [graph.nodes[actor.first].phase for actor in actors]
    on_lane = [a.number for a in actors if a.stream == STREAMS[0].number]
    visited = set()
    for seed in range(20):
        acted, sequence = [0] * len(actors), []
        rng = random.Random(seed)

        def is_over(other: int, actor: Any, before: int, acted: Any = acted) -> bool:
            return acted[other] >= min(acted[actor.number] - before + 1, times)

        while ready := [
            a for a in actors
            if acted[a.number] < times
            and all(is_over(p, a, 0) for p in a.inputs)
            and all(is_over(c, a, n) for c, n in a.credits)
        ]:  # fmt: skip
            actor = rng.choice(ready)
            if actor.number in on_lane:
                sequence.append((phases[actor.number], acted[actor.number]))
            acted[actor.number] += 1
        assert acted == [times] * len(actors), "actors wait for each other"
        visited.add(tuple(dict.fromkeys(sequence)))
    (only,) = visited
    deep = min(abreast, times)
    expected = [("forward", k) for k in range(deep)]
    for k in range(times):
        expected.append(("backward", k))
        expected += [("forward", k + deep)] if k + deep < times else []
    assert list(only) == expected


def test_from_another_stream_and_sequentially():
    graph, variables = captured(3)
    start = [v.numpy().copy() for v in variables]
    x = tensor()
    expected = [t.numpy().copy() for t in interpret(graph, [x])]
    plan = compile_plan(graph)

    def again() -> list[np.ndarray]:
        for v, values in zip(variables, start, strict=True):
            v.copy_(tensor(values))
        return [t.numpy().copy() for t in plan.launch([x])]

    with flow.stream(STREAMS[2]):
        assert all((a == b).all() for a, b in zip(again(), expected, strict=True))
    with flow.vm.sequential():
        assert all((a == b).all() for a, b in zip(again(), expected, strict=True))
    assert all((a == b).all() for a, b in zip(again(), expected, strict=True))


def pipeline(gate: Gate, regst_num: int) -> tuple[Plan, Any, Any]:
    """Return a Plan with a loader that counts, and a reader on another stream behind the gate."""
    loaded, total = tensor([0]), tensor([0])
    one = tensor([1])
    with capturing("pipeline", [(one, "one")]) as capture:
        with flow.stream(STREAMS[0]):
            update(loaded, one, 0)
            batch = mix(loaded, one, 0)
        wait_for_gate(total, batch, gate.address)
        capture.output(mix(batch, batch, 0))
    return compile_plan(replace(capture.graph, regst_num=regst_num)), loaded, total


@pytest.mark.parametrize("regst_num", [1, 2, 3])
def test_launches_overlap_up_to_regst_num(regst_num):
    with Gate() as gate:
        plan, _, total = pipeline(gate, regst_num)
        words = runtime(plan).words
        outs = [plan.launch([tensor([1])])[0] for _ in range(6)]
        until(lambda: gate.is_reached, "the first launch waits for the gate")
        until(lambda: words[RUNTIME.STARTED] == regst_num, "as many launches are open as may be")
        first = int(words[RUNTIME.FIRST])
        until(lambda: words[first + ACTOR.ACTED] == regst_num, "the loader has run ahead")
        for _ in range(200):  # and no further
            os.sched_yield()
            assert words[RUNTIME.STARTED] == regst_num
            assert words[RUNTIME.FINISHED] == 0
    loaded, expected, sums = 0, [], 0
    for _ in range(6):
        loaded = 5 * loaded + 1
        batch = 3 * loaded - 1
        sums += batch
        expected.append(2 * batch)
    assert [int(t.item()) for t in outs] == expected
    assert total.item() == sums
    assert words[RUNTIME.STARTED] == words[RUNTIME.FINISHED] == 6


def test_an_output_that_goes_in_again_waits():
    x = tensor()
    with capturing("again", [(x, "x")]) as capture:
        with flow.stream(STREAMS[0]):
            a = mix(x, x, 1)
        capture.output(mix(a, x, 2))
    plan = compile_plan(replace(capture.graph, regst_num=4))
    value, expected = x, x
    for _ in range(50):
        (value,) = plan.launch([value])
        expected = mix(mix(expected, expected, 1), expected, 2)
    assert (value.numpy() == expected.numpy()).all()


def test_an_input_that_is_a_variable_waits():
    v, x = tensor(), tensor()
    with capturing("alias", [(x, "x")]) as capture:
        with flow.stream(STREAMS[0]):
            a = mix(x, x, 1)
        update(v, a, 2)
        capture.output(mix(v, v, 0))
    plan = compile_plan(replace(capture.graph, regst_num=4))
    start = v.numpy().copy()
    actual = [plan.launch([v])[0] for _ in range(20)]
    expected = tensor(start)
    for out in actual:
        update(expected, mix(expected, expected, 1), 2)
        assert (out.numpy() == mix(expected, expected, 0).numpy()).all()


def test_eager_code_between_launches_keeps_its_place():
    graph, variables = captured(5)
    start = [v.numpy().copy() for v in variables]
    plan = compile_plan(replace(graph, regst_num=3))
    x, results = tensor(), []
    for run in (lambda: plan.launch([x]), lambda: interpret(graph, [x])):
        for v, values in zip(variables, start, strict=True):
            v.copy_(tensor(values))
        outs = []
        for k in range(8):
            outs += run()
            if k % 3 == 1:
                update(variables[0], x, k)
            if k % 3 == 2:
                with flow.stream(STREAMS[1]):
                    outs.append(mix(variables[1], outs[-1], k))
        results.append([t.numpy().tolist() for t in (*outs, *variables)])
    assert results[0] == results[1]


def test_a_failure_names_its_task_and_leaves_the_rest_alone():
    v, u = tensor(), tensor()
    before = u.numpy().copy()
    with capturing("failing", [(v, "v")]) as capture:
        a = mix(v, v, 1)
        with flow.stream(STREAMS[0]):
            fail(a, v, USER_STATUS)
        update(u, a, 2)
        capture.output(mix(u, a, 3))
    plan = compile_plan(replace(capture.graph, regst_num=2))
    for _ in range(2):
        (out,) = plan.launch([v])
        with pytest.raises(VMError, match="fail") as caught:
            out.numpy()
        assert "test_actors.py" in "".join(caught.value.__notes__)
    assert (u.numpy() == before).all()


def test_a_launch_in_flight_behind_a_failed_one_is_poisoned_by_it():
    v, total = tensor([1]), tensor([0])
    one = tensor([1])
    with Gate() as gate:
        with capturing("behind", [(one, "one")]) as capture:
            with flow.stream(STREAMS[0]):
                batch = mix(one, one, 1)
            wait_for_gate(total, batch, gate.address)
            fail(v, total, USER_STATUS)
            capture.output(mix(v, v, 0))
        plan = compile_plan(replace(capture.graph, regst_num=2))
        words = runtime(plan).words
        outs = [plan.launch([tensor([1])])[0] for _ in range(2)]
        until(lambda: words[RUNTIME.STARTED] == 2, "both launches are in flight")
    for out in outs:
        with pytest.raises(VMError, match="fail"):
            out.numpy()
    other = compile_plan(replace(captured(1)[0], regst_num=2))
    assert other.launch([tensor()])[0].numpy().size  # the VM goes on


def test_eord_passes_every_actor_when_the_plan_goes():
    graph, _ = captured(7)
    plan = compile_plan(replace(graph, regst_num=2))
    plan.launch([tensor()])
    plan.launch([tensor()])
    words = runtime(plan)
    assert not any(words.ended)
    del plan
    gc.collect()
    until(lambda: all(words.ended), "Eord has passed every actor")
    until(lambda: words.words[RUNTIME.FINISHED] == 2, "both launches are closed")
    assert words.words[RUNTIME.STARTED] == 2


def test_a_plan_that_goes_while_it_runs_finishes_first():
    with Gate() as gate:
        plan, loaded, _ = pipeline(gate, 2)
        words = runtime(plan)
        outs = [plan.launch([tensor([1])])[0] for _ in range(3)]
        del plan
        gc.collect()
        until(lambda: gate.is_reached, "a launch waits for the gate")
    assert outs[-1].item() == 2 * (3 * loaded.item() - 1)
    until(lambda: all(words.ended), "Eord has passed every actor")


def test_words_stay_while_a_message_names_them():
    """All have ended, and the message of the second to the first lies where nobody has read it."""
    with Gate() as gate, Gate() as before:
        x, held = tensor(), (tensor([0]), tensor([0]))
        with capturing("never launched", [(x, "x")]) as capture:
            with flow.stream(STREAMS[0]):
                first = mix(x, x, 0)
            with flow.stream(STREAMS[1]):
                capture.output(mix(first, x, 0))
        plan = compile_plan(capture.graph)
        words = runtime(plan)
        address = words.address
        with flow.stream(STREAMS[1]):
            wait_for_gate(held[1], tensor([0]), before.address)
        until(lambda: before.is_reached, "the second actor's worker is busy")
        del plan
        gc.collect()
        until(lambda: words.ended == [True, False], "Eord is with the second actor")
        with flow.stream(STREAMS[0]):
            wait_for_gate(held[0], tensor([0]), gate.address)
        until(lambda: gate.is_reached, "the first actor's worker is busy")
        before.open()
        until(lambda: words.ended == [True, True], "the second actor has ended")
        _drop_a_plan()
        assert address in _closing, "the words are freed, and a message names them"
        assert not words.is_left
    until(lambda: words.is_left, "the message is answered")
    _drop_a_plan()
    assert address not in _closing


def _drop_a_plan() -> None:
    """Drop a Plan: its end frees Plans that ended before."""
    plan = compile_plan(captured(7)[0])
    assert plan.actors
    del plan
    gc.collect()


def test_two_threads_launch_one_plan():
    gate = Gate()
    gate.open()
    plan, _loaded, _total = pipeline(gate, 3)
    gc.collect()

    def launches() -> list[Any]:
        return [plan.launch([tensor([1])])[0] for _ in range(30)]

    threads = [Background(launches) for _ in range(2)]
    outs = [int(t.item()) for thread in threads for t in thread.result()]
    expected, count = [], np.int64(0)
    with np.errstate(over="ignore"):
        for _ in range(60):
            count = np.int64(5) * count + np.int64(1)
            expected.append(int(np.int64(2) * (np.int64(3) * count - np.int64(1))))
    assert sorted(outs) == sorted(expected)


def test_the_dump_names_actors_and_credits():
    graph, _ = captured(2)
    text = compile_plan(replace(graph, regst_num=2)).dump()
    assert "regst_num 2" in text
    assert "actor 0" in text
    assert "credits" in text
    assert f"stream {STREAMS[0].name}" in text or f"stream {STREAMS[1].name}" in text


@pytest.mark.parametrize("record", ["trace", "profile"])
def test_the_verifier_looks_into_launches_beside_each_other(record):
    graph, _ = captured(4)
    plan = compile_plan(replace(graph, regst_num=3))
    inputs = [tensor() for _ in range(12)]
    if record == "trace":
        with flow.vm.record() as recording:
            outs = [plan.launch([x]) for x in inputs]
        assert flow.vm.verify(recording).pairs > 0
        last = max(index for index, _ in recording.uses)
        for key, times in recording.uses.items():
            if key[0] == last:  # as if the last launch had been the first to use everything
                for k, (begun, ended) in enumerate(times):
                    assert 0 < begun <= ended or (begun, ended) == (0, 0)
                    times[k] = min(begun, 1), ended
        with pytest.raises(ScheduleError, match="random"):
            flow.vm.verify(recording)
    else:
        with profile() as recording:
            outs = [plan.launch([x]) for x in inputs]
        assert recording.verify().pairs > 0
        last = recording.run.uses.of == recording.run.uses.of.max()
        recording.run.uses.times[last & (recording.run.uses.times[:, 0] > 0)] = 1
        with pytest.raises(ScheduleError, match="random"):
            recording.verify()
    assert len(outs) == 12


@pytest.mark.parametrize("several", [False, True])
def test_a_variable_of_a_failed_launch_is_whole_or_poisoned(several):
    """A variable not begun is unchanged; a half written one raises; a returned one raises once."""
    finished, half, later, inputs = (flow.zeros(4) for _ in range(4))

    def step(x, places):
        finished.add_(1)
        half.add_(1)
        y = flow.index_select(x, 0, places)
        with flow.stream(STREAMS[0] if several else None):
            z = y * 2
        half.mul_(z)
        later.add_(z)
        inputs.add_(z)
        return y, inputs

    graph = flow.compile(step)
    places = flow.tensor([0, 1, 2, 3])
    graph(flow.ones(4), places)
    assert bool(graph.plan.actors) == several
    before, returned = later.tolist(), inputs.tolist()
    outs = graph(flow.ones(4), flow.tensor([0, 1, 2, 9]))
    for t in (outs[1], outs[0], half):
        with pytest.raises(OutOfRangeError, match="index 9"):
            t.numpy()
    assert inputs.tolist() == outs[1].tolist() == returned
    assert (finished.tolist(), later.tolist()) == ([2] * 4, before)
    assert any(one.begun for one in flow.vm.restore().lost)


def test_a_launch_with_a_poisoned_input_behind_one_in_flight_does_not_run():
    """A launch that opens when the one in front is closed is checked once more."""
    total, one = tensor([0]), tensor([1])
    with Gate() as gate:
        with capturing("pipeline", [(one, "one")]) as capture:
            with flow.stream(STREAMS[0]):
                batch = mix(one, one, 1)
            wait_for_gate(total, batch, gate.address)
            capture.output(mix(batch, batch, 0))
        plan = compile_plan(replace(capture.graph, regst_num=2))
        bad = tensor([1])
        fail(bad, bad, USER_STATUS)
        good, spoiled = plan.launch([tensor([1])]), plan.launch([bad])
        until(lambda: gate.is_reached, "the first launch is in flight")
        until(lambda: in_flight() >= 2, "both are received")
    assert good[0].item() == 2 * 3
    for t in (total, *spoiled):
        with pytest.raises(VMError, match="fail"):
            t.numpy()
    assert total.item() == 3  # as the first launch has left it


@pytest.mark.parametrize("record", ["trace", "profile"])
def test_the_verifier_knows_that_a_launch_that_was_skipped_used_nothing(record):
    """A launch was in flight beside one that computed, and did nothing when that one failed."""
    bad, total, one = tensor([1]), tensor([0]), tensor([1])
    with Gate() as gate:
        with capturing("build", [(one, "one")]) as capture:
            with flow.stream(STREAMS[0]):
                batch = mix(one, one, 1)
            wait_for_gate(total, batch, gate.address)
            fail(bad, total, USER_STATUS)
            capture.output(mix(total, batch, 0))
        plan = compile_plan(replace(capture.graph, regst_num=2))
        words = runtime(plan).words
        with flow.vm.record() if record == "trace" else profile() as recording:
            outs = [plan.launch([tensor([1])])[0] for _ in range(2)]
            until(lambda: words[RUNTIME.STARTED] == 2, "both launches are in flight")
            gate.open()
    checked = flow.vm.verify(recording) if record == "trace" else recording.verify()
    assert checked.pairs > 0
    for out in outs:
        with pytest.raises(VMError, match="fail"):
            out.numpy()
