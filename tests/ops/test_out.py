"""`out=`: the result goes into a tensor that is there, resized if it must be."""

import numpy as np
import pytest

import flowvm as flow

X = np.array([[3.0, -1.0, 2.0], [0.5, 4.0, -2.0]], np.float32)


def x():
    return flow.tensor(X)


CALLS = {
    "cat": lambda **o: flow.cat([x(), x()], **o), "sum": lambda **o: flow.sum(x(), 1, **o),
    "mean": lambda **o: flow.mean(x(), 0, **o), "argmax": lambda **o: flow.argmax(x(), 1, **o),
    "cumsum": lambda **o: flow.cumsum(x(), 1, **o), "amax": lambda **o: flow.amax(x(), 1, **o),
    "mm": lambda **o: flow.mm(x(), x().t(), **o), "sort": lambda **o: flow.sort(x(), 1, **o),
    "max": lambda **o: flow.max(x(), 1, **o), "topk": lambda **o: flow.topk(x(), 2, **o),
    "softmax": lambda **o: flow.softmax(x(), 1, **o), "tril": lambda **o: flow.tril(x(), **o),
    "gather": lambda **o: flow.gather(x(), 1, flow.tensor([[0], [2]]), **o),
    "quantile": lambda **o: flow.quantile(x(), 0.3, 1, **o),
    "matmul": lambda **o: flow.matmul(x(), x().t(), **o),
    "linalg.matmul": lambda **o: flow.linalg.matmul(x(), x()[0], **o),
    "inverse": lambda **o: flow.inverse(x() @ x().t(), **o),
    "cholesky": lambda **o: flow.cholesky(x() @ x().t(), **o),
    "lu": lambda **o: flow.lu(x(), **o),
    "slogdet": lambda **o: flow.slogdet(x() @ x().t(), **o),
    "geqrf": lambda **o: flow.geqrf(x(), **o),
    "lstsq": lambda **o: flow.linalg.lstsq(x().t(), x().t(), **o),
    "normalize": lambda **o: flow.nn.functional.normalize(x(), **o),
    "cross": lambda **o: flow.cross(x(), x() + 1, **o), "frexp": lambda **o: flow.frexp(x(), **o),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_it_holds_the_result(name):
    want = CALLS[name]()
    parts = want if isinstance(want, tuple) else (want,)
    outs = tuple(flow.empty(0, dtype=p.dtype) for p in parts)
    actual = CALLS[name](out=outs if isinstance(want, tuple) else outs[0])
    for out, mine, part in zip(outs, actual if isinstance(want, tuple) else (actual,), parts,
                               strict=True):  # fmt: skip
        assert mine is out
        np.testing.assert_array_equal(out.numpy(), part.numpy())


def test_another_shape_is_resized_with_a_warning():
    out = flow.zeros(5)
    with pytest.warns(UserWarning, match=r"resized to \(2,\)"):
        flow.sum(x(), 1, out=out)
    assert out.tolist() == pytest.approx([4.0, 2.5])


def test_pointwise_results_resize_it_too():
    out = flow.empty(0)
    assert flow.add(flow.ones(2, 1), flow.ones(3), out=out) is out
    assert out.tolist() == [[2, 2, 2]] * 2
    with pytest.warns(UserWarning, match=r"exp: .* resized to \(2,\)"):
        assert flow.exp(flow.zeros(2), out=out).tolist() == [1, 1]
    argument = flow.ones(1)
    with pytest.raises(RuntimeError, match="shape"):
        flow.add(argument, flow.ones(2), out=argument)


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (lambda: flow.sum(x(), out=flow.zeros((), dtype=flow.int64)), RuntimeError, "float32"),
        (lambda: flow.sum(x(), out=3), TypeError, "int"),
        (lambda: flow.max(x(), 1, out=flow.zeros(2)), TypeError, "tuple of 2"),
        (lambda: flow.sum(x().requires_grad_(), out=flow.zeros(())), RuntimeError, "no_grad"),
    ],
)
def test_what_cannot_hold_it(wrong, error, says):
    with pytest.raises(error, match=says):
        wrong()
