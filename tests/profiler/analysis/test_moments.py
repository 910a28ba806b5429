"""The VM at a moment: events in their order, the state of each thing, and screens of it."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import ArgumentError
from flowvm.profiler import Profile, profile
from flowvm.profiler.analysis import moments
from flowvm.profiler.analysis.moments import (
    ENDED,
    PENDING,
    QUEUED,
    RUNNING,
    STATES,
    Moments,
    registers,
)
from flowvm.profiler.run.run import Run, Tasks
from flowvm.vm.machine.words import KIND
from flowvm.vm.watch.flight import TIMES
from tests.profiler.synthetic import of_rows, synthetic


@pytest.mark.parametrize("k", range(4))
def test_each_event_moves_one_instruction_by_one_stage(k: int, seed: int) -> None:
    run = synthetic(seed + k, 60)
    events, last = Moments(run), np.zeros(60, int)
    for number in range(len(events) + 1):
        states = events.states(number)
        moved = np.flatnonzero(states != last)
        assert len(moved) == (number > 0)
        if number:
            i = int(moved[0])
            assert i == events.index[number - 1]
            assert states[i] == last[i] + 1 == events.stage[number - 1] + 1
            assert number == 1 or events.time[number - 1] >= events.time[number - 2]
        for stream in range(3):
            queue = events.queue(states, stream)
            assert (
                sorted(queue)
                == np.flatnonzero((states == QUEUED) & (run.stream == stream)).tolist()
            )
        last = states
    assert (last == len(TIMES)).all()


@pytest.mark.parametrize("k", range(4))
def test_a_moment_by_time_is_what_the_times_say(k: int, seed: int) -> None:
    run = synthetic(seed + k, 80)
    events = Moments(run)
    for time in np.random.default_rng(seed).integers(0, run.ended + 1, 40).tolist():
        expected = ((run.times > 0) & (run.times <= time)).sum(axis=1)
        late = (run.times == 0).any(axis=1)  # the first was issued at 0: not written down
        actual = events.states(events.number_at(time))
        assert (actual[~late] == expected[~late]).all()


def test_what_runs_has_nothing_left_in_front(seed: int) -> None:
    run = synthetic(seed, 120)
    events = Moments(run)
    for number in range(0, len(events) + 1, 3):
        states = events.states(number)
        for i in np.flatnonzero(states == RUNNING).tolist():
            front = run.source[events.waits_for(states, i)]
            assert (states[front] >= ENDED).all()


def test_steps_go_on_and_back(seed: int) -> None:
    p = Profile(synthetic(seed, 50))
    assert p.step().number == 1
    assert p.step(10).number == 11
    assert p.step(-4).number == 7
    assert p.step(-100).number == 0
    starts = []
    for _ in range(50):
        moment = p.step(to="started")
        starts.append(moment.event.split()[0])
    assert sorted(starts) == sorted(f"#{seq}" for seq in p.run.seq)
    assert p.step(to="started").number == len(p.moments)  # there is no other
    assert p.step(-1, to="started").event.split()[0] == starts[-1]
    assert p.step(-1, to="started").event.split()[0] == starts[-2]


def test_where_an_instruction_began_to_wait() -> None:
    """Instruction 1 reads the result of 0, on another stream, and waits from 20 to 500."""
    run = of_rows(
        [(0, KIND.OP_CALL, 0, 10, 30, 500), (1, KIND.OP_CALL, 1, 20, 501, 600)],
        [[(0, 1 | 4)], [(1, 1 | 4), (0, 0)]],
    )
    run.times[0] = (10, 11, 12, 13, 30, 500, 501)
    run.times[1] = (20, 22, 501, 501, 502, 600, 601)
    p = Profile(run)
    moment = p.at(instr=101)
    assert moment.time == 22
    assert dict(moment.counts)["pending"] == 1
    (waiting,) = moment.waiting
    assert str(waiting.what) == "#101 op1"
    assert [(str(who), hazard, tensor) for who, hazard, tensor in waiting.front] == [
        ("#100 op0", "RAW", 0)
    ]
    p.at(t=0.0003)  # 300 ns: the first runs, and holds the list of its storage
    moment = p.at(0.0003)
    assert [str(w) for w in moment.streams[0].running] == ["#100 op0"]
    assert moment.streams[0].ran == (270,)
    (listed,) = moment.storages
    assert [(str(who), access, state) for who, access, state in listed.accesses] == [
        ("#100 op0", 1, "running"), ("#101 op1", 0, "pending"),
    ]  # fmt: skip
    over = p.at(instr=101, when="ended")
    assert over.python == (("Python", "has issued everything"),)
    assert not over.waiting
    text = str(moment)
    assert "░ #101 op1  waits for #100 op0 (RAW of t0)" in text
    assert "◄ mut #100 op0 running ◄ const #101 op1 pending" in text


def test_what_is_no_moment_is_said() -> None:
    p = Profile(synthetic(1, 10))
    for call, text in (
        (lambda: p.at(), "say when"),
        (lambda: p.at(1.0, instr=100), "say when"),
        (lambda: p.at("later"), "milliseconds"),
        (lambda: p.at(float("nan")), "milliseconds"),
        (lambda: p.at(instr=7), "not in this run"),
        (lambda: p.at(instr=100, when="soon"), "none of issued, received"),
        (lambda: p.step(to="soon"), "none of issued, received"),
        (lambda: p.step(1.5), "how many events"),
    ):
        with pytest.raises(ArgumentError, match=text):
            call()
    p.run.times[3, 2:] = 0  # dropped before it was ready
    q = Profile(p.run)
    with pytest.raises(ArgumentError, match="never came so far"):
        q.at(instr=103, when="started")
    assert dict(q.at(1e6).counts)["pending"] == 1
    assert Profile(Run()).step().number == 0


def test_registers_of_two_actors() -> None:
    """a00 fills one of two registers; a01 consumes them and gives them back."""
    plan = {
        "actors": [[0, 0, 1, [], [[1, 2]]], [1, 1, 1, [0], []]],
        "tasks": [["make", "", 1, 0, 0], ["use", "", 1, 1, 0]],
    }
    tasks = [(0, 0, 10, 20), (0, 1, 20, 60), (1, 0, 20, 30), (1, 1, 60, 90), (2, 0, 60, 70)]
    run = Run(
        tasks=Tasks(
            launch=np.array([t[0] for t in tasks], np.int32),
            number=np.array([t[1] for t in tasks], np.int32),
            times=np.array([t[2:] for t in tasks], np.int64),
        )
    )
    launches = np.arange(3)
    run.times = np.zeros((3, len(TIMES)), np.int64)
    run.time("started")[:] = [5, 6, 7]
    values = {
        time: [
            (a["acts"], a["task"], a["mailbox"], a["credits"])
            for a in registers(run, plan, launches, time)
        ]
        for time in (5, 15, 25, 40, 65, 75)
    }
    assert values == {
        5: [(0, -1, {}, {1: 2}), (0, -1, {0: 0}, {})],
        15: [(0, 0, {}, {1: 1}), (0, -1, {0: 0}, {})],
        25: [(1, 0, {}, {1: 0}), (0, 1, {0: 0}, {})],
        40: [(2, -1, {}, {1: 0}), (0, 1, {0: 1}, {})],  # no room: it waits for a credit
        65: [(2, 0, {}, {1: 0}), (1, 1, {0: 0}, {})],
        75: [(3, -1, {}, {1: 0}), (1, 1, {0: 1}, {})],
    }

    def waits(time: int) -> list[tuple[int, list[tuple[str, int]], int]]:
        return [(a["launch"], a["waits"], a["since"]) for a in registers(run, plan, launches, time)]

    none = (-1, [], -1)  # it acts, or has nothing to act for
    assert waits(4) == [none, none]
    assert waits(15) == [none, (0, [("regst", 0)], 5)]
    assert waits(40) == [(2, [("credit", 1)], 30), none]
    assert waits(75) == [none, none]
    run.tasks.times[3] = 65, 90  # nobody takes the register at once
    assert waits(62)[1] == (1, [], 60)


class Two(nn.Graph):
    """A producer and a consumer on two streams."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = flow.Stream("one"), flow.Stream("two")
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)

    def build(self, x: flow.Tensor) -> flow.Tensor:
        with flow.stream(self.one):
            y = flow.relu(self.a(x))
        with flow.stream(self.two):
            return flow.tanh(self.b(y)).sum()


def test_actors_of_a_graph_that_is_replayed() -> None:
    graph, x = Two(), flow.ones(8, 32)
    graph(x).item()
    with profile() as p:
        outs = [graph(x) for _ in range(5)]
        outs[-1].item()
    run, depth = p.run, graph.plans[0].graph.regst_num
    begun = np.sort(run.tasks.times[:, 0])
    acted = 0
    for time in begun.tolist():
        moment = p.at((time - run.begun) / 1e6)
        for actor in moment.actors:
            assert all(0 <= n <= depth for _, n in actor.mailbox)
            assert all(0 <= n <= depth for _, n in actor.credits)
            acted = max(acted, actor.acts)
    assert acted >= 3
    for width in (80, 100, 160):
        text = p.step().screen(width).plain(ascii_only=True)
        assert text.isascii()
        assert max(map(len, text.split("\n"))) <= width


def test_a_recorded_run_comes_to_rest() -> None:
    x = flow.ones(16, 16)
    with profile() as p:
        y = (x @ x).relu()
        (y + x).sum().item()
    moment = p.at(instr=int(p.run.seq[-1]), when="released")
    assert dict(moment.counts)["to come"] == 0
    assert p.at(1e9).number == len(p.moments)
    assert STATES[PENDING] == "pending"
    first = p.at(instr=int(p.run.seq[0]), when="issued")
    assert dict(first.counts)["issued"] == 1
    assert moments.launches_at(p.run, p.moments.states(3)).tolist() == []
