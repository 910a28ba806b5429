"""The CUDA driver's functions, for Python and by address; cuBLAS's and NCCL's beside them.

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
- A place of a library is 0 until `require` found it: loading one takes long.
- What failed once fails again with the same words.
- A forked child never calls the driver, which does not survive that: `refuse` is in its place.
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
from flowvm.cuda.driver.functions import (
    CUBLAS,
    DRIVER,
    INDEX,
    LIBRARIES,
    NAMES,
    NCCL,
    function_type,
)
from flowvm.cuda.driver.libraries import load_library
from flowvm.errors import DeviceError, FlowError, on_device_failed
from flowvm.meta.device import forget
from flowvm.vm.engine.engine import engine

NOT_INITIALIZED: Final = 3
MINIMUM: Final = 12000  # CUDA 12.0: cuGraphInstantiateWithFlags and cuGraphExecUpdate_v2 as here


class Driver:
    """A driver that is loaded and initialized; `fake` is the object behind one without a GPU."""

    def __init__(self, name: str, addresses: Mapping[str, int], fake: Any = None) -> None:
        self.name = name
        self.fake = fake
        self.version = 0
        self.functions: dict[str, Any] = {}
        self.table: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(len(NAMES), np.int64)
        self.missing: dict[str, str] = {}  # library -> the error of the vain search
        self.kernels: dict[int, str] = {}  # handles of loaded kernels -> their names
        self.pid = os.getpid()
        self.add(addresses)
        _keep.append(self)  # native threads may call by its table at any time

    def add(self, addresses: Mapping[str, int]) -> None:
        """Put functions into the table."""
        for name, address in addresses.items():
            self.functions[name] = function_type(name)(address)
            self.table[INDEX[name]] = address

    def call(self, name: str, *args: object) -> None:
        """Call a function; raise the exception of a result other than 0."""
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
# functions of flowvm that steps call, by their addresses: the exception for a result other than 0
others: Final[dict[int, Callable[[int], FlowError]]] = {}
_keep: list[Driver] = []
_lock = threading.RLock()  # guards the variables below
_driver: Driver | None = None
_failed: FlowError | None = None


def driver() -> Driver:
    """Return the driver; the first call loads and initializes it.  DeviceError if there is none."""
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
    """Return the driver, if it is in use already."""
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
    """Forget lowered calls when the driver changes: they hold the old driver's handles."""
    global _last
    if used is not None and _last is not None and used is not _last:
        engine.entries.forget()
    _last = used or _last


def refuse() -> int:
    """Return NOT_INITIALIZED. In a forked child this function replaces all of the driver's
    functions.
    """
    return NOT_INITIALIZED


def _after_fork_in_child() -> None:
    if _driver is not None:
        for name in _driver.functions:
            _driver.functions[name] = lambda *args: refuse()
        engine.entries.forget()  # so that calls are lowered anew, which raises the right error


os.register_at_fork(after_in_child=_after_fork_in_child)


def error_of(result: int, doing: str) -> FlowError:
    """Return the exception for a result of the driver in use, with a fake driver's reason."""
    return results.error(result, doing, _why(result))


def _why(result: int) -> str:
    """Return more about a result: the reason, from a fake driver; the description of an unknown
    code, from a real one.
    """
    if _driver is None:
        return ""
    if _driver.fake is not None:
        return str(_driver.fake.why(result))
    return "" if result in results.NAMES else _error_text(_driver, result)


def _error_text(of: Driver, result: int) -> str:
    texts = []
    for name in ("cuGetErrorName", "cuGetErrorString"):
        text = ctypes.c_char_p()
        if of.functions[name](result, ctypes.byref(text)) == 0 and text.value:
            texts.append(text.value.decode(errors="replace"))
    return ": ".join(texts)


def _failed_instruction(details: Sequence[int]) -> FlowError:
    """Return the exception of an instruction that failed in a call of the driver or of cuBLAS.

    The details: its result, the number of the step, and what the step calls; a number below 0 where
    it was no step's call.
    """
    result, step, called = details[:3]
    name = _called(called) if step >= 0 else ""
    if name in CUBLAS:
        return results.cublas_error(result, name)
    if name in NCCL:
        return nccl_error(result, name)
    if called in others and step >= 0:
        return others[called](result)
    doing = f"the CUDA device failed at {name}" if name else "the CUDA device failed"
    return error_of(result, doing)


def nccl_error(result: int, doing: str) -> FlowError:
    """Return the exception for a result of NCCL, with NCCL's own error text."""
    details = []
    for name, argument in (("ncclGetErrorString", result), ("ncclGetLastError", None)):
        at = _driver.functions[name](argument) if _driver is not None else 0
        details.append(ctypes.string_at(at).decode(errors="replace").strip() if at else "")
    return results.nccl_error(result, doing, *details)


def _called(address: int) -> str:
    """Return the name of the function at an address of the table, or of the kernel with that
    handle.
    """
    if _driver is None:
        return ""
    at = np.flatnonzero(_driver.table == address)
    return NAMES[at[0]] if at.size else _driver.kernels.get(address, "")


on_device_failed.append(_failed_instruction)


def require(library: str) -> None:
    """Fill in the functions of "cublas" or "nccl".  DeviceError, always the same, where it is not
    found.
    """
    used, names = driver(), LIBRARIES[library]
    with _lock:
        if used.functions.keys() >= names.keys():
            return
        if library not in used.missing:
            try:
                used.add(_addresses(load_library(library, used.version), names))
                return
            except (OSError, AttributeError) as error:
                used.missing[library] = str(error)
        raise results.not_found(library, used.version // 1000, used.missing[library])


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
    """Check the driver's version.  This comes before the look-up of functions, which an old driver
    may lack.
    """
    version = ctypes.c_int()
    try:
        library.cuDriverGetVersion(ctypes.byref(version))
    except AttributeError:
        raise DeviceError(f"CUDA is not available: {name} is not a CUDA driver") from None
    if version.value < MINIMUM:
        raise results.too_old(MINIMUM, version.value)


def _addresses(library: ctypes.CDLL, names: Mapping[str, str]) -> dict[str, int]:
    return {n: ctypes.cast(getattr(library, n), ctypes.c_void_p).value or 0 for n in names}
