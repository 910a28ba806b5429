"""Random programs: eagerly, as a Plan without the passes that round differently, as a Plan with all
of them, and by the graph's plain interpreter: the same numbers.

A program is a list of steps over named tensors: new values, updates in place that do not commute,
views of all kinds (so names share memory), reductions, products, random masks.  Some names are
inputs, some are variables that live across calls, and what is returned may be any of them.  So an
order that is not program order, a copy that should not have been left out, or memory that was
given away too early gives other numbers.

Integers make all engines comparable bit for bit; programs on floats are compared within rounding
with all passes.  A failure prints the seed and the steps; Hypothesis finds a shorter program.
"""

from __future__ import annotations

import random
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flowvm as flow
from flowvm.graph.capture.capture import capturing
from flowvm.graph.logical.interpret import interpret
from flowvm.vm import record
from tests.graph.helpers import close, exact, same_bits

SIDE = 6  # of all matrices
INPUTS, VARIABLES, LOCALS = ("x", "y"), ("v", "w"), ("a", "b", "c", "d")
NAMES = (*INPUTS, *VARIABLES, *LOCALS)
CALLS = 3

# What a step does with tensors p and q and a small number k.  "new" gives a tensor, "update" writes
# into p and gives nothing, "view" gives a tensor of SIDE x SIDE on p's memory.
NEW = {
    "add": lambda p, q, k: p + q * k,
    "sub": lambda p, q, k: p - 3 * q,
    "mul": lambda p, q, k: (p % 7) * (q % 5) + k,
    "neg": lambda p, q, k: -p + k,
    "clamp": lambda p, q, k: p.clamp(-9, 9) + q.clamp(-k - 9, 9),
    "maximum": lambda p, q, k: flow.maximum(p, q) - k,
    "where": lambda p, q, k: flow.where(p > q, p - k, q + k),
    "sum": lambda p, q, k: (p % 11).sum(0, keepdim=True) + q,
    "rows": lambda p, q, k: (p % 11).sum(1).unsqueeze(1) - q,
    "amax": lambda p, q, k: p.amax(1, keepdim=True) + q * 0 + k,
    "matmul": lambda p, q, k: (p % 5) @ (q % 3) + k,
    "cumsum": lambda p, q, k: (p % 7).cumsum(1) + k,
    "clone": lambda p, q, k: p.clone(),
    "copy twice": lambda p, q, k: (p + k).clone().contiguous(),
    "same": lambda p, q, k: (p + q) - (p + q) + (p * k),
    "cat": lambda p, q, k: flow.cat([p[: SIDE // 2], q[SIDE // 2 :]]) * k,
    "gather": lambda p, q, k: p.gather(1, flow.arange(SIDE).expand(SIDE, SIDE).flip(1)) + k,
    "constant": lambda p, q, k: flow.full((SIDE, SIDE), k, dtype=p.dtype) * 2 + 1,
    "one": lambda p, q, k: p * 1 + 0,
}
UPDATE = {
    "add_": lambda p, q, k: p.mul_(2).add_(q),
    "copy_": lambda p, q, k: p.copy_(q.clone() + k),
    "half": lambda p, q, k: p[: SIDE // 2].add_(q[SIDE // 2 :] * 3),
    "column": lambda p, q, k: p[:, k % SIDE].mul_(-1).add_(k),
    "stepped": lambda p, q, k: p[::2, 1::2].sub_(q[1::2, ::2].clone()),
    "fill_": lambda p, q, k: p[k % SIDE].fill_(k),
    "own transpose": lambda p, q, k: p.add_(p.t().clone() * 2),
    "setitem": lambda p, q, k: p.__setitem__((slice(1, 3), slice(None)), q[2:4] * 2),
    "clamp_": lambda p, q, k: p.clamp_(-50, 50),
    "out": lambda p, q, k: flow.add(p.clone(), q, out=p),
}
VIEW = {
    "itself": lambda p, k: p,
    "transpose": lambda p, k: p.t(),
    "reshape": lambda p, k: p.reshape(-1).view(SIDE, SIDE) if p.is_contiguous() else p,
    "flat columns": lambda p, k: p[:, :].as_strided(p.shape, p.stride(), p.storage_offset()),
    "expanded row": lambda p, k: p[k % SIDE : k % SIDE + 1].expand(SIDE, SIDE),
}


def random_steps(rng: random.Random, length: int) -> list[tuple[str, str, str, str, str, int]]:
    """Return steps: (kind, what, p, q, name of the result, number)."""
    steps = []
    for _ in range(length):
        kind = rng.choice(["new"] * 5 + ["update"] * 4 + ["view"])
        what = rng.choice(list({"new": NEW, "update": UPDATE, "view": VIEW}[kind]))
        p, q = rng.choice(NAMES), rng.choice(NAMES)
        steps.append((kind, what, p, q, rng.choice(LOCALS), rng.randrange(1, 6)))
    return steps


class Program:
    """Steps as a function of the inputs, on variables of its own.

    `streams` are numbers of steps after which it changes to another stream.
    """

    def __init__(
        self, steps: Any, returned: Any, start: dict[str, np.ndarray], streams: Any = ()
    ) -> None:
        self.steps, self.returned, self.streams = steps, returned, streams
        self.variables = {name: flow.tensor(start[name]) for name in VARIABLES}

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        t = {**self.variables, **dict(zip(INPUTS, inputs, strict=True))}
        for name in LOCALS:  # no update may reach an input: the locals begin as copies
            t[name] = t[INPUTS[LOCALS.index(name) % 2]] + 0
        # whose memory an input is, as views spread it; and which may hold a place twice
        placed, repeated = set(INPUTS), set()
        for i, (kind, what, p, q, out, k) in enumerate(self.steps):
            with (
                flow.stream(self.streams[i % len(self.streams)]) if self.streams else nullcontext()
            ):
                if kind == "new":
                    t[out] = NEW[what](t[p], t[q], k)
                    placed.discard(out)
                    repeated.discard(out)
                elif kind == "update" and p not in placed and p not in repeated:
                    UPDATE[what](t[p], t[q], k)
                elif kind == "view":
                    t[out] = VIEW[what](t[p], k)
                    for marks in (placed, repeated):
                        (marks.add if p in marks else marks.discard)(out)
                    if what == "expanded row":
                        repeated.add(out)
        return tuple(t[name] for name in self.returned)


def check(steps: Any, returned: Any, seed: int, dtype: str, streams: Any = ()) -> None:
    numbers = np.random.default_rng(seed)

    def draw() -> np.ndarray:
        drawn = numbers.integers(-9, 9, (SIDE, SIDE))
        return drawn.astype(dtype) if dtype == "int64" else (drawn / 7).astype(dtype)

    start = {name: draw() for name in VARIABLES}
    calls = [[draw() for _ in INPUTS] for _ in range(CALLS)]
    what = f"seed {seed}\n" + "\n".join(map(str, steps)) + f"\nreturned {returned}"

    def results(run: Any, program: Program) -> list[np.ndarray]:
        arrays_out = []
        for arrays in calls:
            arrays_out += [t.numpy() for t in run(*map(flow.tensor, arrays))]
            program.variables["v"].add_(1)  # eager code between the calls
        v = program.variables["v"]
        arrays_out += [
            t.numpy() for t in run(v, v)
        ]  # inputs that share memory with what is written
        return arrays_out + [t.numpy() for t in program.variables.values()]

    def new_program() -> Program:
        return Program(steps, returned, start, streams)

    program = new_program()
    expected = results(program, program)

    program = new_program()
    with capturing("program") as capture:
        arguments = [capture.placeholder(flow.tensor(a)._meta, "") for a in calls[0]]
        for t in program(*arguments):
            capture.output(t)
    capture.graph.check()
    actual = results(lambda *inputs: interpret(capture.graph, inputs), program)
    same_bits(actual, expected, f"interpreter\n{what}")

    program = new_program()
    graph = exact(flow.compile(program.__call__))
    same_bits(results(graph, program), expected, f"Plan without inexact passes\n{what}")

    program = new_program()
    graph = flow.compile(program.__call__)
    compare = same_bits if dtype == "int64" else close
    compare(results(graph, program), expected, f"Plan with all passes\n{what}")


def random_program(seed: int, length: int) -> tuple[Any, Any]:
    rng = random.Random(seed)
    steps = random_steps(rng, length)
    return steps, [rng.choice(NAMES) for _ in range(rng.randrange(1, 5))]


@pytest.mark.parametrize("round", range(12))
def test_programs_on_integers(round, seed):
    check(*random_program(seed, 10 + round), seed, "int64")


@pytest.mark.parametrize("round", range(4))
def test_programs_on_floats(round, seed):
    check(*random_program(seed, 6), seed, "float64")


@pytest.mark.parametrize("count", [2, 4])
def test_programs_on_several_streams(count, seed):
    streams = [flow.current_stream(), *(flow.Stream(f"side{i}") for i in range(count - 1))]
    for i in range(3):
        check(*random_program(seed + i, 14), seed + i, "int64", streams)


def test_a_long_program(seed):
    check(*random_program(seed, 120), seed, "int64")


step = st.one_of(
    st.tuples(st.just("new"), st.sampled_from(list(NEW))),
    st.tuples(st.just("update"), st.sampled_from(list(UPDATE))),
    st.tuples(st.just("view"), st.sampled_from(list(VIEW))),
)
steps_of_any = st.lists(
    st.builds(
        lambda kind, p, q, out, k: (*kind, p, q, out, k),
        step, st.sampled_from(NAMES), st.sampled_from(NAMES), st.sampled_from(LOCALS),
        st.integers(1, 5),
    ),
    min_size=1, max_size=10,
)  # fmt: skip


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(steps_of_any, st.lists(st.sampled_from(NAMES), min_size=1, max_size=4))
def test_any_program(steps, returned):
    check(steps, returned, 1, "int64")


def test_replays_between_eager_code_are_verified(seed):
    """The schedule of launches among eager instructions, in both directions, on two streams."""
    streams = [flow.current_stream(), flow.Stream("side0")]
    steps, returned = random_program(seed, 12)
    numbers = np.random.default_rng(seed)
    start = {name: numbers.integers(-9, 9, (SIDE, SIDE)) for name in VARIABLES}
    program = Program(steps, returned, start, streams)
    graph = flow.compile(program.__call__)
    inputs = [flow.tensor(numbers.integers(-9, 9, (SIDE, SIDE))) for _ in INPUTS]
    graph(*inputs)
    with record() as trace:
        for i in range(6):
            with flow.stream(streams[i % 2]):
                out = graph(*inputs)
            with flow.stream(streams[i // 2 % 2]):
                program.variables["v"].mul_(2).add_(out[0])
                inputs[0] = inputs[0] + program.variables["w"]
    checked = flow.vm.verify(trace)
    assert checked.pairs > 10


def test_the_check_finds_a_wrong_order(seed):
    """The comparison's own check: programs with two conflicting updates swapped are told apart."""
    swapped = 0
    for i in range(10):
        steps = [
            ("update", "add_", "v", "x", "a", 2),
            ("update", "half", "v", "y", "a", 3),
            ("update", "column", "v", "y", "a", 1 + i % 5),
        ]
        try:
            rng = np.random.default_rng(seed + i)
            start = {name: rng.integers(-9, 9, (SIDE, SIDE)) for name in VARIABLES}
            inputs = [flow.tensor(rng.integers(-9, 9, (SIDE, SIDE))) for _ in INPUTS]
            first, second = Program(steps, ["v"], start), Program(steps[::-1], ["v"], start)
            same_bits([first(*inputs)[0].numpy()], [second(*inputs)[0].numpy()], "swapped")
        except AssertionError:
            swapped += 1
    assert swapped == 10
