"""`torch._higher_order_ops.associative_scan`: a scan by a function of the program's own, in
logarithmically many steps (Hillis and Steele, "Data Parallel Algorithms", CACM 29(12), 1986).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowvm import ops
from flowvm.errors import ArgumentError, ShapeError
from flowvm.utils._pytree import tree_flatten, tree_unflatten


def associative_scan(
    combine_fn: Callable[[object, object], object],
    xs: object,
    dim: int,
    reverse: bool = False,
    combine_mode: str = "pointwise",
) -> Any:
    """Return, along `dim`, the combination by `combine_fn` of all elements up to each; from behind
    if `reverse`.

    combine_fn   associative; gets two trees of tensors like `xs`, and answers one
    xs           a tree of tensors, all as long along `dim`

    ShapeError for other lengths, ArgumentError for no tensor, and for another `combine_mode` than
    PyTorch has.
    """
    if combine_mode not in ("pointwise", "generic"):
        raise ArgumentError(
            f"associative_scan: combine_mode is 'pointwise' or 'generic', got {combine_mode!r}"
        )
    leaves, spec = tree_flatten(xs)
    if not leaves:
        raise ArgumentError("associative_scan: xs needs at least one tensor")
    lengths = {leaf.shape[dim] for leaf in leaves}
    if len(lengths) != 1:
        raise ShapeError(f"associative_scan: lengths along dim {dim} differ: {sorted(lengths)}")
    (length,) = lengths
    leaves_now = [leaf.flip(dim) if reverse else leaf for leaf in leaves]
    step = 1
    while step < length:
        early = [x.narrow(dim, 0, length - step) for x in leaves_now]
        late = [x.narrow(dim, step, length - step) for x in leaves_now]
        combined, _ = tree_flatten(
            combine_fn(tree_unflatten(early, spec), tree_unflatten(late, spec))
        )
        heads = [x.narrow(dim, 0, step) for x in leaves_now]
        leaves_now = [ops.cat([h, m], dim) for h, m in zip(heads, combined, strict=True)]
        step *= 2
    return tree_unflatten([x.flip(dim) if reverse else x for x in leaves_now], spec)
