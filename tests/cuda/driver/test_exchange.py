"""Memory shared with other libraries: which streams are waited for, by the protocols' rules."""

import contextlib

import numpy as np
import pytest

import flowvm as flow
from flowvm.cuda.driver.runtime import runtime
from flowvm.cuda.exchange import own_stream
from flowvm.errors import ArgumentError


class Array:
    """An array of another library on the device; `changes` replace parts of its description."""

    def __init__(self, t, **changes):
        self.facts = {**t.__cuda_array_interface__, **changes}
        self.t = t

    @property
    def __cuda_array_interface__(self):
        return self.facts


class Capsule:
    """An array of another library by DLPack that notes the streams it is asked for."""

    def __init__(self, t, compute):
        self.t, self.compute, self.streams = t, compute, []

    def __dlpack_device__(self):
        return self.t.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **options):
        self.streams.append(stream)
        self.compute(stream)
        return self.t.__dlpack__(stream=stream, **options)


@contextlib.contextmanager
def calls_of(name):
    """Collect the arguments with which Python calls a function of the driver."""
    driver, calls = runtime(0).driver, []
    call = driver.call

    def noted(called, *args):
        if called == name:
            calls.append(args)
        call(called, *args)

    driver.call = noted
    try:
        yield calls
    finally:
        del driver.call


@pytest.fixture
def three(device):
    t = flow.ones(3, device=device)
    flow.vm.sync()
    return t


def written(t, value, stream):
    """Another library's work on a stream: bytes of the tensor's memory, set by nobody we know."""
    used = runtime(0)
    used.enter()
    used.driver.call("cuMemsetD8Async", t.data_ptr(), value, 4 * t.numel(), stream)


@pytest.mark.parametrize("stream", [None, 1, 2, "a handle", "left out"])
def test_the_interface_names_the_stream_that_is_waited_for(three, stream):
    theirs = Array(three, stream=runtime(0).stream() if stream == "a handle" else stream)
    if stream == "left out":
        del theirs.facts["stream"]
    expected = [] if stream is None else [(theirs.facts.get("stream", 1),)]
    with calls_of("cuStreamSynchronize") as waited:
        shared = flow.as_tensor(theirs)
    assert waited == expected
    assert shared.data_ptr() == three.data_ptr()


def test_what_the_producer_still_computes_is_there(three):
    """On a late simulated device, or a GPU, the work has not run when the array is handed over."""
    for k, stream in enumerate((1, 2, runtime(0).stream(), runtime(0).stream())):
        written(three, k, stream)
        assert flow.as_tensor(Array(three, stream=stream)).cpu().numpy().view(np.uint8)[0] == k


@pytest.mark.parametrize("stream", [0, -1, "1", 1.0])
def test_what_is_no_stream_is_refused(three, stream):
    with pytest.raises(ArgumentError, match="is not a stream"):
        flow.as_tensor(Array(three, stream=stream))
    if stream != -1:  # which says that nobody need wait, in DLPack
        with pytest.raises(ArgumentError, match=r"takes no stream"):
            three.__dlpack__(stream=stream)
    with pytest.raises(ArgumentError, match=r"takes no stream -2"):
        three.__dlpack__(stream=-2)


def test_memory_that_is_no_devices_is_refused(three):
    host = np.ones(3, np.float32)
    with pytest.raises(ArgumentError, match=r"of a Array names the address 0x.* no CUDA device"):
        flow.as_tensor(Array(three, data=(host.ctypes.data, False)))


def test_a_capsule_is_asked_for_by_a_stream_of_ours_that_is_waited_for(three):
    theirs = Capsule(three, lambda stream: written(three, 7, stream))
    with calls_of("cuStreamSynchronize") as waited:
        shared = flow.from_dlpack(theirs)
    assert set(theirs.streams) == {own_stream(0)}
    assert own_stream(0) not in (-1, 0, 1, 2)
    assert waited == [(own_stream(0),)]
    assert shared.cpu().numpy().view(np.uint8).tolist() == [7] * 12


@pytest.mark.parametrize("stream", [None, -1, 1, 2, 1 << 40])
def test_what_goes_out_is_computed_whatever_stream_is_named(device, stream):
    t = flow.zeros(4096, device=device)
    for _ in range(5):
        t = t + 1
    capsule = t.__dlpack__(stream=stream)
    at, out = t.data_ptr(), np.zeros(4096, np.float32)
    used = runtime(0)
    used.enter()
    other = used.stream()  # which nothing orders
    used.driver.call("cuMemcpyDtoHAsync_v2", out.ctypes.data, at, out.nbytes, other)
    used.driver.call("cuStreamSynchronize", other)
    assert (out == 5).all()
    assert "dltensor" in repr(capsule)
    assert t.__cuda_array_interface__["stream"] is None


def test_a_versioned_capsule_and_one_for_the_cpu(device):
    t = flow.arange(4, device=device)
    assert "dltensor_versioned" in repr(t.__dlpack__(max_version=(1, 0)))
    array = np.from_dlpack(Here(t))
    assert array.tolist() == [0, 1, 2, 3]
    with pytest.raises(BufferError, match="not on"):
        t.__dlpack__(dl_device=(1, 0), copy=False)


class Here:
    """Asks a tensor of a device for a capsule on the CPU."""

    def __init__(self, t):
        self.t = t

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **options):
        return self.t.__dlpack__(**options | {"dl_device": (1, 0)})
