"""`flow.cuda`: devices, streams, events, memory, switches, on the simulated driver.  Tests with the
`device` fixture run twice: with streams that run at once, and with late ones.
"""

import threading

import numpy as np
import pytest
from programs import run

import flowvm as flow
from flowvm.cuda.driver import driver as drivers
from flowvm.cuda.simulator.recorder import Recorder
from flowvm.errors import ArgumentError, ArgumentTypeError, DeviceError
from tests.vm.kernels import alone


@pytest.fixture
def simulated(device) -> None:
    """For tests that know the simulated devices: two, of 1 GiB."""
    if drivers.driver().fake is None:
        pytest.skip("for the simulated devices")


# --- devices --------------------------------------------------------------------------------------


def test_without_a_driver_nothing_raises_that_only_asks() -> None:
    program = """
import flowvm as flow
cuda = flow.cuda
print(cuda.is_available(), cuda.device_count(), cuda.is_initialized(), cuda.current_device())
print(cuda.memory_allocated(), cuda.memory_reserved())
for function in (cuda.init, cuda.synchronize, cuda.Stream, cuda.mem_get_info, cuda.current_stream,
                 cuda.get_device_name, cuda.default_stream):
    try:
        function()
    except flow.errors.DeviceError as error:
        assert "FLOWVM_CUDA_DRIVER=none" in str(error), error
    else:
        print("no error:", function)
"""
    assert run(program, FLOWVM_CUDA_DRIVER="none").split("\n") == ["False 0 False 0", "0 0", ""]


def test_devices_have_names_and_properties(device, simulated) -> None:
    assert flow.cuda.is_available()
    assert flow.cuda.device_count() == 2
    assert flow.cuda.get_device_name(1) == "flowvm simulator 1"
    assert flow.cuda.get_device_name("cuda:0") == "flowvm simulator 0"
    assert flow.cuda.get_device_capability() == (8, 0)
    assert flow.cuda.get_device_properties(device).warp_size == 32
    with pytest.raises(DeviceError, match="expected a CUDA device, got 'cpu'"):
        flow.cuda.get_device_name("cpu")
    with pytest.raises(DeviceError, match="'cuda:5' is not available"):
        flow.cuda.get_device_name(5)


def test_cuda_alone_is_the_current_device(device, simulated) -> None:
    assert flow.cuda.current_device() == 0
    with flow.cuda.device(1):
        assert flow.device("cuda").index == flow.cuda.current_device() == 1
        assert flow.ones(2, device="cuda").device == flow.device("cuda:1")
        with flow.cuda.device(None), flow.cuda.device("cuda:0"):
            assert flow.cuda.current_device() == 0
        assert flow.cuda.current_device() == 1
    assert flow.cuda.current_device() == 0
    flow.cuda.set_device(1)
    try:
        results: list[int] = []
        thread = threading.Thread(target=lambda: results.append(flow.cuda.current_device()))
        thread.start()
        thread.join()
        assert results == [0]  # each thread has its own
    finally:
        flow.cuda.set_device(0)
    with pytest.raises(DeviceError, match="'cuda:2' is not available"):
        flow.cuda.set_device(2)


# --- streams --------------------------------------------------------------------------------------


def test_the_default_stream_is_current_and_is_one(device, simulated) -> None:
    assert flow.cuda.current_stream() == flow.cuda.default_stream()
    assert flow.cuda.current_stream(1) != flow.cuda.current_stream(0)
    assert flow.cuda.current_stream().device is device
    assert len({flow.cuda.current_stream(), flow.cuda.default_stream()}) == 1


def test_work_of_streams_is_ordered_by_operands(device, rng) -> None:
    x = rng.standard_normal((5, 8)).astype(np.float32)
    t = flow.from_numpy(x).to(device)
    streams = [flow.cuda.Stream() for _ in range(2)]
    for _ in range(4):
        for s in streams:
            with flow.cuda.stream(s):
                assert flow.cuda.current_stream() == s
                t = t * 2
                t.add_(1)
        x = (x * 2 + 1) * 2 + 1
    np.testing.assert_allclose(t.cpu().numpy(), x, rtol=1e-6)
    assert flow.cuda.current_stream() == flow.cuda.default_stream()
    for s in streams:
        s.synchronize()
        assert s.query()


def test_a_stream_takes_its_device_along(device, simulated) -> None:
    s = flow.cuda.Stream("cuda:1", priority=-1, name="mine")
    with flow.cuda.stream(s):
        assert flow.cuda.current_device() == 1
        assert flow.cuda.current_stream() == s
        assert flow.cuda.current_stream(0) == flow.cuda.default_stream(0)
    assert "mine" in repr(s)
    assert s.priority == -1
    assert s.cuda_stream != flow.cuda.default_stream(1).cuda_stream
    with flow.cuda.stream(None):
        assert flow.cuda.current_device() == 0
    with pytest.raises(ArgumentTypeError, match=r"expected a flow\.cuda\.Stream, got int"):
        flow.cuda.stream(3).__enter__()


def test_the_number_of_a_dropped_stream_is_used_again(device) -> None:
    number = flow.cuda.Stream().number
    for _ in range(40):
        assert flow.cuda.Stream().number == number


# --- events ---------------------------------------------------------------------------------------


def test_events_happen_in_the_order_of_their_streams(device) -> None:
    x = flow.ones(64, device=device)
    start, end = (flow.cuda.Event(enable_timing=True) for _ in range(2))
    assert start.query()  # never recorded
    start.record()
    for _ in range(5):
        x = x + 1
    end.record()
    end.synchronize()
    assert start.query()
    assert end.query()
    assert start.elapsed_time(end) >= 0
    assert end.elapsed_time(start) <= 0
    assert x.cpu().numpy().max() == 6


def test_one_stream_waits_for_another(device) -> None:
    first, second = flow.cuda.Stream(), flow.cuda.Stream()
    with flow.cuda.stream(first):
        x = flow.ones(32, device=device) * 3
    event = first.record_event()
    second.wait_event(event)
    second.wait_stream(first)
    with flow.cuda.stream(second):
        after = flow.cuda.Event()
        after.record()
    after.synchronize()
    assert event.query()
    assert first.query()
    del event, after
    assert x.sum().item() == 96


def test_events_say_what_they_cannot(device, simulated) -> None:
    plain, timed = flow.cuda.Event(), flow.cuda.Event(enable_timing=True)
    with pytest.raises(ArgumentError, match="never recorded"):
        timed.elapsed_time(timed)
    timed.record()
    timed.synchronize()
    with pytest.raises(ArgumentError, match="end_event was made without enable_timing"):
        timed.elapsed_time(plain)
    with pytest.raises(DeviceError, match="the event is of cuda:0, and the stream of cuda:1"):
        timed.record(flow.cuda.default_stream(1))
    with pytest.raises(ArgumentError, match="other processes"):
        flow.cuda.Event(interprocess=True)


def test_many_events_use_few_handles(device) -> None:
    handles = set()
    for _ in range(30):
        event = flow.cuda.Event()
        event.record()
        event.synchronize()
        handles.add(event.cuda_event)
    assert len(handles) < 10


# --- waiting --------------------------------------------------------------------------------------


def test_synchronize_raises_what_nobody_has_seen(device) -> None:
    table, bad = flow.ones(4, 2, device=device), flow.tensor([7]).to(device)
    failed = table.index_select(0, bad)
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        flow.cuda.synchronize()
    flow.cuda.synchronize()
    del failed
    assert (table + 1).sum().item() == 16


# --- memory ---------------------------------------------------------------------------------------


@alone()
def test_memory_is_counted_by_device(device, simulated) -> None:
    flow.cuda.synchronize()
    flow.cuda.reset_peak_memory_stats()
    before, other = flow.cuda.memory_allocated(), flow.cuda.memory_allocated(1)
    x = flow.ones(1 << 16, device=device)
    flow.cuda.synchronize()
    held = flow.cuda.memory_allocated() - before
    assert 1 << 18 <= held < 1 << 19
    assert flow.cuda.memory_allocated(1) == other
    del x
    flow.vm.sync()
    assert flow.cuda.memory_allocated() == before
    assert flow.cuda.max_memory_allocated() >= before + held
    flow.cuda.reset_peak_memory_stats()
    assert flow.cuda.max_memory_allocated() == before
    stats = flow.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == before
    assert stats["reserved_bytes.all.current"] == flow.cuda.memory_reserved() >= before
    assert "in use by tensors" in flow.cuda.memory_summary()


def test_cached_memory_goes_back_to_the_device(device) -> None:
    x = flow.empty(4 << 20, device=device)
    flow.cuda.synchronize()
    del x
    flow.vm.sync()
    free, total = flow.cuda.mem_get_info()
    flow.cuda.empty_cache()
    after, same = flow.cuda.mem_get_info()
    assert after >= free + (16 << 20)
    assert total == same


def test_too_much_is_an_error_and_the_rest_goes_on(device, simulated) -> None:
    held = [flow.empty(600 << 20, dtype=flow.uint8, device=device) for _ in range(2)]
    with pytest.raises(MemoryError, match="out of memory"):
        held[1].sum().item()
    held.clear()
    flow.cuda.empty_cache()
    assert flow.ones(10, device=device).sum().item() == 10


# --- random numbers, switches ---------------------------------------------------------------------


def test_one_seed_for_all_devices(device) -> None:
    flow.cuda.manual_seed(5)
    on_device = flow.rand(20, device=device).cpu().numpy()
    flow.manual_seed(5)
    np.testing.assert_array_equal(on_device, flow.rand(20).numpy())
    assert flow.cuda.initial_seed() == 5
    state = flow.cuda.get_rng_state_all()
    first = flow.rand(3).numpy()
    flow.cuda.set_rng_state_all(state)
    np.testing.assert_array_equal(first, flow.rand(3).numpy())


def test_tf32_is_a_switch_that_the_next_call_sees(device, simulated, rng) -> None:
    x = rng.uniform(1, 2, (4, 4)).astype(np.float32)
    exact = x.astype(np.float64) @ x.astype(np.float64)
    t = flow.from_numpy(x).to(device)

    def error() -> float:
        return float(np.abs((t @ t).cpu().numpy() / exact - 1).max())

    assert flow.get_float32_matmul_precision() == "highest"
    assert error() < 1e-6
    flow.backends.cuda.matmul.allow_tf32 = True
    try:
        assert flow.get_float32_matmul_precision() == "high"
        assert error() > 1e-5
        flow.set_float32_matmul_precision("medium")
        assert flow.get_float32_matmul_precision() == "medium"
    finally:
        flow.set_float32_matmul_precision("highest")
    assert not flow.backends.cuda.matmul.allow_tf32
    assert error() < 1e-6


def test_switches_take_what_they_are() -> None:
    with pytest.raises(ArgumentTypeError, match="allow_tf32 is True or False, got int"):
        flow.backends.cuda.matmul.allow_tf32 = 1
    with pytest.raises(AttributeError, match=r"has no 'allow_tf'; there are .*allow_tf32"):
        flow.backends.cuda.matmul.allow_tf = True
    with pytest.raises(ArgumentError, match="'low' is none of highest, high, medium"):
        flow.set_float32_matmul_precision("low")
    for value in (False, True):  # nothing would change, so it is kept
        flow.backends.cudnn.deterministic = value
        assert flow.backends.cudnn.deterministic is value
    with flow.backends.cudnn.flags(allow_tf32=True, benchmark=True):
        assert flow.backends.cudnn.allow_tf32
        assert flow.backends.cudnn.benchmark
    assert not flow.backends.cudnn.allow_tf32
    assert not flow.backends.cudnn.benchmark


# --- asking, and the doctor -----------------------------------------------------------------------


def test_asking_who_is_there_makes_no_context() -> None:
    fake = Recorder()
    with drivers.using(fake.driver()):
        assert flow.cuda.is_available()
        assert flow.cuda.get_device_name(1)
        assert not flow.cuda.is_initialized()
        assert not fake.named("cuDevicePrimaryCtxRetain")


def test_doctor_says_what_is_there() -> None:
    from flowvm.commands import doctor

    with drivers.using(Recorder(devices=1).driver()):
        check = doctor._cuda()
    assert check.subject == "cuda"
    assert "driver recorder for CUDA 12.8, flowvm recorder 0; numba-cuda" in check.text
