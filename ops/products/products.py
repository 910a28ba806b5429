"""The other matrix products of PyTorch: most are `matmul` in a line or two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.autocast import autocast_dtype, outside, widest
from flowvm.eager.keywords import scaled_formerly
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, DTypeError, ShapeError
from flowvm.launch import Launch
from flowvm.meta.dtype import DType, float32
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import need_tensor, whole, wrap_dim
from flowvm.ops.declare.core import sum_to
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, op, samples
from flowvm.ops.products.cpu.gemm import Epilogue, product
from flowvm.ops.products.matmul import _matmul_nt, _matmul_tn, matmul
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


# public: flow


def _need(name: str, tensor: Tensor, ndim: int) -> None:
    need_tensor(name, "of the product", tensor)
    if tensor._meta.ndim != ndim:
        raise ShapeError(f"{name}: expected {ndim} dimensions, got shape {tuple(tensor.shape)}")


def _need_batches(name: str, a: Tensor, b: Tensor) -> None:
    _need(name, a, 3)
    _need(name, b, 3)
    if a.shape[0] != b.shape[0]:
        raise ShapeError(
            f"{name}: both must hold as many matrices, got shapes {tuple(a.shape)} and "
            f"{tuple(b.shape)}"
        )


def _in_dtype(name: str, dtype: DType | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the dtype that their product is to have; None: as they are."""
    if dtype is None or all(t._meta.dtype is dtype for t in tensors):
        return tensors
    if dtype is not float32 or any(not t._meta.dtype.is_floating_point for t in tensors):
        kinds = ", ".join(t._meta.dtype.name for t in tensors)
        raise DTypeError(
            f"{name}: out_dtype is the tensors' dtype, or float32 for smaller floats; got "
            f"{dtype} for {kinds}"
        )
    return tuple(t.to(dtype) for t in tensors)


@method()
@with_out
def mm(input: Tensor, mat2: Tensor, out_dtype: DType | None = None) -> Tensor:
    """The product of two matrices, (m, k) and (k, n), of float16 or bfloat16 as float32 if that is
    `out_dtype`.

    >>> flow.mm(flow.tensor([[1, 2]]), flow.tensor([[3], [4]]))
    tensor([[11]])
    """
    _need("mm", input, 2)
    _need("mm", mat2, 2)
    input, mat2 = _in_dtype("mm", out_dtype, input, mat2)
    out: Tensor = matmul(input, mat2)
    return out


@method()
@with_out
def bmm(input: Tensor, mat2: Tensor, out_dtype: DType | None = None) -> Tensor:
    """Return the products of pairs of matrices, (b, m, k) and (b, k, n); nothing is broadcast.
    `out_dtype` is that of `mm`.

    >>> flow.bmm(flow.ones(2, 1, 3), flow.ones(2, 3, 1)).flatten()
    tensor([3., 3.])
    """
    _need_batches("bmm", input, mat2)
    input, mat2 = _in_dtype("bmm", out_dtype, input, mat2)
    out: Tensor = matmul(input, mat2)
    return out


@method()
@with_out
def mv(input: Tensor, vec: Tensor) -> Tensor:
    """The product of a matrix (m, k) and a vector (k).

    >>> flow.mv(flow.tensor([[1, 2], [3, 4]]), flow.tensor([10, 1]))
    tensor([12, 34])
    """
    _need("mv", input, 2)
    _need("mv", vec, 1)
    out: Tensor = matmul(input, vec)
    return out


@method()
@with_out
def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """The sum of the products of two vectors' elements.

    >>> flow.dot(flow.tensor([1, 2]), flow.tensor([3, 4]))
    tensor(11)
    """
    if hot["autocast"] and autocast_dtype() is not None:
        return outside(dot, *widest(input, tensor))
    _need("dot", input, 1)
    _need("dot", tensor, 1)
    out: Tensor = matmul(input, tensor)
    return out


@method()
@with_out
def inner(input: Tensor, other: Tensor) -> Tensor:
    """The dot products of all rows of `input` with all rows of `other`; with a number,
    multiplication.

    >>> flow.inner(flow.tensor([[1, 2], [3, 4]]), flow.tensor([10, 1]))
    tensor([12, 34])
    """
    need_tensor("inner", "input", input)
    need_tensor("inner", "other", other)
    if input._meta.ndim == 0 or other._meta.ndim == 0:
        return input * other
    if input.shape[-1] != other.shape[-1]:
        raise ShapeError(
            f"inner: the last dimensions must agree, got shapes {tuple(input.shape)} and "
            f"{tuple(other.shape)}"
        )
    return tensordot(input, other, ([-1], [-1]))


@method()
@with_out
def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """The products of each element of one vector with each of another: (m) and (n) to (m, n).

    >>> flow.ger(flow.tensor([1, 2]), flow.tensor([10, 20, 30]))
    tensor([[10, 20, 30],
            [20, 40, 60]])
    """
    _need("outer", input, 1)
    _need("outer", vec2, 1)
    out: Tensor = input.unsqueeze(1) * vec2
    return out


ger = method("ger")(outer)


def _added_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    a, b = c.saved
    beta, alpha = c.attrs
    scaled = g if alpha == 1 else g * alpha
    return (
        _matmul_nt(scaled, b) if c.needs[0] else None,
        _matmul_tn(a, scaled) if c.needs[1] else None,
        sum_to(g if beta == 1 else g * beta, c.metas[2].shape) if c.needs[2] else None,
    )


@op(
    "a, b, input -> out", name="addmm", saves="a, b", grad=_added_grad, dense=False,
    half="cuda", cuda="products:product", letters=unsplit, amp="half",
)  # fmt: skip
def _added_product(
    a: TensorMeta, b: TensorMeta, input: TensorMeta, beta: float, alpha: float
) -> Launch:
    """beta * input + alpha * (a @ b), in one pass."""
    return product("addmm", a, b, False, False, input, Epilogue(alpha, beta))


def _sum_with_product(input: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Tensor:
    if beta != 0 and a._meta.dtype.is_floating_point:
        out: Tensor = _added_product(a, b, input, float(beta), float(alpha))
        return out
    result: Tensor = matmul(a, b)
    if not result._meta.dtype.inexact:
        alpha, beta = int(alpha), int(beta)
    scaled = result if alpha == 1 else result * alpha
    if beta == 0:  # as in PyTorch, NaN in `input` then has no effect
        return scaled
    total = scaled + (input if beta == 1 else input * beta)
    if total._meta.shape != result._meta.shape:
        raise ShapeError(
            f"input of shape {tuple(input.shape)} does not broadcast to the product's "
            f"{tuple(result.shape)}"
        )
    return total


@method()
@with_out
@scaled_formerly("mat1 mat2")
def addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    out_dtype: DType | None = None,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    """beta * input + alpha * (mat1 @ mat2), `input` broadcast to the product's shape.

    For integers beta and alpha are truncated, as in PyTorch.  `out_dtype` is that of `mm`.

    >>> flow.addmm(flow.tensor([1.0, 2.0]), flow.ones(2, 3), flow.ones(3, 2), beta=10)
    tensor([[13., 23.],
            [13., 23.]])
    """
    _need("addmm", mat1, 2)
    _need("addmm", mat2, 2)
    input, mat1, mat2 = _in_dtype("addmm", out_dtype, input, mat1, mat2)
    return _sum_with_product(input, mat1, mat2, beta, alpha)


@method()
@with_out
@scaled_formerly("batch1 batch2")
def baddbmm(
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    out_dtype: DType | None = None,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    """beta * input + alpha * bmm(batch1, batch2), `input` broadcast to the product's shape.

    For integers beta and alpha are truncated, as in PyTorch.  `out_dtype` is that of `mm`.

    >>> flow.baddbmm(flow.ones(1, 2, 2), flow.ones(1, 2, 3), flow.ones(1, 3, 2))
    tensor([[[4., 4.],
             [4., 4.]]])
    """
    _need_batches("baddbmm", batch1, batch2)
    input, batch1, batch2 = _in_dtype("baddbmm", out_dtype, input, batch1, batch2)
    return _sum_with_product(input, batch1, batch2, beta, alpha)


@with_out
def tensordot(a: Tensor, b: Tensor, dims: int | Sequence[Sequence[int]] = 2) -> Tensor:
    """Sum the products over pairs of dimensions.

    dims   ([dimensions of a], [dimensions of b]), or n: the last n of a with the first n of b

    >>> flow.tensordot(flow.tensor([[1, 2], [3, 4]]), flow.tensor([10, 1]), dims=1)
    tensor([12, 34])
    """
    if hot["autocast"] and autocast_dtype() is not None:
        return outside(tensordot, *widest(a, b), dims)
    need_tensor("tensordot", "a", a)
    need_tensor("tensordot", "b", b)
    if not isinstance(dims, (tuple, list)):
        dims = whole("tensordot", "dims", dims)
        if not 0 <= dims <= min(a.ndim, b.ndim):
            raise ArgumentError(
                f"tensordot: dims is between 0 and {min(a.ndim, b.ndim)}, got {dims}"
            )
        left, right = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        left = [wrap_dim("tensordot", d, a.ndim) for d in dims[0]]
        right = [wrap_dim("tensordot", d, b.ndim) for d in dims[1]]
    for d, e in zip(left, right, strict=False):  # one of length 1 is as long as the other
        if a.shape[d] == 1 != b.shape[e]:
            b = b.sum(e, keepdim=True, dtype=b.dtype)
        elif b.shape[e] == 1 != a.shape[d]:
            a = a.sum(d, keepdim=True, dtype=a.dtype)
    sizes = [a.shape[d] for d in left], [b.shape[d] for d in right]
    if sizes[0] != sizes[1]:
        raise ShapeError(
            f"tensordot: dimensions {left} of shape {tuple(a.shape)} and {right} of "
            f"{tuple(b.shape)} do not agree"
        )
    free_a = [d for d in range(a.ndim) if d not in left]
    free_b = [d for d in range(b.ndim) if d not in right]
    shared = math.prod(sizes[0])
    shape = [a.shape[d] for d in free_a] + [b.shape[d] for d in free_b]
    rows, columns = math.prod(shape[: len(free_a)]), math.prod(shape[len(free_a) :])
    matrix_a = a.permute([*free_a, *left]).reshape((rows, shared))
    matrix_b = b.permute([*right, *free_b]).reshape((shared, columns))
    out: Tensor = matmul(matrix_a, matrix_b).reshape(shape)
    return out


@method()
@with_out
def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product: every element of `input` times all of `other`, in blocks.

    >>> flow.kron(flow.tensor([1, 10]), flow.tensor([1, 2]))
    tensor([ 1,  2, 10, 20])
    """
    need_tensor("kron", "input", input)
    need_tensor("kron", "other", other)
    n = max(input.ndim, other.ndim)
    a = (1,) * (n - input.ndim) + tuple(input.shape)
    b = (1,) * (n - other.ndim) + tuple(other.shape)
    wide = input.reshape([d for size in a for d in (size, 1)])
    narrow = other.reshape([d for size in b for d in (1, size)])
    out: Tensor = (wide * narrow).reshape([p * q for p, q in zip(a, b, strict=True)])
    return out


# --- samples -----------------------------------------------------------------------------------


def _shapes(*shapes: tuple[tuple[int, ...], ...], **options: object) -> Any:
    def generate(rng: np.random.Generator) -> list[Sample]:
        return [
            Sample(tuple(rng.standard_normal(s) for s in each), dict(options)) for each in shapes
        ]

    return generate


samples(
    mm,
    _shapes(((3, 4), (4, 2)), ((0, 2), (2, 3))),
    np.matmul,
    errors=((lambda flow: flow.mm(flow.ones(2), flow.ones(2)), RuntimeError),),
)
samples(
    bmm,
    _shapes(((2, 3, 4), (2, 4, 2)), ((0, 2, 3), (0, 3, 1))),
    np.matmul,
    errors=((lambda flow: flow.bmm(flow.ones(1, 2, 2), flow.ones(3, 2, 2)), RuntimeError),),
)
samples(mv, _shapes(((3, 4), (4,))), np.matmul)
samples(
    dot,
    _shapes(((5,), (5,)), ((0,), (0,))),
    np.dot,
    errors=((lambda flow: flow.dot(flow.ones(2), flow.ones(3)), RuntimeError),),
)
samples(inner, _shapes(((5,), (5,)), ((2, 3), (4, 3)), ((), (2, 3))), np.inner)
samples(outer, _shapes(((3,), (4,)), ((0,), (2,))), np.outer)
samples(
    addmm,
    _shapes(((3, 2), (3, 4), (4, 2)), ((2,), (3, 4), (4, 2)), beta=0.5, alpha=2.0),
    lambda c, a, b, beta, alpha: beta * c + alpha * (a @ b),
    errors=(
        (lambda flow: flow.addmm(flow.ones(3), flow.ones(2, 2), flow.ones(2, 2)), RuntimeError),
    ),
)
samples(
    baddbmm,
    _shapes(((2, 3, 2), (2, 3, 4), (2, 4, 2)), ((1, 2), (2, 3, 4), (2, 4, 2))),
    lambda c, a, b: c + a @ b,
)
samples(
    tensordot,
    lambda rng: [
        Sample((rng.standard_normal((2, 3, 4)), rng.standard_normal((3, 4, 2)))),
        Sample((rng.standard_normal((2, 3)), rng.standard_normal((4, 2)), ([0], [1]))),
        Sample((rng.standard_normal((2, 3)), rng.standard_normal(2), 0)),
    ],
    lambda a, b, dims=2: np.tensordot(a, b, dims),
    errors=((lambda flow: flow.tensordot(flow.ones(2, 3), flow.ones(2, 3), 1), RuntimeError),),
)
samples(kron, _shapes(((2, 3), (2, 2)), ((3,), (2, 2)), ((), (3,))), np.kron)
