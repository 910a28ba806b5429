"""The choice of results that may use the memory of an input that nobody reads any more.

An elementwise kernel reads every element of its inputs before it writes that element of its output,
so the two may share memory.  An operator says whether its kernel does so, or with which of its
operands (`Kernel.aliases`): a program on rows has elementwise kernels among others.

Invariant: of the buffers in one block, each is accessed for the last time by the node that makes
the next one, through operands that are the same bytes in the same arrangement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand, OpNode, is_pure


def shared(nodes: Sequence[OpNode], outputs: Sequence[Operand]) -> dict[Buffer, Buffer]:
    """For each buffer that may lie in the memory of another: the first buffer that lies there."""
    uses = _uses(nodes)
    shown = {operand.buffer for operand in outputs}
    first: dict[Buffer, Buffer] = {}
    for place, node in enumerate(nodes):
        if not node.operator.kernel.aliases or not is_pure(node):
            continue
        reused: set[Buffer] = set()
        for number, out in enumerate(node.outputs):
            if out.buffer in shown or not uses[out.buffer].alike or out.offset:
                continue
            for old in _dying(node, place, uses):
                free = old.buffer not in shown and old.buffer not in reused
                if free and _fits(old, out) and _may_share(node, number, old):
                    first[out.buffer] = first.get(old.buffer, old.buffer)
                    reused.add(old.buffer)
                    break
    return first


@dataclass
class _Uses:
    """The nodes that access a buffer: the last one's place, and on which streams and how often they
    run.
    """

    last: int = -1
    runs: set[tuple[int, int]] = field(default_factory=set)

    @property
    def alike(self) -> bool:
        """True if the nodes run in the order of the graph, each once in a turn."""
        return len(self.runs) == 1


def _uses(nodes: Sequence[OpNode]) -> dict[Buffer, _Uses]:
    uses_of: dict[Buffer, _Uses] = {}
    for place, node in enumerate(nodes):
        for _, operand in node.accesses():
            uses = uses_of.setdefault(operand.buffer, _Uses())
            uses.last = place
            uses.runs.add((node.stream, node.repeat))
    return uses_of


def _dying(node: OpNode, place: int, uses: dict[Buffer, _Uses]) -> Iterator[Operand]:
    """Inputs whose buffers are needed no more when the node has run, and read in one way by it."""
    for operand in dict.fromkeys(node.inputs):
        buffer = operand.buffer
        if buffer.kind is not BufferKind.TEMPORARY or uses[buffer].last != place:
            continue
        same = all(o == operand for o in node.inputs if o.buffer is buffer)
        if same and uses[buffer].alike:
            yield operand


def _may_share(node: OpNode, output: int, old: Operand) -> bool:
    """Return True if the node's kernel may write an output over this input of it."""
    pairs = node.operator.kernel.aliases
    return pairs is True or (pairs is not False and (output, node.inputs.index(old)) in pairs)


def _fits(old: Operand, out: Operand) -> bool:
    """Return True if both are whole buffers, of the same bytes in the same arrangement."""
    return (
        old.offset == 0
        and old.buffer.nbytes == out.buffer.nbytes
        and old.meta.shape == out.meta.shape
        and old.meta.stride == out.meta.stride
        and old.meta.dtype.itemsize == out.meta.dtype.itemsize
    )
