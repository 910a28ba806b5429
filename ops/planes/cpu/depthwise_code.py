"""The LLVM code of `multiply_segments` of `ops/planes/cpu/conv_depthwise.py`.

Imported only to compile.  Invariant: an element's products are added in the order of the segments,
and of the vectors in each, one fused multiply-add a product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from flowvm.ops.declare.cpu.vector_code import Emitter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowvm.private.code_types import Function, Value


def emit_segments(dtype: str, lanes: int) -> ir.Module:
    """A module whose function `entry` is `multiply_segments`."""
    e = Emitter(ir.Module(), dtype, lanes)
    n, pointer = e.i64, e.pointer
    kinds = [n, e.i32.as_pointer(), n, pointer, n, pointer, n, pointer]
    entry = e.function("entry", kinds)
    b = ir.IRBuilder(entry.append_basic_block("entry"))
    variants = []
    for to in range(3):
        variants.append(e.function(f"segments_{to}", kinds))
        _emit_variant(e, variants[-1], to)
    e.switched(b, entry.args[0], variants)
    return e.module


def _emit_variant(e: Emitter, function: Function, to: int) -> None:
    """The loop over segments that adds to y, x or w, whose numbers are 0, 1 and 2."""
    _, table, segments, x, x_step, y, y_step, w = function.args
    n, b = e.i64, ir.IRBuilder(function.append_basic_block("entry"))

    def segment(s: object) -> None:
        line = b.gep(table, [b.mul(s, n(4))])
        x_at, y_at, w_at, count = (
            b.sext(b.load(b.gep(line, [n(k)])), n) for k in range(4)
        )  # fmt: skip
        own = e.load(b, w, w_at)
        steps = b.gep(x, [x_at]), x_step, b.gep(y, [y_at]), y_step

        def vectors(i: object) -> tuple[Value, Value, Value, Value]:
            xs, ys = b.gep(steps[0], [b.mul(i, steps[1])]), b.gep(steps[2], [b.mul(i, steps[3])])
            return xs, ys, e.load(b, xs, 0), e.load(b, ys, 0)

        if to == 2:

            def added(i: object, state: Sequence[object]) -> list[Value]:
                _, _, left, right = vectors(i)
                return [e.fma(b, left, right, state[0])]

            _, (total,) = e.counted(b, count, 1, [own], added)
            e.store(b, total, w, w_at)
            return

        def multiplied(i: object) -> None:
            xs, ys, left, right = vectors(i)
            if to == 0:
                e.store(b, e.fma(b, own, left, right), ys, 0)
            else:
                e.store(b, e.fma(b, own, right, left), xs, 0)

        e.loop(b, n(0), count, 1, multiplied)

    e.loop(b, n(0), segments, 1, segment)
    b.ret_void()
