"""Ops that change tensors in place, element by element, such as steps of optimizers.

    scale_ = update("scale_", "x!, y", "by: float", each="x = x * by + y")

One program says what becomes of an element, on every device.  It computes in the tensors' dtype;
what it needs of the numbers alone is a program of its own, computed in float64 and not for each
element.  The numbers are dynamic scalars: another learning rate or step is not another kernel.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

from flowvm.config import config, say
from flowvm.eager.interpreter import Operator
from flowvm.eager.native.functions import calls_for_each
from flowvm.eager.tensor import Tensor
from flowvm.errors import DTypeError, ShapeError
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.letters import same
from flowvm.ops.declare.registry import op, operator_of
from flowvm.ops.declare.scalar_launch import ScalarLaunch, assigned


def update(
    name: str,
    tensors: str,
    numbers: str = "",
    *,
    once: str = "",
    each: str,
    linear: tuple[int, ...] = (),
    doc: str = "",
) -> Callable[..., Any]:
    """Declare an update; the result is the function `name(tensors..., numbers...)`, which gives
    the first tensor.

    tensors     "param!, grad": all of one shape and dtype; those with ! are changed
    numbers     "lr: float, step: int"; a bool is an int
    once        lines of assignments: what follows from the numbers alone, in float64, by new names
    linear      places of the tensors in which it is linear together
    each        lines of assignments, in which every tensor's name is its element: those with ! have
                their new values behind the last line.  It may use the numbers and what `once` named

    The functions of `flowvm.ops.scalar.functions` may be called.  What is not dense, and reduced
    floats, are copied and written back.  Nothing is recorded for autograd.  Complex tensors are
    updated as the real numbers that they are pairs of, as PyTorch's optimizers do.
    """
    names = [part.strip() for part in tensors.split(",")]
    written = tuple(k for k, n in enumerate(names) if n.endswith("!"))
    names = [n.rstrip("!") for n in names]
    kinds = [part.partition(":") for part in numbers.split(",") if part.strip()]
    scalars = tuple(n.strip() for n, _, _ in kinds)
    real = [kind.strip() == "float" for _, _, kind in kinds]
    result = ", ".join(names[k] for k in written)
    each = textwrap.dedent(each).strip()
    expr = f"{each}\n{result}"
    before = textwrap.dedent(once).strip()
    if missing := {names[k] for k in written} - set(assigned(each)):
        raise ValueError(f"{name}: `each` gives {', '.join(sorted(missing))} no new value")
    if again := {*names, *scalars} & set(assigned(before)):
        raise ValueError(f"{name}: `once` cannot give {', '.join(sorted(again))} another value")

    def infer(*metas: TensorMeta) -> ScalarLaunch:
        first = metas[0]
        for operand, meta in zip(names, metas, strict=True):
            if meta.shape != first.shape:
                raise ShapeError(
                    f"{name}: {operand} has shape {tuple(meta.shape)}, {names[0]} "
                    f"{tuple(first.shape)}"
                )
            if meta.dtype is not first.dtype:
                raise DTypeError(
                    f"{name}: {operand} has dtype {meta.dtype}, {names[0]} {first.dtype}"
                )
        if config.debug >= 4:
            lines = textwrap.indent(f"{before}\n{expr}".strip(), "    ")
            say(4, f"kernel of {name}: of {first.dtype.name}\n{lines}")
        dtype = first.dtype.name
        return ScalarLaunch(
            outputs=(),
            inputs=metas,
            expr=expr,
            args=(*names, *scalars),
            stored=(*[dtype] * len(names), *("float64" if r else "int64" for r in real)),
            compute=(dtype,) * (len(names) + len(scalars)),
            numbers=scalars,
            pack="".join("d" if r else "q" for r in real),
            once=before,
            into=written,
        )

    infer.__doc__ = doc
    function = op(f"{tensors} -> ", name=name, scalars=numbers, letters=same(linear=linear))(infer)
    operator = operator_of(function)
    operator.rules.fallback = _in_pairs(operator, operator.rules.fallback)
    return function


def each(
    function: Callable[..., object], *names: str, counts: str = ""
) -> Callable[..., list[Any]]:
    """Return `call(tensors, state, *numbers)`, which updates tensors that have a gradient natively.

    Each update gets the gradient, `state[tensor][name]` for each of `names`, and the numbers.  The
    call returns the tensors that are left, for the caller to update: all of them where calls are
    Python's, and tensors without such state.

    counts   the name of a number in `state[tensor]`, 1 more from this call on, which comes last
    """
    return calls_for_each(operator_of(function), names, counts)


def _in_pairs(operator: Operator, others: Callable[..., object]) -> Callable[..., object]:
    """The fallback of an update: complex tensors as pairs of real numbers, and `others`."""
    count = len(operator.signature.inputs)

    def fallback(*args: Any) -> object:
        tensors = args[:count]
        if not all(isinstance(t, Tensor) and t._meta.dtype.is_complex for t in tensors):
            return others(*args)
        pairs = list(tensors)
        operator.call(*[t.view_as_real() for t in pairs], *args[count:])
        return tensors[0]

    return fallback
