"""The closure check: whatever is in flight, every pair of instructions whose order matters is
ordered.

Nothing completes here, so every edge that the scheduler ever builds is looked at.  Comparing values
would not do: most missing edges change no value in most runs.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowvm.vm.machine.words import CTL, INS, KIND, OPERAND, STR
from tests.vm.bench import (
    Instruction,
    Operand,
    check_closure,
    check_edges,
    const,
    feed,
    mut,
    op,
    programs,
    random_program,
)

RAW = (op(*mut(1)), op(*const(1)))
WAR = (op(*const(1)), op(*mut(1)))
WAW = (op(*mut(1)), op(*mut(1)))


def edges_of(*program):
    """The edges of a program with a stream for each instruction, after all checks."""
    apart = feed([replace(ins, stream=i % STR.LENGTH) for i, ins in enumerate(program)])
    for bench in (apart, feed(program)):
        check_closure(bench)
        check_edges(bench)
    return apart.edges


@pytest.mark.parametrize("streams", [1, 2, 5])
@pytest.mark.parametrize("storages", [1, 3, 12])
def test_random_programs_are_closed(streams, storages, seed):
    rng = random.Random(seed)
    for _ in range(12):
        bench = feed(random_program(rng, 40, storages, streams))
        check_closure(bench)
        check_edges(bench)


def test_random_programs_are_closed_while_some_are_dispatched(seed):
    rng = random.Random(seed)
    for _ in range(40):
        streams, storages = rng.randint(1, 4), rng.randint(1, 8)
        program = random_program(rng, 40, storages, streams)
        bench = feed(program, choose=lambda: rng.random() < 0.4)
        check_closure(bench)
        check_edges(bench)


@settings(max_examples=150)
@given(program=programs, choices=st.randoms(use_true_random=False))
def test_any_program_is_closed(program, choices):
    bench = feed(program, choose=lambda: choices.random() < 0.5)
    check_closure(bench)
    check_edges(bench)


def test_each_hazard_is_one_edge():
    assert edges_of(*RAW) == {(0, 1)}
    assert edges_of(*WAR) == {(0, 1)}
    assert edges_of(*WAW) == {(0, 1)}


def test_readers_are_not_ordered():
    assert edges_of(*[op(*const(1, 2)) for _ in range(5)]) == set()


def test_a_writer_waits_for_every_reader_and_the_next_only_for_it():
    reads = [op(*const(1), stream=s) for s in range(3)]
    assert edges_of(*reads, op(*mut(1)), op(*const(1))) == {(0, 3), (1, 3), (2, 3), (3, 4)}


def test_readers_of_one_writer_wait_for_it_alone():
    assert edges_of(op(*mut(1)), op(*const(1)), op(*const(1))) == {(0, 1), (0, 2)}


@pytest.mark.parametrize(
    "operands",
    [
        mut(1) + const(1),
        const(1) + mut(1),
        mut(1, 1),
        const(1, 1),
        mut(1) + const(1) + mut(1),
        (Operand(1, OPERAND.MUT2), Operand(1, OPERAND.MUT, 64), Operand(1, OPERAND.CONST, 8)),
    ],
    ids=str,
)
def test_two_accesses_to_one_storage_never_wait_for_themselves(operands):
    assert edges_of(op(*operands)) == set()
    assert edges_of(op(*mut(1)), op(*operands), op(*mut(1))) >= {(0, 1), (1, 2)}
    assert edges_of(op(*const(1)), op(*operands), op(*const(1))) <= {(0, 1), (1, 2)}


def test_a_view_conflicts_with_its_base():
    assert edges_of(op(Operand(1, OPERAND.MUT, 640)), op(Operand(1, OPERAND.CONST, 0))) == {(0, 1)}


def test_release_is_a_write():
    release = Instruction(KIND.RELEASE, 0, mut(1, 2))
    assert edges_of(op(*const(1)), op(*mut(2)), release, op(*const(2))) == {(0, 2), (1, 2), (2, 3)}


def test_touch_is_a_read():
    touch = Instruction(KIND.TOUCH, 0, const(1, 2))
    assert edges_of(op(*mut(1)), touch, op(*mut(2))) == {(0, 1), (1, 2)}


def test_a_pair_with_several_reasons_has_one_edge():
    bench = feed([op(*mut(1, 2), *const(3)), op(*mut(3), *const(1, 2), stream=1)])
    assert bench.edges == {(0, 1)}
    assert bench.ins(bench.slot(1), INS.WAITING) == 1


def test_many_operands_out_of_line():
    wide = Instruction(KIND.OP_CALL, 0, mut(*range(1, 200)) + const(*range(200, 400)), outline=True)
    assert edges_of(op(*const(7)), op(*mut(300)), wide, op(*const(199), stream=1)) == {
        (0, 2),
        (1, 2),
        (2, 3),
    }


def test_a_barrier_is_no_edge():
    """A barrier waits for instructions in flight, not for accesses (see test_machine.py)."""
    assert edges_of(op(*mut(1)), Instruction(KIND.BARRIER), op(*mut(2))) == set()


def test_hazards_are_counted_and_stream_order_replaces_edges():
    bench = feed([*RAW, *WAR, *WAW])
    m = bench.m
    # on storage 1: w r r w w w; the second w displaces the first and both readers
    assert (m[CTL.N_RAW], m[CTL.N_WAR], m[CTL.N_WAW]) == (2, 2, 3)
    assert m[CTL.N_PRESCHEDULED] == 7  # all in one stream
    assert not bench.edges  # and the first was ready, so no node was needed


def test_a_stream_keeps_program_order_where_nothing_else_is_waited_for():
    """A release is not overtaken by later allocations, which would keep more memory live."""
    release = Instruction(KIND.RELEASE, 0, mut(1))
    bench = feed([op(*mut(1)), op(*const(1)), release, op(*mut(2)), op(*mut(3))])
    assert [bench.dispatch() for _ in range(5)] == [0, 1, 2, 3, 4]
