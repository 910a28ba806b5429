"""A device in use: its context, its properties, and its kernels' handles, on the recorder."""

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from flowvm.cuda.compiler import compilation
from flowvm.cuda.driver import driver as drivers
from flowvm.cuda.driver import runtime as runtimes
from flowvm.cuda.driver.runtime import runtime
from flowvm.cuda.simulator import simulator
from flowvm.cuda.simulator.recorder import Recorder
from flowvm.errors import CompileError, DeviceError

SIGNATURE = (("float32", 1, "C"), "int64")
PTX = ".version 8.0\n.visible .entry {}(.param .u64 a, .param .u64 b)\n{{ ret; }}"


def kernel(x: Any, n: Any) -> None: ...


def other(x: Any, n: Any) -> None: ...


class Noting(Recorder):
    """Keeps the PTX that is loaded."""

    def __init__(self, **options: Any) -> None:
        self.texts_loaded: list[str] = []
        super().__init__(**options)

    def cuModuleLoadData(self, out: int, image: int) -> None:
        self.texts_loaded.append(ctypes.string_at(image).decode())
        super().cuModuleLoadData(out, image)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    fake = Recorder()
    with drivers.using(fake.driver()):
        yield fake


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Functions come from modules of PTX, which is not compiled but the same for every kernel."""
    fake = Noting(ptx=True)
    results = {"text": PTX.format("entry"), "asked": []}

    def ptx(kernel: Any, signature: Any, capability: Any) -> tuple[str, str]:
        results["asked"].append(capability)
        return results["text"], "entry"

    monkeypatch.setattr("flowvm.cuda.compiler.compilation.ptx", ptx)
    fake.results = results
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
    assert [one.index for one in runtimes.runtimes()] == [1, 0]


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
    device_runtime = runtime(0)
    first = device_runtime.function(kernel, SIGNATURE)
    assert device_runtime.function(kernel, SIGNATURE) == first
    assert device_runtime.function(kernel, (("float64", 1, "C"), "int64")) != first
    assert runtime(1).function(kernel, SIGNATURE) != first
    assert not recorder.named("cuModuleLoadDataEx")


def test_ptx_is_loaded_once_for_kernels_with_the_same_code(compiled: Recorder) -> None:
    device_runtime = runtime(0)
    assert device_runtime.function(kernel, SIGNATURE) == device_runtime.function(other, SIGNATURE)
    assert len(compiled.named("cuModuleLoadDataEx")) == 1
    assert compiled.results["asked"] == [(8, 0), (8, 0)]


def test_ptx_that_the_driver_refuses_is_a_compile_error(compiled: Recorder) -> None:
    compiled.results["text"] = "nonsense"
    with pytest.raises(CompileError, match=r"kernel kernel cannot be loaded: .*INVALID_PTX"):
        runtime(0).function(kernel, SIGNATURE)


def test_ptx_that_is_newer_than_the_driver_says_what_to_install(compiled: Recorder) -> None:
    compiled.fail("cuModuleLoadDataEx", 1, 222)
    with pytest.raises(DeviceError, match=r"newer than the driver.* CUDA 12\.8.*numba-cuda.cu12"):
        runtime(0).function(kernel, SIGNATURE)


@pytest.mark.parametrize(
    ("declared", "driver", "read"),
    [
        ("9.5", 13000, "9.0"),
        ("9.5", 13020, "9.2"),
        ("9.0", 13020, "9.0"),
        ("8.8", 12000, "8.0"),
        ("8.8", 12060, "8.5"),
        ("9.0", 12090, "8.8"),
        ("7.8", 12000, "7.8"),
        ("9.9", 14000, "9.9"),
    ],
)
def test_ptx_of_a_newer_toolkit_is_declared_as_the_driver_reads_it(
    compiled: Recorder, declared: str, driver: int, read: str
) -> None:
    compiled.results["text"] = PTX.format("entry").replace("8.0", declared)
    drivers.driver().version = driver
    runtime(0).function(kernel, SIGNATURE)
    (loaded,) = compiled.texts_loaded
    assert loaded == PTX.format("entry").replace("8.0", read)


def test_without_numba_cuda_a_kernel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "_from_cache", lambda digest: None)
    monkeypatch.setattr(compilation, "_compiled_texts", {})
    monkeypatch.setitem(sys.modules, "numba.cuda.cudadrv", None)
    compilation._toolchain_error.cache_clear()
    try:
        with drivers.using(Recorder(ptx=True).driver()):
            for _ in range(2):
                with pytest.raises(
                    CompileError,
                    match=r"cannot be compiled here \(.*\); install numba-cuda\[cu12\] or",
                ):
                    runtime(0).function(kernel, SIGNATURE)
    finally:
        compilation._toolchain_error.cache_clear()


def test_cublas_has_memory_of_its_own_for_each_stream(recorder: Recorder) -> None:
    device_runtime = runtime(0)
    handles = [device_runtime.cublas(device_runtime.stream()) for _ in range(2)]
    names = ("cublasSetStream_v2", "cublasSetWorkspace_v2")
    assert [c.name for c in recorder.named(*names)] == [*names, *names]  # the first forgets it
    spaces = [c.arguments for c in recorder.named("cublasSetWorkspace_v2")]
    assert [s[0] for s in spaces] == handles
    assert len({s[1] for s in spaces}) == 2
    assert {s[2] for s in spaces} == {4 << 20}
    recorder.fail("cublasCreate_v2", 1, 1)
    with pytest.raises(
        DeviceError, match=r"cublasCreate_v2 on cuda:0: it cannot be set up: .*newer"
    ):
        device_runtime.cublas(device_runtime.stream())


def test_a_result_that_is_new_to_us_is_asked_for(recorder: Recorder) -> None:
    """A real driver knows more results than we do."""
    used = drivers.driver()

    def text(of: str) -> Any:
        def answer(code: int, out: Any) -> int:
            ctypes.cast(out, ctypes.POINTER(ctypes.c_char_p))[0] = of.encode()
            return 0 if code == 826 else 1

        return answer

    used.fake = None
    used.functions["cuGetErrorName"] = text("CUDA_ERROR_NEW")
    used.functions["cuGetErrorString"] = text("something was new")
    message = str(drivers.error_of(826, "cuStreamQuery"))
    assert message == (
        "cuStreamQuery: the CUDA driver refused: CUDA_ERROR_NEW: something was new (CUresult 826)"
    )
    assert "(CUresult 827)" in str(drivers.error_of(827, "cuStreamQuery"))
    assert "uncorrectable error (ECC)" in str(drivers.error_of(214, "cuStreamQuery"))


def test_much_shared_memory_is_asked_for(recorder: Recorder) -> None:
    device_runtime = runtime(0)
    device_runtime.function(kernel, SIGNATURE, 48 << 10)
    assert not recorder.named("cuFuncSetAttribute")
    handle = device_runtime.function(kernel, SIGNATURE, 64 << 10)
    (call,) = recorder.named("cuFuncSetAttribute")
    assert call.arguments == (handle, 8, 64 << 10)
    with pytest.raises(DeviceError, match="kernel kernel needs 1048576 bytes of shared memory"):
        device_runtime.function(kernel, SIGNATURE, 1 << 20)


def test_streams_do_not_wait_for_the_default_stream(recorder: Recorder) -> None:
    runtime(0).stream(priority=-1)
    (call,) = recorder.named("cuStreamCreateWithPriority")
    assert call.arguments[1:] == (1, -1)


PROGRAM = """
import flowvm as flow
from flowvm.cuda.driver import driver
x = flow.ones(10, 20).to("cuda")
((x + x.t().contiguous().t()).exp().sum(1) * 2).relu()
x[:, ::2].sin()
flow.cuda.synchronize()
print(len(driver.driver().fake.launches()))
"""


def test_what_is_launched_fits_what_was_compiled() -> None:
    """Compile real PTX: the recorder refuses a launch with a wrong number of words."""
    from compiled import Compiler

    compiler = Compiler()
    missing = compiler.missing
    compiler.close()
    if missing:
        pytest.skip(f"kernels cannot be compiled: {missing}")
    import os

    settings = os.environ | {"FLOWVM_CUDA_DRIVER": "recorder:ptx", "NUMBA_ENABLE_CUDASIM": "0"}
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=settings, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) >= 4
