"""`python -m tools.bench.cuda [--smoke] [--json]`: what is promised on a GPU, measured there.

Peers where they are installed: PyTorch (eager, CUDA graphs) and CuPy.  Ours and the peer run in
turn, the median of paired ratios counts.  Bandwidths are shares of what a copy within the device's
memory moves in the same run, bytes read and written counted.  `--smoke` takes tiny sizes, so that
everything runs on a simulated device, and means nothing else.
"""

from __future__ import annotations

import argparse
import json
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import flowvm as flow
from tools.bench.measure import Result, paired, seconds_per_call

Call = Callable[[int], None]


class Sizes:
    """Elements of the large tensors, side of the matrices, calls of a round."""

    def __init__(self, smoke: bool) -> None:
        self.large, self.rows, self.side = (1 << 12, 8, 16) if smoke else (1 << 26, 1 << 14, 4096)
        self.chain, self.calls, self.few = (10, 3, 2) if smoke else (1000, 2000, 20)
        self.rounds = 2 if smoke else 7


def _peer(name: str) -> Any:
    try:
        module: Any = __import__(name)
        return module if module.cuda.is_available() else None
    except (ImportError, AttributeError, RuntimeError):
        return None


def _repeat(function: Callable[[], Any], sync: Callable[[], Any]) -> Call:
    def run(count: int) -> None:
        for _ in range(count):
            function()
        sync()

    return run


def parts(sizes: Sizes) -> list[Iterator[Result]]:
    """Return all rows by subject: if one part fails, the others are measured."""
    torch, cupy = _peer("torch"), _peer("cupy")
    return [
        _issue(sizes, torch),
        _replay(sizes, torch),
        _bandwidth(sizes),
        _products(sizes, cupy),
        _overlap(sizes),
    ]


def _row(
    name: str, unit: str, ours: Call, peer: Call | None, count: int, sizes: Sizes, reach: float,
    peer_name: str,
) -> Result:  # fmt: skip
    scale = {"us": 1e6, "ms": 1e3}[unit]
    mine, theirs, ratio = paired(ours, peer, count, sizes.rounds)
    return Result(
        name, unit, mine * scale, peer_name if peer else "", theirs and theirs * scale, ratio,
        f"{reach:g}x", None if ratio is None else ratio <= reach,
    )  # fmt: skip


# --- issuing, replaying -----------------------------------------------------------------------


def _issue(sizes: Sizes, torch: Any) -> Iterator[Result]:
    a = flow.rand(8, 8, device="cuda")
    peer = None
    if torch is not None:
        b = torch.rand(8, 8, device="cuda")
        peer = _repeat(lambda: b + b, torch.cuda.synchronize)
    ours = _repeat(lambda: a + a, flow.cuda.synchronize)
    yield _row("a + b, 8x8, issued", "us", ours, peer, sizes.calls, sizes, 1.0, "torch eager")


def _replay(sizes: Sizes, torch: Any) -> Iterator[Result]:
    def chain(x: Any) -> Any:
        for k in range(sizes.chain):
            x = x * 1.0001 if k % 2 else x + 0.5
        return x

    graph = _Chain(chain)
    x = flow.rand(64, 64, device="cuda")
    for _ in range(3):
        graph(x)
    flow.cuda.synchronize()
    ours = _repeat(lambda: graph(x), flow.cuda.synchronize)
    peer = None if torch is None else _torch_graph(torch, chain)
    name = f"{sizes.chain} tiny kernels, replayed unfused"
    yield _row(name, "us", ours, peer, sizes.few, sizes, 1.0, "torch CUDA graph")


class _Chain(flow.nn.Graph):
    """A chain whose kernels stay separate, as in the peer's graph."""

    def __init__(self, chain: Callable[[Any], Any]) -> None:
        super().__init__()
        self.chain = chain
        self.config.disable("fusion")

    def build(self, x: Any) -> Any:
        """The chain."""
        return self.chain(x)


def _torch_graph(torch: Any, chain: Callable[[Any], Any]) -> Call:
    x = torch.rand(64, 64, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            chain(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain(x)
    return _repeat(graph.replay, torch.cuda.synchronize)


# --- bandwidth --------------------------------------------------------------------------------


def _bandwidth(sizes: Sizes) -> Iterator[Result]:
    x = flow.rand(sizes.large, device="cuda")
    y = flow.empty_like(x)
    moved = 2 * 4 * sizes.large
    copy = _rate(lambda: y.copy_(x), moved, sizes)
    yield Result("copy within the device", "GB/s", copy, reach="measured")
    rows = x.reshape(sizes.rows, -1)
    width = rows.shape[1]
    weight = flow.ones(width, device="cuda")
    fused = flow.compile(lambda t: (t * 2 + 1).sigmoid() * t)
    for _ in range(3):
        fused(x)
    cases: list[tuple[str, Callable[[], Any], float]] = [
        ("x + 1", lambda: x + 1, 0.85),
        ("exp", lambda: flow.exp(x), 0.85),
        ("fused chain of four", lambda: fused(x), 0.85),
        ("softmax of rows", lambda: flow.softmax(rows, 1), 0.7),
        (
            "layer_norm of rows",
            lambda: flow.nn.functional.layer_norm(rows, (width,), weight, weight),
            0.7,
        ),
    ]
    for name, call, least in cases:
        share = _rate(call, moved, sizes) / copy
        yield Result(
            f"{name}, share of the copy's bandwidth", "x", share, reach=f">= {least}",
            met=share >= least,
        )  # fmt: skip


def _rate(call: Callable[[], Any], moved: int, sizes: Sizes) -> float:
    """GB/s, the best of some rounds."""
    run = _repeat(call, flow.cuda.synchronize)
    run(3)
    seconds = min(seconds_per_call(run, sizes.few) for _ in range(sizes.rounds))
    return moved / seconds / 1e9


# --- products, copies beside kernels ------------------------------------------------------------


def _squared(a: Any) -> Callable[[], Any]:
    return lambda: a @ a


def _products(sizes: Sizes, cupy: Any) -> Iterator[Result]:
    for dtype in ("float32", "float16"):
        a = flow.rand(sizes.side, sizes.side, device="cuda").to(getattr(flow, dtype))
        peer = None
        if cupy is not None:
            b = cupy.random.rand(sizes.side, sizes.side).astype(dtype)
            peer = _repeat(_squared(b), cupy.cuda.runtime.deviceSynchronize)
        ours = _repeat(_squared(a), flow.cuda.synchronize)
        name = f"matmul {sizes.side}, {dtype}"
        yield _row(name, "ms", ours, peer, sizes.few, sizes, 1 / 0.97, "CuPy")


def _overlap(sizes: Sizes) -> Iterator[Result]:
    """Copies to the device beside products: together over the sum of both alone."""
    a = flow.rand(sizes.side, sizes.side, device="cuda")
    host = flow.rand(sizes.large // 4)

    def copies(count: int) -> None:
        for _ in range(count):
            host.to("cuda")
        flow.cuda.synchronize()

    def products(count: int) -> None:
        for _ in range(4 * count):
            a @ a
        flow.cuda.synchronize()

    def both(count: int) -> None:
        for _ in range(count):
            host.to("cuda")
            for _ in range(4):
                a @ a
        flow.cuda.synchronize()

    for run in (copies, products, both):
        run(2)
    alone = [min(seconds_per_call(f, sizes.few) for _ in range(3)) for f in (copies, products)]
    together = min(seconds_per_call(both, sizes.few) for _ in range(3))
    share = together / sum(alone)
    best = max(alone) / sum(alone)
    yield Result(
        "copies beside products, over one after the other", "x", share,
        reach=f"near {best:.2f}", met=share < (1 + best) / 2,
    )  # fmt: skip


def main() -> int:
    """Run and print; the exit code is 0 whatever the figures are, and 1 if a part failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.cuda", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--json", action="store_true", help="JSON lines")
    options = parser.parse_args()
    if not options.json:
        print("| what | ours | peer | ratio | reach | met |\n|---|---|---|---|---|---|")
    failed = 0
    for part in parts(Sizes(options.smoke)):
        try:
            for row in part:
                print(json.dumps(row.as_dict()) if options.json else _line(row), flush=True)
        except Exception:
            failed = 1
            traceback.print_exc()
    return failed


def _line(row: Result) -> str:
    """A row of a Markdown table."""
    peer = "" if row.peer is None else f"{row.peer:.4g} {row.unit} ({row.peer_name})"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    met = "" if row.met is None else "yes" if row.met else "no"
    return f"| {row.name} | {row.ours:.4g} {row.unit} | {peer} | {ratio} | {row.reach} | {met} |"


if __name__ == "__main__":
    raise SystemExit(main())
