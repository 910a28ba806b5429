"""Questions about tensors and shapes: `is_tensor`, `numel`, `broadcast_shapes`.

Most are methods too; they stand here under `flow`'s names.  Each answer is a plain Python value.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowvm.eager.tensor import Storage, Tensor, method
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.meta.formats import MemoryFormat
from flowvm.meta.meta import Size, as_shape
from flowvm.ops.declare import core, registry
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.shapes.inplace_views import UntypedStorage

# public: flow


def is_tensor(obj: object, /) -> bool:
    """Return True if `obj` is a Tensor.

    >>> flow.is_tensor(flow.ones(2)), flow.is_tensor([1.0, 1.0])
    (True, False)
    """
    return isinstance(obj, Tensor)


def is_storage(obj: object, /) -> bool:
    """Return True if `obj` is a tensor's storage, of numbers or of bytes.

    >>> flow.is_storage(flow.ones(2).untyped_storage()), flow.is_storage(flow.ones(2))
    (True, False)
    """
    return isinstance(obj, (Storage, UntypedStorage))


def numel(input: Tensor) -> int:
    """The number of elements.

    >>> flow.numel(flow.ones(2, 3))
    6
    """
    return need_tensor("numel", "input", input)._meta.numel


def is_floating_point(input: Tensor) -> bool:
    """Return True if the dtype is a floating point one.

    >>> flow.is_floating_point(flow.tensor(1.0)), flow.is_floating_point(flow.tensor(1))
    (True, False)
    """
    return need_tensor("is_floating_point", "input", input)._meta.dtype.is_floating_point


def is_complex(input: Tensor) -> bool:
    """Return True if the dtype is a complex one.

    >>> flow.is_complex(flow.tensor(1j))
    True
    """
    return need_tensor("is_complex", "input", input)._meta.dtype.is_complex


def is_signed(input: Tensor) -> bool:
    """Return True if the dtype has negative values.

    >>> flow.is_signed(flow.tensor(1)), flow.is_signed(flow.tensor(1, dtype=flow.uint8))
    (True, False)
    """
    return need_tensor("is_signed", "input", input)._meta.dtype.is_signed


def is_nonzero(input: Tensor) -> bool:
    """Return True if the value of a one-element tensor is not zero.  Waits for the tensor.

    >>> flow.is_nonzero(flow.tensor([0.0])), flow.is_nonzero(flow.tensor(2))
    (False, True)
    """
    return bool(need_tensor("is_nonzero", "input", input).item())


def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Return True if both tensors have one shape.

    >>> flow.is_same_size(flow.ones(2, 3), flow.zeros(2, 3))
    True
    """
    shape = need_tensor("is_same_size", "input", input)._meta.shape
    return shape == need_tensor("is_same_size", "other", other)._meta.shape


def is_conj(input: Tensor) -> bool:
    """False: values that are to be conjugated when they are read do not exist here.

    >>> flow.is_conj(flow.tensor([1j]).conj())
    False
    """
    need_tensor("is_conj", "input", input)
    return False


def is_neg(input: Tensor) -> bool:
    """False: values that are to be negated when they are read do not exist here.

    >>> flow.is_neg(flow.ones(2))
    False
    """
    need_tensor("is_neg", "input", input)
    return False


def is_inference(input: Tensor) -> bool:
    """False, see the method.

    >>> flow.is_inference(flow.ones(2))
    False
    """
    need_tensor("is_inference", "input", input)
    return False


def is_distributed(input: Tensor) -> bool:
    """False: each process has its own tensors.

    >>> flow.is_distributed(flow.ones(2))
    False
    """
    need_tensor("is_distributed", "input", input)
    return False


def get_device(input: Tensor) -> int:
    """The index of its CUDA device; -1 on the CPU.

    >>> flow.get_device(flow.ones(2))
    -1
    """
    index = need_tensor("get_device", "input", input)._meta.device.index
    return -1 if index is None else index


def resolve_conj(input: Tensor) -> Tensor:
    """`input` itself, see `is_conj`.

    >>> flow.resolve_conj(flow.tensor([1j]))
    tensor([0.+1.j])
    """
    return need_tensor("resolve_conj", "input", input)


def resolve_neg(input: Tensor) -> Tensor:
    """`input` itself, see `is_neg`.

    >>> flow.resolve_neg(flow.tensor([1.0]))
    tensor([1.])
    """
    return need_tensor("resolve_neg", "input", input)


for _function in (is_conj, is_neg, resolve_conj, resolve_neg):
    setattr(Tensor, _function.__name__, _function)


def clone(input: Tensor, *, memory_format: object = None) -> Tensor:
    """A copy of `input`, in C order, that gradients flow through.

    >>> x = flow.zeros(2)
    >>> y = flow.clone(x)
    >>> y[0] = 1
    >>> x, y
    (tensor([0., 0.]), tensor([1., 0.]))
    """
    return core.clone(need_tensor("clone", "input", input), memory_format=memory_format)


def detach(input: Tensor) -> Tensor:
    """`input` outside the autograd graph: the same memory, no gradient.

    >>> x = flow.ones(2, requires_grad=True) * 2
    >>> flow.detach(x).requires_grad
    False
    """
    return core.detach(need_tensor("detach", "input", input))


def broadcast_shapes(*shapes: object) -> Size:
    """The shape that tensors of these shapes (a number is a vector's) have together; ShapeError if
    they do not broadcast.

    >>> flow.broadcast_shapes((3, 1), 4)
    flow.Size([3, 4])
    """
    for shape in shapes:
        if isinstance(shape, Tensor):
            raise ArgumentTypeError("broadcast_shapes takes shapes; give it tensor.shape")
    return Size(registry.broadcast_shapes(*map(as_shape, shapes)))


samples(
    clone,
    lambda rng: [Sample((rng.standard_normal((2, 3)),))],
    lambda x: x,
    errors=((lambda flow: flow.clone([1.0]), TypeError),),
)
samples(detach, lambda rng: [Sample((rng.standard_normal(3),))], lambda x: x, grad=False)


# not public
@method()
def dim_order(
    x: Tensor, *, ambiguity_check: bool | Sequence[MemoryFormat] = False
) -> tuple[int, ...]:
    """The dimensions from that with the largest stride to that with the smallest.

    ArgumentError with `ambiguity_check` where sizes of 1 or equal strides allow another order, and
    of the memory formats in it more than one is the tensor's.

    >>> flow.ones(2, 3).t().dim_order()
    (1, 0)
    """
    stride = x._meta.stride
    if ambiguity_check is True and (len(set(stride)) < len(stride) or 1 in x._meta.shape):
        raise ArgumentError(
            f"dim_order: strides {stride} of shape {tuple(x.shape)} allow several orders"
        )
    forms = [] if isinstance(ambiguity_check, bool) else list(ambiguity_check)
    if sum(x.is_contiguous(memory_format=form) for form in forms) > 1:
        raise ArgumentError(f"dim_order: shape {tuple(x.shape)} is in several formats of {forms}")
    return tuple(sorted(range(x._meta.ndim), key=lambda d: (-stride[d], d)))
