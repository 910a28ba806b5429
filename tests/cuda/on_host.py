"""The code that CUDA kernels are lowered to, run on the host, one thread after another.

    outputs = play("add", [x, y])            # in a process without the simulator: compiled.py

Numba's LLVM modules of a kernel are linked, with functions in the place of the special registers
(thread and block), and compiled for the host.  So what is only in compiled kernels is tried without
a GPU: how indices become addresses, ranges are counted, vectors moved, numbers converted.  Kernels
whose threads wait for each other cannot be run so.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
from typing import NamedTuple

import numpy as np

from flowvm.cuda.compiler.compilation import signature_of
from flowvm.cuda.launch import LINE, Const, Details, Operand, Scalar, Scratch
from flowvm.eager.interpreter import operators
from flowvm.meta.device import Device
from flowvm.meta.dtype import dtype_named
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.cuda.lowering import launch_of

__all__ = ["Sent", "play", "sent"]

LINE_BYTES = 64  # of alignment that is kept

REGISTERS = [f"{name}.{axis}" for name in ("tid", "ctaid", "ntid", "nctaid") for axis in "xyz"]


class Sent(NamedTuple):
    """An array on its way to another process, with its strides and how it was aligned."""

    memory: bytes
    begin: int  # its place in a line
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def array(self):
        size = len(self.memory) + 2 * LINE_BYTES
        raw = np.empty(size, np.uint8)
        at = (self.begin - raw.ctypes.data) % LINE_BYTES
        raw[at : at + len(self.memory)] = np.frombuffer(self.memory, np.uint8)
        return np.ndarray(self.shape, self.dtype, raw, at + self.offset, self.strides)


def sent(array):
    """An array as it is."""
    low, high = np.lib.array_utils.byte_bounds(array)
    memory = ctypes.string_at(low, high - low)
    begin, offset = low % LINE_BYTES, array.ctypes.data - low
    return Sent(memory, begin, array.dtype.str, array.shape, array.strides, offset)


def play(name, arrays, attrs=(), numbers=(), into=None):
    """The outputs of an operator, and its details.

    `into` is where the first output goes, of an operator that is told: the place of an operand.
    """
    arrays = [a.array() if isinstance(a, Sent) else a for a in arrays]
    into = None if into is None else arrays.pop(into)
    metas = tuple(_meta(a) for a in arrays)
    inputs = (_meta(into), *metas) if into is not None else metas
    sizes = len(arrays), len(attrs)
    candidates = [
        o
        for o in operators
        if o.name == name
        and o.kernel.infer
        and (len(o.signature.inputs), len(o.signature.attrs)) == sizes
    ]
    launch = launch_of(candidates[0], inputs, tuple(attrs))
    outputs = [_empty(m) for m in launch.outputs]
    if into is not None:
        outputs[0] = into
    operands, scratch = [*outputs, *arrays], np.full(launch.scratch + 8, 0xA5, np.uint8)
    details = np.zeros(LINE, np.int64)
    for step in launch.steps:
        _run(step, operands, scratch, details, numbers)
    return outputs, details


def _empty(meta):
    """Return an array of a meta's shape, dtype and strides."""
    shape, size = tuple(meta.shape), meta.dtype.numpy.itemsize
    span = 1 + sum((n - 1) * s for n, s in zip(shape, meta.stride, strict=True))
    memory = np.empty(max(0, span) if 0 not in shape else 0, meta.dtype.numpy)
    return np.lib.stride_tricks.as_strided(memory, shape, [s * size for s in meta.stride])


def _meta(array):
    strides = tuple(s // array.itemsize for s in array.strides)
    return TensorMeta.of(array.shape, dtype_named(array.dtype.name), Device("cuda:0"), strides)


def _run(step, operands, scratch, details, numbers):
    function, registers = _compiled(step.kernel, signature_of(step))
    words = [w for p in step.params for w in _words(p, operands, scratch, details, numbers)]
    function.argtypes = [type(w) for w in words]
    for block in itertools.product(*map(range, step.grid)):
        for thread in itertools.product(*map(range, step.block)):
            registers[:] = [*thread, *block, *step.block, *step.grid]
            function(*words)


def _words(param, operands, scratch, details, numbers):
    match param:
        case Operand(k, view, offset):
            return _array(operands[k].ctypes.data + offset, view.dtype.itemsize, view.shape,
                          view.strides)  # fmt: skip
        case Scratch(offset, dtype, shape):
            strides = [int(np.prod(shape[d + 1 :])) for d in range(len(shape))]
            size = np.dtype(dtype).itemsize
            return _array(scratch.ctypes.data + offset, size, shape, strides)
        case Details():
            return _array(details.ctypes.data, 8, details.shape, (1,))
        case Const(value):
            return [_number(v) for v in (value if isinstance(value, tuple) else (value,))]
        case Scalar(i, _):
            return [_number(numbers[i])]
    raise TypeError(f"{param!r} in a kernel step")


def _number(value):
    return ctypes.c_double(value) if isinstance(value, float) else ctypes.c_int64(value)


def _array(address, itemsize, shape, strides):
    count = int(np.prod(shape))
    bytes_ = [s * itemsize for s in strides]
    return [ctypes.c_int64(w) for w in (0, 0, count, itemsize, address, *shape, *bytes_)]


@functools.cache
def _compiled(kernel, signature):
    """The kernel as a function of the host, and its special registers."""
    from llvmlite import binding as llvm

    from flowvm.cuda.compiler.frontend import frontend

    library, name = frontend().library(kernel, signature)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    whole = llvm.parse_assembly(_registers())
    for text in library.llvm_strs:
        whole.link_in(llvm.parse_assembly(_for_host(text)))
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten()
    )
    engine = llvm.create_mcjit_compiler(whole, machine)
    engine.finalize_object()
    at = engine.get_global_value_address("registers")
    function = ctypes.CFUNCTYPE(None)(engine.get_function_address(name))
    function.engine = engine  # the code's owner
    return function, (ctypes.c_int32 * len(REGISTERS)).from_address(at)


def _for_host(text):
    text = re.sub(r"^target .*$", "", text, flags=re.MULTILINE)
    text = text.replace("llvm.nvvm.read.ptx.sreg.", "sreg.").replace("llvm.nvvm.membar.", "membar.")
    text = text.replace("__nv_", "")  # libdevice has the C library's names
    missing = sorted(set(re.findall(r"llvm\.nvvm[\w.]*", text)))
    if missing:
        raise NotImplementedError(f"the host has no {', '.join(missing)}")
    return text


def _registers():
    count = len(REGISTERS)
    lines = [f"@registers = global [{count} x i32] zeroinitializer"]
    lines += [f'define void @"membar.{kind}"() {{ ret void }}' for kind in ("cta", "gl", "sys")]
    for k, name in enumerate(REGISTERS):
        lines += [
            f'define i32 @"sreg.{name}"() {{',
            f"  %p = getelementptr [{count} x i32], ptr @registers, i32 0, i32 {k}",
            "  %v = load i32, ptr %p",
            "  ret i32 %v",
            "}",
        ]
    return "\n".join(lines)
