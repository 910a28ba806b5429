"""The C functions that are called by address: the CUDA driver's, cuBLAS's and NCCL's.

`NAMES` fixes their order in a driver's table.  Those of a library are there once `require` of
`flowvm.cuda.driver.driver` has found it.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

ID_BYTES: Final = 128


class UniqueId(ctypes.Structure):
    """ncclUniqueId, by which ranks find each other; it is passed by value."""

    _fields_ = [("bytes", ctypes.c_char * ID_BYTES)]


# name -> kinds of its parameters: p address or handle, z size, i int, u unsigned, b byte, Q 64
# bits, I a UniqueId.  All return an int, except for the functions of TEXTS
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
NCCL: Final[dict[str, str]] = {
    "ncclGetVersion": "p",
    "ncclGetUniqueId": "p",
    "ncclCommInitRank": "piIi",
    "ncclCommDestroy": "p",
    "ncclCommAbort": "p",
    "ncclCommGetAsyncError": "pp",
    "ncclGetErrorString": "i",
    "ncclGetLastError": "p",
    "ncclGroupStart": "",
    "ncclGroupEnd": "",
    # sent buffer, target, elements, dtype, reduction or root or both, communicator, stream
    "ncclAllReduce": "ppziipp",
    "ncclReduce": "ppziiipp",
    "ncclBroadcast": "ppziipp",
    "ncclReduceScatter": "ppziipp",
    "ncclAllGather": "ppzipp",
    "ncclSend": "pziipp",
    "ncclRecv": "pziipp",
}
TEXTS: Final = ("ncclGetErrorString", "ncclGetLastError")  # these give an address of a text
LIBRARIES: Final = {"cublas": CUBLAS, "nccl": NCCL}
FUNCTIONS: Final = {**DRIVER, **CUBLAS, **NCCL}
NAMES: Final = tuple(FUNCTIONS)
INDEX: Final = {name: i for i, name in enumerate(NAMES)}
_KINDS: Final[dict[str, Any]] = {
    "p": ctypes.c_void_p,
    "z": ctypes.c_size_t,
    "i": ctypes.c_int,
    "u": ctypes.c_uint,
    "b": ctypes.c_ubyte,
    "Q": ctypes.c_uint64,
    "I": UniqueId,
}


def function_type(name: str) -> Any:
    """The ctypes type of function `name`, which calls through an address or makes a callback."""
    result = ctypes.c_void_p if name in TEXTS else ctypes.c_int
    return ctypes.CFUNCTYPE(result, *(_KINDS[k] for k in FUNCTIONS[name]))
