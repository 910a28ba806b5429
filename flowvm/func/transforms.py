"""Functions that compute derivatives of functions.

Each call makes leaves of the arguments to differentiate by, runs the function, and goes back.  A
result is in the graph only if a transform around it, or an argument that requires grad, needs it.
Then the leaves are views of the arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from flowvm import autograd
from flowvm.autograd import enable_grad, is_grad_enabled
from flowvm.autograd.functional import real_only
from flowvm.eager.batched import maps
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentTypeError, AutogradError, ShapeError
from flowvm.func.batching import vmap
from flowvm.func.trees import leaves, mapped, rebuilt
from flowvm.guards.regions import Mode, Region
from flowvm.meta.batched_meta import Axis
from flowvm.ops.batched.levels import lifted
from flowvm.ops.shapes.fill import ones_like, zeros_like
from flowvm.ops.shapes.matrices import eye

Function = Callable[..., Any]
_around: Mode[int] = Mode(0)  # how many transforms this thread is in


def _inside() -> Region:
    """Return the region of one more transform on this thread."""
    return _around.to(_around.now() + 1)


def _wanted(tensors: Sequence[Any]) -> bool:
    """Return True if the results will be differentiated again."""
    if _around.now():
        return True
    required = any(isinstance(t, Tensor) and t.requires_grad for t in tensors)
    return required and is_grad_enabled()


def _leaf(name: str, x: Any) -> Any:
    if not isinstance(x, Tensor) or not x.dtype.inexact:
        kind = x.dtype.name if isinstance(x, Tensor) else type(x).__name__
        raise ArgumentTypeError(f"{name}: arguments to differentiate by are floats, got {kind}")
    alias: Any = _of_each(x)
    return alias.view_as(alias) if x.requires_grad else alias.detach().requires_grad_()


def _of_each(x: Tensor) -> Tensor:
    """Return `x` as one of each example of the maps around: each differentiates by its own."""
    return lifted(x, tuple([Axis(m.level.number, m.level.size, 0) for m in maps.now()]))


def _done(result: Any, wanted: bool) -> Any:
    if wanted:
        return result
    return mapped(lambda r: r.detach() if isinstance(r, Tensor) else r, result)


def _back(outputs: Any, inputs: Any, starts: Any, again: bool) -> list[Any]:
    """The gradients of `inputs`, zeros where the outputs do not depend on them."""
    pairs = [
        (o, s) for o, s in zip(outputs, starts, strict=True)
        if isinstance(o, Tensor) and o.requires_grad
    ]  # fmt: skip
    if not pairs:
        return [zeros_like(x) for x in inputs]
    given = autograd.grad(
        [o for o, _ in pairs], inputs, [s for _, s in pairs],
        retain_graph=True, create_graph=again, allow_unused=True,
    )  # fmt: skip
    return [zeros_like(x) if g is None else g for g, x in zip(given, inputs, strict=True)]


def _chosen(name: str, args: tuple[Any, ...], argnums: Any) -> tuple[int, ...]:
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)
    for n in numbers:
        if not isinstance(n, int) or not -len(args) <= n < len(args):
            raise ArgumentTypeError(f"{name}: argnums {argnums!r} for {len(args)} arguments")
    return tuple(n % len(args) for n in numbers)


def _with_leaves(
    name: str, args: tuple[Any, ...], numbers: tuple[int, ...]
) -> tuple[list[Any], list[Any]]:
    """Return the arguments with new leaves of the graph at the places `numbers`, and these
    leaves.
    """
    given, made = list(args), []
    for n in numbers:
        given[n] = mapped(functools.partial(_leaf, name), args[n])
        made += leaves(given[n])
    return given, made


def _with_aux(result: Any, has_aux: bool) -> tuple[Any, Any]:
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        raise ArgumentTypeError("has_aux: the function answers (output, aux)")
    return result


def grad_and_value(func: Function, argnums: Any = 0, has_aux: bool = False) -> Function:
    """Return a function that computes (gradient, value) of `func`, whose value is one number.

    argnums   the argument, or a tuple of arguments, to differentiate by: trees of float tensors
    has_aux   `func` answers (value, aux), and this (gradient, (value, aux))

    >>> flow.func.grad_and_value(lambda x: (x * x).sum())(flow.tensor([1.0, 2.0]))
    (tensor([2., 4.]), tensor(5.))
    """

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        numbers = _chosen("grad", args, argnums)
        wanted = _wanted(leaves(args))
        with _inside(), enable_grad():
            given, made = _with_leaves("grad", args, numbers)
            value, aux = _with_aux(func(*given, **kwargs), has_aux)
            if not isinstance(value, Tensor) or value.ndim:
                shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise ShapeError(f"grad: the function gives one number, a 0-d tensor, got {shape}")
            if value.dtype.is_complex:
                raise AutogradError(
                    f"grad: the function gives one real number, got {value.dtype.name}; "
                    f"take .real or .abs()"
                )
            gradients = _back([value], made, [ones_like(value)], wanted)
        trees, at = [], 0
        for n in numbers:
            count = len(leaves(args[n]))
            trees.append(rebuilt(args[n], gradients[at : at + count]))
            at += count
        gradient = _done(tuple(trees) if isinstance(argnums, tuple) else trees[0], wanted)
        value, aux = _done(value, wanted), _done(aux, wanted)
        return gradient, ((value, aux) if has_aux else value)

    return call


def grad(func: Function, argnums: Any = 0, has_aux: bool = False) -> Function:
    """Return a function that computes the gradient of `func`, whose value is one number.  With
    `has_aux`, it returns (gradient, aux).  Arguments as `grad_and_value`.

    >>> flow.func.grad(lambda x: x * x)(flow.tensor(3.0))
    tensor(6.)
    """
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        gradient, value = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return call


def vjp(func: Function, *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Return (func(*primals), a function from the outputs' weights to the tuple of the primals'
    gradients).  With `has_aux`, `aux` is third.

    >>> value, gradients = flow.func.vjp(lambda x: x * x, flow.tensor([1.0, 2.0]))
    >>> value, gradients(flow.ones(2))
    (tensor([1., 4.]), (tensor([2., 4.]),))
    """
    wanted = _wanted(leaves(primals))
    with _inside(), enable_grad():
        given, made = _with_leaves("vjp", primals, tuple(range(len(primals))))
        output, aux = _with_aux(func(*given), has_aux)
    ends = leaves(output)

    def back(*cotangents: Any, retain_graph: bool = True, create_graph: Any = None) -> Any:
        weights = leaves(cotangents[0] if len(cotangents) == 1 else cotangents)
        if len(weights) != len(ends):
            raise ArgumentTypeError(
                f"vjp: {len(ends)} outputs are weighed with as many tensors, got {len(weights)}"
            )
        again = wanted or _wanted(weights)
        return rebuilt(primals, _done(_back(ends, made, weights, again), again))

    result = _done(output, wanted), back
    return (*result, _done(aux, wanted)) if has_aux else result


def jvp(
    func: Function, primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False
) -> tuple[Any, ...]:
    """Return (func(*primals), its derivative in the direction `tangents`, a tree like the
    primals).  With `has_aux`, `aux` is third.

    It is the gradient of vjp by its weights: two backwards, whatever the sizes.

    >>> x = flow.tensor([1.0, 2.0])
    >>> flow.func.jvp(lambda x: x * x, (x,), (flow.ones(2),))
    (tensor([1., 4.]), tensor([2., 4.]))
    """
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple):
        raise ArgumentTypeError("jvp: primals and tangents are tuples, of all arguments")
    if len(leaves(primals)) != len(leaves(tangents)):
        raise ArgumentTypeError("jvp: tangents have the structure of the primals")
    wanted = _wanted([*leaves(primals), *leaves(tangents)])
    with _inside(), enable_grad():
        given, made = _with_leaves("jvp", primals, tuple(range(len(primals))))
        output, aux = _with_aux(func(*given), has_aux)
        ends = leaves(output)
        weights: list[Any] = [_of_each(zeros_like(e)).detach().requires_grad_() for e in ends]
        back = _back(ends, made, weights, True)
        slopes = _back(back, weights, leaves(tangents), wanted)
    result = _done(output, wanted), _done(rebuilt(output, slopes), wanted)
    return (*result, _done(aux, wanted)) if has_aux else result


def linearize(func: Function, *primals: Any) -> tuple[Any, Function]:
    """Return (func(*primals), a function from tangents to the derivative in their direction there).

    >>> value, derivative = flow.func.linearize(lambda x: x * x, flow.tensor([1.0, 2.0]))
    >>> value, derivative(flow.ones(2))
    (tensor([1., 4.]), tensor([2., 4.]))
    """
    output = func(*primals)

    def forward(*tangents: Any) -> Any:
        return jvp(func, primals, tangents)[1]

    return output, forward


def jacrev(
    func: Function,
    argnums: Any = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
    _preallocate_and_copy: bool = False,
) -> Function:
    """Return a function that computes the Jacobian of `func`.  For each output and each argument of
    `argnums` it is a tensor of shape [*output's, *argument's].

    One backward computes all rows, as a map over them; `chunk_size` at once, if that is given.

    >>> flow.func.jacrev(lambda x: x * x)(flow.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        numbers = _chosen("jacrev", args, argnums)
        wanted = _wanted(leaves(args))
        with _inside(), enable_grad():
            given, made = _with_leaves("jacrev", args, numbers)
            output, aux = _with_aux(func(*given, **kwargs), has_aux)
            real_only("jacrev", (*made, *leaves(output)))
            blocks = [_rows(end, made, wanted, chunk_size) for end in leaves(output)]
        result = _done(_blocks(blocks, output, args, argnums, numbers), wanted)
        return (result, _done(aux, wanted)) if has_aux else result

    return call


def _blocks(blocks: list[list[Any]], output: Any, args: Any, argnums: Any, numbers: Any) -> Any:
    """Return the Jacobian's blocks, a list for each result, as trees of results of arguments."""
    trees = []
    for block in blocks:
        each, at = [], 0
        for n in numbers:
            count = len(leaves(args[n]))
            each.append(rebuilt(args[n], block[at : at + count]))
            at += count
        trees.append(tuple(each) if isinstance(argnums, tuple) else each[0])
    return rebuilt(output, trees)


def _rows(end: Any, made: list[Any], again: bool, chunk_size: int | None) -> list[Any]:
    """Return the derivatives of one result by each leaf: a backward for all of its elements."""
    if not isinstance(end, Tensor):
        raise AutogradError(f"jacrev: the function gives tensors, got {type(end).__name__}")
    count = end.numel()
    if not count:
        return [zeros_like(x).expand((*end.shape, *x.shape)) for x in made]
    if count == 1:
        rows = _back([end], made, [ones_like(end)], again)
    else:
        rows = _of_units(end, lambda start: _back([end], made, [start], again), 0, chunk_size)
    return [r.reshape((*end.shape, *x.shape)) for r, x in zip(rows, made, strict=True)]


def _of_units(
    x: Tensor, function: Callable[[Any], list[Any]], out_dim: int, chunk_size: int | None = None
) -> list[Any]:
    """Map a function over the unit tensors of the shape of `x`."""
    count = x.numel()
    units: Any = eye(count, dtype=x.dtype, device=x.device).reshape((count, *x.shape))
    over = vmap(function, out_dims=out_dim, randomness="same", chunk_size=chunk_size)
    columns: list[Any] = over(units)
    return columns


def jacfwd(
    func: Function, argnums: Any = 0, has_aux: bool = False, *, randomness: str = "error"
) -> Function:
    """Return a function that computes the Jacobian of `func`, as `jacrev` does: all columns at once
    where there are fewer of them than half of the rows, by a backward of a backward; else the rows.

    The function runs once, so `randomness` of PyTorch's map over columns means nothing.

    >>> flow.func.jacfwd(lambda x: x * x)(flow.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        numbers = _chosen("jacfwd", args, argnums)
        wanted = _wanted(leaves(args))
        with _inside(), enable_grad():
            given, made = _with_leaves("jacfwd", args, numbers)
            output, aux = _with_aux(func(*given, **kwargs), has_aux)
            ends = leaves(output)
            real_only("jacfwd", (*made, *ends))
            if 2 * sum(x.numel() for x in made) < sum(e.numel() for e in ends):
                blocks = _columns(ends, made, wanted)
            else:
                blocks = [_rows(end, made, wanted, None) for end in ends]
        result = _done(_blocks(blocks, output, args, argnums, numbers), wanted)
        return (result, _done(aux, wanted)) if has_aux else result

    return call


def _columns(ends: list[Any], made: list[Any], again: bool) -> list[list[Any]]:
    """Return the derivatives of each result by each leaf: a backward for all of a leaf's elements,
    of the gradient by what it weighs the results with.
    """
    weights: list[Any] = [_of_each(zeros_like(e)).detach().requires_grad_() for e in ends]
    back = _back(ends, made, weights, True)
    blocks: list[list[Any]] = [[] for _ in ends]
    for x, gradient in zip(made, back, strict=True):
        if x.numel():
            slope = functools.partial(_slopes, gradient, weights, again)
            columns = _of_units(x, slope, -1)
        else:
            columns = [zeros_like(e).unsqueeze(-1)[..., :0] for e in ends]
        for block, column, end in zip(blocks, columns, ends, strict=True):
            block.append(column.reshape((*end.shape, *x.shape)))
    return blocks


def _slopes(gradient: Any, weights: list[Any], again: bool, unit: Any) -> list[Any]:
    return _back([gradient], weights, [unit], again)


def hessian(func: Function, argnums: Any = 0) -> Function:
    """Return a function that computes the second derivatives of `func`.  For each output and each
    two arguments of `argnums` it is a tensor of shape [*output's, *argument's, *argument's].

    >>> flow.func.hessian(lambda x: (x**3).sum())(flow.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    return jacfwd(jacrev(func, argnums), argnums)
