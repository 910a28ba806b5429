"""The steps of a lowered CUDA op.  The stream's worker issues them in order, on its stream.

A CPU op is one body over ranges of units; a CUDA op is a sequence of *steps*: launches of kernels
and calls of library functions (cuBLAS).  The stream runs them in order, so a step sees what the
steps before it wrote, and nothing waits on the host.

A *kernel* is a plain Python function that uses `numba.cuda` (`cuda.grid(1)`, shared memory,
shuffles), compiled when it is first needed, or run as it is in Numba's simulator.  Its parameters:

    Operand(k, view)            an array over operand k of the instruction (outputs first)
    Scratch(offset, dtype, shape)   an array in the instruction's scratch memory, `offset` bytes in
    Address(k)                  operand k's address, int64
    Const(value)                int64, float64 or a NamedTuple of them, the same at every call with
                                these metas
    Scalar(i, kind)             dynamic scalar i of the call: "i" int64, "f" float64
    Details()                   the instruction's line, int64[8]: error details 0-5, the status

A kernel that finds bad data writes the details and then a `Status` to place 6; the instruction
fails when it is complete, and what it wrote is poisoned.  It must go on without touching memory
that is not its own.

A mut2 op's steps are taken twice: first those with `counts` set, which leave the rows of output k
in details[k]; the worker waits for them, takes memory, and takes the others.  As an operand, a mut2
output has UNSIZED rows: `unsized(k, view)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from flowvm.launch import View
from flowvm.meta.meta import TensorMeta

STATUS_AT = 6  # place of the status in Details
LINE = 8  # words of Details; the last is for graphs (`flowvm.ops.declare.cuda.live_numbers`)
UNSIZED = 1 << 40  # rows of an operand about which only the device knows: its memory bounds it


def itemsize_of(dtype: str) -> int:
    """Bytes of an element of this dtype's name: flowvm's, or another one of NumPy's."""
    return 2 if dtype == "bfloat16" else int(np.dtype(dtype).itemsize)


@dataclass(frozen=True)
class Operand:
    """Operand `k` of the instruction as an array of `view`'s dtype, shape and strides.

    `offset` is in bytes.  In a LibraryStep: its address.
    """

    k: int
    view: View
    offset: int = 0


@dataclass(frozen=True)
class Scratch:
    """A C-contiguous array in scratch memory; in a LibraryStep: its address."""

    offset: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Const:
    """A number that is part of the entry.  Booleans are int64, too.

    A NamedTuple of numbers is one parameter, too.
    """

    value: int | float | tuple[int | float, ...]


@dataclass(frozen=True)
class Scalar:
    """Dynamic scalar `i` of the call; `kind` "i" or "f"."""

    i: int
    kind: str


@dataclass(frozen=True)
class Details:
    """The instruction's error details and status: see the module."""


@dataclass(frozen=True)
class Words:
    """Argument of a LibraryStep: the address of these int64, which lie with the instruction's
    steps.
    """

    values: tuple[int, ...]


@dataclass(frozen=True)
class Held:
    """Argument of a LibraryStep: the word at `address` when the step is issued."""

    address: int


@dataclass(frozen=True)
class StreamWord:
    """Argument of a LibraryStep: a word of the stream's block, a handle: "stream", "cublas"."""

    name: str


@dataclass(frozen=True)
class Address:
    """The address of operand `k`, `offset` bytes further, as an int64."""

    k: int
    offset: int = 0


Param = Address | Operand | Scratch | Const | Scalar | Details | StreamWord | Words | Held


@dataclass(frozen=True)
class KernelStep:
    """A launch of `kernel` on `grid` blocks of `block` threads with `shared` bytes of dynamic
    shared memory.

    `part`, where there is one, does the same to some elements of one-dimensional operands of one
    length, each by itself: part(start, stride, params...) to every `stride`-th from `start` on.
    """

    kernel: Callable[..., object]
    params: tuple[Param, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0
    counts: bool = False
    part: Callable[..., object] | None = None


@dataclass(frozen=True)
class LibraryStep:
    """A call of the C function `name` ("cublasGemmStridedBatchedEx", "cuMemsetD8Async"), whose
    arguments are integers and addresses; a float64 or float32 that is passed by address is
    ("&f64", value) or ("&f32", value), which stays where it is.

    Any result but 0 fails the instruction.  `address` is the address of a function outside of
    NVIDIA's libraries; `others` of `flowvm.cuda.driver.driver` has its exceptions.
    """

    name: str
    params: tuple[Param | tuple[str, float], ...]
    counts: bool = False
    address: int = 0


Step = KernelStep | LibraryStep


@dataclass(frozen=True)
class CudaLaunch:
    """The answer of an op's CUDA rule: `rule(launch, metas, attrs) -> CudaLaunch`.  `metas` and
    `attrs` are the call's.

    `launch` is the infer function's answer for the CPU; its `outputs` hold for CUDA, too.
    `scratch` is a number of bytes of device memory that live from the first step to the last.
    `stream` is the VM stream of the instruction, 0 for the device's compute stream.  `begins` are
    issued before the steps, and in a graph before each launch, even if the driver has captured all
    other steps.  They put nothing into the stream.
    """

    outputs: tuple[TensorMeta, ...]
    steps: tuple[Step, ...]
    scratch: int = 0
    stream: int = 0
    begins: tuple[LibraryStep, ...] = ()


def unsized(k: int, view: View) -> Operand:
    """Return mut2 output `k`: any number of rows, each like a row of the dense `view`."""
    return Operand(k, View(view.dtype, (UNSIZED, *view.shape[1:])))


def blocks_for(units: int, each: int, most: int = 1 << 30) -> tuple[int, int, int]:
    """A grid of enough blocks for `units` when a block does `each`, at least 1, at most `most`."""
    return (max(1, min(most, -(-units // each))), 1, 1)


def elements(shape: Sequence[int]) -> int:
    """The product of the dimensions."""
    count = 1
    for d in shape:
        count *= d
    return count
