"""The watcher and the last message of a rank that has left."""

from types import SimpleNamespace

from flowvm.ranks import watcher
from flowvm.ranks.watcher import LEFT_AFTER, Watcher


def test_a_long_wait_gives_a_last_message_its_time(monkeypatch):
    """A wait that began long before its peer left goes on for LEFT_AFTER seconds after that."""
    now, departed = [100.0], [False]
    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=lambda: now[0]))
    one = object.__new__(Watcher)
    one.departures = {}
    one.place = SimpleNamespace(boards={1: None}, rank=0, has_left=lambda number: departed[0])
    assert not one.has_left(1, 60.0)
    departed[0] = True
    assert not one.has_left(1, 60.0)  # its message may be on its way
    now[0] += LEFT_AFTER / 2
    assert not one.has_left(1, 60.0)
    now[0] += LEFT_AFTER
    assert one.has_left(1, 60.0)
    assert not one.has_left(1, LEFT_AFTER / 2)  # a wait that has just begun
