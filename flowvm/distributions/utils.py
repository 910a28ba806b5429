"""Helpers of distributions: broadcast arguments, probabilities and their logarithms."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from flowvm import ops
from flowvm.autograd import enable_grad, no_grad
from flowvm.compiler import is_compiling
from flowvm.eager.batched import all_examples
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.meta.dtype import finfo, get_default_dtype
from flowvm.meta.meta import Size

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike
    from flowvm.meta.dtype import DTypeLike


Value = Any  # a tensor, or what becomes one

EULER: Final = 0.57721566490153286060  # the Euler-Mascheroni constant
LOG_2PI: Final = math.log(2 * math.pi)


euler_constant = EULER  # PyTorch's name


def holds(condition: Callable[..., object], *values: object) -> bool:
    """Return True if a condition of tensors holds everywhere; inside a map, of all examples.

    So does one that cannot be asked: while a graph is captured, and on the meta device.
    """
    if is_compiling() or any(v.is_meta for v in values if isinstance(v, Tensor)):
        return True
    with no_grad():
        return bool(all_examples(condition(*values)).all())


class lazy_property:  # noqa: N801 - PyTorch's name
    """Decorates a method of one instance: what it gives is kept as the instance's attribute.

    >>> from flowvm.distributions.utils import lazy_property
    >>> class Square:
    ...     @lazy_property
    ...     def area(self):
    ...         return [4]
    >>> square = Square()
    >>> square.area is square.area
    True
    """

    def __init__(self, wrapped: Callable[[Any], Any]) -> None:
        self.wrapped = wrapped
        functools.update_wrapper(self, wrapped)  # type: ignore[arg-type]

    def __get__(self, instance: object, owner: object = None) -> Any:
        if instance is None:
            return self
        with enable_grad():
            value = self.wrapped(instance)
        setattr(instance, self.wrapped.__name__, value)
        return value


def _standard_normal(shape: Sequence[int], dtype: DTypeLike, device: DeviceLike) -> Tensor:
    return ops.randn(shape, dtype=dtype, device=device)


def tril_matrix_to_vec(mat: Value, diag: int = 0) -> Value:
    """The lower triangles of matrices (*, n, n) row by row, up to diagonal `diag`, as vectors.

    ArgumentError for a diagonal there is not.

    >>> from flowvm.distributions.utils import tril_matrix_to_vec, vec_to_tril_matrix
    >>> tril_matrix_to_vec(flow.tensor([[1, 2], [3, 4]]))
    tensor([1, 3, 4])
    >>> vec_to_tril_matrix(flow.tensor([1, 3, 4]))
    tensor([[1, 0],
            [3, 4]])
    """
    n = mat.shape[-1]
    if not -n <= diag < n:
        raise ArgumentError(f"tril_matrix_to_vec: diag is from {-n} to {n - 1}, got {diag}")
    rows, columns = ops.tril_indices(n, n, diag)
    return mat[..., rows, columns]


def vec_to_tril_matrix(vec: Value, diag: int = 0) -> Value:
    """The matrices (*, n, n) of which `tril_matrix_to_vec` gives these vectors, with zeros above.

    ArgumentError where no matrix has a triangle of that size.
    """
    count, n = vec.shape[-1], max(1, diag + 1, -diag)
    while sum(min(n, max(0, row + 1 + diag)) for row in range(n)) < count:
        n += 1
    rows, columns = ops.tril_indices(n, n, diag)
    if len(rows) != count:
        raise ArgumentError(f"vec_to_tril_matrix: no triangle has {count} elements")
    mat = ops.zeros((*vec.shape[:-1], n, n), dtype=vec.dtype, device=vec.device)
    mat[..., rows, columns] = vec
    return mat


def is_number(value: object) -> bool:
    """Return True if `value` is a plain number."""
    return isinstance(value, (int, float)) and not isinstance(value, Tensor)


def broadcast_all(*values: Any) -> tuple[Any, ...]:
    """Tensors of one shape: numbers become tensors of the dtype and device of the first tensor, or
    of the default dtype.
    """
    for value in values:
        if not isinstance(value, Tensor) and not is_number(value):
            raise ArgumentTypeError(
                f"Input arguments must all be numbers or tensors, got {type(value).__name__}"
            )
    first = next((v for v in values if isinstance(v, Tensor)), None)
    options: dict[str, Any] = {"dtype": get_default_dtype()}
    if first is not None:
        options = {"dtype": first.dtype, "device": first.device}
        if not first.dtype.is_floating_point:
            options["dtype"] = get_default_dtype()
    tensors = [v if isinstance(v, Tensor) else ops.tensor(float(v), **options) for v in values]
    return tuple(ops.broadcast_tensors(*tensors))


def clamp_probs(probs: Value) -> Value:
    """Probabilities away from 0 and 1 by the machine epsilon, so that logarithms are finite."""
    eps = finfo(probs.dtype).eps
    return ops.clamp(probs, min=eps, max=1 - eps)


def logits_to_probs(logits: Value, is_binary: bool = False) -> Value:
    """Sigmoid, or softmax of the last dimension."""
    return logits.sigmoid() if is_binary else logits.softmax(-1)


def probs_to_logits(probs: Value, is_binary: bool = False) -> Value:
    """Logarithms, or log odds; of clamped probabilities."""
    safe = clamp_probs(probs)
    return safe.log() - (-safe).log1p() if is_binary else safe.log()


def sum_rightmost(value: Value, dims: int) -> Value:
    """The sum over the last `dims` dimensions."""
    if dims == 0 or is_number(value):
        return value
    shape = tuple(value.shape)
    return value.reshape(*shape[: len(shape) - dims], -1).sum(-1)


def log_gamma_multivariate(a: Value, p: int) -> Value:
    """The logarithm of the multivariate gamma function."""
    total = p * (p - 1) / 4 * math.log(math.pi) + 0 * a
    for j in range(p):
        total = total + (a - j / 2).lgamma()
    return total


def joined(*shapes: Sequence[int]) -> Size:
    """The shape that these broadcast to."""
    dims: list[int] = []
    for shape in shapes:
        lead = len(shape) - len(dims)
        dims = [1] * lead + dims
        for i, n in enumerate(reversed(shape)):
            if dims[-1 - i] == 1:
                dims[-1 - i] = n
            elif n not in (1, dims[-1 - i]):
                raise ValueError(f"shapes {shapes} cannot be broadcast to one")
    return Size(dims)


def triangular_solve(lower: Value, right: Value) -> Value:
    """x with lower @ x = right, of matrices (*, n, n) and (*, n, k) that are broadcast."""
    batch = joined(lower.shape[:-2], right.shape[:-2])
    a = lower.broadcast_to((*batch, *lower.shape[-2:])).contiguous()
    b = right.broadcast_to((*batch, *right.shape[-2:])).contiguous()
    return ops.solve(a, b)
