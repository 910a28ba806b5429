"""Sparse gradients of embeddings and the optimizers that take them, beside PyTorch's."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import AutogradError, CaptureError, ModeError

torch = pytest.importorskip("torch")

ROWS, WIDTH = 6, 3
INDEX = [[1, 0], [3, 3]]


def table(lib: Any, rng: np.random.Generator) -> Any:
    """A table of a library as a leaf, the same of both for one seed."""
    rows = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    return lib.nn.Parameter(lib.tensor(rows))


def both(f: Callable[[Any, Any], Any], seed: int = 7) -> tuple[Any, Any]:
    """Results of `f(library, table)` here and in PyTorch."""
    ours, theirs = (f(lib, table(lib, np.random.default_rng(seed))) for lib in (flow, torch))
    return ours, theirs


def same(ours: Any, theirs: Any, whole: bool = False) -> None:
    """Equal in layout, places in order and values; `whole`: in elements alone."""
    assert str(ours.layout).split(".")[1] == str(theirs.layout).split(".")[1]
    assert tuple(ours.shape) == tuple(theirs.shape)
    if theirs.is_sparse and not whole:
        assert ours.is_coalesced() == theirs.is_coalesced()
        assert ours._indices().tolist() == theirs._indices().tolist()
        ours, theirs = ours._values(), theirs._values()
    np.testing.assert_allclose(
        ours.detach().to_dense().numpy(), theirs.detach().to_dense().numpy(), 1e-5, 1e-6
    )


LOOKUPS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "embedding": lambda lib, w, x: lib.nn.functional.embedding(x, w, sparse=True),
    "padding": lambda lib, w, x: lib.nn.functional.embedding(x, w, padding_idx=1, sparse=True),
    "mean": lambda lib, w, x: lib.nn.functional.embedding_bag(x, w, sparse=True),
    "weighted": lambda lib, w, x: lib.nn.functional.embedding_bag(
        x, w, mode="sum", sparse=True, padding_idx=0,
        per_sample_weights=lib.tensor([[0.5, 2.0], [1.0, -1.0]])),
    "max_norm": lambda lib, w, x: lib.nn.functional.embedding(
        x, w, max_norm=1.0, sparse=True),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKUPS)
def test_the_gradient_has_the_rows_that_were_looked_up(name: str) -> None:
    def gradient(lib: Any, w: Any) -> Any:
        out = LOOKUPS[name](lib, w, lib.tensor(INDEX))
        (out * out).sum().backward()
        return w.grad

    same(*both(gradient))


def sums(lib: Any, w: Any, order: str) -> Any:
    """The gradient by losses of kinds in an order, "d" dense and "s" sparse, one backward each."""
    for kind in order:
        x = lib.tensor([4, 1, 4])
        rows = lib.nn.functional.embedding(x, w, sparse=True)
        ((rows * 3).sum() if kind == "s" else (w * w).sum()).backward()
    return w.grad


@pytest.mark.parametrize("order", ["ss", "sd", "ds", "sds"])
def test_gradients_add_up(order: str) -> None:
    same(*both(lambda lib, w: sums(lib, w, order)), whole=True)


@pytest.mark.parametrize("dense", [False, True])
def test_gradients_of_one_backward_add_up(dense: bool) -> None:
    def gradient(lib: Any, w: Any) -> Any:
        loss = sum(
            lib.nn.functional.embedding(lib.tensor(x), w, sparse=True).sum() for x in ([1, 2], [2])
        )
        (loss + (w * w).sum() if dense else loss).backward()
        return w.grad

    same(*both(gradient), whole=True)


def test_hooks_see_sparse_gradients() -> None:
    def gradient(lib: Any, w: Any) -> Any:
        calls = []
        w.register_hook(lambda g: calls.append(g.is_sparse))
        w.register_hook(lambda g: g * 2)
        w.register_post_accumulate_grad_hook(lambda p: calls.append(p.grad.is_sparse))
        lib.nn.functional.embedding(lib.tensor(INDEX), w, sparse=True).sum().backward()
        assert calls == [True, True]
        return w.grad

    same(*both(gradient))


def test_second_gradients() -> None:
    def gradient(lib: Any, w: Any) -> Any:
        rows = lib.nn.functional.embedding(lib.tensor(INDEX), w, sparse=True)
        (g,) = lib.autograd.grad((rows**3).sum(), w, create_graph=True)
        return lib.autograd.grad(g.to_dense().sum(), w)[0]

    same(*both(gradient))


def test_a_gradient_is_cleared_copied_and_converted() -> None:
    layer = flow.nn.Embedding(ROWS, WIDTH, sparse=True)
    layer(flow.tensor(INDEX)).sum().backward()
    copied = copy.deepcopy(layer).double()
    assert copied.weight.grad.is_sparse
    assert copied.weight.grad.dtype is flow.float64
    layer.zero_grad(set_to_none=False)
    assert layer.weight.grad._nnz() == 0
    assert copied.weight.grad._nnz() == 4
    layer.zero_grad()
    assert layer.weight.grad is None


# optimizer, options; of both libraries
STEPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.5}),
    ("Adagrad", {"lr": 0.1, "maximize": True}),
    ("SparseAdam", {"lr": 0.1, "betas": (0.8, 0.9)}),
    ("SparseAdam", {"maximize": True}),
    ("LBFGS", {"lr": 0.1, "max_iter": 2}),
)


@pytest.mark.parametrize(
    ("name", "options"), STEPS, ids=[f"{n}-{i}" for i, (n, _) in enumerate(STEPS)]
)
def test_steps_are_pytorchs(name: str, options: dict[str, Any]) -> None:
    def train(lib: Any, w: Any) -> Any:
        optimizer = getattr(lib.optim, name)([w], **options)
        for x in ([4, 1, 4], [2, 1, 0], [2, 2, 2], [4, 4, 5]):

            def closure(x: Any = x) -> Any:
                optimizer.zero_grad()
                rows = lib.nn.functional.embedding(lib.tensor(x), w, sparse=True)
                loss = (rows * rows).sum()
                loss.backward()
                return loss

            optimizer.step(closure)
        return w

    same(*both(train))


def test_a_step_leaves_other_rows_alone_whatever_lies_there() -> None:
    rows = np.full((3, 2), np.nan, np.float32)
    rows[1] = 1
    for name in ("SGD", "Adagrad", "SparseAdam"):
        w = flow.nn.Parameter(flow.tensor(rows.T.copy()).t())  # not in C order
        assert not w.is_contiguous()
        optimizer = getattr(flow.optim, name)([w], lr=0.5)
        flow.embedding(w, flow.tensor([1, 1]), sparse=True).sum().backward()
        optimizer.step()
        assert np.isnan(w.detach().numpy()[[0, 2]]).all()
        assert (w.detach().numpy()[1] < 1).all()


def test_the_state_of_a_step_is_saved() -> None:
    layer = flow.nn.Embedding(ROWS, WIDTH, sparse=True)
    kinds: list[Any] = [lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9), flow.optim.SparseAdam]
    for kind in kinds:
        nets = [copy.deepcopy(layer) for _ in range(2)]
        optimizers = [kind(net.parameters()) for net in nets]
        for count in (0, 1):
            for net, optimizer in zip(nets, optimizers, strict=True):
                optimizer.zero_grad()
                net(flow.tensor(INDEX) + count).square().sum().backward()
                optimizer.step()
            file = io.BytesIO()
            flow.save(optimizers[0].state_dict(), file)
            file.seek(0)
            optimizers[1].load_state_dict(flow.load(file))
        assert np.array_equal(*(net.weight.detach().numpy() for net in nets))


REFUSALS = (
    "ASGD", "Adadelta", "Adafactor", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop",
    "Rprop", "Muon",
)  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_other_optimizers_refuse_as_pytorchs_do(name: str) -> None:
    def step(lib: Any, w: Any) -> None:
        optimizer = getattr(lib.optim, name)([w], lr=0.1)
        lib.nn.functional.embedding(lib.tensor(INDEX), w, sparse=True).sum().backward()
        with pytest.raises(RuntimeError, match="does not support sparse gradients"):
            optimizer.step()

    both(step)


def test_what_makes_no_sense_is_refused() -> None:
    w = flow.nn.Parameter(flow.ones(ROWS, WIDTH))
    x = flow.tensor(INDEX)
    F = flow.nn.functional
    with pytest.raises(AutogradError, match="scale_grad_by_freq"):
        F.embedding(x, w, scale_grad_by_freq=True, sparse=True).sum().backward()
    with pytest.raises(ValueError, match="max mode"):
        F.embedding_bag(x, w, mode="max", sparse=True)
    F.embedding(x, w, sparse=True).sum().backward()
    for optimizer in (
        flow.optim.SGD([w], weight_decay=0.1),
        flow.optim.Adagrad([w], weight_decay=1),
    ):
        with pytest.raises(RuntimeError, match="weight_decay"):
            optimizer.step()
    with pytest.raises(NotImplementedError, match="sparse gradients are not clipped"):
        flow.nn.utils.clip_grad_norm_([w], 1.0)
    with pytest.raises(NotImplementedError, match="sparse"):
        flow.nn.utils.clip_grad_value_([w], 1.0)
    w.grad = flow.ones(ROWS, WIDTH)
    with pytest.raises(RuntimeError, match="dense gradients"):
        flow.optim.SparseAdam([w]).step()
    with pytest.raises(ValueError, match="Sparse params"):
        flow.optim.SparseAdam([flow.eye(2).to_sparse().requires_grad_()])
    with pytest.raises(ValueError, match="lr"):
        flow.optim.SparseAdam([w], lr=0.0)
    assert np.array_equal(w.detach().numpy(), np.ones((ROWS, WIDTH)))


def test_scaled_gradients() -> None:
    layer = flow.nn.Embedding(ROWS, WIDTH, sparse=True)
    start = layer.weight.detach().numpy().copy()
    optimizer, scaler = flow.optim.SGD(layer.parameters(), lr=1.0), flow.amp.GradScaler("cpu")
    scaler.scale(layer(flow.tensor([2])).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    start[2] -= 1
    np.testing.assert_allclose(layer.weight.detach().numpy(), start, 1e-6)


def test_a_graph_looks_up_rows_and_refuses_their_gradient() -> None:
    layer = flow.nn.Embedding(ROWS, WIDTH, sparse=True)
    x = flow.tensor(INDEX)

    @flow.compile
    def forward(x: Any) -> Any:
        return layer(x) * 2

    assert np.array_equal(forward(x).detach().numpy(), (layer(x) * 2).detach().numpy())

    @flow.compile
    def step(x: Any) -> Any:
        loss = layer(x).sum()
        loss.backward()
        return loss

    with pytest.raises(CaptureError, match="sparse gradients"):
        step(x)


def test_the_function_of_a_step_takes_lists() -> None:
    from torch.optim import _functional

    from flowvm.optim.sparse_adam import sparse_adam

    def step(lib: Any, w: Any) -> Any:
        of = sparse_adam if lib is flow else _functional.sparse_adam
        g = lib.sparse_coo_tensor(lib.tensor([[1, 1]]), lib.ones(2, WIDTH), (ROWS, WIDTH))
        w = w.detach()
        zeros = lib.zeros_like(w), lib.zeros_like(w)
        of([w], [g], [zeros[0]], [zeros[1]], [2], eps=1e-8, beta1=0.9, beta2=0.99, lr=0.1,
           maximize=False)  # fmt: skip
        return w

    same(*both(step))


def test_an_op_without_a_rule_refuses_a_sparse_tensor() -> None:
    from flowvm.ops.updates.loss_scaling import unscale_

    with pytest.raises(ModeError, match="sparse"):
        unscale_(flow.eye(2).to_sparse(), flow.ones(1))
