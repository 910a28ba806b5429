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
from flowvm.eager.nodes import Node
from flowvm.eager.tensor import Tensor, alias
from flowvm.errors import ArgumentError, ArgumentTypeError, AutogradError, ShapeError
from flowvm.func.batching import vmap
from flowvm.func.trees import leaves, mapped, rebuilt
from flowvm.guards.regions import Mode, Region
from flowvm.meta.batched_meta import Axis
from flowvm.meta.formats import strided
from flowvm.ops.batched.levels import lifted
from flowvm.ops.declare.composite import Recorded
from flowvm.ops.shapes.fill import ones_like, zeros_like
from flowvm.ops.shapes.matrices import eye

Function = Callable[..., Any]
_around: Mode[int] = Mode(0)  # how many transforms this thread is in


def _inside() -> Region:
    """Return the region of one more transform on this thread."""
    return _around.to(_around.now() + 1)


def _need_grad(tensors: Sequence[object]) -> bool:
    """Return True if the results will be differentiated again."""
    if not is_grad_enabled():
        return False
    return bool(_around.now()) or any(isinstance(t, Tensor) and t.requires_grad for t in tensors)


def _leaf(name: str, x: object) -> object:
    if not isinstance(x, Tensor) or not x.dtype.inexact:
        kind = x.dtype.name if isinstance(x, Tensor) else type(x).__name__
        raise ArgumentTypeError(f"{name}: arguments to differentiate by are floats, got {kind}")
    alias: Tensor = _of_each(x)
    return alias.view_as(alias) if x.requires_grad else alias.detach().requires_grad_()


def _open(x: Tensor) -> Tensor:
    """Return what a function gets for a leaf: the same memory, which it may change in place."""
    if not x.is_leaf or x.layout is not strided:
        return x
    out = alias(x, x._meta)
    out._node = Node(_OPENED, (x._node,), (), (), (x._meta,), (), (out._meta,))
    return out


_OPENED: object = Recorded("open_leaf", lambda c, g: (g,), ("x",))


def _of_each(x: Tensor) -> Tensor:
    """Return `x` as one of each example of the maps around: each differentiates by its own."""
    return lifted(x, tuple([Axis(m.level.number, m.level.size, 0) for m in maps.now()]))


def _finish(result: object, needs_grad: bool) -> Any:
    if needs_grad:
        return result
    return mapped(lambda r: r.detach() if isinstance(r, Tensor) else r, result)


def _back(
    outputs: Any, inputs: Tensor | Sequence[Tensor], starts: list[Tensor] | list[Any], again: bool
) -> list[Any]:
    """The gradients of `inputs`, zeros where the outputs do not depend on them."""
    pairs = [
        (o, s) for o, s in zip(outputs, starts, strict=True)
        if isinstance(o, Tensor) and o.requires_grad
    ]  # fmt: skip
    if not pairs:
        return [zeros_like(x) for x in inputs]
    gradients = autograd.grad(
        [o for o, _ in pairs], inputs, [s for _, s in pairs],
        retain_graph=True, create_graph=again, allow_unused=True,
    )  # fmt: skip
    return [zeros_like(x) if g is None else g for g, x in zip(gradients, inputs, strict=True)]


def _chosen(name: str, args: tuple[object, ...], argnums: object) -> tuple[int, ...]:
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)
    for n in numbers:
        if type(n) is not int:
            raise ArgumentError(
                f"{name}: argnums must be int or a tuple of them, got {type(n).__name__} {n!r}"
            )
        if not -len(args) <= n < len(args):
            raise ArgumentError(f"{name}: got argnum={n}, but only {len(args)} positional inputs")
    places = tuple(n % len(args) for n in numbers)
    if not places:
        raise ArgumentError(f"{name}: argnums must be non-empty, got ()")
    if len(set(places)) < len(places):
        raise ArgumentError(f"{name}: argnums elements must be unique, got {argnums!r}")
    return places


def _with_leaves(
    name: str, args: tuple[object, ...], numbers: tuple[int, ...]
) -> tuple[list[object], list[Any]]:
    """Return the arguments with new leaves of the graph at the places `numbers`, and these
    leaves.
    """
    arguments, inputs = list(args), []
    for n in numbers:
        branch = mapped(functools.partial(_leaf, name), args[n])
        inputs += leaves(branch)
        arguments[n] = mapped(_open, branch)
    return arguments, inputs


def _with_aux(name: str, result: object, has_aux: bool) -> tuple[object, object]:
    """Return the function's output, and what it gives beside that with `has_aux`."""
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        raise ArgumentError(
            f"{name}: with has_aux the function gives a tuple (output, aux), got "
            f"{type(result).__name__}"
        )
    for x in leaves(result[1]):
        if not isinstance(x, Tensor):
            raise ArgumentError(f"{name}: expected tensors in aux, got type {type(x).__name__}")
    return result


def _ends(name: str, output: object) -> list[Any]:
    """Return the tensors of a function's output; ArgumentError if there are none, or others."""
    ends = leaves(output)
    for x in ends:
        if not isinstance(x, Tensor):
            raise ArgumentError(
                f"{name}: expected the function to give tensors, got type {type(x).__name__}"
            )
    if not ends:
        raise ArgumentError(
            f"{name}: expected the function to have a non-empty output, got {output!r}"
        )
    return ends


def _alike(name: str, what: str, tree: object, like: object) -> None:
    """Raise ArgumentError unless a tree has the structure of another."""
    if _form(tree) != _form(like):
        raise ArgumentError(
            f"{name}: expected pytree structure of {what} to be the same, got {_form(tree)} for "
            f"{_form(like)}"
        )


def _form(tree: object) -> object:
    if isinstance(tree, dict):
        return {key: _form(branch) for key, branch in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(map(_form, tree)) if type(tree) in (tuple, list) else [*map(_form, tree)]
    return "*"


def grad_and_value(func: Function, argnums: object = 0, has_aux: bool = False) -> Function:
    """Return a function that computes (gradient, value) of `func`, whose value is one number.

    argnums   the argument, or a tuple of arguments, to differentiate by: trees of float tensors
    has_aux   `func` answers (value, aux), and this (gradient, (value, aux))

    >>> flow.func.grad_and_value(lambda x: (x * x).sum())(flow.tensor([1.0, 2.0]))
    (tensor([2., 4.]), tensor(5.))
    """

    @functools.wraps(func)
    def call(*args: object, **kwargs: object) -> tuple[object, tuple[object, object] | object]:
        numbers = _chosen("grad", args, argnums)
        needs_grad = _need_grad(leaves(args))
        with _inside(), enable_grad():
            arguments, inputs = _with_leaves("grad", args, numbers)
            value, aux = _with_aux("grad", func(*arguments, **kwargs), has_aux)
            if not isinstance(value, Tensor) or value.ndim:
                shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise ShapeError(f"grad: the function gives one number, a 0-d tensor, got {shape}")
            if value.dtype.is_complex:
                raise AutogradError(
                    f"grad: the function gives one real number, got {value.dtype.name}; "
                    f"take .real or .abs()"
                )
            gradients = _back([value], inputs, [ones_like(value)], needs_grad)
        trees, at = [], 0
        for n in numbers:
            count = len(leaves(args[n]))
            trees.append(rebuilt(args[n], gradients[at : at + count]))
            at += count
        gradient = _finish(tuple(trees) if isinstance(argnums, tuple) else trees[0], needs_grad)
        value, aux = _finish(value, needs_grad), _finish(aux, needs_grad)
        return gradient, ((value, aux) if has_aux else value)

    return call


def grad(func: Function, argnums: object = 0, has_aux: bool = False) -> Function:
    """Return a function that computes the gradient of `func`, whose value is one number.  With
    `has_aux`, it returns (gradient, aux).  Arguments as `grad_and_value`.

    >>> flow.func.grad(lambda x: x * x)(flow.tensor(3.0))
    tensor(6.)
    """
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def call(*args: object, **kwargs: object) -> object:
        gradient, value = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return call


def vjp(func: Function, *primals: object, has_aux: bool = False) -> tuple[Any, ...]:
    """Return (func(*primals), a function from the outputs' weights to the tuple of the primals'
    gradients).  With `has_aux`, `aux` is third.

    >>> value, gradients = flow.func.vjp(lambda x: x * x, flow.tensor([1.0, 2.0]))
    >>> value, gradients(flow.ones(2))
    (tensor([1., 4.]), (tensor([2., 4.]),))
    """
    needs_grad = _need_grad(leaves(primals))
    with _inside(), enable_grad():
        arguments, inputs = _with_leaves("vjp", primals, tuple(range(len(primals))))
        output, aux = _with_aux("vjp", func(*arguments), has_aux)
    ends = _ends("vjp", output)

    def back(*cotangents: object, retain_graph: bool = True, create_graph: object = None) -> object:
        tree = cotangents[0] if len(cotangents) == 1 else cotangents
        _alike("vjp", "the cotangents and of the output", tree, output)
        weights = leaves(tree)
        again = (needs_grad and is_grad_enabled()) or _need_grad([*weights, *leaves(primals)])
        return rebuilt(primals, _finish(_back(ends, inputs, weights, again), again))

    result = _finish(output, needs_grad), back
    return (*result, _finish(aux, needs_grad)) if has_aux else result


def jvp(
    func: Function,
    primals: tuple[object, ...] | tuple[Tensor, ...],
    tangents: tuple[object, ...] | tuple[Tensor, ...],
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> tuple[Any, ...]:
    """Return (func(*primals), its derivative in the direction `tangents`, a tree like the
    primals).  With `has_aux`, `aux` is third.

    It is the gradient of vjp by its weights: two backwards, whatever the sizes.

    >>> x = flow.tensor([1.0, 2.0])
    >>> flow.func.jvp(lambda x: x * x, (x,), (flow.ones(2),))
    (tensor([1., 4.]), tensor([2., 4.]))
    """
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple):
        raise ArgumentError(
            f"jvp: expected primals and tangents to be a tuple, of all arguments, got "
            f"{type(primals).__name__} and {type(tangents).__name__}"
        )
    _alike("jvp", "primals and tangents", tangents, primals)
    if not any(isinstance(x, Tensor) for x in leaves(primals)):
        raise ArgumentError("jvp: expected at least one Tensor in primals, got none")
    return directional(func, primals, tangents, strict, has_aux)


def directional(
    func: Function, primals: Any, tangents: object, strict: bool = False, has_aux: bool = False,
    empty: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """Do what `jvp` does; with `empty`, of functions without results, too."""
    needs_grad = _need_grad([*leaves(primals), *leaves(tangents)])
    with _inside(), enable_grad():
        arguments, inputs = _with_leaves("jvp", primals, tuple(range(len(primals))))
        output, aux = _with_aux("jvp", func(*arguments), has_aux)
        ends = [] if empty and not leaves(output) else _ends("jvp", output)
        if strict and not all(e.requires_grad for e in ends):
            raise AutogradError(
                "jvp: an output does not depend on the primals, which strict=True refuses"
            )
        weights: list[Any] = [_of_each(zeros_like(e)).detach().requires_grad_() for e in ends]
        back = _back(ends, inputs, weights, True)
        slopes = _back(back, weights, leaves(tangents), needs_grad)
    result = _finish(output, needs_grad), _finish(rebuilt(output, slopes), needs_grad)
    return (*result, _finish(aux, needs_grad)) if has_aux else result


def linearize(func: Function, *primals: object) -> tuple[Any, Function]:
    """Return (func(*primals), a function from tangents to the derivative in their direction there).

    >>> value, derivative = flow.func.linearize(lambda x: x * x, flow.tensor([1.0, 2.0]))
    >>> value, derivative(flow.ones(2))
    (tensor([1., 4.]), tensor([2., 4.]))
    """
    output = func(*primals)

    def forward(*tangents: object) -> object:
        return jvp(func, primals, tangents)[1]

    return output, forward


def jacrev(
    func: Function,
    argnums: object = 0,
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

    if chunk_size is not None and (type(chunk_size) is not int or chunk_size < 1):
        raise ArgumentError(f"jacrev: chunk_size is None or an int from 1 up, got {chunk_size!r}")

    @functools.wraps(func)
    def call(*args: object, **kwargs: object) -> object:
        numbers = _chosen("jacrev", args, argnums)
        needs_grad = _need_grad(leaves(args))
        with _inside(), enable_grad():
            arguments, inputs = _with_leaves("jacrev", args, numbers)
            output, aux = _with_aux("jacrev", func(*arguments, **kwargs), has_aux)
            ends = _ends("jacrev", output)
            real_only("jacrev", (*inputs, *ends))
            blocks = [_rows(end, inputs, needs_grad, chunk_size) for end in ends]
        result = _finish(_blocks(blocks, output, args, argnums, numbers), needs_grad)
        return (result, _finish(aux, needs_grad)) if has_aux else result

    return call


def _blocks(
    blocks: Sequence[Sequence[object]],
    output: object,
    args: Any,
    argnums: object,
    numbers: tuple[int, ...],
) -> object:
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


def _rows(end: Any, inputs: list[Any], again: bool, chunk_size: int | None) -> list[object]:
    """Return the derivatives of one result by each leaf: a backward for all of its elements."""
    count = end.numel()
    if not count:
        return [zeros_like(x).expand((*end.shape, *x.shape)) for x in inputs]
    if count == 1:
        rows = _back([end], inputs, [ones_like(end)], again)
    else:
        rows = _of_units(end, lambda start: _back([end], inputs, [start], again), 0, chunk_size)
    return [r.reshape((*end.shape, *x.shape)) for r, x in zip(rows, inputs, strict=True)]


def _of_units(
    x: Tensor,
    function: Callable[[object], Sequence[object]],
    out_dim: int,
    chunk_size: int | None = None,
) -> list[Any]:
    """Map a function over the unit tensors of the shape of `x`."""
    count = x.numel()
    units: object = eye(count, dtype=x.dtype, device=x.device).reshape((count, *x.shape))
    over = vmap(function, out_dims=out_dim, randomness="same", chunk_size=chunk_size)
    columns: list[object] = over(units)
    return columns


def jacfwd(
    func: Function, argnums: object = 0, has_aux: bool = False, *, randomness: str = "error"
) -> Function:
    """Return a function that computes the Jacobian of `func`, as `jacrev` does: all columns at once
    where there are fewer of them than half of the rows, by a backward of a backward; else the rows.

    The function runs once, so `randomness` of PyTorch's map over columns means nothing.

    >>> flow.func.jacfwd(lambda x: x * x)(flow.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """

    @functools.wraps(func)
    def call(*args: object, **kwargs: object) -> object:
        numbers = _chosen("jacfwd", args, argnums)
        needs_grad = _need_grad(leaves(args))
        with _inside(), enable_grad():
            arguments, inputs = _with_leaves("jacfwd", args, numbers)
            output, aux = _with_aux("jacfwd", func(*arguments, **kwargs), has_aux)
            ends = _ends("jacfwd", output)
            real_only("jacfwd", (*inputs, *ends))
            if 2 * sum(x.numel() for x in inputs) < sum(e.numel() for e in ends):
                blocks = _columns(ends, inputs, needs_grad)
            else:
                blocks = [_rows(end, inputs, needs_grad, None) for end in ends]
        result = _finish(_blocks(blocks, output, args, argnums, numbers), needs_grad)
        return (result, _finish(aux, needs_grad)) if has_aux else result

    return call


def _columns(ends: list[Any], inputs: list[Any], again: bool) -> list[list[object]]:
    """Return the derivatives of each result by each leaf: a backward for all of a leaf's elements,
    of the gradient by what it weighs the results with.
    """
    weights: list[object] = [_of_each(zeros_like(e)).detach().requires_grad_() for e in ends]
    back = _back(ends, inputs, weights, True)
    blocks: list[list[object]] = [[] for _ in ends]
    for x, gradient in zip(inputs, back, strict=True):
        if x.numel():
            slope = functools.partial(_slopes, gradient, weights, again)
            columns = _of_units(x, slope, -1)
        else:
            columns = [zeros_like(e).unsqueeze(-1)[..., :0] for e in ends]
        for block, column, end in zip(blocks, columns, ends, strict=True):
            block.append(column.reshape((*end.shape, *x.shape)))
    return blocks


def _slopes(gradient: object, weights: list[Any], again: bool, unit: object) -> list[object]:
    return _back([gradient], weights, [unit], again)


def hessian(func: Function, argnums: object = 0) -> Function:
    """Return a function that computes the second derivatives of `func`.  For each output and each
    two arguments of `argnums` it is a tensor of shape [*output's, *argument's, *argument's].

    >>> flow.func.hessian(lambda x: (x**3).sum())(flow.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    return jacfwd(jacrev(func, argnums), argnums)
