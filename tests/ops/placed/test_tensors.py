"""Users' calls on global tensors: made, asked, printed, indexed, changed; and errors."""

import copy
import pickle

import numpy as np
import pytest
import ranks

import flowvm as flow
from flowvm import nn
from flowvm.eager.interpreter import operators
from flowvm.meta.placements import broadcast, partial_sum, split

B, P, S = broadcast, partial_sum, split


def on(size, *, grid=None):
    return flow.placement("cpu", list(range(size)) if grid is None else grid)


MAKERS = {
    "zeros": lambda **k: flow.zeros(5, 3, **k),
    "ones": lambda **k: flow.ones((5, 3), dtype=flow.int64, **k),
    "full": lambda **k: flow.full((5, 3), 2.5, **k),
    "arange": lambda **k: flow.arange(5, **k),
    "linspace": lambda **k: flow.linspace(0, 1, 5, **k),
    "logspace": lambda **k: flow.logspace(0, 1, 5, **k),
    "eye": lambda **k: flow.eye(5, **k),
    "tensor": lambda **k: flow.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], **k),
    "rand": lambda **k: flow.rand(5, 3, **k),
    "randn": lambda **k: flow.randn(5, 3, **k),
    "randint": lambda **k: flow.randint(0, 9, (5, 3), **k),
    "randperm": lambda **k: flow.randperm(5, **k),
    "normal": lambda **k: flow.normal(1.0, 2.0, (5, 3), **k),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_is_made_does_not_depend_on_the_placement(name, size):
    make = MAKERS[name]
    flow.manual_seed(3)
    expected = make().numpy()

    def rank(k):
        for sbp in (B, S(0), P, *((S(1),) if expected.ndim == 2 else ())):
            tensor = (
                make(placement=on(size), sbp=sbp, generator=flow.Generator().manual_seed(3))
                if name.startswith(("rand", "normal"))
                else make(placement=on(size), sbp=sbp)
            )
            assert tensor.is_global
            assert tensor.sbp == (sbp,)
            assert tensor.placement is on(size)
            assert tensor.dtype is flow.tensor(expected).dtype
            np.testing.assert_array_equal(tensor.numpy(), expected)

    ranks.run(size, rank)


LIKES = {
    "zeros_like": flow.zeros_like, "ones_like": flow.ones_like, "empty_like": flow.empty_like,
    "full_like": lambda x: flow.full_like(x, 3), "rand_like": flow.rand_like,
    "randn_like": flow.randn_like, "randint_like": lambda x: flow.randint_like(x, 5),
}  # fmt: skip


@pytest.mark.parametrize("name", LIKES)
def test_what_is_made_like_another_is_held_like_it(name):
    def rank(k):
        x = flow.zeros(5, 3, placement=on(2), sbp=S(0))
        y = LIKES[name](x)
        assert y.sbp == (S(0),)
        assert y.shape == x.shape
        assert LIKES[name](x.to_global(sbp=P)).sbp == (B,)

    ranks.run(2, rank)


def test_random_numbers_in_place_do_not_depend_on_the_placement():
    flow.manual_seed(5)
    expected = [
        nn.init.kaiming_uniform_(flow.empty(5, 4)).numpy(),
        nn.init.xavier_normal_(flow.empty(5, 4)).numpy(),
    ]

    def rank(k):
        for sbp in (B, S(0), S(1)):
            g = flow.Generator().manual_seed(5)
            x = flow.empty(5, 4, placement=on(3), sbp=sbp)
            nn.init.kaiming_uniform_(x, generator=g)
            np.testing.assert_array_equal(x.numpy(), expected[0])
            nn.init.xavier_normal_(x, generator=g)
            np.testing.assert_array_equal(x.numpy(), expected[1])
            assert x.sbp == (sbp,)

    ranks.run(3, rank)


def test_dropout_draws_the_mask_of_one_rank():
    flow.manual_seed(11)
    expected = nn.functional.dropout(flow.ones(6, 5), 0.5).numpy()
    flow.manual_seed(11)
    x = flow.ones(6, 5, placement=on(1), sbp=S(0))  # more ranks: test_processes.py
    np.testing.assert_array_equal(nn.functional.dropout(x, 0.5).numpy(), expected)


def test_local_parts_become_a_global_tensor_and_back():
    whole = np.arange(15.0).reshape(5, 3)

    def rank(k):
        where = on(2)
        part = flow.tensor(whole[:3] if k == 0 else whole[3:])
        x = part.to_global(where, S(0))
        assert tuple(x.shape) == (5, 3)
        np.testing.assert_array_equal(x.numpy(), whole)
        np.testing.assert_array_equal(x.to_local().numpy(), part.numpy())
        summed = flow.tensor(whole * (k + 1)).to_global(where, P)
        np.testing.assert_array_equal(summed.numpy(), 3 * whole)
        same = flow.tensor(whole * (k + 1)).to_global(where, B)  # the first rank's
        np.testing.assert_array_equal(same.numpy(), whole)
        grid = flow.placement("cpu", [[0, 1]])
        both = flow.tensor(whole[:, :2] if k == 0 else whole[:, 2:]).to_global(grid, (B, S(1)))
        np.testing.assert_array_equal(both.numpy(), whole)
        with pytest.raises(RuntimeError, match=r"even cut|one more"):
            flow.zeros(1 + 3 * k, 2).to_global(where, S(0))

    ranks.run(2, rank)


def test_gradients_go_through_to_global_and_to_local():
    values = np.arange(6.0).reshape(3, 2)

    def rank(k):
        where = on(2)
        part = flow.tensor(values[:2] if k == 0 else values[2:]).requires_grad_()
        (part.to_global(where, S(0)) ** 2).sum().backward()
        np.testing.assert_allclose(part.grad.numpy(), 2 * part.detach().numpy())
        x = ranks.held(values, where, (S(0),)).requires_grad_()
        (x.to_local() * (k + 2)).sum().backward()
        assert x.grad.sbp == (S(0),)
        expected = np.array([[2.0], [2.0], [3.0]]) * np.ones((3, 2))
        np.testing.assert_allclose(x.grad.numpy(), expected)

    ranks.run(2, rank)


def test_local_and_global_do_not_mix():
    def rank(k):
        x = flow.ones(4, placement=on(2), sbp=S(0))
        for call in (
            lambda: x + flow.ones(4), lambda: flow.ones(4) * x, lambda: x.add_(flow.ones(4)),
            lambda: flow.cat([x, flow.ones(4)]), lambda: x @ flow.ones(4),
            lambda: x + flow.tensor(1.0), lambda: flow.where(x > 0, x, flow.ones(4)),
        ):  # fmt: skip
            with pytest.raises(RuntimeError, match=r"global.*local|local.*global"):
                call()
        with pytest.raises(RuntimeError, match="one placement"):
            x + flow.ones(4, placement=flow.placement("cpu", [0]), sbp=B)
        np.testing.assert_array_equal(((2 * x + 1) ** 2 / 3).numpy(), np.full(4, 3.0, np.float32))

    ranks.run(2, rank)


def test_a_rank_outside_computes_nothing_and_says_so():
    def rank(k):
        x = flow.ones(4, 2, placement=flow.placement("cpu", [1]), sbp=B).requires_grad_()
        y = (x @ x.t()).relu().sum()
        y.backward()
        assert y.is_global
        assert x.grad.shape == x.shape
        if k == 1:
            assert y.item() == 32.0
            np.testing.assert_array_equal(x.grad.numpy(), np.full((4, 2), 8.0, np.float32))
        else:
            assert y.numpy().shape == (0,)
            assert x.to_local().shape == (0, 0)
            for read in (y.item, y.tolist, lambda: bool(y), lambda: float(y)):
                with pytest.raises(ValueError, match="rank 0 holds nothing"):
                    read()
            assert "on other ranks" in repr(y)

    ranks.run(2, rank)


def test_printed():
    def rank(k):
        x = flow.tensor([[1.0, 2.0], [3.0, 4.0]], placement=on(2), sbp=S(1))
        assert "in parts on several ranks" in repr(x)
        assert repr(x.to_global(sbp=B)).startswith("tensor([[1., 2.],")
        return str(x)

    for text in ranks.run(2, rank):
        assert text == (
            "tensor([[1., 2.],\n        [3., 4.]], "
            'placement=flow.placement(type="cpu", ranks=[0, 1]),\n'
            "       sbp=(flow.sbp.split(1),))"
        )


INDEXED = [
    0, -1, slice(1, 3), slice(None, None, 2), (slice(None), 1), (Ellipsis, slice(0, 2)),
    (slice(1, 4), slice(None, None, 3)), None, (0, 2), ([0, 3, 1],), (slice(None), [2, 0]),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(INDEXED)))
def test_indexed_read_and_written(place):
    index = INDEXED[place]
    values = np.arange(24.0).reshape(6, 4)

    def rank(k):
        for sbp in (B, S(0), S(1), P):
            x = ranks.held(values, on(2), (sbp,))
            np.testing.assert_allclose(x[index].numpy(), values[index], atol=1e-12)
            changed = values.copy()
            changed[index] = -1.0
            x[index] = -1.0
            np.testing.assert_allclose(x.numpy(), changed, atol=1e-12)
            assert x.sbp == (sbp,)
            if isinstance(index, (int, slice)):
                view = x[index]
                view *= 2
                changed[index] *= 2
                np.testing.assert_allclose(x.numpy(), changed, atol=1e-12)

    ranks.run(2, rank)


def test_views_keep_splits_where_they_can():
    def rank(k):
        x = flow.arange(48, placement=on(2), sbp=B).reshape(4, 6, 2).to_global(sbp=S(0))
        ranks.calls().clear()
        assert x.permute(2, 0, 1).sbp == (S(1),)
        assert x.reshape(4, 12).sbp == (S(0),)
        assert x.reshape(24, 2).sbp == (S(0),)
        assert x.reshape(2, 2, 6, 2).sbp == (S(0),)
        assert x[:, 1:3].sbp == (S(0),)
        assert x[:, 1].sbp == (S(0),)
        assert x.unsqueeze(0).sbp == (S(1),)
        assert x[::2].sbp == (S(0),)
        assert x.expand(3, 4, 6, 2).sbp == (S(1),)
        assert ranks.calls() == []
        assert x[0].sbp == (B,)
        assert x[1:].sbp == (B,)
        assert x.reshape(3, 16).sbp == (B,)

    ranks.run(2, rank)


def test_copies():
    def rank(k):
        x = flow.arange(6.0, placement=on(2), sbp=S(0)).requires_grad_()
        y = copy.deepcopy(x)
        assert y.sbp == x.sbp
        assert y.requires_grad
        assert y is not x
        with flow.no_grad():
            y.add_(1)
        np.testing.assert_array_equal(x.numpy(), np.arange(6.0, dtype=np.float32))
        np.testing.assert_array_equal(y.numpy(), np.arange(1.0, 7.0, dtype=np.float32))
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(x)
        layer = copy.deepcopy(nn.Linear(3, 2).to_global(on(2), B))
        assert layer.weight.is_global
        assert isinstance(layer.weight, nn.Parameter)

    ranks.run(2, rank)


def test_placements_are_checked():
    assert flow.placement("cpu", ranks=[0]) is flow.placement.all("cpu")
    assert repr(flow.placement("cpu", [[0]])) == 'flow.placement(type="cpu", ranks=[[0]])'
    for ranks_of, message in (([0, 1], "start more"), ([], "ints"), ([0, 0], "more than once"),
                              ([0.5], "ints"), ([-1], "from 0")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            flow.placement("cpu", ranks_of)
    with pytest.raises(ValueError, match="'cpu' or 'cuda'"):
        flow.placement("tpu", [0])
    with pytest.raises(TypeError, match="is local"):
        _ = flow.ones(2).sbp
    with pytest.raises(TypeError, match="needs sbp"):
        flow.ones(2, placement=flow.placement("cpu", [0]))
    with pytest.raises(TypeError, match=r"is a flow\.placement"):
        flow.ones(2, sbp=B)


def test_explained():
    def rank(k):
        a = flow.ones(4, 6, placement=on(2), sbp=S(1))
        b = flow.ones(6, 3, placement=on(2), sbp=B)
        text = flow.sbp.explain(lambda: (a @ b).relu())
        matmul, relu = text.lines
        assert repr(matmul.choice.signatures[0]) == "S(1), S(0) -> P"
        assert relu.choice.bytes == 24
        assert text.bytes == 24
        assert "reduce" not in str(text)
        assert "P -> S(0)" in str(text)
        np.testing.assert_array_equal(text.result.numpy(), np.full((4, 3), 6.0, np.float32))

    ranks.run(2, rank)


def test_a_call_without_communication_has_an_entry_of_its_own():
    x = flow.ones(4, 6, placement=on(1), sbp=S(0))
    w = flow.ones(6, 3, placement=on(1), sbp=B).requires_grad_()
    calls = {"add": (x, x), "matmul": (x, w), "relu": (x,)}
    for name, inputs in calls.items():
        call = getattr(flow, name)
        call(*inputs)
        key = tuple(t._meta for t in inputs)
        (entry,) = {
            o.lru.young[key] for o in tuple(operators) if key in o.lru.young and o.name == name
        }
        assert entry.outputs[0].sbp == (S(0),)
        assert call(*inputs)._meta is entry.outputs[0]
    assert (x @ w).requires_grad
    assert not (x + x).requires_grad


OPTIMIZERS = {
    "SGD": {"lr": 0.1}, "momentum": {"lr": 0.1, "momentum": 0.9}, "Adam": {"lr": 0.1},
    "AdamW": {"lr": 0.1, "amsgrad": True}, "RMSprop": {"lr": 0.1, "momentum": 0.5},
    "Adagrad": {"lr": 0.1}, "Adadelta": {"lr": 0.5}, "Adamax": {"lr": 0.1}, "NAdam": {"lr": 0.1},
    "RAdam": {"lr": 0.1}, "Rprop": {"lr": 0.1}, "ASGD": {"lr": 0.1},
}  # fmt: skip


def trained(name, options, place):
    """A layer's parameters after three steps, with clipped gradients that two backwards made."""
    rng = np.random.default_rng(0)
    layer = nn.Linear(5, 4)
    with flow.no_grad():
        for p in layer.parameters():
            p.copy_(flow.tensor(rng.standard_normal(p.shape), dtype=p.dtype))
    x = flow.tensor(rng.standard_normal((6, 5)), dtype=flow.float32)
    y = flow.tensor(rng.standard_normal((6, 4)), dtype=flow.float32)
    layer, x, y = place(layer, x, y)
    kind = flow.optim.SGD if name == "momentum" else getattr(flow.optim, name)
    optimizer = kind(layer.parameters(), **options)
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(2):
            nn.functional.mse_loss(layer(x), y).backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
    return layer, optimizer


@pytest.mark.parametrize("sbp", [B, S(0)], ids=repr)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_rank_updates_its_part(name, sbp):
    expected, _ = trained(name, OPTIMIZERS[name], lambda *all: all)
    values = [p.numpy() for p in expected.parameters()]

    def rank(k):
        def place(layer, x, y):
            where = on(3)
            held = S(0) if sbp is B else B
            parts = [ranks.held(t.numpy(), where, (held,)) for t in (x, y)]
            return layer.to_global(where, sbp) if sbp is B else _split(layer, where), *parts

        layer, optimizer = trained(name, OPTIMIZERS[name], place)
        for p, value in zip(layer.parameters(), values, strict=True):
            np.testing.assert_allclose(p.numpy(), value, rtol=1e-5, atol=1e-6)
            assert p.sbp == p.grad.sbp == (sbp,)
            state = [v for v in optimizer.state[p].values() if isinstance(v, flow.Tensor)]
            assert all(v.sbp == (sbp,) for v in state if v.shape == p.shape)

    ranks.run(3, rank)


def _split(layer, where):
    """A layer that every rank has alike, with its parameters cut."""
    return layer.to_global(where, B)._apply(lambda t: t.to_global(sbp=S(0)))


def test_parts_of_more_than_eight_dimensions():
    shape = (2, *[1] * 9)

    def rank(k):
        local = flow.full(shape, float(k))
        return local.to_global(flow.placement("cpu", [0, 1]), flow.sbp.split(0)).numpy()

    for actual in ranks.run(2, rank):
        np.testing.assert_array_equal(actual, np.repeat([0.0, 1.0], 2).reshape(4, *[1] * 9))


GIVEN = {
    "shape": lambda k, where: flow.ones(4, 4 + k, placement=where, sbp=S(0)),
    "dtype": lambda k, where: flow.ones(4, dtype=(flow.float32, flow.int64)[k], placement=where,
                                        sbp=S(0)),
    "sbp": lambda k, where: flow.zeros(4, placement=where, sbp=(S(0), B)[k]),
    "values": lambda k, where: flow.tensor(np.ones(4 + k), placement=where, sbp=S(0)),
    "placement": lambda k, where: flow.ones(4, placement=on(2, grid=([0, 1], [1, 0])[k]), sbp=B),
    "grid": lambda k, where: flow.ones(4, placement=on(2, grid=([[0, 1]], [[0], [1]])[k]),
                                       sbp=(B, S(0))),
    "like": lambda k, where: flow.zeros_like(flow.ones(4, placement=where, sbp=S(0)),
                                             dtype=(flow.float32, flow.int64)[k]),
    "part": lambda k, where: flow.ones(2, dtype=(flow.float32, flow.float64)[k]).to_global(where,
                                                                                        S(0)),
    "change": lambda k, where: flow.ones(4, placement=where, sbp=B).to_global(sbp=(S(0), B)[k]),
}  # fmt: skip


@pytest.mark.parametrize("what", GIVEN)
def test_ranks_that_give_something_else_are_told(what):
    def rank(k):
        where = on(2)
        for _ in range(2):  # on the same line: compared once
            flow.ones(4, placement=where, sbp=S(0))
        return GIVEN[what](k, where)

    with pytest.raises(flow.errors.CommunicationError, match="ranks do not do the same"):
        ranks.run(2, rank)


def test_what_a_line_has_given_is_compared_once():
    def rank(k):
        for _ in range(3):
            flow.ones(4, placement=on(2), sbp=S(0))
        return ranks.barriers()

    assert ranks.run(2, rank) == [1, 1]


@pytest.mark.parametrize("transform", ["fft", "rfft", "irfft", "fft2", "ifftn", "hfft", "chirped"])
def test_transforms_of_global_tensors(transform):
    function = getattr(flow.fft, "fft" if transform == "chirped" else transform)
    values = np.random.default_rng(5).standard_normal((4, 67 if transform == "chirped" else 6))

    def values_and_gradient(x):
        x.requires_grad_()
        y = function(x)
        (y.abs() if y.is_complex() else y * y).sum().backward()
        return y.detach().numpy(), x.grad.numpy()

    expected = values_and_gradient(flow.tensor(values))

    def rank(k):
        held = [ranks.held(values, on(3), (sbp,)).detach() for sbp in (B, S(0), S(1))]
        return [values_and_gradient(x) for x in held]

    for results in ranks.run(3, rank):
        for result in results:
            for actual, target in zip(result, expected, strict=True):
                np.testing.assert_allclose(actual, target, rtol=1e-9, atol=1e-9)
