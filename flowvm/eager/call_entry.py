"""The entry of a call: what all calls of an operator with the same metas and attributes share."""

from __future__ import annotations

from flowvm.meta.meta import TensorMeta


class CallEntry:
    """An entry of the VM and what a call makes with it.  Native calls read its slots.

    word         entry number and stream, for records; the VM's entry lives as long as this object
    outputs      the metas of the outputs
    large        it allocates so much that dead tensors are released first
    scalar_pack  struct codes of the dynamic scalars, last to first; "" where the operator has them
    """

    __slots__ = ("large", "outputs", "scalar_pack", "word")

    def __init__(
        self, word: int, outputs: tuple[TensorMeta, ...], large: bool, scalar_pack: str
    ) -> None:
        self.word = word
        self.outputs = outputs
        self.large = large
        self.scalar_pack = scalar_pack
