"""Kernels from scalar expressions and from body functions, in the one form that the VM calls.

    int32 kernel(uint64 args, uint64 layout, int64 lo, int64 hi, uint64 arena)

`args` points at int64 words: 0-5 error details, 6 scratch address, 7 stream, then one address per
operand (outputs first), then one word per dynamic scalar.  `layout` points at immutable int64
words.  [lo, hi) is the part of the work to do; any split into ranges gives the same result.
`arena` is memory of the thread that runs the range.  The kernel returns 0 or a status.

Only the expression or the body goes through Numba.  What surrounds it (reading words, walking
strides, converting dtypes) is LLVM text made here: it costs no type inference, and it can tell LLVM
what Python cannot say, namely that iterations are independent even when an output is an input.

Invariant for elementwise kernels: an output shares memory with an operand element for element or
not at all.

A body is `body(arrays..., consts..., scalars..., [scratch], [arena], lo, hi, [details])` and
returns None or a status.  `details`, if the last parameter has that name, is an int64 array of the
six error details.  A body that raises returns RAISED.

Long because both kinds of kernels are made here, of the same pieces of LLVM text.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from flowvm.compiler import jit
from flowvm.compiler.native import LoweredFunction, Overloaded, lower
from flowvm.ops.declare.cpu.walk import OPERANDS_AT, WALK, provide
from flowvm.ops.scalar import functions as scalar
from flowvm.ops.scalar.bits import Guarded
from flowvm.ops.scalar.half import STORED, narrowed_text, widened_text
from flowvm.vm.machine.words import ARG

__all__ = [
    "DIVISION_BY_ZERO",
    "RAISED",
    "TypedLiterals",
    "body_kernel",
    "body_layout",
    "elementwise_kernel",
    "expression_function",
]

DIVISION_BY_ZERO = 2  # flowvm.errors.Status.DIVISION_BY_ZERO
RAISED = 5  # flowvm.errors.Status.INVALID_VALUE
SCRATCH_AT = 6

Operand = tuple[str, int, bool]  # dtype name, ndim, contiguous

# dtype name -> LLVM's type in memory
_STORED = {
    "bool": "i8",
    "uint8": "i8",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint64": "i64",
    **STORED,
    "float32": "float",
    "float64": "double",
}
_SIZES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2, "float": 4, "double": 8}
_FLOATS = ("float", "double")


# --- layouts --------------------------------------------------------------------------------


def body_layout(
    views: Sequence[tuple[Sequence[int], Sequence[int]]],
    consts: Sequence[int | float | bool] = (),
    scratch: int = 0,
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Layout words of a body kernel: each operand's shape and strides, consts, bytes of scratch."""
    words: list[int] = []
    for shape, strides in views:
        words += [*shape, *strides]
    for const in consts:
        words.append(_bits(const) if isinstance(const, float) else int(const))
    return np.array([*words, scratch], np.int64)


def _bits(value: float) -> int:
    return int(np.float64(value).view(np.int64))


# --- LLVM text ------------------------------------------------------------------------------


class _Text:
    """LLVM instructions under construction; `new` names a value."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.late: list[str] = []  # to be put where a loop ends
        self.count = 0

    def put(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def new(self, code: str) -> str:
        self.count += 1
        self.put(f"%v{self.count} = {code}")
        return f"%v{self.count}"

    def word(self, base: str, index: str | int, kind: str = "i64") -> str:
        """The value at word `index` of `base`, a double or pointer if `kind` says so."""
        place = self.new(f"getelementptr i64, ptr {base}, i64 {index}")
        return self.new(f"load {kind}, ptr {place}")

    def __str__(self) -> str:
        return "\n".join(self.lines)


def _convert(text: _Text, value: str, source: str, target: str) -> str:
    """`value` as stored for dtype `source`, as stored for `target`; any nonzero byte is true."""
    if source == target and source != "bool":
        return value
    if source in STORED:
        value, source = widened_text(text.new, value, source), "float32"
        return _convert(text, value, source, target)
    if target in STORED:
        return narrowed_text(text.new, _convert(text, value, source, "float32"), target)
    a, b = _STORED[source], _STORED[target]
    if target == "bool":
        zero, test = ("0.0", "fcmp une") if a in _FLOATS else ("0", "icmp ne")
        return text.new(f"zext i1 {text.new(f'{test} {a} {value}, {zero}')} to i8")
    if source == "bool":
        value = text.new(f"zext i1 {text.new(f'icmp ne i8 {value}, 0')} to i8")
    if a in _FLOATS and b in _FLOATS:
        wider = _SIZES[b] > _SIZES[a]
        return text.new(f"{'fpext' if wider else 'fptrunc'} {a} {value} to {b}")
    if a in _FLOATS:
        if b == "i64":
            return text.new(f"fptosi {a} {value} to i64")
        whole = text.new(f"fptosi {a} {value} to i32")
        return whole if b == "i32" else text.new(f"trunc i32 {whole} to {b}")
    unsigned = source in ("bool", "uint8", "uint64")
    if b in _FLOATS:
        return text.new(f"{'ui' if unsigned else 'si'}tofp {a} {value} to {b}")
    if _SIZES[a] == _SIZES[b]:
        return value
    if _SIZES[a] > _SIZES[b]:
        return text.new(f"trunc {a} {value} to {b}")
    return text.new(f"{'zext' if unsigned else 'sext'} {a} {value} to {b}")


# --- elementwise kernels ----------------------------------------------------------------------


def elementwise_kernel(
    expr: str,
    args: Sequence[str],
    in_dtypes: Sequence[str],
    out_dtypes: Sequence[str],
    compute: Sequence[str],
    scalar_args: Collection[str] = (),
    raises: int = DIVISION_BY_ZERO,
    *,
    pattern: int | None = None,
) -> int:
    """The address of a kernel that computes `expr` for every element.

    `args`, `in_dtypes` and `compute` go together: the names in `expr`, the dtypes in memory, and
    the dtypes that the expression is computed in.  The names in `scalar_args` are dynamic scalars:
    words of `args` after the operands, in order, whose dtype says how to read the bits, "float64"
    or "int64" ("bool" is an int64 too). Several outputs are a tuple in `expr`, which may also be a
    program: lines that name intermediate values, then the expression.  Numbers in `expr`
    take the dtype that it is computed in.  If evaluating it raises, the kernel stops and returns
    `raises`.  `pattern` is that of the only plans it is for (`ops/declare/cpu/plan.py`); None: of
    all.
    """
    return _elementwise(
        expr,
        tuple(args),
        tuple(in_dtypes),
        tuple(out_dtypes),
        tuple(compute),
        frozenset(scalar_args),
        int(raises),
        pattern,
    )


@functools.cache
def _elementwise(
    expr: str,
    args: tuple[str, ...],
    in_dtypes: tuple[str, ...],
    out_dtypes: tuple[str, ...],
    compute: tuple[str, ...],
    scalar_args: frozenset[str],
    raises: int,
    pattern: int | None,
) -> int:
    if not len(args) == len(in_dtypes) == len(compute):
        raise ValueError(f"{expr!r}: {len(args)} args, {in_dtypes=}, {compute=}")
    if unknown := {*in_dtypes, *out_dtypes, *compute} - _STORED.keys():
        raise ValueError(f"{expr!r}: no kernel can read or write {', '.join(sorted(unknown))}")
    provide()
    scope = _scope(expr)

    def make() -> jit.Lowered:
        inner = _lower_expression(expr, args, compute, scope)
        rare = _lower_guarded(expr, args, compute, scope)
        text = _elementwise_text(
            inner, rare, args, in_dtypes, out_dtypes, compute, scalar_args, raises, pattern,
            _is_long(expr),
        )  # fmt: skip
        return jit.linked(_joined(inner, *rare), text, loops_only=True)

    name = f"{expr}, {' '.join(in_dtypes)} -> {' '.join(out_dtypes)}"
    return jit.load(make, name)


# what Numba sees instead
_PASSED = {"uint8": "int16", **dict.fromkeys(STORED, "float32")}


def _lower_expression(
    expr: str, args: tuple[str, ...], compute: tuple[str, ...], scope: dict[str, Any]
) -> LoweredFunction:
    function, passed = _expression_in(scope, expr, args, compute)
    return _lower_typed(function, passed)


def expression_function(
    expr: str, args: tuple[str, ...], compute: tuple[str, ...]
) -> tuple[Callable[..., Any], list[str]]:
    """`expr` as a Python function of `args`, to be compiled, and the dtypes that it is to get."""
    return _expression_in(_scope(expr), expr, args, compute)


def _expression_in(
    scope: dict[str, Any], expr: str, args: tuple[str, ...], compute: tuple[str, ...]
) -> tuple[Callable[..., Any], list[str]]:
    passed = [_PASSED.get(name, name) for name in compute]
    literal = next((d for d in ("float64", "float32") if d in passed), "")
    *steps, result = ast.unparse(TypedLiterals(literal).visit(ast.parse(expr))).split("\n")
    source = "".join(f"    {line}\n" for line in (*steps, f"return {result}"))
    return _function_of(source, expr, args, scope), passed


def _is_long(expr: str) -> bool:
    """Whether one element is a chain of operations: a program, or a function's polynomials."""
    return "\n" in expr or any(isinstance(n, ast.Call) for n in ast.walk(ast.parse(expr)))


def _function_of(
    source: str, expr: str, args: tuple[str, ...], scope: dict[str, Any]
) -> Callable[..., Any]:
    source = f"def expression({', '.join(args)}):\n{source}\n"
    space = dict(scope)
    exec(compile(source, f"<{expr}>", "exec"), space)
    made: Callable[..., Any] = space["expression"]
    return made


def _lower_typed(function: Callable[..., Any], passed: list[str]) -> LoweredFunction:
    from numba import types

    kinds = tuple(getattr(types, "boolean" if p == "bool" else p) for p in passed)
    return lower(function, kinds)


def _scope(expr: str) -> dict[str, Any]:
    """What `expr` calls, by name; of a `Guarded` also `<name>_fits` and `<name>_near`.

    No other functions: the key of a kernel covers those here.
    """
    found: dict[str, Any] = {name: getattr(np, name) for name in ("float32", "float64", "int64")}
    for name in sorted(_functions().keys() & set(re.findall(r"\w+", expr))):
        function = found[name] = _functions()[name]
        if isinstance(function, Guarded):
            found |= {f.__name__: f for f in (function.fits, function.near)}
    return found


@functools.cache
def _functions() -> dict[str, Overloaded]:
    return scalar.functions()


def _lower_guarded(
    expr: str, args: tuple[str, ...], compute: tuple[str, ...], scope: dict[str, Any]
) -> tuple[LoweredFunction, ...]:
    """For an expression that is one call of a `Guarded`: what raises where its rare case is, and
    what may be called where it is not; else nothing.
    """
    *steps, last = ast.parse(expr).body
    call = last.value if isinstance(last, ast.Expr) and not steps else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return ()
    function, passed = scope[call.func.id], [_PASSED.get(c, c) for c in compute]
    if not isinstance(function, Guarded) or not all(isinstance(a, ast.Name) for a in call.args):
        return ()
    if (
        function.choose(passed)[0] not in function.fits.implementations
    ):  # integers have no such case
        return ()
    given = ", ".join(ast.unparse(a) for a in call.args)
    check = f"    if not {call.func.id}_fits({given}):\n        raise ValueError\n    return True"
    near = f"    return {call.func.id}_near({given})"
    functions = (_function_of(s, expr, args, scope) for s in (check, near))
    return tuple(_lower_typed(f, passed) for f in functions)


def _joined(inner: LoweredFunction, *more: LoweredFunction) -> LoweredFunction:
    """`inner` with the modules of others, to be linked as one program."""
    modules = {id(m): m for f in (inner, *more) for m in f.modules}
    helpers = inner.helpers.union(*(f.helpers | {f.name} for f in more))
    return inner._replace(modules=list(modules.values()), helpers=helpers)


class TypedLiterals(ast.NodeTransformer):
    """Numbers become `float32(number)` where that is what the expression computes in."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if (
            not self.dtype
            or isinstance(node.value, bool)
            or not isinstance(node.value, int | float)
        ):
            return node
        number = ast.Constant(float(node.value))
        return ast.Call(ast.Name(self.dtype, ast.Load()), [number], [])


def _elementwise_text(
    inner: LoweredFunction,
    rare: tuple[LoweredFunction, ...],
    args: tuple[str, ...],
    in_dtypes: tuple[str, ...],
    out_dtypes: tuple[str, ...],
    compute: tuple[str, ...],
    scalar_args: frozenset[str],
    raises: int,
    only: int | None,
    long: bool,
) -> str:
    """A function for a tile of each kind that can be met, their table, and the entry, which is one
    call of `walk`.

    "dense" is for rows whose strides are all 1, "single<k>" for a stride of 0 in tensor input k and
    1 elsewhere; the plan (`declare/cpu/plan.py`) makes one of these of all others.  `only` is the
    pattern of the one kind that is wanted, None for all of them.  The loops of a `long` expression
    take four vectors at a time: a chain of operations leaves the vector unit idle between two of
    its steps (exp and tanh take 0.82 of the time).
    """
    tensors = [k for k, name in enumerate(args) if name not in scalar_args]
    scalars = [k for k, name in enumerate(args) if name in scalar_args]
    outs = len(out_dtypes)
    count = outs + len(tensors)
    stored = [_STORED[d] for d in (*out_dtypes, *(in_dtypes[k] for k in tensors))]
    kinds = [("dense", 0), *((f"single{k}", 1 << k) for k in range(outs, count))]
    kinds = [kind for kind in kinds if only in (None, kind[1])]

    def tile(function: LoweredFunction, name: str, pattern: int, stores: bool = True) -> str:
        return _tile(
            function, (name, pattern), stored, outs, out_dtypes if stores else (), in_dtypes,
            compute, tensors, scalars, raises, long,
        )  # fmt: skip

    functions = []
    for name, pattern in kinds:
        functions.append(tile(inner, f"whole_{name}" if rare else name, pattern))
        if rare:
            check, near = rare
            functions.append(tile(check, f"check_{name}", pattern, stores=False))
            functions.append(tile(near, f"near_{name}", pattern))
            functions.append(_choice(name))
    table = ", ".join(
        f"i64 {pattern}, i64 ptrtoint (ptr @tile_{name} to i64)" for name, pattern in kinds
    )
    declared = "".join(f", {a}" for a in inner.args_ir)
    return "\n".join(
        [
            *(f'declare i32 @"{f.name}"(ptr, ptr{declared})' for f in (inner, *rare)),
            f"declare i32 @{WALK}(i64, i64, i64, i64, i64, i64, ptr)",
            f"@table = internal constant [{2 * len(kinds)} x i64] [{table}]",
            *functions,
            f""" define i32 @entry(i64 %args, i64 %layout, i64 %lo, i64 %hi) {{ %s = call i32
            @{WALK}(i64 %args, i64 %layout, i64 %lo, i64 %hi, i64 {outs}, i64 {count}, ptr @table)
            ret i32 %s
}}""",
            _LOOP_METADATA,
        ]
    )


def _choice(name: str) -> str:
    """The function of a tile that has a rare case: asks first, as the output may be the input."""
    passed = "ptr %pointers, ptr %steps, i64 %rows, i64 %columns, ptr %args"
    return f"""define internal i32 @tile_{name}({passed}) {{
  %bad = call i32 @tile_check_{name}({passed})
  %fits = icmp eq i32 %bad, 0
  br i1 %fits, label %near, label %whole
near:
  %a = call i32 @tile_near_{name}({passed})
  ret i32 %a
whole:
  %b = call i32 @tile_whole_{name}({passed})
  ret i32 %b
}}"""


# !0 says that an access touches nothing which another iteration touches.
_LOOP_METADATA = """
!0 = distinct !{}
!1 = distinct !{!1, !3}
!2 = distinct !{!2, !4, !5}
!3 = !{!"llvm.loop.parallel_accesses", !0}
!4 = !{!"llvm.loop.vectorize.enable", i1 false}
!5 = !{!"llvm.loop.unroll.disable"}
!6 = distinct !{!6, !3, !7}
!7 = !{!"llvm.loop.interleave.count", i32 4}
"""

# a tile function's name, and its pattern: bit k is set where operand k has stride 0 and not 1
_Kind = tuple[str, int]


def _vectorizes(inner: LoweredFunction) -> bool:
    """Whether nothing in it forbids that, as a call into the C library does."""
    functions = [f for module in inner.modules for f in module.functions]
    defined = {f.name for f in functions if not f.is_declaration}
    called = {f.name for f in functions} - defined
    if any(not name.startswith(("llvm.", "NRT_")) for name in called):
        return False
    return not any(" frem " in str(m) for m in inner.modules)


def _passed(t: _Text, value: str, source: str, compute: str, kind: str) -> str:
    """A stored value converted to the dtype it is computed in, as Numba passes that."""
    value = _convert(t, value, source, compute)
    value = _convert(t, value, compute, _PASSED.get(compute, compute))
    return t.new(f"trunc i8 {value} to i1") if kind == "i1" else value


def _tile(
    inner: LoweredFunction,
    kind: _Kind,
    stored: list[str],
    outs: int,
    out_dtypes: tuple[str, ...],
    in_dtypes: tuple[str, ...],
    compute: tuple[str, ...],
    tensors: list[int],
    scalars: list[int],
    raises: int,
    long: bool,
) -> str:
    """The function that computes one tile of at least one element.

    An element that raises is noted and the row goes on, or the loop could not be vectorized; the
    tile is given up at the end of the row.
    """
    name, pattern = kind
    vector = _vectorizes(inner)
    loop = (6 if long else 1) if vector else 2
    group = ", !llvm.access.group !0" if vector else ""
    t = _Text()
    t.put(f"%r = alloca {inner.result_ir}")
    t.put("%e = alloca ptr")
    start = [t.word("%pointers", k, "ptr") for k in range(len(stored))]
    step = [t.word("%steps", k) for k in range(len(stored))]
    values: dict[int, str] = {}
    for position, k in enumerate(scalars):
        word_kind, source = ("double", "float64") if in_dtypes[k] == "float64" else ("i64", "int64")
        word = t.word("%args", OPERANDS_AT + len(stored) + position, word_kind)
        values[k] = _passed(t, word, source, compute[k], inner.args_ir[k])
    t.put("br label %row")
    t.label("row")
    t.put("%row_number = phi i64 [0, %entry], [%next_row, %done]")
    base = []
    for k, (first, bytes_) in enumerate(zip(start, step, strict=True)):
        t.put(f"%at{k} = phi ptr [{first}, %entry], [%next{k}, %done]")
        t.late.append(f"  %next{k} = getelementptr i8, ptr %at{k}, i64 {bytes_}")
        base.append(f"%at{k}")
    single = {
        k: t.new(f"load {stored[k]}, ptr {base[k]}")
        for k in range(outs, len(stored))
        if pattern >> k & 1
    }
    t.put("br label %loop")
    t.label("loop")
    t.put("%i = phi i64 [0, %row], [%after, %next]")
    t.put("%bad = phi i32 [0, %row], [%worse, %next]")
    t.put(f"store {inner.result_ir} zeroinitializer, ptr %r")  # else it would be the last one

    def place(k: int) -> str:
        return t.new(f"getelementptr {stored[k]}, ptr {base[k]}, i64 %i")

    for position, k in enumerate(tensors, outs):
        value = single.get(position)
        value = value or t.new(f"load {stored[position]}, ptr {place(position)}{group}")
        values[k] = _passed(t, value, in_dtypes[k], compute[k], inner.args_ir[k])
    passed = "".join(f", {inner.args_ir[k]} {values[k]}" for k in range(len(values)))
    status = t.new(f'call i32 @"{inner.name}"(ptr %r, ptr %e{passed}){group}')
    results = _results(inner) if out_dtypes else []
    for k, (dtype, result) in enumerate(zip(out_dtypes, results, strict=True)):
        spot = (
            "%r" if outs == 1 else t.new(f"getelementptr {inner.result_ir}, ptr %r, i32 0, i32 {k}")
        )
        value = t.new(f"load {_STORED[result]}, ptr {spot}{group}")
        t.put(f"store {stored[k]} {_convert(t, value, result, dtype)}, ptr {place(k)}{group}")
    t.put(f"%worse = or i32 %bad, {status}")
    t.put("br label %next")
    t.label("next")
    t.put("%after = add nuw nsw i64 %i, 1")
    t.put("%end = icmp eq i64 %after, %columns")
    t.put(f"br i1 %end, label %done, label %loop, !llvm.loop !{loop}")
    t.label("done")
    t.lines += t.late
    t.put("%next_row = add nuw nsw i64 %row_number, 1")
    t.put("%last = icmp eq i64 %next_row, %rows")
    t.put("%fine = icmp eq i32 %worse, 0")
    t.put("%stop = select i1 %fine, i1 %last, i1 true")
    t.put("br i1 %stop, label %finish, label %row")
    t.label("finish")
    t.put(f"%status = select i1 %fine, i32 0, i32 {raises}")
    t.put("ret i32 %status")
    head = (
        f"define internal i32 @tile_{name}"
        "(ptr %pointers, ptr %steps, i64 %rows, i64 %columns, ptr %args)"
    )
    return f"{head} {{\nentry:\n{t}\n}}"


def _results(inner: LoweredFunction) -> list[str]:
    parts = getattr(inner.result, "types", None) or [inner.result]
    return [getattr(p, "literal_type", p).name for p in parts]


# --- body kernels -----------------------------------------------------------------------------


def body_kernel(
    body: Callable[..., Any],
    operands: Sequence[Operand],
    const_kinds: Sequence[str] = (),
    scalar_kinds: Sequence[str] = (),
    scratch: bool = False,
    arena: bool = False,
    *,
    reassociate: bool = False,
    counts: bool = False,
) -> int:
    """The address of a kernel that calls `body` on arrays over the operands.

    `operands` are (dtype name, ndim, contiguous), outputs first; `const_kinds` and `scalar_kinds`
    say "i", "f" or "b" of each const in the layout and each dynamic scalar.  `body_layout` makes
    the layout.  `reassociate` lets LLVM reorder sums in `body` itself, which vectorizes them.
    `counts`: the body is also called with the range [-1, -1) (of mut2 outputs); all others promise
    LLVM lo >= 0, or Numba's care for negative indices would keep loops over x[lo:hi] scalar.
    """
    return _body(
        body,
        tuple(operands),
        tuple(const_kinds),
        tuple(scalar_kinds),
        bool(scratch),
        bool(arena),
        bool(reassociate),
        bool(counts),
    )


@functools.cache
def _body(
    body: Callable[..., Any],
    operands: tuple[Operand, ...],
    const_kinds: tuple[str, ...],
    scalar_kinds: tuple[str, ...],
    scratch: bool,
    arena: bool,
    reassociate: bool,
    counts: bool,
) -> int:
    details = _check_body(body, operands, const_kinds, scalar_kinds, scratch, arena)

    def make() -> jit.Lowered:
        from numba import types

        def array(dtype: str, ndim: int, layout: str) -> Any:
            return types.Array(
                getattr(types, "boolean" if dtype == "bool" else dtype), ndim, layout
            )

        kinds = {"i": types.int64, "f": types.float64, "b": types.boolean}
        signature = [array(d, n, "C" if c else "A") for d, n, c in operands]
        signature += [kinds[k] for k in (*const_kinds, *scalar_kinds)]
        signature += [array("uint8", 1, "C")] * (scratch + arena)
        signature += [types.int64, types.int64]
        signature += [array("int64", 1, "C")] if details else []
        inner = lower(body, tuple(signature), reassociate=reassociate)
        text = _body_text(inner, operands, const_kinds, scalar_kinds, scratch, arena, details)
        if not counts:
            text = text.replace("entry:\n", f"entry:\n{_ASSUME}", 1)
            text += "declare void @llvm.assume(i1)\n"
        return jit.linked(inner, text)

    name = f"{body.__qualname__}, {' '.join(dtype for dtype, _, _ in operands)}"
    return jit.load(make, name)


_ASSUME = """  %forward = icmp sge i64 %lo, 0
  call void @llvm.assume(i1 %forward)
"""


def _check_body(
    body: Callable[..., Any],
    operands: tuple[Operand, ...],
    const_kinds: tuple[str, ...],
    scalar_kinds: tuple[str, ...],
    scratch: bool,
    arena: bool,
) -> bool:
    """Whether `body` takes details; an error where its parameters are not what it will be given."""
    for dtype, _, _ in operands:
        if dtype in STORED or dtype not in _STORED:
            raise ValueError(
                f"{body.__name__}: a body cannot take {dtype} arrays; convert them first"
            )
    names = list(inspect.signature(body).parameters)
    details = names[-1:] == ["details"]
    wanted = len(operands) + len(const_kinds) + len(scalar_kinds) + scratch + arena + 2 + details
    if len(names) != wanted:
        raise ValueError(
            f"{body.__name__}({', '.join(names)}) would be called with {len(operands)} arrays, "
            f"{len(const_kinds)} consts, {len(scalar_kinds)} scalars{', scratch' * scratch}"
            f"{', arena' * arena}, lo, hi{', details' * details}: {wanted} arguments"
        )
    return details


def _body_text(
    inner: LoweredFunction,
    operands: tuple[Operand, ...],
    const_kinds: tuple[str, ...],
    scalar_kinds: tuple[str, ...],
    scratch: bool,
    arena: bool,
    details: bool,
) -> str:
    t = _Text()
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
    for k, (dtype, ndim, _) in enumerate(operands):
        size = _SIZES[_STORED[dtype]]
        shape = [t.word("%layp", at + d) for d in range(ndim)]
        elements = [t.word("%layp", at + ndim + d) for d in range(ndim)]
        strides = [t.new(f"mul i64 {s}, {size}") for s in elements]
        array(t.word("%argp", OPERANDS_AT + k, "ptr"), size, shape, strides)
        at += 2 * ndim
    for i, kind in enumerate(const_kinds):
        number("%layp", at + i, kind)
    for i, kind in enumerate(scalar_kinds):
        number("%argp", OPERANDS_AT + len(operands) + i, kind)
    if scratch:
        size_word = t.word("%layp", at + len(const_kinds))
        array(t.word("%argp", SCRATCH_AT, "ptr"), 1, [size_word], ["1"])
    if arena:
        array(t.new("inttoptr i64 %arena to ptr"), 1, [str(ARG.ARENA_BYTES)], ["1"])
    values += ["%lo", "%hi"]
    if details:
        array("%argp", 8, ["6"], ["8"])
    return _body_entry(inner, t, values)


def _body_entry(inner: LoweredFunction, t: _Text, values: list[str]) -> str:
    result = getattr(inner.result, "type", inner.result)  # of an optional: the status it may be
    returns = "" if result.name == "none" else _STORED[result.name]
    passed = "".join(f", {k} {v}" for k, v in zip(inner.args_ir, values, strict=True))
    t.put(f"%r = alloca {returns or 'ptr'}")
    t.put("%e = alloca ptr")
    t.put(f'%s = call i32 @"{inner.name}"(ptr %r, ptr %e{passed})')
    t.put("switch i32 %s, label %raised [i32 0, label %value i32 -2, label %none]")
    t.label("value")
    status = "0"
    if returns:
        status = _convert(t, t.new(f"load {returns}, ptr %r"), result.name, "int32")
    t.put(f"ret i32 {status}")
    t.label("none")
    t.put("ret i32 0")
    t.label("raised")
    t.put(f"ret i32 {RAISED}")
    declared = "".join(f", {a}" for a in inner.args_ir)
    return f"""
declare i32 @"{inner.name}"(ptr, ptr{declared})
define i32 @entry(i64 %args, i64 %layout, i64 %lo, i64 %hi, i64 %arena) {{
entry:
{t}
}}
"""
