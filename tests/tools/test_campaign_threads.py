"""The campaign of threads finds a planted second Storage, and nothing in correct code."""

from __future__ import annotations

import pytest

import flowvm as flow
from flowvm.eager.tensor import Storage
from tools.campaign import _firsts, threads


@pytest.mark.parametrize("kind", _firsts.KINDS)
def test_first_uses(kind, monkeypatch):
    few = _firsts.KINDS[kind]
    monkeypatch.setitem(_firsts.KINDS, kind, few._replace(objects=min(few.objects, 10)))
    _firsts.run(kind, 2)


def test_a_second_storage_is_found(monkeypatch):
    def storage(self):
        storage = object.__new__(Storage)
        storage.version = 0
        self.__class__.keep.append(storage)
        return storage

    monkeypatch.setattr(flow.Tensor, "keep", [], raising=False)
    monkeypatch.setattr(flow.Tensor, "storage", storage)
    with pytest.raises(AssertionError, match="two storages"):
        _firsts.run("views", 2)


def test_parts_of_a_case():
    case = threads.case(1)
    count = len(threads.parts(case))
    for k in range(count):
        fewer = threads.without(case, k)
        steps = sum(map(len, fewer["threads"])) + len(fewer["firsts"])
        assert steps < sum(map(len, case["threads"])) + len(case["firsts"])
        assert len(threads.parts(fewer)) == count - 1
