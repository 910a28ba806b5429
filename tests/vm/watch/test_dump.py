"""The state of the VM as text, of an engine whose words are made by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from flowvm.vm.machine.words import CTL, RING
from flowvm.vm.watch import dump
from flowvm.vm.watch.in_flight import InFlight, Waited


@pytest.fixture
def vm(monkeypatch):
    """An engine that has received instructions up to #7, of which #5 is the oldest in flight."""
    words = np.zeros(RING.AT + (RING.SLOT_MASK + 1) * RING.WORDS, np.int64)
    words[CTL.HEAD] = 5
    monkeypatch.setattr(dump, "begun", lambda vm: 8)
    monkeypatch.setattr(dump, "pending", lambda vm: [])
    monkeypatch.setattr(dump, "elsewhere", [])
    return SimpleNamespace(words=words)


def mark(vm, seq):
    vm.words[RING.AT + (seq & RING.SLOT_MASK) * RING.WORDS + RING.MARK] = seq + 1


def test_rows_name_instructions_and_their_waits(vm):
    flight = [
        InFlight(5, "matmul", "running", "cpu", "a.py:3"),
        InFlight(6, "add", "waiting", "cpu", "a.py:4", (Waited(5, 1, "const", "RAW"),)),
        InFlight(7, "barrier", "waiting", "cpu", ""),
    ]
    head, first, second, third = dump.dump_text(vm, flight).splitlines()
    assert head == "3 instructions in flight (#5 to #7)"
    assert first.split()[:3] == ["#5", "matmul", "running"]
    assert first.endswith("a.py:3")
    assert "waits for #5 (operand 1, const, RAW)" in second
    assert "waits for everything before it" in third


def test_an_idle_vm_says_how_much_it_did(vm):
    vm.words[CTL.HEAD] = 8
    assert dump.dump_text(vm) == "nothing in flight; 8 instructions done"


def test_many_rows_are_cut(vm):
    flight = [InFlight(k, "add", "waiting", "cpu", "") for k in range(dump.MOST + 3)]
    lines = dump.dump_text(vm, flight).splitlines()
    assert len(lines) == 1 + dump.MOST + 1
    assert lines[-1] == "  ... 3 more: flow.vm.pending()"


def test_a_place_that_was_taken_and_not_published_is_named(vm):
    mark(vm, 8)
    assert "was taken" not in dump.dump_text(vm, [])
    vm.words[:] = 0
    mark(vm, 10)
    assert "#8 was taken by a thread that has not published it; #10 was" in dump.dump_text(vm, [])


def test_waits_elsewhere_are_the_last_lines(vm, monkeypatch):
    monkeypatch.setattr(dump, "elsewhere", [lambda: ["rank 1 waits\x1b[2J"]])
    last = dump.dump_text(vm, []).splitlines()[-1]
    assert last.startswith("  rank 1 waits")
    assert "\x1b" not in last
