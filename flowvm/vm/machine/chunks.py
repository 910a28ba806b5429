"""The division of one large kernel's chunks among a stream's worker and its helpers.

A kernel's units are cut into chunks by its launch alone, so what each chunk computes does not
depend on how many threads there are.  Which thread runs a chunk does: each takes a run of chunks
that is a fixed share of those left, so runs are long while much is left, which spares the shared
counter, and single chunks at the end, which lets the threads finish together.  That is guided
self-scheduling (Polychronopoulos and Kuck, 1987), here with half of an even share.

Pure functions of integers: tests simulate 64 threads with them.
"""

from __future__ import annotations


def chunks_of(units: int, grain: int) -> int:
    """Return the number of chunks of at most `grain` units, at least one."""
    return max(1, (units + grain - 1) // grain)


def run_length(remaining: int, threads: int) -> int:
    """Return the number of chunks for the next thread, of the `remaining` ones (at least one)."""
    return max(1, remaining // (2 * threads))


def helpers_for(chunks: int, team: int) -> int:
    """Return the number of helpers that are worth waking, of `team`, for `chunks` chunks."""
    return min(chunks - 1, team)
