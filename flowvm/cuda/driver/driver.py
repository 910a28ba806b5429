"""The CUDA driver's functions, for Python and by address, and cuBLAS's beside them.

    driver().call("cuCtxSetCurrent", context)     from Python: raises where the result is not 0
    table()[INDEX["cuLaunchKernel"]]              an address for native code, which looks at the
                                                  result itself

`libcuda.so.1` is loaded by the first call of `driver()`, not at import, and initialized.  The
setting `cuda_driver` (FLOWVM_CUDA_DRIVER) names another library, or one of the drivers that need
no GPU, which are in `FAKES`: "simulator" (`flowvm.cuda.simulator.simulator`) and "recorder"
(`flowvm.cuda.simulator.recorder`), whose addresses are callbacks into Python.

Invariants
- `NAMES` fixes the table's order.  A table, its functions and the library stay for ever: native
  threads call by it.
- A place of cuBLAS is 0 until `require_cublas()` found it: loading it takes long.
- What failed once fails again with the same words.
- A forked child never calls the driver, which does not survive that: `refuse` is in its place.

Long because all functions are named here, and what becomes of a driver that is not there.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from flowvm.config import config
from flowvm.cuda.driver import results
from flowvm.cuda.driver.libraries import load_cublas
from flowvm.errors import DeviceError, FlowError, on_device_failed
from flowvm.meta.device import forget
from flowvm.vm.engine.engine import engine

NOT_INITIALIZED: Final = 3
MINIMUM: Final = 12000  # CUDA 12.0: cuGraphInstantiateWithFlags and cuGraphExecUpdate_v2 as here

# name -> kinds of its parameters: p address or handle, z size, i int, u unsigned, b byte, Q 64 bits
DRIVER: Final[dict[str, str]] = {
    "cuInit": "u",
    "cuDriverGetVersion": "p",
    "cuDeviceGetCount": "p",
    "cuDeviceGet": "pi",
    "cuDeviceGetName": "pii",
    "cuDeviceGetAttribute": "pii",
    "cuDeviceTotalMem_v2": "pi",
    "cuDevicePrimaryCtxRetain": "pi",
    "cuCtxSetCurrent": "p",
    "cuCtxGetCurrent": "p",
    "cuCtxSynchronize": "",
    "cuStreamCreateWithPriority": "pui",
    "cuStreamCreate": "pu",
    "cuStreamDestroy_v2": "p",
    "cuStreamSynchronize": "p",
    "cuStreamWaitEvent": "ppu",
    "cuStreamQuery": "p",
    "cuEventCreate": "pu",
    "cuEventRecord": "pp",
    "cuEventQuery": "p",
    "cuEventSynchronize": "p",
    "cuEventElapsedTime": "ppp",
    "cuEventDestroy_v2": "p",
    "cuMemAlloc_v2": "pz",
    "cuMemFree_v2": "p",
    "cuMemHostAlloc": "pzu",
    "cuMemFreeHost": "p",
    "cuMemGetInfo_v2": "pp",
    "cuMemcpyHtoDAsync_v2": "ppzp",
    "cuMemcpyDtoHAsync_v2": "ppzp",
    "cuMemcpyDtoDAsync_v2": "ppzp",
    "cuMemcpyPeerAsync": "ppppzp",
    "cuMemcpyAsync": "ppzp",
    "cuMemsetD8Async": "pbzp",
    "cuModuleLoadData": "pp",
    "cuModuleLoadDataEx": "ppupp",
    "cuModuleGetFunction": "ppp",
    "cuFuncSetAttribute": "pii",
    "cuLaunchKernel": "puuuuuuuppp",
    "cuGetErrorName": "ip",
    "cuGetErrorString": "ip",
    "cuStreamBeginCapture_v2": "pi",
    "cuStreamEndCapture": "pp",
    "cuThreadExchangeStreamCaptureMode": "p",
    "cuGraphInstantiateWithFlags": "ppQ",
    "cuGraphExecUpdate_v2": "ppp",
    "cuGraphLaunch": "pp",
    "cuGraphDestroy": "p",
    "cuGraphExecDestroy": "p",
    "cuPointerGetAttribute": "pip",
}
CUBLAS: Final[dict[str, str]] = {
    "cublasCreate_v2": "p",
    "cublasSetStream_v2": "pp",
    "cublasSetMathMode": "pi",
    "cublasSetWorkspace_v2": "ppz",
    # handle, opA, opB, m, n, k, alpha, A, type, lda, stride, B, ..., beta, C, ..., count, compute
    "cublasGemmStridedBatchedEx": "piiiiippiiQpiiQppiiQiii",
    "cublasDestroy_v2": "p",
}
NAMES: Final = (*DRIVER, *CUBLAS)
INDEX: Final = {name: i for i, name in enumerate(NAMES)}
_KINDS: Final[dict[str, Any]] = {
    "p": ctypes.c_void_p,
    "z": ctypes.c_size_t,
    "i": ctypes.c_int,
    "u": ctypes.c_uint,
    "b": ctypes.c_ubyte,
    "Q": ctypes.c_uint64,
}


def function_type(name: str) -> Any:
    """The ctypes type of function `name`, which calls through an address or makes a callback."""
    kinds = CUBLAS[name] if name in CUBLAS else DRIVER[name]
    return ctypes.CFUNCTYPE(ctypes.c_int, *(_KINDS[k] for k in kinds))


class Driver:
    """A driver that is loaded and initialized; `fake` is the object behind one without a GPU."""

    def __init__(self, name: str, addresses: Mapping[str, int], fake: Any = None) -> None:
        self.name = name
        self.fake = fake
        self.version = 0
        self.functions: dict[str, Any] = {}
        self.table: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(len(NAMES), np.int64)
        self.cublas_error = ""
        self.kernels: dict[int, str] = {}  # handles of those that were loaded -> their names
        self.pid = os.getpid()
        self.add(addresses)
        _keep.append(self)  # native threads may call by its table at any time

    def add(self, addresses: Mapping[str, int]) -> None:
        """Put functions into the table."""
        for name, address in addresses.items():
            self.functions[name] = function_type(name)(address)
            self.table[INDEX[name]] = address

    def call(self, name: str, *args: Any) -> None:
        """Call a function; raise what a result other than 0 stands for."""
        if result := self.functions[name](*args):
            raise error_of(result, name)

    def initialize(self) -> None:
        """cuInit, and a look at the version.  A FlowError says why it cannot be used."""
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.version = version.value
        if self.version < MINIMUM:
            raise results.too_old(MINIMUM, self.version)
        if result := self.functions["cuInit"](0):
            raise results.error(result, "CUDA is not available")


# drivers that need no GPU, by the name of the setting: each makes one of its options
FAKES: Final[dict[str, Callable[[str], Driver]]] = {}
_keep: list[Driver] = []
_lock = threading.RLock()  # guards what follows
_driver: Driver | None = None
_failed: FlowError | None = None


def driver() -> Driver:
    """The driver; loaded and initialized by the first call.  DeviceError where there is none."""
    global _driver, _failed
    with _lock:
        if _failed is not None:
            raise type(_failed)(*_failed.args)
        if _driver is None:
            try:
                driver = _load(config.cuda_driver)
                driver.initialize()
            except FlowError as error:
                _failed = error
                raise
            _driver = driver
            _forget_calls(driver)
        if _driver.pid != os.getpid():
            raise DeviceError(
                "CUDA cannot be used in a process that was forked after its parent had begun to "
                "use CUDA; start processes with multiprocessing's 'spawn' method, or fork before "
                "the first use of a CUDA device"
            )
        return _driver


def loaded() -> Driver | None:
    """The driver, if it is in use already."""
    return _driver


def table() -> np.ndarray[Any, np.dtype[np.int64]]:
    """Addresses in the order of `NAMES`, kept alive for ever; 0: not there (see the module)."""
    return driver().table


@contextmanager
def using(instead: Driver | None) -> Iterator[None]:
    """Let `instead` be the driver for a block, for tests; None loads anew."""
    global _driver, _failed
    with _lock:
        before = _driver, _failed
        _driver, _failed = instead, None
    _forget_calls(instead)
    forget()
    try:
        if instead is not None:
            instead.initialize()
        yield
    finally:
        with _lock:
            _driver, _failed = before
        _forget_calls(_driver)
        forget()


_last: Driver | None = None  # the last one that was in use


def _forget_calls(used: Driver | None) -> None:
    """What was lowered for another driver has its handles: let it be lowered anew."""
    global _last
    if used is not None and _last is not None and used is not _last:
        engine.forget_entries()
    _last = used or _last


def refuse() -> int:
    """What all of the driver's functions are in a forked child."""
    return NOT_INITIALIZED


def _after_fork_in_child() -> None:
    if _driver is not None:
        for name in _driver.functions:
            _driver.functions[name] = lambda *args: refuse()
        engine.forget_entries()  # so that calls are lowered anew, which says what is wrong


os.register_at_fork(after_in_child=_after_fork_in_child)


def error_of(result: int, doing: str) -> FlowError:
    """The exception for a result of the driver in use, with what a fake driver knows of it."""
    return results.error(result, doing, _why(result))


def _why(result: int) -> str:
    """What the driver itself knows of a result: a fake one why, a real one what is new to us."""
    if _driver is None:
        return ""
    if _driver.fake is not None:
        return str(_driver.fake.why(result))
    return "" if result in results.NAMES else _said(_driver, result)


def _said(of: Driver, result: int) -> str:
    texts = []
    for name in ("cuGetErrorName", "cuGetErrorString"):
        text = ctypes.c_char_p()
        if of.functions[name](result, ctypes.byref(text)) == 0 and text.value:
            texts.append(text.value.decode(errors="replace"))
    return ": ".join(texts)


def _failed_instruction(details: Sequence[int]) -> FlowError:
    """The exception of an instruction for which a call of the driver or of cuBLAS failed.

    The details: its result, the number of the step, and what the step calls; a number below 0 where
    it was no step's call.
    """
    result, step, called = details[:3]
    name = _called(called) if step >= 0 else ""
    if name in CUBLAS:
        return results.cublas_error(result, name)
    doing = f"the CUDA device failed at {name}" if name else "the CUDA device failed"
    return error_of(result, doing)


def _called(address: int) -> str:
    """The function at an address of the table, or the kernel of that handle."""
    if _driver is None:
        return ""
    at = np.flatnonzero(_driver.table == address)
    return NAMES[at[0]] if at.size else _driver.kernels.get(address, "")


on_device_failed.append(_failed_instruction)


def require_cublas() -> None:
    """Fill in cuBLAS's part of the table.  DeviceError, always the same, where it is not found."""
    used = driver()
    with _lock:
        if used.functions.keys() >= CUBLAS.keys():
            return
        if not used.cublas_error:
            try:
                used.add(_addresses(load_cublas(used.version), CUBLAS))
                return
            except (OSError, AttributeError) as error:
                used.cublas_error = str(error)
        package = "nvidia-cublas-cu12" if used.version // 1000 == 12 else "nvidia-cublas"
        raise DeviceError(
            f"matrix products and convolutions on CUDA need cuBLAS, which was not found "
            f"({used.cublas_error}); pip install {package}, or CuPy with its libraries"
        )


def _load(where: str) -> Driver:
    kind, _, options = where.partition(":")
    if kind in FAKES:
        return FAKES[kind](options)
    if kind == "none":
        raise DeviceError(
            "CUDA is not available: it is switched off by FLOWVM_CUDA_DRIVER=none; use device='cpu'"
        )
    try:
        library = ctypes.CDLL(where or "libcuda.so.1")
    except OSError as error:
        if where:
            raise DeviceError(
                f"CUDA is not available: FLOWVM_CUDA_DRIVER={where} cannot be loaded: {error}"
            ) from None
        raise DeviceError(
            "CUDA is not available: no NVIDIA driver (libcuda.so.1) was found here; install it, "
            "or use device='cpu'"
        ) from None
    _check_version(library, where or "libcuda.so.1")
    try:
        return Driver(where or "libcuda.so.1", _addresses(library, DRIVER))
    except AttributeError as error:
        raise DeviceError(f"CUDA is not available: the driver lacks a function: {error}") from None


def _check_version(library: ctypes.CDLL, name: str) -> None:
    """Before functions are looked up, which an old driver may lack."""
    version = ctypes.c_int()
    try:
        library.cuDriverGetVersion(ctypes.byref(version))
    except AttributeError:
        raise DeviceError(f"CUDA is not available: {name} is no CUDA driver") from None
    if version.value < MINIMUM:
        raise results.too_old(MINIMUM, version.value)


def _addresses(library: ctypes.CDLL, names: Mapping[str, str]) -> dict[str, int]:
    return {n: ctypes.cast(getattr(library, n), ctypes.c_void_p).value or 0 for n in names}
