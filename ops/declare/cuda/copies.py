"""Tensors put together from pieces (`ops/declare/assembly.py`) on CUDA: `cat`, `stack`, `roll`,
`pad`.

A piece is a copy of a rectangle or a fill of it: one launch each.  Planes are one more dimension.
"""

from __future__ import annotations

import numpy as np

from flowvm.cuda.launch import Const, CudaLaunch, KernelStep
from flowvm.launch import bits
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.assembly import NUMBER, Assembly, Piece
from flowvm.ops.declare.cuda.elementwise import strided_step


def assembly(launch: Assembly) -> CudaLaunch:
    """The CUDA launch of an assembly."""
    pieces = [p for p in launch.pieces if 0 not in p.shape] if launch.planes.times else []
    return CudaLaunch((launch.out,), tuple(_step(launch, piece) for piece in pieces))


def _step(launch: Assembly, piece: Piece) -> KernelStep:
    planes, size = launch.planes, launch.out.dtype.itemsize
    shape = (planes.times, *piece.shape)
    to = (planes.to, *piece.stride)
    name = bits(launch.out).dtype.name
    if piece.operand == NUMBER:
        number = Const(_bits_of(launch.out, launch.number))
        return strided_step(name, shape, [(0, to, piece.offset * size)], number)
    source = (planes.source, *piece.source_stride)
    return strided_step(
        name, shape,
        [(0, to, piece.offset * size), (piece.operand, source, piece.source_offset * size)],
    )  # fmt: skip


def _bits_of(out: TensorMeta, number: float) -> int:
    return int(out.dtype.stored(np.array(number)).view(bits(out).dtype.numpy))
