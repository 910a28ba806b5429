"""`Join`: ranks with different numbers of inputs, played one after the other."""

from types import SimpleNamespace

import pytest

from flowvm.errors import ArgumentError, CommunicationError
from flowvm.nn.image import Resize
from flowvm.nn.modules.records import ImageResize
from flowvm.nn.parallel import joins
from flowvm.nn.parallel.joins import Join, Joinable, JoinHook


class Hook(JoinHook):
    def __init__(self, log):
        self.log = log

    def main_hook(self):
        self.log.append("step")

    def post_hook(self, is_last_joiner):
        self.log.append(("post", is_last_joiner))


class One(Joinable):
    def __init__(self, log, group=None, **kwargs):
        self.log, self.group, self.given = log, group, None

    def join_hook(self, **kwargs):
        self.given = kwargs
        return Hook(self.log)

    @property
    def join_process_group(self):
        return self.group


class Three:
    size, rank, ranks = 3, 1, (4, 5, 6)


@pytest.fixture
def ranks(monkeypatch):
    """Three ranks, of which this is the second; `answers` are the flags that all send."""
    group = Three()
    sent, answers = [], []

    def all_reduce(x, op, among):
        assert among is group
        sent.append(x.tolist())
        answer = answers.pop(0)
        return SimpleNamespace(tolist=lambda: answer)

    monkeypatch.setattr(joins, "Group", SimpleNamespace(of=lambda one: group))
    monkeypatch.setattr(joins, "all_reduce", all_reduce)
    return SimpleNamespace(group=group, sent=sent, answers=answers)


def test_a_rank_that_is_done_makes_the_others_steps(ranks):
    log = []
    ranks.answers += [[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    with Join([One(log)]) as join:
        assert join.last == 6
    assert log == ["step", "step", ("post", False)]
    assert ranks.sent == [[0.0, 0.0, 0.0]] * 3
    assert join.last == 6


def test_the_last_rank_is_told_so(ranks):
    log = []
    ranks.answers += [[0.0, 0.0, 0.0]]
    one = One(log)
    with Join([one]):
        assert one._join is not None
    assert log == [("post", True)]
    assert one._join is None


def test_a_step_is_told_once_for_the_first_object(ranks):
    first, second = One([]), One([])
    ranks.answers += [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    with Join([first, second], mine=3) as join:
        Join.notify_join_context(first)
        Join.notify_join_context(second)
        assert ranks.sent == [[0.0, 1.0, 0.0]]
        assert join.authority == 5
    assert first.given == second.given == {"mine": 3}
    Join.notify_join_context(first)  # outside
    assert len(ranks.sent) == 2


def test_early_ends_are_an_error_where_they_are_asked_for(ranks):
    one = One([])
    ranks.answers += [[1.0, 1.0, 0.0, 1.0]]
    with (
        pytest.raises(CommunicationError, match="a rank has no more inputs"),
        Join([one], throw_on_early_termination=True),
    ):
        Join.notify_join_context(one)
    assert ranks.sent == [[0.0, 1.0, 0.0, 0.0]]
    assert one._join is None


def test_an_error_inside_is_not_waited_for(ranks):
    log = []
    with pytest.raises(ZeroDivisionError), Join([One(log)]):
        _ = 1 / 0
    assert log == ranks.sent == []


def test_regions_that_are_off_do_nothing(ranks):
    one = One([])
    with Join([one], enable=False):
        assert one._join is None
        Join.notify_join_context(one)
    assert ranks.sent == []


def test_objects_exchange_in_one_group():
    with pytest.raises(ArgumentError, match="one object at least that exchanges, got none"):
        Join([])
    with pytest.raises(ArgumentError, match="int has no join_hook"):
        Join([3])
    hook = JoinHook()
    assert hook.main_hook() is None
    assert hook.post_hook(True) is None
    log = []
    with Join([One(log)]):  # of a rank alone
        pass
    assert log == []


def test_many_steps_for_others_are_a_warning(ranks):
    ranks.answers += [[1.0, 0.0, 0.0]] * 1000 + [[0.0, 0.0, 0.0]]
    with pytest.warns(UserWarning, match="1,000 steps for others"), Join([One([])]):
        pass


def test_images_are_resized_by_the_module_of_records():
    assert Resize is ImageResize
