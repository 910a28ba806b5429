"""How a graph's global parameters and inputs are held: what ZeRO cuts, and what the search for sbp
has found (`parallel`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flowvm.eager.global_calls import spread, spread_sbp
from flowvm.eager.tensor import Tensor
from flowvm.graph.capture.trees import flatten, unflatten
from flowvm.meta.global_meta import GlobalMeta
from flowvm.nn.graph.config import GraphConfig
from flowvm.nn.graph.parallel import Found, Search, held_as
from flowvm.nn.graph.precision import precisely
from flowvm.nn.parameter import Parameter

if TYPE_CHECKING:
    from flowvm.amp import GradScaler
    from flowvm.optim import Optimizer


class Holding:
    """The part of a graph that says how tensors are held.

    _found   what the search has found, None if there was none
    """

    name: str
    config: GraphConfig
    _optimizers: list[tuple[Optimizer, Any]]
    _scaler: GradScaler | None
    _found: Found | None

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """What the graph computes."""
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
        if self._found is not None:
            return
        named = {name: t for name, t in self._named_tensors() if isinstance(t, Parameter)}
        search = Search(
            self.name,
            lambda given: self._built(*unflatten(structure, iter(given))),
            leaves,
            named,
            self._stepped_parameters(),
            self.config.gradient_accumulation_steps,
            self.config.auto_parallel,
        )
        self._found = search.run()
        for group in self._found.groups if self._found else ():
            for member in group.members:
                if isinstance(member, Tensor):
                    self._hold(member, group.now)

    def _built(self, args: Any, kwargs: Any) -> Any:
        """What `build` gives, under the graph's mixed precision."""
        return precisely(self.config.amp_dtype, self._scaler, self.build, args, kwargs)

    def _build_held(self, *args: Any, **kwargs: Any) -> Any:
        """`build`, with inputs held as the search has found."""
        if self._found is None or not self._found.inputs:
            return self.build(*args, **kwargs)
        leaves: list[Tensor] = []
        structure = flatten((args, kwargs), leaves)
        wanted = self._found.inputs
        held = [held_as(t, wanted.get(k)) for k, t in enumerate(leaves)]
        args, kwargs = unflatten(structure, iter(held))
        return self.build(*args, **kwargs)


def _is_like(value: Any, meta: GlobalMeta) -> bool:
    """Whether it is a global tensor of the shape of `meta` that is held likewise."""
    if not isinstance(value, Tensor):
        return False
    own = value._meta
    return isinstance(own, GlobalMeta) and own.shape == meta.shape and own.sbp == meta.sbp
