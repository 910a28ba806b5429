"""Gradients against finite differences: `gradcheck` for first derivatives, `gradgradcheck` for
second.

A Jacobian is computed twice, a row at a time by backward and a column at a time by central
differences, and both are in the error when they differ.  The function is called on its own copies
for the differences, so the inputs never change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flowvm.autograd.backward import grad
from flowvm.autograd.modes import enable_grad
from flowvm.eager.tensor import Tensor
from flowvm.eager.values import adopt_array, values_of
from flowvm.errors import ArgumentError, FlowError, GradcheckError
from flowvm.loading.listing import listing
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import float64

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]
__dir__ = listing(globals())


# public: autograd
def gradcheck(
    func: Callable[..., object],
    inputs: Tensor | Sequence[object],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    fast_mode: bool = False,
) -> bool:
    """Check the gradients of `func` at `inputs` against finite differences; return True if equal.

    Inputs that require grad are checked; they should be float64 or complex128, or `eps` drowns in
    rounding.
    `func` returns a tensor or a tuple.  On a difference GradcheckError, or False with
    raise_exception=False.  nondet_tol is how far a second backward may be from the first.
    check_undefined_grad, check_grad_dtypes and fast_mode are there for PyTorch's sake: backward
    always gives every gradient its input's dtype, and each output's gradient is always tried alone.

    >>> x = flow.tensor([1.0, 2.0], dtype=flow.float64, requires_grad=True)
    >>> flow.autograd.gradcheck(flow.exp, (x,))
    True
    """
    if check_batched_grad:
        raise ArgumentError("check_batched_grad=True is not supported")
    func, points = _in_pairs(func, _tuple(inputs))
    try:
        _check(func, points, eps, atol, rtol, nondet_tol)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


# public: autograd
def gradgradcheck(
    func: Callable[..., object],
    inputs: Tensor | Sequence[object],
    grad_outputs: Tensor | Sequence[Tensor] | None = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    fast_mode: bool = False,
) -> bool:
    """Check the gradients of the gradients of `func` against finite differences; see `gradcheck`.

    grad_outputs are the gradients that the first backward starts from; random ones if left out.

    >>> x = flow.tensor([1.0, 2.0], dtype=flow.float64, requires_grad=True)
    >>> flow.autograd.gradgradcheck(flow.exp, (x,))
    True
    """
    func, points = _in_pairs(func, _tuple(inputs))
    outputs = _outputs(func, points)
    if grad_outputs is None:
        rng = np.random.default_rng(len(outputs))
        grads = tuple(
            _leaf_like(rng.standard_normal(tuple(o.shape)), o, gen_non_contig_grad_outputs)
            for o in outputs
        )
    else:
        grads = _tuple(grad_outputs)
    n = len(points)

    def first(*args: Any) -> tuple[Tensor, ...]:
        outs = _outputs(func, args[:n])
        inputs_of_grad = [a for a in args[:n] if isinstance(a, Tensor) and a.requires_grad]
        gradients = grad(outs, inputs_of_grad, args[n:], create_graph=True, allow_unused=True)
        return tuple(g for g in gradients if g is not None)

    return gradcheck(
        first,
        (*points, *grads),
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        nondet_tol=nondet_tol,
        check_batched_grad=check_batched_grad,
    )


def _tuple(values: Iterable[object]) -> tuple[Any, ...]:
    return (values,) if isinstance(values, Tensor) else tuple(values)


def _in_pairs(
    func: Callable[..., object], inputs: tuple[Any, ...]
) -> tuple[Callable[..., object], tuple[object, ...]]:
    """The function and its inputs with complex tensors as pairs of real numbers."""
    places = [k for k, t in enumerate(inputs) if isinstance(t, Tensor) and t.is_complex()]
    if not places:
        return func, inputs
    points: list[Any] = list(inputs)
    for k in places:
        points[k] = points[k].detach().view_as_real().clone()
        points[k].requires_grad_(inputs[k].requires_grad)

    def of_pairs(*args: Any) -> object:
        complex_args = list(args)
        for k in places:
            complex_args[k] = complex_args[k].view_as_complex()
        return func(*complex_args)

    return of_pairs, tuple(points)


def _leaf_like(values: Array, like: Tensor, spread: bool) -> Tensor:
    if spread and values.ndim:
        values = np.repeat(values, 2, axis=-1)[..., ::2]
    tensor = adopt_array(like.dtype.stored(values), dtype=like.dtype)
    tensor.requires_grad = True
    return tensor


def _outputs(
    func: Callable[..., Any], args: tuple[object, ...], recorded: bool = True
) -> list[Tensor]:
    """The function's outputs that require grad, or all floating ones; complex ones as pairs."""
    with enable_grad():
        result = func(*args)
    listed = [result] if isinstance(result, Tensor) else list(result)
    tensors: list[Tensor] = [o for o in listed if isinstance(o, Tensor) and o.dtype.inexact]
    floating = [o.view_as_real() if o.dtype.is_complex else o for o in tensors]
    return [o for o in floating if o.requires_grad] if recorded else floating


def _check(
    func: Callable[..., object],
    inputs: tuple[Any, ...],
    eps: float,
    atol: float,
    rtol: float,
    nondet_tol: float,
) -> None:
    places = [i for i, t in enumerate(inputs) if isinstance(t, Tensor) and t.requires_grad]
    if not places:
        raise ArgumentError("gradcheck expects at least one input tensor to require gradient")
    low = [i for i in places if inputs[i].dtype is not float64]
    if low:
        raise ArgumentError(
            f"gradcheck needs float64 inputs, input {low[0]} is {inputs[low[0]].dtype.name}; "
            f"convert it with .double()"
        )
    targets = [inputs[i] for i in places]
    outputs = _outputs(func, inputs)
    analytical = _analytical(outputs, targets)
    if nondet_tol < float("inf"):
        _same(analytical, _analytical(outputs, targets), nondet_tol)
    if not outputs:
        _check_constant(func, inputs, places, eps, atol)
        return
    for k, place in enumerate(places):
        numerical = _numerical(func, inputs, place, eps)
        if len(numerical) != len(outputs):
            raise GradcheckError(
                f"the function gave {len(outputs)} differentiable outputs, then {len(numerical)}"
            )
        for j, number in enumerate(numerical):
            _compare(number, analytical[j][k], j, place, atol, rtol)


def _check_constant(
    func: Callable[..., object],
    inputs: tuple[object, ...],
    places: list[int],
    eps: float,
    atol: float,
) -> None:
    """Check a function whose results require no grad: no input may change them."""
    for place in places:
        for j, number in enumerate(_numerical(func, inputs, place, eps, recorded=False)):
            if number.size and not np.abs(number).max() <= atol:
                raise GradcheckError(
                    f"no output of the function requires grad, but output {j} changes with input "
                    f"{place}; is an "
                    f"operation not differentiable, or under no_grad?  numerical:\n{number}"
                )


def _analytical(outputs: list[Tensor], inputs: list[Tensor]) -> list[list[Array]]:
    """For each output and input: d output / d input, as [elements of the output, of the input]."""
    jacobians = []
    for out in outputs:
        rows = np.eye(out.numel()).reshape(-1 if out.numel() else 0, *out.shape)
        blocks = [np.zeros((out.numel(), t.numel())) for t in inputs]
        for r in range(out.numel()):
            start = adopt_array(out.dtype.stored(rows[r]), dtype=out.dtype)
            try:
                grads = grad(out, inputs, start, retain_graph=True, allow_unused=True)
            except FlowError as error:
                raise GradcheckError(f"backward of output element {r} failed: {error}") from error
            for block, g, t in zip(blocks, grads, inputs, strict=True):
                if g is None:
                    continue
                if g.shape != t.shape or g.dtype is not t.dtype:
                    raise GradcheckError(
                        f"a gradient is {g.dtype.name} {tuple(g.shape)} for an input "
                        f"{t.dtype.name} {tuple(t.shape)}"
                    )
                block[r] = g.numpy().reshape(-1)
        jacobians.append(blocks)
    return jacobians


def _numerical(
    func: Callable[..., object],
    inputs: tuple[Any, ...],
    place: int,
    eps: float,
    recorded: bool = True,
) -> list[Array]:
    values = inputs[place].numpy()
    columns: list[list[Array]] = []

    def at(i: int, change: float) -> list[Array]:
        moved = np.array(values, order="C")
        moved.reshape(-1)[i] += change
        args = list(inputs)
        # requires_grad decides which outputs count, and functions that call grad need it
        args[place] = adopt_array(moved).requires_grad_()
        outputs = _outputs(func, tuple(args), recorded)
        return [values_of(o).astype(np.float64).reshape(-1) for o in outputs]

    for i in range(values.size):
        above, below = at(i, eps), at(i, -eps)
        columns.append([(a - b) / (2 * eps) for a, b in zip(above, below, strict=True)])
    if not columns:
        return [np.zeros((o.numel(), 0)) for o in _outputs(func, inputs, recorded)]
    return [np.stack([c[j] for c in columns], axis=1) for j in range(len(columns[0]))]


def _compare(
    numerical: Array, analytical: Array, output: int, place: int, atol: float, rtol: float
) -> None:
    if numerical.shape == analytical.shape and np.allclose(
        analytical, numerical, rtol, atol, equal_nan=True
    ):
        return
    text = (
        f"Jacobian mismatch for output {output} with respect to input {place},\n"
        f"numerical:\n{numerical}\nanalytical:\n{analytical}"
    )
    if numerical.shape == analytical.shape:
        far = np.abs(numerical - analytical)
        worst = np.unravel_index(np.argmax(np.nan_to_num(far, nan=np.inf)), far.shape)
        text += (
            f"\nfarthest apart, by {far[worst]:.3g}: output element {worst[0]}, input element "
            f"{worst[1]}"
        )
    raise GradcheckError(text)


def _same(first: list[list[Array]], second: list[list[Array]], tolerance: float) -> None:
    for j, (row, again) in enumerate(zip(first, second, strict=True)):
        for k, (a, b) in enumerate(zip(row, again, strict=True)):
            if not np.allclose(a, b, 0, tolerance, equal_nan=True):
                raise GradcheckError(
                    f"backward is not deterministic: output {j}, input {k} differ by "
                    f"{np.abs(a - b).max():.3g} "
                    f"between two runs (nondet_tol={tolerance})"
                )
