"""Numbers of streams: lent to an owner, free again when it is collected."""

from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.numbers import Numbers


class Owner:
    pass


def test_numbers_come_back_when_their_owner_is_collected(monkeypatch):
    monkeypatch.setattr(engine.streams, "user_names", ["before"])
    numbers, owner = Numbers(), Owner()
    first = numbers.take("first", lambda: 2)
    numbers.lend(first, owner)
    assert numbers.take("other", lambda: 3) == 3  # the first is in use
    del owner
    assert numbers.take("again", lambda: 4) == 2
    assert engine.streams.user_names == ["again"]
