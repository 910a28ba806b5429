"""Boxing: every change of sbp and placement keeps the values, and sends no more than it must."""

import itertools

import numpy as np
import pytest
import ranks

import flowvm as flow
from flowvm.meta.placements import as_sbps, broadcast, cut, partial_sum, placed_device, sizes, split
from flowvm.ops.placed import boxing

B, P, S = broadcast, partial_sum, split


def array(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def unboxed(x):
    """Return a whole global tensor, put together from every rank's part."""
    return x.numpy()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(5, 4), (2, 3), (0, 3), (1, 7)])
def test_every_change_of_one_dimension(size, shape):
    values = array(shape)
    options = ranks.each_sbp(len(shape))

    def rank(k):
        where = flow.placement("cpu", list(range(size)))
        for before, after in itertools.product(options, options):
            x = ranks.held(values, where, before)
            y = x.to_global(sbp=after)
            assert y.sbp == after
            assert x.sbp == before
            np.testing.assert_allclose(unboxed(y), values, atol=1e-12)
            np.testing.assert_allclose(unboxed(x), values, atol=1e-12)
            y.zero_()  # it is memory of its own, where anything changed
            if before != after:
                np.testing.assert_allclose(unboxed(x), values, atol=1e-12)

    ranks.run(size, rank)


@pytest.mark.parametrize("grid", [[[0, 1], [2, 3]], [[0, 1, 2], [3, 4, 5]], [[2], [0]]])
def test_every_change_of_two_dimensions(grid):
    values = array((5, 3))
    options = ranks.each_sbp(2, axes=2)
    size = np.size(grid)

    def rank(k):
        where = flow.placement("cpu", grid)
        for before in options:
            x = ranks.held(values, where, before)
            for after in options:
                assert len(boxing.steps(before, after)) <= 5
                np.testing.assert_allclose(unboxed(x.to_global(sbp=after)), values, atol=1e-12)

    size = max(size, 1 + np.max(grid))
    ranks.run(size, rank if size == np.size(grid) else lambda k: rank(k) if k in (0, 2) else None)


@pytest.mark.parametrize("axes", [2, 3, 4])
def test_the_steps_of_every_change_end(axes):
    """Each axis is changed twice at most, and only while no later axis cuts what it cuts."""
    options = ranks.each_sbp(2, axes)
    for before, after in itertools.product(options, options):
        now = before
        for step in itertools.islice(boxing._steps(before, after), 2 * axes + 1):
            later = step.before[step.axis + 1 :]
            assert step.before == now
            assert not {step.before[step.axis], step.after[step.axis]} & {
                s for s in later if s.is_split
            }
            now = step.after
        assert now == after, f"{before} -> {after} is {now} after {2 * axes + 1} steps"


SENT = [
    (P, B, ["all_reduce"], lambda n: 2 * (n - 1) / n),
    (P, S(0), ["reduce_scatter"], lambda n: (n - 1) / n),
    (S(0), B, ["all_gather"], lambda n: (n - 1) / n),
    (S(0), S(1), ["all_to_all"], lambda n: (n - 1) / n / n),
    (B, S(1), [], lambda n: 0),
    (B, P, [], lambda n: 0),
    (S(1), P, [], lambda n: 0),
    (P, P, [], lambda n: 0),
]


@pytest.mark.parametrize(("before", "after", "calls", "share"), SENT)
def test_a_change_sends_what_it_must(before, after, calls, share):
    values = array((6, 9))

    def rank(k):
        where = flow.placement("cpu", [0, 1, 2])
        x = ranks.held(values, where, (before,))
        ranks.calls().clear()
        x.to_global(sbp=after)
        assert [name for name, _ in ranks.calls()] == calls
        assert boxing.cost(x._meta, (after,)) == pytest.approx(share(3) * values.nbytes)

    ranks.run(3, rank)


PLACEMENTS = [[0, 1], [2, 3], [1, 0], [3], [1, 2, 3], [[0, 1], [2, 3]], [2, 0]]


@pytest.mark.parametrize("source", PLACEMENTS)
def test_every_other_placement(source):
    values = array((5, 2))

    def rank(k):
        where = flow.placement("cpu", source)
        axes = len(where.shape)
        for ranks_of_target in PLACEMENTS:
            to = flow.placement("cpu", ranks_of_target)
            for before, after in ((S(0), B), (B, S(1)), (P, S(0)), (S(0), S(0)), (P, P)):
                x = ranks.held(values, where, (before,) * axes)
                y = x.to_global(to, (after,) * len(to.shape))
                assert y.placement is to
                assert y.shape == x.shape
                if k in to.flat:
                    np.testing.assert_allclose(unboxed(y), values, atol=1e-12)
                else:
                    assert y.numpy().shape == (0,) * y.ndim

    ranks.run(4, rank)


def hierarchies(size):
    """Return the shapes of one and two dimensions in which `size` ranks can stand."""
    return [(size,), *((n, size // n) for n in range(1, size + 1) if size % n == 0)]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(5, 3), (2, 7), (0, 3), (1, 1)])
@pytest.mark.product(3)
def test_every_transition_between_hierarchies(size, shape):
    values = array(shape)
    states = [
        (np.arange(size).reshape(grid).tolist(), sbp)
        for grid in hierarchies(size)
        for sbp in ranks.each_sbp(2, axes=len(grid))
    ]

    def rank(k):
        local = {}
        for source, before in states:
            x = ranks.held(values, flow.placement("cpu", source), before)
            for number, (target, after) in enumerate(states):
                y = x.to_global(flow.placement("cpu", target), after)
                local[str(source), before, number] = y.to_local().numpy()
        return local, [flow.placement("cpu", target) for target, _ in states]

    results = ranks.run(size, rank)
    placements = results[0][1]
    for key in results[0][0]:
        number = key[-1]
        parts = [local[key] for local, _ in results]
        ranks.check_parts(parts, values, placements[number], states[number][1])


def test_gradients_go_back_to_where_the_input_was():
    values = array((4, 3))

    def rank(k):
        where = flow.placement("cpu", [0, 1])
        x = ranks.held(values, where, (S(0),)).requires_grad_()
        y = x.to_global(sbp=S(1), grad_sbp=B)
        y.backward(ranks.whole(2 * values, where))
        assert x.grad.sbp == (S(0),)
        if k < 2:
            np.testing.assert_allclose(unboxed(x.grad), 2 * values)
        far = x.to_global(flow.placement("cpu", [2]), B)
        upstream = ranks.whole(3 * values, flow.placement("cpu", [2]))
        (g,) = flow.autograd.grad(far, x, upstream)
        assert g.placement is where
        assert g.sbp == (S(0),)
        if k < 2:
            np.testing.assert_allclose(unboxed(g), 3 * values)
        p = ranks.held(values, where, (P,)).requires_grad_()
        (g,) = flow.autograd.grad(p.to_global(sbp=S(0)).sum(), p)
        assert g.sbp == (B,)  # each summand has all of it

    ranks.run(3, rank)


def test_cuts_are_balanced():
    assert sizes(7, 3) == (3, 2, 2)
    assert sizes(2, 4) == (1, 1, 0, 0)
    assert [cut(7, 3, k) for k in range(3)] == [(0, 3), (3, 5), (5, 7)]


def test_sbp_are_checked():
    where = flow.placement("cpu", [0])
    with pytest.raises(ValueError, match="as many sbp"):
        as_sbps((B, B), where)
    with pytest.raises(ValueError, match="with 1 dimensions"):
        as_sbps(S(1), where, 1)
    with pytest.raises(TypeError, match="an sbp is"):
        as_sbps("S(0)", where)
    with pytest.raises(ValueError, match="from the front"):
        S(-1)
    assert placed_device(where).placement is where
