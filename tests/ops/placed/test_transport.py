"""The collectives that global tensors use: those of ranks, unless others stand in for them."""

from dataclasses import fields

from flowvm.ops.collectives import collectives
from flowvm.ops.placed import transport
from flowvm.ranks.world import Group


def test_ranks_exchange_by_the_collectives_of_their_name():
    made = transport.transport[0]()
    for field in fields(transport.Transport):
        expected = Group.of if field.name == "group" else getattr(collectives, field.name)
        assert getattr(made, field.name) is expected or field.name == "group"
    assert made.group((0,)) is Group.of((0,))
    assert len(transport.transport) == 1
