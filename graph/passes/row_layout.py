"""The cut of a program on rows into blocks, and its invocation.

A row is a length of each operand: `n` elements of the longest ones, fewer of others (a row's mean
is one).  `arrange` finds an n such that every kernel's units are whole rows, and every operand of
an elementwise program can be walked by rows and columns: n is the product of the last dimensions of
some operand, the largest that will do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flowvm.eager.declaration import Invocation
from flowvm.eager.interpreter import Operator
from flowvm.graph.passes.fusion_program import is_program, program_kernel
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.cpu.blocks import BLOCK, LAUNCHED, Rows, Stage, block_invocation, fits_arena
from flowvm.ops.declare.cpu.tile_plan import PATTERN, Dim, Plan, plan_of_blocks
from flowvm.ops.declare.scalar_launch import broadcast_stride

SHORT = 32  # elements of a row that is worth a loop of its own
Ref = tuple[
    int, TensorMeta
]  # the launch's operand k, or -1 - k of the program's own; as it is seen


@dataclass(frozen=True)
class Part:
    """A node of the program: outputs and inputs as `refs`, numbers by their places."""

    operator: Operator
    attrs: Attrs
    refs: tuple[Ref, ...]
    scalars: tuple[int, ...]

    @property
    def outs(self) -> tuple[Ref, ...]:
        return self.refs[: len(self.operator.signature.outputs)]

    @property
    def ins(self) -> tuple[Ref, ...]:
        return self.refs[len(self.operator.signature.outputs) :]

    def lower(self) -> Invocation:
        return self.operator.kernel.lower(tuple(meta for _, meta in self.ins), self.attrs)


@dataclass(frozen=True)
class RowParts:
    """Parts in order; the launch's first `outputs` operands are made by them."""

    parts: tuple[Part, ...]
    outputs: int

    @property
    def aliases(self) -> frozenset[tuple[int, int]]:
        """The (output, input) that may share memory.

        An elementwise part makes the output.  Only elementwise parts read the input: this one, or
        some in front of it, each element for the element of its result.  So a block's numbers are
        written when they are read for the last time, and no other block reads them.
        """
        makers = {
            place: (k, meta)
            for k, part in enumerate(self.parts)
            for place, meta in part.outs
            if 0 <= place and is_program(part.operator)
        }
        readers: dict[int, list[tuple[int, TensorMeta]]] = {}
        for k, part in enumerate(self.parts):
            for place, meta in part.ins:
                if place >= self.outputs:
                    readers.setdefault(place - self.outputs, []).append((k, meta))
        return frozenset(
            (out, place)
            for out, (maker, shown) in makers.items()
            for place, reads in readers.items()
            if all(
                k <= maker
                and is_program(self.parts[k].operator)
                and meta.shape == shown.shape
                and meta.stride == shown.stride
                and self.parts[k].outs[0][1].shape == shown.shape
                for k, meta in reads
            )
        )

    @property
    def blocks(self) -> str:
        """The cut into blocks, for a reader."""
        arrangement = arrange(self)
        assert arrangement is not None
        return f"{arrangement.cut.blocks} blocks of {arrangement.cut.height} x {arrangement.length}"


class Arrangement(NamedTuple):
    """The cut of a program; `rows_of` has the number of elements in a row of each result."""

    cut: Rows
    length: int
    rows_of: dict[int, int]
    eaches: list[int]  # of each part, 0 for an elementwise one
    plans: list[Plan | None]
    buffers: dict[int, tuple[int, TensorMeta]]  # of each own operand: its place in the arena
    nbytes: int


class _Spread(NamedTuple):
    """An operand of an elementwise part: strides over the outer dimensions, along a row."""

    sizes: tuple[int, ...]
    outer: tuple[int, ...]
    across: int


@functools.lru_cache(maxsize=1024)
def arrange(program: RowParts) -> Arrangement | None:
    """Return the arrangement of a program, None if there is none."""
    lowered = {k: p.lower() for k, p in enumerate(program.parts) if not is_program(p.operator)}
    each: dict[int, int] = {}  # elements of a unit's longest operand
    totals = set()
    for k, invocation in lowered.items():
        refs = program.parts[k].refs
        longest = max(range(len(refs)), key=lambda i: invocation.blocks[i])
        each[k] = invocation.blocks[longest]
        totals.add(refs[longest][1].numel)
    if len(totals) != 1 or 0 in totals:
        return None
    (total,) = totals
    for n in _lengths(program, total, list(each.values())):
        arrangement = _arranged(program, lowered, each, total, n)
        if arrangement is not None:
            return arrangement
    return None


def _lengths(program: RowParts, total: int, eaches: list[int]) -> list[int]:
    """Lengths of rows to be tried, longest first."""
    shapes = {tuple(m.shape) for p in program.parts for _, m in p.refs if m.numel == total}
    lengths = {math.prod(shape[d:]) for shape in shapes for d in range(len(shape) + 1)}
    return sorted((n for n in lengths if n and all(e % n == 0 for e in eaches)), reverse=True)


def _arranged(
    program: RowParts, lowered: dict[int, Invocation], each: dict[int, int], total: int, n: int
) -> Arrangement | None:
    rows, rows_of = total // n, dict[int, int]()
    eaches: list[int] = []
    spreads: list[list[_Spread] | None] = []
    for k, part in enumerate(program.parts):
        if k in lowered:
            height = each[k] // n
            if not _cut_fits(program, part, lowered[k].blocks, height, rows_of):
                return None
            eaches.append(height)
            spreads.append(None)
            continue
        spread = _spread(part, rows, rows_of, program.outputs)
        if spread is None:
            return None
        eaches.append(0)
        spreads.append(spread)
    step = math.lcm(*(e for e in eaches if e))
    outer = _outer_dims([s for s in spreads if s is not None], rows)
    if outer is None or (len(outer[0]) > 1 and step > 1):
        return None
    cut_rows = outer[0][-1] if outer[0] else 1
    own = {place: meta for p in program.parts for place, meta in p.outs if place < 0}
    height = max(1, BLOCK // (n * step)) * step
    height = min(height, -(-cut_rows // step) * step)
    while True:
        buffers, nbytes = _placed(own, rows_of, height)
        if fits_arena(list(lowered.values()), nbytes):
            plans = _plans(program, spreads, outer, rows_of, n, height)
            if plans is not None:
                break
        if height == step:
            return None
        height = max(1, height // step // 2) * step
    cut = Rows(rows // cut_rows, cut_rows, height)
    return Arrangement(cut, n, rows_of, eaches, plans, buffers, nbytes)


def _cut_fits(
    program: RowParts, part: Part, blocks: Sequence[int], height: int, rows_of: dict[int, int]
) -> bool:
    """Return True if a kernel with units may take part; store the rows of its results."""
    for i, (place, meta) in enumerate(part.refs):
        if blocks[i] % height or (place < 0 and not blocks[i]):
            return False
        row = blocks[i] // height
        if i < len(part.outs):
            rows_of[place] = row
        elif place < program.outputs and (
            rows_of.get(place) != row or not row or not meta.contiguous
        ):
            return False
    return True


def _spread(part: Part, rows: int, rows_of: dict[int, int], outputs: int) -> list[_Spread] | None:
    """The operands of an elementwise part by rows and columns."""
    shape = tuple(part.outs[0][1].shape)
    places = [d for d in range(len(shape) + 1) if math.prod(shape[:d]) == rows]
    if not places or not all(meta.contiguous for _, meta in part.outs):
        return None
    split = places[-1]
    length = math.prod(shape[split:])
    spreads = []
    for i, (place, meta) in enumerate(part.refs):
        is_output = i < len(part.outs)
        strides = meta.stride if is_output else broadcast_stride(meta, part.outs[0][1].shape)
        across = merged_dims(shape[split:], strides[split:])
        if len(across) > 1:
            return None
        step = across[0][1] if across else 1
        outer = tuple(strides[:split])
        if is_output:
            rows_of[place] = length
        elif place < outputs:
            row = rows_of.get(place, 0)
            down = merged_dims(shape[:split], outer)
            if not row or len(down) > 1 or (down and down[0][1] != row):
                return None
            if not (step == 0 or (step == 1 and length == row) or length == 1):
                return None
        spreads.append(_Spread(shape[:split], outer, step))
    return spreads


def merged_dims(sizes: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Merge the dimensions of an operand that it runs through in one."""
    dims: list[tuple[int, int]] = []
    for size, stride in zip(sizes, strides, strict=True):
        if size == 1:
            continue
        if dims and dims[-1][1] == size * stride:
            dims[-1] = (dims[-1][0] * size, stride)
        else:
            dims.append((size, stride))
    return dims


def _outer_dims(
    spreads: list[list[_Spread]], rows: int
) -> tuple[list[int], list[list[list[int]]]] | None:
    """The dimensions that rows are numbered by, and each operand's strides over them: one, if all
    operands run through their rows in one.
    """
    every = [[merged_dims(s.sizes, s.outer) for s in part] for part in spreads]
    if all(len(dims) <= 1 for part in every for dims in part):
        return [rows], [[[dims[0][1] if dims else 0] for dims in part] for part in every]
    shapes = {tuple(s for s in part[0].sizes if s != 1) for part in spreads}
    if len(shapes) != 1:
        return None
    (shape,) = shapes
    flat = [
        [[o for o, size in zip(s.outer, s.sizes, strict=True) if size != 1] for s in part]
        for part in spreads
    ]
    sizes: list[int] = []
    strides: list[list[list[int]]] = [[[] for _ in part] for part in flat]
    for d, size in enumerate(shape):
        operands = [(a, b) for a, part in enumerate(flat) for b in range(len(part))]
        joins = bool(sizes) and all(strides[a][b][-1] == size * flat[a][b][d] for a, b in operands)
        for a, b in operands:
            if joins:
                strides[a][b][-1] = flat[a][b][d]
            else:
                strides[a][b].append(flat[a][b][d])
        if joins:
            sizes[-1] *= size
        else:
            sizes.append(size)
    return sizes, strides


def _plans(
    program: RowParts,
    spreads: list[list[_Spread] | None],
    outer: tuple[list[int], list[list[list[int]]]],
    rows_of: dict[int, int],
    n: int,
    height: int,
) -> list[Plan | None] | None:
    sizes, strides = outer
    plans: list[Plan | None] = []
    which = 0
    for part, spread in zip(program.parts, spreads, strict=True):
        if spread is None:
            plans.append(None)
            continue
        length = rows_of[part.outs[0][0]]
        steps = strides[which]
        which += 1
        if sizes[-1] == 1:  # a dimension of one row runs on into anything
            steps = [[*s[:-1], length * o.across] for s, o in zip(steps, spread, strict=True)]
        dims: list[Dim] = [(size, tuple(s[d] for s in steps)) for d, size in enumerate(sizes)]
        columns: Dim = (length, tuple(s.across for s in spread))
        itemsizes = [meta.dtype.itemsize for _, meta in part.refs]
        plan = plan_of_blocks(dims[:-1], dims[-1], columns, height, itemsizes)
        if plan is None or (1 < length < SHORT and plan.layout[1] > 1):
            return None
        plans.append(plan)
    return plans


def _placed(
    own: dict[int, TensorMeta], rows_of: dict[int, int], height: int
) -> tuple[dict[int, tuple[int, TensorMeta]], int]:
    """Places of a program's own operands in the arena, and the bytes of all."""
    buffers, at = {}, 0
    for place, meta in own.items():
        buffers[place] = (at, meta)
        at += -(-height * rows_of[place] * meta.dtype.itemsize // 64) * 64
    return buffers, at


@functools.lru_cache(maxsize=1024)
def lower_rows(program: RowParts, outs: tuple[TensorMeta, ...], inputs: int) -> Invocation:
    """The invocation of a program that `arrange` can arrange."""
    arrangement = arrange(program)
    assert arrangement is not None
    stages, kinds = [], ""
    for part, each, plan in zip(program.parts, arrangement.eaches, arrangement.plans, strict=True):
        if plan is None:
            invocation = part.lower()
        else:
            pattern = int(plan.layout[PATTERN])
            kernel = program_kernel(part.operator, part.attrs[0], pattern)
            invocation = Invocation(
                part.attrs[0], kernel, plan.layout, scalar_pack="d" * len(part.scalars)
            )
        operands = []
        for place, meta in part.refs:
            if place < 0:
                size = arrangement.rows_of[place] * meta.dtype.itemsize
                operands.append((arrangement.buffers[place][0], size))
            else:
                operands.append((LAUNCHED + place, 0))
        stages.append(Stage(invocation, each, tuple(operands), part.scalars))
        kinds += invocation.scalar_pack[::-1] or part.operator.signature.scalar_kinds
    return block_invocation(
        outs,
        len(outs) + inputs,
        arrangement.cut,
        stages,
        arrangement.nbytes,
        arrangement.length,
        kinds[::-1],
    )
