"""A device as the process uses it: its primary context, its properties, its kernels' handles.

`runtime(i)` makes device i's `Runtime` when it is first asked for; `count()`, `properties(i)` and
`why_not(i)` ask the driver alone and make no context.  A Runtime stays for ever.

Any thread may call; a context is current for a thread once it has called `Runtime.enter`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from flowvm.cuda.driver import driver as drivers
from flowvm.cuda.driver import results
from flowvm.cuda.driver.driver import Driver, error_of
from flowvm.errors import CompileError, DeviceError, FlowError
from flowvm.loading.lazy import lazy

if TYPE_CHECKING:
    from flowvm.cuda.compiler import compilation
else:
    compilation = lazy("flowvm.cuda.compiler.compilation")

OLDEST: Final = (7, 0)  # compute capability
PLAIN_SHARED: Final = 48 << 10  # bytes of dynamic shared memory that need no asking
WORKSPACE, WORKSPACE_90 = 4 << 20, 32 << 20  # bytes that cuBLAS asks for: before Hopper, from it on
_MAX_DYNAMIC_SHARED: Final = 8
_ATTRIBUTES: Final = {
    "major": 75, "minor": 76, "multi_processor_count": 16, "warp_size": 10, "L2_cache_size": 38,
    "max_threads_per_block": 1, "max_threads_per_multi_processor": 39,
    "shared_memory_per_block": 8, "shared_memory_per_block_optin": 97,
    "regs_per_multiprocessor": 82, "is_integrated": 18,
}  # fmt: skip


@dataclass(frozen=True)
class Properties:
    """The properties of a device, by PyTorch's names."""

    name: str
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int
    warp_size: int
    L2_cache_size: int
    max_threads_per_block: int
    max_threads_per_multi_processor: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    regs_per_multiprocessor: int
    is_integrated: int

    @property
    def capability(self) -> tuple[int, int]:
        return self.major, self.minor


class Runtime:
    """A device in use: number `index`."""

    def __init__(self, index: int) -> None:
        self.driver = drivers.driver()
        self.index = index
        self.properties = properties(index)
        if self.properties.capability < OLDEST:
            raise DeviceError(
                f"cuda:{index} ({self.properties.name}) has compute capability "
                f"{self.properties.major}.{self.properties.minor}; flowvm needs 7.0 or later"
            )
        context = ctypes.c_void_p()
        retain = self.driver.functions["cuDevicePrimaryCtxRetain"]
        if result := retain(ctypes.byref(context), _number(self.driver, index)):
            raise error_of(result, f"cuda:{index} cannot be used")
        self.context = int(context.value or 0)
        self._lock = threading.RLock()
        self._functions: dict[tuple[object, ...], int] = {}
        self._loaded: dict[tuple[str, str], int] = {}  # (PTX, entry) -> handle
        self._keep: list[object] = []

    def enter(self) -> None:
        """Make the context current for this thread."""
        self.driver.call("cuCtxSetCurrent", self.context)

    def memory(self) -> tuple[int, int]:
        """Return the free bytes and all bytes of the device, whoever uses them."""
        self.enter()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    # --- kernels ----------------------------------------------------------------------------------

    def function(
        self, kernel: Callable[..., object], signature: tuple[object, ...], shared: int = 0
    ) -> int:
        """The handle by which cuLaunchKernel launches `kernel`, compiled for `signature` (see
        `flowvm.cuda.compiler.compilation`), with up to `shared` bytes of dynamic shared memory.
        """
        with self._lock:
            key = kernel, signature
            if key not in self._functions:
                handle = self._functions[key] = self._compile(kernel, signature)
                name = getattr(kernel, "__qualname__", repr(kernel))
                self.driver.kernels[handle] = f"the launch of {name}"
            handle = self._functions[key]
            if shared > PLAIN_SHARED:
                self._allow(handle, kernel, shared)
            return handle

    def _compile(self, kernel: Callable[..., object], signature: tuple[Any, ...]) -> int:
        fake = self.driver.fake
        if fake is not None and not fake.ptx:
            return int(fake.register(kernel, signature, self.index))
        text, entry = compilation.ptx(kernel, signature, self.properties.capability)
        text = compilation.readable(text, self.driver.version)
        if (text, entry) not in self._loaded:  # generated kernels may have the same code
            self._loaded[text, entry] = self._load(kernel, text, entry)
        return self._loaded[text, entry]

    def _load(self, kernel: Callable[..., object], text: str, entry: str) -> int:
        self.enter()
        name = getattr(kernel, "__qualname__", repr(kernel))
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        log = _Log()
        image = text.encode() + b"\0"
        if result := self.driver.functions["cuModuleLoadDataEx"](
            ctypes.byref(module), image, *log.options
        ):
            raise _unloadable(self.driver, result, name, log.text())
        self.driver.call("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
        return int(function.value or 0)

    def _allow(self, handle: int, kernel: Callable[..., object], shared: int) -> None:
        most = self.properties.shared_memory_per_block_optin
        if shared > most:
            raise DeviceError(
                f"kernel {getattr(kernel, '__qualname__', kernel)} needs {shared} bytes of shared "
                f"memory and cuda:{self.index} has {most}"
            )
        self.enter()
        self.driver.call("cuFuncSetAttribute", handle, _MAX_DYNAMIC_SHARED, shared)

    # --- handles for streams ----------------------------------------------------------------------

    def stream(self, priority: int = 0) -> int:
        """A new stream that does not wait for the default one."""
        self.enter()
        handle = ctypes.c_void_p()
        self.driver.call("cuStreamCreateWithPriority", ctypes.byref(handle), 1, priority)
        return int(handle.value or 0)

    def event(self, timing: bool = False) -> int:
        """A new event."""
        self.enter()
        handle = ctypes.c_void_p()
        self.driver.call("cuEventCreate", ctypes.byref(handle), 0 if timing else 2)
        return int(handle.value or 0)

    def cublas(self, stream: int) -> int:
        """A new cuBLAS handle for `stream`.  DeviceError where cuBLAS is not there.

        It has its own workspace.  Memory that cuBLAS allocates itself during a capture would become
        a part of the graph, which could not be updated then.
        """
        drivers.require("cublas")
        self.enter()
        handle, memory = ctypes.c_void_p(), ctypes.c_void_p()
        size = WORKSPACE if self.properties.capability < (9, 0) else WORKSPACE_90
        self.driver.call("cuMemAlloc_v2", ctypes.byref(memory), size)
        for name, args in (
            ("cublasCreate_v2", (ctypes.byref(handle),)),
            ("cublasSetStream_v2", (handle, stream)),  # which forgets the workspace
            ("cublasSetWorkspace_v2", (handle, memory, size)),
        ):
            if result := self.driver.functions[name](*args):
                raise results.cublas_error(result, f"{name} on cuda:{self.index}")
        return int(handle.value or 0)


class _Log:
    """Options of cuModuleLoadDataEx that make the driver's compiler log its errors."""

    BYTES = 8192

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(self.BYTES)
        self.names = (ctypes.c_int * 2)(5, 6)  # error log, and its size
        self.values = (ctypes.c_void_p * 2)(ctypes.addressof(self.buffer), self.BYTES)

    @property
    def options(self) -> tuple[object, ...]:
        return 2, self.names, self.values

    def text(self) -> str:
        return self.buffer.value.decode(errors="replace").strip()


def _unloadable(driver: Driver, result: int, name: str, log: str) -> FlowError:
    if result == 222:
        return DeviceError(
            f"kernel {name} cannot be loaded: its PTX was made by a CUDA toolkit that is newer "
            f"than the driver, which supports CUDA {driver.version // 1000}."
            f"{driver.version % 1000 // 10}; update the driver, or install "
            f"numba-cuda[cu{driver.version // 1000}] with libraries of that version"
        )
    error = error_of(result, f"kernel {name} cannot be loaded")
    text = f"{error}; the driver's compiler says: {log}" if log else str(error)
    return CompileError(text) if result in (200, 218) else type(error)(text)


def _number(driver: Driver, index: int) -> int:
    """The driver's own number of a device."""
    number = ctypes.c_int()
    driver.call("cuDeviceGet", ctypes.byref(number), index)
    return number.value


def properties(index: int) -> Properties:
    """Return the properties of device `index` without making a context.  DeviceError if there is no
    such device.
    """
    if why := why_not(index):
        raise DeviceError(f"device 'cuda:{index}' is not available: {why}")
    driver = drivers.driver()
    number = _number(driver, index)
    name = ctypes.create_string_buffer(256)
    driver.call("cuDeviceGetName", name, len(name), number)
    total, value = ctypes.c_size_t(), ctypes.c_int()
    driver.call("cuDeviceTotalMem_v2", ctypes.byref(total), number)
    values = {}
    for key, attribute in _ATTRIBUTES.items():
        driver.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, number)
        values[key] = value.value
    return Properties(name.value.decode(errors="replace"), total.value, **values)


_lock = threading.RLock()
_runtimes: dict[tuple[Driver, int], Runtime] = {}


def count() -> int:
    """Return the number of devices; DeviceError if CUDA cannot be used."""
    value = ctypes.c_int()
    drivers.driver().call("cuDeviceGetCount", ctypes.byref(value))
    return value.value


def why_not(index: int) -> str:
    """Return the reason why device `index` cannot be used, or ""."""
    try:
        device_count = count()
    except FlowError as error:
        return str(error).removeprefix("CUDA is not available: ")
    if index < device_count:
        return ""
    devices = "1 CUDA device" if device_count == 1 else f"{device_count} CUDA devices"
    return (
        f"there {'is' if device_count == 1 else 'are'} {devices} here; use device='cpu' or 'cuda:0'"
    )


def runtime(index: int) -> Runtime:
    """Return the runtime of device `index`; the first call makes it.  DeviceError says why it
    cannot be used.
    """
    with _lock:
        driver = drivers.driver()
        runtime = _runtimes.get((driver, index))
        if runtime is None:
            runtime = _runtimes[driver, index] = Runtime(index)
        return runtime


def runtimes() -> list[Runtime]:
    """Return the runtimes of the devices in use."""
    used = drivers.loaded()
    return [runtime for (driver, _), runtime in _runtimes.items() if driver is used]
