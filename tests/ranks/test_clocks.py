"""Values of all ranks and differences of their clocks, by ranks that are threads with clocks."""

import queue
import threading
from types import SimpleNamespace

import pytest

from flowvm.errors import CommunicationError
from flowvm.ranks import clocks


class Control:
    """MPI as a rank needs it: messages go through queues, between two ranks each."""

    def __init__(self, rank, size, lines, meeting):
        self.rank, self.size, self.lines, self.meeting = rank, size, lines, meeting

    def send(self, value, dest):
        self.lines[self.rank, dest].put(value)

    def recv(self, source):
        return self.lines[source, self.rank].get(timeout=60)

    def bcast(self, value):
        if self.rank == 0:
            for other in range(1, self.size):
                self.send(list(value), other)
            return list(value)
        return self.recv(0)

    def allgather(self, value):
        self.meeting["values"][self.rank] = value
        self.meeting["barrier"].wait(60)
        return list(self.meeting["values"])

    def Ibarrier(self):
        return SimpleNamespace(Test=lambda: True)


def by_ranks(size, function):
    lines = {(a, b): queue.Queue() for a in range(size) for b in range(size)}
    meeting = {"values": [None] * size, "barrier": threading.Barrier(size)}
    results = [None] * size

    def run(k):
        place = SimpleNamespace(
            rank=k, size=size, control=Control(k, size, lines, meeting), boards={k: 1},
            raise_fault=lambda: None,
        )  # fmt: skip
        results[k] = function(place)

    ranks = [threading.Thread(target=run, args=(k,)) for k in range(size)]
    for t in ranks:
        t.start()
    for t in ranks:
        t.join(60)
    return results


@pytest.mark.parametrize("size", [1, 2, 3])
def test_clocks_of_one_machine_hardly_differ(size):
    shifts = by_ranks(size, clocks.measured_shifts)
    assert all(one == shifts[0] for one in shifts)
    assert shifts[0][0] == 0
    assert len(shifts[0]) == size


def test_shifts_are_those_of_the_soonest_answer(monkeypatch):
    """The first rank's clock counts microseconds of a plan; the other's is 5 s behind."""
    rounds = [(0, 900), (1000, 1010), (2000, 2500)] + [(3000 + k, 3900 + k) for k in range(13)]
    asked = iter([t for pair in rounds for t in pair])
    theirs = iter([500 - 5000, 1005 - 5000, *[0] * 14])
    control = SimpleNamespace(
        send=lambda value, dest: None, bcast=lambda value: value,
        recv=lambda source: next(theirs),
    )  # fmt: skip
    monkeypatch.setattr(clocks, "time", SimpleNamespace(monotonic_ns=lambda: next(asked)))
    place = SimpleNamespace(rank=0, size=2, control=control)
    assert clocks.measured_shifts(place) == [0, 5000]


def test_values_are_of_all_ranks():
    results = by_ranks(3, lambda place: clocks.gathered(place, place.rank * 10))
    assert all(values == [0, 10, 20] for values, _ in results)


def test_ranks_of_one_host_have_one_clock():
    def function(place):
        place.boards = dict.fromkeys(range(place.size), 1)
        return clocks.gathered(place, "x")

    assert by_ranks(2, function) == [(["x", "x"], [0, 0])] * 2


def test_ranks_that_do_not_come_are_an_error(monkeypatch):
    never = SimpleNamespace(Ibarrier=lambda: SimpleNamespace(Test=lambda: False))
    place = SimpleNamespace(rank=1, size=2, control=never, boards={}, raise_fault=lambda: None)
    clock = iter([0.0, 10.0, 1e9])
    time = SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None)
    monkeypatch.setattr(clocks, "time", time)
    with pytest.raises(CommunicationError, match=r"rank 1 waited .* for others to gather"):
        clocks.gathered(place, None)
