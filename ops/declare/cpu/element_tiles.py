"""The functions that compute one tile of an elementwise kernel, as LLVM text.

A tile is rows of dense elements, of which each input may have one a row instead.  The walk
(`walk`) calls these with a tile's pointers and steps; which of them, the kernel's table says
(`elementwise_kernel`).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, NamedTuple

from flowvm.compiler.native import LoweredFunction
from flowvm.ops.declare.cpu.expressions import PASSED, is_long
from flowvm.ops.declare.cpu.text import IN_MEMORY, PARTS, Text, converted
from flowvm.ops.declare.cpu.walk import OPERANDS_AT

# !0 says that an access touches nothing which another iteration touches.
LOOP_METADATA = """
!0 = distinct !{}
!1 = distinct !{!1, !3}
!2 = distinct !{!2, !4, !5}
!3 = !{!"llvm.loop.parallel_accesses", !0}
!4 = !{!"llvm.loop.vectorize.enable", i1 false}
!5 = !{!"llvm.loop.unroll.disable"}
!6 = distinct !{!6, !3, !7}
!7 = !{!"llvm.loop.interleave.count", i32 4}
"""
DIVISION_BY_ZERO = 2  # flowvm.errors.Status.DIVISION_BY_ZERO
NO_PROBABILITY = 23  # flowvm.errors.Status.NO_PROBABILITY
_PLAIN, _SCALAR, _FOURFOLD = 1, 2, 6  # kinds of loops


class Program(NamedTuple):
    """The computation of a kernel: `expr`, for every element.

    `args`, `in_dtypes` and `compute` go together: the names in `expr`, the dtypes in memory, and
    the dtypes that the expression is computed in.  The names in `scalar_args` are dynamic scalars:
    words of `args` after the operands, in order, whose dtype says how to read the bits, "float64"
    or "int64" ("bool" is an int64 too).  Several outputs are a tuple in `expr`, which may also be a
    program: lines that name intermediate values, then the expression.  Numbers in `expr` take the
    dtype that it is computed in.  If evaluating it raises, the kernel stops and returns `raises`.

    `once` is a program of the dynamic scalars, evaluated before a tile: its results, a tuple, are
    the last of `args`, "float64" each.  `into` says which tensors the results of `expr` replace:
    these are its outputs then, and there are no others.
    """

    expr: str
    args: tuple[str, ...]
    in_dtypes: tuple[str, ...]
    out_dtypes: tuple[str, ...]
    compute: tuple[str, ...]
    scalar_args: frozenset[str] = frozenset()
    raises: int = DIVISION_BY_ZERO
    once: str = ""
    into: tuple[int, ...] = ()

    @property
    def late(self) -> int:
        """The first of the arguments that are results of `once`."""
        last: Any = ast.parse(self.once).body[-1:]
        return len(self.args) - sum(len(expression.value.elts) for expression in last)

    @property
    def tensors(self) -> list[int]:
        """The indices of the arguments that are operands."""
        return [k for k, name in enumerate(self.args[: self.late]) if name not in self.scalar_args]

    @property
    def scalars(self) -> list[int]:
        """The indices of the arguments that are dynamic scalars."""
        return [k for k, name in enumerate(self.args[: self.late]) if name in self.scalar_args]

    @property
    def outs(self) -> int:
        """The number of operands that are outputs only."""
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


def _vectorizes(inner: LoweredFunction) -> bool:
    """Return True if no function prevents vectors, as a call into the C library does."""
    functions = [f for module in inner.modules for f in module.functions]
    defined = {f.name for f in functions if not f.is_declaration}
    called = {f.name for f in functions} - defined
    if any(not name.startswith(("llvm.", "NRT_")) for name in called):
        return False
    return not any(" frem " in str(m) for m in inner.modules)


class Tiles:
    """The functions that compute one tile, of at least one element, with a lowered expression.

    An element that raises is noted and the row goes on, or the loop could not be vectorized; the
    tile is given up at the end of the row.  The loops of a long expression take four vectors at a
    time: a chain of operations leaves the vector unit idle between two of its steps (exp and tanh
    take 0.82 of the time).
    """

    def __init__(
        self,
        p: Program,
        inner: LoweredFunction,
        before: tuple[LoweredFunction, ...],
        stores: bool = True,
        check: LoweredFunction | None = None,
    ) -> None:
        """`check` raises for elements of which `inner` does not."""
        self.p, self.inner, self.before, self.check = p, inner, before, check
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
        if self.check is not None:
            t.put(f"%c = alloca {self.check.result_ir}")
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
        """Emit the values of dynamic scalars, and of the numbers that follow from them."""
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
        return t.new(f"trunc i8 {value} to i1") if self._flat[k] == ("i1",) else value

    @property
    def _flat(self) -> list[tuple[str, ...]]:
        """Return LLVM's types of the values passed for each argument: two for a complex number."""
        types = iter(self.inner.args_ir)
        return [tuple(next(types) for _ in range(1 + (c in PARTS))) for c in self.p.compute]

    def _argument(self, t: Text, k: int, value: str) -> str:
        """Argument k in a call."""
        kinds = self._flat[k]
        if len(kinds) == 1:
            return f", {kinds[0]} {value}"
        stored = IN_MEMORY[self.p.compute[k]]
        parts = [t.new(f"extractvalue {stored} {value}, {at}") for at in range(len(kinds))]
        return "".join(f", {kind} {part}" for kind, part in zip(kinds, parts, strict=True))

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
        t.put("%bad = phi i1 [false, %row], [%worse, %next]")
        t.put(f"store {inner.result_ir} zeroinitializer, ptr %r")  # else it would be the last one

        def place(k: int) -> str:
            return t.new(f"getelementptr {stored[k]}, ptr %at{k}, i64 %i")

        for position, k in enumerate(p.tensors, outs):
            value = singles.get(position)
            value = value or t.new(f"load {stored[position]}, ptr {place(position)}{group}")
            values[k] = self._passed(t, value, p.in_dtypes[k], k)
        passed = "".join(self._argument(t, k, values[k]) for k in range(len(values)))
        status = t.new(f'call i32 @"{inner.name}"(ptr %r, ptr %e{passed}){group}')
        results = _results(inner) if self.out_dtypes else []
        for k, (dtype, result) in enumerate(zip(self.out_dtypes, results, strict=True)):
            spot = "%r"
            if len(results) > 1:
                spot = t.new(f"getelementptr {inner.result_ir}, ptr %r, i32 0, i32 {k}")
            value, to = t.new(f"load {IN_MEMORY[result]}, ptr {spot}{group}"), place(p.targets[k])
            t.put(f"store {IN_MEMORY[dtype]} {converted(t, value, result, dtype)}, ptr {to}{group}")
        if self.check is not None:
            status = t.new(f'call i32 @"{self.check.name}"(ptr %c, ptr %e{passed}){group}')
        raised = t.new(f"icmp ne i32 {status}, 0")
        t.put(f"%worse = or i1 %bad, {raised}")
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
        t.put("%stop = select i1 %worse, i1 true, i1 %last")
        t.put("br i1 %stop, label %finish, label %row")
        t.label("finish")
        t.put(f"%status = select i1 %worse, i32 {self.p.raises}, i32 0")
        t.put("ret i32 %status")


def _results(inner: LoweredFunction) -> list[str]:
    parts = getattr(inner.result, "types", None) or [inner.result]
    return [getattr(p, "literal_type", p).name for p in parts]
