"""Optimizers inside a capture: numbers that stay live, steps that become part of the graph, mixed
precision.

With mixed precision `build` runs under autocast, the loss is scaled, and the scaler takes or skips
steps.  The same functions serve a capture and the eager step that an optimizer's state is made by,
so both do what a training loop with `autocast` and `GradScaler` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from flowvm.autograd.backward import scaled
from flowvm.eager.autocast import autocasting
from flowvm.meta.dtype import DType

if TYPE_CHECKING:
    from flowvm.amp import GradScaler
    from flowvm.optim import Optimizer
from collections.abc import Collection
from typing import TYPE_CHECKING

from flowvm.eager.live import Alike, Leaf, Live
from flowvm.eager.modes import current_recorder, departing
from flowvm.errors import CaptureError
from flowvm.graph.capture.capture import Capture
from flowvm.guards.regions import Mode, Region, Switched
from flowvm.loading.lazy import lazy

if TYPE_CHECKING:
    from flowvm.amp import GradScaler
    from flowvm.optim import Optimizer
    from flowvm.optim import optimizer as optimizers
else:
    optimizers = lazy("flowvm.optim.optimizer")


# --- mixed precision --------------------------------------------------------------------------


T = TypeVar("T")


def precisely(
    amp: DType | None,
    scaler: GradScaler | None,
    build: Callable[..., T],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> T:
    """Run `build` under autocast to `amp`, if given; backward starts from the scaled loss."""
    on = scaler is not None and scaler.is_enabled()
    try:
        with (
            nullcontext() if amp is None else autocasting(amp),
            scaled(scaler._scale) if scaler is not None and on else nullcontext(),
        ):
            return build(*args, **kwargs)
    except BaseException:
        if scaler is not None:
            scaler.forget()
        raise


def step_all(optimizers: Sequence[Optimizer], scaler: GradScaler | None) -> None:
    """One step of each optimizer; with a scaler, one that it may skip, and its update."""
    if scaler is None:
        for optimizer in optimizers:
            optimizer._graph_step(optimizer.step)
        return
    try:
        for optimizer in optimizers:
            if not scaler.has_unscaled(optimizer):
                scaler.unscale_(optimizer)  # clipping is of the gradients themselves
            optimizer._graph_step(partial(scaler.step, optimizer))
        if optimizers:
            scaler.update()
    finally:
        scaler.forget()  # what a capture found, or one that failed, has no value


# --- optimizers -------------------------------------------------------------------------------


_eager = Mode(False, departing())  # whether this thread is in an eager step of a graph


def eager_step() -> Region:
    """Code runs eagerly inside, that of graphs which it calls too."""
    return _eager.to(True)


def inlining() -> bool:
    """Return True if a graph that is called now runs as a part of the caller's graph."""
    return _eager.now() or current_recorder() is not None


def fixed_options(optimizer: Optimizer, group: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a group on which a capture depends: those that are not live, and of
    live lists and tuples the number of their numbers.
    """
    return {
        name: ("numbers", len(value)) if is_several(optimizer, name, value) else value
        for name, value in group.items()
        if not (name in optimizer.live_options and _is_number(value))
    }


def is_several(optimizer: Optimizer, name: str, value: Any) -> bool:
    """Return True if an option is a tuple or list of live numbers."""
    several = name in optimizer.live_options and isinstance(value, (tuple, list))
    return several and all(map(_is_number, value))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, Live)) and not isinstance(value, bool)


_TURNS = -1  # the number of its hook: no handle has it


class Turns(Switched):
    """The optimizers that `build` steps itself; the rest are stepped behind it.

    `whole`: whether build sees its batch in one piece.  Inside, CaptureError for a step in build
    that would not be what it is in eager code: of a gradient that is scaled, or of one micro-batch.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], scaler: GradScaler | None, whole: bool, name: str
    ) -> None:
        self.optimizers, self.scaler, self.whole, self.name = optimizers, scaler, whole, name
        self._stepped: set[int] = set()
        self._build = True
        # (optimizer, its own step or None): of those whose `step` need not come by the hooks
        self._own = [(o, vars(o).get("step")) for o in optimizers if not _is_the_base(o)]

    def _switch(self) -> Turns:
        for optimizer in self.optimizers:
            optimizer._step_pre_hooks[_TURNS] = self._note
        for optimizer, _ in self._own:
            vars(optimizer)["step"] = partial(self._noted, optimizer, optimizer.step)
        return self

    def _undo(self) -> None:
        for optimizer in self.optimizers:
            optimizer._step_pre_hooks.pop(_TURNS, None)
        for optimizer, own in self._own:
            if own is None:
                vars(optimizer).pop("step", None)
            else:
                vars(optimizer)["step"] = own

    def _noted(
        self, optimizer: Optimizer, step: Callable[..., object], *args: object, **kwargs: object
    ) -> object:
        self._note(optimizer, args, kwargs)
        return step(*args, **kwargs)

    def _note(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        if not self._build:
            return
        why = ("" if self.whole else "accumulates gradients over the parts of a batch") or (
            "" if self.scaler is None else "has a grad scaler"
        )
        if why:
            raise CaptureError(
                f"{self.name}: {type(optimizer).__name__}.step() in the build of a graph that "
                f"{why}: leave the step out, the graph takes it after build"
            )
        self._stepped.add(id(optimizer))

    def take(self, adopted: Collection[int]) -> None:
        """One step of each that build did not step; none of `adopted`, which only build steps."""
        self._build = False
        step_all([o for o in self.optimizers if self.behind(o, adopted)], self.scaler)

    def behind(self, optimizer: Optimizer, adopted: Collection[int]) -> bool:
        """Return True if an optimizer is stepped behind build."""
        return id(optimizer) not in self._stepped and id(optimizer) not in adopted


def _is_the_base(optimizer: Optimizer) -> bool:
    """Return True if `optimizer.step()` is `Optimizer.step`, which runs the hooks."""
    return getattr(optimizer.step, "__func__", None) is optimizers.Optimizer.step


class Steps(Switched):
    """Optimizers inside a capture: their numbers are live, and their steps are captured.

    Numbers in an optimizer's state (step counts) become live cells; what the step makes of them is
    computed again for each replay, from the numbers of the moment: `updates`.
    """

    def __init__(self, optimizers: list[tuple[Optimizer, Any]], capture: Capture) -> None:
        self.optimizers, self.capture = list(optimizers), capture  # more may be met meanwhile
        self.updates: list[tuple[dict[Any, Any], Any, Live]] = []
        self._saved: list[tuple[dict[Any, Any], Any, Any]] = []
        self._several: dict[Any, tuple[Leaf, ...]] = {}  # of (group, option): live numbers there
        self._known: list[set[Any]] = []
        self.made_state = False

    def _switch(self) -> Steps:
        for number, (optimizer, _) in enumerate(self.optimizers):
            self._known.append({(p, name) for p, e in optimizer.state.items() for name in e})
            for place, group in enumerate(optimizer.param_groups):
                for name, value in group.items():
                    text = name if len(optimizer.param_groups) == 1 else f"{name}[{place}]"
                    key = ("option", number, place, name)
                    if is_several(optimizer, name, value):
                        self._make_several_live(group, name, key, text)
                    elif name in optimizer.live_options and _is_number(value):
                        self._make_live(group, name, key, text)
            self._make_state_live(number, optimizer)
        return self

    def _make_state_live(self, number: int, optimizer: Optimizer) -> None:
        """Numbers that are equal now (step counts) become one, as long as they stay equal."""
        params = {p: k for k, p in enumerate(optimizer._all_params())}
        first: dict[Any, Leaf] = {}
        for param, entry in optimizer.state.items():
            for name, value in entry.items():
                if not isinstance(value, (int, float)) or isinstance(value, bool):
                    continue
                known = first.get((name, type(value), value))
                if known is None:
                    key = ("state", number, params.get(param, -1), name)
                    text = f"{name}[{key[2]}]" if any(n == name for n, *_ in first) else name
                    leaf = self._make_live(entry, name, key, text)
                    first[name, type(value), value] = leaf
                else:
                    if not known.others:
                        self.capture.guards.append(Alike(known))
                    known.others.append(entry)
                    self._saved.append((entry, name, value))
                    entry[name] = known

    def _make_several_live(
        self, group: dict[str, Any], name: str, key: tuple[Any, ...], text: str
    ) -> None:
        value, guards = group[name], self.capture.guards
        leaves = tuple(
            Leaf(group, (name, k), guards, (*key, k), f"{text}[{k}]") for k in range(len(value))
        )
        self._saved.append((group, name, value))
        group[name] = self._several[id(group), name] = leaves

    def _make_live(self, owner: dict[Any, Any], name: str, key: tuple[Any, ...], text: str) -> Leaf:
        value = owner[name]
        self._saved.append((owner, name, value))
        leaf = owner[name] = Leaf(owner, (name,), self.capture.guards, key, text)
        return leaf

    def _undo(self) -> None:
        for owner, name, value in self._saved:
            owner[name] = value
        for (optimizer, _), known in zip(self.optimizers, self._known, strict=False):
            for param, entry in list(optimizer.state.items()):
                for name in [n for n in entry if (param, n) not in known]:
                    self.made_state = True
                    del entry[name]
                if not entry:
                    del optimizer.state[param]

    def _on_exit(self, *error: object) -> None:
        cells = [(owner, name, owner[name]) for owner, name, _ in self._saved]
        for owner, name, cell in cells:
            if isinstance(cell, Live) and not isinstance(cell, Leaf):
                self.updates.append((owner, name, cell))
        if error == (None, None, None):
            self._check_several(cells)

    def _check_several(
        self, cells: Sequence[tuple[Mapping[object, object], object, object]]
    ) -> None:
        for owner, name, cell in cells:
            if self._several.get((id(owner), name), cell) is not cell:
                raise CaptureError(
                    f"an optimizer's step changes the option {name!r}, a tuple of numbers, and a "
                    f"replay does not repeat that: let a schedule change it, or leave it out of "
                    f"live_options"
                )
