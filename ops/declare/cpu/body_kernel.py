"""Kernels from body functions, in the one form that the VM calls.

    int32 kernel(uint64 args, uint64 layout, int64 lo, int64 hi, uint64 arena)

`args` points at int64 words: 0-5 error details, 6 scratch address, 7 stream, then one address per
operand (outputs first), then one word per dynamic scalar.  `layout` points at immutable int64
words.  [lo, hi) is the part of the work to do; any split into ranges gives the same result.
`arena` is memory of the thread that runs the range.  The kernel returns 0 or a status.

A body is `body(arrays..., consts..., scalars..., [scratch], [arena], lo, hi, [details])` and
returns None or a status; it has those of the parameters in brackets that it names.  `details` is an
int64 array of the six error details.  A body that raises returns RAISED.

The layout has each array's shape and strides (of an optional one also where among `args` it is),
the consts, the bytes of scratch, and then the elements of consts that are arrays.  A const that is
a NamedTuple is a record: a pointer to its words.

Only the body goes through Numba; what reads the words for it is LLVM text made here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flowvm.compiler import jit
from flowvm.compiler.native import LoweredFunction, forget, lower
from flowvm.compiler.record import NUMBA, phase
from flowvm.errors import CompileError
from flowvm.launch import Const, View
from flowvm.loading.lazy import lazy
from flowvm.ops.declare.cpu.text import IN_MEMORY, SIZES, WIDENED, Text, converted
from flowvm.ops.declare.cpu.vector_code import functions_apart
from flowvm.ops.declare.cpu.walk import OPERANDS_AT
from flowvm.vm.machine.words import ARG

if TYPE_CHECKING:
    from flowvm.compiler import bodies, words
    from flowvm.meta.arrays import Array, Number
else:  # when a kernel is made
    bodies = lazy("flowvm.compiler.bodies")
    words = lazy("flowvm.compiler.words")


RAISED = 5  # flowvm.errors.Status.INVALID_VALUE
SCRATCH_AT = 6
LARGE = 12  # blocks, before optimization, of a function that is not worth a copy in its caller

ARRAY = "array"  # kind of a const that is a tuple

Kind = str | tuple[tuple[str, str], ...]  # "i", "f", "b", ARRAY, or a record's (field, kind)


class Operand(NamedTuple):
    """The properties of an array for which a kernel is compiled."""

    dtype: str
    ndim: int
    contiguous: bool
    optional: bool = False  # not all calls have it

    @staticmethod
    def of(view: View) -> Operand:
        return Operand(view.dtype.name, len(view.shape), view.dense, view.given is not None)


def kind_of(const: Const) -> Kind:
    """Return the properties of a const for which a kernel is compiled."""
    if isinstance(const, tuple):
        fields = getattr(const, "_fields", None)
        if fields is None:
            return ARRAY
        return tuple((name, _kind(value)) for name, value in zip(fields, const, strict=True))
    return _kind(const)


def _kind(value: float) -> str:
    return "b" if isinstance(value, (bool, np.bool_)) else "f" if isinstance(value, float) else "i"


def body_layout(views: Sequence[View], consts: Sequence[Const] = (), scratch: int = 0) -> Array:
    """Layout words of a body kernel."""
    words: list[int] = []
    place = OPERANDS_AT
    for view in views:
        words += [*view.shape, *view.strides]
        if view.given is not None:
            words.append(place if view.given else OPERANDS_AT)  # what is empty may lie anywhere
        place += view.given is not False
    numbers: list[int] = []
    start = len(words) + 1 + sum(_length(c) for c in consts)
    for const in consts:
        if kind_of(const) == ARRAY:
            words += [start + len(numbers), len(const)]  # type: ignore[arg-type]
            numbers += const  # type: ignore[arg-type]
        else:
            words += map(_word, const if isinstance(const, tuple) else (const,))
    return np.array([*words, scratch, *numbers], np.int64)


def _length(const: Const) -> int:
    """Words of a const, without an array's elements."""
    if kind_of(const) == ARRAY:
        return 2
    return len(const) if isinstance(const, tuple) else 1


def _word(value: float) -> int:
    return int(np.float64(value).view(np.int64)) if isinstance(value, float) else int(value)


class Body(NamedTuple):
    """A body and the properties of its arguments; `body_of` explains it."""

    function: Callable[..., Any]
    operands: tuple[Operand, ...]
    consts: tuple[Kind, ...]
    scalars: tuple[str, ...]
    reassociate: bool
    counts: bool

    @property
    def scratch_at(self) -> int:
        """The index of the layout word that holds the bytes of scratch."""
        arrays = sum(2 * o.ndim + o.optional for o in self.operands)
        return arrays + sum(
            2 if k == ARRAY else 1 if isinstance(k, str) else len(k) for k in self.consts
        )

    @property
    def names(self) -> list[str]:
        return list(inspect.signature(self.function).parameters)

    def takes(self, name: str) -> bool:
        """Return True if the body has this parameter: "scratch", "arena" or "details"."""
        return name in self.names


def body_of(
    body: Callable[..., object],
    operands: Sequence[Operand],
    consts: Sequence[Kind] = (),
    scalars: Sequence[str] = (),
    *,
    reassociate: bool = False,
    counts: bool = False,
) -> Body:
    """Return the Body of a function that is called on arrays over the operands.

    `operands` are the outputs, then the inputs; `consts` say what `kind_of` does of each const in
    the layout, and `scalars` "i", "f" or "b" of each dynamic scalar.  `body_layout` makes the
    layout.  `reassociate` lets LLVM reorder sums in `body` itself, which vectorizes them.
    `counts`: the body is also called with the range [-1, -1) (of mut2 outputs); all others promise
    LLVM lo >= 0, or Numba's care for negative indices would keep loops over x[lo:hi] scalar.
    """
    return Body(
        body, tuple(operands), tuple(consts), tuple(scalars), bool(reassociate), bool(counts)
    )


def body_kernel(*args: Any, **kwargs: Any) -> int:
    """Return the address of the kernel for these arguments of `body_of`."""
    return kernel_of(body_of(*args, **kwargs))


@functools.cache
def kernel_of(b: Body) -> int:
    """The address of a kernel that calls the body."""
    return jit.load(*maker(b))


def maker(b: Body) -> tuple[Callable[[], jit.Lowered], str]:
    """Return a function that makes the kernel, and the kernel's name, for `jit.load`."""
    _check(b)

    def make() -> jit.Lowered:
        alone = b.function.__globals__.get("WORDS_ONLY")
        return lowered_without_numba(b) if alone else lowered_by_numba(b)

    return make, f"{b.function.__qualname__}, {' '.join(o.dtype for o in b.operands)}"


def lowered_by_numba(b: Body) -> jit.Lowered:
    """Return the kernel of a body that Numba types and lowers."""
    with functions_apart() as apart:
        inner = lower(b.function, _signature(b), reassociate=b.reassociate)
    if apart.functions:
        forget(frozenset(f.name for f in apart.functions))
    text = _assuming(b, _text(b, inner))
    loops_only = bool(b.function.__globals__.get("LOOPS_ONLY"))
    return _with_apart(jit.linked(inner, text, loops_only=loops_only), apart)


def lowered_without_numba(b: Body) -> jit.Lowered:
    """Return the kernel of a body that `flowvm.compiler.bodies` translates."""
    program = bodies.Program(b.reassociate)
    t = Text()
    t.put("%argp = inttoptr i64 %args to ptr")
    t.put("%layp = inttoptr i64 %layout to ptr")
    values: list[bodies.Value] = []

    def array(dtype: str, data: str, count: str) -> None:
        line = bodies.Line(dtype)
        values.append(bodies.Group((words.Word(data, words.ARRAY), words.Word(count)), line))

    def number(base: str, index: int, kind: str) -> None:
        value = t.word(base, index, "double" if kind == "f" else "i64")
        if kind == "b":
            value = t.new(f"icmp ne i64 {value}, 0")
        name = {"f": words.FLOAT, "b": bodies.BOOL, "i": words.INT}[kind]
        values.append(words.Word(value, name))

    at = 0
    for k, operand in enumerate(b.operands):
        if operand.ndim != 1 or not operand.contiguous:
            raise CompileError(f"{b.function.__name__}: without Numba arrays have one dimension")
        count, at = t.word("%layp", at), at + 2
        place: str | int = OPERANDS_AT + k
        if operand.optional:
            place, at = t.word("%layp", at), at + 1
        array(operand.dtype, t.word("%argp", place, "ptr"), count)
    for kind in b.consts:
        if kind == ARRAY:
            start, count = t.word("%layp", at), t.word("%layp", at + 1)
            array("int64", t.new(f"getelementptr i64, ptr %layp, i64 {start}"), count)
            at += 2
        elif isinstance(kind, str):
            number("%layp", at, kind)
            at += 1
        else:
            record = t.new(f"getelementptr i64, ptr %layp, i64 {at}")
            values.append(words.Word(record, words.Record(kind)))
            at += len(kind)
    for i, scalar in enumerate(b.scalars):
        number("%argp", OPERANDS_AT + len(b.operands) + i, scalar)
    if b.takes("scratch"):
        array("uint8", t.word("%argp", SCRATCH_AT, "ptr"), t.word("%layp", at))
    if b.takes("arena"):
        array("uint8", t.new("inttoptr i64 %arena to ptr"), str(ARG.ARENA_BYTES))
    values += [words.Word("%lo"), words.Word("%hi")]
    if b.takes("details"):
        array("int64", "%argp", "6")
    with functions_apart() as apart:
        function = program.function(b.function, [value.kind for value in values])
    if function.kind != words.INT:
        raise CompileError(f"{b.function.__name__} returns {function.kind}, and no status")
    passed = ", ".join(str(leaf) for value in values for leaf in bodies.leaves_of(value))
    status = t.new(f"call i64 @{function.name}({passed})")
    t.put(f"ret i32 {t.new(f'trunc i64 {status} to i32')}")
    text = _assuming(b, _HEAD.format(text=t))
    modules, inline = program.modules(text), frozenset(program.inlined())
    loops_only = bool(b.function.__globals__.get("LOOPS_ONLY"))
    return _with_apart(jit.Lowered(modules, "entry", inline, loops_only), apart)


def _assuming(b: Body, text: str) -> str:
    """The text of a kernel that promises LLVM that lo >= 0."""
    if b.counts:
        return text
    text = text.replace("entry:\n", f"entry:\n{_ASSUME}", 1)
    return text + "declare void @llvm.assume(i1)\n"


def _with_apart(lowered: jit.Lowered, apart: Number) -> jit.Lowered:
    """Add the functions that were compiled apart.

    If there are some, they take the time, and the body only leads to them: its large functions stay
    calls.
    """
    if not apart.functions:
        return lowered
    for module in lowered.modules:
        for function in module.functions:
            if function.name not in lowered.inline and len(list(function.blocks)) > LARGE:
                function.add_function_attribute("noinline")
    written = (jit.llvm.parse_assembly(str(apart)),)
    return lowered._replace(written=written, loops_only=True)


def _signature(b: Body) -> tuple[object, ...]:
    """Numba's types of the arguments."""
    with phase(NUMBA):
        from numba import types

    def array(dtype: str, ndim: int = 1, layout: str = "C") -> Any:
        return types.Array(getattr(types, "boolean" if dtype == "bool" else dtype), ndim, layout)

    signature = [array(o.dtype, o.ndim, "C" if o.contiguous else "A") for o in b.operands]
    signature += map(numba_kind, (*b.consts, *b.scalars))
    signature += [array("uint8")] * (b.takes("scratch") + b.takes("arena"))
    return (*signature, types.int64, types.int64, *[array("int64")] * b.takes("details"))


_HEAD = """
define i32 @entry(i64 %args, i64 %layout, i64 %lo, i64 %hi, i64 %arena) {{
entry:
{text}
}}
"""
_ASSUME = """  %forward = icmp sge i64 %lo, 0
  call void @llvm.assume(i1 %forward)
"""


def numba_kind(kind: Kind) -> Any:
    """Numba's type of a number, or of a const of several."""
    from numba import types

    numbers = {"i": types.int64, "f": types.float64, "b": types.boolean}
    if kind == ARRAY:
        return types.Array(types.int64, 1, "C")
    if isinstance(kind, str):
        return numbers[kind]
    words = {**numbers, "b": types.int64}  # a record is as it lies
    return types.Record.make_c_struct([(name, words[k]) for name, k in kind])


def _check(b: Body) -> None:
    """Raise an error if the parameters do not fit the body's arguments."""
    name = b.function.__name__
    for operand in b.operands:
        if operand.dtype in WIDENED or operand.dtype not in IN_MEMORY:
            raise ValueError(
                f"{name}: a body cannot take {operand.dtype} arrays; convert them first"
            )
    if sorted(b.operands, key=lambda o: o.optional) != list(b.operands):
        raise ValueError(f"{name}: optional operands come last")
    if b.scalars and any(o.optional for o in b.operands):
        raise ValueError(f"{name}: scalars have no place behind optional operands")
    own = [n for n in ("scratch", "arena", "lo", "hi", "details") if n in b.names]
    count = len(b.operands) + len(b.consts) + len(b.scalars) + len(own)
    if len(b.names) != count or b.names[count - len(own) :] != own:
        raise ValueError(
            f"{name}({', '.join(b.names)}) would be called with {len(b.operands)} arrays, "
            f"{len(b.consts)} consts, {len(b.scalars)} scalars, {', '.join(own)}: {count} "
            "arguments"
        )


def _text(b: Body, inner: LoweredFunction) -> str:
    t = Text()
    t.put("%argp = inttoptr i64 %args to ptr")
    t.put("%layp = inttoptr i64 %layout to ptr")
    values: list[str] = []

    def array(data: str, itemsize: int, shape: list[str], strides: list[str]) -> None:
        count = functools.reduce(lambda a, b: t.new(f"mul i64 {a}, {b}"), shape, "1")
        values.extend(["null", "null", count, str(itemsize), data, *shape, *strides])

    def number(base: str, index: int, kind: str) -> None:
        value = t.word(base, index, "double" if kind == "f" else "i64")
        if kind == "b":
            value = t.new(f"icmp ne i64 {value}, 0")
            if inner.args_ir[len(values)] == "i8":
                value = t.new(f"zext i1 {value} to i8")
        values.append(value)

    at = 0
    for k, operand in enumerate(b.operands):
        ndim, size = operand.ndim, SIZES[IN_MEMORY[operand.dtype]]
        shape = [t.word("%layp", at + d) for d in range(ndim)]
        elements = [t.word("%layp", at + ndim + d) for d in range(ndim)]
        strides = [t.new(f"mul i64 {s}, {size}") for s in elements]
        at += 2 * ndim
        place: str | int = OPERANDS_AT + k
        if operand.optional:
            place, at = t.word("%layp", at), at + 1
        array(t.word("%argp", place, "ptr"), size, shape, strides)
    for kind in b.consts:
        if kind == ARRAY:
            start, count = t.word("%layp", at), t.word("%layp", at + 1)
            array(t.new(f"getelementptr i64, ptr %layp, i64 {start}"), 8, [count], ["8"])
            at += 2
        elif isinstance(kind, str):
            number("%layp", at, kind)
            at += 1
        else:
            values.append(t.new(f"getelementptr i64, ptr %layp, i64 {at}"))
            at += len(kind)
    for i, scalar in enumerate(b.scalars):
        number("%argp", OPERANDS_AT + len(b.operands) + i, scalar)
    if b.takes("scratch"):
        array(t.word("%argp", SCRATCH_AT, "ptr"), 1, [t.word("%layp", at)], ["1"])
    if b.takes("arena"):
        array(t.new("inttoptr i64 %arena to ptr"), 1, [str(ARG.ARENA_BYTES)], ["1"])
    values += ["%lo", "%hi"]
    if b.takes("details"):
        array("%argp", 8, ["6"], ["8"])
    return _entry(inner, t, values)


def _entry(inner: LoweredFunction, t: Text, values: list[str]) -> str:
    result = getattr(inner.result, "type", inner.result)  # of an optional: the status it may be
    returns = "" if result.name == "none" else IN_MEMORY[result.name]
    passed = "".join(f", {k} {v}" for k, v in zip(inner.args_ir, values, strict=True))
    t.put(f"%r = alloca {returns or 'ptr'}")
    t.put("%e = alloca ptr")
    t.put(f'%s = call i32 @"{inner.name}"(ptr %r, ptr %e{passed})')
    t.put("switch i32 %s, label %raised [i32 0, label %value i32 -2, label %none]")
    t.label("value")
    status = "0"
    if returns:
        status = converted(t, t.new(f"load {returns}, ptr %r"), result.name, "int32")
    t.put(f"ret i32 {status}")
    t.label("none")
    t.put("ret i32 0")
    t.label("raised")
    t.put(f"ret i32 {RAISED}")
    declared = "".join(f", {a}" for a in inner.args_ir)
    return f'declare i32 @"{inner.name}"(ptr, ptr{declared})\n{_HEAD.format(text=t)}'
