"""Tensors made by calling classes, and PyTorch's older words for dtypes."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.autograd import Variable

WORDS = {
    "BFloat16": "bfloat16", "Bool": "bool", "Byte": "uint8", "Char": "int8", "Double": "float64",
    "Float": "float32", "Half": "float16", "Int": "int32", "Long": "int64", "Short": "int16",
}  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_a_typed_class(word):
    kind, dtype = getattr(flow, f"{word}Tensor"), getattr(flow, WORDS[word])
    tensor = kind([1, 0, 1])
    assert tensor.dtype is dtype
    assert tensor.tolist() == [1, 0, 1]
    assert kind(2, 3).shape == (2, 3)
    assert kind().shape == (0,)
    assert kind(flow.Size([4])).shape == (4,)
    assert isinstance(tensor, kind)
    assert not isinstance(tensor, flow.cuda.FloatTensor)
    assert isinstance(tensor, flow.FloatTensor) is (word == "Float")
    assert tensor.type() == f"flowvm.{word}Tensor"
    for kind_name in (kind, f"torch.{word}Tensor", f"flowvm.{word}Tensor", dtype):
        assert flow.ones(2).type(kind_name).dtype is dtype
    assert flow.ones(2).long().type_as(tensor).dtype is dtype


def test_tensor_as_a_constructor():
    assert flow.Tensor().shape == (0,)
    assert flow.Tensor(2, 3).shape == (2, 3)
    assert flow.Tensor(flow.Size([2, 3])).shape == (2, 3)
    assert flow.Tensor(size=(2, 3)).shape == (2, 3)
    assert flow.Tensor([2, 3]).tolist() == [2.0, 3.0]
    assert flow.Tensor([2, 3]).dtype is flow.float32
    assert flow.Tensor(np.array([[2.0, 3.0]])).tolist() == [[2.0, 3.0]]
    x = flow.arange(3)
    assert flow.Tensor(x).dtype is flow.int64
    flow.Tensor(x)[0] = 7  # one memory
    assert x.tolist() == [7, 1, 2]
    assert x.new([1, 2]).dtype is flow.int64
    assert x.new(2, 2).shape == (2, 2)


class Own(flow.Tensor):
    """A subclass."""


def test_subclasses():
    own = Own([1, 2])
    assert type(own) is Own
    assert own.tolist() == [1.0, 2.0]
    w = flow.ones(2, requires_grad=True)
    (w * 2).as_subclass(Own).sum().backward()
    assert w.grad.tolist() == [2.0, 2.0]


def test_a_type_that_there_is_not():
    with pytest.raises(ValueError, match="OddTensor"):
        flow.ones(2).type("torch.OddTensor")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: flow.Tensor(2.5),
        lambda: flow.Tensor("a"),
        lambda: flow.Tensor([1], [2]),
        lambda: flow.LongTensor(flow.ones(2)),
        lambda: flow.set_default_tensor_type(flow.float32),
        lambda: flow.set_default_tensor_type("torch.LongTensor"),
        lambda: flow.ones(2).as_subclass(int),
    ],
)
def test_what_is_refused(wrong):
    with pytest.raises(TypeError):
        wrong()


def test_the_default_type():
    flow.set_default_tensor_type("torch.DoubleTensor")
    try:
        assert flow.zeros(2).dtype is flow.float64
        assert flow.Tensor([1]).dtype is flow.float64
    finally:
        flow.set_default_tensor_type(flow.FloatTensor)
    assert flow.zeros(2).dtype is flow.float32


def test_variable():
    x = flow.ones(2)
    v = Variable(x, requires_grad=True)
    assert isinstance(v, Variable)
    assert isinstance(x, Variable)
    assert not x.requires_grad
    v.sum().backward()
    assert v.grad.tolist() == [1.0, 1.0]
    with pytest.warns(UserWarning, match="no_grad"):
        assert not Variable(x, volatile=True).volatile
    assert flow.autograd.variable.Variable is Variable


def test_the_words_that_mean_nothing_are_taken_and_others_refused():
    tensor = flow.empty(2, 3, pin_memory=False, layout=flow.strided, memory_format=None)
    assert tensor.layout is flow.strided
    assert flow.zeros(size=(2, 3)).shape == (2, 3)
    assert flow.zeros_like(tensor, memory_format=flow.preserve_format).shape == (2, 3)
    with pytest.raises(RuntimeError, match="with 4 dimensions"):
        tensor.contiguous(memory_format=flow.channels_last)
    assert tensor.to("cpu", flow.float64, True, copy=True).dtype is flow.float64
    assert flow.randint(5, size=(3,)).shape == flow.randint(high=5, size=(3,)).shape
    for wrong in (
        lambda: flow.zeros(2, colour="red"),
        lambda: flow.zeros(2, layout="strided"),
        lambda: flow.zeros(2, size=(3,)),
        lambda: flow.ones(2).to(flow.float64, colour="red"),
        lambda: flow.empty_like(tensor, memory_format=3),
    ):
        with pytest.raises(TypeError):
            wrong()


def test_out_of_functions_that_make_tensors():
    out = flow.empty(0, dtype=flow.int64)
    assert flow.arange(3, out=out) is out
    assert out.tolist() == [0, 1, 2]
    with pytest.warns(UserWarning, match="resized"):
        flow.zeros(2, 2, out=out)
    assert out.tolist() == [[0, 0], [0, 0]]
    assert flow.eye(2, out=out).dtype is flow.int64
    with pytest.raises(RuntimeError, match="float32"):
        flow.ones(2, 2, out=out, dtype=flow.float32)
    with pytest.raises(RuntimeError, match="differentiated"):
        flow.ones(2, out=flow.ones(2, requires_grad=True))


def test_asarray_and_frombuffer():
    array = np.arange(4.0)
    shared = flow.asarray(array)
    assert shared.data_ptr() == array.ctypes.data
    assert flow.asarray(array, copy=True).data_ptr() != array.ctypes.data
    assert flow.asarray([1, 2]).dtype is flow.int64
    with pytest.raises(ValueError, match="copy=False"):
        flow.asarray([1, 2], copy=False)
    data = bytearray(np.arange(4, dtype=np.int16).tobytes())
    assert flow.frombuffer(data, dtype=flow.int16).tolist() == [0, 1, 2, 3]
    assert flow.frombuffer(bytes(data), dtype=flow.int16, count=2, offset=2).tolist() == [1, 2]
    for options in ({"offset": 8}, {"offset": 1}, {"count": 5}):
        with pytest.raises(ValueError, match="frombuffer"):
            flow.frombuffer(data, dtype=flow.int16, **options)
