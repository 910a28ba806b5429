"""The lowering of an op and its metas to the VM's Invocation on a CUDA device.

`launch_of` finds the op's CudaLaunch: by its rule (`cuda=` in its declaration), or from what its
`infer` answers, for scalars, assemblies and bodies.  `lower` compiles and loads the kernels and
writes the steps as layout words, which `flowvm.vm.workers.steps` takes at every call:

    word 0, the number of steps; the steps, each its first words, its template, its patches; then
    numbers that are passed by address

An array is passed as Numba lays it out: meminfo and parent (0), elements, bytes of one, address,
shape, strides in bytes.
"""

from __future__ import annotations

import functools
import importlib
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flowvm.compiler import jit
from flowvm.cuda.compiler.compilation import signature_of
from flowvm.cuda.driver import driver as drivers
from flowvm.cuda.driver.functions import INDEX
from flowvm.cuda.driver.runtime import Runtime
from flowvm.cuda.driver.streams import need_cublas, streams
from flowvm.cuda.launch import (
    Address,
    Const,
    CudaLaunch,
    Details,
    Held,
    KernelStep,
    LibraryStep,
    Operand,
    Scalar,
    Scratch,
    StreamWord,
    Words,
    itemsize_of,
)
from flowvm.eager.declaration import Invocation
from flowvm.eager.interpreter import Operator, device_of
from flowvm.errors import CompileError, DeviceError
from flowvm.launch import Launch
from flowvm.meta.device import Device
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.assembly import Assembly
from flowvm.ops.declare.cuda.bodies import adapted, is_body
from flowvm.ops.declare.cuda.copies import assembly
from flowvm.ops.declare.cuda.elementwise import scalars
from flowvm.ops.declare.cuda.in_place import in_place
from flowvm.ops.declare.cuda.live_numbers import placed, reports
from flowvm.ops.declare.scalar_launch import ScalarLaunch
from flowvm.vm.machine.device_words import CALL, DEV, LINES, SOURCE, STEP
from flowvm.vm.workers.steps import take_steps

STREAM_WORDS = {"stream": DEV.STREAM, "cublas": DEV.CUBLAS}
Layout = np.ndarray[Any, np.dtype[np.int64]]
Numbers = tuple[int, tuple[int, ...]]  # which patch or word is the address of which numbers
Patch = tuple[int, int, int]  # of a template: which word, its source, what is added


def lower(op: Operator, metas: tuple[TensorMeta, ...], attrs: Attrs) -> Invocation:
    """Lower a call of `op` to an Invocation on the device of its tensors."""
    launch, pack = _launched(op, metas, attrs)
    steps = (*launch.begins, *launch.steps)
    return _invocation(op, device_of(metas, attrs), replace(launch, steps=steps), pack)


def lower_task(
    op: Operator, metas: tuple[TensorMeta, ...], attrs: Attrs, live: Sequence[bool]
) -> tuple[Invocation, bool, tuple[LibraryStep, ...]]:
    """Lower a call to a task of a graph; `live` marks the scalars that are live.

    Return the Invocation, True if the task reports to a line, and the steps that begin it.
    `flowvm.ops.declare.cuda.live_numbers` explains the arguments; the graph chooses the stream.
    """
    launch, pack = _launched(op, metas, attrs)
    task = replace(placed(launch, len(op.signature.operands), live), stream=0)
    return _invocation(op, device_of(metas, attrs), task, pack), reports(launch), launch.begins


def layout_of(
    steps: Sequence[KernelStep | LibraryStep], operands: int, device: Device, name: str
) -> Layout:
    """The layout words of steps that are no op's."""
    return _Words(streams(device.index or 0).runtime, operands, name).of(steps)


def _invocation(op: Operator, device: Device, launch: CudaLaunch, pack: str) -> Invocation:
    operands = len(op.signature.operands)
    of = streams(device.index or 0)
    if any(isinstance(s, LibraryStep) and s.name.startswith("cublas") for s in launch.steps):
        need_cublas(of.compute)  # which also fills in the addresses
    words = _Words(of.runtime, operands, op.name).of(launch.steps)
    return Invocation(
        launch.outputs, _kernel(), words, 1, 1, launch.scratch, pack[::-1],
        stream=launch.stream or of.compute,
    )  # fmt: skip


def launch_of(op: Operator, metas: tuple[TensorMeta, ...], attrs: Attrs) -> CudaLaunch:
    """The steps that `op` takes on CUDA; DeviceError where it has no kernel there."""
    return _launched(op, metas, attrs)[0]


def _launched(op: Operator, metas: tuple[TensorMeta, ...], attrs: Attrs) -> tuple[CudaLaunch, str]:
    """The launch, and the struct codes of the call's numbers where they depend on the call."""
    if op.kernel.infer is None:
        raise _missing(op.name, "it is made for the CPU")
    inferred = op.kernel.infer(metas, attrs)
    if op.kernel.cuda:
        rule = op.kernel.cuda if callable(op.kernel.cuda) else _rule(op.kernel.cuda)
        return rule(inferred, metas, attrs), ""
    match inferred:
        case ScalarLaunch() if inferred.into:
            return in_place(inferred), inferred.pack
        case ScalarLaunch():
            return scalars(inferred), inferred.pack
        case Assembly():
            return assembly(inferred), ""
        case Launch():
            return adapted(op, inferred, metas), ""
    raise _missing(op.name, f"it answers a {type(inferred).__name__}")


def _missing(name: str, why: str) -> DeviceError:
    return DeviceError(f"{name} has no CUDA kernel yet ({why}); compute it on the CPU: x.cpu()")


@functools.cache
def _rule(path: str) -> Callable[[Any, Any, Any], CudaLaunch]:
    module, _, name = path.partition(":")
    rule: Callable[[object, object, object], CudaLaunch] = getattr(
        importlib.import_module(module), name
    )
    return rule


@functools.cache
def _kernel() -> int:
    return jit.native(take_steps, "int32(int64, int64, int64, int64, int64)")


class _Words:
    """The layout words of an op's steps, for a number of operands."""

    def __init__(self, device: Runtime, operands: int, name: str) -> None:
        self.device = device
        self.operands = operands
        self.name = name
        self.template: list[int] = []
        self.patches: list[Patch] = []

    def of(self, steps: Sequence[KernelStep | LibraryStep]) -> Layout:
        parts = [self._step(step) for step in steps]
        constants: list[int] = []  # numbers passed by address, behind the steps
        start = 1 + sum(len(words) for words, _ in parts)
        for words, numbers in parts:
            for at, values in numbers:
                words[at] = SOURCE.HERE | start + len(constants) << SOURCE.SHIFT
                constants += values
        flat = [word for words, _ in parts for word in words]
        return np.array([len(parts), *flat, *constants], np.int64)

    def _step(self, step: KernelStep | LibraryStep) -> tuple[list[int], list[Numbers]]:
        """Return a step's words, and the numbers whose addresses are to be written into them."""
        self.template, self.patches = [], []
        numbers: list[Numbers] = []
        if isinstance(step, KernelStep):
            for param in step.params:
                self._parameter(param)
            head = self._kernel_head(step)
            most, what = CALL.PARAM_WORDS, getattr(step.kernel, "__name__", "a kernel")
        else:
            for argument in step.params:
                self._argument(argument, numbers)
            head = self._library_head(step)
            most, what = CALL.WORDS, step.name
        if len(self.template) > most:
            raise DeviceError(f"{self.name}: {what} takes {most} words, not {len(self.template)}")
        first = STEP.TEMPLATE + len(self.template)
        words = [*head, *self.template, *(word for patch in self.patches for word in patch)]
        words[STEP.LENGTH] = len(words)
        return words, [(first + 3 * patch + 1, values) for patch, values in numbers]

    def _head(self, step: KernelStep | LibraryStep, kind: int, function: int) -> list[int]:
        head = [0] * STEP.TEMPLATE
        head[STEP.KIND], head[STEP.COUNTS] = kind, int(step.counts)
        head[STEP.FUNCTION] = function
        head[STEP.TEMPLATE_WORDS], head[STEP.PATCHES] = len(self.template), len(self.patches)
        return head

    def _kernel_head(self, step: KernelStep) -> list[int]:
        try:
            handle = self.device.function(step.kernel, signature_of(step), step.shared)
        except CompileError as error:
            if not is_body(step.kernel):
                raise
            raise _missing(self.name, "its CPU body cannot be compiled for CUDA") from error
        head = self._head(step, STEP.KERNEL, handle)
        head[STEP.GRID : STEP.GRID + 3] = step.grid
        head[STEP.BLOCK : STEP.BLOCK + 3] = step.block
        head[STEP.SHARED] = step.shared
        return head

    def _library_head(self, step: LibraryStep) -> list[int]:
        address = step.address or int(drivers.table()[INDEX[step.name]])
        return self._head(step, STEP.FUNCTION_CALL, address)

    # --- parameters ---------------------------------------------------------------------------

    def _parameter(self, param: object) -> None:
        match param:
            case Operand(k, view, offset):
                self._array(view.dtype.itemsize, view.shape, view.strides, _argument(k), offset)
            case Scratch(offset, dtype, shape):
                self._array(itemsize_of(dtype), shape, None, SOURCE.SCRATCH, offset)
            case Details():
                self._array(8, (LINES.WORDS,), None, SOURCE.LINE, 0)
            case _:
                self._word(param)

    def _array(
        self,
        itemsize: int,
        shape: Sequence[int],
        strides: Sequence[int] | None,
        source: int,
        offset: int,
    ) -> None:
        if strides is None:
            strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
        self.template += [0, 0, math.prod(shape), itemsize]
        self._patched(source, offset)
        self.template += [*shape, *(s * itemsize for s in strides)]

    def _word(self, param: object) -> None:
        match param:
            case Const(tuple() as values):
                self.template += map(_bits, values)
            case Const(int() | float() as value):
                self.template.append(_bits(value))
            case Scalar(i, _):
                self._patched(_argument(self.operands + i), 0)
            case Address(k, offset):
                self._patched(_argument(k), offset)
            case _:
                raise TypeError(f"{self.name}: {param!r} is not a parameter of a kernel")

    def _argument(self, param: Any, numbers: list[Numbers]) -> None:
        """An argument of a library function."""
        match param:
            case Operand(k, _, offset):
                self._patched(_argument(k), offset)
            case Scratch(offset, _, _):
                self._patched(SOURCE.SCRATCH, offset)
            case StreamWord(name):
                self._patched(SOURCE.BLOCK | STREAM_WORDS[name] << SOURCE.SHIFT, 0)
            case ("&f64" | "&f32" as kind, value):
                bits = _bits(value) if kind == "&f64" else _bits_of_single(value)
                numbers.append((len(self.patches), (bits,)))
                self._patched(SOURCE.HERE, 0)
            case Words(values):
                numbers.append((len(self.patches), values))
                self._patched(SOURCE.HERE, 0)
            case Held(address):
                self._patched(SOURCE.HELD, address)
            case _:
                self._word(param)

    def _patched(self, source: int, added: int) -> None:
        self.patches.append((len(self.template), source, added))
        self.template.append(0)


def _argument(k: int) -> int:
    return SOURCE.ARG | k << SOURCE.SHIFT


def _bits(value: int | float) -> int:
    if isinstance(value, float):
        return int(struct.unpack("<q", struct.pack("<d", value))[0])
    return int(value)


def _bits_of_single(value: float) -> int:
    return int(struct.unpack("<i", struct.pack("<f", value))[0])
