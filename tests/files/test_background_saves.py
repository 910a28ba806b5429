"""Folders that are written in the background: marks of ranks, and the index behind them all."""

from types import SimpleNamespace

import pytest

import flowvm as flow
from flowvm.errors import CommunicationError
from flowvm.files import background_saves
from flowvm.files.background_saves import prepared
from flowvm.files.shards import mark_name

TOKEN = "abc"


@pytest.fixture
def as_rank(monkeypatch):
    """Play a rank of two."""

    def become(rank, ranks=2):
        monkeypatch.setattr(background_saves, "rank_and_size", lambda: (rank, ranks))
        monkeypatch.setattr(background_saves, "agreed_token", lambda folder, parents: TOKEN)
        monkeypatch.setattr(
            background_saves,
            "parts",
            lambda tensors, file_of: (dict(tensors), {"a": file_of(rank)}),
        )
        monkeypatch.setattr(background_saves, "world", lambda: SimpleNamespace(raise_fault=list))

    return become


def saver(kept):
    def save(tensors, path):
        kept.append({name: t.tolist() for name, t in tensors.items()})
        path.write_text("file")

    return save


@pytest.fixture
def published(monkeypatch):
    seen = []
    monkeypatch.setattr(background_saves, "publish", lambda folder, said: seen.append(said))
    return seen


def test_values_are_those_of_the_call(as_rank, tmp_path, published):
    as_rank(1)
    x, kept = flow.ones(2), []
    rest = prepared(tmp_path, None, {"a": x}, saver(kept))
    x.fill_(7)
    rest(0.0)
    assert kept == [{"a": [1, 1]}]
    assert (tmp_path / mark_name(TOKEN, 1)).read_text() == ""
    assert published == []  # that is the first rank's


def test_the_first_rank_waits_for_the_marks(as_rank, tmp_path, published):
    as_rank(0)
    rest = prepared(tmp_path, {"tree": 1}, {"a": flow.ones(1)}, saver([]))
    mark = tmp_path / mark_name(TOKEN, 1)
    mark.write_text("")
    rest(10.0)
    assert published[0]["tree"] == {"tree": 1}
    assert not mark.exists()


def test_ranks_without_tensors_write_no_file(as_rank, tmp_path, published):
    as_rank(1)
    kept = []
    prepared(tmp_path, None, {}, saver(kept))(0.0)
    assert kept == []
    assert (tmp_path / mark_name(TOKEN, 1)).exists()


def test_a_rank_that_cannot_write_says_so(as_rank, tmp_path, published):
    as_rank(1)

    def fail(tensors, path):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        prepared(tmp_path, None, {"a": flow.ones(1)}, fail)(0.0)
    as_rank(0)
    with pytest.raises(CommunicationError, match="rank 1 could not write its file"):
        prepared(tmp_path, None, {}, saver([]))(10.0)
    assert published == []
    assert not (tmp_path / mark_name(TOKEN, 1)).exists()


def test_ranks_that_do_not_come_are_named(as_rank, tmp_path, published):
    as_rank(0, 4)
    for rank in (1, 3):
        (tmp_path / mark_name(TOKEN, rank)).write_text("")
    with pytest.raises(CommunicationError, match=r"rank 2 has not within 0 s"):
        prepared(tmp_path, None, {}, saver([]))(-1.0 + 1.0)
    assert not list(tmp_path.iterdir())


def test_a_lost_rank_ends_the_wait(as_rank, tmp_path, published, monkeypatch):
    as_rank(0)

    def lost():
        raise CommunicationError("rank 1 has died")

    monkeypatch.setattr(background_saves, "world", lambda: SimpleNamespace(raise_fault=lost))
    with pytest.raises(CommunicationError, match="rank 1 has died"):
        prepared(tmp_path, None, {}, saver([]))(1000.0)
