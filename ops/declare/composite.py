"""The means to write ops that are several instructions, or none.

A view issues nothing and `cat` issues one copy a tensor: no `Operator` stands for them, but
backward wants one node.  A `Recorded` is that node's operator; `record` gives a finished tensor its
node.  Here too are the tensors that such ops start from, empty or filled, and the one rule for
dimensions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from flowvm.eager.declaration import Invocation, Kernel, Rules, Signature
from flowvm.eager.interpreter import Operator, short
from flowvm.eager.modes import current_trace_recorder, grad_enabled
from flowvm.eager.nodes import Node, OutputEdge
from flowvm.eager.overrides import hint
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, OutOfRangeError
from flowvm.meta.dtype import DType
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare import valueless
from flowvm.ops.declare.assembly import Assembly
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.scalar_launch import ScalarLaunch
from flowvm.vm.watch.pending import issued


class Recorded:
    """Stands for the operator in autograd nodes of ops that are no single instruction.

    `signature`, of `inputs` alone, and `saves` are as an Operator has them; `grad(c, *gradients)`
    likewise.  `differentiable` are the names of the result, where it is saved and its gradient is
    wanted.
    A fresh result lies as a copy of the first input does, or in `c_order`, as PyTorch's.
    `blocks`: no gradient goes on from here, and `grad` is the error that says so.
    """

    blocks = False

    def __init__(
        self,
        name: str,
        grad: Callable[..., object],
        inputs: Sequence[str] = (),
        saves: str = "",
        differentiable: tuple[str, ...] = (),
        c_order: bool = False,
    ) -> None:
        self.name = name
        self.c_order = c_order
        self.differentiable = differentiable
        self.grad = grad
        self.signature = Signature(tuple(inputs))
        self.saves = tuple(s.strip() for s in saves.split(",") if s.strip())


def record(
    op: Recorded,
    inputs: Sequence[Tensor],
    out: Tensor,
    attrs: tuple[object, ...] = (),
    saved: Sequence[Tensor] = (),
) -> Tensor:
    """Give `out` the node of `op` on `inputs`, if one of them requires grad; `out`."""
    if (trace := current_trace_recorder()) is not None:
        trace.recorded(op, tuple(inputs), out, attrs, tuple(saved))
    needs_grad = any(t._node is not None for t in inputs) and grad_enabled()
    if needs_grad and out._meta.dtype.inexact:
        out._node = Node(
            op,
            tuple(t._node for t in inputs),
            tuple(saved),
            tuple(t.version for t in saved),
            tuple(t._meta for t in inputs),
            attrs,
            (out._meta,),
            issued() - 1,
        )
    return out


def record_call(
    op: Operator,
    tensors: Sequence[Tensor],
    attrs: tuple[object, ...],
    scalars: tuple[object, ...],
    results: tuple[Tensor, ...],
    apart: Callable[[Tensor], Tensor],
) -> None:
    """Give results the node of a call of `op`, as the functions of `flowvm.eager.calls` do.

    apart    gives a saved result as a tensor without a node
    """
    if not grad_enabled() or all(t._node is None for t in tensors):
        return
    named = {**dict(zip(op.signature.inputs, tensors, strict=True)),
             **dict(zip(op.signature.outputs, results, strict=True))}  # fmt: skip
    saved = tuple(apart(named[n]) if n in op.signature.outputs else named[n] for n in op.saves)
    live = op.differentiable
    node = Node(
        op,
        tuple(t._node for t in tensors),
        saved,
        tuple(t.version for t in saved),
        tuple(t._meta for t in tensors),
        (*attrs, *scalars),
        tuple(r._meta for r in results[: len(live)]),
        issued() - 1,
    )
    if len(live) == 1:
        results[0]._node = node
        return
    for i, r in enumerate(results[: len(live)]):
        if r._meta.dtype.inexact:
            r._node = OutputEdge(node, i)


# --- where they start from ----------------------------------------------------------------------


def _lower_empty(metas: tuple[TensorMeta, ...], attrs: Attrs) -> Invocation:
    return valueless.invocation((_meta_in(attrs),))


def _meta_in(attrs: tuple[object, ...]) -> TensorMeta:
    (meta,) = attrs
    if not isinstance(meta, TensorMeta):
        raise ArgumentTypeError(f"a tensor is made like a meta, got {meta!r}")
    return meta


def _infer_empty(metas: tuple[TensorMeta, ...], attrs: Attrs) -> Assembly:
    return Assembly(_meta_in(attrs), ())


def _infer_fill(metas: tuple[TensorMeta, ...], attrs: Attrs) -> ScalarLaunch:
    out = _meta_in(attrs)
    kind = "float64" if out.dtype.inexact else "int64"
    pack = "d" if kind == "float64" else "q"
    return ScalarLaunch((out,), (), "x", ("x",), (kind,), (out.dtype.compute.name,), ("x",), pack)


def _lower_fill(metas: tuple[TensorMeta, ...], attrs: Attrs) -> Invocation:
    return _infer_fill(metas, attrs).on_cpu()


_empty = Operator(
    "empty",
    Signature((), ("out",), attrs=("meta",)),
    Kernel(_lower_empty, _infer_empty, complex=True, minifloats=True),
    rules=Rules(letters=unsplit),
)
_fill = Operator(
    "fill",
    Signature((), ("out",), attrs=("meta",), scalars=("value",)),
    Kernel(_lower_fill, _infer_fill, complex=True, minifloats=True),
    rules=Rules(letters=unsplit),
)


def empty_of(meta: TensorMeta) -> Tensor:
    """A new tensor like `meta` with any contents."""
    out: Tensor = _empty.call(meta)
    return out


def filled_of(meta: TensorMeta, value: float = 0, dtype: DType | None = None) -> Tensor:
    """A new dense tensor of `meta`'s shape, every element `value`."""
    out: Tensor = _fill.call(meta.dense(dtype), value)
    return out


# --- arguments ----------------------------------------------------------------------------------


_MOST = 1 << 63


def whole(name: str, what: str, value: Any) -> int:
    """`value`, which is an int or says by `__index__` which one it stands for: NumPy's integers and
    integer tensors of one element, whose value is waited for.  ArgumentTypeError for all else.

    Whoever computes with an argument, or looks it up, asks for this first: what came of a tensor
    would be another tensor, and must not come near a record.
    """
    try:
        number: int = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(
            f"{name}: {what} is an int, got {type(value).__name__} ({short(value)})"
        ) from None
    if not -_MOST <= number < _MOST:
        raise ArgumentError(f"{name}: {what} has at most 64 bits, got {short(number)}")
    return int(number)


def wrap_dim(name: str, dim: object, ndim: int) -> int:
    """`dim` counted from the front; OutOfRangeError unless in [-ndim, ndim) (0-d: -1 and 0 will
    do).
    """
    if type(dim) is not int:
        dim = whole(name, "a dimension", dim)
    most = max(ndim, 1)
    if not -most <= dim < most:
        raise OutOfRangeError(
            f"{name}: dim {dim} is out of range for a {ndim}-d tensor; expected {-most} to "
            f"{most - 1}"
        )
    at: int = dim + most if dim < 0 else dim
    return at


def wrap_dims(name: str, dims: object, ndim: int) -> tuple[int, ...]:
    """Each of `dims` (one, or several in a tuple or list) as `wrap_dim` has it; an error for a
    repeated one.
    """
    sequence = dims if isinstance(dims, (tuple, list)) else (dims,)
    wrapped = tuple(wrap_dim(name, d, ndim) for d in sequence)
    if len(set(wrapped)) != len(wrapped):
        raise OutOfRangeError(f"{name}: a dimension appears more than once in {tuple(sequence)}")
    return wrapped


def need_tensor(name: str, argument: str, value: object) -> Tensor:
    """`value`, or an ArgumentTypeError that says how to make a Tensor of it."""
    if not isinstance(value, Tensor):
        raise ArgumentTypeError(
            f"{name}: argument {argument!r} must be a Tensor, got {type(value).__name__}; "
            f"make one with flow.tensor(...){hint(value)}"
        )
    return value
