"""The description of a collective: what ranks agree on, its hash, and whose rows are looked at."""

from types import SimpleNamespace

import pytest

import flowvm as flow
from flowvm.errors import ShapeError
from flowvm.meta.meta import TensorMeta
from flowvm.ops.collectives import exchanges
from flowvm.ops.collectives.exchanges import Exchange, exchange, places
from flowvm.ranks.words import PLACE, STEP

JOINED = SimpleNamespace(row=100, rows=(200, 0))
LANE = SimpleNamespace(row=300, joined=lambda group, kind, peer: (group.ranks, kind, peer))


def one(kind="all_reduce", text="all_reduce(f32[3])"):
    return Exchange(kind, text, JOINED, LANE, flow.float32, 3)


def test_messages_show_their_own_standing():
    assert (one().message, one().row, one().rows) == (False, 100, (200, 0))
    for kind in ("send", "recv"):
        assert (one(kind).message, one(kind).row, one(kind).rows) == (True, 300, ())


def test_hashes_are_of_what_ranks_agree_on():
    here, there = one(text=f"f(1){PLACE}a.py:3"), one(text=f"f(1){PLACE}b.py:70")
    assert here.sign == there.sign
    assert here.sign != one(text="f(2)").sign
    assert 0 <= here.sign < 1 << 63
    # by hand: FNV's way, in 63 bits
    digest = 0x4BF29CE484222325
    for byte in b"f(1)":
        digest = ((digest ^ byte) * 0x100000001B3) % (1 << 63)
    assert here.sign == digest


def test_texts_are_cut_to_their_place_on_the_board():
    long = one(text="é" * 200)
    assert long.encoded == ("é" * 200).encode()[: 8 * STEP.TEXT_WORDS]
    assert one(text="").encoded == b""


def test_exchanges_name_what_is_exchanged():
    meta = TensorMeta.of((2, 3), flow.float32)
    made = exchange("all_gather", meta, (0,), LANE, ("sum", "", 0), 5)
    assert made.text == f"all_gather({meta!r}, sum, 0)"
    assert (made.joined, made.elements, made.own) == (((0,), "all_gather", 5), 6, 0)
    large = TensorMeta.of((exchanges.MOST,), flow.int8, flow.device("meta"))
    with pytest.raises(ShapeError, match=f"at most {exchanges.MOST - 1} elements"):
        exchange("all_gather", large, (0,), LANE)


def test_parts_begin_where_others_end():
    assert places([2, 0, 3]) == [0, 2, 2]
    assert places([]) == []
