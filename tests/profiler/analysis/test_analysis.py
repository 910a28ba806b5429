"""The analysis: invariants on any run, and slow twins on small ones."""

from __future__ import annotations

import itertools
import pickle
import random

import numpy as np
import pytest

from flowvm.errors import ArgumentError, ScheduleError
from flowvm.profiler import Profile, load
from flowvm.profiler.analysis.bounds import short_of_memory
from flowvm.profiler.analysis.paths import PATH, floor, observed, totals, what_if
from flowvm.profiler.analysis.waits import (
    _FIRST,
    GAPS,
    STATES,
    away,
    held_back,
    lanes,
    order,
    split,
    waits,
)
from flowvm.profiler.run.columns import CAUSES
from flowvm.vm.machine.edges import HAZARDS, connect, tensors_of
from flowvm.vm.machine.words import KIND, OPERAND
from tests.profiler.synthetic import of_rows, synthetic

SEEDS = range(12)


def run_of(seed, k):
    return synthetic(seed * 100 + k, streams=1 + k % 4)


# --- edges --------------------------------------------------------------------------------------


def edges_by_the_rule(operands):
    """`[one writer]? readers*`, one access at a time."""
    lists, edges = {}, set()
    for i, accesses in enumerate(operands):
        linked = set()
        for t, writes in sorted(set(accesses), key=lambda a: not a[1]):
            before = lists.setdefault(t, [])
            if writes:
                for j, wrote in before:
                    if j != i and j not in linked:
                        linked.add(j)
                        edges.add((j, i, "WAW" if wrote else "WAR", t))
                lists[t] = [(i, True)]
            else:
                if before and before[0][1] and before[0][0] != i and before[0][0] not in linked:
                    linked.add(before[0][0])
                    edges.add((before[0][0], i, "RAW", t))
                if before != [(i, True)]:
                    before.append((i, False))
    return edges


@pytest.mark.parametrize("k", range(6))
def test_edges_are_those_of_the_rule(seed, k):
    rng = random.Random(seed + k)
    operands = [
        [(rng.randrange(5), rng.random() < 0.4) for _ in range(rng.randrange(4))] for _ in range(80)
    ]
    owner = np.array([i for i, o in enumerate(operands) for _ in o], np.int64)
    tensor = np.array([t for o in operands for t, _ in o], np.int64)
    writes = np.array([x for o in operands for _, x in o], bool)
    edges = connect(owner, tensor, writes)
    actual = {
        (int(a), int(b), HAZARDS[h], int(tensor[k]))
        for a, b, h, k in zip(edges.source, edges.target, edges.hazard, edges.operand, strict=True)
    }
    expected = edges_by_the_rule(operands)
    # where two instructions share several tensors either may be named
    assert {e[:2] for e in actual} == {e[:2] for e in expected}
    assert {(a, b, h == "RAW") for a, b, h, _ in actual} == {
        (a, b, h == "RAW") for a, b, h, _ in expected
    }
    assert len(actual) == len(edges.source)
    assert all((owner[k] == b) for b, k in zip(edges.target, edges.operand, strict=True))


def test_a_storage_that_was_released_is_another_tensor_afterwards():
    owner = np.array([0, 1, 2, 3, 4])
    storage = np.array([7, 7, 9, 7, 7])
    release = np.array([False, True, False, False, False])
    assert tensors_of(owner, storage, release).tolist() == [0, 0, 1, 2, 2]
    assert tensors_of(owner[:0], storage[:0], release[:0]).tolist() == []


# --- waits and lanes ------------------------------------------------------------------------------


@pytest.mark.parametrize("k", SEEDS)
def test_an_instructions_waits_sum_to_the_time_from_issue_to_start(seed, k):
    run = run_of(seed, k)
    parts = waits(run)
    for part in (parts.dep, parts.queue, parts.sched):
        assert part.min() >= 0
    total = parts.dep + parts.queue + parts.sched
    assert (total == run.time("started") - run.time("issued")).all()


@pytest.mark.parametrize("k", SEEDS)
def test_what_stood_in_front(seed, k):
    run = run_of(seed, k)
    ready = order(run)
    ended, started = run.time("ended"), run.time("started")
    for i in range(len(run)):
        sources = run.source[run.target == i]
        assert ready.produced[i] == (ended[sources].max() if len(sources) else 0)
        if len(sources):
            assert ended[ready.producer[i]] == ready.produced[i]
        if run.kind[i] != KIND.TOUCH:
            front = [
                j
                for j in range(len(run))
                if run.kind[j] != KIND.TOUCH
                and run.stream[j] == run.stream[i]
                and (started[j], j) < (started[i], i)
            ]
            assert ready.freed[i] == max((ended[j] for j in front), default=0)


@pytest.mark.parametrize("k", SEEDS)
def test_a_lane_tiles_the_run_and_sums_to_its_wall_time(seed, k):
    run = run_of(seed, k)
    for lane in lanes(run):
        assert lane.begin[0] == run.begun
        assert lane.end[-1] == run.ended
        assert (lane.begin[1:] == lane.end[:-1]).all()
        assert (lane.end > lane.begin).all()
        assert set(lane.total) == set(STATES)
        assert sum(lane.total.values()) == run.wall
        assert min(lane.total.values()) >= 0
        mine = (run.stream == lane.stream) & (run.kind != KIND.TOUCH)
        moments = np.zeros(run.wall, bool)
        for a, b in zip(run.time("started")[mine], run.time("ended")[mine], strict=True):
            moments[a:b] = True
        assert lane.total["run"] == moments.sum()


@pytest.mark.parametrize("k", SEEDS)
def test_gaps_by_what_issuing_threads_did(seed, k):
    rng = random.Random(seed + k)
    waits_made = [
        (rng.randrange(len(CAUSES)), a, a + rng.randrange(40))
        for a in (rng.randrange(300) for _ in range(rng.randrange(12)))
    ]
    run = of_rows([(0, KIND.OP_CALL, 0, 0, 0, 350)], [[(1, OPERAND.MUT)]], waits_made)
    begun = np.array([rng.randrange(320) for _ in range(20)])
    ended = begun + np.array([rng.randrange(30) for _ in range(20)])
    shares = split(begun, ended, *away(run))
    for row, a, b in zip(shares, begun, ended, strict=True):
        expected = dict.fromkeys(GAPS, 0)
        for t in range(a, b):
            at = [CAUSES[c] for c, x, y in waits_made if x <= t < y]
            cause = next((c for c in _FIRST if c in at), "host")
            expected[cause] += 1
        assert dict(zip(GAPS, row.tolist(), strict=True)) == expected


# --- paths --------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", SEEDS)
def test_the_observed_path_tiles_the_run(seed, k):
    run = run_of(seed, k)
    path = observed(run)
    assert path[0].begin == run.begun
    assert path[-1].end == run.ended
    assert all(a.end == b.begin for a, b in itertools.pairwise(path))
    assert all(s.end > s.begin and s.cause in PATH for s in path)
    assert sum(totals(path).values()) == run.wall
    for s in path:
        if s.cause == "run":
            inside = run.time("started")[s.instruction], run.time("ended")[s.instruction]
            assert inside[0] <= s.begin < s.end <= inside[1]


@pytest.mark.parametrize("k", SEEDS)
def test_the_floor_is_the_longest_path_and_no_longer_than_the_run(seed, k):
    run = run_of(seed, k)
    shortest = floor(run)
    duration = run.time("ended") - run.time("started")
    edges = set(zip(run.source.tolist(), run.target.tolist(), strict=True))
    assert set(itertools.pairwise(shortest.path)) <= edges
    assert duration[shortest.path].sum() == shortest.length
    assert duration.max() <= shortest.length <= run.wall
    finish = {}
    for i in range(len(run)):  # the definition, without via and bisection
        before = [finish[a] for a, b in edges if b == i]
        finish[i] = max(before, default=0) + int(duration[i])
    assert shortest.length == max(finish.values())


@pytest.mark.parametrize("k", SEEDS)
def test_what_if(seed, k):
    run = run_of(seed, k)
    assert what_if(run, lambda name: True, 1.0) == floor(run).length
    assert what_if(run, lambda name: True) == 0
    names = set(run.names[::3])
    assert what_if(run, names.__contains__) <= floor(run).length
    assert what_if(run, names.__contains__, 2.0) >= floor(run).length


def test_the_path_goes_through_a_sync_to_what_was_waited_for():
    """A kernel of 100 that is waited for, then Python for 20, then another kernel of 30."""
    touch = (1, KIND.TOUCH, 0, 10, 105, 105)
    run = of_rows(
        [(0, KIND.OP_CALL, 0, 5, 7, 105), touch, (0, KIND.OP_CALL, 0, 130, 131, 160)],
        [[(1, OPERAND.MUT)], [(1, OPERAND.CONST)], [(2, OPERAND.MUT)]],
        [(CAUSES.index("sync"), 10, 110)],
    )
    segments = [(s.begin, s.end, s.cause, s.instruction) for s in observed(run)]
    assert segments == [
        (0, 5, "host", -1),
        (5, 7, "sched", 0),
        (7, 105, "run", 0),
        (105, 110, "sync", 1),
        (110, 130, "host", -1),
        (130, 131, "sched", 2),
        (131, 160, "run", 2),
    ]
    (lane,) = lanes(run)
    assert lane.total == {
        "run": 98 + 29, "host": 5 + 20, "sync": 5, "sched": 2 + 1, "jit": 0, "credit": 0, "gil": 0,
        "core": 0, "memory": 0,
        "dep": 0,
    }  # fmt: skip


def test_the_path_goes_through_memory_in_flight_to_what_gave_it_back():
    """The second allocates when the first has given its memory back; until then it is left."""
    give = OPERAND.MUT | OPERAND.ALLOCATE
    run = of_rows(
        [(0, KIND.OP_CALL, 1, 0, 0, 50_000), (0, KIND.OP_CALL, 0, 1_000, 52_000, 60_000)],
        [[(1, give)], [(2, give)]],
    )
    run.times[:, 1] = 0, 51_000  # received
    assert [s.cause for s in observed(run)] == ["host", "sched", "run"]  # there was room
    run.info["run_ahead_bytes"] = 100  # for one of 64 bytes
    assert held_back(run).tolist() == [False, True]
    assert [(s.begin, s.end, s.cause, s.instruction) for s in observed(run)] == [
        (0, 50_000, "run", 0),
        (50_000, 51_000, "memory", 1),
        (51_000, 52_000, "sched", 1),
        (52_000, 60_000, "run", 1),
    ]
    assert short_of_memory(run) == (1, 50_000, "a.py:2")


def test_the_path_goes_through_credit_to_what_made_room():
    run = of_rows(
        [(0, KIND.OP_CALL, 1, 0, 0, 100), (0, KIND.OP_CALL, 0, 112, 112, 120)],
        [[(1, OPERAND.MUT)], [(2, OPERAND.MUT)]],
        [(CAUSES.index("credit"), 10, 110)],
    )
    assert [(s.begin, s.end, s.cause, s.instruction) for s in observed(run)] == [
        (0, 100, "run", 0),
        (100, 110, "credit", 0),
        (110, 112, "host", -1),
        (112, 120, "run", 1),
    ]
    assert lanes(run)[0].total["credit"] == 100


def test_dep_queue_and_sched_of_one_instruction():
    """Issued at 10; its producer ends at 40, its stream is busy until 70; it starts at 75."""
    run = of_rows(
        [
            (0, KIND.OP_CALL, 1, 0, 0, 40),
            (0, KIND.OP_CALL, 0, 5, 5, 70),
            (0, KIND.OP_CALL, 0, 10, 75, 80),
        ],
        [[(1, OPERAND.MUT)], [(2, OPERAND.MUT)], [(3, OPERAND.MUT), (1, OPERAND.CONST)]],
    )
    parts = waits(run)
    assert (parts.dep[2], parts.queue[2], parts.sched[2]) == (30, 30, 5)


def test_a_run_whose_order_was_broken_has_a_path_all_the_same():
    run = of_rows(
        [(0, KIND.OP_CALL, 0, 0, 50, 60), (0, KIND.OP_CALL, 0, 0, 10, 90)],
        [[(1, OPERAND.MUT)], [(1, OPERAND.CONST)]],
    )
    assert sum(totals(observed(run)).values()) == run.wall
    with pytest.raises(ScheduleError, match="#100 op0 and #101 op0 overlap on tensor t0"):
        Profile(run).verify()


# --- tables and memory ---------------------------------------------------------------------------


@pytest.mark.parametrize("k", SEEDS)
def test_tables_sum_to_the_same_however_they_are_cut(seed, k):
    p = Profile(run_of(seed, k))
    sums = []
    for by in ("op", "line", "stream", "module"):
        rows = p.table(by)
        sums.append(
            tuple(sum(getattr(r, c) for r in rows) for c in ("count", "run", "path", "dep"))
        )
    assert len(set(sums)) == 1
    assert sums[0][1] == (p.run.time("ended") - p.run.time("started")).sum()
    assert sums[0][2] == totals(p.observed)["run"]
    with pytest.raises(ArgumentError, match="by='size'"):
        p.table("size")


def test_tasks_have_the_path_time_of_their_launch(seed):
    ms = 1_000_000
    run = of_rows(
        [(0, KIND.LAUNCH, 0, 0, 0, 10 * ms), (1, KIND.OP_CALL, 0, 0, 10 * ms, 30 * ms)],
        [[(1, OPERAND.MUT)], [(1, OPERAND.CONST)]],
    )
    run.names, run.modules = ["graph", "relu", "matmul"], ["", "model.fc"]
    run.tasks.launch, run.tasks.number = np.array([0, 0]), np.array([0, 1])
    run.tasks.op, run.tasks.line = np.array([2, 1]), np.array([0, 1])
    run.tasks.module, run.tasks.stream = np.array([1, 0]), np.array([0, 0])
    run.tasks.forward = np.array([-1, -1])
    run.tasks.times = np.array([[ms, 7 * ms], [7 * ms, 9 * ms]])
    run.tasks.nbytes = run.tasks.flops = np.zeros(2, np.int64)
    p = Profile(run)
    shares = {r.name: r.path // ms for r in p.table()}
    assert shares == {"graph": 2, "matmul": 6, "relu": 22}
    assert {r.name: r.path // ms for r in p.table("module")} == {"": 24, "model.fc": 6}
    assert sum(r.path for r in p.table("line")) == totals(p.observed)["run"]


def test_memory_has_its_owners_at_the_peak():
    access = OPERAND.MUT | OPERAND.ALLOCATE
    run = of_rows(
        [
            (0, KIND.OP_CALL, 0, 0, 0, 10),
            (1, KIND.OP_CALL, 0, 0, 10, 20),
            (2, KIND.RELEASE, 0, 0, 20, 21),
            (0, KIND.OP_CALL, 0, 0, 30, 40),
        ],
        [[(1, access)], [(2, access), (1, OPERAND.CONST)], [(1, OPERAND.MUT)], [(3, access)]],
    )
    run.size[:] = [100, 1000, 0, 100, 10]
    run.scratch[1] = 7
    run.info["live"] = {"cpu": 5000}
    memory = Profile(run).memory_of()
    assert memory.peak - memory.before == 1107
    assert memory.peak_time == 10
    assert memory.nbytes[-1] == 5000
    assert [(o.name, o.nbytes, o.count) for o in memory.owners] == [
        ("op1", 1000, 1),
        ("op0", 100, 1),
    ]
    assert memory.before == 5000 - 1010


# --- the value ----------------------------------------------------------------------------------


def test_a_profile_is_a_value(seed, tmp_path):
    p = Profile(synthetic(seed))
    p.save(tmp_path / "run.flowtrace")
    for q in (load(tmp_path / "run.flowtrace"), pickle.loads(pickle.dumps(p))):
        assert repr(q) == repr(p)
        assert q.observed == p.observed
        assert q.table("line") == p.table("line")
        assert q.run.info == p.run.info


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text").write_text("no run")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    for name in ("text", "other.npz"):
        with pytest.raises(ArgumentError, match=r"is not a saved run of flowvm\.trace/4"):
            load(tmp_path / name)


def test_what_is_not_there_is_said():
    assert repr(Profile()) == "flow.profiler  nothing was recorded"
    p = Profile(of_rows([(0, KIND.OP_CALL, 0, 0, 0, 10)], [[(1, OPERAND.MUT)]]))
    with pytest.raises(ArgumentError, match="no operator 'matmul' in this run; there are op0"):
        p.what_if("matmul")
    with pytest.raises(ArgumentError, match="#7 is not in this run"):
        p.run.index(7)
    assert p.run.index(100) == 0


def test_an_empty_run_has_an_empty_analysis():
    p = Profile()
    assert (p.floor.length, p.observed, p.lanes, p.table()) == (0, [], [], [])
    assert p.memory_of().owners == []
    assert p.verify().pairs == 0
