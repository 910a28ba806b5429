"""Kernels that run one behind the other on a block of rows, then on the next block.

A kernel finds the results of the one before in the cache.  Results that no other code needs are
never stored.

All operands that are cut are seen as `rows` rows, each of its own length.  A *stage* is a kernel as
it is launched by itself; here it is called for the part that belongs to a block.  An operand that
is not kept lies in the thread's arena: the stage gets the address at which the whole would begin if
this block lay there.  So no kernel knows where it runs, and each computes, bit for bit, what it
computes alone.

Rows are numbered (outer, row); a block is `height` rows with one outer number.  A stage whose
units are rows, `each` of them, is called for the units of a block; a block is so cut that it has
whole ones, but for the last.  A stage with a plan of its own (elementwise kernels) has a tile for
each block: `each` is 0.  Further phases of a stage become phases of the whole: they touch nothing
that is cut.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flowvm.compiler import jit
from flowvm.eager.declaration import Invocation
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.cpu.moves import load_word, store_word
from flowvm.ops.declare.cpu.tile_plan import CHUNK
from flowvm.ops.declare.cpu.walk import OPERANDS_AT, call_kernel
from flowvm.vm.machine.words import ARG

WORDS_ONLY = True
BLOCK = 1 << 13  # elements of the longest rows of a block: several operands stay in the caches
ARGS = 64  # words at the arena's start: the arguments of the stage that runs
# words of the layout: outer numbers, rows of each, rows of a block, stages, stages with phases;
# then (stage, its phase) for each further phase; then the stages
HEADER = 5
# words of a stage: how many these are, kernel, its layout's place, each, scratch, arena, operands,
# scalars; then an operand's (source, bytes of a row); then a scalar's place
STAGE_WORDS = 8
LAUNCHED = 1 << 32  # from here on, sources are the launch's operands; below, bytes of the arena
UNIT_MASK = (1 << ARG.PHASE_BITS) - 1


class Rows(NamedTuple):
    """The cut of rows into blocks."""

    outer: int
    rows: int
    height: int

    @property
    def blocks(self) -> int:
        return self.outer * -(-self.rows // self.height)


class Stage(NamedTuple):
    """A kernel of a block program.

    `operands` are (source, bytes of a row): LAUNCHED + k for the launch's operand k, else the place
    in the arena, behind the arguments; `scalars` are positions among the launch's.
    """

    invocation: Invocation
    each: int
    operands: tuple[tuple[int, int], ...]
    scalars: tuple[int, ...] = ()


def run_blocks(args: int, layout: int, lo: int, hi: int, arena: int) -> int:
    """The kernel: blocks [lo, hi), or units of a further phase, which is one stage's."""
    rows, height = load_word(layout, 1), load_word(layout, 2)
    stages, phases = load_word(layout, 3), load_word(layout, 4)
    first_stage = layout + 8 * (HEADER + 2 * phases)
    phase = lo >> ARG.PHASE_BITS
    if phase > 0:
        at = layout + 8 * (HEADER + 2 * (phase - 1))
        stage = first_stage
        for _ in range(load_word(at, 0)):
            stage += 8 * load_word(stage, 0)
        shift = (load_word(at, 1) - phase) << ARG.PHASE_BITS
        return _run(stage, args, layout, lo + shift, hi + shift, 0, arena)
    down = (rows + height - 1) // height
    for unit in range(lo, hi):
        row = unit % down * height
        count = min(height, rows - row)
        row += unit // down * rows
        stage = first_stage
        for _ in range(stages):
            each = load_word(stage, 3)
            begin, end = unit, unit + 1
            if each > 0:
                begin, end = row // each, (row + count + each - 1) // each
            status = _run(stage, args, layout, begin, end, row, arena)
            if status != 0:
                return status
            stage += 8 * load_word(stage, 0)
    return 0


def _run(stage: int, args: int, layout: int, lo: int, hi: int, row: int, arena: int) -> int:
    """Call a stage's kernel on its units [lo, hi); the block begins at `row`."""
    for k in range(OPERANDS_AT):
        store_word(arena, k, load_word(args, k))
    store_word(arena, 6, load_word(args, 6) + load_word(stage, 4))
    operands, scalars = load_word(stage, 6), load_word(stage, 7)
    at = stage + 8 * STAGE_WORDS
    for k in range(operands):
        source, each = load_word(at, 0), load_word(at, 1)
        at += 16
        if source >= LAUNCHED:
            place = load_word(args, source - LAUNCHED)
        else:
            place = arena + source - row * each
        store_word(arena, OPERANDS_AT + k, place)
    for k in range(scalars):
        store_word(arena, OPERANDS_AT + operands + k, load_word(args, load_word(at, k)))
    kernel, inner = load_word(stage, 1), layout + 8 * load_word(stage, 2)
    status = call_kernel(kernel, arena, inner, lo, hi, arena + load_word(stage, 5))
    if status != 0:
        for k in range(6):
            store_word(args, k, load_word(arena, k))
    return int(status)


@functools.cache
def _kernel() -> int:
    return jit.native(run_blocks, "int32(int64, int64, int64, int64, int64)")


def fits_arena(stages: Sequence[Invocation], buffers: int) -> bool:
    """Return True if the arena holds `buffers` bytes besides the needs of the stages."""
    return 8 * ARGS + buffers + max((s.arena for s in stages), default=0) <= ARG.ARENA_BYTES


def block_invocation(
    outputs: tuple[TensorMeta, ...],
    operands: int,
    cut: Rows,
    stages: Sequence[Stage],
    buffers: int,
    length: int,
    scalar_pack: str,
) -> Invocation:
    """The invocation of `stages` on blocks of rows.

    `operands` counts the launch's; `buffers` are the bytes of the arena that sources name; rows of
    the longest operand have `length` elements.
    """
    scratch, words, layouts, phases = 0, [], [], []
    steps: list[tuple[int, int]] = []
    for number, stage in enumerate(stages):
        invocation = stage.invocation
        sources = [w for source, each in stage.operands for w in (_source(source), each)]
        row = [
            0, invocation.kernel, 0, stage.each, scratch, 8 * ARGS + buffers, len(stage.operands),
            len(stage.scalars), *sources, *(OPERANDS_AT + operands + s for s in stage.scalars),
        ]  # fmt: skip
        row[0] = len(row)
        words.append(row)
        layouts.append(invocation.layout)
        scratch += -(-invocation.scratch // 64) * 64
        for p, step in enumerate(invocation.phases, 1):
            phases += [number, p]
            steps.append(step)
    place = HEADER + len(phases) + sum(map(len, words))
    for row, layout in zip(words, layouts, strict=True):
        row[2] = place
        place += len(layout)
    head = [*cut, len(stages), len(steps), *phases, *(w for row in words for w in row)]
    return Invocation(
        outputs,
        _kernel(),
        np.concatenate([np.array(head, np.int64), *layouts]),
        cut.blocks,
        max(1, CHUNK // max(1, cut.height * length)),
        scratch,
        scalar_pack,
        tuple(steps),
    )


def _source(source: int) -> int:
    return source + OPERANDS_AT if source >= LAUNCHED else source + 8 * ARGS
