"""Ops that say something of each dimension, and those that go over all but the last ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flowvm.eager.interpreter import Operator
from flowvm.meta.meta import dense_stride
from flowvm.ops.batched.physical import behind, in_front
from flowvm.ops.batched.plans import LEADING, RULE, SAMPLES, Plan
from flowvm.ops.declare import core
from flowvm.ops.linalg import systems
from flowvm.ops.linalg.parts import factors, spectra
from flowvm.ops.places import search, sort
from flowvm.ops.places.cpu import order
from flowvm.ops.places.parts import nth
from flowvm.ops.planes import patches
from flowvm.ops.shapes import matrices, padding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowvm.meta.batched_meta import Axis
    from flowvm.meta.meta import Attrs, TensorMeta


def _arranged(
    op: Operator,
    metas: Sequence[TensorMeta],
    attrs: Attrs,
    outs: object,
    axes: Sequence[Axis],
    shared: Sequence[Axis],
) -> Plan | None:
    (x,) = metas
    dtype, stride = attrs
    ahead = dense_stride([*(a.size for a in axes), x.numel])[:-1]
    return Plan((in_front(x, axes),), (dtype, (*ahead, *stride)), behind(axes, shared))


RULE.say(_arranged, core._arrange, core._arrange_away)


def _padded(nothing: tuple[int, int] | int) -> Callable[..., Plan | None]:
    """Make the rule of an op whose first attribute says something of each dimension."""

    def rule(
        op: Operator,
        metas: Sequence[TensorMeta],
        attrs: Attrs,
        outs: object,
        axes: Sequence[Axis],
        shared: Sequence[Axis],
    ) -> Plan | None:
        of_each = (*(nothing for _ in axes), *attrs[0])
        return Plan((in_front(metas[0], axes),), (of_each, *attrs[1:]), behind(axes, shared))

    return rule


RULE.say(_padded((0, 0)), padding._constant, padding._border)
RULE.say(_padded(0), padding._roll)

LEADING.say(
    True,
    order.ordered_rows, nth.nth_of_rows, search._search,
    matrices._embed, sort._topk_rows, sort._mode_rows, sort._row_order,
    systems._solve, systems._slogdet, systems._complex_slogdet,
    factors.right_triangular, factors.right_solve, factors.permutation_of, factors.lu_op,
    factors.cholesky_info, factors.qr_op, factors.geqrf_op, factors.orgqr_op, factors.ldl_op,
    factors.ldl_solve_op,
    spectra.svd_op, spectra.svdvals_op, spectra.eigh_op, spectra.eigvalsh_op, spectra.complex_eig,
    spectra.real_eig, spectra.lstsq_op,
)  # fmt: skip

SAMPLES.say(True, patches._unfold, patches._fold)
