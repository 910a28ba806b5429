"""Gradients, methods and samples that the declarations of elementwise functions share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.ops.declare.core import cast, sum_to
from flowvm.ops.declare.elementwise import Elementwise, elementwise, fronts_over
from flowvm.ops.declare.registry import Sample
from flowvm.ops.shapes.fill import zeros_like

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.meta import TensorMeta


Grad = Callable[[Any, Tensor], tuple[Any, ...]]


def back(c: Node, *makers: Callable[[], Tensor] | None) -> tuple[Tensor | None, ...]:
    """The gradients of the arguments that need one: made, summed back to the argument's shape, in
    its dtype.
    """
    return tuple(
        _fit(make(), c.metas[i]) if make is not None and c.needs[i] else None
        for i, make in enumerate(makers)
    )


def _fit(g: Tensor, meta: TensorMeta) -> Tensor:
    g = sum_to(g, meta.shape)
    return g if g._meta.dtype is meta.dtype else cast(g, meta.dtype)


def flat(c: Node, g: Tensor) -> tuple[Tensor]:
    """The gradient of a step function: 0."""
    return (zeros_like(g),)


GIVES = {  # types of the declaration: of what the result is, for what there is an error
    "float": ("its dtype, the default dtype for integers and bools", ()),
    "promote": ("its dtype", ()),
    "number": ("its dtype", ("bools",)),
    "bool": ("bools", ()),
    "logical": ("bools", ()),
    "int": ("its dtype", ("floats",)),
}


def _full_doc(doc: str, types: str, complex: bool, real: bool) -> str:
    """Insert the declaration's facts on shape, dtype and errors into `doc`, before the example."""
    first, example, rest = inspect.cleandoc(doc).partition("\n\n>>> ")
    gives, wrong = GIVES[types]
    note = f"A tensor of x's shape, of {gives}{', real for complex numbers' if real else ''}."
    if wrong := (*wrong, *(() if complex else ("complex numbers",))):
        note += f"\nDTypeError for {' and '.join(wrong)}."
    return f"{first}\n\n{note}{example}{rest}"


def unary(
    name: str,
    expr: str,
    grad: Grad | None,
    doc: str,
    *,
    saves: str = "x",
    types: str = "float",
    **complex: Any,
) -> Elementwise:
    doc = _full_doc(doc, types, bool(complex.get("complex")), bool(complex.get("real")))
    return elementwise(name, expr, types=types, saves=saves, grad=grad, doc=doc, **complex)


def into(out: Tensor | None, result: Tensor) -> Tensor:
    if out is None:
        return result
    copied: Tensor = out.copy_(result)
    return copied


def in_place(f: Elementwise, name: str) -> Callable[..., Tensor]:
    """The method that writes `f(x, ...)` into `x`."""

    def method_(x: Tensor, *args: object, **named: object) -> Tensor:
        return f.into(x, *f.placed((x, *args), named)) if named else f.into(x, x, *args)

    method_.__name__ = method_.__qualname__ = name
    method_.__doc__ = f"In-place `{f.name}`: the result replaces the values of `x`; `x`."
    return fronts_over(f)(method_)


def attach(f: Elementwise, name: str) -> None:
    """`Tensor.<name>` and `Tensor.<name>_`."""
    setattr(Tensor, name, f.call)
    setattr(Tensor, name + "_", in_place(f, name + "_"))


# --- samples ----------------------------------------------------------------------------------


def special(name: str) -> Callable[..., Any]:
    """SciPy's function, imported when it is called."""

    def reference(x: object) -> object:
        import scipy.special

        return getattr(scipy.special, name)(x)

    return reference


def within(low: float, high: float) -> Callable[[np.random.Generator], list[Sample]]:
    return lambda rng: [
        Sample((rng.uniform(low, high, (3, 4)),)),
        Sample((rng.uniform(low, high, ()),)),
        Sample((np.zeros((2, 0)),)),
    ]
