"""Equality of tensors that are compared where they lie."""

import threading

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.eager.native import equality, install
from flowvm.eager.native.objects import native_class
from flowvm.eager.native.words import SITE
from flowvm.errors import CaptureError, OutOfRangeError
from flowvm.vm.callers.hot import hot
from flowvm.vm.engine.engine import engine
from tests.vm.kernels import Gate, fail, tensor, wait_for_gate
from tests.vm.live import script, until

pytestmark = pytest.mark.skipif(bool(install.unsupported()), reason=install.unsupported())


def compared(x, y):
    """Return the result of `equal`, also the Python function's; and whether it was native."""
    assert isinstance(flow.equal, native_class())
    flow.equal(flow.ones(1), flow.ones(1))  # the first call makes it native
    before = flow.equal.words[SITE.MISSES]
    answer = flow.equal(x, y)
    missed = flow.equal.words[SITE.MISSES] - before
    assert answer is flow.equal.twin(x, y)
    return answer, missed == 0


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64", "int64", "bool"])
def test_equal_of_each_kind_of_numbers(dtype):
    array = (np.arange(70) % 3).astype(dtype)
    x = flow.tensor(array)
    assert compared(x, flow.tensor(array)) == (True, True)
    for place in (0, 63, 69):  # in a block of words, and behind the last word
        other = array.copy()
        other[place] = not other[place]
        assert compared(x, flow.tensor(other)) == (False, True)


def test_zeros_of_both_signs_are_equal_and_nan_is_not():
    x, y = flow.tensor([0.0, 1.0, -0.0]), flow.tensor([-0.0, 1.0, 0.0])
    assert compared(x, y) == (True, True)
    nan = flow.tensor([1.0, float("nan")])
    assert compared(nan, nan) == (False, True)
    inf = flow.tensor([float("inf")])
    assert compared(inf, inf.clone()) == (True, True)


def test_other_shapes_and_layouts_are_the_functions():
    x = flow.arange(12).view(3, 4)
    assert compared(x, x.clone()) == (True, True)
    assert compared(x[1], x[1].clone()) == (True, True)
    assert compared(x, x.view(4, 3)) == (False, False)
    assert compared(x.t(), x.t()) == (True, False)
    assert compared(x, x.float()) == (True, False)
    assert compared(x[:0], x[:0]) == (True, False)
    large = flow.zeros(equality.MOST_BYTES // 4 + 1)
    assert compared(large, large.clone()) == (True, False)
    with pytest.raises(TypeError, match="other"):
        flow.equal(x, 3)


def test_nothing_is_issued_for_values_that_are_there():
    x, y = flow.ones(4), flow.ones(4)
    assert flow.equal(x, y)
    before = repr(hot["counter"])
    assert x.equal(y)
    assert repr(hot["counter"]) == before


def test_a_writer_is_waited_for():
    answers = []
    with Gate() as gate:
        x, y = tensor([1, 2]), tensor([2, 2])
        wait_for_gate(x, x, gate.address)
        thread = threading.Thread(target=lambda: answers.append(flow.equal(y, x)))
        thread.start()
        until(lambda: gate.is_reached, "the writer runs")
        assert not answers
        gate.open()
        thread.join()
    assert answers == [True]


def test_the_error_of_a_writer_is_raised():
    x, y = tensor(), tensor()
    fail(x, y, 1)
    for pair in ((x, y), (y, x), (x, x)):
        with pytest.raises(OutOfRangeError):
            flow.equal(*pair)
    engine.failures.collect()


def test_a_capture_refuses_to_ask():
    class Asking(nn.Graph):
        def build(self, x):
            return x + 1 if flow.equal(x, x) else x

    with pytest.raises(CaptureError):
        Asking()(flow.ones(2))


def test_ctrl_c_ends_a_wait():
    script("""
        gate, x = Gate(), tensor([0])
        assert flowvm.equal(x, x)
        wait_for_gate(x, x, gate.address)
        def send():
            before = int(repr(hot["counter"])[6:-1])
            ready.set()
            while engine.words[CTL.RECEIVED] <= before:  # the wait's own record comes next
                os.sched_yield()
            os.kill(os.getpid(), signal.SIGINT)
        ready = threading.Event()
        threading.Thread(target=send, daemon=True).start()
        ready.wait()
        try:
            flowvm.equal(x, x)
        except KeyboardInterrupt:
            gate.open()
        assert gate.words[0] and flowvm.equal(x, x)
    """)


def test_calls_by_python_give_the_same():
    script(
        """
        import flowvm as flow
        assert type(flow.equal).__name__ == type(flow.tensor).__name__ == "function"
        assert flow.equal(flow.tensor([0.0, 1.0]), flow.tensor([-0.0, 1.0]))
        assert not flow.equal(flow.tensor([1, 2]), flow.tensor([1, 3]))
        """,
        calls="python",
    )
