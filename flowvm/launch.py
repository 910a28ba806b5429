"""The answer of an op's infer function: a `Launch` of a kernel body on `View`s of its operands.

Every device's lowering starts from it, so it lies below the ops and below the devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flowvm.loading.listing import listing
from flowvm.meta.dtype import DType, dtype_named
from flowvm.meta.meta import TensorMeta, dense_stride
from flowvm.vm.machine.words import ARG

__all__ = ["ARENA_BYTES", "GRAIN", "PHASE_BITS", "Const", "Launch", "View", "bits", "elsewhere"]
__dir__ = listing(globals())

ARENA_BYTES, PHASE_BITS = ARG.ARENA_BYTES, ARG.PHASE_BITS

# elements of a chunk: small enough to share, large enough that a chunk outweighs its hand-over
GRAIN = 1 << 15

Const = int | float | bool | tuple[int | float | bool, ...]


@dataclass(frozen=True)
class View:
    """An operand as the kernel body sees it; `stride` is in elements, None is C order.

    `given` is of an operand that a call may lack: whether this one has it; None where every call
    does.  One that is not given is an empty array, so one kernel serves calls with it and without.

    >>> flow.ops.View(flow.float32, (2, 3))
    View(dtype=flow.float32, shape=(2, 3), stride=None, given=None)
    """

    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None
    given: bool | None = None

    @staticmethod
    def of(meta: TensorMeta) -> View:
        """Return the view of an operand as it is."""
        return View(meta.dtype, tuple(meta.shape), meta.stride)

    @staticmethod
    def optional(view: View | None, dtype: DType, ndim: int = 1) -> View:
        """Return the view of an operand that a call may lack; if this one does, `view` is None.

        Such operands come last, and their op has no dynamic scalars.
        """
        return View(dtype, (0,) * ndim, None, False) if view is None else replace(view, given=True)

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides in elements."""
        return dense_stride(self.shape) if self.stride is None else self.stride

    @property
    def dense(self) -> bool:
        """True if the view is C-contiguous."""
        return self.stride is None or self.stride == dense_stride(self.shape)


def bits(meta: TensorMeta, shape: Sequence[int] | None = None) -> View:
    """Return a view of the elements as integers of their size, for kernels that only move them.
    Elements of 16 bytes are complex128, for want of such integers.
    """
    names = {1: "uint8", 2: "int16", 4: "int32", 8: "int64", 16: "complex128"}
    name = names[meta.dtype.itemsize]
    if shape is not None:
        return View(dtype_named(name), tuple(shape))
    return View(dtype_named(name), tuple(meta.shape), meta.stride)


@dataclass(frozen=True)
class Launch:
    """The answer of an infer function.

    `body(arrays..., consts..., scalars..., [scratch], [arena], lo, hi, [details])` works on the
    range [lo, hi) of `units`; arrays are the outputs, then the inputs, as `views` says (default: as
    they are).  It returns None or a Status.

    A const is a number or several: a NamedTuple of numbers is one argument whose fields are theirs
    (sizes that a family of kernels shares), any other tuple is an int64 array.  None is copied: a
    compiled body reads them where they lie, so what a loop asks again and again it takes into a
    local first.  `scratch`, `arena` and `details` are passed to bodies that have a parameter of
    that name.

    A mut2 op's body is called with lo = hi = -1 first and leaves the rows of output k in
    details[k]; then with the range, and leaves the rows again.  `reassociate` lets LLVM reorder the
    sums that are written in `body` itself, which vectorizes them.

    `phases` are the (units, grain) of further passes: a phase begins when all of the one before is
    done, and its units are numbered from `p << ARG.PHASE_BITS` (the first `phases[0]` is phase 1).
    `scratch` bytes are shared by all ranges of an instruction and live from the first phase to the
    last: partial sums or packed panels go there.  `arena` bytes (at most ARG.ARENA_BYTES) belong to
    the thread that runs a range, and hold nothing when it begins.

    `blocks` says that unit u of the first phase reads or writes, of operand k, the elements from
    u * blocks[k] to (u + 1) * blocks[k] in C order and no others, and that no other phase touches
    them; 0 for an operand that is not cut so.  A graph can then make and use up such operands block
    by block (`ops/declare/cpu/blocks.py`).

    `stand_in` is a body that computes the same bits with little code, for calls so small that a
    helper may compile `body` meanwhile (`ops/declare/cpu/stand_in.py`).  There must be another
    phase, and another word at the end of scratch.

    `for i in range(lo, hi): out[i] = ...` vectorizes, as do slices x[lo:hi]: lo is known not to be
    negative.  Where LLVM cannot know that of a range's begin (a const), loop from zero.
    """

    outputs: tuple[TensorMeta, ...]
    body: Callable[..., object]
    views: tuple[View, ...] = ()
    consts: tuple[Any, ...] = ()  # each a `Const`
    units: int = 1
    grain: int = 1
    scratch: int = 0
    reassociate: bool = False
    phases: tuple[tuple[int, int], ...] = ()
    arena: int = 0
    blocks: tuple[int, ...] = ()
    stream: int = 0  # that it goes to, if not the caller's: see `flowvm.ranks.world.Lane`
    stand_in: Callable[..., object] | None = None
    plan: Any = None  # for a rule of another device: more facts than metas and attrs


def elsewhere(outputs: tuple[TensorMeta, ...], plan: object) -> Launch:
    """Return a Launch without a CPU kernel, for a call on another device."""
    return Launch(outputs, _no_body, plan=plan)


def _no_body() -> None:
    raise NotImplementedError("this call runs on another device")
