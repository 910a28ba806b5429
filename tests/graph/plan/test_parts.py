"""The parts of a Plan in words."""

from flowvm.graph.logical.nodes import Buffer, BufferKind
from flowvm.graph.memory.offsets import Block
from flowvm.graph.plan.parts import RegstDesc


def block(offset):
    return Block(offset=offset, **{f: 0 for f in Block.__dataclass_fields__ if f != "offset"})


def test_positions_of_buffers_are_named():
    buffer = Buffer(0, BufferKind.TEMPORARY, 8)
    assert RegstDesc(buffer, operand=3).text == "operand 3"
    assert RegstDesc(buffer, block=block(128)).text == "chunk+128"
    assert RegstDesc(buffer, block=block(0), copies=2, apart=64).text == "chunk+0 x2"
    assert RegstDesc(buffer) != RegstDesc(buffer)  # each stands for itself
