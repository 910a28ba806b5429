"""Graphs whose shapes depend on values run in segments, with the results of eager code."""

from __future__ import annotations

import copy
import itertools
import threading

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import CaptureError, RecaptureWarning
from flowvm.graph.logical.interpret import interpret
from flowvm.nn.graph.compiled import Segmented

nn, F = flow.nn, flow.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::flowvm.errors.RecaptureWarning")


def segmented(graph):
    """The Segmented of a graph that was called with one kind of arguments."""
    (compiled,) = [c for same in graph._plans.values() for c in same]
    assert isinstance(compiled, Segmented)
    return compiled


def same(ours, theirs):
    ours = ours if isinstance(ours, (tuple, list)) else [ours]
    theirs = theirs if isinstance(theirs, (tuple, list)) else [theirs]
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype is b.dtype
        assert a.shape == b.shape
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def check(function, *calls):
    """Compiled and eager, over calls of one signature whose values differ; the Segmented."""
    graph = flow.compile(function)
    for _ in range(2):
        for args in calls:
            same(graph(*args), function(*args))
    return segmented(graph)


def random(*shape, seed):
    return flow.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


CASES = {
    "nonzero": lambda x: ((x * 2 > 0).nonzero() + 1, x + 1),
    "nonzero as tuple": lambda x: [i * 2 for i in (x > 0).nonzero(as_tuple=True)],
    "where with one argument": lambda x: [i + 1 for i in flow.where(x > 0.5)],
    "masked_select": lambda x: flow.masked_select(x, x > 0).exp().sum(),
    "boolean index": lambda x: x.exp()[x.exp() > 1] * 2,
    "row mask": lambda x: x[x[:, 0] > 0] @ x.t(),
    "unique": lambda x: flow.unique((x * 2).to(flow.int64), return_inverse=True)[1] + 1,
    "unique counts": lambda x: flow.unique((x * 2).round(), return_counts=True)[1].sum(),
    "bincount": lambda x: flow.bincount((x.reshape(-1).abs() * 3).to(flow.int64)) * 2,
    "repeat_interleave": lambda x: flow.repeat_interleave(
        x, (x[:, 0].abs() * 3).to(flow.int64), dim=0
    ).sum(0),
    "returned at once": lambda x: x[x > 0],
    "two after another": lambda x: x[x > 0][: (x > 0).nonzero().shape[0]][x[x > 0] < 1] + 1,
    "only the size": lambda x: x / (x > 0).nonzero().shape[0],
    "Python branches by the size": lambda x: (
        x.sum() if (x > 0).nonzero().shape[0] > 6 else x.mean()
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_ops_with_sizes_found_by_kernels(name):
    check(CASES[name], *[(random(4, 3, seed=s),) for s in (0, 1, 2, 3)])


def test_no_row_at_all_and_every_row():
    compiled = check(CASES["row mask"], (flow.full((4, 3), -1.0),), (flow.full((4, 3), 1.0),))
    assert set(compiled.root.following) == {(0,), (4,)}


def test_known_sizes_run_without_another_capture():
    calls = itertools.count()

    def f(x):
        next(calls)
        return x[x > 0] * 2

    graph = flow.compile(f)
    a, b = flow.tensor([1.0, -1.0, 2.0]), flow.tensor([1.0, -1.0, -2.0])
    for x, count in ((a, 1), (b, 2), (a, 2), (b, 2), (-a, 2)):  # -a has one positive element, too
        graph(x)
        assert repr(calls) == f"count({count})"
    assert len(graph.plans) == 2 + 1


def test_sizes_that_nobody_asks_for_in_between_are_waited_for_once():
    compiled = check(
        lambda x: ((x > 0).nonzero(), (x < 0).nonzero(), (x > 1).nonzero()), (random(9, seed=0),)
    )
    assert len(compiled.root.border) == 3
    assert [s.end is None for s in compiled.segments] == [True, False]


def test_what_is_read_by_a_border_may_be_written_behind_it():
    def f(x):
        y = x * 1
        where = (y > 0).nonzero()
        chosen = flow.masked_select(y, y > 0)
        y.mul_(-1)
        return where + 0, chosen * 1, y

    check(f, (random(7, seed=0),), (random(7, seed=1),))


def test_values_that_cross_may_be_written_and_seen_through_views():
    def f(x):
        y = x * 1
        row, column = y[1], y[:, 1]
        n = (x > 0).nonzero().shape[0]
        row.add_(n)
        m = (y > 1).nonzero().shape[0]
        y.mul_(m + 1)
        return row + 0, column * 2, y

    check(f, *[(random(3, 4, seed=s),) for s in range(4)])


def test_inputs_and_variables_are_seen_from_every_segment():
    weight = flow.ones(3)

    def f(x):
        weight.add_(1)
        n = (x > 0).nonzero().shape[0]
        weight.mul_(2)
        return x * weight + n

    graph, expected = flow.compile(f), np.ones(3, np.float32)
    for seed in (0, 1, 0, 2):
        x = random(3, seed=seed)
        expected = (expected + 1) * 2
        n = int((x.numpy() > 0).sum())
        np.testing.assert_allclose(graph(x).numpy(), x.numpy() * expected + n, rtol=1e-6)
        np.testing.assert_array_equal(weight.numpy(), expected)  # once, in a new way through, too


class Sparse(nn.Module):
    """A loss of the chosen rows alone, behind layers with state and random numbers."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(8, 3)

    def forward(self, x, labels):
        chosen = labels >= 0
        return F.cross_entropy(self.head(self.body(x)[chosen]), labels[chosen])


class Training(nn.Graph):
    def __init__(self, model, optimizer):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x, labels):
        loss = self.model(x, labels)
        loss.backward()
        return loss


OPTIMIZERS = {
    "sgd": lambda p: flow.optim.SGD(p, lr=0.1),
    "momentum": lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: flow.optim.AdamW(p, lr=0.01),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_through_a_boolean_mask_is_eager_training(kind):
    rng = np.random.default_rng(0)
    data = [
        (
            flow.from_numpy(rng.standard_normal((10, 6)).astype(np.float32)),
            flow.from_numpy(rng.integers(-1, 3, 10)),
        )
        for _ in range(6)
    ]
    flow.manual_seed(0)
    ours = Sparse()
    theirs = copy.deepcopy(ours)
    optimizers = [OPTIMIZERS[kind](m.parameters()) for m in (ours, theirs)]
    flow.manual_seed(1)
    graph = Training(ours, optimizers[0])
    losses = [graph(x, labels).item() for _ in range(2) for x, labels in data]
    flow.manual_seed(1)
    expected = []
    for _ in range(2):
        for x, labels in data:
            optimizers[1].zero_grad()
            loss = theirs(x, labels)
            loss.backward()
            optimizers[1].step()
            expected.append(loss.item())
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)
    assert segmented(graph).root.border


def test_gradients_behind_a_cut_land_where_eager_code_puts_them():
    ours, theirs = (flow.ones(3, requires_grad=True) for _ in range(2))

    def loss(w, x):
        y = (x * w).exp()
        y[y > 1].sum().backward()

    graph = flow.compile(lambda x: loss(ours, x))
    for seed in (0, 1, 0, 2):
        x = random(4, 3, seed=seed)
        graph(x)
        loss(theirs, x)
        np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-6)


def test_two_threads_take_their_ways_through_one_graph():
    def f(x):
        y = x.exp()
        return y[y > 1] * 2, (y < 1).nonzero()

    graph, wrong = flow.compile(f), []

    def call(seeds):
        for seed in seeds:
            x = random(5, 3, seed=seed)
            try:
                same(graph(x), f(x))
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=call, args=(range(k, 24, 2),)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


def test_every_segment_is_what_its_graph_interpreted_gives():
    compiled = check(CASES["row mask"], (random(4, 3, seed=0),), (random(4, 3, seed=1),))
    x = random(4, 3, seed=5)
    plain = interpret(compiled.root.captured, [x])
    for ours, theirs in zip(compiled.root.plan.launch([x]), plain, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


# --- never silently wrong ---------------------------------------------------------------------


def test_code_that_did_something_else_before_the_cut_is_refused():
    factors = iter((2.0, 3.0))  # no graph can know of it
    graph = flow.compile(lambda x: (x * next(factors))[x > 0] + 1)
    graph(flow.tensor([1.0, -1.0]))
    with pytest.raises(CaptureError, match=r"mul .*test_segments\.py:\d+ where.*mul .*had run"):
        graph(flow.tensor([1.0, 1.0]))
    assert graph(flow.tensor([-1.0, 5.0])).tolist() == [11.0]  # as it was captured


def test_more_operations_before_the_cut_are_refused():
    more = iter((False, True))

    def f(x):
        y = x + 1
        if next(more):
            y = y + 1
        return y[x > 0] + 1

    graph = flow.compile(f)
    graph(flow.tensor([1.0, -1.0]))
    with pytest.raises(CaptureError, match="runs in segments"):
        graph(flow.tensor([1.0, 1.0]))


def test_reading_a_value_is_refused_behind_a_cut_too_and_leaves_nothing_behind():
    norm = nn.BatchNorm1d(3)
    before = {k: v.numpy().copy() for k, v in norm.state_dict().items()}

    def f(x):
        y = F.dropout(norm(x), 0.5)
        return x * y[x > 0].sum().item()

    flow.manual_seed(7)
    with pytest.raises(CaptureError, match="sum"):
        flow.compile(f)(random(4, 3, seed=0))
    for name, value in norm.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])
    drawn = flow.rand(1).item()
    flow.manual_seed(7)
    assert drawn == flow.rand(1).item()


def test_an_error_in_build_behind_a_cut_leaves_variables_as_they_were():
    weight = flow.ones(2)

    def f(x):
        weight.mul_(3)
        if (x > 0).nonzero().shape[0] == 2:
            raise KeyError("no")
        return weight + x

    graph = flow.compile(f)
    with pytest.raises(KeyError):
        graph(flow.ones(2))
    assert weight.tolist() == [1.0, 1.0]
    assert graph(-flow.ones(2)).tolist() == [2.0, 2.0]


def test_a_kernel_that_fails_in_a_segment_says_so_and_the_graph_goes_on():
    table = flow.arange(4) * 1.0

    def f(i):
        return table[i][table[i] > 1] * 2

    graph = flow.compile(f)
    assert graph(flow.tensor([1, 2, 3])).tolist() == [4.0, 6.0]
    with pytest.raises(IndexError, match="9"):
        graph(flow.tensor([1, 9, 3])).numpy()
    assert graph(flow.tensor([1, 2, 3])).tolist() == [4.0, 6.0]


def test_a_tensor_kept_from_a_capture_has_no_value():
    class Keeper:
        pass

    def f(x):
        Keeper.kept = x[x > 0]
        return Keeper.kept + 1

    flow.compile(f)(flow.tensor([1.0, -1.0]))
    with pytest.raises(CaptureError):
        Keeper.kept.numpy()


def test_settings_of_modules_behind_the_cut_are_watched():
    drop = nn.Dropout(0.5)

    def f(x):
        chosen = x[x > 0]
        return drop(chosen) if chosen.shape[0] == 3 else chosen

    graph = flow.compile(f)
    x = flow.tensor([1.0, 2.0, 3.0, -1.0])
    graph(-x)  # the module is not called
    graph(x)
    drop.eval()
    assert graph(x).tolist() == [1.0, 2.0, 3.0]
    drop.train()
    assert {*graph(x).tolist()} <= {0.0, 2.0, 4.0, 6.0}


def test_ways_that_were_not_taken_for_long_are_forgotten():
    graph = flow.compile(lambda x: x[x > 0] * 2)

    def call(n):
        x = flow.from_numpy((np.arange(20) < n).astype(np.float32) - 0.5)
        assert graph(x).tolist() == [1.0] * n

    for n in range(16):
        call(n)
    call(0)
    with pytest.warns(RecaptureWarning, match=r"17 rows at masked_select .*forgotten"):
        call(17)
    assert set(segmented(graph).root.following) == {(n,) for n in (*range(16), 17) if n != 1}


def test_explain_says_where_and_why():
    graph = flow.compile(lambda x: x[x > 0] * 2)
    graph(flow.tensor([1.0, -1.0]))
    graph(flow.tensor([1.0, 1.0]))
    text = graph.explain()
    assert "2 segments" in text
    assert "masked_select" in text
    assert "test_segments.py" in text
    assert "1 row at" in text
    assert "2 rows at" in text
