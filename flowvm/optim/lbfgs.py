"""LBFGS: steps along minus the gradient times an inverse Hessian made of past steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowvm import ops
from flowvm.autograd import enable_grad
from flowvm.eager.modes import recording
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, InvalidValueError
from flowvm.optim._line_search import Point, strong_wolfe
from flowvm.optim.optimizer import Group, Optimizer, Params, at_least, number, zeros_of


# public: optim
class LBFGS(Optimizer):
    """Limited-memory BFGS over all parameters as one vector; one group alone.

    Each `step(closure)` takes up to max_iter steps, for which closure, which clears the gradients,
    calls backward and returns the loss, is called up to max_eval times (5/4 of max_iter). It ends
    where no gradient is larger than tolerance_grad, or where loss and parameters change by less
    than tolerance_change. history_size steps are remembered. line_search_fn "strong_wolfe" looks
    for each step's length from lr on; None steps by lr.

    It reads losses and products of vectors while it goes, so each step waits for them, and it
    cannot be a graph's.

    Liu and Nocedal, "On the limited memory BFGS method for large scale optimization", 1989.

    >>> x = nn.Parameter(flow.tensor([4.0, -3.0]))
    >>> opt = flow.optim.LBFGS([x], line_search_fn="strong_wolfe")
    >>> def closure():
    ...     opt.zero_grad()
    ...     loss = ((x - 1) ** 2).sum()
    ...     loss.backward()
    ...     return loss
    >>> opt.step(closure).item()  # the loss before
    25.0
    >>> x
    Parameter containing:
    tensor([1.0000, 1.0000], requires_grad=True)
    """

    not_in_graphs = (
        "it decides by losses how often it calls its closure; make a graph of forward and "
        "backward, and step outside of it"
    )

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history_size": history_size,
            "line_search_fn": line_search_fn,
        }
        super().__init__(params, defaults)

    def _check(self, group: Group) -> None:
        at_least("lr", group["lr"])
        if self.param_groups:
            raise ArgumentError("LBFGS doesn't support per-parameter options (parameter groups)")

    def step(self, closure: Callable[[], object] | None = None) -> Any:
        """Several steps; returns what closure returned at first."""
        if closure is None:
            raise ArgumentTypeError(
                "LBFGS.step() needs a closure that clears the gradients, calls backward and "
                "returns the loss"
            )
        with recording(False):
            return self._steps(closure, self.param_groups[0])

    def _steps(self, closure: Callable[[], Any], group: Group) -> Any:
        search = group["line_search_fn"]
        if search not in (None, "strong_wolfe"):
            raise InvalidValueError(f"only 'strong_wolfe' is supported, got {search!r}")
        lr, most, small = number(group["lr"]), group["max_iter"], group["tolerance_change"]
        state = self.state[group["params"][0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)

        with enable_grad():
            first = closure()
        loss, evaluated = float(first), 1
        state["func_evals"] += 1
        gradient = self._gradient()
        if _largest(gradient) <= group["tolerance_grad"]:
            return first
        count = 0
        while count < most:
            count += 1
            state["n_iter"] += 1
            direction = state["d"] = self._direction(gradient, group["history_size"], state)
            state["prev_flat_grad"], before = gradient.clone(), loss
            state["prev_loss"] = before
            t = lr
            if state["n_iter"] == 1:
                t = min(1.0, 1.0 / float(gradient.abs().sum())) * lr
            state["t"] = t
            slope = float(gradient.dot(direction))
            if slope > -small:
                break
            calls = 0
            if search is not None:
                start, values = Point(0.0, loss, gradient, slope), self._values()
                point, calls = strong_wolfe(
                    lambda t, d=direction, x=values: self._evaluate(closure, t, d, x),  # type: ignore[misc]
                    start, t, _largest(direction), group["max_eval"] - evaluated,
                )  # fmt: skip
                t, loss, gradient = point.t, point.value, point.gradient
                state["t"] = t
                self._move(t, direction)
            else:
                self._move(t, direction)
                if count != most:  # in the last one nobody asks for the value behind it
                    with enable_grad():
                        loss = float(closure())
                    gradient, calls = self._gradient(), 1
            evaluated += calls
            state["func_evals"] += calls
            if (
                count == most
                or evaluated >= group["max_eval"]
                or _largest(gradient) <= group["tolerance_grad"]
                or _largest(direction * t) <= small
                or abs(loss - before) < small
            ):
                break
        return first

    def _direction(self, gradient: Tensor, most: int, state: dict[str, Any]) -> Tensor:
        """Minus the gradient times the inverse Hessian, by the two loops over past steps."""
        if state["n_iter"] == 1:
            state["old_dirs"], state["old_stps"], state["ro"] = [], [], []
            state["H_diag"] = 1.0
            return -gradient
        changes, steps, inverse = state["old_dirs"], state["old_stps"], state["ro"]
        change = gradient - state["prev_flat_grad"]
        step = state["d"] * state["t"]
        product = float(change.dot(step))
        if product > 1e-10:
            if len(changes) == most:
                for history in (changes, steps, inverse):
                    history.pop(0)
            changes.append(change)
            steps.append(step)
            inverse.append(1.0 / product)
            state["H_diag"] = product / float(change.dot(change))
        direction = -gradient
        shares = [0.0] * len(changes)
        for i in range(len(changes) - 1, -1, -1):
            shares[i] = float(steps[i].dot(direction)) * float(inverse[i])
            direction = direction - changes[i] * shares[i]
        direction = direction * float(state["H_diag"])
        for i in range(len(changes)):
            share = float(changes[i].dot(direction)) * float(inverse[i])
            direction = direction + steps[i] * (shares[i] - share)
        return direction

    def _evaluate(
        self, closure: Callable[[], Any], t: float, direction: Tensor, start: list[Tensor]
    ) -> Point:
        self._move(t, direction)
        with enable_grad():
            value = float(closure())
        gradient = self._gradient()
        for param, own in zip(self._all_params(), start, strict=True):
            param.copy_(own)
        return Point(t, value, gradient, float(gradient.dot(direction)))

    def _gradient(self) -> Tensor:
        """All gradients as one vector, zeros where there is none; a copy."""
        grads = [zeros_of(p) if p.grad is None else p.grad.to_dense() for p in self._all_params()]
        return ops.cat([_real(g).reshape(-1) for g in grads])

    def _values(self) -> list[Tensor]:
        return [param.detach().clone() for param in self._all_params()]

    def _move(self, t: float, direction: Tensor) -> None:
        at = 0
        for param in map(_real, self._all_params()):
            size = param.numel()
            param.add_(direction[at : at + size].reshape(tuple(param.shape)) * t)
            at += size


def _real(t: Tensor) -> Tensor:
    """Complex numbers as pairs of real ones, a view."""
    return t.view_as_real() if t.dtype.is_complex else t


def _largest(vector: Tensor) -> float:
    return float(vector.abs().max())
