"""GradScaler: the loss is scaled up, so that small gradients survive float16, and steps whose
gradients overflowed are skipped.

Scale and growth count are tensors that instructions read and write.  The only wait is for the
decision whether to step.  In a graph (`graph.set_grad_scaler`) that decision ends a segment.

A dynamic scale halves when an infinity was found and doubles after 2,000 steps without one
(Micikevicius et al., Mixed Precision Training, 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flowvm import ops
from flowvm.autograd import no_grad
from flowvm.eager.modes import current_recorder
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, AutogradError
from flowvm.meta.device import Device, as_device, cpu
from flowvm.meta.dtype import float32, int32
from flowvm.meta.formats import sparse_coo
from flowvm.ops.updates.loss_scaling import unscale_, update_scale_
from flowvm.vm.engine.persistent import HOLDERS, Holder

if TYPE_CHECKING:
    from flowvm.optim import Optimizer


# public: amp
class GradScaler:
    """Scale losses by a factor that adapts itself; PyTorch's methods and state.

    device           where the scale is kept; it moves to where the first scaled loss is
    init_scale       the first factor
    growth_factor    what it grows by after `growth_interval` steps without an infinity
    backoff_factor   what it shrinks by after a step with one
    enabled          False: every method does as if there were no scaler

    >>> w = nn.Parameter(flow.tensor([1.0, 2.0]))
    >>> opt, scaler = flow.optim.SGD([w], lr=0.5), flow.amp.GradScaler(init_scale=1024.0)
    >>> scaler.scale(w.sum()).backward()
    >>> w.grad
    tensor([1024., 1024.])
    >>> scaler.step(opt)
    >>> scaler.update()
    >>> w
    Parameter containing:
    tensor([0.5000, 1.5000], requires_grad=True)
    """

    def __init__(
        self,
        device: str = "cpu",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if not isinstance(device, str):
            raise ArgumentTypeError(
                f"GradScaler: device is a string such as 'cpu', got {device!r}; give init_scale by "
                f"name"
            )
        if enabled and not growth_factor > 1.0:
            raise ArgumentError(f"GradScaler: growth_factor must be above 1, got {growth_factor}")
        if enabled and not 0.0 < backoff_factor < 1.0:
            raise ArgumentError(f"GradScaler: backoff_factor must be in (0, 1): {backoff_factor}")
        place = as_device(device) if enabled else cpu
        self._set(init_scale, growth_factor, backoff_factor, growth_interval, enabled, place)

    def _set(
        self,
        scale: float,
        growth: float,
        backoff: float,
        interval: int,
        enabled: bool,
        device: Device = cpu,
    ) -> None:
        if enabled and not 0.0 < scale < float("inf"):
            raise ArgumentError(f"{type(self).__name__}: a scale is positive, got {scale}")
        if enabled and interval < 1:
            raise ArgumentError(f"GradScaler: growth_interval must be at least 1, got {interval}")
        self._enabled = enabled
        self._growth_factor, self._backoff_factor = growth, backoff
        self._growth_interval = interval
        self._scale = ops.tensor(float(scale), dtype=float32, device=device)
        self._tracker = ops.tensor(0, dtype=int32, device=device)
        # of each optimizer since the last update: whether an infinity was found, and if it stepped
        self._found: dict[int, Tensor] = {}
        self._stepped: set[int] = set()

    def is_enabled(self) -> bool:
        """Return True if the scaler is enabled."""
        return self._enabled

    # --- a step -------------------------------------------------------------------------------

    def scale(self, outputs: object) -> Any:
        """A tensor, or tensors in lists and tuples, times the scale.

        ArgumentTypeError for anything else.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            self.follow(outputs._meta.device)
            return outputs * self._scale
        if isinstance(outputs, (list, tuple)):
            return type(outputs)([self.scale(value) for value in outputs])
        raise ArgumentTypeError(
            f"scale() takes a Tensor or tensors in a list or tuple, got {type(outputs).__name__}"
        )

    def follow(self, device: Device) -> None:
        """Move the scale to `device`, except in a capture, which holds the present tensors."""
        if self._scale._meta.device is not device and current_recorder() is None:
            with no_grad():
                self._scale = self._scale.to(device=device)
                self._tracker = self._tracker.to(device=device)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of the optimizer's parameters by the scale, in place.

        `step` does it if this was not called; call it before clipping.  AutogradError the second
        time between two updates, and where there is no gradient.
        """
        if not self._enabled:
            return
        key = id(optimizer)
        if key in self._stepped:
            raise AutogradError("unscale_() is being called after step()")
        if key in self._found:
            raise AutogradError(
                "unscale_() has already been called on this optimizer since the last update()"
            )
        with no_grad():
            params = [p for group in optimizer.param_groups for p in group["params"]]
            grads = [p.grad for p in params if p.grad is not None]
            overflows = [self._unscaled(g) for g in grads]
            if not overflows:
                raise AutogradError(
                    f"unscale_(): no parameter of the {type(optimizer).__name__} has a gradient"
                )
            self._found[key] = ops.amax(ops.cat(overflows)).to(float32)

    def has_unscaled(self, optimizer: Optimizer) -> bool:
        """Return True if `unscale_` was called on this optimizer since the last update.

        >>> flow.amp.GradScaler().has_unscaled(flow.optim.SGD([nn.Parameter(flow.ones(1))]))
        False
        """
        return id(optimizer) in self._found

    def _unscaled(self, grad: Tensor) -> Tensor:
        """Unscale a gradient.  Return a tensor, on the scale's device, that says if blocks of it
        were not finite.
        """
        if grad.layout is sparse_coo:
            grad = grad._values()
        overflow = unscale_(grad, self._scale.to(device=grad._meta.device))
        flag: Tensor = overflow.to(device=self._scale._meta.device)
        return flag

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Step the optimizer, unless an unscaled gradient has an infinity or a NaN.  Return the
        result of its `step(*args, **kwargs)`, None for a skipped step.

        AutogradError for a closure, and the second time between two updates.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if args or "closure" in kwargs:
            raise AutogradError("a closure cannot be given to GradScaler.step()")
        key = id(optimizer)
        if key in self._stepped:
            raise AutogradError("step() has already been called since the last update()")
        if key not in self._found:
            self.unscale_(optimizer)
        self._stepped.add(key)
        overflow_flag = self._found[key]
        recorder = current_recorder()
        overflow = overflow_flag.item() if recorder is None else recorder.decide(overflow_flag)
        return None if overflow else optimizer.step(**kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Adapt the scale to the infinities since the last update, or set it to `new_scale`.

        AutogradError if no optimizer was stepped or unscaled.
        """
        if not self._enabled:
            return
        overflows = list(self._found.values())
        self.forget()
        with no_grad():
            if new_scale is not None:
                scale = new_scale if isinstance(new_scale, Tensor) else ops.tensor(float(new_scale))
                self._scale.copy_(scale.reshape(()))
                return
            if not overflows:
                raise AutogradError("update() needs a step() or unscale_() since the last update()")
            total = overflows[0]
            for other in overflows[1:]:
                total = total + other
            self._adapt(total)

    def _adapt(self, overflow: Tensor) -> None:
        numbers = (self._growth_factor, self._backoff_factor, self._growth_interval)
        update_scale_(self._scale, self._tracker, overflow, *numbers)

    def forget(self) -> None:
        """Forget the infinities and steps since the last update."""
        self._found = {}
        self._stepped = set()

    # --- settings and state -------------------------------------------------------------------

    def get_scale(self) -> float:
        """The scale.  Waits for it; 1.0 if disabled."""
        return float(self._scale.item()) if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """Return the factor by which the scale grows."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale grows."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """Return the factor by which the scale shrinks."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale shrinks."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """Return the number of steps without an infinity after which the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the number of steps without an infinity after which the scale grows."""
        self._growth_interval = new_interval

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's: the scale, the factors, and how many steps were without an infinity; {} if
        disabled.
        """
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": int(self._tracker.item()),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a `state_dict()`.  ArgumentError for an empty one, which a disabled scaler gives."""
        if not self._enabled:
            return
        if not state_dict:
            raise ArgumentError("the state dict is empty: it was saved from a disabled GradScaler")
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        with no_grad():  # in place: a graph may have captured these
            self._scale.fill_(float(state_dict["scale"]))
            self._tracker.fill_(int(state_dict["_growth_tracker"]))

    def key(self) -> tuple[Any, ...]:
        """Return the values that a graph's capture treats as constants."""
        factors = (self._growth_factor, self._backoff_factor, self._growth_interval)
        return (self._enabled, *factors)

    def __repr__(self) -> str:
        numbers = f"growth_factor={self._growth_factor}, backoff_factor={self._backoff_factor}"
        return f"{type(self).__name__}({numbers}, growth_interval={self._growth_interval})"


# public: amp
class StaticGradScaler(GradScaler):
    """A scale that never changes (OneFlow's); steps with an infinity are skipped, too.

    >>> w = nn.Parameter(flow.tensor([1.0, 2.0]))
    >>> flow.amp.StaticGradScaler(8.0).scale(w.sum()).backward()
    >>> w.grad
    tensor([8., 8.])
    """

    def __init__(self, scale_factor: float, enabled: bool = True) -> None:
        self._set(scale_factor, 1.0, 1.0, 1, enabled)

    def _adapt(self, overflow: Tensor) -> None:
        pass

    def __repr__(self) -> str:
        return f"StaticGradScaler({self.get_scale()})"


def _scales(scaler: GradScaler) -> Iterator[tuple[int, bool]]:
    for name in ("_scale", "_tracker"):
        tensor = scaler.__dict__.get(name)
        if tensor is not None:
            yield tensor._ref, False


def _start_over(scaler: GradScaler, lost: Callable[[int], bool]) -> None:
    """Forget the infinities since the last update, if a part of them was never computed."""
    if any(lost(overflow._ref) for overflow in scaler.__dict__.get("_found", {}).values()):
        scaler.forget()


def _names(scalers: list[GradScaler]) -> Iterator[tuple[int, str]]:
    for scaler in scalers:
        for operand, _ in _scales(scaler):
            yield operand, f"scale of {type(scaler).__name__}"


HOLDERS.append(Holder(GradScaler, _scales, _start_over, _names))
