"""DLPack, NumPy, pickle and copy: values are right, and memory lives as long as it is used."""

import copy
import gc
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flowvm import from_dlpack, from_numpy, ones, tensor, vm, zeros
from flowvm.eager.tensor import Tensor, alias
from flowvm.eager.values import adopt_array
from flowvm.errors import ArgumentError, ArgumentTypeError, AutogradError, DeviceError
from flowvm.meta.dtype import ALL_DTYPES, DType, bfloat16
from flowvm.utils import dlpack
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import OPERAND


class Weight(Tensor):
    """Stands for a user's subclass, as Parameter is one."""

    def __new__(cls, data: Tensor) -> "Weight":
        return alias(data, data._meta, 0, cls)  # type: ignore[return-value]


class Unversioned:
    """A producer of before DLPack 1.0."""

    def __init__(self, source: Any, **options: Any) -> None:
        self.source, self.options = source, options

    def __dlpack_device__(self) -> Any:
        return self.source.__dlpack_device__()

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.source.__dlpack__(**self.options)


def live_bytes() -> int:
    gc.collect()
    vm.sync()
    return vm.stats()["live_bytes"]


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


# --- out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [d for d in ALL_DTYPES if d is not bfloat16], ids=lambda d: d.name)
def test_numpy_shares_an_exported_tensor(kind: DType) -> None:
    t = tensor([[0, 1, 2], [3, 4, 5]], dtype=kind)
    shared = np.from_dlpack(t)
    assert shared.dtype == kind.numpy
    np.testing.assert_array_equal(shared, t.numpy())
    shared[0, 0] = 1
    assert t.tolist()[0][0] == 1
    assert t.__dlpack_device__() == (1, 0)


def test_views_are_exported_with_their_strides() -> None:
    t = tensor(np.arange(12).reshape(3, 4)).T
    shared = np.from_dlpack(t)
    assert shared.strides == (8, 32)
    np.testing.assert_array_equal(shared, np.arange(12).reshape(3, 4).T)
    assert np.from_dlpack(tensor(3.0)).shape == ()
    assert np.from_dlpack(zeros(2, 0)).shape == (2, 0)


def test_torch_shares_an_exported_tensor() -> None:
    torch = pytest.importorskip("torch")
    t = zeros(2, 3)
    theirs = torch.from_dlpack(t)
    theirs[1, 2] = 7
    assert t.tolist() == [[0, 0, 0], [0, 0, 7]]
    np.testing.assert_array_equal(theirs.numpy(), t.numpy())


def test_an_export_waits_for_the_writer() -> None:
    for value in range(20):
        t = zeros(4)

        def write(place: int, value: int = value) -> None:
            import ctypes

            (ctypes.c_float * 4).from_address(place)[:] = [value] * 4

        engine.callbacks.issue(write, [t._ref], [OPERAND.MUT])
        assert np.from_dlpack(t).tolist() == [value] * 4


def test_an_export_outlives_its_tensor() -> None:
    before = live_bytes()
    t = ones(1 << 16)
    shared = np.from_dlpack(t)
    array, view = np.asarray(t.__array__(copy=False)), shared[5:9]
    del t, shared
    held = live_bytes()
    assert held > before
    for _ in range(20):
        zeros(1 << 16)  # would take the memory if it had been released
    assert view.tolist() == [1.0] * 4
    assert float(array.sum()) == 1 << 16
    del array
    assert live_bytes() == held
    del view
    assert live_bytes() == before


def test_torch_lets_go_of_an_export() -> None:
    torch = pytest.importorskip("torch")
    before = live_bytes()
    theirs = torch.from_dlpack(ones(1 << 16))
    assert live_bytes() > before
    assert float(theirs.sum()) == 1 << 16
    del theirs
    assert live_bytes() == before
    with pytest.raises(RuntimeError, match="invalid for input"):  # freed while an error propagates
        torch.from_dlpack(ones(1 << 16)).view(7)
    assert live_bytes() == before


def test_a_capsule_that_nobody_takes_is_no_leak() -> None:
    before = live_bytes()
    capsule = ones(1 << 16).__dlpack__()
    assert live_bytes() > before
    del capsule
    assert live_bytes() == before


def test_what_cannot_be_exported() -> None:
    t = ones(2)
    with pytest.raises(BufferError, match="detach"):
        tensor([1.0], requires_grad=True).__dlpack__()
    with pytest.raises(BufferError, match=r"\(2, 0\)"):
        t.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ArgumentError, match="stream"):
        t.__dlpack__(stream=3)
    copied, shared = np.from_dlpack(Unversioned(t, copy=True)), np.from_dlpack(Unversioned(t))
    assert address(copied) != address(shared)
    assert "dltensor_versioned" not in repr(t.__dlpack__())


# --- in -------------------------------------------------------------------------------------------


def test_a_tensor_shares_an_imported_array() -> None:
    array = np.arange(6.0).reshape(2, 3)
    t = from_dlpack(array)
    array[0, 0] = 9
    assert t.tolist() == [[9, 1, 2], [3, 4, 5]]
    t.add_(1)
    vm.sync()
    assert array[1, 2] == 6
    assert from_dlpack(array.T).stride() == (1, 3)
    assert from_dlpack(array[:, 1:]).tolist() == array[:, 1:].tolist()
    assert from_dlpack(np.zeros((0, 3))).shape == (0, 3)


def test_a_tensor_shares_a_torch_tensor() -> None:
    torch = pytest.importorskip("torch")
    for theirs in (torch.arange(6).reshape(2, 3), torch.rand(4, 2).t(), torch.ones(2) > 0):
        t = from_dlpack(theirs)
        np.testing.assert_array_equal(t.numpy(), theirs.numpy())
        assert address(t.__array__(copy=False)) == theirs.data_ptr()


def test_an_unversioned_producer_is_shared_too() -> None:
    array = np.arange(3)
    t = from_dlpack(Unversioned(array))
    array[0] = 9
    assert t.tolist() == [9, 1, 2]


def test_flowvm_is_a_producer_for_itself() -> None:
    t = ones(3)
    again = from_dlpack(t)
    again.mul_(2)
    vm.sync()
    assert t.tolist() == [2, 2, 2]


UNUSABLE: dict[str, Callable[[], np.ndarray[Any, Any]]] = {
    "read-only": lambda: np.broadcast_to(np.arange(3.0), 3),
    "strides": lambda: np.arange(3.0)[::-1],
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_what_kernels_cannot_use_is_copied(what: str) -> None:
    array = UNUSABLE[what]()
    t = from_dlpack(array)
    assert t.tolist() == array.tolist()
    t.add_(1)
    vm.sync()
    assert array.tolist() in ([0, 1, 2], [2, 1, 0])
    with pytest.raises(ArgumentError, match=f"{what}.*copy=False"):
        from_dlpack(array, copy=False)


def test_nothing_is_shared_whatever_its_strides() -> None:
    for empty in (zeros(0, 2), np.zeros((0, 3))[:, ::-1]):
        assert from_dlpack(empty, copy=False).shape == tuple(empty.shape)


def test_a_copy_on_request() -> None:
    array = np.zeros(2)
    t = from_dlpack(array, copy=True)
    array[0] = 1
    assert t.tolist() == [0, 0]


def test_what_cannot_be_imported() -> None:
    class OnGpu:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 1

        def __dlpack__(self, **options: Any) -> Any:
            raise AssertionError("never asked")

    with pytest.raises(DeviceError, match=r"cuda:1.* not available"):
        from_dlpack(OnGpu())
    with pytest.raises(ArgumentTypeError, match="list"):
        from_dlpack([1, 2])
    with pytest.raises(ArgumentTypeError, match="datetime64"):
        tensor(np.zeros(2, "datetime64[s]"))


def test_an_imported_array_lives_as_long_as_its_tensors() -> None:
    array = np.full(1000, 3.0)
    gone = weakref.ref(array)
    t = from_dlpack(array)
    later, view = t + 1, t.detach()
    del array, t
    vm.sync()
    assert gone() is not None
    assert view.tolist()[:2] == [3.0, 3.0]
    assert later.tolist()[:2] == [4.0, 4.0]
    del view
    gc.collect()
    vm.sync()
    assert gone() is None


def test_an_array_through_torch_and_back_is_let_go() -> None:
    torch = pytest.importorskip("torch")
    array = np.full(8, 3.0)
    gone = weakref.ref(array)
    t = from_dlpack(torch.from_numpy(array))
    back = torch.from_dlpack(t)
    del array, t
    gc.collect()
    vm.sync()
    assert gone() is not None
    assert back.tolist() == [3.0] * 8
    del back
    gc.collect()
    vm.sync()
    assert gone() is None


def test_sharing_does_not_trouble_the_exit() -> None:
    pytest.importorskip("torch")
    program = """
import numpy, torch
from flowvm import from_dlpack, ones
a = ones(1000)
b, c, d = torch.from_dlpack(a), numpy.from_dlpack(a), a.__dlpack__()
e = from_dlpack(torch.ones(1000))
f = from_dlpack(numpy.ones(1000))
g = torch.from_dlpack(f)
torch.keep = [b, g]
print(float(b.sum() + g.sum()))
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "2000.0\n", "")


# --- NumPy ----------------------------------------------------------------------------------------


def test_numpy_functions_take_tensors() -> None:
    t = tensor([[1.0, 2.0], [3.0, 4.0]])
    assert isinstance(np.sin(t), np.ndarray)
    np.testing.assert_allclose(np.sin(t), np.sin(t.numpy()))
    np.testing.assert_array_equal(np.concatenate([t, t]), np.concatenate([t.numpy()] * 2))
    assert np.asarray(t, np.float64).dtype == np.float64
    copied = np.asarray(t)
    copied[0, 0] = 9
    assert t.tolist()[0][0] == 9
    shared = t.__array__(copy=False)
    shared[0, 0] = 9
    assert t.tolist()[0][0] == 9
    assert t.__array__(copy=True) is not shared
    with pytest.raises(ValueError, match="float64"):
        t.__array__(np.float64, copy=False)


def test_a_numpy_operand_does_not_take_over() -> None:
    t = tensor([1.0, 2.0])
    assert isinstance(np.float32(2) * t, Tensor)
    assert (np.float32(2) * t).tolist() == [2.0, 4.0]
    try:
        result = np.ones(2) * t
    except TypeError as error:
        assert "ndarray" in str(error)  # noqa: PT017 - an error or a Tensor, no array of Tensors
    else:
        assert isinstance(result, Tensor)


# --- pickle and copy ------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol: int) -> None:
    t = tensor(np.arange(6.0).reshape(2, 3)).T
    leaf = tensor([1.0, 2.0], requires_grad=True)
    again, first, second = pickle.loads(pickle.dumps([t, leaf, leaf], protocol))
    assert again.tolist() == t.tolist()
    assert (again.dtype, again.requires_grad) == (t.dtype, False)
    assert first is second
    assert first.requires_grad
    assert first.is_leaf
    inner = pickle.loads(pickle.dumps(leaf * 2, protocol))
    assert (inner.tolist(), inner.requires_grad) == ([2.0, 4.0], False)
    again.add_(1)
    vm.sync()
    assert t.tolist()[0][0] == 0


def test_pickle_with_buffers_out_of_band() -> None:
    t = ones(1000)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(t, 5, buffer_callback=buffers.append)
    assert len(data) < 1000
    assert len(buffers) == 1
    assert pickle.loads(data, buffers=[bytes(b) for b in buffers]).add_(1).tolist()[:2] == [2, 2]


@pytest.mark.parametrize("again", [lambda t: pickle.loads(pickle.dumps(t)), copy.deepcopy])
def test_subclasses_keep_class_and_attributes(again: Callable[[Any], Any]) -> None:
    weight = Weight(ones(2))
    weight.requires_grad_(True)
    weight.tags = ["a"]
    other = again(weight)
    assert type(other) is Weight
    assert (other.tolist(), other.requires_grad, other.tags) == ([1, 1], True, ["a"])
    other.tags.append("b")
    assert weight.tags == ["a"]


def test_copy_shares_and_deepcopy_does_not() -> None:
    t = tensor([1.0, 2.0], requires_grad=True)
    t.grad = ones(2)
    shallow, deep = copy.copy(t), copy.deepcopy({"a": t, "b": t})
    assert shallow is not t
    assert shallow.requires_grad
    assert address(np.asarray(shallow.__array__(copy=False))) == address(t.__array__(copy=False))
    assert deep["a"] is deep["b"]
    assert deep["a"] is not t
    assert deep["a"].requires_grad
    assert deep["a"].grad is not t.grad
    assert deep["a"].grad.tolist() == [1, 1]
    deep["a"].detach().add_(1)
    vm.sync()
    assert t.tolist() == [1, 2]


def test_a_tensor_inside_the_graph_is_not_deepcopied() -> None:
    y = tensor([1.0, 2.0], requires_grad=True) * 2
    with pytest.raises(AutogradError, match="graph leaves"):
        copy.deepcopy(y)
    shallow = copy.copy(y)
    assert not shallow.is_leaf
    assert shallow.tolist() == [2.0, 4.0]


def test_dtypes_and_empty_shapes_survive_pickle() -> None:
    for kind in ALL_DTYPES:
        t = adopt_array(np.zeros((2, 0, 3), kind.storage), dtype=kind)
        again = pickle.loads(pickle.dumps(t))
        assert (again.shape, again.dtype) == (t.shape, kind)


def test_a_capsule_hands_its_memory_over_once() -> None:
    x = zeros(3)
    capsule = dlpack.to_dlpack(x)
    dlpack.from_dlpack(capsule)[0] = 1
    vm.sync()  # of two tensors on one memory neither knows the other
    assert x.tolist() == [1, 0, 0]
    with pytest.raises(ValueError, match="once"):
        from_dlpack(capsule)
    half = ones(2, dtype=bfloat16)
    assert from_dlpack(dlpack.to_dlpack(half)).dtype is bfloat16


@pytest.mark.parametrize("kind", ["?", "u1", "i8", "f4", "c8"])
def test_an_array_needs_no_capsule(kind):
    """A NumPy array is taken as any producer's memory is: shared, and in its dtype."""
    array = np.ones((2, 3), kind)[:, ::2]
    x = from_dlpack(array)
    assert x.dtype is from_numpy(array).dtype
    assert x.data_ptr() == array.ctypes.data
    assert x.stride() == (3, 2)
    array[1, 1] = 0
    assert x[1, 1].item() == 0
    assert from_dlpack(array, copy=True).data_ptr() != array.ctypes.data


@pytest.mark.parametrize("kind", [">f4", "M8[s]", "S3"])
def test_an_array_that_no_capsule_describes_is_refused(kind):
    with pytest.raises(BufferError):
        from_dlpack(np.zeros(3, kind))
