"""Tensors put together by one instruction, as `cat`, `stack`, `roll` and `pad` do.

An output is made of *pieces*, each a rectangle of it with the source that it is copied from: some
elements of an operand, in any order that strides can say, or one number.  The kernel goes through
the pieces' plans (`ops/declare/cpu/tile_plan.py`) one after the other; a unit is a tile of one of
them.

Invariant: the pieces do not overlap, and cover what is to be written.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flowvm.compiler import jit
from flowvm.eager.declaration import Invocation
from flowvm.errors import ArgumentError
from flowvm.meta.meta import TensorMeta, reach
from flowvm.ops.declare.cpu.moves import load_word
from flowvm.ops.declare.cpu.tile_plan import CHUNK, plan_of
from flowvm.ops.declare.cpu.walk import OPERANDS_AT, copy_tiles, provide_move, stack_memory

WORDS_ONLY = True
NUMBER = -1  # the operand of a piece that is one number


class Piece(NamedTuple):
    """A rectangle of the output and its contents; offsets and strides in elements."""

    operand: int  # its place among all operands, the output being 0; or NUMBER
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    source_offset: int
    source_stride: tuple[int, ...]


class Planes(NamedTuple):
    """The repetition of the pieces: how often, and the distances in the output and in the operands.

    One plane after the other: pieces that share cache lines are written at one time.
    """

    times: int = 1
    to: int = 0
    source: int = 0


ONE_PLANE = Planes()

# words of a layout: the number of pieces, the number's bits, the units of a plane, and its strides;
# for each piece the words below; the end of the last one's units; then the plans
_HEADER, _WORDS = 5, 5
_FIRST, _OPERAND, _TO, _FROM, _PLAN = range(_WORDS)  # first unit, ..., where its plan begins
SMALL_PLANE = 1024  # elements


def assemble(args: int, layout: int, lo: int, hi: int) -> int:
    """The kernel: units [lo, hi) of all planes' pieces together."""
    if lo >= hi:
        return 0
    index, out = stack_memory(), load_word(args, OPERANDS_AT)
    count, each = load_word(layout, 0), load_word(layout, 2)
    plane = lo // each
    start = plane * each
    at = _piece_at(layout, lo - start)
    while lo < hi:
        piece = layout + 8 * (_HEADER + at * _WORDS)
        first, end = load_word(piece, _FIRST), load_word(piece, _WORDS + _FIRST)
        operand = load_word(piece, _OPERAND)
        if operand < 0:
            source = layout + 8
        else:
            source = load_word(args, OPERANDS_AT + operand) + plane * load_word(layout, 4)
        to = out + plane * load_word(layout, 3) + load_word(piece, _TO)
        plan, stop = layout + 8 * load_word(piece, _PLAN), min(hi, start + end)
        source += load_word(piece, _FROM)
        copy_tiles(to, source, plan, lo - start - first, stop - start - first, index)
        lo, at = stop, at + 1
        if at == count:
            at, plane, start = 0, plane + 1, start + each
    return 0


def _piece_at(layout: int, unit: int) -> int:
    """The last piece that begins at `unit` or before."""
    low, high = 0, load_word(layout, 0)
    while high - low > 1:
        middle = (low + high) // 2
        if load_word(layout, _HEADER + middle * _WORDS + _FIRST) <= unit:
            low = middle
        else:
            high = middle
    return low


@functools.cache
def _kernel() -> int:
    provide_move()
    return jit.native(assemble, "int32(int64, int64, int64, int64)")


@dataclass(frozen=True)
class Assembly:
    """An op that puts `pieces`, some perhaps without elements, into every plane of `out`."""

    out: TensorMeta
    pieces: tuple[Piece, ...]
    number: int = 0
    planes: Planes = ONE_PLANE

    @property
    def outputs(self) -> tuple[TensorMeta, ...]:
        """The output, as a tuple."""
        return (self.out,)

    def on_cpu(self) -> Invocation:
        """The CPU's call."""
        return _assembled(self.out, self.pieces, self.number, self.planes)


def _assembled(out: TensorMeta, pieces: Sequence[Piece], number: Any, planes: Planes) -> Invocation:
    size = out.dtype.itemsize
    filled = [p for p in pieces if 0 not in p.shape]
    plans = [plan_of(p.shape, [p.stride, p.source_stride], [size] * 2, copy=True) for p in filled]
    starts = list(itertools.accumulate((p.units for p in plans), initial=0))
    bits = int.from_bytes(_bytes_of(out, number), "little", signed=True)
    words = [len(filled), bits, starts[-1], planes.to * size, planes.source * size]
    at = _HEADER + len(filled) * _WORDS + 1
    for piece, plan, start in zip(filled, plans, starts, strict=False):
        words += [start, piece.operand, piece.offset * size, piece.source_offset * size, at]
        at += len(plan.layout)
    layout = np.concatenate([[*words, starts[-1]], *(p.layout for p in plans)]).astype(np.int64)
    units = starts[-1] * planes.times
    grain = max(1, CHUNK * units // max(1, out.numel))
    return Invocation((out,), _kernel(), layout, units, grain)


def check_pieces(out: TensorMeta, sources: Sequence[TensorMeta], pieces: Sequence[Piece]) -> None:
    """Raise ArgumentError unless the pieces lie in `out` and its `sources`, with equal sizes."""
    for piece in pieces:
        operand, shape, *strides = piece.operand, piece.shape, piece.stride, piece.source_stride
        if not NUMBER <= operand <= len(sources) or operand == 0:
            raise ArgumentError(f"assemble: a piece of operand {operand} of {len(sources)}")
        if any(len(s) != len(shape) for s in strides) or min((0, *shape, *piece.stride)):
            raise ArgumentError(f"assemble: no piece has shape {shape} and strides {strides}")
        _check_inside(out, shape, piece.stride, piece.offset)
        if operand != NUMBER:
            source = sources[operand - 1]
            if source.dtype is not out.dtype:
                raise ArgumentError(f"assemble: {source.dtype.name} into {out.dtype.name}")
            _check_inside(source, shape, piece.source_stride, piece.source_offset)
    if sum(math.prod(piece.shape) for piece in pieces) != out.numel:
        raise ArgumentError(f"assemble: the pieces are not the whole of {out!r}")


def _check_inside(
    meta: TensorMeta, shape: Sequence[int], stride: Sequence[int], offset: int
) -> None:
    if 0 in shape:
        return
    first, last = (offset + far for far in reach(shape, stride))
    lowest, highest = reach(meta.shape, meta.stride)
    if first < lowest or last > highest or not meta.numel:
        raise ArgumentError(f"assemble: a piece is at {first} to {last} of {meta!r}")


def _bytes_of(out: TensorMeta, number: Any) -> bytes:
    return out.dtype.stored(np.array(number)).tobytes().ljust(8, b"\0")


Cut = tuple[int, int, int, int]  # start in the output, length, start in the source, its step


def rectangles(
    out: TensorMeta, x: TensorMeta, cuts: Sequence[Sequence[Cut]]
) -> tuple[list[Piece], Planes, int]:
    """Return a piece of operand 1, which is `x`, for every choice of one cut in each dimension.

    Also return the planes of the pieces, and the number of dimensions of planes.
    """
    lead = _planes(out, x, cuts)
    planes = Planes()
    if lead:
        planes = Planes(math.prod(out.shape[:lead]), out.stride[lead - 1], x.stride[lead - 1])
    pieces = []
    to, source = out.stride[lead:], x.stride[lead:]
    for choice in itertools.product(*cuts[lead:]):
        offset = sum(c[0] * s for c, s in zip(choice, to, strict=True))
        origin = sum(c[2] * s for c, s in zip(choice, source, strict=True))
        steps = tuple(c[3] * s for c, s in zip(choice, source, strict=True))
        pieces.append(Piece(1, tuple(c[1] for c in choice), to, offset, origin, steps))
    return pieces, planes, lead


def _planes(out: TensorMeta, x: TensorMeta, cuts: Sequence[Sequence[Cut]]) -> int:
    """The leading dimensions that are not cut and are one to both tensors, if a plane is large."""
    lead = 0
    while lead < out.ndim and list(cuts[lead]) == [(0, out.shape[lead], 0, 1)]:
        lead += 1
    while lead and not (
        out.numel // max(1, math.prod(out.shape[:lead])) >= SMALL_PLANE
        and all(
            m.stride[d] == m.stride[d + 1] * m.shape[d + 1]
            for m in (out, x)
            for d in range(lead - 1)
        )
    ):
        lead -= 1
    return lead
