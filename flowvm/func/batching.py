"""`vmap`: a function of one example made a function of a batch.

The function runs once for each example, and the results are stacked: every function has a map, at
the cost of as many calls.  PyTorch's batches the ops instead; the numbers are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, ShapeError
from flowvm.func.trees import leaves, rebuilt, spread
from flowvm.ops.random.generator import default_generator
from flowvm.ops.shapes.create import tensor
from flowvm.ops.shapes.join import stack


# public: flow (late, unlisted)
def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function that maps `func` over a dimension of its arguments.

    in_dims      the dimension of each tensor in the arguments, or None for one that is the same
                 for all: a number, or a tree of them that is the arguments' or stands above it
    out_dims     where the batch is in each result, likewise
    randomness   "different" for each example, the "same" for all, or an "error" where random
                 numbers are drawn
    chunk_size   how many examples at once: one is, so it means nothing

    >>> flow.func.vmap(flow.dot)(flow.ones(2, 3), flow.ones(2, 3))
    tensor([3., 3.])
    """
    if randomness not in ("error", "different", "same"):
        raise ArgumentError(
            f"vmap: randomness is 'error', 'different' or 'same', got {randomness!r}"
        )

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not args:
            raise ArgumentTypeError("vmap: the function wants an argument to map over")
        try:
            dims = spread(in_dims, args)
        except ValueError as error:
            raise ArgumentError(f"vmap: in_dims {in_dims!r}: {error}") from None
        given = leaves(args)
        size = _size(given, dims)
        results = []
        for i in range(size):
            each = [x if d is None else x.select(d, i) for x, d in zip(given, dims, strict=True)]
            run = functools.partial(func, *rebuilt(args, each), **kwargs)
            results.append(_drawn(randomness, run))
        return _stacked(results, out_dims)

    return call


def _size(given: list[Any], dims: list[Any]) -> int:
    sizes = set()
    for x, d in zip(given, dims, strict=True):
        if d is None:
            continue
        if not isinstance(x, Tensor) or not -x.ndim <= d < x.ndim:
            what = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ArgumentError(f"vmap: there is no dimension {d} of {what}")
        sizes.add(x.shape[d])
    if len(sizes) != 1:
        raise ShapeError(f"vmap: the mapped dimensions have one size, got {sorted(sizes)}")
    (size,) = sizes
    if not size:
        raise ShapeError("vmap: a batch has at least one example")
    return int(size)


def _drawn(randomness: str, run: Callable[[], Any]) -> Any:
    if randomness == "different":
        return run()
    before = default_generator.position()
    result = run()
    if randomness == "same":
        _rewind(before)
    elif default_generator.position() != before:
        raise ArgumentError(
            "vmap: random numbers were drawn; randomness='different' or 'same' says which ones"
        )
    return result


def _rewind(position: tuple[int, int]) -> None:
    default_generator.go_to(position)


def _stacked(results: list[Any], out_dims: Any) -> Any:
    first = results[0]
    columns = zip(*(leaves(r) for r in results), strict=True)
    try:
        dims = spread(out_dims, first)
    except ValueError as error:
        raise ArgumentError(f"vmap: out_dims {out_dims!r}: {error}") from None
    joined = []
    for column, d in zip(columns, dims, strict=True):
        parts = [x if isinstance(x, Tensor) else tensor(x) for x in column]
        joined.append(parts[0] if d is None else stack(parts, d))
    return rebuilt(first, joined)
