"""Sharing chunks among many threads, simulated: no thread here, only the function that decides."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from flowvm.vm.machine.chunks import chunks_of, helpers_for, run_length


def simulate(costs, threads, late=None):
    """(finish time, claims, order of chunks) when `threads` take runs of chunks as they get free.

    `late` is when each thread comes; chunk k takes costs[k].
    """
    free = [(t, i) for i, t in enumerate(late if late is not None else [0.0] * threads)]
    heapq.heapify(free)
    at, claims, order, end = 0, 0, [], 0.0
    while at < len(costs):
        now, thread = heapq.heappop(free)
        count = run_length(len(costs) - at, threads)
        order += range(at, at + count)
        now += sum(costs[at : at + count])
        at, claims, end = at + count, claims + 1, max(end, now)
        heapq.heappush(free, (now, thread))
    return end, claims, order


@pytest.mark.parametrize("threads", [1, 2, 3, 16, 64])
@pytest.mark.parametrize("chunks", [1, 2, 63, 64, 65, 1000, 100_000])
def test_every_chunk_once_and_few_claims(chunks, threads):
    end, claims, order = simulate([1.0] * chunks, threads)
    assert order == list(range(chunks))
    even = -(-chunks // threads)
    # 2 n threads claims halve what is left n times; the last 2 threads chunks go one by one
    assert claims <= 2 * threads * (2 + np.log2(max(2, chunks / threads)))
    assert end <= even + 1


@pytest.mark.parametrize("threads", [2, 8, 64])
@pytest.mark.parametrize("spread", ["even", "exponential", "growing", "one heavy"])
def test_threads_finish_together(threads, spread, rng):
    chunks = 64 * threads
    costs = {
        "even": np.ones(chunks),
        "exponential": rng.exponential(1.0, chunks),
        "growing": np.linspace(0.1, 2.0, chunks),
        "one heavy": np.where(np.arange(chunks) == chunks // 3, 20.0, 1.0),
    }[spread]
    end, _, _ = simulate(list(costs), threads)
    lower = max(costs.sum() / threads, costs.max())
    assert end <= lower + 2 * costs.max() + 0.15 * lower, end / lower


def test_a_thread_that_comes_late_finds_work(rng):
    """A helper that must be woken first: the others do its share, and none waits for it."""
    late = [0.0] * 63 + [30.0]
    end, _, _ = simulate([1.0] * 6400, 64, late)
    assert end <= (6400 + 30) / 64 + 2


def test_helpers_are_woken_only_for_chunks_they_can_have():
    assert helpers_for(1, 63) == 0
    assert helpers_for(3, 63) == 2
    assert helpers_for(1000, 63) == 63


@pytest.mark.parametrize(
    ("units", "grain", "chunks"),
    [(0, 1, 1), (1, 1, 1), (7, 3, 3), (8, 8, 1), (1 << 40, 1 << 20, 1 << 20)],
)
def test_chunks(units, grain, chunks):
    assert chunks_of(units, grain) == chunks
