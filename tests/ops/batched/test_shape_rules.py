"""Ops that say something of each dimension, and those that go over all but the last ones."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.ops.batched import shape_rules
from flowvm.ops.batched.levels import Level, entered
from flowvm.ops.batched.plans import LEADING, SAMPLES
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.linalg.parts import factors
from flowvm.ops.places import sort
from flowvm.ops.planes import patches
from tests.ops.batched.levels import examples, of

pytestmark = pytest.mark.filterwarnings("error:vmap")
COUNT = 4

CASES = {
    "pad": (lambda x: flow.nn.functional.pad(x, (1, 0, 2, 1), value=7.0),
            lambda x: np.pad(x, ((2, 1), (1, 0)), constant_values=7)),
    "crop": (lambda x: flow.nn.functional.pad(x, (-1, 2)),
             lambda x: np.pad(x[:, 1:], ((0, 0), (0, 2)))),
    "reflect": (lambda x: flow.nn.functional.pad(x[None], (1, 2), mode="reflect")[0],
                lambda x: np.pad(x, ((0, 0), (1, 2)), mode="reflect")),
    "roll": (lambda x: flow.roll(x, (1, -2), (0, 1)), lambda x: np.roll(x, (1, -2), (0, 1))),
    "roll all": (lambda x: flow.roll(x, 5), lambda x: np.roll(x, 5)),
    "contiguous": (lambda x: x.t().contiguous(), lambda x: x.T),
    "diag": (lambda x: flow.diag_embed(x, 1), lambda x: np.stack([np.diag(r, 1) for r in x])),
    "topk": (lambda x: flow.topk(x, 2)[0], lambda x: -np.sort(-x)[:, :2]),
    "sort": (lambda x: flow.sort(x, 0)[0], lambda x: np.sort(x, 0)),
    "solve": (lambda x: flow.linalg.solve(x[:3, :3], x[:3, 0]),
              lambda x: np.linalg.solve(x[:3, :3], x[:3, 0])),
    "singular values": (flow.linalg.svdvals, lambda x: np.linalg.svd(x, compute_uv=False)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_all_examples_at_once(rng, name):
    ours, by_numpy = CASES[name]
    x = rng.standard_normal((COUNT, 5, 4))
    for outer in (0, 2):  # in memory the level may lie outside or inside
        one = Level(COUNT)
        given = np.ascontiguousarray(np.moveaxis(x, 0, outer))
        out = examples(ours(of(given, one, outer)), one)
        np.testing.assert_allclose(out, np.stack([by_numpy(e) for e in x]), rtol=1e-9, atol=1e-12)


def test_columns_of_patches_are_samples(rng):
    x = rng.standard_normal((COUNT, 2, 3, 4, 4))
    one = Level(COUNT)
    out = examples(flow.nn.functional.unfold(of(x, one), 2), one)
    for got, each in zip(out, x, strict=True):
        expected = flow.nn.functional.unfold(flow.tensor(each), 2).numpy()
        np.testing.assert_array_equal(got, expected)
    assert SAMPLES.of(operator_of(patches._unfold))


def test_each_dimension_has_nothing_said_of_levels():
    """A rule puts so much nothing in front as there are levels."""
    rule = shape_rules._padded((0, 0))
    one, two = Level(2), Level(3)
    x = of(np.zeros((2, 3, 5)), one)
    x = entered(x, two, 0)
    axes = x._meta.device.axes
    plan = rule(None, (x._meta,), (((1, 2),), 7.0), (), axes, ())
    assert plan.attrs == (((0, 0), (0, 0), (1, 2)), 7.0)
    assert plan.metas[0].shape == (2, 3, 5)


def test_what_goes_over_leading_dimensions_is_said():
    for one in (sort._topk_rows, factors.cholesky_info, factors.lu_op):
        assert LEADING.of(operator_of(one))
    assert not LEADING.of(operator_of(patches._unfold))
