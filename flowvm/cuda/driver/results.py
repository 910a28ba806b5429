"""The CUDA driver's result codes as exceptions: one message for each code that users meet.

`error(code, doing)` is the exception; `NAMES` has the driver's own names, which the message ends
with, so that it can be looked up.  A *sticky* code means that the context is lost: every later call
on it returns the same code, until the process ends.
"""

from __future__ import annotations

from typing import Final

from flowvm.errors import CommunicationError, DeviceError, FlowError, OutOfMemoryError
from flowvm.ranks.launch_env import launched_rank

NAMES: Final[dict[int, str]] = {
    0: "CUDA_SUCCESS",
    1: "CUDA_ERROR_INVALID_VALUE",
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    3: "CUDA_ERROR_NOT_INITIALIZED",
    4: "CUDA_ERROR_DEINITIALIZED",
    34: "CUDA_ERROR_STUB_LIBRARY",
    36: "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER",
    46: "CUDA_ERROR_DEVICE_UNAVAILABLE",
    100: "CUDA_ERROR_NO_DEVICE",
    101: "CUDA_ERROR_INVALID_DEVICE",
    200: "CUDA_ERROR_INVALID_IMAGE",
    201: "CUDA_ERROR_INVALID_CONTEXT",
    209: "CUDA_ERROR_NO_BINARY_FOR_GPU",
    214: "CUDA_ERROR_ECC_UNCORRECTABLE",
    218: "CUDA_ERROR_INVALID_PTX",
    221: "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
    222: "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
    400: "CUDA_ERROR_INVALID_HANDLE",
    500: "CUDA_ERROR_NOT_FOUND",
    600: "CUDA_ERROR_NOT_READY",
    700: "CUDA_ERROR_ILLEGAL_ADDRESS",
    701: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    702: "CUDA_ERROR_LAUNCH_TIMEOUT",
    709: "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    710: "CUDA_ERROR_ASSERT",
    714: "CUDA_ERROR_HARDWARE_STACK_ERROR",
    715: "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    716: "CUDA_ERROR_MISALIGNED_ADDRESS",
    717: "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    718: "CUDA_ERROR_INVALID_PC",
    719: "CUDA_ERROR_LAUNCH_FAILED",
    801: "CUDA_ERROR_NOT_SUPPORTED",
    802: "CUDA_ERROR_SYSTEM_NOT_READY",
    803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    804: "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
    900: "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
    901: "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
    903: "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
    904: "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
    905: "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
    907: "CUDA_ERROR_CAPTURED_EVENT",
    910: "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
    999: "CUDA_ERROR_UNKNOWN",
}

STICKY: Final = frozenset({214, 700, 702, 710, 714, 715, 716, 717, 718, 719})

_LOST = (
    "the CUDA context is lost, with all tensors on the device; CPU tensors are still usable; "
    "restart Python to use the GPU again"
)

# code -> the error and the advice; a sticky code's text is followed by _LOST
_TEXTS: Final[dict[int, str]] = {
    1: "an argument is wrong: of a kernel of your own, its grid, block or shared memory is larger "
    "than the device allows; else this is a bug of flowvm: please report it",
    2: "the device is out of memory; free tensors, use less, or see flow.cuda.memory_stats()",
    3: "the driver is not initialized in this process; CUDA does not survive a fork: start "
    "processes with multiprocessing's 'spawn' method",
    4: "Python is shutting down, and the driver with it",
    34: "libcuda.so.1 is the stub that programs are linked with; install the NVIDIA driver, and "
    "keep folders called 'stubs' out of LD_LIBRARY_PATH",
    46: "the device is in use by another process that has it to itself, or is disabled; see "
    "nvidia-smi -q -d COMPUTE",
    100: "there is a driver but no CUDA device; see nvidia-smi and CUDA_VISIBLE_DEVICES",
    101: "there is no CUDA device of that number; see flow.cuda.device_count()",
    200: "the driver cannot read the compiled kernel",
    201: "the CUDA context is not there any more",
    209: "the kernel was not compiled for this device",
    214: "the device's memory has an uncorrectable error (ECC)",
    218: "the driver's compiler refuses the kernel's PTX",
    221: "the driver has no compiler (libnvidia-ptxjitcompiler.so); install the whole driver",
    222: "the kernel's PTX is newer than the driver",
    400: "a handle of a stream, event or function is not valid any more",
    500: "the kernel is not in its module",
    700: "a kernel read or wrote memory that is not its own",
    701: "the launch needs more registers or shared memory than the device has; of a kernel of "
    "your own: use fewer threads in a block",
    702: "a kernel ran for longer than the system allows where the device drives a display",
    710: "an assert in a kernel failed",
    714: "a kernel's stack is broken",
    715: "a kernel met an instruction that the device does not have",
    716: "a kernel read or wrote an address that is no multiple of the element's size",
    717: "a kernel used an address of the wrong memory",
    718: "a kernel jumped to where no code is",
    719: "a kernel failed while it ran",
    801: "this device or system does not support it",
    802: "the system's GPU fabric is not ready yet; see nvidia-smi -q",
    803: "the driver's library and its kernel module differ; restart the machine after an update",
    804: "the driver's compatibility libraries do not support this device; remove them from "
    "LD_LIBRARY_PATH, or update the driver",
    900: "this cannot be done while the stream is captured",
    901: "the capture was broken by an earlier error",
    904: "the capture forked to a stream that was not joined again",
    999: "the driver gives no reason; after suspending a laptop, reload the module nvidia_uvm",
}


# cuBLAS's results: name, error and advice
_CUBLAS: Final = {
    1: ("NOT_INITIALIZED", "it cannot be set up: the device is full, or the library is newer than "
        "the driver; update the driver, or install the cuBLAS of its CUDA version"),
    3: ("ALLOC_FAILED", "it got no memory; free tensors, use less, or see "
        "flow.cuda.memory_summary()"),
    7: ("INVALID_VALUE", "an argument is wrong; this is a bug of flowvm: please report it"),
    8: ("ARCH_MISMATCH", "it has no product of this dtype for this device"),
    11: ("MAPPING_ERROR", "it cannot reach the device's memory; an instruction before failed"),
    13: ("EXECUTION_FAILED", "its kernel failed; an instruction before may have broken the device"),
    14: ("INTERNAL_ERROR", "it failed inside; an instruction before may have broken the device"),
    15: ("NOT_SUPPORTED", "it does not support this product on this device"),
    16: ("LICENSE_ERROR", "it found no license"),
}  # fmt: skip


def cublas_error(status: int, doing: str) -> FlowError:
    """The exception for a result of cuBLAS, whose numbers are not the driver's."""
    name, text = _CUBLAS.get(status, (str(status), "it failed"))
    kind = OutOfMemoryError if status == 3 else DeviceError
    return kind(f"cuBLAS failed at {doing}: {text} (CUBLAS_STATUS_{name})")


# NCCL's results: name, error and advice
_NCCL: Final = {
    1: ("ncclUnhandledCudaError", "a call of CUDA failed inside"),
    2: ("ncclSystemError", "the system refused something: the network, shared memory (/dev/shm), "
        "or a limit; NCCL_DEBUG=WARN says more"),
    3: ("ncclInternalError", "it failed inside; NCCL_DEBUG=WARN says more"),
    4: ("ncclInvalidArgument", "an argument is wrong; this is a bug of flowvm: please report it"),
    5: ("ncclInvalidUsage", "it was called as it may not be; each rank of a host needs a device of "
        "its own"),
    6: ("ncclRemoteError", "another rank has failed, or the network to it"),
}  # fmt: skip


def nccl_error(result: int, doing: str, text: str = "", last: str = "") -> FlowError:
    """Return the exception for a result of NCCL; `text` and `last` are NCCL's own error texts."""
    name, meaning = _NCCL.get(result, (text or str(result), "it failed"))
    more = f": {last}" if last else ""
    return CommunicationError(
        f"rank {launched_rank()}: NCCL failed at {doing}: {meaning}{more} ({name})"
    )


# packages that provide a missing library, for drivers of CUDA 12 and of later ones
_PACKAGES: Final = {
    "cublas": ("matrix products and convolutions on CUDA need cuBLAS", "nvidia-cublas-cu12",
               "nvidia-cublas", "or CuPy with its libraries"),
    "nccl": ("ranks exchange CUDA tensors by NCCL", "nvidia-nccl-cu12", "nvidia-nccl-cu13",
             "or CuPy with its libraries (python -m cupyx.tools.install_library --library nccl)"),
}  # fmt: skip


def not_found(library: str, major: int, tried: str) -> FlowError:
    """The exception where a library is missing; `major` is the driver's CUDA version."""
    what, twelve, later, more = _PACKAGES[library]
    package = twelve if major == 12 else later
    return DeviceError(f"{what}, which was not found ({tried}); pip install {package}, {more}")


def name_of(code: int) -> str:
    """The driver's name of a result."""
    return NAMES.get(code) or f"CUresult {code}"


def text_of(code: int, more: str = "") -> str:
    """Return the text of result `code`; `more` is added to it."""
    text = _TEXTS.get(code, "the CUDA driver refused")
    if more:
        text += f": {more}"
    if code in STICKY:
        text += f": {_LOST}"
    return f"{text} ({name_of(code)})"


def error(code: int, doing: str, more: str = "") -> FlowError:
    """Return the exception for result `code` of `doing`; `more` is added to its text."""
    kind = OutOfMemoryError if code == 2 else DeviceError
    return kind(f"{doing}: {text_of(code, more)}")


def too_old(needed: int, actual: int) -> FlowError:
    """Return the exception for a driver of CUDA version `actual`, older than the oldest one
    supported, `needed`.  Versions count as the driver's: 1000 * major + 10 * minor.
    """
    return DeviceError(
        f"CUDA is not available: the NVIDIA driver is too old: it supports CUDA {_dotted(actual)}, "
        f"and flowvm needs {_dotted(needed)}; update the driver, or use device='cpu'"
    )


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
