"""Derivatives of functions: products with a Jacobian or Hessian, and the matrices themselves.

PyTorch's `torch.autograd.functional`: each takes a function of tensors and the point, as a tensor
or a tuple of them, and what it returns has the same structure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flowvm.autograd.backward import grad
from flowvm.autograd.modes import enable_grad
from flowvm.eager.tensor import Tensor
from flowvm.eager.values import adopt_array
from flowvm.errors import ArgumentTypeError, AutogradError, DTypeError
from flowvm.loading.listing import listing
from flowvm.ops.declare.composite import filled_of
from flowvm.ops.shapes.join import stack

# public: autograd

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]
__dir__ = listing(globals())

Function = Callable[..., Any]
Tensors = Tensor | Sequence[Tensor]


def vjp(
    func: Function,
    inputs: Tensors,
    v: Tensors | None = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """(func(*inputs), v times the Jacobian); `v` has the outputs' structure and may be left out for
    one number.

    >>> x, v = flow.tensor([1.0, 2.0]), flow.ones(2)
    >>> flow.autograd.functional.vjp(lambda x: x * x, x, v)
    (tensor([1., 4.]), tensor([2., 4.]))
    """
    with enable_grad():
        point = _point(inputs, create_graph)
        outputs = _evaluate(func, point, strict)
        gradients = _grad(outputs, point, _vector(v, outputs, "v"), create_graph, strict)
        return _like_outputs(outputs, create_graph), _like_inputs(gradients, inputs, create_graph)


def jvp(
    func: Function,
    inputs: Tensors,
    v: Tensors | None = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """(func(*inputs), the Jacobian times v); `v` has the inputs' structure.

    The gradient of vjp with respect to its vector: two backwards, whatever the sizes.

    >>> x, v = flow.tensor([1.0, 2.0]), flow.ones(2)
    >>> flow.autograd.functional.jvp(lambda x: x * x, x, v)
    (tensor([1., 4.]), tensor([2., 4.]))
    """
    with enable_grad():
        point = _point(inputs, create_graph)
        direction = _vector(v, point, "v")
        outputs = _evaluate(func, point, strict)
        listed = _listed(outputs)
        duals = [filled_of(o._meta, 0).requires_grad_() for o in listed]
        back = _grad(outputs, point, duals, True, strict)
        gradients = _grad(back, duals, direction, create_graph, strict)
        several = not isinstance(outputs, Tensor)
        result = tuple(_finish(f, create_graph) for f in gradients)
        return _like_outputs(outputs, create_graph), result if several else result[0]


def jacobian(
    func: Function,
    inputs: Tensors,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """The Jacobian, of shape [*output's, *input's], for each pair of output and input.

    `vectorize` and `strategy` are there for PyTorch's sake: a row is computed at a time, by
    backward.

    >>> flow.autograd.functional.jacobian(lambda x: x * x, flow.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    with enable_grad():
        point = _point(inputs, create_graph)
        outputs = _evaluate(func, point, strict)
        real_only("jacobian", (*point, *_listed(outputs)))
        rows = []
        for out in _listed(outputs):
            kind = out.dtype
            basis = np.eye(out.numel()).reshape(-1 if out.numel() else 0, *out.shape)
            starts = [adopt_array(kind.stored(b), dtype=kind) for b in basis]
            grads = [_grad(out, point, [start], create_graph, strict) for start in starts]
            blocks = tuple(
                _stacked([g[k] for g in grads], out, t, create_graph) for k, t in enumerate(point)
            )
            rows.append(blocks[0] if isinstance(inputs, Tensor) else blocks)
        return rows[0] if isinstance(outputs, Tensor) else tuple(rows)


def hessian(
    func: Function,
    inputs: Tensors,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """The Hessian of a function that returns one number: [*input's shape, *input's shape] for each
    pair of inputs.

    >>> flow.autograd.functional.hessian(lambda x: (x**3).sum(), flow.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """

    def gradient(*point: Tensor) -> object:
        out = _one_number(func(*point))
        gradient = _grad(out, point, None, True, strict)
        return gradient[0] if isinstance(inputs, Tensor) else tuple(gradient)

    return jacobian(gradient, inputs, create_graph, strict)


def vhp(
    func: Function,
    inputs: Tensors,
    v: Tensors | None = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """(func(*inputs), v times the Hessian) for a function that returns one number.

    >>> x, v = flow.tensor([1.0, 2.0]), flow.ones(2)
    >>> flow.autograd.functional.vhp(lambda x: (x**3).sum(), x, v)
    (tensor(9.), tensor([ 6., 12.]))
    """
    with enable_grad():
        point = _point(inputs, create_graph)
        direction = _vector(v, point, "v")
        out = _one_number(_evaluate(func, point, strict))
        first = _grad(out, point, None, True, strict)
        gradients = _grad(first, point, direction, create_graph, strict)
        return _finish(out, create_graph), _like_inputs(gradients, inputs, create_graph)


def hvp(
    func: Function,
    inputs: Tensors,
    v: Tensors | None = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """(func(*inputs), the Hessian times v) for a function that returns one number; `vhp`, since the
    Hessian is symmetric.

    >>> x, v = flow.tensor([1.0, 2.0]), flow.ones(2)
    >>> flow.autograd.functional.hvp(lambda x: (x**3).sum(), x, v)
    (tensor(9.), tensor([ 6., 12.]))
    """
    return vhp(func, inputs, v, create_graph, strict)


# --- pieces -----------------------------------------------------------------------------------


def _listed(tensors: Any) -> list[Tensor]:
    listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    for t in listed:
        if not isinstance(t, Tensor):
            raise ArgumentTypeError(f"tensors are wanted here, got {type(t).__name__}")
    return listed


def _point(inputs: Tensors, create_graph: bool) -> list[Tensor]:
    """The inputs as tensors of our own that require grad: in the caller's graph only if that is
    wanted.
    """
    point = []
    for t in _listed(inputs):
        if create_graph and t.requires_grad:
            point.append(t.view_as(t))
        else:
            point.append(t.detach().requires_grad_())
    return point


def _evaluate(func: Function, point: list[Tensor], strict: bool) -> Any:
    outputs = func(*point)
    for i, out in enumerate(_listed(outputs)):
        if strict and not out.requires_grad:
            raise AutogradError(
                f"output {i} of the function does not depend on the inputs, and strict=True "
                f"allows none"
            )
    return outputs


# not public
def real_only(name: str, tensors: Iterable[object]) -> None:
    """DTypeError for complex tensors, which have no Jacobian: a gradient is its conjugate."""
    for t in tensors:
        if isinstance(t, Tensor) and t.dtype.is_complex:
            raise DTypeError(
                f"{name} is for real tensors, got {t.dtype.name}; write the function with "
                f"view_as_complex and view_as_real, of pairs of real numbers"
            )


def _one_number(out: Tensor) -> Tensor:
    if not isinstance(out, Tensor) or out.numel() != 1:
        shape = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise AutogradError(f"the function must return a Tensor of one element, got {shape}")
    return out


def _vector(v: Tensors | None, like: list[Tensor], name: str) -> list[Tensor]:
    tensors = _listed(like)
    if v is None:
        if len(tensors) != 1 or tensors[0].numel() != 1:
            raise AutogradError(f"{name} may only be left out for a single tensor of one element")
        if tensors[0].dtype.is_complex:
            raise AutogradError(f"{name} may only be left out for a real tensor, this is complex")
        return [filled_of(tensors[0]._meta, 1)]
    vectors = _listed(v)
    if len(vectors) != len(tensors) or any(
        g.shape != t.shape for g, t in zip(vectors, tensors, strict=True)
    ):
        raise AutogradError(
            f"{name} has shapes {[tuple(g.shape) for g in vectors]}, and must have "
            f"{[tuple(t.shape) for t in tensors]}"
        )
    return vectors


def _grad(
    outputs: list[Tensor] | Tensor,
    inputs: Sequence[Tensor],
    v: Sequence[Tensor] | None,
    create_graph: bool,
    strict: bool,
) -> list[Tensor]:
    """Gradients; zeros for inputs that the outputs do not depend on, unless that is an error."""
    listed = _listed(outputs)
    vectors: Sequence[Tensor | None] = [None] * len(listed) if v is None else v
    pairs = [(o, g) for o, g in zip(listed, vectors, strict=True) if o.requires_grad]
    gradients: Sequence[Tensor | None] = [None] * len(inputs)
    if pairs:
        gradients = grad(
            [o for o, _ in pairs],
            inputs,
            [g for _, g in pairs],
            retain_graph=True,
            create_graph=create_graph,
            allow_unused=True,
        )
    if strict and any(g is None for g in gradients):
        place = next(i for i, g in enumerate(gradients) if g is None)
        raise AutogradError(
            f"the outputs do not depend on input {place}, and strict=True allows none"
        )
    return [
        filled_of(t._meta, 0) if g is None else g for g, t in zip(gradients, inputs, strict=True)
    ]


def _finish(t: Tensor, create_graph: bool) -> Tensor:
    return t if create_graph else t.detach()


def _like_inputs(
    gradients: list[Tensor], inputs: Tensors, create_graph: bool
) -> Tensor | tuple[Tensor, ...]:
    result = tuple(_finish(f, create_graph) for f in gradients)
    return result[0] if isinstance(inputs, Tensor) else result


def _like_outputs(outputs: Tensor | Iterable[Tensor], create_graph: bool) -> object:
    if isinstance(outputs, Tensor):
        return _finish(outputs, create_graph)
    return tuple(_finish(o, create_graph) for o in outputs)


def _stacked(rows: list[Tensor], out: Tensor, t: Tensor, create_graph: bool) -> Tensor:
    shape = (*out.shape, *t.shape)
    if not rows:
        return filled_of(t._meta.with_shape(shape), 0)
    matrix: Tensor = stack([_finish(r, create_graph) for r in rows]).reshape(shape)
    return matrix
