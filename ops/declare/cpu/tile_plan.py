"""The plan by which an elementwise kernel visits its operands, for `ops/declare/cpu/walk.py`.

All elements are cut into *tiles* of `rows` by `columns`.  The columns run along the dimension in
which the output is densest; the rows along the one in which an operand is denser than there, if
there is one (as in x + y.t()), else along a neighbour.  In a tile an operand is

    direct   unit stride along the columns: the kernel's loops read it where it lies
    single   stride 0 along the columns (one operand at most): read once a row
    staged   anything else: moved to (or from) a dense copy of the tile in the first-level cache

so that the kernel's arithmetic always runs on dense rows, whatever the strides.  Where rows are
short the tile counts as one row (`flat`), for which every operand must be dense over both.

A plan depends on shapes, strides and element sizes alone; tiles are the units that are shared among
workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

MAX_NDIM = 32  # and the most operands
CHUNK = 1 << 15  # elements that a worker takes at once: they outweigh their hand-over
STAGE = 1 << 14  # bytes of a tile's copies: half a first-level cache
SHORT = 64  # elements: a row that is not worth a loop of its own
LEAST = 64  # elements of a tile: of MAX_NDIM operands of 8 bytes these are STAGE
# elements, and at least bytes, that a tile reads in one piece of a transposed operand: several
# cache lines, so that the processor prefetches them
PIECE, PIECE_BYTES = 64, 128

DIRECT, SINGLE, STAGED = 0, 1, 2
# words of a plan: outer dimensions, rows and columns of all, rows and columns of a tile, pattern
# (bit k: operand k is single), flat; then the outer sizes; then for each operand its words
HEADER, PATTERN = 7, 5
OPERAND = 5  # how, element size, place in the stage, stride along rows, along columns; outer ones

Dim = tuple[int, tuple[int, ...]]  # its size, and each operand's stride in elements


class Plan(NamedTuple):
    """The layout words of an elementwise kernel, and how many units there are to share."""

    layout: np.ndarray[Any, np.dtype[np.int64]]
    units: int
    grain: int


def plan_of(
    shape: Sequence[int],
    strides: Sequence[Sequence[int]],
    sizes: Sequence[int],
    *,
    copy: bool = False,
) -> Plan:
    """The plan for operands of these strides (in elements, outputs first) and element sizes.

    `copy`: the kernel is `ops.walk.copy`, which moves tiles from operand 1 to operand 0 itself.
    """
    if len(strides) > MAX_NDIM:
        raise ValueError(f"an elementwise kernel has at most {MAX_NDIM} operands")
    if 0 in shape:
        return Plan(np.zeros(HEADER, np.int64), 0, 1)
    *outer, inner = merged(shape, strides)
    if len(outer) >= MAX_NDIM:
        raise ValueError(f"tensors have at most {MAX_NDIM} dimensions, got {len(shape)}")
    columns, steps = inner
    rows: Dim = (1, (0,) * len(strides))
    turned = _turned(outer, inner)
    if outer:
        rows = outer.pop(_row_dimension(outer, turned))
    modes = _modes(steps, copy)
    flat = not copy and columns < SHORT and rows[0] > 1
    if flat:
        modes = [_flat_mode(k, m, rows, inner) for k, m in enumerate(modes)]
    tile = _tile(rows[0], columns, modes, sizes, flat, turned)
    return _written(outer, rows, inner, modes, sizes, tile, flat)


def plan_of_blocks(
    outer: Sequence[Dim], rows: Dim, columns: Dim, height: int, sizes: Sequence[int]
) -> Plan | None:
    """Return the plan whose tiles are `height` whole rows, numbered as the dimensions are given.

    Return None if a tile has too much to stage.

    Operands that all run through rows and columns in one are seen as one long row.
    """
    (count, down), (n, across) = rows, columns
    inner, tile = columns, (height, n)
    through = all((d, a) in ((n, 1), (0, 0)) for d, a in zip(down, across, strict=True))
    if not outer and (through or n == 1):
        inner, tile = (count * n, down if n == 1 else across), (1, height * n)
        rows = (1, (0,) * len(sizes))
    modes = _modes(inner[1], False)
    staged = sum(size for size, mode in zip(sizes, modes, strict=True) if mode == STAGED)
    if staged * tile[0] * tile[1] > STAGE:
        return None
    return _written(list(outer), rows, inner, modes, sizes, tile, False)


def _written(
    outer: list[Dim],
    rows: Dim,
    inner: Dim,
    modes: list[int],
    sizes: Sequence[int],
    tile: tuple[int, int],
    flat: bool,
) -> Plan:
    columns, steps = inner
    place, words = 0, [len(outer), rows[0], columns, *tile, _pattern(modes), int(flat)]
    words += [n for n, _ in outer]
    for k, mode in enumerate(modes):
        size = sizes[k]
        words += [mode, size, place, rows[1][k] * size, steps[k] * size]
        words += [step[k] * size for _, step in outer]
        place += -(-tile[0] * tile[1] * size // 64) * 64 if mode == STAGED else 0
    units = math.prod(n for n, _ in outer) * -(-rows[0] // tile[0]) * -(-columns // tile[1])
    return Plan(np.array(words, np.int64), units, max(1, CHUNK // (tile[0] * tile[1])))


def merged(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> list[Dim]:
    """Dimensions of size 1 dropped, the others ordered by the first operand's strides, largest
    first, and merged where every operand allows it; at least one.
    """
    dims = [(size, tuple(s[d] for s in strides)) for d, size in enumerate(shape) if size != 1]
    dims.sort(key=lambda dim: -abs(dim[1][0]))
    merged: list[Dim] = []
    for size, steps in dims:
        if merged and all(
            outer == inner * size for outer, inner in zip(merged[-1][1], steps, strict=True)
        ):
            merged[-1] = (merged[-1][0] * size, steps)
        else:
            merged.append((size, steps))
    return merged or [(1, (1,) * len(strides))]


def _turned(outer: list[Dim], inner: Dim) -> int | None:
    """The outer dimension in which an operand is denser than in the inner one, if there is one."""
    for k, step in enumerate(inner[1]):
        if abs(step) <= 1:
            continue
        denser = [
            (abs(steps[k]), d)
            for d, (_, steps) in enumerate(outer)
            if 0 < abs(steps[k]) < abs(step)
        ]
        if denser:
            return min(denser)[1]
    return None


def _row_dimension(outer: list[Dim], turned: int | None) -> int:
    if turned is not None:
        return turned
    last = len(outer) - 1
    if outer[last][0] >= 16:
        return last
    return max(range(len(outer)), key=lambda d: (outer[d][0], d))


def _modes(steps: tuple[int, ...], copy: bool) -> list[int]:
    if copy:
        return [DIRECT] * len(steps)
    modes, free = [], True
    for k, step in enumerate(steps):
        if step == 1:
            modes.append(DIRECT)
        elif step == 0 and k and free:
            modes.append(SINGLE)
            free = False
        else:
            modes.append(STAGED)
    return modes


def _flat_mode(k: int, mode: int, rows: Dim, inner: Dim) -> int:
    """Return the mode in which an operand is read where the tile counts as one row."""
    if mode == DIRECT and rows[1][k] == inner[0]:
        return DIRECT
    return SINGLE if mode == SINGLE and rows[1][k] == 0 else STAGED


def _pattern(modes: list[int]) -> int:
    return sum(1 << k for k, mode in enumerate(modes) if mode == SINGLE)


def _tile(
    rows: int, columns: int, modes: list[int], sizes: Sequence[int], flat: bool, turned: int | None
) -> tuple[int, int]:
    """Rows and columns of a tile."""
    staged = sum(size for size, mode in zip(sizes, modes, strict=True) if mode == STAGED)
    if turned is not None and not flat:
        room = max(LEAST, STAGE // (staged or sizes[0]))
        height = min(rows, max(PIECE, PIECE_BYTES // min(sizes)), room // 16)
        width = min(columns, room // height // 16 * 16)
        return min(rows, room // width), width
    room = max(LEAST, STAGE // (2 * staged)) if staged else CHUNK
    width = columns if flat else min(columns, room)
    return max(1, min(rows, room // width)), width
