"""`vmap`: a function of one example made a function of a batch.

Inside, tensors have a dimension that the function does not see (`flowvm.ops.batched`), and each op
computes all examples at once: by what its declaration says of its dimensions.  Gradients, other
maps, modules and compositions need nothing of their own, for they are calls of ops.

An op that has no such form is computed example by example; a function that asks for values, or
changes a tensor from outside by what differs between examples, runs once for each example.
`explain` names both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flowvm.eager.batched import maps
from flowvm.eager.overrides import overridden, overriding
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, ShapeError, UnbatchableError
from flowvm.func.trees import leaves, rebuilt, spread
from flowvm.meta.batched_meta import axes_of
from flowvm.ops.batched.calling import call as _  # noqa: F401 - calls find it
from flowvm.ops.batched.levels import Level, entered, left
from flowvm.ops.batched.looping import looped, say
from flowvm.ops.random.generator import default_generator
from flowvm.ops.shapes.create import tensor
from flowvm.ops.shapes.join import cat, stack


class Map:
    """A map that is under way on a thread: its level, and how it wants random numbers."""

    __slots__ = ("level", "randomness")

    def __init__(self, level: Level, randomness: str) -> None:
        self.level, self.randomness = level, randomness

    def check_draw(self) -> None:
        """Raise ArgumentError where random numbers are drawn and the map does not say which."""
        if self.randomness == "error":
            raise ArgumentError(
                "vmap: random numbers are drawn; randomness='different' or 'same' says which ones"
            )


# public: flow (late, unlisted)
def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function that maps `func` over a dimension of its arguments, all examples at once.

    in_dims      the dimension of each tensor in the arguments, or None for one that is the same
                 for all: a number, or a tree of them that is the arguments' or stands above it
    out_dims     where the batch is in each result, likewise; None for what is one for all
    randomness   "different" for each example, the "same" for all, or an "error" where random
                 numbers are drawn
    chunk_size   how many examples at once, None for all

    Maps nest, and compose with `grad`, `vjp`, `jvp` and the others.  What cannot be computed for
    all examples at once is computed one by one, with a warning: see `flow.func.explain`.

    >>> flow.func.vmap(flow.dot)(flow.ones(2, 3), flow.ones(2, 3))
    tensor([3., 3.])
    """
    if randomness not in ("error", "different", "same"):
        raise ArgumentError(
            f"vmap: randomness is 'error', 'different' or 'same', got {randomness!r}"
        )
    if chunk_size is not None and (type(chunk_size) is not int or chunk_size < 1):
        raise ArgumentError(f"vmap: chunk_size is None or an int from 1 up, got {chunk_size!r}")

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not args:
            raise ArgumentTypeError("vmap: the function wants an argument to map over")
        try:
            dims = spread(in_dims, args)
        except ValueError as error:
            raise ArgumentError(f"vmap: in_dims {in_dims!r}: {error}") from None
        given = leaves(args)
        asked = overriding(given)
        if asked:  # a dual: the whole map is one function of it
            return overridden(call, asked, args, kwargs)
        size = _size(given, dims)
        run = functools.partial(_mapped, func, args, kwargs, dims, out_dims, randomness)
        if chunk_size is None or chunk_size >= size:
            return run(given, size)
        parts = []
        for first in range(0, size, chunk_size):
            count = min(chunk_size, size - first)
            some = [x if d is None else x.narrow(d, first, count)
                    for x, d in zip(given, dims, strict=True)]  # fmt: skip
            parts.append(run(some, count))
        return _joined(parts, out_dims)

    return call


def explain() -> dict[str, str]:
    """Return what `vmap` has computed example by example, and why: by name of the op, or of the
    function that was mapped.

    >>> flow.func.vmap(flow.square)(flow.ones(2, 3)).shape
    flow.Size([2, 3])
    >>> "square" in flow.func.explain()
    False
    """
    return dict(looped)


def _mapped(
    func: Any, args: Any, kwargs: Any, dims: list[Any], out_dims: Any, randomness: str,
    given: list[Any], size: int,
) -> Any:  # fmt: skip
    """Run the function on all examples, or else on each."""
    before = default_generator.position()
    level = Level(size)
    inner = [x if d is None else entered(x, level, d) for x, d in zip(given, dims, strict=True)]
    try:
        with maps.within((*maps.now(), Map(level, randomness))):
            result = func(*rebuilt(args, inner), **kwargs)
        return _shown(result, level, out_dims)
    except UnbatchableError as error:
        say(getattr(func, "__name__", repr(func)), str(error))
    default_generator.go_to(before)
    return _looped(func, args, kwargs, dims, out_dims, randomness, given, size)


def _shown(result: Any, level: Level, out_dims: Any) -> Any:
    shown = []
    for x, d in zip(leaves(result), _out_dims(out_dims, result), strict=True):
        t = x if isinstance(x, Tensor) else tensor(x)
        if d is not None:
            shown.append(left(t, level, d))
            continue
        own = [a for a in axes_of(t._meta) if a.level == level.number]
        if any(a.stride for a in own):
            raise ArgumentError(
                "vmap: out_dims is None for a result that differs between examples; say the "
                "dimension that they are to have"
            )
        shown.append(left(t, level, 0).select(0, 0) if own else t)
    return rebuilt(result, shown)


def _out_dims(out_dims: Any, result: Any) -> list[Any]:
    try:
        return spread(out_dims, result)
    except ValueError as error:
        raise ArgumentError(f"vmap: out_dims {out_dims!r}: {error}") from None


def _joined(parts: list[Any], out_dims: Any) -> Any:
    """Join the results of chunks."""
    dims = _out_dims(out_dims, parts[0])
    columns = zip(*(leaves(p) for p in parts), strict=True)
    joined = [c[0] if d is None else cat(list(c), d) for c, d in zip(columns, dims, strict=True)]
    return rebuilt(parts[0], joined)


def _size(given: list[Any], dims: list[Any]) -> int:
    sizes = set()
    for x, d in zip(given, dims, strict=True):
        if d is None:
            continue
        if not isinstance(x, Tensor) or type(d) is not int or not -x.ndim <= d < x.ndim:
            what = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ArgumentError(f"vmap: there is no dimension {d} of {what}")
        sizes.add(x.shape[d])
    if len(sizes) != 1:
        raise ShapeError(f"vmap: the mapped dimensions have one size, got {sorted(sizes)}")
    (size,) = sizes
    if not size:
        raise ShapeError("vmap: a batch has at least one example")
    return int(size)


# --- example by example ---------------------------------------------------------------------------


def _looped(
    func: Any, args: Any, kwargs: Any, dims: list[Any], out_dims: Any, randomness: str,
    given: list[Any], size: int,
) -> Any:  # fmt: skip
    results = []
    for i in range(size):
        each = [x if d is None else x.select(d, i) for x, d in zip(given, dims, strict=True)]
        run = functools.partial(func, *rebuilt(args, each), **kwargs)
        results.append(_drawn(randomness, run))
    return _stacked(results, out_dims)


def _drawn(randomness: str, run: Callable[[], Any]) -> Any:
    if randomness == "different":
        return run()
    before = default_generator.position()
    result = run()
    if randomness == "same":
        default_generator.go_to(before)
    elif default_generator.position() != before:
        raise ArgumentError(
            "vmap: random numbers were drawn; randomness='different' or 'same' says which ones"
        )
    return result


def _stacked(results: list[Any], out_dims: Any) -> Any:
    first = results[0]
    columns = zip(*(leaves(r) for r in results), strict=True)
    joined = []
    for column, d in zip(columns, _out_dims(out_dims, first), strict=True):
        parts = [x if isinstance(x, Tensor) else tensor(x) for x in column]
        joined.append(parts[0] if d is None else stack(parts, d))
    return rebuilt(first, joined)
