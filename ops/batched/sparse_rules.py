"""Products of one sparse matrix with the dense ones of all examples: their columns side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowvm.eager.interpreter import Operator
from flowvm.eager.tensor import alias
from flowvm.meta.batched_meta import axes_of, example_of
from flowvm.ops.batched.physical import ahead_of, batched_axes, is_shared, unfolded_meta
from flowvm.ops.batched.plans import STEPS
from flowvm.ops.sparse import products

if TYPE_CHECKING:
    from flowvm.eager.tensor import Tensor


@STEPS(products.row_product, products.row_product_kept)
def _product(
    op: Operator, tensors: tuple[Tensor, ...], attrs: object, scalars: object
) -> Tensor | None:
    values, bounds, col, x, *turned = tensors
    axes = batched_axes([t._meta for t in tensors])
    matrix = (values, bounds, col, *turned)
    if not all(is_shared(t._meta, axes) for t in matrix):
        return None
    rows, width = x.shape
    beside = alias(x, ahead_of(x._meta, axes, 1)).reshape(rows, -1)
    values, bounds, col, *turned = (alias(t, example_of(t._meta)) for t in matrix)
    out = op.call(values, bounds, col, beside, *turned)
    has = {a.level for a in axes}
    others = {a.level: a._replace(stride=0) for t in tensors for a in axes_of(t._meta)}
    shared = [a for level, a in sorted(others.items()) if level not in has]
    return alias(out, unfolded_meta(out._meta, axes, 1, width, shared))
