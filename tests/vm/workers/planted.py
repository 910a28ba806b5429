"""Kernels that touch memory of others, each run by itself: the memory check reports them.

Run as a program, under FLOWVM_CHECK=memory; prints a JSON object of name: message, "" for nothing.
"""

from __future__ import annotations

import json
import sys

import numpy as np

import flowvm as flow
from flowvm.launch import ARENA_BYTES
from flowvm.ops import Launch, op
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.lang import address_in, load_word, store_word

SIZE = 10


def past_body(out, x, lo, hi):
    for i in range(lo, hi):
        out[i] = x[i]
    if hi == x.shape[0]:
        out[hi] = 7


@op("x -> out")
def past(x):
    """A copy, and one element behind it."""
    return Launch((x.dense(),), past_body, units=x.shape[0])


def before_body(out, x, lo, hi):
    for i in range(lo, hi):
        out[i] = x[i]
    if lo == 0:
        store_word(address_in(out, 0) - 8, 7)


@op("x -> out")
def before(x):
    """A copy of int64, and one element in front of it."""
    return Launch((x.dense(),), before_body, units=x.shape[0])


def row_body(x, lo, hi):
    for row in range(lo, hi):
        for k in range(x.shape[1] + 1):
            x[row, k] = 1


@op("x! ->", dense=False)
def row_(x):
    """Ones, and one element more in each row."""
    return Launch((), row_body, units=x.shape[0])


def input_body(out, x, lo, hi):
    for i in range(lo, hi):
        out[i] = x[i]
    x[3] = 99


@op("x -> out")
def input_changed(x):
    """A copy, and the original is changed."""
    return Launch((x.dense(),), input_body, units=x.shape[0])


def scratch_body(out, x, scratch, lo, hi):
    for i in range(lo, hi):
        out[i] = x[i]
    scratch[40] = 1


@op("x -> out")
def scratch_past(x):
    """A copy, and one byte behind 40 of scratch memory."""
    return Launch((x.dense(),), scratch_body, units=x.shape[0], scratch=40)


def arena_body(out, x, arena, lo, hi):
    for i in range(lo, hi):
        out[i] = x[i]
    arena[ARENA_BYTES + lo % 8] = 1


@op("x -> out")
def arena_past(x):
    """A copy, and one byte behind the arena."""
    return Launch((x.dense(),), arena_body, units=x.shape[0], arena=ARENA_BYTES)


@op("x -> out")
def arena_past_by_helpers(x):
    """Write past the arena in chunks that helpers take."""
    return Launch((x.dense(),), arena_body, units=x.shape[0], grain=64, arena=ARENA_BYTES)


def sum_past_body(out, x, lo, hi):
    total = x[0] * 0
    for i in range(x.shape[0] + 1):
        total += x[i]
    out[0] = total


@op("x -> out")
def sum_past(x):
    """The sum, with one element too many."""
    return Launch((x.with_shape((1,)),), sum_past_body)


def nothing_body(out, x, lo, hi):
    for i in range(lo + 1, hi):
        out[i] = x[i]


@op("x -> out")
def first_missing(x):
    """A copy without its first element."""
    return Launch((x.dense(),), nothing_body, units=x.shape[0])


def poke_body(out, at, lo, hi):
    out[0] = 0
    store_word(at[0], 5)


@op("at -> out")
def poke(at):
    """Write to an address."""
    return Launch((at.dense(),), poke_body)


def peek_body(out, at, lo, hi):
    out[0] = load_word(at[0])


@op("at -> out")
def peek(at):
    """Read from an address."""
    return Launch((at.dense(),), peek_body)


# --- what is done with them -----------------------------------------------------------------------


def numbers():
    """Ten integers that an instruction made."""
    return flow.arange(SIZE) + 1


def released():
    """The address of memory that is not in use any more."""
    t = numbers()
    flow.vm.sync()
    address = engine.storages.pointer(t._ref)
    del t
    engine.storages.release_dead()
    flow.vm.sync()
    return flow.tensor([address])


def write_released():
    """A kernel that writes to memory which was released."""
    poke(released())
    flow.vm.sync()
    flow.vm.empty_cache()


def write_neighbours():
    """Run a kernel that writes behind memory which is no operand of its own."""
    t = numbers()
    flow.vm.sync()
    poke(flow.tensor([engine.storages.pointer(t._ref) + 8 * SIZE]))
    flow.vm.sync()
    del t
    engine.storages.release_dead()


def in_a_graph(function, *args):
    """A kernel between two others of a graph: its operands are in the chunk."""
    return flow.compile(lambda *xs: function(*(x + 1 for x in xs)) + 1)(*args)


def as_output(function, *args):
    """A kernel that makes what a graph answers."""
    return flow.compile(lambda *xs: function(*(x + 1 for x in xs)))(*args)


def value(wrong, actual):
    """Return a text if a number is wrong."""
    return f"a wrong value: {actual}" if wrong else ""


def peeked():
    """A kernel that reads memory which was released."""
    value_of_element = peek(released()).tolist()[0]
    return value(value_of_element not in range(1, SIZE + 1), value_of_element)


def with_nan(function):
    """Run `function` on numbers; return a text if its result has NaN."""
    values = function(flow.ones(SIZE) * 2).tolist()
    return value(any(x != x for x in values), values)


def columns(t):
    """All columns but the last."""
    return t[:, :3]


ALL = {
    "nothing": lambda: numbers() * 2,
    "past the end": lambda: past(numbers()),
    "past the end of floats": lambda: past(flow.ones(3)),
    "past the end of bytes": lambda: past(flow.ones(3, dtype=flow.uint8)),
    "before the begin": lambda: before(numbers()),
    "past a row": lambda: row_(columns(flow.zeros(4, 5))),
    "past a row of a NumPy array": lambda: row_(columns(flow.from_numpy(np.zeros((4, 5))))),
    "past a row of its own": lambda: row_(flow.zeros(4, 5)),
    "an input": lambda: input_changed(numbers()),
    "an input of Python's": lambda: input_changed(flow.tensor(list(range(SIZE)))),
    "scratch": lambda: scratch_past(numbers()),
    "arena": lambda: arena_past(numbers()),
    "arena of helpers": lambda: arena_past_by_helpers(flow.ones(100_000)),
    "released": write_released,
    "of others": write_neighbours,
    "in a graph": lambda: in_a_graph(past, numbers()),
    "before the begin in a graph": lambda: in_a_graph(before, numbers()),
    "scratch in a graph": lambda: in_a_graph(scratch_past, numbers()),
    "output of a graph": lambda: as_output(past, numbers()),
    "read released": peeked,
    "read past the end": lambda: with_nan(sum_past),
    "not written": lambda: with_nan(first_missing),
    "nothing at last": lambda: in_a_graph(lambda x: x.sum(), numbers()),
}


def output(plant):
    """The message that a fault comes to."""
    try:
        problem = plant()
        flow.vm.sync()
        return problem if isinstance(problem, str) else ""
    except flow.errors.BoundsError as error:
        return "\n".join([str(error), *getattr(error, "__notes__", ())])


if __name__ == "__main__":
    json.dump({name: output(plant) for name, plant in ALL.items()}, sys.stdout)
