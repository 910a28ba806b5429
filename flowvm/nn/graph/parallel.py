"""`graph.config.enable_auto_parallel()`: how parameters and inputs are held, found by a cost model.

Before the first call `build` is captured with parameters held in one way and another, and each
capture is priced: kernels by their operations and bytes, exchanges by messages and bytes, at rates
that were measured on these ranks.  Nothing is computed: captured nodes say what a rank would do.
The search goes down one *group* at a time: parameters whose names differ in numbers alone (the
layers of a stack), placed and held alike, and inputs that are.  Where two have to change together
(what comes out of one layer cut, what goes into the next) neither pays alone; so it also goes down
as if exchanges were cheap, which cuts all there is, and then less and less so.  Ranks add up their
prices, so all decide the same.

The first part has the prices, the last one what ZeRO and the search make of a graph's global
parameters and inputs (`Holding`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from flowvm import ops
from flowvm.graph.logical.nodes import OpNode
from flowvm.graph.passes.prices import kernel_price
from flowvm.loading.lazy import lazy
from flowvm.meta.device import cpu
from flowvm.meta.dtype import float32, float64
from flowvm.meta.meta import TensorMeta
from flowvm.meta.placements import rank_and_size
from flowvm.ops.collectives.exchanges import TRAFFIC
from flowvm.ops.declare.composite import filled_of
from flowvm.vm.engine.engine import engine

if TYPE_CHECKING:
    from flowvm.ops.placed import boxing
else:
    boxing = lazy("flowvm.ops.placed.boxing")
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowvm.autograd.backward import seeded
from flowvm.eager.global_calls import partial_grads
from flowvm.eager.tensor import Tensor, new_tensor
from flowvm.errors import CaptureError
from flowvm.graph.capture.capture import capturing
from flowvm.loading.lazy import lazy
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.placements import Sbps, broadcast, split
from flowvm.nn.graph.gradients import SetAside, micro_meta, settle
from flowvm.ops.declare.composite import empty_of

if TYPE_CHECKING:
    from flowvm.ops.placed import boxing
else:
    boxing = lazy("flowvm.ops.placed.boxing")
from typing import TYPE_CHECKING

from flowvm.eager.global_calls import spread, spread_sbp
from flowvm.graph.capture.trees import flatten, unflatten
from flowvm.nn.graph.config import GraphConfig
from flowvm.nn.graph.steps import precisely
from flowvm.nn.parameter import Parameter

if TYPE_CHECKING:
    from flowvm.amp import GradScaler
    from flowvm.optim import Optimizer


# --- prices -----------------------------------------------------------------------------------


ROUNDS = 5  # of each measurement, of which the least counts
SIDE = 256  # of the product that is measured
COPIED = 1 << 20  # elements of the sum that is measured, and of the larger all-reduce


class Rates(NamedTuple):
    """Measured rates: operations and bytes per second of kernels, bytes per second and seconds per
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
        """The seconds of computing and exchanging."""
        return self.computing + self.exchanging

    def weighed(self, part: float) -> float:
        """Return the price in seconds if only the share `part` of exchanges takes time."""
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


_measured: list[Rates] = []  # of this process, once


def measured() -> Rates:
    """The rates of these ranks, the slowest one's; measured once, by all of them together."""
    if not _measured:
        a = filled_of(TensorMeta.of((SIDE, SIDE), float32, cpu), 1)
        x, y = (filled_of(TensorMeta.of((n,), float32, cpu), 1) for n in (COPIED, 16))
        product = _least(lambda: ops.matmul(a, a))
        added = _least(lambda: x + x)
        size, short, long = rank_and_size()[1], 1e-6, 0.0
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
        engine.waits.sync()
        begun = time.perf_counter()
        function()
        engine.waits.sync()
        best = min(best, time.perf_counter() - begun)
    return best


# --- the search -------------------------------------------------------------------------------


TOUCHED = 7  # how often an optimizer's step goes over a parameter: it, its gradient, two states
WORTH = 0.01  # of the price: what saves less is left as it is
MOST = 240  # captures of a search
CHEAP = ((1.0,), (0.01, 0.1, 0.3, 1.0))  # parts of exchanges' prices, by which it goes down


@dataclass
class Held:
    """A group: its name, its tensors, how they may be held, and how they are now."""

    name: str
    members: list[Any]
    ways: list[Sbps]
    before: Sbps
    now: Sbps


@dataclass
class Found:
    """The result of the search: prices before and after, and the number of captures of `build`."""

    rates: Rates
    before: Price
    after: Price
    captures: int
    groups: list[Held]
    inputs: dict[int, Sbps]

    def lines(self) -> list[str]:
        """For `graph.explain()`."""
        changed = [g for g in self.groups if g.now != g.before]
        lines = [
            f"auto parallel: {self.after} a call predicted, {self.before} as it was; "
            f"{self.captures} ways captured",
            f"  measured: {self.rates}",
        ]
        lines += [f"  {g.name}: {_short(g.before)} -> {_short(g.now)}" for g in changed]
        same = len(self.groups) - len(changed)
        return lines + ([f"  {same} more as they were"] if same else [])


def _short(sbps: Sbps) -> str:
    return ", ".join(s.short for s in sbps)


# --- the search -----------------------------------------------------------------------------------


class Search:
    """One search, for a graph and the tensors of a call; `groups` first says what may be held how.

    build       runs the graph's build with such tensors
    parameters  by name; `stepped` of them are updated by the graph's optimizers
    """

    def __init__(
        self,
        name: str,
        build: Callable[[Any], Any],
        leaves: Sequence[Tensor],
        parameters: Mapping[str, Any],
        stepped: Sequence[Tensor],
        times: int,
        least: int,
    ) -> None:
        self.name, self.build, self.leaves = name, build, leaves
        self.parameters, self.stepped, self.times = parameters, stepped, times
        self.groups = [*_groups(parameters, least), *self._inputs()]
        self.captures = 0
        self.prices: dict[tuple[Sbps, ...], Price] = {}

    def run(self) -> Found | None:
        """The cheapest that was found; None where nothing may be held otherwise."""
        if not any(len(group.ways) > 1 for group in self.groups):
            return None
        self.rates = measured()
        before = best = self._price()
        ways = [group.before for group in self.groups]
        for parts, order in itertools.product(CHEAP, (1, -1)):
            for group in self.groups:
                group.now = group.before
            for part in parts:
                price = self._descend(part, self.groups[::order])
            if price.total < (1 - WORTH) * best.total:
                best, ways = price, [group.now for group in self.groups]
        for group, way in zip(self.groups, ways, strict=True):
            group.now = way
        inputs = {k: g.now for g in self.groups for k in g.members if isinstance(k, int)}
        return Found(self.rates, before, best, self.captures, self.groups, inputs)

    def _descend(self, part: float, groups: Sequence[Held]) -> Price:
        """Change one group after the other while that saves something."""
        best, improved = self._price(), True
        while improved:
            improved = False
            for group in groups:
                for way in group.ways:
                    if way == group.now or self.captures >= MOST:
                        continue
                    was, group.now = group.now, way
                    price = self._price()
                    if price.weighed(part) < (1 - WORTH) * best.weighed(part):
                        best, improved = price, True
                    else:
                        group.now = was
        return best

    def _inputs(self) -> Iterator[Held]:
        """The inputs that are held alike and have as many rows, together."""
        alike: dict[Any, list[int]] = {}
        for k, t in enumerate(self.leaves):
            meta = t._meta
            if isinstance(meta, GlobalMeta) and meta.ndim and not meta.has_partial:
                alike.setdefault((meta.placement, meta.sbp, meta.shape[0]), []).append(k)
        for (where, sbp, rows), members in alike.items():
            ways = [sbp]
            for axis, n in enumerate(where.shape):
                for s in (split(0), broadcast):
                    way = (*sbp[:axis], s, *sbp[axis + 1 :])
                    if n > 1 and way not in ways and rows % (self.times * where.size) == 0:
                        ways.append(way)
            names = ", ".join(map(str, members))
            yield Held(f"input{'s' * (len(members) > 1)} {names}", list(members), ways, sbp, sbp)

    # --- the price of one way -----------------------------------------------------------------

    def _price(self) -> Price:
        """Return the price of the placements that the groups have now."""
        key = tuple(group.now for group in self.groups)
        if key not in self.prices:
            self.captures += 1
            seconds = ops.tensor([self._computing_and_exchanging()], dtype=float64)
            size = rank_and_size()[1]
            if size > 1:
                use = boxing.transport[-1]()
                seconds = use.all_reduce(seconds, "sum", use.group(tuple(range(size))))
            computing, exchanging = (float(v) / size for v in seconds.numpy()[0])
            self.prices[key] = Price(computing, exchanging)
        return self.prices[key]

    def _computing_and_exchanging(self) -> tuple[float, float]:
        params = self.parameters.values()
        restored = [(p, p._meta, p.storage(), p._ref) for p in params]
        inputs = {k: g.now for g in self.groups for k in g.members if isinstance(k, int)}
        for group in self.groups:
            for p in group.members:
                if not isinstance(p, int) and p._meta.sbp != group.now:
                    meta: Any = p._meta.with_sbp(group.now)
                    p.data = boxing.global_of(empty_of(meta.local), meta)
        try:
            once, repeated = self._captured(inputs)
            updated = sum(_local(p).nbytes for p in self.stepped)
        finally:
            for p, meta, storage, ref in restored:
                p.data = _alias(ref, meta, storage)
        rates = self.rates
        computing, exchanging = TOUCHED * updated / rates.memory, 0.0
        for times, nodes in ((1, once), (self.times, repeated)):
            for node in nodes:
                if (price := exchange_price(node, rates)) is not None:
                    exchanging += times * price
                else:
                    computing += times * kernel_price(node, rates.flops, rates.memory)
        return computing, exchanging

    def _captured(self, inputs: dict[int, Sbps]) -> tuple[list[OpNode], list[OpNode]]:
        """Nodes that run once in a call, and those that run for each micro-batch."""
        with SetAside([*self.parameters.values()]), capturing(self.name) as capture:
            capture.on_step = _no_step
            leaves = []
            for k, t in enumerate(self.leaves):
                meta = micro_meta(t._meta, self.times, self.name, k)
                own = capture.placeholder(meta, f"input {k}")
                own.requires_grad_(t.requires_grad)
                leaves.append(held_as(own, inputs.get(k)))
            with seeded(1.0 / self.times), partial_grads.within(self.times > 1):
                self.build(leaves)
            repeated = [*capture.graph.nodes]
            if self.times > 1:
                settle(self.stepped)
            return capture.graph.nodes[len(repeated) :], repeated


def _no_step(optimizer: Any) -> None:
    raise CaptureError(
        "auto parallel: build steps an optimizer itself; give it to add_optimizer alone, or choose "
        "sbp yourself"
    )


def held_as(t: Tensor, sbp: Sbps | None) -> Tensor:
    """An input as the search wants it."""
    if sbp is None or t._meta.sbp == sbp:  # type: ignore[attr-defined]
        return t
    out: Tensor = t.to_global(sbp=sbp)
    return out


def _alias(ref: int, meta: TensorMeta, storage: Any) -> Tensor:
    return new_tensor(ref, meta, storage)


def _local(t: Tensor) -> TensorMeta:
    meta = t._meta
    return meta.local if isinstance(meta, GlobalMeta) else meta


def _groups(parameters: Mapping[str, Any], least: int) -> Iterator[Held]:
    """The parameters that may be held otherwise, the largest first."""
    alike: dict[Any, list[Tensor]] = {}
    for name, p in parameters.items():
        meta = p._meta
        if isinstance(meta, GlobalMeta) and meta.numel >= least and not meta.has_partial:
            key = re.sub(r"\d+", "#", name), meta.shape, meta.placement, meta.sbp
            alike.setdefault(key, []).append(p)
    for (name, shape, where, sbp), members in sorted(
        alike.items(), key=lambda item: -math.prod(item[0][1]) * len(item[1])
    ):
        each = [
            [broadcast, *(split(d) for d, size in enumerate(shape) if size >= n)]
            if n > 1
            else [held]
            for n, held in zip(where.shape, sbp, strict=True)
        ]
        ways = [way for way in itertools.product(*each) if _fits(way)]
        text = f"{name} ({len(members)} of {'x'.join(map(str, shape))})"
        yield Held(text, list(members), ways, sbp, sbp)


def _fits(way: Sbps) -> bool:
    """Return True if no dimension is split twice."""
    cut = [s.dim for s in way if s.is_split]
    return len(set(cut)) == len(cut)


# --- holding ----------------------------------------------------------------------------------


class Holding:
    """The part of a graph that says how tensors are held.

    _search_result  what the search has found, None if there was none
    """

    name: str
    config: GraphConfig
    _optimizers: list[tuple[Optimizer, Any]]
    _scaler: GradScaler | None
    _search_result: Found | None

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the graph's outputs."""
        raise NotImplementedError

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        raise NotImplementedError

    def _stepped_parameters(self) -> list[Tensor]:
        raise NotImplementedError

    def _cut(self) -> None:
        """Have the gradients of global parameters cut among ranks, or these themselves and what
        optimizers have of them by now, where ZeRO asks for that.
        """
        stage, least = self.config.zero
        for param in self._stepped_parameters() if stage else ():
            meta = param._meta
            if not isinstance(meta, GlobalMeta):
                continue
            with spread.within(least if stage > 1 else 0):
                held = spread_sbp(meta)
            param.extra()["grad_sbp"] = held
            if stage == 3:
                self._hold(param, held)

    def _hold(self, param: Tensor, sbp: Any) -> None:
        """Have a global parameter, and what optimizers have that is like it, held as `sbp` says."""
        meta: Any = param._meta
        if meta.sbp == sbp:
            return
        states = [o.state.get(param, {}) for o, _ in self._optimizers]
        alike = [v for state in states for v in state.values() if _is_like(v, meta)]
        for tensor in (param, *alike):
            tensor.data = tensor.detach().to_global(sbp=sbp)

    def _search(self, structure: Any, leaves: Sequence[Tensor]) -> None:
        """Before the first call, find how parameters and inputs are best held."""
        if self._search_result is not None:
            return
        named = {name: t for name, t in self._named_tensors() if isinstance(t, Parameter)}
        search = Search(
            self.name,
            lambda leaves: self._built(*unflatten(structure, iter(leaves))),
            leaves,
            named,
            self._stepped_parameters(),
            self.config.gradient_accumulation_steps,
            self.config.auto_parallel,
        )
        self._search_result = search.run()
        for group in self._search_result.groups if self._search_result else ():
            for member in group.members:
                if isinstance(member, Tensor):
                    self._hold(member, group.now)

    def _built(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the outputs of `build` under the graph's mixed precision."""
        return precisely(self.config.amp_dtype, self._scaler, self.build, args, kwargs)

    def _build_held(self, *args: Any, **kwargs: Any) -> object:
        """`build`, with inputs held as the search has found."""
        if self._search_result is None or not self._search_result.inputs:
            return self.build(*args, **kwargs)
        leaves: list[Tensor] = []
        structure = flatten((args, kwargs), leaves)
        targets = self._search_result.inputs
        held = [held_as(t, targets.get(k)) for k, t in enumerate(leaves)]
        args, kwargs = unflatten(structure, iter(held))
        return self.build(*args, **kwargs)


def _is_like(value: Any, meta: GlobalMeta) -> bool:
    """Return True if `value` is a global tensor with the shape and the SBP of `meta`."""
    if not isinstance(value, Tensor):
        return False
    own = value._meta
    return isinstance(own, GlobalMeta) and own.shape == meta.shape and own.sbp == meta.sbp
