"""Helpers over many parameters at once: gradient clipping, and a model as one vector."""

from __future__ import annotations

import math
from collections.abc import Iterable

from flowvm import ops
from flowvm.autograd import no_grad
from flowvm.eager.tensor import Tensor
from flowvm.errors import InvalidValueError, ShapeError

__all__ = ["clip_grad_norm_", "clip_grad_value_", "parameters_to_vector", "vector_to_parameters"]


def _grads(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    params = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [param.grad for param in params if param.grad is not None]


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale the gradients so that their norm, taken over all of them as one vector, is at most
    max_norm.

    Returns the norm before clipping, as a 0-d tensor. Nothing waits for it: the scale is applied on
    the device, unless error_if_nonfinite asks to look.
    """
    grads = _grads(parameters)
    if not grads:
        return ops.tensor(0.0)
    with no_grad():
        total = _total_norm(grads, float(norm_type))
        if error_if_nonfinite and not math.isfinite(total.item()):
            raise InvalidValueError(
                f"the total norm of order {norm_type} for gradients is {total.item()}, so it "
                "cannot be clipped; error_if_nonfinite=False scales the gradients all the same"
            )
        scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
        for grad in grads:
            grad.mul_(scale.to(grad.dtype))
    return total


def _total_norm(grads: list[Tensor], order: float) -> Tensor:
    total: Tensor
    if order == math.inf:
        total = ops.amax(ops.stack([ops.amax(ops.abs(grad)) for grad in grads]))
    elif order == 2.0:
        total = ops.sqrt(ops.sum(ops.stack([ops.sum(grad * grad) for grad in grads])))
    else:
        powers = ops.stack([ops.sum(ops.abs(grad) ** order) for grad in grads])
        total = ops.sum(powers) ** (1.0 / order)
    return total


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Clamp every gradient element to [-clip_value, clip_value]."""
    bound = float(clip_value)
    with no_grad():
        for grad in _grads(parameters):
            grad.clamp_(-bound, bound)


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """The parameters, flattened, one after the other."""
    return ops.cat([param.reshape(-1) for param in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Copy slices of `vec` into the parameters, in order; the inverse of parameters_to_vector."""
    params = list(parameters)
    total = sum(param.numel() for param in params)
    if vec.ndim != 1 or vec.shape[0] != total:
        raise ShapeError(
            f"the vector has shape {tuple(vec.shape)}, the parameters hold {total} elements"
        )
    start = 0
    with no_grad():
        for param in params:
            end = start + param.numel()
            param.copy_(vec[start:end].reshape(param.shape))
            start = end
