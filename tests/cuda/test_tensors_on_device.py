"""Tensors of a device as PyTorch's users handle them.

They are made, mixed with the CPU's, printed, pickled, and shared with other libraries.
"""

import copy
import gc
import pickle

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, AutogradError, DeviceError


def six(device):
    return flow.arange(6.0, device=device).reshape(2, 3)


# --- new tensors, and where they are --------------------------------------------------------------


def test_tensors_made_from_a_tensor_are_where_it_is(device):
    c = six(device)
    tensors = [c.new_zeros(2), c.new_ones(2), c.new_full((2,), 3), c.new_empty(2)]
    tensors += [c.new_tensor([1, 2]), flow.zeros_like(c), flow.randn_like(c), flow.full_like(c, 2)]
    tensors += [flow.ones(2).type_as(c), flow.ones(2).to(c), flow.tensor(c), copy.deepcopy(c)]
    tensors += [flow.ones(2).cuda(0, non_blocking=True), flow.ones(2).to(device, non_blocking=True)]
    tensors += [pickle.loads(pickle.dumps(c))]
    assert {t.device for t in tensors} == {flow.device("cuda:0")}
    assert c.new_zeros(2, device="cpu").device == flow.device("cpu")
    assert c.type_as(flow.ones(1)).device == flow.device("cpu")
    assert (c.get_device(), flow.ones(1).get_device()) == (0, -1)
    generator = flow.Generator(device=device).manual_seed(3)
    on_device = flow.randn(5, device=device, generator=generator)
    np.testing.assert_array_equal(
        on_device.numpy(), flow.randn(5, generator=flow.Generator().manual_seed(3)).numpy()
    )
    assert flow.ones(2).pin_memory().tolist() == [1, 1]
    with pytest.raises(DeviceError, match="on cuda:0"):
        c.pin_memory()


def test_0d_tensors_of_the_cpu_count_as_numbers(device):
    c, two = six(device), flow.tensor(2.0)
    for result, expected in (
        (c + two, six("cpu") + 2),
        (two * c, six("cpu") * 2),
        (c.clone().sub_(two), six("cpu") - 2),
        (flow.where(c > two, c, two), six("cpu").clamp(2)),
        (c.clamp(flow.tensor(1), two), six("cpu").clamp(1, 2)),
        (c.masked_fill(c > two, two), six("cpu").clamp(max=2)),
        (c.clone().fill_(two), six("cpu") * 0 + 2),
    ):
        assert result.device == c.device
        np.testing.assert_array_equal(result.numpy(), expected.numpy())
    assert (two.double() * c).dtype is flow.float32
    for wrong in (
        lambda: c + flow.ones(3),
        lambda: two.clone().add_(flow.tensor(1.0, device=device)),
        lambda: flow.ones(2) + flow.tensor(1.0, device=device),
        lambda: c @ flow.ones(3, 1),
    ):
        with pytest.raises(DeviceError, match=r"on one device, got .*cpu"):
            wrong()


def test_indices_may_be_on_the_cpu(device):
    keys = [
        flow.tensor([1, 0]),
        flow.tensor([True, False]),
        [1, 0],
        np.array([False, True]),
        (flow.tensor([1, 0]), flow.tensor([0, 2])),
        (slice(None), flow.tensor([2, -1])),
        flow.tensor(1),
        six("cpu") > 2,
    ]
    for key in keys:
        on_host, on_device = six("cpu"), six(device)
        np.testing.assert_array_equal(on_device[key].numpy(), on_host[key].numpy())
        for t in (on_host, on_device):
            t[key] = flow.tensor(7.0)
            t[0] = flow.ones(3)
        np.testing.assert_array_equal(on_device.numpy(), on_host.numpy())
    with pytest.raises(DeviceError, match="an index is on the CPU or beside"):
        flow.ones(3)[flow.tensor([1], device=device)]


# --- looking at values ----------------------------------------------------------------------------


def test_printing_copies_what_it_prints(device, monkeypatch):
    from flowvm.cuda import element_reader

    def views(t):
        return t, t.t(), t[::3, ::5], t[:2, :3], t[5:5], t[7, 7], t.float() / 7

    def shown(t):
        flow.vm.sync()
        return "".join(repr(t).replace(", device='cuda:0'", "").split())

    large = flow.arange(1 << 18).reshape(512, 512)
    on_device = large.to(device)
    for a, b in zip(views(large), views(on_device), strict=True):
        assert shown(b).replace(",device='cuda:0'", "") == shown(a)
        assert "device='cuda:0'" in repr(b)
    read, plain = [], element_reader._bytes
    monkeypatch.setattr(element_reader, "_bytes", lambda *a: read.append(a[2]) or plain(*a))
    assert "262143" in repr(on_device)
    assert 0 < sum(read) < 1 << 15


def test_numpy_sees_copies(device):
    c = six(device)
    a = np.asarray(c)
    with pytest.raises(ValueError, match="read-only"):
        a[:] = 0
    assert c.sum().item() == 15
    assert np.from_dlpack(c.cpu()).sum() == 15
    assert bool((c == c).all())
    assert 5.0 in c
    with pytest.raises(ArgumentError, match="uncopied"):
        c.__array__(copy=False)


# --- other libraries ------------------------------------------------------------------------------


class Described:
    """An array of another library, by `__cuda_array_interface__`."""

    def __init__(self, t, **changes):
        self.t, self.changes = t, changes

    @property
    def __cuda_array_interface__(self):
        return {**self.t.__cuda_array_interface__, **self.changes}


class Packed:
    """An array of another library, by DLPack; notes the stream that it is asked for."""

    def __init__(self, t):
        self.t, self.streams = t, []

    def __dlpack_device__(self):
        return self.t.__dlpack_device__()

    def __dlpack__(self, *, stream=None, max_version=None):
        self.streams.append(stream)
        return self.t.__dlpack__(stream=stream, max_version=max_version)


@pytest.mark.parametrize("kind", [flow.float32, flow.float16, flow.int64, flow.bool])
def test_memory_is_shared_both_ways(device, kind):
    c = six(device).to(kind)
    for t in (c, c.t(), c[:, 1:]):
        shared = [flow.as_tensor(Described(t)), flow.as_tensor(Described(t, stream=1))]
        shared += [flow.from_dlpack(t), flow.from_dlpack(Packed(t))]
        for s in shared:
            assert (s.device, s.dtype, s.data_ptr()) == (t.device, t.dtype, t.data_ptr())
            np.testing.assert_array_equal(s.numpy(), t.numpy())
    flow.from_dlpack(c)[0, 0] = 1
    flow.vm.sync()
    assert c[0, 0].item() == 1
    copied = flow.tensor(Described(c)), flow.from_dlpack(c, copy=True)
    assert c.data_ptr() not in [t.data_ptr() for t in copied]
    read_only = Described(c, data=(c.data_ptr(), True))
    assert flow.as_tensor(read_only).data_ptr() != c.data_ptr()


def test_a_producer_orders_its_work_before_a_stream_of_ours(device):
    packed = Packed(six(device))
    assert flow.from_dlpack(packed).tolist() == [[0, 1, 2], [3, 4, 5]]
    (stream,) = packed.streams
    assert isinstance(stream, int)
    assert stream > 2
    with pytest.raises(ArgumentError, match="is not a stream"):
        flow.as_tensor(Described(six(device), stream=0))


def test_shared_memory_lives_as_long_as_it_is_used(device):
    c = six(device) + 1
    shared = flow.from_dlpack(c)
    del c
    gc.collect()
    for k in range(20):
        flow.full((2, 3), float(k), device=device)
    assert shared.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_what_cannot_be_shared_says_so(device):
    c = six(device).requires_grad_()
    with pytest.raises(BufferError, match="requires grad"):
        c.__dlpack__()
    with pytest.raises(AutogradError, match="requires grad"):
        _ = c.__cuda_array_interface__
    assert not hasattr(flow.ones(1), "__cuda_array_interface__")
    assert six(device).__dlpack_device__() == (2, 0)
    assert flow.as_tensor(Described(flow.ones(0, 2, device=device))).shape == (0, 2)


# --- errors ---------------------------------------------------------------------------------------


def test_an_index_that_is_not_there(device):
    for make in (lambda: flow.ones(2, device="cuda:7"), lambda: flow.nn.Linear(1, 1).to("cuda:7")):
        with pytest.raises(DeviceError, match=r"'cuda:7' is not available: there"):
            make()
