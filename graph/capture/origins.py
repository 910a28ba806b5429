"""Origins: to which module and line a gradient's computation belongs.

An operation's autograd node is there only when its call has returned, which is after the operation
was recorded: what was made is looked at later, but before it can get another node.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType

from flowvm.eager.nodes import Node, OutputEdge
from flowvm.eager.tensor import Tensor

Place = tuple[CodeType | None, int]  # code object and offset of a user's expression
Origin = tuple[str, Place]  # a module's path, and where it made the call
NOWHERE: Place = (None, 0)


class Origins:
    """The origins of the calls that autograd recorded, by their nodes."""

    def __init__(self) -> None:
        self._of: dict[Node, Origin] = {}
        self._tensors: list[tuple[Tensor, Origin]] = []  # whose nodes are not looked at yet

    def note(self, tensors: Iterable[Tensor], origin: Origin) -> None:
        """A call of this origin made or changed `tensors`."""
        self._tensors += [(t, origin) for t in tensors]

    def learn(self) -> None:
        """Look at the nodes of the made tensors, and let go of the tensors."""
        for tensor, origin in self._tensors:
            node = tensor._node
            if node is not None:
                self._of.setdefault(node.node if isinstance(node, OutputEdge) else node, origin)
        self._tensors.clear()

    def of(self, node: Node) -> Origin | None:
        """Return the origin of `node`; None if it has no operation of its own (a view)."""
        self.learn()
        return self._of.get(node)
