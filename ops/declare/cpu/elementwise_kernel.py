"""Kernels from scalar expressions, in the one form that the VM calls (`body_kernel`).

Only the expression goes through Numba.  What surrounds it (reading words, converting dtypes, the
loops over a tile) is LLVM text made here: it costs no type inference, and it can tell LLVM what
Python cannot say, namely that iterations are independent even when an output is an input.  Which
tiles there are is the plan's (`plan`), and one call of `walk` goes through them.

Invariant: an output shares memory with an operand element for element or not at all.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from flowvm.compiler import jit
from flowvm.compiler.native import LoweredFunction
from flowvm.ops.declare.cpu.expressions import (
    PASSED,
    is_long,
    lowered_expression,
    lowered_guarded,
    scope_of,
)
from flowvm.ops.declare.cpu.text import IN_MEMORY, Text, converted
from flowvm.ops.declare.cpu.walk import OPERANDS_AT, WALK, provide

__all__ = ["DIVISION_BY_ZERO", "elementwise_kernel"]

DIVISION_BY_ZERO = 2  # flowvm.errors.Status.DIVISION_BY_ZERO


class _Program(NamedTuple):
    """What a kernel computes; `elementwise_kernel` explains it."""

    expr: str
    args: tuple[str, ...]
    in_dtypes: tuple[str, ...]
    out_dtypes: tuple[str, ...]
    compute: tuple[str, ...]
    scalar_args: frozenset[str]
    raises: int
    once: str
    into: tuple[int, ...]

    @property
    def late(self) -> int:
        """The first of the arguments that are results of `once`."""
        last: Any = ast.parse(self.once).body[-1:]
        return len(self.args) - sum(len(expression.value.elts) for expression in last)

    @property
    def tensors(self) -> list[int]:
        """Which arguments are operands."""
        return [k for k, name in enumerate(self.args[: self.late]) if name not in self.scalar_args]

    @property
    def scalars(self) -> list[int]:
        """Which are dynamic scalars."""
        return [k for k, name in enumerate(self.args[: self.late]) if name in self.scalar_args]

    @property
    def outs(self) -> int:
        """How many operands are outputs only."""
        return 0 if self.into else len(self.out_dtypes)

    @property
    def targets(self) -> Sequence[int]:
        """The operands that results are stored in."""
        return self.into or range(self.outs)

    @property
    def stored(self) -> list[str]:
        """LLVM's type of each operand's elements, outputs first."""
        inputs = (self.in_dtypes[k] for k in self.tensors)
        return [IN_MEMORY[d] for d in (*self.out_dtypes[: self.outs], *inputs)]


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
    once: str = "",
    into: Sequence[int] = (),
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

    `once` is a program of the dynamic scalars, evaluated before a tile: its results, a tuple, are
    the last of `args`, "float64" each.  `into` says which tensors the results of `expr` replace:
    these are its outputs then, and there are no others.
    """
    program = _Program(
        expr, tuple(args), tuple(in_dtypes), tuple(out_dtypes), tuple(compute),
        frozenset(scalar_args), int(raises), once, tuple(into),
    )  # fmt: skip
    return _kernel(program, pattern)


@functools.cache
def _kernel(p: _Program, pattern: int | None) -> int:
    if not len(p.args) == len(p.in_dtypes) == len(p.compute):
        raise ValueError(
            f"{p.expr!r}: {len(p.args)} args, in_dtypes={p.in_dtypes}, compute={p.compute}"
        )
    if unknown := {*p.in_dtypes, *p.out_dtypes, *p.compute} - IN_MEMORY.keys():
        raise ValueError(f"{p.expr!r}: no kernel can read or write {', '.join(sorted(unknown))}")
    provide()
    scope = scope_of(f"{p.once}\n{p.expr}")

    def make() -> jit.Lowered:
        inner = lowered_expression(p.expr, p.args, p.compute, scope)
        rare = lowered_guarded(p.expr, p.args, p.compute, scope)
        before = _lowered_once(p, scope)
        text = _text(p, inner, rare, before, pattern)
        return jit.linked(_joined(inner, *rare, *before), text, loops_only=True)

    name = f"{p.expr}, {' '.join(p.in_dtypes)} -> {' '.join(p.out_dtypes)}"
    return jit.load(make, name)


def _lowered_once(p: _Program, scope: dict[str, Any]) -> tuple[LoweredFunction, ...]:
    """What is evaluated before a tile, if anything is."""
    names = tuple(p.args[k] for k in p.scalars)
    kinds = tuple(p.in_dtypes[k] for k in p.scalars)
    return (lowered_expression(p.once, names, kinds, scope),) if p.once else ()


def _joined(inner: LoweredFunction, *more: LoweredFunction) -> LoweredFunction:
    """`inner` with the modules of others, to be linked as one program."""
    modules = {id(m): m for f in (inner, *more) for m in f.modules}
    helpers = inner.helpers.union(*(f.helpers | {f.name} for f in more))
    return inner._replace(modules=list(modules.values()), helpers=helpers)


def _text(
    p: _Program,
    inner: LoweredFunction,
    rare: tuple[LoweredFunction, ...],
    before: tuple[LoweredFunction, ...],
    only: int | None,
) -> str:
    """A function for a tile of each kind that can be met, their table, and the entry, which is one
    call of `walk`.

    "dense" is for rows whose strides are all 1, "single<k>" for a stride of 0 in tensor input k and
    1 elsewhere; the plan (`declare/cpu/plan.py`) makes one of these of all others.  `only` is the
    pattern of the one kind that is wanted, None for all of them.
    """
    outs, count = p.outs, len(p.stored)
    kinds = [("dense", 0), *((f"single{k}", 1 << k) for k in range(outs, count))]
    kinds = [kind for kind in kinds if only in (None, kind[1])]
    whole = _Tiles(p, inner, before)
    guarded = [_Tiles(p, f, before, stores=k > 0) for k, f in enumerate(rare)]  # the first one asks
    functions = []
    for name, pattern in kinds:
        functions.append(whole.tile(f"whole_{name}" if rare else name, pattern))
        if rare:
            check, near = guarded
            functions.append(check.tile(f"check_{name}", pattern))
            functions.append(near.tile(f"near_{name}", pattern))
            functions.append(_choice(name))
    table = ", ".join(
        f"i64 {pattern}, i64 ptrtoint (ptr @tile_{name} to i64)" for name, pattern in kinds
    )
    passed = "i64 %args, i64 %layout, i64 %lo, i64 %hi"
    return "\n".join(
        [
            *map(_declared, (inner, *rare, *before)),
            f"declare i32 @{WALK}(i64, i64, i64, i64, i64, i64, ptr)",
            f"@table = internal constant [{2 * len(kinds)} x i64] [{table}]",
            *functions,
            f"""
define i32 @entry(i64 %args, i64 %layout, i64 %lo, i64 %hi) {{
  %s = call i32 @{WALK}({passed}, i64 {outs}, i64 {count}, ptr @table)
  ret i32 %s
}}""",
            _LOOP_METADATA,
        ]
    )


def _declared(function: LoweredFunction) -> str:
    return f'declare i32 @"{function.name}"(ptr, ptr{"".join(f", {a}" for a in function.args_ir)})'


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
_PLAIN, _SCALAR, _FOURFOLD = 1, 2, 6  # kinds of loops


def _vectorizes(inner: LoweredFunction) -> bool:
    """Whether nothing in it forbids that, as a call into the C library does."""
    functions = [f for module in inner.modules for f in module.functions]
    defined = {f.name for f in functions if not f.is_declaration}
    called = {f.name for f in functions} - defined
    if any(not name.startswith(("llvm.", "NRT_")) for name in called):
        return False
    return not any(" frem " in str(m) for m in inner.modules)


class _Tiles:
    """The functions that compute one tile, of at least one element, with a lowered expression.

    An element that raises is noted and the row goes on, or the loop could not be vectorized; the
    tile is given up at the end of the row.  The loops of a long expression take four vectors at a
    time: a chain of operations leaves the vector unit idle between two of its steps (exp and tanh
    take 0.82 of the time).
    """

    def __init__(
        self,
        p: _Program,
        inner: LoweredFunction,
        before: tuple[LoweredFunction, ...],
        stores: bool = True,
    ) -> None:
        self.p, self.inner, self.before = p, inner, before
        self.out_dtypes = p.out_dtypes if stores else ()
        vector = _vectorizes(inner)
        self.loop_kind = (_FOURFOLD if is_long(p.expr) else _PLAIN) if vector else _SCALAR
        self.group = ", !llvm.access.group !0" if vector else ""

    def tile(self, name: str, pattern: int) -> str:
        """The function @tile_<name>; bit k of `pattern` is set where operand k has stride 0 in a
        row, and not 1.
        """
        t = Text()
        t.put(f"%r = alloca {self.inner.result_ir}")
        t.put("%e = alloca ptr")
        count = len(self.p.stored)
        start = [t.word("%pointers", k, "ptr") for k in range(count)]
        step = [t.word("%steps", k) for k in range(count)]
        values = self._scalars(t)
        t.put("br label %row")
        self._row(t, start, step)
        singles = self._singles(t, pattern)
        t.put("br label %loop")
        self._element(t, values, singles)
        self._ends(t)
        head = (
            f"define internal i32 @tile_{name}"
            "(ptr %pointers, ptr %steps, i64 %rows, i64 %columns, ptr %args)"
        )
        return f"{head} {{\nentry:\n{t}\n}}"

    def _scalars(self, t: Text) -> dict[int, str]:
        """The values of the arguments that are dynamic scalars, and of what follows from these."""
        p, values, words = self.p, dict[int, str](), ""
        for position, k in enumerate(p.scalars):
            kind, source = (
                ("double", "float64") if p.in_dtypes[k] == "float64" else ("i64", "int64")
            )
            word = t.word("%args", OPERANDS_AT + len(p.stored) + position, kind)
            words += f", {kind} {word}"
            values[k] = self._passed(t, word, source, k)
        for function in self.before:
            t.put(f"%o = alloca {function.result_ir}")
            t.put(f'call i32 @"{function.name}"(ptr %o, ptr %e{words})')
            for at, result in enumerate(_results(function)):
                spot = t.new(f"getelementptr {function.result_ir}, ptr %o, i32 0, i32 {at}")
                number = t.new(f"load {IN_MEMORY[result]}, ptr {spot}")
                values[p.late + at] = self._passed(t, number, result, p.late + at)
        return values

    def _passed(self, t: Text, value: str, source: str, k: int) -> str:
        """A stored value as argument k: in the dtype it is computed in, as Numba passes that."""
        compute = self.p.compute[k]
        value = converted(t, value, source, compute)
        value = converted(t, value, compute, PASSED.get(compute, compute))
        return t.new(f"trunc i8 {value} to i1") if self.inner.args_ir[k] == "i1" else value

    def _row(self, t: Text, start: list[str], step: list[str]) -> None:
        """The head of the loop over rows: where each operand's row is."""
        t.label("row")
        t.put("%row_number = phi i64 [0, %entry], [%next_row, %done]")
        for k, (first, bytes_) in enumerate(zip(start, step, strict=True)):
            t.put(f"%at{k} = phi ptr [{first}, %entry], [%next{k}, %done]")
            t.late.append(f"  %next{k} = getelementptr i8, ptr %at{k}, i64 {bytes_}")

    def _singles(self, t: Text, pattern: int) -> dict[int, str]:
        """The one element that a row has of each input with stride 0."""
        stored = self.p.stored
        return {
            k: t.new(f"load {stored[k]}, ptr %at{k}")
            for k in range(self.p.outs, len(stored))
            if pattern >> k & 1
        }

    def _element(self, t: Text, values: dict[int, str], singles: dict[int, str]) -> None:
        """The loop over a row but for its end: inputs loaded, the call, results stored."""
        p, inner, outs = self.p, self.inner, self.p.outs
        stored, group = p.stored, self.group
        t.label("loop")
        t.put("%i = phi i64 [0, %row], [%after, %next]")
        t.put("%bad = phi i32 [0, %row], [%worse, %next]")
        t.put(f"store {inner.result_ir} zeroinitializer, ptr %r")  # else it would be the last one

        def place(k: int) -> str:
            return t.new(f"getelementptr {stored[k]}, ptr %at{k}, i64 %i")

        for position, k in enumerate(p.tensors, outs):
            value = singles.get(position)
            value = value or t.new(f"load {stored[position]}, ptr {place(position)}{group}")
            values[k] = self._passed(t, value, p.in_dtypes[k], k)
        passed = "".join(f", {inner.args_ir[k]} {values[k]}" for k in range(len(values)))
        status = t.new(f'call i32 @"{inner.name}"(ptr %r, ptr %e{passed}){group}')
        results = _results(inner) if self.out_dtypes else []
        for k, (dtype, result) in enumerate(zip(self.out_dtypes, results, strict=True)):
            spot = "%r"
            if len(results) > 1:
                spot = t.new(f"getelementptr {inner.result_ir}, ptr %r, i32 0, i32 {k}")
            value, to = t.new(f"load {IN_MEMORY[result]}, ptr {spot}{group}"), place(p.targets[k])
            t.put(f"store {IN_MEMORY[dtype]} {converted(t, value, result, dtype)}, ptr {to}{group}")
        t.put(f"%worse = or i32 %bad, {status}")
        t.put("br label %next")

    def _ends(self, t: Text) -> None:
        """The ends of both loops, and of the function."""
        t.label("next")
        t.put("%after = add nuw nsw i64 %i, 1")
        t.put("%end = icmp eq i64 %after, %columns")
        t.put(f"br i1 %end, label %done, label %loop, !llvm.loop !{self.loop_kind}")
        t.label("done")
        t.lines += t.late
        t.put("%next_row = add nuw nsw i64 %row_number, 1")
        t.put("%last = icmp eq i64 %next_row, %rows")
        t.put("%fine = icmp eq i32 %worse, 0")
        t.put("%stop = select i1 %fine, i1 %last, i1 true")
        t.put("br i1 %stop, label %finish, label %row")
        t.label("finish")
        t.put(f"%status = select i1 %fine, i32 0, i32 {self.p.raises}")
        t.put("ret i32 %status")


def _results(inner: LoweredFunction) -> list[str]:
    parts = getattr(inner.result, "types", None) or [inner.result]
    return [getattr(p, "literal_type", p).name for p in parts]
