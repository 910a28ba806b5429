"""A device in use: its context, what it is, and its kernels' handles, on the recorder."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from flowvm.cuda import driver as drivers
from flowvm.cuda import runtime as runtimes
from flowvm.cuda import simulator
from flowvm.cuda.recorder_driver import Recorder
from flowvm.cuda.runtime import runtime
from flowvm.errors import CompileError, DeviceError

SIGNATURE = (("float32", 1, "C"), "int64")
PTX = ".version 8.0\n.visible .entry {}(.param .u64 a, .param .u64 b)\n{{ ret; }}"


def kernel(x: Any, n: Any) -> None: ...


def other(x: Any, n: Any) -> None: ...


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    fake = Recorder()
    with drivers.using(fake.driver()):
        yield fake


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Functions come from modules of PTX, which is not compiled but the same for every kernel."""
    fake = Recorder(ptx=True)
    made = {"text": PTX.format("entry"), "asked": []}

    def ptx(kernel: Any, signature: Any, capability: Any) -> tuple[str, str]:
        made["asked"].append(capability)
        return made["text"], "entry"

    monkeypatch.setattr("flowvm.cuda.compiling.ptx", ptx)
    fake.made = made
    with drivers.using(fake.driver()):
        yield fake


def test_looking_makes_no_context(recorder: Recorder) -> None:
    assert runtimes.count() == 2
    assert runtimes.why_not(1) == ""
    properties = runtimes.properties(1)
    assert properties.name == "flowvm recorder 1"
    assert properties.capability == (8, 0)
    assert properties.total_memory == 1 << 30
    assert not recorder.named("cuDevicePrimaryCtxRetain")
    assert runtimes.runtimes() == []


def test_a_runtime_is_made_once(recorder: Recorder) -> None:
    assert runtime(1) is runtime(1)
    assert runtime(0) is not runtime(1)
    assert len(recorder.named("cuDevicePrimaryCtxRetain")) == 2
    assert [made.index for made in runtimes.runtimes()] == [1, 0]


def test_a_device_that_is_not_there(recorder: Recorder) -> None:
    for _ in range(2):
        with pytest.raises(DeviceError, match="'cuda:2' is not available: there are 2 CUDA dev"):
            runtime(2)


def test_a_device_that_others_have(recorder: Recorder) -> None:
    recorder.fail("cuDevicePrimaryCtxRetain", 1, 46)
    with pytest.raises(DeviceError, match=r"cuda:0 cannot be used: .* in use by another process"):
        runtime(0)
    assert runtime(0).index == 0  # it is free again


def test_a_device_that_is_too_old(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(simulator.ATTRIBUTES, 75, 6)
    with pytest.raises(DeviceError, match=r"capability 6\.0; flowvm needs 7\.0"):
        runtime(0)


def test_a_kernel_is_registered_once_for_each_signature(recorder: Recorder) -> None:
    made = runtime(0)
    first = made.function(kernel, SIGNATURE)
    assert made.function(kernel, SIGNATURE) == first
    assert made.function(kernel, (("float64", 1, "C"), "int64")) != first
    assert runtime(1).function(kernel, SIGNATURE) != first
    assert not recorder.named("cuModuleLoadDataEx")


def test_ptx_is_loaded_once_for_kernels_with_the_same_code(compiled: Recorder) -> None:
    made = runtime(0)
    assert made.function(kernel, SIGNATURE) == made.function(other, SIGNATURE)
    assert len(compiled.named("cuModuleLoadDataEx")) == 1
    assert compiled.made["asked"] == [(8, 0), (8, 0)]


def test_ptx_that_the_driver_refuses_is_a_compile_error(compiled: Recorder) -> None:
    compiled.made["text"] = "nonsense"
    with pytest.raises(CompileError, match=r"kernel kernel cannot be loaded: .*INVALID_PTX"):
        runtime(0).function(kernel, SIGNATURE)


def test_ptx_that_is_newer_than_the_driver_says_what_to_install(compiled: Recorder) -> None:
    compiled.fail("cuModuleLoadDataEx", 1, 222)
    with pytest.raises(DeviceError, match=r"newer than the driver.* CUDA 12\.8.*numba-cuda.cu12"):
        runtime(0).function(kernel, SIGNATURE)


def test_much_shared_memory_is_asked_for(recorder: Recorder) -> None:
    made = runtime(0)
    made.function(kernel, SIGNATURE, 48 << 10)
    assert not recorder.named("cuFuncSetAttribute")
    handle = made.function(kernel, SIGNATURE, 64 << 10)
    (call,) = recorder.named("cuFuncSetAttribute")
    assert call.arguments == (handle, 8, 64 << 10)
    with pytest.raises(DeviceError, match="kernel kernel needs 1048576 bytes of shared memory"):
        made.function(kernel, SIGNATURE, 1 << 20)


def test_streams_do_not_wait_for_the_default_stream(recorder: Recorder) -> None:
    runtime(0).stream(priority=-1)
    (call,) = recorder.named("cuStreamCreateWithPriority")
    assert call.arguments[1:] == (1, -1)


PROGRAM = """
import flowvm as flow
from flowvm.cuda import driver
x = flow.ones(10, 20).to("cuda")
((x + x.t().contiguous().t()).exp().sum(1) * 2).relu()
x[:, ::2].sin()
flow.cuda.synchronize()
print(len(driver.driver().fake.launches()))
"""


def test_what_is_launched_fits_what_was_compiled() -> None:
    """Real PTX: the recorder refuses a launch whose words are not as many as it declares."""
    from compiled import Compiler

    compiler = Compiler()
    missing = compiler.missing
    compiler.close()
    if missing:
        pytest.skip(f"kernels cannot be compiled: {missing}")
    import os

    settings = os.environ | {"FLOWVM_CUDA_DRIVER": "recorder:ptx", "NUMBA_ENABLE_CUDASIM": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=settings, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 4
