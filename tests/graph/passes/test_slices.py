"""The pass `slices`: a tensor put together from parts is written once, with the same values."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm.graph.logical.interpret import interpret
from flowvm.graph.passes.passes import PASSES, optimize
from flowvm.graph.passes.slices import _gaps, assemble_slices
from flowvm.graph.plan.plan import compile_plan
from tests.graph.helpers import captured, names


def compared(function, *inputs):
    """Return names of the nodes after the pass; check that the results are the same."""
    before = captured(function, *inputs)
    after = assemble_slices(before)
    after.check()
    plan = compile_plan(after)
    expected = [t.numpy() for t in interpret(before, inputs)]
    for results in (plan.launch(list(inputs)), interpret(after, inputs), plan.launch(list(inputs))):
        for ours, theirs in zip(results, expected, strict=True):
            np.testing.assert_array_equal(ours.numpy(), theirs)
    return names(after)


def placed(shape, *slices):
    """Zeros of `shape` with values copied into slices."""
    out = flow.zeros(*shape)
    for where, values in slices:
        out[where].copy_(values)
    return out


A, B, C = (flow.randn(4, 5) for _ in range(3))
ROW = flow.randn(5)


def test_zeros_with_a_slice_copied_in_are_one_node():
    assert compared(lambda a: placed((4, 5), (np.s_[1:3], a[1:3])) * 1, A) == ["assemble", "mul"]
    assert compared(lambda a: placed((3, 4, 5), (1, a)) * 1, A) == ["assemble", "mul"]
    assert compared(lambda a: placed((4, 9), (np.s_[:, 2:7], a)) * 1, A) == ["assemble", "mul"]


def test_a_result_may_be_an_output():
    assert compared(lambda a: placed((4, 9), (np.s_[:, 2:7], a)), A) == ["assemble"]


def test_what_is_broadcast_or_strided_is_read_where_it_lies():
    assert compared(lambda r: placed((4, 5), (np.s_[1:3], r)) * 1, ROW) == ["assemble", "mul"]
    turned = compared(lambda a: placed((5, 9), (np.s_[:, 2:6], a.t())) * 1, A)
    assert turned == ["assemble", "mul"]


def test_sums_of_parts_that_do_not_meet_are_one_tensor():
    def function(a, b, c):
        parts = [placed((3, 4, 5), (k, t)) for k, t in enumerate((a, b, c))]
        return (parts[2] + parts[1]) + parts[0]

    assert compared(function, A, B, C) == ["assemble"]


def test_a_copy_in_another_order_is_written_in_that_order():
    def function(a, b, c):
        parts = [placed((3, 4, 1, 5), (k, t.unsqueeze(1))) for k, t in enumerate((a, b, c))]
        return (parts[0] + parts[1] + parts[2]).permute(1, 2, 0, 3).contiguous() * 2

    assert compared(function, A, B, C) == ["assemble", "mul"]


def test_the_gradient_of_slices_of_one_product():
    w = flow.randn(6, 18, requires_grad=True)

    def function(x):
        parts = (x @ w).reshape(2, 4, 3, 6).permute(2, 0, 1, 3)
        (parts[0] * parts[1] + parts[2]).sum().backward()
        g, w.grad = w.grad, None
        return g * 1

    names = compared(function, flow.randn(2, 4, 6))
    assert names.count("assemble") == 1
    assert names.count("fill") == 1  # the first gradient
    assert "copy" not in names
    assert names[-1] == "mul"


@pytest.mark.parametrize(
    "function",
    [
        lambda a: placed((4, 5), (np.s_[:3], a[:3]), (np.s_[2:], a[2:])) * 1,
        lambda a: (lambda z: (z, z[1:].copy_(a[1:]), z * 2)[0::2])(placed((4, 5), (0, a[0]))),
        lambda a: (lambda z: (z + 0, z[1:].copy_(a[1:]))[0])(flow.zeros(4, 5)) * 1,
        lambda a: placed((4, 5), (np.s_[::2], a[::2])) * 1,
        lambda a: placed((4, 5), (np.s_[:3], a[:3])) + placed((4, 5), (np.s_[2:], a[2:])),
        lambda a: (flow.ones(4, 5), placed((4, 5), (0, a[0])))[1] + flow.ones(4, 5),
        lambda a: (lambda z: z + z)(placed((4, 5), (0, a[0]))),
        lambda a: placed((4, 5), (0, a[0].double())) * 1,
        lambda a: (lambda p: p + placed((4, 5), (1, a[1])) + p)(placed((4, 5), (0, a[0]))),
    ],
    ids=[
        "parts meet", "written later", "read before", "steps", "sums meet", "added to others",
        "twice itself", "converted", "read twice",
    ],
)  # fmt: skip
def test_what_is_something_else_is_still_right(function):
    compared(function, A)


def test_a_source_that_changes_before_the_last_copy_is_copied_in_time():
    def function(a):
        b = a * 1
        first = placed((2, 4, 5), (0, b))
        b.mul_(3)
        return first + placed((2, 4, 5), (1, b))

    compared(function, A)


def test_cat_reads_what_was_copied_for_it():
    def function(a, b):
        parts = [t.reshape(2, 2, 5).permute(1, 0, 2).reshape(4, 5) for t in (a, b)]
        return flow.cat([*parts, flow.ones(4, 2)], 1), flow.stack([parts[0] * 1, a], 1)

    names = compared(function, A, B)
    assert names.count("assemble") == 1
    assert names.count("cast") == 1  # the copy that is needed elsewhere stays


def test_zeros_in_a_cat_are_written_by_it():
    def function(a):
        return flow.cat([flow.zeros(4, 2), a, flow.zeros(4, 1), a.t()[:4, :4], flow.ones(4, 1)], 1)

    assert compared(function, A) == ["fill", "assemble"]


def test_copies_of_which_a_slice_cannot_be_seen_as_stay():
    def function(a):
        return flow.cat([a.reshape(2, 2, 5).permute(1, 2, 0).reshape(5, 4), a.t()], 1)

    assert compared(function, A) == ["cast", "cat"]


def test_stacked_copies_and_splits():
    def function(a, b):
        return flow.stack([a.t().contiguous(), b.t().contiguous()], 1)

    assert compared(function, A, B) == ["assemble"]

    def heads(a):
        parts = [a.permute(2, 0, 1, 3).reshape(2, 3, 20)[k].contiguous() for k in range(2)]
        return flow.cat([parts[1], parts[0]], -1)

    compared(heads, flow.randn(3, 4, 2, 5))


def test_copies_that_others_need_or_that_convert_stay():
    assert "cast" in compared(lambda a: (lambda t: (flow.cat([t, t]), t))(a.t().contiguous()), A)
    assert "arrange" in compared(lambda a: flow.cat([a.t().double(), a.t().double() * 2]), A)


def test_gaps_are_what_no_box_covers():
    rng = np.random.default_rng(5)
    for _ in range(50):
        shape = tuple(int(n) for n in rng.integers(1, 6, size=3))
        count = np.zeros(shape, int)
        boxes = []
        for _ in range(3):
            low = [int(rng.integers(n)) for n in shape]
            box = tuple(
                (a, int(rng.integers(1, n - a + 1))) for a, n in zip(low, shape, strict=True)
            )
            boxes.append(box)
        for box in boxes:
            count[tuple(slice(a, a + n) for a, n in box)] = 1
        for gap in _gaps(tuple((0, n) for n in shape), boxes):
            count[tuple(slice(a, a + n) for a, n in gap)] += 1
        assert (count == 1).all()


@pytest.mark.parametrize("seed", range(60))
def test_random_assemblies(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 5, size=3))
    values = flow.tensor(rng.standard_normal(shape).astype(np.float32))

    def function(x):
        pool = []
        for _ in range(4):
            cuts = []
            for n in shape:
                low = int(rng.integers(n))
                cuts.append(slice(low, int(rng.integers(low, n)) + 1))
            kind = rng.integers(3)
            where = tuple(c.start if kind == 1 and d == 0 else c for d, c in enumerate(cuts))
            part = x[where] if rng.integers(4) else x[where] * 2
            pool.append(placed(shape, (where, part)))
            if kind == 2 and len(pool) > 1:
                pool.append(pool.pop(int(rng.integers(len(pool)))) + pool[-1])
            if rng.integers(3) == 0:
                order = [int(d) for d in rng.permutation(3)]
                pool[-1] = pool[-1].permute(order).contiguous().permute(np.argsort(order).tolist())
        total = pool[0]
        for t in pool[1:]:
            total = total + t
        return total, flow.cat([t.contiguous() for t in pool], int(rng.integers(3)))

    compared(function, values)


def test_all_passes_together():
    def function(a, b):
        parts = [placed((2, 4, 5), (k, t.exp())) for k, t in enumerate((a, b))]
        return (parts[0] + parts[1]).permute(1, 0, 2).contiguous().relu() * 2

    graph = optimize(captured(function, A, B))
    expected = np.stack([np.exp(A.numpy()), np.exp(B.numpy())], 1) * 2
    (out,) = compile_plan(graph).launch([A, B])
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)
    assert "slices" in PASSES
