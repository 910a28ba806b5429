"""The size of a register tile: it follows from the processor's vector registers."""

from __future__ import annotations

from typing import NamedTuple

from flowvm.compiler.target import Target
from flowvm.ops.declare.cpu.vector_code import registers


class TileShape(NamedTuple):
    """The largest tile: `rows` (a multiple of GROUP) by `columns`, which are `vectors` of `lanes`
    elements each.
    """

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


# The tile that registers (bytes of each, how many) hold: one register for each sum, one for each
# vector of B's row, at least one for A's number.
ROWS_VECTORS = {
    (64, 32): (12, 2),  # 24 + 2
    (32, 16): (4, 3),  # 12 + 3
    (16, 16): (4, 3),
    (16, 32): (8, 3),  # 24 + 3
}


def tile_shape(dtype: str, of: Target | None = None) -> TileShape:
    """The tile for `dtype` on a processor, by default the one that code is compiled for.  That for
    reduced floats is float32's: their panels are.
    """
    have = registers(of)
    return TileShape(*ROWS_VECTORS[have], have.bytes // (8 if dtype == "float64" else 4))
