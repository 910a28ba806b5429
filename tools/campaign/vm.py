"""Random programs on 1, 2, 4 and 8 streams against NumPy, and against the schedule verifier.

A program is a list of steps on eight tensors of one shape: new values, updates in place that do not
commute, views (so names share memory), shapes that only a kernel knows, indices out of range,
deletions, reads and syncs.  NumPy says each value.  What fails says so by an index of its own, so
it is known exactly which error whom a read or a sync is to raise: `Model` has the rule of
docs/reference/reliability/errors.md once more.

All tensors are int64, where arithmetic wraps and results compare bit for bit, and of SIDE x SIDE,
so the same few kernels serve a whole process and a case costs its instructions.
"""

from __future__ import annotations

import contextlib
import gc
import random
import re
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import flowvm as flow
from flowvm.errors import OutOfRangeError
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL
from tools.campaign._steps import left_out, ranges

SIDE = 4
NAMES = 8  # tensors of a program
STEPS = 500
WRONG = 1000  # an index from here on is that of a step, and out of range
LARGE = 1 << 16  # elements of what takes a while
BATCH = 100
AMOUNTS: Counter[str] = Counter()

Array = np.ndarray[Any, Any]

# What a step does with tensors p and q and a small number k: flowvm and NumPy alike, where they
# have the same words.
NEW: dict[str, Callable[[Any, Any, int], Any]] = {
    "mix": lambda p, q, k: p * 3 - q + k,
    "mul": lambda p, q, k: (p % 7) * (q % 5) + k,
    "cumsum": lambda p, q, k: (p % 7).cumsum(1) + q,
    "matmul": lambda p, q, k: (p % 5) @ (q % 3) + k,
    "sum": lambda p, q, k: (p % 11).sum(0) + q,
}
UPDATE: dict[str, Callable[[Any, Any, int], Any]] = {
    "whole": lambda p, q, k: p.__imul__(5).__iadd__(q),
    "half": lambda p, q, k: p[: SIDE // 2].__iadd__(q[SIDE // 2 :] * 3),
    "column": lambda p, q, k: p[:, k % SIDE].__isub__(q[:, (k + 1) % SIDE] * 2 + k),
    "stepped": lambda p, q, k: p[::2, 1::2].__imul__(q[1::2, ::2] % 5 + k),
    "row": lambda p, q, k: p.__setitem__(k % SIDE, q[(k + 1) % SIDE] + 1),
}
VIEW: dict[str, Callable[[Any], Any]] = {
    "itself": lambda p: p,
    "transposed": lambda p: p.T,
    "reshaped": lambda p: p.reshape(SIDE, SIDE),
}
KINDS = {
    "new": 90, "update": 90, "view": 24, "slow": 6, "odd": 6, "bad": 2, "bad_update": 1,
    "delete": 18, "read": 9, "sync": 2, "burst": 3,
}  # fmt: skip
POLICIES = ("", "", "random", "pct", "adversarial", "lifo", "work_stealing")  # "": none
OPTIONS = {"new": list(NEW), "update": list(UPDATE), "view": list(VIEW)}


# --- cases ----------------------------------------------------------------------------------------


def case(seed: int) -> dict[str, Any]:
    """See `tools.campaign.__main__`."""
    rng = random.Random(seed)
    threads = 1 if rng.random() < 0.8 else rng.choice([2, 3])
    kinds = {kind: weight * rng.choice([0, 1, 1, 2]) for kind, weight in KINDS.items()}
    kinds["new"] += 1
    if rng.random() < 0.6:  # to hear of an error costs as much as a hundred instructions
        kinds["bad"] = kinds["bad_update"] = 0
    return {
        "streams": rng.choice([1, 2, 4, 8]),
        "verify": rng.random() < 0.5,
        "values": rng.randrange(1 << 30),
        "programs": [steps(rng, kinds, threads) for _ in range(threads)],
        "policy": rng.choice(POLICIES),
        "seed": rng.randrange(1 << 20),
        "depth": rng.choice([0, 1, 2]),
        "shared": rng.random() < 0.5,  # whether the streams share their work
    }


def steps(rng: random.Random, kinds: dict[str, int], threads: int) -> list[list[Any]]:
    """[kind, which of it, stream, out, p, q, k] for each."""
    if threads > 1:
        kinds = {**kinds, "sync": 0}  # whose error it would raise is chance
    chosen = rng.choices(list(kinds), list(kinds.values()), k=STEPS // threads)
    return [
        [
            kind, rng.choice(OPTIONS.get(kind, [""])), rng.randrange(8),
            *(rng.randrange(NAMES) for _ in range(3)), rng.randrange(1, 6),
        ]
        for kind in chosen
    ]  # fmt: skip


def kind(case: Any) -> str:
    """See `tools.campaign.__main__`."""
    verified = ", verified" if case["verify"] else ""
    policy = f", {case['policy']}" if case.get("policy") else ""
    shared = ", shared" if policy and case["shared"] else ""
    return f"{case['streams']} streams, {len(case['programs'])} threads{verified}{policy}{shared}"


def parts(case: Any) -> list[Any]:
    """Runs of steps, the long ones first."""
    return [(t, *r) for t, steps in enumerate(case["programs"]) for r in ranges(len(steps))]


def without(case: Any, k: int) -> Any:
    """Return the case without a run of steps.  It is tried often: failures may come by chance."""
    t, first, last = parts(case)[k]
    programs = list(case["programs"])
    programs[t] = left_out(programs[t], first, last)
    return {**case, "programs": programs, "times": 20}


# --- what must come out ---------------------------------------------------------------------------


class Memory:
    """The memory that views share, with the steps that poisoned it.

    If a step had several poisoned operands there are several causes; nobody promises which one is
    named.
    """

    def __init__(self, causes: frozenset[int] = frozenset()) -> None:
        self.causes = causes


class Model:
    """The tensors of one program as NumPy has them, and which errors are due."""

    def __init__(self, arrays: list[Array]) -> None:
        self.values = [(Memory(), array) for array in arrays]
        self.failed: set[int] = set()
        self.named: set[int] = set()

    def causes(self, *names: int) -> frozenset[int]:
        """Return the steps that poisoned one of these tensors."""
        return frozenset().union(*(self.values[n][0].causes for n in names))

    def make(self, out: int, value: Array, causes: frozenset[int]) -> None:
        """A new tensor, a poisoned one if there are causes."""
        self.values[out] = (Memory(causes), np.array(value))

    def fail(self, number: int, causes: frozenset[int]) -> frozenset[int]:
        """Note a step that fails unless it is skipped; return the steps that poison its result."""
        if causes:
            return causes
        self.failed.add(number)
        return frozenset([number])


# --- running --------------------------------------------------------------------------------------


class Program:
    """A thread's tensors, in flowvm and in the model."""

    def __init__(self, steps: list[list[Any]], values: int, streams: list[Any]) -> None:
        self.steps, self.streams = steps, streams
        arrays = list(np.random.default_rng(values).integers(-9, 9, (NAMES, SIDE, SIDE)))
        self.model = Model(arrays)
        self.tensors: list[Any] = [flow.tensor(a) for a in arrays]
        self.error: BaseException | None = None

    def run(self) -> None:
        """All steps, then a look at everything."""
        try:
            for number, (kind, which, stream, *rest) in enumerate(self.steps):
                with flow.stream(self.streams[stream % len(self.streams)]):
                    getattr(self, "_" + kind)(number, which, *rest)
            for name in range(NAMES):
                self._read(-1, "", name, name, name, 0)
        except BaseException as error:
            self.error = error

    def _new(self, number: int, which: str, out: int, p: int, q: int, k: int) -> None:
        t, v = self.tensors, self.model.values
        t[out] = NEW[which](t[p], t[q], k)
        self.model.make(out, NEW[which](v[p][1], v[q][1], k), self.model.causes(p, q))

    def _update(self, number: int, which: str, out: int, p: int, q: int, k: int) -> None:
        t, (memory, array) = self.tensors, self.model.values[p]
        causes = self.model.causes(p, q)
        UPDATE[which](t[p], t[q].clone(), k)
        UPDATE[which](array, self.model.values[q][1].copy(), k)
        memory.causes = causes

    def _view(self, number: int, which: str, out: int, p: int, q: int, k: int) -> None:
        memory, array = self.model.values[p]
        if which != "reshaped" or (array.flags.c_contiguous and self.tensors[p].is_contiguous()):
            self.tensors[out] = VIEW[which](self.tensors[p])  # on the same memory, in both
            self.model.values[out] = memory, VIEW[which](array)

    def _slow(self, number: int, which: str, out: int, p: int, q: int, k: int) -> None:
        v = self.model.values
        self.tensors[out] = (self.tensors[p].reshape(-1)[:1] * flow.ones_like(ONES)).sum() * 0 + (
            self.tensors[q] + k
        )
        self.model.make(out, v[q][1] + k, self.model.causes(p, q))

    def _odd(self, number: int, which: str, out: int, p: int, q: int, k: int) -> None:
        """Use a shape that only the kernel knows: a reader waits for it, and hears of an error."""
        v, causes = self.model.values, self.model.causes(p)
        odd = flow.masked_select(self.tensors[p], self.tensors[p] % 3 == 0)
        try:
            self.tensors[out] = flow.cat([odd, self.tensors[q].reshape(-1)])[: SIDE * SIDE]
            self.tensors[out] = self.tensors[out].reshape(SIDE, SIDE)
        except OutOfRangeError as error:
            self._hear(error, causes)
            return
        assert not causes, f"step {number} took the shape of what {set(causes)} poisoned"
        array = v[p][1]
        values = np.concatenate([array[array % 3 == 0], v[q][1].reshape(-1)])[: SIDE * SIDE]
        self.model.make(out, values.reshape(SIDE, SIDE), self.model.causes(q))

    def _bad(self, number: int, which: str, out: int, p: int, q: int, k: int) -> None:
        causes = self.model.fail(number, self.model.causes(p))
        self.tensors[out] = flow.index_select(self.tensors[p], 0, _places(number))
        self.model.make(out, self.model.values[p][1], causes)

    def _bad_update(self, number: int, which: str, out: int, p: int, q: int, k: int) -> None:
        causes = self.model.fail(number, self.model.causes(p, q))
        self.tensors[p].index_add_(0, _places(number), self.tensors[q].clone())
        self.model.values[p][0].causes = causes

    def _delete(self, number: int, which: str, out: int, p: int, q: int, k: int) -> None:
        self.tensors[out] = None
        array = np.full((SIDE, SIDE), k)
        self.tensors[out] = flow.tensor(array)
        self.model.make(out, array, frozenset())

    def _burst(self, number: int, which: str, out: int, p: int, q: int, k: int) -> None:
        """Many that nobody keeps: storage ids and blocks go round."""
        for _ in range(40):
            self.tensors[p] + self.tensors[q]

    def _read(self, number: int, which: str, out: int, p: int, q: int, k: int) -> None:
        causes, expected = self.model.causes(p), self.model.values[p][1]
        try:
            value = self.tensors[p].numpy()
        except OutOfRangeError as error:
            self._hear(error, causes)
            return
        assert not causes, f"step {number} read a number that {set(causes)} poisoned"
        assert (value == expected).all(), f"step {number}: {value} instead of {expected}"

    def _sync(self, number: int, which: str, out: int, p: int, q: int, k: int) -> None:
        due = frozenset(self.model.failed - self.model.named)
        try:
            flow.vm.sync()
        except OutOfRangeError as error:
            self._hear(error, due)
            self.model.named |= due  # it names the others
            return
        assert not due, f"step {number}: sync said nothing of {set(due)}"

    def _hear(self, error: BaseException, causes: frozenset[int]) -> None:
        cause = cause_of(error)
        assert cause in causes, f"an error of step {cause} where one of {set(causes)} is due"
        self.model.named.add(cause)
        error.__traceback__ = None  # the VM keeps its errors, and these frames keep our tensors


def cause_of(error: BaseException) -> int:
    """Return the number of the step whose error it is."""
    match = re.search(r"index (\d+) is out", str(error))
    assert match is not None, error
    return int(match.group(1)) - WRONG


ONES = flow.ones(LARGE, dtype=flow.int64)
_streams: list[Any] = []


def _places(number: int) -> Any:
    return flow.tensor([0, 1, 2, WRONG + number])


def _streams_for(count: int) -> list[Any]:
    while len(_streams) < count:
        _streams.append(flow.Stream(f"campaign{len(_streams)}") if _streams else None)
    return _streams[:count]


def check(case: Any) -> str:
    """Run all programs, each on a thread of its own if there are several."""
    outcome = "right"
    for _ in range(case.get("times", 1)):
        outcome = _check(case)
    return outcome


def _check(case: Any) -> str:
    settle()
    live, before = _word(CTL.LIVE_BYTES), _word(CTL.N_DISPATCHED)
    streams = _streams_for(case["streams"])
    programs = [
        Program(steps, case["values"] + t, streams) for t, steps in enumerate(case["programs"])
    ]
    recorded = flow.vm.record() if case["verify"] else contextlib.nullcontext()
    with recorded as recording, _scheduling(case, streams):
        if len(programs) == 1:
            programs[0].run()
        else:
            threads = [threading.Thread(target=program.run) for program in programs]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    for program in programs:
        if program.error is not None:
            raise program.error
    if recording is not None and not recording.dropped:
        flow.vm.verify(recording)
        AMOUNTS["instructions verified"] += len(recording.instructions)
    failed = sum(len(program.model.failed) for program in programs)
    AMOUNTS["instructions"] += _word(CTL.N_DISPATCHED) - before
    AMOUNTS["errors"] += failed
    del programs, program, recording
    assert gc.isenabled()
    gc.collect()  # errors and the frames that they name refer to each other
    settle()
    assert _word(CTL.LIVE_BYTES) == live, f"{_word(CTL.LIVE_BYTES) - live} bytes leaked"
    return "with errors" if failed else "right"


def _scheduling(case: Any, streams: list[Any]) -> Any:
    """The policy that the scheduler takes ready instructions by, if one is asked for."""
    if not case.get("policy"):
        return contextlib.nullcontext()
    seed = case["seed"] if case["policy"] in ("random", "pct", "work_stealing") else None
    return flow.vm.schedule(
        case["policy"], seed=seed, depth=case["depth"], streams=streams if case["shared"] else ()
    )


def settle() -> None:
    """Check that nothing is in flight, free storages are released, and errors are seen."""
    for _ in range(2):
        with contextlib.suppress(flow.errors.FlowError):
            flow.vm.sync()
        engine.storages.release_dead()
    engine.waits.wait_idle()


def _word(index: int) -> int:
    return int(engine.words[index])
