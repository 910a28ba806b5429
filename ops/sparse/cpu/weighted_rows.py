"""The inner loop of a product: rows of a matrix, each times a number, added up in registers.

A loop that LLVM vectorizes by itself adds to memory: it cannot know that what is read lies apart.
"""

from __future__ import annotations

from typing import Any

from flowvm.compiler.native import Intrinsic
from flowvm.ops.declare.cpu.vector_code import Emitter, address_of, emitter, same_reals

Array = Any
BLOCKS = (8, 4, 2, 1)  # vectors of sums that are held at a time
AHEAD = 8  # entries: how far rows are asked for before they are added


def _python(
    to: Array, to_at: int, values: Array, begin: int, col: Array, first: int, x: Array, origin: int,
    count: int, left: int, width: int,
) -> None:  # fmt: skip
    rows = x.reshape(-1, width) if width else x.reshape(len(x), 0)
    total = values[begin : begin + count] @ rows[col[first : first + count]]
    to[to_at : to_at + width] = total


class _Rows(Emitter):
    """The function, and its blocks of columns."""

    def block(self, b: Any, args: Any, at: Any, vectors: int, mask: Any = None) -> None:
        """to[at:] = the sums, for so many vectors of columns, the last one under a mask."""
        to, values, col, x, count, left, width = args
        n = self.i64

        def turn(e: Any, sums: list[Any]) -> list[Any]:
            factor = self.splat(b, b.load(b.gep(values, [e])))
            row = b.gep(x, [b.add(b.mul(b.load(b.gep(col, [e])), width), at)])
            if vectors >= 2:  # more than a line: not what stays in the first cache
                later = b.add(e, n(AHEAD))
                later = b.select(b.icmp_signed("<", later, left), later, e)
                place = b.add(b.mul(b.load(b.gep(col, [later])), width), at)
                for j in range(vectors):
                    self.prefetch(b, b.gep(x, [b.add(place, n(j * self.lanes))]))
            loaded = [self.load(b, row, n(j * self.lanes), mask) for j in range(vectors)]
            return [self.fma(b, factor, v, s) for v, s in zip(loaded, sums, strict=True)]

        _, sums = self.counted(b, count, 1, [self.zero] * vectors, turn)
        for j, total in enumerate(sums):
            self.store(b, total, to, b.add(at, n(j * self.lanes)), mask)

    def weighted_rows(self) -> Any:
        """(to, values, col, x, count, left, width)"""
        n, pointer = self.i64, self.real.as_pointer()

        def emit(b: Any, function: Any) -> None:
            args = function.args
            width, at = args[-1], n(0)
            for vectors in BLOCKS:
                step = vectors * self.lanes

                def turn(k: Any, state: list[Any], vectors: int = vectors, at: Any = at) -> Any:
                    self.block(b, args, b.add(at, k), vectors)
                    return state

                did, _ = self.counted(b, b.sub(width, at), step, [], turn)
                at = b.add(at, did)
            rest = b.sub(width, at)
            with b.if_then(b.icmp_signed(">", rest, n(0))):
                self.block(b, args, at, 1, self.mask(b, rest))
            b.ret_void()

        kinds = [pointer, pointer, n.as_pointer(), pointer, n, n, n]
        return self.shared("weighted_rows", kinds, emit)


def _define() -> Any:
    from numba import types

    def typing(
        typingctx: Any, to: Any, to_at: Any, values: Any, begin: Any, col: Any, first: Any, x: Any,
        origin: Any, count: Any, left: Any, width: Any,
    ) -> Any:  # fmt: skip
        n = types.int64
        if not same_reals(to, values, x) or col.dtype != n:
            return None

        def codegen(context: Any, builder: Any, sig: Any, v: Any) -> Any:
            e = emitter(_Rows, builder.module, str(to.dtype))
            spots = [address_of(context, builder, sig, v, k) for k in (0, 2, 4, 6)]
            builder.call(e.weighted_rows(), [*spots, *v[8:]])
            return context.get_dummy_value()

        return types.void(to, n, values, n, col, n, x, n, n, n, n), codegen

    return typing


weighted_rows = Intrinsic(_python, _define)
weighted_rows.__doc__ = """to[to_at:][:width] = the sum of values[begin + e] x[col[first + e]] over
`count` entries e, inside a body.

weighted_rows(to, to_at, values, begin, col, first, x, 0, count, left, width): x has rows of
`width`, and is flat; there are `left` entries from `first` on, whose rows may be asked for early.
"""
