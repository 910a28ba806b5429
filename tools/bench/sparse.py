"""Products with sparse matrices, forward and with backward, beside PyTorch's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import flowvm as flow
from tools.bench.measure import Result, paired

Call = Callable[[], Any]

# name, rows and columns, entries, features
SIZES = (
    ("Cora, 16 features", 2708, 10_556, 16, 100),
    ("Cora, 1,433 features", 2708, 10_556, 1433, 4),
    ("1M edges, 64 features", 100_000, 1_000_000, 64, 2),
)
REACH = 0.7


def product(lib: Any, layout: str, rows: int, entries: int, width: int, backward: bool) -> Call:
    """`sparse @ dense`, with the gradient by the dense factor or without."""
    rng = np.random.default_rng(entries)
    places = lib.tensor(np.stack([rng.integers(0, rows, entries) for _ in range(2)]))
    values = lib.tensor(rng.random(entries, np.float32))
    matrix = lib.sparse_coo_tensor(places, values, (rows, rows)).coalesce()
    if layout == "csr":
        matrix = matrix.to_sparse_csr()
    x = lib.tensor(rng.random((rows, width), np.float32))
    if not backward:
        return lambda: matrix @ x
    g = lib.tensor(rng.random((rows, width), np.float32))
    x.requires_grad_()

    def call() -> None:
        (matrix @ x).backward(g)
        x.grad = None

    return call


def results(peers: dict[str, Any], rounds: int, only: str, threads: int = 1) -> Iterator[Result]:
    """A row for each size, layout and direction, and number of threads."""
    torch = peers.get("torch")
    for count in sorted({1, threads}):
        flow.set_num_threads(count)
        if torch is not None:
            torch.set_num_threads(count)
        for size, rows, entries, width, times in SIZES:
            for layout in ("csr", "coo"):
                for backward in (False, True):
                    ways = "forward, backward" if backward else "forward"
                    plural = "s" if count > 1 else ""
                    name = f"{layout} @, {size}, {ways}, {count} thread{plural}"
                    if only in name:
                        yield _row(torch, name, (layout, rows, entries, width, backward), times,
                                   rounds)  # fmt: skip
    flow.set_num_threads(1)
    if torch is not None:
        torch.set_num_threads(1)


def _row(torch: Any, name: str, case: tuple[Any, ...], times: int, rounds: int) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's of its layouts
        peer_call = None if torch is None else product(torch, *case)
    mine, peer, ratio = paired(
        _repeated(product(flow, *case), flow.vm.sync),
        None if peer_call is None else _repeated(peer_call),
        times,
        rounds,
    )
    met = None if ratio is None else ratio <= REACH
    return Result(
        name, "us", mine * 1e6, "torch" if torch else "", peer and peer * 1e6, ratio,
        f"<= {REACH}", met,
    )  # fmt: skip


def _repeated(call: Call, end: Call | None = None) -> Callable[[int], None]:
    call()

    def run(count: int) -> None:
        for _ in range(count):
            call()
        if end is not None:
            end()

    return run
