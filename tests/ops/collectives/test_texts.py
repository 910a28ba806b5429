"""Bytes that one rank has, for all: their length, and then they."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.graph.capture.capture import capturing
from flowvm.ops.collectives import texts


@pytest.mark.parametrize("data", [b"", b"\0", b"abc\0", bytes(range(256)) * 3])
def test_bytes_of_this_rank_come_back(data):
    assert texts.broadcast_bytes(data, 0) == data


def test_bytes_of_another_rank_take_the_place_of_ones_own(monkeypatch):
    monkeypatch.setattr(texts, "rank", lambda: 1)
    seen = []

    def broadcast(x, src):
        seen.append(x.tolist())
        return flow.tensor(np.array([3] if len(seen) == 1 else [7, 8, 9], x.numpy().dtype))

    monkeypatch.setattr(texts, "broadcast", broadcast)
    assert texts.broadcast_bytes(b"ignored", 0) == b"\7\10\11"
    assert seen == [[0], [0, 0, 0]]  # as long as what comes


def test_bytes_are_no_part_of_a_capture():
    with capturing("f", []) as capture:
        assert texts.broadcast_bytes(b"xy", 0) == b"xy"
    assert not capture.graph.nodes
