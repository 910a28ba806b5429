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
from typing import TYPE_CHECKING, Any

from flowvm.eager.batched import maps
from flowvm.eager.overrides import overridden, overriding
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ModeError, OutOfRangeError, ShapeError, UnbatchableError
from flowvm.func.trees import leaves, rebuilt, spread
from flowvm.meta.batched_meta import axes_of
from flowvm.meta.formats import strided
from flowvm.ops.batched.calls import call as _  # noqa: F401 - calls find it
from flowvm.ops.batched.levels import Level, entered, level_as_dim
from flowvm.ops.batched.loop import looped, say
from flowvm.ops.random.generator import default_generator
from flowvm.ops.shapes.join import cat, stack

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    func: Callable[..., object],
    in_dims: object = 0,
    out_dims: object = 0,
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
    def call(*args: object, **kwargs: object) -> Any:
        if not args:
            raise ArgumentError("vmap: the function got no inputs; give it an argument to map over")
        dims = _in_dims(in_dims, args)
        flat = leaves(args)
        for x, d in zip(flat, dims, strict=True):
            if d is not None and isinstance(x, Tensor) and x.layout is not strided:
                raise ModeError(
                    f"vmap: a tensor with layout {x.layout!r} is not mapped over; map over its "
                    f"values() and make it inside, say in_dims=None for it, or use to_dense()"
                )
        overriders = overriding([x for x in flat if getattr(x, "layout", strided) is strided])
        if overriders:  # a dual: the whole map is one function of it
            return overridden(call, overriders, args, kwargs)
        size = _size(flat, dims)
        run = functools.partial(_mapped, func, args, kwargs, dims, out_dims, randomness)
        if chunk_size is None or chunk_size >= size:
            return run(flat, size)
        parts = []
        before = default_generator.position()
        for first in range(0, size, chunk_size):
            if randomness == "same":
                default_generator.go_to(before)
            count = min(chunk_size, size - first)
            some = [x if d is None else x.narrow(d, first, count)
                    for x, d in zip(flat, dims, strict=True)]  # fmt: skip
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
    func: Any, args: Any, kwargs: Any, dims: list[Any], out_dims: object, randomness: str,
    flat: list[Any], size: int,
) -> Any:  # fmt: skip
    """Run the function on all examples, or else on each."""
    before = default_generator.position()
    level = Level(size)
    inner = [x if d is None else entered(x, level, d) for x, d in zip(flat, dims, strict=True)]
    try:
        with maps.within((*maps.now(), Map(level, randomness))):
            result = func(*rebuilt(args, inner), **kwargs)
        return _shown(result, level, out_dims)
    except UnbatchableError as error:
        say(getattr(func, "__name__", repr(func)), str(error))
    default_generator.go_to(before)
    return _looped(func, args, kwargs, dims, out_dims, randomness, flat, size)


def _shown(result: object, level: Level, out_dims: object) -> object:
    shown = []
    for x, d in zip(leaves(result), _out_dims(out_dims, result), strict=True):
        if d is not None:
            t = _tensor(x)
            if not -t.ndim - 1 <= d <= t.ndim:
                raise OutOfRangeError(
                    f"vmap: out_dims {out_dims!r} for a result of {t.ndim} dimensions: it is from "
                    f"{-t.ndim - 1} to {t.ndim}"
                )
            shown.append(level_as_dim(t, level, d))
            continue
        if not isinstance(x, Tensor):
            shown.append(x)
            continue
        t = x
        own = [a for a in axes_of(t._meta) if a.level == level.number]
        if any(a.stride for a in own):
            raise ArgumentError(
                "vmap: out_dims is None for a result that differs between examples; say the "
                "dimension that they are to have"
            )
        shown.append(level_as_dim(t, level, 0).select(0, 0) if own else t)
    return rebuilt(result, shown)


def _tensor(x: object) -> Tensor:
    """Return a result of a function that is mapped, a tensor; else raise ArgumentError."""
    if isinstance(x, Tensor):
        return x
    raise ArgumentError(
        f"vmap: the function returns tensors, got type {type(x)}; make one with flow.tensor, or "
        f"say out_dims=None for it"
    )


def _in_dims(in_dims: object, args: tuple[object, ...]) -> list[object]:
    """Return the dimension of each leaf of the arguments."""
    if not isinstance(in_dims, (int, tuple)):
        raise ArgumentError(
            f"vmap: expected `in_dims` to be int or a (potentially nested) tuple matching the "
            f"arguments, got {type(in_dims).__name__} {in_dims!r}"
        )
    try:
        return spread(in_dims, args)
    except (ValueError, KeyError) as error:
        raise ArgumentError(f"vmap: in_dims {in_dims!r}: {error}") from None


def _out_dims(out_dims: object, result: object) -> list[Any]:
    if isinstance(out_dims, tuple) and len(out_dims) == 1 and isinstance(result, Tensor):
        out_dims = out_dims[0]
    try:
        dims = spread(out_dims, result)
    except (ValueError, KeyError) as error:
        raise ArgumentError(f"vmap: out_dims {out_dims!r}: {error}") from None
    for d in dims:
        if d is not None and type(d) is not int:
            raise ArgumentError(
                f"vmap: out_dims must be an int, None or a python collection of ints, got "
                f"{out_dims!r}"
            )
    return dims


def _joined(parts: Sequence[object], out_dims: object) -> object:
    """Join the results of chunks."""
    dims = _out_dims(out_dims, parts[0])
    columns = zip(*(leaves(p) for p in parts), strict=True)
    joined = [c[0] if d is None else cat(list(c), d) for c, d in zip(columns, dims, strict=True)]
    return rebuilt(parts[0], joined)


def _size(flat: Sequence[object], dims: Sequence[object]) -> int:
    sizes = set()
    for x, d in zip(flat, dims, strict=True):
        if d is None:
            continue
        if type(d) is not int:
            raise ArgumentError(f"vmap: in_dims are ints or None, got {d!r}")
        if not isinstance(x, Tensor):
            raise ArgumentError(
                f"vmap: in_dims has {d} for an argument of type {type(x).__name__}; say None "
                f"for what is no tensor"
            )
        if not -x.ndim <= d < x.ndim:
            raise ArgumentError(
                f"vmap: in_dims has {d} for a tensor of shape {tuple(x.shape)}, which has "
                f"{x.ndim} dimensions"
            )
        sizes.add(x.shape[d])
    if not sizes:
        raise ArgumentError("vmap: at least one tensor is mapped, got in_dims None for all")
    if len(sizes) != 1:
        raise ShapeError(f"vmap: the mapped dimensions have one size, got {sorted(sizes)}")
    (size,) = sizes
    if not size:
        raise ShapeError("vmap: a batch has at least one example")
    return int(size)


# --- example by example ---------------------------------------------------------------------------


def _looped(
    func: Any, args: Any, kwargs: Any, dims: list[Any], out_dims: object, randomness: str,
    flat: list[Any], size: int,
) -> Any:  # fmt: skip
    results = []
    for i in range(size):
        each = [x if d is None else x.select(d, i) for x, d in zip(flat, dims, strict=True)]
        run = functools.partial(func, *rebuilt(args, each), **kwargs)
        results.append(_drawn(randomness, run))
    return _stacked(results, out_dims)


def _drawn(randomness: str, run: Callable[[], object]) -> object:
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


def _stacked(results: Sequence[object], out_dims: object) -> object:
    first = results[0]
    columns = zip(*(leaves(r) for r in results), strict=True)
    joined = []
    for column, d in zip(columns, _out_dims(out_dims, first), strict=True):
        joined.append(column[0] if d is None else stack([_tensor(x) for x in column], d))
    return rebuilt(first, joined)
