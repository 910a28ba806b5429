"""How large a register tile is: by the vectors that the processor has."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

from flowvm.compiler.jit import llvm

__all__ = ["SHAPES", "TileShape", "tile_shape"]


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


# Bytes of a vector and the tile that its registers hold: one register for each sum, one for each
# vector of B's row, at least one for A's number.
SHAPES = {
    "avx512f": (64, 12, 2),  # 24 + 2 of 32
    "avx": (32, 4, 3),  # 12 + 3 of 16
    "sse2": (16, 4, 3),
    "neon": (16, 8, 3),  # 24 + 3 of 32
}


@functools.cache
def _host_features() -> Mapping[str, bool]:
    try:
        return dict(llvm.get_host_cpu_features())
    except RuntimeError:  # LLVM does not know how to ask this processor
        return {}


def tile_shape(dtype: str, features: Mapping[str, bool] | None = None) -> TileShape:
    """The tile for `dtype` on this processor, or one that has `features`.  That for reduced floats
    is float32's: their panels are.
    """
    have = _host_features() if features is None else features
    kind = next((name for name in ("avx512f", "avx", "sse2") if have.get(name)), "neon")
    size, rows, vectors = SHAPES[kind]
    return TileShape(rows, vectors, size // (8 if dtype == "float64" else 4))
