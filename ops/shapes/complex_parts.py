"""Complex numbers as pairs of real ones, and back: views, and numbers made of two parts.

What is linear in a complex tensor is done to its parts (`by_parts`): sums, padding, scans.  Only
the CPU has complex tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentTypeError, DeviceError, DTypeError, ShapeError
from flowvm.guards.lru_cache import lru_cached
from flowvm.meta.batched_meta import axes_of, in_elements
from flowvm.meta.dtype import complex_of, float32, float64
from flowvm.meta.formats import result_stride
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.core import arranged, contiguous, copy_, view_of
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.shapes.fill import zeros_like
from flowvm.ops.shapes.join import stack
from flowvm.ops.shapes.views import broadcast_tensors
from flowvm.vm.machine.words import OPERAND

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


# --- views ----------------------------------------------------------------------------------------


@lru_cached("views")
def _part(meta: TensorMeta) -> TensorMeta:
    stride = tuple(2 * s for s in meta.stride)
    return TensorMeta.of(meta.shape, meta.dtype.real, in_elements(meta.device, 2), stride)


@lru_cached("views")
def _pairs(meta: TensorMeta) -> TensorMeta:
    stride = (*(2 * s for s in meta.stride), 1)
    return TensorMeta.of((*meta.shape, 2), meta.dtype.real, in_elements(meta.device, 2), stride)


def _real_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    return (g.to(c.metas[0].dtype),)


def _imag_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    return (complex(zeros_like(g), g),)


# public: flow
def real(input: Tensor) -> Tensor:
    """The real parts of complex numbers, a view; a real tensor itself.

    >>> flow.real(flow.tensor([1 + 2j, 3 - 4j]))
    tensor([1., 3.])
    """
    x = need_tensor("real", "input", input)
    if not x._meta.dtype.is_complex:
        return x
    return view_of(x, "real", _part(x._meta), 0, _real_grad)


# public: flow
def imag(input: Tensor) -> Tensor:
    """The imaginary parts, a view.  DTypeError for real tensors.

    >>> flow.imag(flow.tensor([1 + 2j, 3 - 4j]))
    tensor([ 2., -4.])
    """
    x = need_tensor("imag", "input", input)
    if not x._meta.dtype.is_complex:
        raise DTypeError(f"imag is for complex tensors, got {x.dtype.name}, which has no such part")
    return view_of(x, "imag", _part(x._meta), 1, _imag_grad)


# public: flow
@method()
def view_as_real(input: Tensor) -> Tensor:
    """A view of complex numbers as pairs of floats: one more dimension, the last, of size 2.

    >>> flow.view_as_real(flow.tensor([1 + 2j]))
    tensor([[1., 2.]])
    """
    x = need_tensor("view_as_real", "input", input)
    if not x._meta.dtype.is_complex:
        raise DTypeError(f"view_as_real is for complex tensors, got {x.dtype.name}")
    return view_of(x, "view_as_real", _pairs(x._meta), 0, _pairs_grad)


def _paired(x: Tensor) -> bool:
    """Return True if pairs along the last dimension lie as complex numbers do."""
    offset = (x._ref >> OPERAND.STORAGE_BITS) // x._meta.dtype.itemsize
    *outer, step = x._meta.stride
    outer += [a.stride for a in axes_of(x._meta)]
    return step == 1 and offset % 2 == 0 and all(s % 2 == 0 for s in outer)


def _pairs_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    return (view_as_complex(g if _paired(g) else contiguous(g)),)


def _complex_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    return (view_as_real(g),)


# public: flow
@method()
def view_as_complex(input: Tensor) -> Tensor:
    """A view of pairs of float32 or float64, along the last dimension, as complex numbers.

    ShapeError unless that dimension has size 2 and stride 1, and all others even strides.

    >>> flow.view_as_complex(flow.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([1.+2.j, 3.+4.j])
    """
    x = need_tensor("view_as_complex", "input", input)
    meta = x._meta
    if meta.device.type == "cuda":
        raise DeviceError(f"complex tensors are not on CUDA, and this one is on {meta.device}")
    if meta.dtype not in (float32, float64):
        raise DTypeError(f"view_as_complex is for float32 and float64, got {x.dtype.name}")
    if meta.ndim == 0 or meta.shape[-1] != 2:
        raise ShapeError(
            f"view_as_complex: the last dimension has size 2, got shape {tuple(x.shape)}"
        )
    if not _paired(x):
        raise ShapeError(
            f"view_as_complex: the last dimension has stride 1 and others have even ones, got "
            f"{meta.stride}; use contiguous()"
        )
    return view_of(x, "view_as_complex", _joined(meta), 0, _complex_grad)


@lru_cached("views")
def _joined(meta: TensorMeta) -> TensorMeta:
    stride = tuple(s // 2 for s in meta.stride[:-1])
    return TensorMeta.of(
        meta.shape[:-1], complex_of(meta.dtype), in_elements(meta.device, 1, 2), stride
    )


# --- put together ---------------------------------------------------------------------------------


# public: flow
@with_out
def complex(real: Tensor, imag: Tensor) -> Tensor:
    """The complex numbers with these parts, two tensors of float32 or of float64, broadcast.

    >>> flow.complex(flow.tensor([1.0, 2.0]), flow.tensor([0.5, -1.0]))
    tensor([1.+0.5000j, 2.-1.0000j])
    """
    parts = need_tensor("complex", "real", real), need_tensor("complex", "imag", imag)
    kinds = [part._meta.dtype for part in parts]
    if kinds[0] is not kinds[1] or kinds[0] not in (float32, float64):
        raise DTypeError(
            f"complex takes two float32 or two float64 tensors, got {kinds[0].name} and "
            f"{kinds[1].name}"
        )
    out = view_as_complex(stack(broadcast_tensors(*parts), -1))
    stride = result_stride(out._meta.shape, [part._meta for part in parts])
    return out if stride is None else arranged(out, out._meta.dtype, stride)


def by_parts(function: Callable[[Any], Any], x: Tensor) -> Any:
    """A linear `function` of a complex tensor: of its real parts and of its imaginary parts."""
    first = function(real(x))
    if isinstance(first, tuple):
        pairs = zip(first, function(imag(x)), strict=True)
        return tuple(complex(*pair) for pair in pairs)
    whole: Tensor = complex(first, function(imag(x)))
    return whole


def _set_part(part: Callable[[Tensor], Tensor]) -> Callable[[Tensor, object], None]:
    def assign(x: Tensor, value: Any) -> None:
        view = part(x)
        if view is x:
            raise ArgumentTypeError("the parts of a complex tensor can be assigned; this is real")
        if isinstance(value, Tensor):
            copy_(view, value)
        else:
            view.fill_(value)

    return assign


for _name, _part_of in (("real", real), ("imag", imag)):
    setattr(Tensor, _name, property(_part_of, _set_part(_part_of), doc=_part_of.__doc__))


# --- samples --------------------------------------------------------------------------------------


def two_parts(rng: np.random.Generator) -> list[Sample]:
    x, y = rng.uniform(0.5, 2, (3, 4)), rng.uniform(-1, 1, (3, 4))
    return [Sample((x, y)), Sample((x, y[0]))]


samples(real, lambda rng: [Sample((rng.standard_normal((2, 3)),))], np.real)
samples(
    view_as_complex,
    lambda rng: [Sample((rng.standard_normal((3, 2)),))],
    lambda x: x[..., 0] + 1j * x[..., 1],
    floats=("float64", "float32"),
)
samples(complex, two_parts, lambda x, y: x + 1j * y, floats=("float64", "float32"))
