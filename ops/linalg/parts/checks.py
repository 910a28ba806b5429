"""Checks, transposes, batches and `out=`, shared by all functions of linear algebra."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from flowvm.eager.tensor import Tensor
from flowvm.errors import DTypeError, ShapeError
from flowvm.ops.declare.composite import Recorded, filled_of, need_tensor, record
from flowvm.ops.declare.registry import broadcast_shapes
from flowvm.ops.shapes.matrices import eye
from flowvm.ops.shapes.views import transpose

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


Result = TypeVar("Result")


def matrices(name: str, x: object, argument: str = "A") -> Tensor:
    """`x`, which is matrices (*, m, n) of floats or complex numbers."""
    x = need_tensor(name, argument, x)
    if x._meta.ndim < 2:
        raise ShapeError(
            f"{name}: {argument} must be matrices (*, m, n), got shape {tuple(x.shape)}"
        )
    return inexact(name, x, argument)


def inexact(name: str, x: object, argument: str = "A") -> Tensor:
    """`x`, which is a tensor of floats or complex numbers."""
    x = need_tensor(name, argument, x)
    if not x._meta.dtype.inexact:
        raise DTypeError(
            f"{name}: {argument} must be floating point or complex, got {x.dtype.name}"
        )
    return x


def square(name: str, x: Any, argument: str = "A") -> Tensor:
    """`x`, which is square matrices (*, n, n) of floats or complex numbers."""
    x = matrices(name, x, argument)
    if x._meta.shape[-1] != x._meta.shape[-2]:
        raise ShapeError(
            f"{name}: {argument} must be square matrices (*, n, n), got shape {tuple(x.shape)}"
        )
    return x  # type: ignore[no-any-return]


def same_dtype(name: str, a: Tensor, b: Tensor) -> None:
    """DTypeError unless both have one dtype."""
    need_tensor(name, "a second argument", b)
    if a._meta.dtype is not b._meta.dtype:
        raise DTypeError(f"{name}: the dtypes differ, {a.dtype.name} and {b.dtype.name}")


def turned(x: Tensor) -> Tensor:
    """The transpose of each matrix, a view."""
    out: Tensor = transpose(x, -2, -1)
    return out


def batched(*tensors: Tensor, matrix: int = 2) -> list[Tensor]:
    """The tensors with their batch dimensions, all but the last two, broadcast together."""
    batch = broadcast_shapes(*[t._meta.shape[:-matrix] for t in tensors])
    return [
        t
        if tuple(t._meta.shape[:-matrix]) == batch
        else t.expand((*batch, *t._meta.shape[-matrix:]))
        for t in tensors
    ]


def identity(like: Tensor, n: int) -> Tensor:
    """The matrix (n, n), of `like`'s dtype and device."""
    return eye(n, dtype=like._meta.dtype, device=like._meta.device)


def vector_side(a: Tensor, b: Tensor) -> bool:
    """Return True if `b` is a right side of vectors: one vector, or as many as there are matrices.

    This is the rule of `solve` in NumPy and PyTorch.
    """
    batch = a._meta.shape[:-1]
    return b._meta.ndim == 1 or (b._meta.ndim == a._meta.ndim - 1 and b._meta.shape == batch)


def _zero_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    return (filled_of(c.metas[0]),)


_constant_node = Recorded("constant", _zero_grad, ("input",))


def constant_of(input: Tensor, value: Tensor) -> Tensor:
    """`value`, which does not depend on `input` but is differentiable where that is: by zeros."""
    return record(_constant_node, (input,), value)
