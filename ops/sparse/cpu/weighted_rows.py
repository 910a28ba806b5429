"""The inner loops of a product: rows of a matrix, each times a number, added up in registers.

A loop that LLVM vectorizes by itself adds to memory: it cannot know that what is read lies apart.
Rows of one, two, four or eight vectors have loops of their own, without a test of the width; rows
of few lines are asked for early, since the processor cannot guess them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowvm.compiler.native import Intrinsic
from flowvm.meta.arrays import Array
from flowvm.ops.declare.cpu.vector_code import Emitter, emitter, same_reals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowvm.private.code_types import (
        Builder,
        CodeContext,
        Function,
        Generator,
        Signature,
        Type,
        Typing,
        TypingContext,
        Value,
    )


BLOCKS = (8, 4, 2, 1)  # vectors of sums that are held at a time
AHEAD = 8  # entries: how far rows are asked for before they are added


def _python(
    out: Array, values: Array, bounds: Array, col: Array, x: Array, lo: int, hi: int, width: int
) -> None:
    if width == 0:
        return
    rows = x.reshape(-1, width)
    for r in range(lo, hi):
        e = slice(bounds[r], bounds[r + 1])
        out[r * width : (r + 1) * width] = values[e] @ rows[col[e]]


class _Rows(Emitter):
    """The function, its loops over rows, and their blocks of columns."""

    def block(
        self, b: Builder, args: Sequence[Value], row: Value, at: Value, vectors: int,
        mask: object = None, early: Value = None,
    ) -> None:  # fmt: skip
        """out[row][at:] = the sums, for so many vectors of columns, the last one under a mask.

        `early` is the number of all entries, where their rows are to be asked for.
        """
        out, values, bounds, col, x, _, _, width = args
        n = self.i64
        begin, end = (b.load(b.gep(bounds, [b.add(row, n(k))])) for k in (0, 1))

        def turn(k: Value, sums: Sequence[object]) -> list[Value]:
            e = b.add(begin, k)
            factor = self.splat(b, b.load(b.gep(values, [e])))
            line = b.gep(x, [b.add(b.mul(b.load(b.gep(col, [e])), width), at)])
            if early is not None:
                later = b.add(e, n(AHEAD))
                later = b.select(b.icmp_signed("<", later, early), later, e)
                place = b.mul(b.load(b.gep(col, [later])), width)
                for j in range(vectors):
                    self.prefetch(b, b.gep(x, [b.add(place, n(j * self.lanes))]))
            loaded = [self.load(b, line, n(j * self.lanes), mask) for j in range(vectors)]
            return [self.fma(b, factor, v, s) for v, s in zip(loaded, sums, strict=True)]

        _, sums = self.counted(b, b.sub(end, begin), 1, [self.zero] * vectors, turn)
        to = b.gep(out, [b.add(b.mul(row, width), at)])
        for j, total in enumerate(sums):
            self.store(b, total, to, n(j * self.lanes), mask)

    def weighted_rows(self) -> Function:
        """(out, values, bounds, col, x, lo, hi, width)"""
        n, pointer = self.i64, self.real.as_pointer()

        def emit(b: Builder, function: Function) -> None:
            args = function.args
            bounds, lo, hi, width = (args[k] for k in (2, 5, 6, 7))
            for vectors in BLOCKS:
                exact = n(vectors * self.lanes)
                with b.if_then(b.icmp_signed("==", width, exact)):
                    own = [*args[:-1], exact]
                    early = b.load(b.gep(bounds, [hi])) if vectors > 1 else None
                    self.equal_rows(b, own, lo, hi, vectors, early)
                    b.ret_void()
            self.loop(b, lo, hi, 1, lambda r: self.any_row(b, args, r, width))
            b.ret_void()

        kinds = [pointer, pointer, n.as_pointer(), n.as_pointer(), pointer, n, n, n]
        return self.shared("weighted_rows", kinds, emit)

    def equal_rows(
        self, b: Builder, args: Sequence[Value], lo: Value, hi: Value, vectors: int, early: Value
    ) -> None:
        """Rows of so many vectors and no more."""
        zero = self.i64(0)
        self.loop(
            b, lo, hi, 1, lambda r: self.block(b, args, r, zero, vectors, early=early)
        )  # fmt: skip

    def any_row(self, b: Builder, args: Sequence[Value], row: Value, width: Value) -> None:
        """A row of any width: its blocks, the largest first."""
        n, at = self.i64, self.i64(0)
        for vectors in BLOCKS:

            def turn(
                k: Value, state: list[Value], vectors: int = vectors, at: Value = at
            ) -> list[Value]:
                self.block(b, args, row, b.add(at, k), vectors)
                return state

            did, _ = self.counted(b, b.sub(width, at), vectors * self.lanes, [], turn)
            at = b.add(at, did)
        rest = b.sub(width, at)
        with b.if_then(b.icmp_signed(">", rest, n(0))):
            self.block(b, args, row, at, 1, self.mask(b, rest))


def _define() -> Typing:
    from numba import types

    def typing(
        typingctx: TypingContext, out: Type, values: Type, bounds: Type, col: Type, x: Type,
        lo: Type, hi: Type, width: Type,
    ) -> tuple[Signature, Generator] | None:  # fmt: skip
        n = types.int64
        if not same_reals(out, values, x) or bounds.dtype != n or col.dtype != n:
            return None

        def codegen(
            context: CodeContext, builder: Builder, sig: Signature, v: Sequence[Value]
        ) -> Value:
            e = emitter(_Rows, builder.module, str(out.dtype))
            arrays = [context.make_array(sig.args[k])(context, builder, v[k]) for k in range(5)]
            builder.call(e.weighted_rows(), [*[a.data for a in arrays], *v[5:]])
            return context.get_dummy_value()

        return types.void(out, values, bounds, col, x, n, n, n), codegen

    return typing


weighted_rows = Intrinsic(_python, _define)
weighted_rows.__doc__ = """out[r] = the sum of values[e] x[col[e]] over the entries e of row r, for
rows from `lo` to `hi`, inside a body.

weighted_rows(out, values, bounds, col, x, lo, hi, width): out and x have rows of `width`, and are
flat.  Bounds and columns were checked.
"""
