"""The division of a reduction's work on the CPU: sums, searches, moments."""

from __future__ import annotations

from collections.abc import Callable

from flowvm.launch import Launch, View
from flowvm.meta.meta import TensorMeta
from flowvm.ops.rows.parts.fold_walk import Columns, Runs, Walk, grain_of


def fold_launch(
    outputs: tuple[TensorMeta, ...],
    bodies: tuple[Callable[..., None], Callable[..., None]],
    views: tuple[View, ...],
    walk: Walk,
    numbers: int,
    extra: float = 1.0,
) -> Launch:
    """Return the Launch of a reduction.

    `bodies` are the ones of `Runs` and of `Columns`; their states have `numbers` numbers.  `extra`
    is the call's own number.
    """
    rows, columns = bodies
    if walk.in_columns:
        c = Columns.of(walk, extra)
        outers, every = walk.free[0][0], c.segments * c.parts
        return Launch(
            outputs,
            columns,
            views,
            (c,),
            units=outers * -(-c.width // c.tile) * c.segments,
            grain=grain_of(c.length * c.tile),
            scratch=8 * numbers * outers * c.width * c.segments if every > 1 else 8,
            arena=8 * (numbers + 1) * c.tile,
            phases=((walk.results, grain_of(every)),) if every > 1 else (),
        )
    r, results = Runs.of(walk, extra), walk.results
    return Launch(
        outputs,
        rows,
        views,
        (r,),
        units=results * r.segments,
        grain=grain_of(r.length),
        scratch=8 * numbers * results * r.segments if r.segments > 1 else 8,
        arena=64,
        phases=((results, grain_of(r.segments)),) if r.segments > 1 else (),
    )


def blocks_of(walk: Walk) -> tuple[int, ...]:
    """Return the blocks of one output and one input that units touch, as in `Launch.blocks`."""
    if walk.in_columns:
        c = Columns.of(walk)
        outers = walk.free[0][0]
        together = outers == walk.reduced[0][0] == 1 and c.tile == c.width == c.near
        return (0, c.length * c.width) if together else ()
    r = Runs.of(walk)
    if walk.lies_together and (r.segments == 1 or walk.results == 1):
        return int(r.segments == 1), r.length
    return ()
