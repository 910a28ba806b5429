"""The simulated driver: memory with bounds, streams whose order is chosen, kernels, cuBLAS.

The recorder notes calls and knows the order that they must have.
"""

import ctypes
import functools
import signal
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numba import cuda

from flowvm.cuda.driver import driver as drivers
from flowvm.cuda.driver.runtime import Runtime, runtime
from flowvm.cuda.simulator.recorder import Recorder
from flowvm.cuda.simulator.simulator import Simulator
from flowvm.errors import DeviceError, OutOfMemoryError
from flowvm.vm.callers.interrupt import interrupt

INVALID_VALUE, INVALID_HANDLE, NOT_READY, ILLEGAL_ADDRESS = 1, 400, 600, 700


def scale(x, factor):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = x[i] * factor


def add(out, x, y):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


def reverse(x):
    i = cuda.threadIdx.x
    moved = x[x.size - 1 - i]
    cuda.syncthreads()
    x[i] = moved


def beyond(x):
    x[x.size] = 0


F32 = ("float32", 1, "C")


class Machine:
    """Device 0 of a fake driver, with the calls that tests need in one line each."""

    def __init__(self, fake: Simulator) -> None:
        self.fake = fake
        self.driver = drivers.driver()
        self.runtime: Runtime = runtime(0)
        self.runtime.enter()

    def __call__(self, name: str, *args: object) -> int:
        return int(self.driver.functions[name](*args))

    def ok(self, name: str, *args: object) -> None:
        self.driver.call(name, *args)

    def memory(self, values: np.ndarray) -> int:
        at = self.allocate(values.nbytes)
        ctypes.memmove(at, values.ctypes.data, values.nbytes)
        return at

    def allocate(self, size: int, function: str = "cuMemAlloc_v2", *more: int) -> int:
        out = ctypes.c_void_p()
        self.ok(function, ctypes.byref(out), size, *more)
        return int(out.value or 0)

    def floats(self, at: int, count: int) -> np.ndarray:
        """Return the floats in memory now, whatever waits in streams."""
        return np.frombuffer(ctypes.string_at(at, 4 * count), np.float32)

    def launch(
        self,
        kernel: Callable[..., None],
        signature: tuple,
        words: list[int | float],
        stream: int = 0,
        grid: int = 1,
        block: int = 32,
    ) -> int:
        handle = self.runtime.function(kernel, signature)
        packed = b"".join(
            np.float64(v).tobytes() if isinstance(v, float) else np.int64(v).tobytes()
            for v in words
        )
        buffer = ctypes.create_string_buffer(packed, len(packed))
        places = [ctypes.addressof(buffer) + 8 * i for i in range(len(words))]
        table = (ctypes.c_void_p * max(1, len(words)))(*places)
        return self("cuLaunchKernel", handle, grid, 1, 1, block, 1, 1, 0, stream, table, None)


def array(at: int, count: int) -> list[int]:
    return [0, 0, count, 4, at, count, 4]


@pytest.fixture
def machine() -> Iterator[Machine]:
    fake = Simulator()
    with drivers.using(fake.driver()):
        yield Machine(fake)


@pytest.fixture
def late(seed: int) -> Iterator[Machine]:
    fake = Simulator(late=True, seed=seed)
    with drivers.using(fake.driver()):
        yield Machine(fake)


@pytest.fixture
def recorder() -> Iterator[Machine]:
    fake = Recorder()
    with drivers.using(fake.driver()):
        yield Machine(fake)


# --- memory ---------------------------------------------------------------------------------------


def test_new_memory_is_not_a_number(machine: Machine) -> None:
    assert np.isnan(machine.floats(machine.allocate(64), 16)).all()


def test_memory_ends_and_comes_back(machine: Machine) -> None:
    half = machine.allocate(600 << 20)
    with pytest.raises(OutOfMemoryError, match=r"629145600 bytes were asked for and \d+ are free"):
        machine.allocate(600 << 20)
    machine.ok("cuMemFree_v2", half)
    machine.ok("cuMemFree_v2", machine.allocate(600 << 20))


def test_freeing_twice_freeing_the_middle_and_freeing_by_the_wrong_function(
    machine: Machine,
) -> None:
    first = machine.allocate(256)
    assert machine("cuMemFree_v2", first + 64) == INVALID_VALUE
    assert machine("cuMemFreeHost", first) == INVALID_VALUE
    assert machine("cuMemFree_v2", first) == 0
    assert machine("cuMemFree_v2", first) == INVALID_VALUE
    assert "was freed" in machine.fake.last_fault


def test_writing_behind_a_block_is_found_when_it_is_freed(machine: Machine) -> None:
    at = machine.allocate(256)
    ctypes.memset(at + 256, 0, 1)
    assert machine("cuMemFree_v2", at) == ILLEGAL_ADDRESS
    assert "behind the block" in machine.fake.last_fault


def test_a_copy_past_the_end_loses_the_context_and_says_why(machine: Machine) -> None:
    at, host = machine.allocate(256), np.zeros(128, np.float32)
    assert machine("cuMemcpyHtoDAsync_v2", at, host.ctypes.data, 512, 0) == 0  # known later
    with pytest.raises(DeviceError, match=r"goes 256 bytes past the end of .* context is lost"):
        machine.ok("cuStreamSynchronize", None)
    assert machine("cuMemAlloc_v2", ctypes.byref(ctypes.c_void_p()), 8) == ILLEGAL_ADDRESS


def test_pointers_say_what_they_are(machine: Machine) -> None:
    device, host = machine.allocate(64), machine.allocate(64, "cuMemHostAlloc", 3)
    kind = ctypes.c_int()
    for at, expected in ((device + 8, 2), (host, 1)):
        machine.ok("cuPointerGetAttribute", ctypes.byref(kind), 2, at)
        assert kind.value == expected
    assert machine("cuPointerGetAttribute", ctypes.byref(kind), 2, 64) == INVALID_VALUE


# --- kernels --------------------------------------------------------------------------------------


def test_a_kernel_runs_over_its_words(machine: Machine, rng: np.random.Generator) -> None:
    x = rng.standard_normal(70).astype(np.float32)
    at = machine.memory(x)
    assert machine.launch(scale, (F32, "float64"), [*array(at, 70), 3.0], grid=3) == 0
    np.testing.assert_array_equal(machine.floats(at, 70), x * 3)


def test_threads_of_a_block_meet(machine: Machine) -> None:
    x = np.arange(64, dtype=np.float32)
    at = machine.memory(x)
    assert machine.launch(reverse, (F32,), array(at, 64), block=64) == 0
    np.testing.assert_array_equal(machine.floats(at, 64), x[::-1])


def test_the_buffer_form_of_parameters(machine: Machine) -> None:
    """CU_LAUNCH_PARAM_BUFFER_POINTER and _SIZE, by which native code passes them."""
    at = machine.memory(np.ones(32, np.float32))
    words = (ctypes.c_int64 * 8)(*array(at, 32), np.float64(2.0).view(np.int64))
    size = ctypes.c_size_t(ctypes.sizeof(words))
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(words), 2, ctypes.addressof(size), 0)
    handle = machine.runtime.function(scale, (F32, "float64"))
    launch = ("cuLaunchKernel", handle, 1, 1, 1, 32, 1, 1, 0, None, None, extra)
    machine.ok(*launch)
    assert (machine.floats(at, 32) == 2).all()
    size.value -= 8
    assert machine(*launch) == INVALID_VALUE
    assert "takes 64 bytes of parameters, got 56" in machine.fake.last_fault


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, 5, "meminfo or parent is not 0"),
        (2, 31, "it has 31 elements"),
        (3, 8, "an element has 8 bytes"),
        (6, 8, "strides (8,) are not those of a dense array"),
    ],
)
def test_words_that_do_not_fit_are_refused(
    machine: Machine, place: int, value: int, message: str
) -> None:
    words = [*array(machine.allocate(512), 32), 1.0]
    words[place] = value
    assert machine.launch(scale, (F32, "float64"), words) == INVALID_VALUE
    assert message in machine.fake.last_fault


@pytest.mark.parametrize(
    ("grid", "block"), [(0, 32), (1, 0), (1, 2048)], ids=["no grid", "no block", "too large"]
)
def test_sizes_that_cannot_be_are_refused(machine: Machine, grid: int, block: int) -> None:
    words = [*array(machine.allocate(128), 32), 1.0]
    code = machine.launch(scale, (F32, "float64"), words, grid=grid, block=block)
    assert code == INVALID_VALUE


@pytest.mark.parametrize("freed", [False, True])
def test_an_array_outside_of_its_memory_is_a_fault(machine: Machine, freed: bool) -> None:
    at = machine.allocate(128)
    if freed:
        machine.ok("cuMemFree_v2", at)
    count = 32 if freed else 33
    assert machine.launch(scale, (F32, "float64"), [*array(at, count), 1.0]) == 0
    text = "was freed" if freed else "4 bytes past the end"
    with pytest.raises(DeviceError, match=text):
        machine.ok("cuStreamSynchronize", None)


def test_a_kernel_that_goes_astray_is_named(machine: Machine) -> None:
    assert machine.launch(beyond, (F32,), array(machine.allocate(128), 32)) == 0
    with pytest.raises(DeviceError, match=r"beyond: .*out of bounds.*restart Python"):
        machine.ok("cuStreamSynchronize", None)


def test_another_device_is_not_touched_by_a_fault(machine: Machine) -> None:
    machine.launch(beyond, (F32,), array(machine.allocate(128), 32))
    runtime(1).enter()
    machine.ok("cuStreamSynchronize", None)


# --- streams, events ------------------------------------------------------------------------------


def chain(machine: Machine, wait: bool) -> bool:
    """Run x * 2 on one stream, x + x on another; return True if the second saw the writes."""
    x = np.ones(32, np.float32)
    at, out = machine.memory(x), machine.memory(x)
    first, second = machine.runtime.stream(), machine.runtime.stream()
    event = machine.runtime.event()
    machine.launch(scale, (F32, "float64"), [*array(at, 32), 2.0], first)
    machine.ok("cuEventRecord", event, first)
    if wait:
        machine.ok("cuStreamWaitEvent", second, event, 0)
    machine.launch(add, (F32,) * 3, [*array(out, 32), *array(at, 32), *array(at, 32)], second)
    machine.ok("cuStreamSynchronize", first)
    machine.ok("cuStreamSynchronize", second)
    return bool((machine.floats(out, 32) == 4).all())


def test_waits_order_streams(late: Machine) -> None:
    assert all(chain(late, wait=True) for _ in range(20))


def test_a_wait_that_is_missing_shows(late: Machine) -> None:
    assert not all(chain(late, wait=False) for _ in range(20))


def test_late_work_waits_until_somebody_asks(late: Machine) -> None:
    at = late.memory(np.ones(32, np.float32))
    stream, event = late.runtime.stream(), late.runtime.event()
    late.launch(scale, (F32, "float64"), [*array(at, 32), 2.0], stream)
    late.ok("cuEventRecord", event, stream)
    assert (late.floats(at, 32) == 1).all()
    answers = []
    while not answers or answers[-1] == NOT_READY:
        answers.append(late("cuEventQuery", event))
    assert answers[-1] == 0
    assert (late.floats(at, 32) == 2).all()


def test_a_copy_from_memory_that_is_not_pinned_takes_it_at_once(late: Machine) -> None:
    stream, at = late.runtime.stream(), late.allocate(16)
    host = np.arange(4, dtype=np.float32)
    late.ok("cuMemcpyHtoDAsync_v2", at, host.ctypes.data, 16, stream)
    host[:] = 9
    pinned = late.allocate(16, "cuMemHostAlloc", 3)
    late.ok("cuMemcpyDtoHAsync_v2", pinned, at, 16, stream)
    late.ok("cuStreamSynchronize", stream)
    np.testing.assert_array_equal(late.floats(pinned, 4), [0, 1, 2, 3])


def test_events_measure_time_only_where_they_may(machine: Machine) -> None:
    timed = [machine.runtime.event(timing=True) for _ in range(2)]
    plain, out = machine.runtime.event(), ctypes.c_float()
    for event in (*timed, plain):
        machine.ok("cuEventRecord", event, None)
    machine.ok("cuEventElapsedTime", ctypes.byref(out), *timed)
    assert out.value >= 0
    assert machine("cuEventElapsedTime", ctypes.byref(out), plain, timed[1]) == INVALID_HANDLE


def test_threads_call_at_the_same_time(late: Machine) -> None:
    results: list[bool] = []

    def work() -> None:
        late.runtime.enter()
        at = late.memory(np.ones(32, np.float32))
        stream = late.runtime.stream()
        for _ in range(5):
            late.launch(scale, (F32, "float64"), [*array(at, 32), 2.0], stream)
        late.ok("cuStreamSynchronize", stream)
        results.append(bool((late.floats(at, 32) == 32).all()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


def test_a_thread_without_a_context_is_told(machine: Machine) -> None:
    results: list[int] = []
    thread = threading.Thread(
        target=lambda: results.append(machine("cuMemAlloc_v2", ctypes.byref(ctypes.c_void_p()), 8))
    )
    thread.start()
    thread.join()
    assert results == [201]


# --- graphs ---------------------------------------------------------------------------------------


def captured(machine: Machine, factor: float, join: bool = True) -> tuple[int, int, int]:
    """(memory, result of ending, graph): a fork to a second stream and back."""
    at = machine.memory(np.ones(32, np.float32))
    first, second = machine.runtime.stream(), machine.runtime.stream()
    fork, back = machine.runtime.event(), machine.runtime.event()
    machine.ok("cuStreamBeginCapture_v2", first, 0)
    machine.launch(scale, (F32, "float64"), [*array(at, 32), factor], first)
    machine.ok("cuEventRecord", fork, first)
    machine.ok("cuStreamWaitEvent", second, fork, 0)
    machine.launch(scale, (F32, "float64"), [*array(at, 32), 10.0], second)
    machine.ok("cuEventRecord", back, second)
    if join:
        machine.ok("cuStreamWaitEvent", first, back, 0)
    graph = ctypes.c_void_p()
    code = machine("cuStreamEndCapture", first, ctypes.byref(graph))
    return at, code, int(graph.value or 0)


def test_a_graph_is_captured_launched_and_updated(machine: Machine) -> None:
    at, code, graph = captured(machine, 2.0)
    assert code == 0
    assert (machine.floats(at, 32) == 1).all()  # capturing runs nothing
    executable = ctypes.c_void_p()
    machine.ok("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)
    stream = machine.runtime.stream()
    machine.ok("cuGraphLaunch", executable, stream)
    machine.ok("cuStreamSynchronize", stream)
    assert (machine.floats(at, 32) == 20).all()
    other, _, again = captured(machine, 3.0)
    machine.ok("cuGraphExecUpdate_v2", executable, again, ctypes.byref(ctypes.c_int64()))
    machine.ok("cuGraphLaunch", executable, stream)
    assert (machine.floats(other, 32) == 30).all()


def test_a_capture_that_is_not_joined_is_refused(machine: Machine) -> None:
    assert captured(machine, 2.0, join=False)[1] == 904


@pytest.mark.parametrize("ordered", [False, True])
def test_a_graph_runs_in_any_order_that_its_waits_allow(late: Machine, ordered: bool) -> None:
    """Two streams write to one place; without a wait between, either may be the last."""
    at = late.memory(np.zeros(1, np.float32))
    first, second = late.runtime.stream(), late.runtime.stream()
    fork, back = late.runtime.event(), late.runtime.event()
    late.ok("cuStreamBeginCapture_v2", first, 0)
    late.ok("cuEventRecord", fork, first)
    late.ok("cuStreamWaitEvent", second, fork, 0)
    late.ok("cuMemsetD8Async", at, 1, 4, first)
    if ordered:
        late.ok("cuEventRecord", fork, first)
        late.ok("cuStreamWaitEvent", second, fork, 0)
    late.ok("cuMemsetD8Async", at, 2, 4, second)
    late.ok("cuEventRecord", back, second)
    late.ok("cuStreamWaitEvent", first, back, 0)
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    late.ok("cuStreamEndCapture", first, ctypes.byref(graph))
    late.ok("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)
    results = set()
    for _ in range(60):  # both orders, but for one seed in 2 ** 59
        late.ok("cuGraphLaunch", executable, first)
        late.ok("cuStreamSynchronize", first)
        results.add(ctypes.string_at(at, 1)[0])
    assert results == ({2} if ordered else {1, 2})


# --- cuBLAS ---------------------------------------------------------------------------------------


def gemm(machine: Machine, a: np.ndarray, b: np.ndarray, compute: int) -> np.ndarray:
    """a @ b of row-major matrices, by swapping operands, as flowvm calls it."""
    count, m, k = a.shape
    n = b.shape[2]
    code = {"float32": 0, "float64": 1, "float16": 2}[a.dtype.name]
    out = np.full((count, m, n), np.nan, a.dtype)
    at = [machine.memory(np.ascontiguousarray(x)) for x in (b, a, out)]
    one = np.array([1, 0], np.float64 if compute == 70 else np.float32)
    handle = machine.runtime.cublas(machine.runtime.stream())
    ends = [one.ctypes.data, one.ctypes.data + one.itemsize]
    machine.driver.call(
        "cublasGemmStridedBatchedEx", handle, 0, 0, n, m, k, ends[0], at[0], code, n, k * n,
        at[1], code, k, m * k, ends[1], at[2], code, n, m * n, count, compute, -1,
    )  # fmt: skip
    return np.frombuffer(ctypes.string_at(at[2], out.nbytes), a.dtype).reshape(out.shape)


@pytest.mark.parametrize(
    ("dtype", "compute", "rtol"),
    [("float32", 68, 1e-6), ("float64", 70, 1e-13), ("float16", 68, 2e-3), ("float32", 77, 4e-3)],
)
def test_gemm(
    machine: Machine, rng: np.random.Generator, dtype: str, compute: int, rtol: float
) -> None:
    a, b = (rng.uniform(1, 2, s).astype(dtype) for s in ((2, 5, 7), (2, 7, 3)))
    actual = gemm(machine, a, b, compute)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(actual, exact, rtol=rtol)
    if compute == 77:  # TF32 is to be seen
        assert np.abs(actual / exact - 1).max() > 1e-6


# --- the recorder ---------------------------------------------------------------------------------


def test_the_recorder_notes_a_launch_and_runs_nothing(recorder: Machine) -> None:
    at = recorder.memory(np.ones(32, np.float32))
    recorder.launch(scale, (F32, "float64"), [*array(at, 32), 2.0], block=64, grid=5)
    recorder.ok("cuStreamSynchronize", None)
    (call,) = recorder.fake.launches("scale")
    assert (call.launch.grid, call.launch.block) == ((5, 1, 1), (64, 1, 1))
    x, factor = call.launch.arguments
    assert (x.dtype, x.shape, x.strides, x.address, factor) == ("float32", (32,), (4,), at, 2.0)
    assert (recorder.floats(at, 32) == 1).all()


def test_the_recorder_knows_what_is_ordered(recorder: Machine) -> None:
    at = recorder.memory(np.ones(32, np.float32))
    a, b = recorder.runtime.stream(), recorder.runtime.stream()
    event = recorder.runtime.event()

    def launch(stream: int) -> None:
        recorder.launch(scale, (F32, "float64"), [*array(at, 32), 2.0], stream)

    launch(a)
    launch(b)
    recorder.ok("cuEventRecord", event, a)
    launch(a)
    recorder.ok("cuStreamWaitEvent", b, event, 0)
    launch(b)
    recorder.ok("cuStreamSynchronize", a)
    launch(b)
    first, beside, third, waited, known = recorder.fake.launches()
    ordered = recorder.fake.ordered
    assert ordered(first, third)
    assert ordered(first, waited)
    assert ordered(beside, waited)
    assert not ordered(first, beside)
    assert not ordered(beside, first)
    assert not ordered(third, waited)
    assert ordered(third, known)  # the host had waited for it


def test_a_failure_can_be_asked_for(recorder: Machine) -> None:
    recorder.fake.fail("cuMemAlloc_v2", 2, 2)
    recorder.allocate(64)
    with pytest.raises(OutOfMemoryError, match="a failure that was asked for"):
        recorder.allocate(64)
    recorder.allocate(64)
    assert [c.result for c in recorder.fake.named("cuMemAlloc_v2")] == [0, 2, 0]


def test_a_ctrl_c_in_a_function_of_the_driver_comes_afterwards(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ctypes ignores an exception that is raised in a callback."""
    noise = functools.partial(signal.raise_signal, signal.SIGINT)
    monkeypatch.setattr(machine.fake, "noise", noise, raising=False)
    call = ctypes.CFUNCTYPE(ctypes.c_int)(machine.fake._entry("noise"))

    def run() -> None:
        assert call() == 0
        threading.Event().wait(20)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run()
    finally:
        signal.signal(signal.SIGINT, before)
