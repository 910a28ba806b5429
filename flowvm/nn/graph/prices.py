"""What a captured node takes: a kernel by its operations and bytes, an exchange by messages and
bytes, at rates that are measured on these ranks, once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from flowvm import ops
from flowvm.graph.logical.nodes import OpNode
from flowvm.loading.lazy import lazy
from flowvm.meta.device import cpu
from flowvm.meta.dtype import float32, float64
from flowvm.meta.meta import TensorMeta
from flowvm.meta.placements import here
from flowvm.ops.collectives.exchanges import TRAFFIC
from flowvm.ops.declare.composite import filled_of
from flowvm.vm.engine.engine import engine
from flowvm.vm.watch.work import flops_of

if TYPE_CHECKING:
    from flowvm.ops.placed import boxing
else:
    boxing = lazy("flowvm.ops.placed.boxing")

ROUNDS = 5  # of each measurement, of which the least counts
SIDE = 256  # of the product that is measured
COPIED = 1 << 20  # elements of the sum that is measured, and of the larger all-reduce
TASK = 2e-7  # seconds that a task takes without its kernel


class Rates(NamedTuple):
    """What was measured: operations and bytes a second of kernels, bytes a second and seconds a
    message of exchanges.
    """

    flops: float
    memory: float
    bandwidth: float
    latency: float

    def __str__(self) -> str:
        return (
            f"{self.flops / 1e9:.3g} GFLOP/s, {self.memory / 1e9:.3g} GB/s; exchanges "
            f"{self.latency * 1e6:.3g} us and {self.bandwidth / 1e9:.3g} GB/s"
        )


class Price(NamedTuple):
    """Seconds of a call, the mean over ranks; exchanges are not taken to be hidden."""

    computing: float
    exchanging: float

    @property
    def total(self) -> float:
        """Both."""
        return self.computing + self.exchanging

    def weighed(self, part: float) -> float:
        """The same if exchanges took a part of their time."""
        return self.computing + part * self.exchanging

    def __str__(self) -> str:
        return (
            f"{self.total * 1e3:.3g} ms ({self.computing * 1e3:.3g} computing, "
            f"{self.exchanging * 1e3:.3g} exchanging)"
        )


def exchange_price(node: OpNode, rates: Rates) -> float | None:
    """Seconds of an exchange of which this rank is a part; None for any other node."""
    traffic = TRAFFIC.of(node.operator)
    if traffic is None:
        return None
    metas = [o.meta for o in (*node.outputs, *node.inputs[:-1])]
    share = traffic.share(max(2, len(node.attrs[-1])))
    whole = max((meta.nbytes for meta in metas), default=0)
    return traffic.messages * rates.latency + share * whole / rates.bandwidth


def kernel_price(node: OpNode, rates: Rates) -> float:
    """Seconds of a kernel: the longer of its operations and its traffic."""
    metas = [o.meta for o in (*node.outputs, *node.inputs)]
    traffic = sum(meta.nbytes for meta in metas) / rates.memory
    return TASK + max(flops_of(node.operator.name, metas) / rates.flops, traffic)


_measured: list[Rates] = []  # of this process, once


def measured() -> Rates:
    """The rates of these ranks, the slowest one's; measured once, by all of them together."""
    if not _measured:
        a = filled_of(TensorMeta.of((SIDE, SIDE), float32, cpu), 1)
        x, y = (filled_of(TensorMeta.of((n,), float32, cpu), 1) for n in (COPIED, 16))
        product = _least(lambda: ops.matmul(a, a))
        added = _least(lambda: x + x)
        size, short, long = here()[1], 1e-6, 0.0
        if size > 1:
            use = boxing.transport[-1]()
            group = use.group(tuple(range(size)))
            short = _least(lambda: use.all_reduce(y, "sum", group)) / 2
            long = _least(lambda: use.all_reduce(x, "sum", group))
        mine = [product, added, short, max(long - 2 * short, 1e-9)]
        agreed = ops.tensor([mine], dtype=float64)
        if size > 1:
            agreed = use.all_reduce(agreed, "sum", group)
        product, added, short, long = (float(v) / size for v in agreed.numpy()[0])
        share = 2 * (size - 1) / size
        bandwidth = share * 4 * COPIED / long if size > 1 else 1e10
        _measured.append(Rates(2 * SIDE**3 / product, 12 * COPIED / added, bandwidth, short))
    return _measured[0]


def _least(function: Callable[[], Any]) -> float:
    best = math.inf
    for _ in range(ROUNDS):
        engine.sync()
        begun = time.perf_counter()
        function()
        engine.sync()
        best = min(best, time.perf_counter() - begun)
    return best
