"""Bad input: a clear error of the right class, and a VM that works afterwards.

At the call where shapes, dtypes and devices tell; where the result is read when only the data can.
"""

import threading
from pathlib import Path

import numpy as np
import pytest

import flowvm as flow
from flowvm import errors, nn
from flowvm.nn import functional as F
from flowvm.ops import Launch, op

X = np.arange(12.0, dtype=np.float32).reshape(3, 4)


def x():
    return flow.tensor(X)


AT_THE_CALL = {
    "matmul shapes": (lambda: x() @ x(), RuntimeError, r"\(3, 4\) and \(3, 4\)"),
    "broadcast": (lambda: x() + flow.ones(5), RuntimeError, "broadcast"),
    "reshape": (lambda: x().reshape(5, 5), RuntimeError, "12 elements"),
    "a string": (lambda: x() + "a", TypeError, "str"),
    "a list": (lambda: flow.exp([1.0]), TypeError, "list"),
    "an array": (lambda: x() * X, TypeError, "from_numpy"),
    "dim": (lambda: x().sum(5), IndexError, "-2 to 1"),
    "an index": (lambda: x()[7], IndexError, "index 7.*size 3"),
    "too many indices": (lambda: x()[0, 0, 0], IndexError, "too many"),
    "a negative size": (lambda: flow.zeros(3, -1), ValueError, "-1"),
    "a huge size": (lambda: flow.empty(10**15), MemoryError, "GiB"),
    "a device": (lambda: flow.ones(2, device="cuda:99"), RuntimeError, "not available"),
    "a dtype": (lambda: flow.ones(2, dtype="float33"), TypeError, "float33"),
    "mean of ints": (lambda: flow.arange(3).mean(), RuntimeError, "int64"),
    "int too large": (lambda: flow.ones(1, dtype=flow.uint8) + 300, ValueError, "300"),
    "item": (lambda: x().item(), ValueError, "one element"),
    "truth of many": (lambda: bool(x()), RuntimeError, "ambiguous"),
    "backward of a constant": (lambda: x().backward(), RuntimeError, "does not require grad"),
    "backward of a matrix": (
        lambda: (flow.ones(2, requires_grad=True) * 2).backward(),
        RuntimeError,
        "scalar",
    ),
    "grad of ints": (lambda: flow.arange(3).requires_grad_(), RuntimeError, "floating"),
    "leaf in place": (lambda: flow.ones(2, requires_grad=True).add_(1), RuntimeError, "leaf"),
    "a layer's input": (lambda: nn.Linear(3, 2)(x()), RuntimeError, r"\(3, 4\)"),
    "a module's argument": (lambda: nn.Linear(-1, 2), ValueError, "-1"),
    "an attribute": (lambda: x().sooftmax, AttributeError, "softmax"),
    "a function": (lambda: flow.sofmax, AttributeError, "softmax"),
}

AT_THE_READ = {
    "index in data": (lambda: x()[flow.tensor([0, 5])], IndexError, "index 5.*size 3"),
    "embedding": (
        lambda: flow.nn.functional.embedding(flow.tensor([9]), x()),
        IndexError,
        "index 9",
    ),
    "a class": (
        lambda: nn.functional.cross_entropy(x(), flow.tensor([0, 9, 1])),
        IndexError,
        "index 9",
    ),
    "division": (lambda: flow.tensor([1]) // flow.tensor([0]), ZeroDivisionError, "zero"),
    "singular": (lambda: flow.inv(flow.zeros(2, 2)), RuntimeError, "singular"),
}


def works():
    assert (x() + 1).sum().item() == X.sum() + 12
    flow.vm.sync()


@pytest.mark.parametrize("name", AT_THE_CALL)
def test_at_the_call(name):
    call, kind, text = AT_THE_CALL[name]
    with pytest.raises(kind, match=text) as caught:
        call()
    assert caught.value.__context__ is None or not isinstance(caught.value.__context__, KeyError)
    works()


@pytest.mark.parametrize("name", AT_THE_READ)
def test_at_the_read(name):
    call, kind, text = AT_THE_READ[name]
    result = call() * 2  # issuing goes on, and what depends on the failure is poisoned
    assert "failed" in repr(result)
    with pytest.raises(kind, match=text) as caught:
        result.numpy()
    note = "\n".join(caught.value.__notes__)
    assert Path(__file__).name in note, "the note names the line that issued the instruction"
    works()


@pytest.mark.parametrize("name", AT_THE_READ)
def test_sequentially_at_the_call(name):
    call, kind, text = AT_THE_READ[name]
    with flow.vm.sequential(), pytest.raises(kind, match=text):
        call()
    works()


def test_backward_twice():
    a = flow.ones(2, requires_grad=True)
    y = (a * a).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="retain_graph"):
        y.backward()
    works()


def test_a_saved_tensor_changed_in_place():
    a = flow.ones(2, requires_grad=True)
    b = a * 1
    y = (b * b).sum()
    with flow.no_grad():
        b.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()
    works()


def test_an_exception_in_a_hook():
    a = flow.ones(2, requires_grad=True)
    a.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        (a * 2).sum().backward()
    assert flow.is_grad_enabled()
    works()


def test_an_exception_in_a_module():
    class Bad(nn.Module):
        def forward(self, value):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        nn.Sequential(nn.Linear(4, 4), Bad())(x())
    works()


def _raising_body(out, x, lo, hi):
    for i in range(lo, hi):
        if x[i] < 0:
            raise ValueError
        out[i] = x[i]


@op("x -> out")
def _raising(x):
    return Launch(outputs=(x,), body=_raising_body, units=x.numel, grain=4)


def test_an_exception_in_a_users_kernel():
    with pytest.raises(errors.InvalidValueError):
        _raising(flow.tensor([1.0, -1.0])).numpy()
    assert _raising(flow.tensor([1.0])).tolist() == [1.0]
    works()


def test_an_op_that_cannot_be_compiled():
    def body(out, x, lo, hi):
        out[0] = len(input())

    @op("x -> out")
    def broken(x):
        return Launch(outputs=(x,), body=body, units=1)

    with pytest.raises(errors.CompileError):
        broken(flow.ones(1))
    works()


def test_errors_in_threads_stay_there():
    calls = []

    def run():
        try:
            x()[flow.tensor([99])].numpy()
        except IndexError as error:
            calls.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 4
    works()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: F.max_pool1d(flow.ones(0, 10), 1), "only the batch may have no elements"),
        (lambda: F.max_pool3d(flow.ones(0, 1, 2, 10), 1), "only the batch may have no elements"),
        (lambda: F.avg_pool2d(flow.ones(2, 0, 2), 1), "only the batch may have no elements"),
        (lambda: flow.narrow(flow.ones(3), 0, flow.tensor(True), 1), "start is an integer"),
        (
            lambda: flow.complex(*[flow.ones(2, dtype=flow.float64)] * 2, out=flow.empty(2) * 1j),
            "out is complex128",
        ),
        (
            lambda: flow.optim.Adam([flow.ones(2) * 1j], fused=True),
            "requires all the params to be floating point",
        ),
        (
            lambda: F.fractional_max_pool2d(
                flow.ones(2, 3, 6, 6), 2, 3, _random_samples=flow.rand(1, 3, 2)
            ),
            "_random_samples has shape",
        ),
    ],
)
def test_what_pytorchs_samples_of_errors_found(call, match):
    with pytest.raises(flow.FlowError, match=match):
        call()
    assert F.max_pool1d(flow.ones(0, 2, 2), 1).shape == (0, 2, 2)
    samples = flow.rand(2, 3, 2)  # more than the batch has
    assert F.fractional_max_pool2d(flow.ones(3, 6, 6), 2, 3, _random_samples=samples).ndim == 3


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: True - flow.ones(2), "sub of a bool"),
        (lambda: flow.tensor([1, 2]) - True, "sub of a bool"),
        (lambda: flow.tensor([1, 2]).sub_(True), "sub of a bool"),
        (lambda: flow.rsub(flow.ones(2), True), "sub of a bool"),
        (
            lambda: flow.addcdiv(flow.ones(2), *[flow.tensor([1, 2])] * 2),
            "integers are not divided",
        ),
        (lambda: flow.meshgrid(flow.ones(2), flow.tensor([1])), "all axes have one dtype"),
        (lambda: flow.cartesian_prod(flow.ones(2), flow.tensor([1])), "all axes have one dtype"),
        (lambda: nn.LSTM(3, 5, bias=1), "bias should be of type bool, got 1"),
        (lambda: nn.GRU(3, 5, batch_first="False"), "batch_first should be of type bool"),
        (lambda: nn.RNN(0, 5), "input_size must be at least 1"),
        (lambda: nn.HuberLoss(delta=1j), "delta must be a float or int"),
        (lambda: nn.BatchNorm1d(2, eps=0.0)(flow.ones(2, 2)), "eps must be positive in training"),
        (
            lambda: F.cross_entropy(flow.ones(2, 3), flow.ones(2, 3), ignore_index=1),
            "ignore_index=1 is for class indices",
        ),
    ],
)
def test_what_expressions_beside_pytorchs_found(call, match):
    with pytest.raises(flow.FlowError, match=match):
        call()


def test_uint8_is_a_mask():
    x, mask = flow.arange(6.0).reshape(3, 2), flow.tensor([0, 2, 1], dtype=flow.uint8)
    with pytest.warns(UserWarning, match="for a mask"):
        assert x[mask].tolist() == [[2.0, 3.0], [4.0, 5.0]]
    with pytest.warns(UserWarning, match="for a mask"):
        x[mask, 0] = 9.0
    assert x.tolist() == [[0.0, 1.0], [9.0, 3.0], [9.0, 5.0]]
    with pytest.warns(UserWarning, match="for a mask"):
        x[mask] = 0.0
    assert x.sum().item() == 1.0
