"""A model's parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from flowvm import ops
from flowvm.autograd import no_grad
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentTypeError, ShapeError
from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())


# public: nn.utils
def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """The parameters, flattened, one after the other.

    >>> nn.utils.parameters_to_vector(nn.Linear(2, 3).parameters()).shape
    flow.Size([9])
    """
    return ops.cat([param.reshape(-1) for param in parameters])


# public: nn.utils
def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Copy slices of `vec` into the parameters, in order; the inverse of parameters_to_vector.

    >>> layer = nn.Linear(1, 1)
    >>> nn.utils.vector_to_parameters(flow.tensor([2.0, 3.0]), layer.parameters())
    >>> layer.weight.item(), layer.bias.item()
    (2.0, 3.0)
    """
    params = list(parameters)
    total = sum(param.numel() for param in params)
    if not isinstance(vec, Tensor):
        raise ArgumentTypeError(f"expected a Tensor, got {type(vec).__name__}")
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


__all__ = own_names(globals())
