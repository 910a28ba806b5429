"""CUDA kernels of scalar expressions: elementwise ops, casts, copies, fills, fused programs.

Dimensions are merged first (`ops/declare/cpu/tile_plan.py`).  Where that leaves one, in which every
operand is dense or repeats one number, the kernel is *flat*: a thread takes as many elements as are
16 bytes of the widest operand, and moves them at once where the operands' addresses allow that.  It
asks for several such vectors, a block apart, before it uses the first.

Otherwise it goes by *rows*, along the dimension in which the output is densest: the threads of a
block are columns, so what an index costs in divisions is paid once a row.  Rows in which all
operands are dense go by vectors, too; where one is dense along another dimension, a block has
several short rows, so that what it reads of that operand lies together.

A kernel is generated, as Python, for an expression, dtypes and a pattern of strides; sizes and
strides are its arguments.  It has a `recipe`: the function and arguments that make it again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flowvm.cuda.compiler.compilation import attempt, simulated, threads
from flowvm.cuda.launch import (
    STATUS_AT,
    Const,
    CudaLaunch,
    Details,
    KernelStep,
    Operand,
    Param,
    Scalar,
    blocks_for,
)
from flowvm.cuda.simulator.grid import reached
from flowvm.errors import ArgumentError
from flowvm.launch import View, bits
from flowvm.meta.dtype import dtype_named
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.cpu.expressions import expression_function
from flowvm.ops.declare.cpu.tile_plan import Dim, merged
from flowvm.ops.declare.cuda.steps import written
from flowvm.ops.declare.cuda.transposes import transpose_step, turned
from flowvm.ops.declare.cuda.vectors import aligned, load_many, store_many
from flowvm.ops.declare.scalar_launch import ScalarLaunch
from flowvm.ops.scalar.half import STORED
from flowvm.private.cpython import CPYTHON, raises

if TYPE_CHECKING:
    from collections.abc import Mapping


BLOCK = 256
MOST_DIMS = 8
MOST_COLUMN_BLOCKS = 1 << 15  # of a grid's second dimension
VECTOR = 16  # bytes
MOST_AT_ONCE = 16  # elements
EVALUATED = 8  # copies of an expression in a kernel, or one for each element of a vector
ROWS_EACH = 4  # that a thread goes through: what comes before a row is paid for once
WARP = 32
AHEAD = 4  # vectors that a thread moves at once where there is nothing to evaluate

Kernel = Callable[..., object]


class Scalars(NamedTuple):
    """The scalar program of a generated kernel, without strides; all is in the order of `args`."""

    expr: str
    args: tuple[str, ...]
    stored: tuple[str, ...]
    compute: tuple[str, ...]
    numbers: tuple[str, ...]
    outputs: tuple[str, ...]  # dtypes
    raises: int

    @property
    def tensors(self) -> list[str]:
        return [a for a in self.args if a not in self.numbers]

    @property
    def copies(self) -> bool:
        """True if the kernel copies one operand's elements to another unchanged."""
        plain = self.expr == "x" and not self.numbers
        return plain and self.stored == self.outputs == self.compute

    @property
    def reports(self) -> bool:
        """True if the evaluation of the expression may raise."""
        return _may_raise(self.expr, self.args, self.compute)


# --- launches -----------------------------------------------------------------------------------


def scalars(launch: ScalarLaunch) -> CudaLaunch:
    """The CUDA launch of an op of scalars."""
    if launch.outputs[0].numel == 0:
        return CudaLaunch(launch.outputs, ())
    return CudaLaunch(launch.outputs, (scalar_step(launch),))


def scalar_step(launch: ScalarLaunch) -> KernelStep:
    """The one step of a launch with elements."""
    metas = (*launch.outputs, *launch.inputs)
    names = [_moved_as(m) if launch.copy else m.dtype.name for m in metas]
    inputs = iter(names[len(launch.outputs) :])
    stored = [k if a in launch.numbers else next(inputs) for a, k in
              zip(launch.args, launch.stored, strict=True)]  # fmt: skip
    compute = tuple(names[:1]) if launch.copy else launch.compute
    program = Scalars(
        launch.expr, launch.args, tuple(stored), compute, launch.numbers,
        tuple(names[: len(launch.outputs)]), launch.raises,
    )  # fmt: skip
    operands = [(k, s, 0) for k, s in enumerate(launch.strides)]
    return _step(program, names, launch.outputs[0].shape, operands, numbers_of(launch))


def _moved_as(meta: TensorMeta) -> str:
    return bits(meta).dtype.name


Placed = tuple[int, tuple[int, ...], int]  # an operand, its strides in elements, offset in bytes


def strided_step(
    dtype: str, shape: Sequence[int], operands: Sequence[Placed], number: Const | None = None
) -> KernelStep:
    """A step that copies the second operand's elements to the first, or writes `number` there.

    All are read as of `dtype` and `shape`.
    """
    inputs = ("x",) if number is None else ("n",)
    program = Scalars(
        inputs[0], inputs, (dtype if number is None else "int64",), (dtype,),
        () if number is None else inputs, (dtype,), 0,
    )  # fmt: skip
    names = [dtype] * len(operands)
    return _step(program, names, shape, operands, [] if number is None else [number])


def _step(
    program: Scalars,
    names: list[str],
    shape: Sequence[int],
    operands: Sequence[Placed],
    numbers: Sequence[Param],
) -> KernelStep:
    dims = merged(shape, [strides for _, strides, _ in operands])
    if len(dims) == 1 and all(step in (0, 1) for step in dims[0][1]):
        return _flat_step(program, names, *dims[0], operands, numbers)
    turn = turned(dims) if program.copies else None
    if turn is not None:
        (to, _, at), (source, _, start) = operands
        return transpose_step(names[0], turn, (to, at), (source, start))
    return _row_step(program, names, dims, operands, numbers)


def _flat_step(
    program: Scalars,
    names: list[str],
    count: int,
    steps: tuple[int, ...],
    operands: Sequence[Placed],
    numbers: Sequence[Param],
) -> KernelStep:
    single = tuple(step == 0 for step in steps)
    widest = max(dtype_named(n).itemsize for n, one in zip(names, single, strict=True) if not one)
    many = min(MOST_AT_ONCE, VECTOR // widest)
    vectors = _vectors(program, many)
    kernel = flat_kernel(program, single, many, vectors)
    params: list[Param] = [
        Operand(k, View(dtype_named(name), (1 if one else count,)), offset)
        for name, one, (k, _, offset) in zip(names, single, operands, strict=True)
    ]
    params += [*numbers, Const(count), *_details(program)]
    block = threads(BLOCK)
    grid = blocks_for(count, block * many * vectors, _most_blocks(1 << 30))
    return KernelStep(kernel, tuple(params), grid, (block, 1, 1))


def _vectors(program: Scalars, many: int) -> int:
    """Return the number of vectors that a thread moves at once.

    A thread without a last vector evaluates another's again, while that may be written already; so
    it must not be able to fail.
    """
    if program.reports:
        return 1
    return AHEAD if program.copies or not program.tensors else max(1, EVALUATED // many)


def _row_step(
    program: Scalars,
    names: list[str],
    dims: list[Dim],
    operands: Sequence[Placed],
    numbers: Sequence[Param],
) -> KernelStep:
    if len(dims) > MOST_DIMS:
        raise ArgumentError(
            f"strides that leave {len(dims)} dimensions are not for CUDA kernels, which take "
            f"{MOST_DIMS}; make the operands contiguous() first"
        )
    *outer, (columns, steps) = dims
    rows = math.prod(n for n, _ in outer)
    shape = tuple(n for n, _ in dims)
    single = tuple(step == 0 for step in steps)
    moving = [n for n, one in zip(names, single, strict=True) if not one]
    dense = all(step in (0, 1) for step in steps)
    widest = max(dtype_named(n).itemsize for n in moving)
    many = min(MOST_AT_ONCE, VECTOR // widest) if dense else 1
    if columns % many:
        many = 1
    kernel = row_kernel(program, len(dims), single, many)
    params: list[Param] = [
        Operand(k, View(dtype_named(name), shape, tuple(s[i] for _, s in dims)), offset)
        for i, (name, (k, _, offset)) in enumerate(zip(names, operands, strict=True))
    ]
    sizes = [Const(n) for n, _ in outer[1:]]
    params += [*numbers, *sizes, Const(rows), Const(columns), *_details(program)]
    block = threads(BLOCK)
    units = columns // many
    across = min(block if dense else WARP, 1 << max(0, units - 1).bit_length())
    down = block // across
    grid = (
        blocks_for(rows, down * ROWS_EACH, _most_blocks(1 << 30))[0],
        blocks_for(units, across, _most_blocks(MOST_COLUMN_BLOCKS))[0],
        1,
    )
    return KernelStep(kernel, tuple(params), grid, (across, down, 1))


def _most_blocks(most: int) -> int:
    """Few in the simulator, so that tests see loops go round."""
    return 3 if simulated() else most


def numbers_of(launch: ScalarLaunch) -> list[Param]:
    """Return a launch's dynamic scalars as parameters of a kernel."""
    kinds = {"d": "f", "q": "i"}
    return [Scalar(i, kinds[code]) for i, code in enumerate(launch.pack)]


def _details(program: Scalars) -> list[Param]:
    return [Details()] if program.reports else []


@functools.cache
def _may_raise(expr: str, args: tuple[str, ...], compute: tuple[str, ...]) -> bool:
    CPYTHON.require("raises")
    function, _ = expression_function(expr, args, compute)
    return any(raises(f.__code__) for f in reached(function))


def is_generated(kernel: Kernel) -> bool:
    """Return True if this module generated the kernel."""
    return kernel.__module__ == __name__


# --- kernels ------------------------------------------------------------------------------------


@functools.cache
def flat_kernel(program: Scalars, single: tuple[bool, ...], many: int, vectors: int) -> Kernel:
    """kernel(arrays..., numbers..., n, [details]) over n elements of one-dimensional arrays.

    Arrays that are `single` have one element.  `many` elements of the others are moved at once, and
    `vectors` times as many before anything is written.
    """
    outs, ins = _names(program)
    moving = [n for n, one in zip((*outs, *ins), single, strict=True) if not one]
    ones = [n for n, one in zip((*outs, *ins), single, strict=True) if one]
    once = {n: f"{n}_v" for n in ones}
    lines = [f"{n}_v = {n}[0]" for n in ones]
    lines.append("done = 0")
    if many > 1:
        parts = [n for n in moving if n not in outs]
        lines += _by_vectors(program, outs, parts, once, many, vectors, moving)
    lines.append("for i in range(done + cuda.grid(1), n, cuda.gridsize(1)):")
    read = {n: f"{n}[i]" for n in ins if n not in once}
    lines += _indented(_evaluated(program, {**once, **read}, "r"))
    lines += [f"    {out}[i] = {_result(program, 'r', p)}" for p, out in enumerate(outs)]
    scope = {"load": load_many[many], "store": store_many[many], "aligned": aligned}
    arguments = (program, single, many, vectors)
    return _kernel(program, (*outs, *ins), ["n"], lines, scope, "flat_kernel", arguments)


def _by_vectors(
    program: Scalars, outs: list[str], parts: list[str], once: dict[str, str], many: int,
    vectors: int, moving: list[str],
) -> list[str]:  # fmt: skip
    """Lines that go through all whole vectors and set `done` to the elements of these.

    What is behind the last vector is read as that one, so that no load waits for a condition.
    """
    block = threads(BLOCK)
    inner = [
        "p0 = j",
        *(f"p{v} = min(j + {v * block}, whole - 1)" for v in range(1, vectors)),
        *(f"{n}_{v} = load({n}, p{v} * {many})" for v in range(vectors) for n in parts),
    ]
    for v in range(vectors):
        for k in range(many):
            read = {n: f"{n}_{v}[{k}]" for n in parts}
            inner += _evaluated(program, {**once, **read}, f"r{v}_{k}")
    for v in range(vectors):
        inner += [f"if j + {v * block} < whole:"] if v else []
        for p, out in enumerate(outs):
            values = ", ".join(_result(program, f"r{v}_{k}", p) for k in range(many))
            inner.append(f"{'    ' * bool(v)}store({out}, p{v} * {many}, ({values},))")
    first = f"cuda.blockIdx.x * {vectors * block} + cuda.threadIdx.x"
    return [
        f"if {' and '.join(f'aligned({n}, {many})' for n in moving)}:",
        f"    whole = n // {many}",
        f"    done = whole * {many}",
        f"    for j in range({first}, whole, cuda.gridDim.x * {vectors * block}):",
        *_indented(_indented(inner)),
    ]


@functools.cache
def row_kernel(program: Scalars, dims: int, single: tuple[bool, ...], many: int) -> Kernel:
    """kernel(arrays..., numbers..., sizes..., rows, columns, [details]) over arrays.

    They have `dims` dimensions.  The last dimension is the columns; `sizes` are the dimensions from
    the second to the last but one. An array that is `single` has one element for a whole row.
    `many` elements of the others are moved at once, in rows where they lie so.
    """
    outs, ins = _names(program)
    arrays = list(zip((*outs, *ins), single, strict=True))
    once = {n: f"{n}_v" for n, one in arrays if one and n in ins}
    sizes = [f"d{k}" for k in range(1, dims - 1)]
    inner = ["rest = row"] if dims > 2 else []
    for k in range(dims - 2, 0, -1):
        inner += [f"i{k} = rest % d{k}", f"rest = rest // d{k}"]
    row = ["rest" if dims > 2 else "row", *(f"i{k}" for k in range(1, dims - 1))]
    at = f"[{', '.join(row[: dims - 1])}]" if dims > 1 else ""
    inner += [f"{n}_r = {n}{at}" for n, _ in arrays]
    inner += [f"{n}_v = {n}_r[0]" for n in sorted(once)]
    moving = [n for n, one in arrays if not one]
    by_one = _along_row(program, outs, [n for n in ins if n not in once], once, 1)
    if many > 1:
        inner += [
            f"if {' and '.join(f'aligned({n}_r, {many})' for n in moving)}:",
            *_indented(_along_row(program, outs, [n for n in moving if n in ins], once, many)),
            "else:",
            *_indented(by_one),
        ]
    else:
        inner += by_one
    lines = [
        "first = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x",
        "across = cuda.gridDim.y * cuda.blockDim.x",
        "down = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y",
        "for row in range(down, rows, cuda.gridDim.x * cuda.blockDim.y):",
        *_indented(inner),
    ]
    scope = {"load": load_many[many], "store": store_many[many], "aligned": aligned}
    arguments = (program, dims, single, many)
    extra = [*sizes, "rows", "columns"]
    return _kernel(program, (*outs, *ins), extra, lines, scope, "row_kernel", arguments)


def _along_row(
    program: Scalars, outs: list[str], parts: list[str], once: dict[str, str], many: int
) -> list[str]:
    """Lines that go along a row, `many` at a time."""
    if many == 1:
        read = {n: f"{n}_r[i]" for n in parts}
        lines = _evaluated(program, {**once, **read}, "r")
        lines += [f"{out}_r[i] = {_result(program, 'r', p)}" for p, out in enumerate(outs)]
        return ["for i in range(first, columns, across):", *_indented(lines)]
    lines = [f"{n}_m = load({n}_r, j * {many})" for n in parts]
    for k in range(many):
        read = {n: f"{n}_m[{k}]" for n in parts}
        lines += _evaluated(program, {**once, **read}, f"r{k}")
    for p, out in enumerate(outs):
        values = ", ".join(_result(program, f"r{k}", p) for k in range(many))
        lines.append(f"store({out}_r, j * {many}, ({values},))")
    return [f"for j in range(first, columns // {many}, across):", *_indented(lines)]


def _names(program: Scalars) -> tuple[list[str], list[str]]:
    """Return the names of the output arrays and of the input arrays in a kernel."""
    return [f"out{k}" for k in range(len(program.outputs))], [f"in_{n}" for n in program.tensors]


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _evaluated(program: Scalars, read: dict[str, str], name: str) -> list[str]:
    """Lines that set `name` to the expression's value; `read` has the arrays' elements."""
    arguments = []
    for arg, source, kind in zip(program.args, program.stored, program.compute, strict=True):
        if arg in program.numbers:
            arguments.append(f"num_{arg}")
        else:
            arguments.append(converted(read[f"in_{arg}"], source, kind))
    if not program.reports:
        return [f"{name} = expression({', '.join(arguments)})"]
    passed = ", ".join(f"{g}," if len(arguments) == 1 else g for g in arguments)
    return [
        f"fine, {name} = attempt(expression, ({passed}))",
        "if not fine:",
        f"    details[{STATUS_AT}] = {program.raises}",
    ]


def _result(program: Scalars, name: str, place: int) -> str:
    value = name if len(program.outputs) == 1 else f"{name}[{place}]"
    kind = program.outputs[place]
    floats = any("float" in compute for compute in program.compute)
    # said, for an element of NumPy takes no float that does not fit
    return f"{kind}({value})" if floats and kind in SCOPE and "int" in kind else value


def converted(value: str, source: str, kind: str) -> str:
    """An element of dtype `source` as the expression gets it that computes in `kind`."""
    if kind == "bool":
        return value if source == "bool" else f"({value} != 0)"
    if kind in ("float32", "float64"):
        return f"{kind}({value})"
    if kind in STORED:
        return f"float32({value})"
    if "float" in source:
        value, source = (f"int64({value})", "int64") if kind == "int64" else (
            f"int32(float32({value}))" if source in STORED else f"int32({value})", "int32"
        )  # fmt: skip
    if kind == "uint8":
        return f"int16(uint8({value}))"
    return f"{kind}({value})"


SCOPE: dict[str, object] = {
    name: getattr(np, name)
    for name in ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint64")
}


def _kernel(
    program: Scalars,
    arrays: tuple[str, ...],
    extra: list[str],
    lines: list[str],
    scope: Mapping[str, object],
    maker: str,
    arguments: tuple[object, ...],
) -> Kernel:
    numbers = [f"number_{n}" for n in program.numbers]
    details = ["details"] if program.reports else []
    kinds = dict(zip(program.args, zip(program.stored, program.compute, strict=True), strict=True))
    before = [f"num_{n} = {converted(f'number_{n}', *kinds[n])}" for n in program.numbers]
    text = "\n".join([
        f"def elementwise({', '.join([*arrays, *numbers, *extra, *details])}):",
        *_indented([*before, *lines]),
    ])  # fmt: skip
    function, _ = expression_function(program.expr, program.args, program.compute)
    function.__globals__["INLINE_ALWAYS"] = True
    space = {**SCOPE, "attempt": attempt, "expression": function, **scope}
    return written(text, "elementwise", space, f"{__name__}:{maker}", *arguments)
