"""Allocators hand out no byte twice; registers let launches overlap as far as they go."""

from __future__ import annotations

import pytest

import flowvm as flow
from flowvm import lab
from flowvm.errors import ArgumentError
from flowvm.lab.allocation import ALLOCATORS


@pytest.mark.parametrize("name", ALLOCATORS)
def test_no_byte_is_handed_out_twice(name, rng):
    heap, held, most = ALLOCATORS[name](), {}, 0
    for _ in range(400):
        if held and rng.random() < 0.45:
            block = list(held)[int(rng.integers(len(held)))]
            del held[block]
            heap.free(block)
        else:
            size = int(rng.integers(1, 5000))
            block = heap.allocate(size)
            for other, length in held.items():
                assert block + size <= other or other + length <= block
            held[block] = size
        most = max(most, sum(held.values()))
        assert all(block + size <= heap.top for block, size in held.items())
    assert heap.top >= most
    for block in list(held):
        heap.free(block)
    whole = heap.top
    if name != "caching":
        assert heap.allocate(whole) == 0  # all has come together again
        assert heap.top == whole


def test_fits_differ():
    """Two gaps, of 128 and 64 bytes: the best fit leaves the larger one whole."""
    events = [(1, 128), (2, 64), (3, 64), (4, 64), (-1, 0), (-3, 0), (5, 64), (6, 128)]
    peak = {row.name: row.peak for row in lab.allocators(events)}
    assert (peak["best_fit"], peak["first_fit"]) == (320, 448)
    with pytest.raises(ArgumentError, match="no 'slab'"):
        lab.allocators(events, ["slab"])


def test_a_run_is_replayed():
    with flow.profiler.profile() as p:
        x = flow.ones(100, 100)
        for _ in range(5):
            x = x + 1
        flow.vm.sync()
    rows = lab.allocators(p)
    assert [row.name for row in rows] == list(ALLOCATORS)
    for row in rows:
        assert 2 * 40_000 <= row.live <= row.peak <= 8 * 65_536
        assert 0 <= row.fragmentation < 1
    assert "best_fit" in repr(rows)


def test_registers_are_a_knob():
    dag = lab.Dag([1.0, 2.0, 1.0], [(0, 1), (1, 2)], stream=[0, 1, 2])
    machine = lab.Machine(streams={0: 1, 1: 1, 2: 1})
    table = {str(r): lab.launches(dag, 10, r) for r in (1, 2, 3)}
    results = lab.sweep(table, machine, ["fifo"])
    makespan = dict(zip(results.column("dag"), results.column("makespan"), strict=True))
    # one register: a launch's second task keeps the first of the next from its register
    assert makespan["1"] > makespan["2"] == makespan["3"] == 1 + 10 * 2 + 1
    turned = lab.sweep({"plan": dag}, machine, ["fifo"], regst_num=(1, 2), launches=10)
    assert turned.column("dag") == ["plan x1", "plan x2"]
    assert turned.column("makespan") == [makespan["1"], makespan["2"]]
    with pytest.raises(ArgumentError, match="from 1 up"):
        lab.launches(dag, 0)
