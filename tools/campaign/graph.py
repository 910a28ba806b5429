"""Random graphs against eager code: some calls in flight between eager code on several streams.

A graph is a list of steps that read and write inputs, variables and locals, on up to three streams;
passes are on and off in random subsets, regst_num is 1 or 2.  The same calls are made by eager code
and by replays, and nobody reads before the end.  Then

- what a replay gives as a number has eager code's bits (integers, and floats without the passes
  that round differently);
- what eager code gives as an error is none of a replay's numbers.  The other way is right: a launch
  with a poisoned operand is skipped as a whole, and poisons all that it writes;
- after a failure inside a launch, a variable is poisoned, or is what it was before the launch, or
  what it should be after it (docs/reference/reliability/errors.md);
- when all errors were raised, every variable of a graph has a whole value, but for those that a
  task was writing to as it failed.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections import Counter
from typing import Any

import numpy as np

import flowvm as flow
from flowvm.errors import OutOfRangeError
from flowvm.graph.passes.passes import PASSES
from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.persistent import persistent
from flowvm.vm.machine.words import CTL, OPERAND, STO
from flowvm.vm.watch.pending import poison_of
from tools.campaign._steps import left_out, ranges
from tools.campaign.vm import NEW, SIDE, UPDATE, VIEW, WRONG, cause_of, settle

BATCH = 40
AMOUNTS: Counter[str] = Counter()
ROUNDING = ("fusion", "epilogues", "accumulate", "slices")  # passes that may change a bit
GOOD = [3, 0, 2, 1]  # places that a call selects
INPUTS, VARIABLES, LOCALS = (0, 1), (2, 3), (4, 5, 6)
KINDS = {"new": 8, "update": 6, "view": 2, "select": 1}
OPTIONS = {"new": list(NEW), "update": list(UPDATE), "view": list(VIEW), "select": [""]}
BETWEEN = ["nothing", "update", "use", "delete", "again"]
PLACED = ("", "", "", "random", "pct", "work_stealing")  # who gives tasks their streams; "": code


# --- cases ----------------------------------------------------------------------------------------


def case(seed: int) -> dict[str, Any]:
    """See `tools.campaign.__main__`."""
    rng = random.Random(seed)
    whole = rng.random() < 0.7
    off = [name for name in PASSES if rng.random() < 0.4]
    if not whole or rng.random() < 0.6:
        off += [name for name in ROUNDING if name in PASSES]  # else kernels are compiled
    count = rng.choice([1, 2, 2, 3])
    names = INPUTS + VARIABLES + LOCALS
    calls = rng.randrange(2, 8)
    writes = rng.random() < 0.4  # inputs, too: then a graph has one stream
    return {
        "dtype": "int64" if whole else "float64",
        "off": sorted(set(off)),
        "regst_num": rng.choice([1, 2]),
        "placed": f"{policy}:{rng.randrange(100)}" if (policy := rng.choice(PLACED)) else "",
        "verify": rng.random() < 0.4,
        "writes": writes,
        "values": rng.randrange(1 << 30),
        "steps": [_step(rng, count, writes) for _ in range(rng.randrange(3, 16))],
        "returned": [rng.choice(names) for _ in range(rng.randrange(1, 4))],
        "calls": [_call(rng, n + 1 == calls) for n in range(calls)],
    }


def _step(rng: random.Random, streams: int, writes: bool) -> list[Any]:
    """[kind, which of it, stream, out, p, q, k]."""
    kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
    written = VARIABLES + LOCALS
    p = rng.choice(written if kind == "update" and not writes else INPUTS + written)
    q = rng.choice(INPUTS + written)
    which = rng.choice(OPTIONS[kind])
    return [kind, which, rng.randrange(streams), rng.choice(LOCALS), p, q, rng.randrange(1, 6)]


def _call(rng: random.Random, last: bool) -> list[Any]:
    """Return [stream, slow or bad or not, the eager code behind the call, its stream]."""
    how = rng.choice(["", "", "", "slow", "slow", "bad", "inside" if last else ""])
    return [rng.randrange(3), how, rng.choice(BETWEEN), rng.randrange(3)]


def kind(case: Any) -> str:
    """See `tools.campaign.__main__`."""
    streams = len({step[2] for step in case["steps"]})
    placed = f", placed by {case['placed'].partition(':')[0]}" if case.get("placed") else ""
    return f"{streams} streams, regst_num {case['regst_num']}{placed}"


def parts(case: Any) -> list[Any]:
    """Runs of steps, and calls."""
    parts_of_case: list[Any] = [("steps", *r) for r in ranges(len(case["steps"]))]
    return parts_of_case + [("calls", k, k + 1) for k in range(len(case["calls"]))]


def without(case: Any, k: int) -> Any:
    """Return the case without one of its parts.  It is tried often: failures may come by chance."""
    what, first, last = parts(case)[k]
    return {**case, what: left_out(case[what], first, last), "times": 20}


# --- running --------------------------------------------------------------------------------------


class Program:
    """The steps as a function of two inputs and of places, on two variables of its own."""

    def __init__(self, case: Any, streams: list[Any]) -> None:
        self.case, self.streams = case, streams
        self.start = _drawn(case, 0)[:2]
        self.variables = [flow.tensor(a) for a in self.start]

    def __call__(self, x: Any, y: Any, places: Any) -> tuple[Any, ...]:
        t = {**dict(zip(INPUTS, (x, y), strict=True))}
        t.update(zip(VARIABLES, self.variables, strict=True))
        t.update(zip(LOCALS, (x + 0, y + 0, x + y), strict=True))
        inputs = set(INPUTS)  # whose memory an input is, as views spread it
        for kind, which, stream, out, p, q, k in self.case["steps"]:
            with flow.stream(self.streams[stream]):
                if kind == "new":
                    t[out] = NEW[which](t[p], t[q], k)
                elif kind == "select":
                    t[out] = flow.index_select(t[p], 0, places)
                elif kind == "update" and (p not in inputs or self.case["writes"]):
                    UPDATE[which](t[p], t[q].clone(), k)
                elif kind == "view":
                    t[out] = VIEW[which](t[p])
                if kind != "update":
                    (inputs.add if kind == "view" and p in inputs else inputs.discard)(out)
        return tuple(t[name] for name in self.case["returned"])


class Run:
    """All calls of a case, by eager code or by replays, and their results."""

    def __init__(self, case: Any, replays: bool) -> None:
        self.case, self.streams = case, _streams_for()
        self.program = Program(case, self.streams)
        self.function: Any = self.program
        if replays:
            self.function = flow.compile(self.program.__call__)
            self.function.config.disable(*case["off"])
            self.function.config.regst_num = case["regst_num"]
            if case.get("placed"):
                self.function.config.schedule(case["placed"], streams=self.streams)
            self._call(0, "", [flow.tensor(a) for a in _drawn(case, 1)[:2]])
            for v, a in zip(self.program.variables, self.program.start, strict=True):
                v.copy_(flow.tensor(a))
        self.stored: list[Any] = []
        self.before: list[Any] = []
        self.inputs = [flow.tensor(a) for a in _drawn(case, 1)[:2]]

    def _call(self, number: int, how: str, inputs: list[Any]) -> tuple[Any, ...]:
        if how == "slow":
            inputs = [inputs[0] + (flow.ones(1 << 16) * 3).sum().to(inputs[0].dtype) * 0, inputs[1]]
        elif how == "bad":
            inputs = [flow.index_select(inputs[0], 0, _bad_places(number)), inputs[1]]
        places = _bad_places(number) if how == "inside" else flow.tensor(GOOD)
        outputs: tuple[Any, ...] = self.function(*inputs, places)
        return outputs

    def run(self) -> Run:
        """Make the calls, with eager code between them."""
        v = self.program.variables
        inputs = self.inputs
        for number, (stream, how, between, other) in enumerate(self.case["calls"]):
            if how == "inside":
                self.before = [u.clone() for u in (*v, *self.inputs)]
            with flow.stream(self.streams[stream]):
                outs = self._call(number, how, inputs)
            self.stored += outs
            with flow.stream(self.streams[other]):
                if how == "inside":
                    break
                if between == "update":
                    v[0].mul_(2).add_(outs[0])
                elif between == "use":
                    self.stored.append(v[1] - outs[-1])
                elif between == "delete":
                    self.stored.clear()
                elif between == "again":
                    self.stored.append(inputs[0])
                    inputs = self.inputs = [outs[0] + 0, inputs[1]]
            del outs
        return self

    def results(self) -> list[Any]:
        """Arrays, or the number of the call whose error was raised."""
        engine.waits.wait_idle()
        return [_value(t) for t in (*self.program.variables, *self.inputs, *self.stored)]

    def check_restored(self) -> None:
        """Raise all errors; then check that the graph's variables are readable, unless half
        written.

        Other whole values are readable when they are restored.
        """
        for t in (*self.program.variables, *self.stored):
            with contextlib.suppress(OutOfRangeError):
                t.numpy()
        stays = {storage for storage, _ in persistent()}
        whole = [t for t in self.program.variables if not engine.words[_place(t) + STO.TORN]]
        for t in whole:
            if t._ref & OPERAND.STORAGE_MASK in stays:
                t.numpy()
        flow.vm.restore()
        for t in whole:
            t.numpy()


def _place(t: Any) -> int:
    """Return where the words of its storage are."""
    place: int = STO.AT + (t._ref & OPERAND.STORAGE_MASK) * STO.WORDS
    return place


def _value(t: Any) -> Any:
    """Return its numbers, or the call whose error it would raise, which would restore others."""
    failed = poison_of(engine, t._ref)
    return t.numpy() if failed is None else cause_of(engine.failures.exception(failed))


def _drawn(case: Any, which: int) -> Any:
    numbers = np.random.default_rng(case["values"] + which).integers(-9, 9, (4, SIDE, SIDE))
    return numbers if case["dtype"] == "int64" else numbers / 7


def _bad_places(number: int) -> Any:
    return flow.tensor([0, 1, 2, WRONG + number])


_streams: list[Any] = []


def _streams_for() -> list[Any]:
    if not _streams:
        _streams.extend([None, flow.Stream("graphs1"), flow.Stream("graphs2")])
    return _streams


def check(case: Any) -> str:
    """Eager code, then replays, then compare."""
    warnings.simplefilter("ignore", flow.errors.RecaptureWarning)
    outcome = "right"
    for _ in range(case.get("times", 1)):
        outcome = _check(case)
    return outcome


def _check(case: Any) -> str:
    settle()
    before = int(engine.words[CTL.N_DISPATCHED])
    eager = Run(case, False).run()
    expected, earlier = eager.results(), [_value(t) for t in eager.before]
    replayed = Run(case, True)
    with flow.vm.record() if case["verify"] else contextlib.nullcontext() as recording:
        replayed.run()
        outputs = replayed.results()
    if recording is not None and not recording.dropped:
        flow.vm.verify(recording)
    compare(case, outputs, expected, earlier)
    replayed.check_restored()
    AMOUNTS["launches"] += len(case["calls"])
    AMOUNTS["instructions"] += int(engine.words[CTL.N_DISPATCHED]) - before
    return "with errors" if any(isinstance(value, int) for value in outputs) else "right"


def compare(case: Any, results: list[Any], expected: list[Any], earlier: list[Any]) -> None:
    """See the module."""
    wrong = {n for n, call in enumerate(case["calls"]) if call[1] in ("bad", "inside")}
    assert len(results) == len(expected)
    for k, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
        if isinstance(ours, int):
            assert ours in wrong, f"result {k}: an error of call {ours}, which did nothing wrong"
            continue
        allowed = [] if isinstance(theirs, int) else [theirs]
        if k < len(earlier) and not isinstance(earlier[k], int):
            allowed.append(earlier[k])
        assert allowed, f"result {k}: a number, {ours}, where the error of call {theirs} is due"
        assert any(ours.tobytes() == value.tobytes() for value in allowed), (
            f"result {k}: {ours} instead of {' or '.join(map(str, allowed))}"
        )
