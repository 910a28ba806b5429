"""Writes in place to global tensors and to views of them equal one rank's, and happen once."""

import numpy as np
import pytest
import ranks

import flowvm as flow

B, S = flow.sbp.broadcast, flow.sbp.split
VALUES = np.arange(12.0).reshape(6, 2) + 1

VIEWS = {
    "itself": lambda x: x,
    "detach": lambda x: x.detach(),
    "transpose": lambda x: x.t(),
    "flatten": lambda x: x.view(-1),
    "view": lambda x: x.view(2, 3, 2),
    "rows": lambda x: x[1:3],
    "row": lambda x: x[1],
    "column": lambda x: x[:, 1],
    "steps": lambda x: x[::2],
    "rows of rows": lambda x: x[1:][1:],
    "diagonal": lambda x: x.diagonal(),
    "chunk": lambda x: x.chunk(2)[1],
    "unbind": lambda x: x.unbind(0)[2],
    "unfold": lambda x: x.unfold(0, 2, 2),
    "as_strided": lambda x: x.as_strided((2, 2), (2, 1)),
    "real": lambda x: x.real,
    "view_as_real": lambda x: flow.view_as_real(x),
    "view_as_real of rows": lambda x: flow.view_as_real(x[1:3]),
}


def first(x):
    """The index of the first slice, held as `x` is."""
    if not x.is_global:
        return flow.zeros(1, dtype=flow.int64)
    return flow.zeros(1, dtype=flow.int64, placement=x.placement, sbp=(B,) * len(x.sbp))


WRITES = {
    "mul_": lambda x: x.mul_(3),
    "copy_": lambda x: x.copy_(x * 2),
    "setitem": lambda x: x.__setitem__(0, 9.0),
    "zero_": lambda x: x.zero_(),
    "masked_fill_": lambda x: x.masked_fill_(x.real > 4, -1.0),
    "index_fill_": lambda x: x.index_fill_(0, first(x), 7.0),
    "index_add_": lambda x: x.index_add_(0, first(x), x[:1].clone()),
    "index_copy_": lambda x: x.index_copy_(0, first(x), x[1:2] * 5),
}


CASES = [
    (view, dtype)
    for view in VIEWS
    for dtype in ("float64", "float16", "complex64")
    if dtype == "complex64" or not view.startswith("view_as_real")
]


@pytest.mark.parametrize(("view", "dtype"), CASES)
def test_writes_to_a_view_reach_its_base(view, dtype):
    dtype, view = getattr(flow, dtype), VIEWS[view]

    def changed(x, write):
        for _ in range(3):  # the later ones by what the first has kept
            write(view(x))
        return x.numpy()

    expected = {n: changed(flow.tensor(VALUES, dtype=dtype), w) for n, w in WRITES.items()}

    def rank(k):
        where = flow.placement("cpu", [0, 1])
        return {
            (name, sbp): changed(flow.tensor(VALUES, dtype=dtype, placement=where, sbp=sbp), write)
            for name, write in WRITES.items()
            for sbp in (B, S(0), S(1))
        }

    for results in ranks.run(2, rank):
        for (name, sbp), actual in results.items():
            np.testing.assert_array_equal(actual, expected[name], err_msg=f"{name} of {sbp}")


OPTIMIZERS = {
    "SGD": lambda p: flow.optim.SGD(p, lr=0.5),
    "momentum": lambda p: flow.optim.SGD(p, lr=0.5, momentum=0.9),
    "Adam": lambda p: flow.optim.Adam(p, lr=0.5),
    "RMSprop": lambda p: flow.optim.RMSprop(p, lr=0.1),
    "Adagrad": lambda p: flow.optim.Adagrad(p, lr=0.1),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_of_an_optimizer_are_taken_once(optimizer, dtype):
    dtype = getattr(flow, dtype)

    def train(p):
        steps = OPTIMIZERS[optimizer]([p])
        for _ in range(3):
            (p * p.conj()).real.sum().backward()
            steps.step()
            steps.zero_grad()
        return p.detach().to(flow.complex128 if dtype.is_complex else flow.float32).numpy()

    expected = train(flow.tensor(VALUES, dtype=dtype, requires_grad=True))

    def rank(k):
        where = flow.placement("cpu", [0, 1])
        both = [flow.tensor(VALUES, dtype=dtype, placement=where, sbp=sbp) for sbp in (B, S(0))]
        return [train(p.requires_grad_()) for p in both]

    for results in ranks.run(2, rank):
        for actual in results:
            np.testing.assert_array_equal(actual, expected)
