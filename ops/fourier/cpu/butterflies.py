"""Passes of a Fourier transform on vectors: the real parts of all numbers, then the imaginary ones.

A loop over complex numbers does not become vectors, and one over their parts would have to know
that sixteen places lie apart.  A vector is as wide as the processor's where the pass's stride has
room for it, else four numbers.  Products are rounded before they are added, as elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from flowvm.compiler.native import Intrinsic
from flowvm.meta.arrays import Array
from flowvm.ops.declare.cpu.vector_code import Emitter, emitter, lanes_of, same_reals

if TYPE_CHECKING:
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

SHORT = 4  # numbers of a vector in passes of a small stride
Pair: TypeAlias = "tuple[Value, Value]"  # a real and an imaginary part


def _by_two(y: Array, x: Array, roots: Array, m: int, s: int, way: float) -> None:
    n = len(x) // 2
    for p in range(m):
        w = roots[p * s]
        for q in range(s):
            i, k = q + s * p, q + s * 2 * p
            j = i + s * m
            y[k], y[n + k] = x[i] + x[j], x[n + i] + x[n + j]
            real, imag = x[i] - x[j], x[n + i] - x[n + j]
            y[k + s] = real * w.real - imag * w.imag
            y[n + k + s] = real * w.imag + imag * w.real


def _by_four(y: Array, x: Array, roots: Array, m: int, s: int, way: float) -> None:
    n, w, step = len(x) // 2, y.dtype.type(way), s * m
    for p in range(m):
        w1, w2, w3 = roots[p * s], roots[2 * p * s], roots[3 * p * s]
        for q in range(s):
            a, k = q + s * p, q + s * 4 * p
            b, c, d = a + step, a + 2 * step, a + 3 * step
            even, even_i = x[a] + x[c], x[n + a] + x[n + c]
            odd, odd_i = x[b] + x[d], x[n + b] + x[n + d]
            over, over_i = x[a] - x[c], x[n + a] - x[n + c]
            turned, turned_i = w * (x[n + b] - x[n + d]), -w * (x[b] - x[d])
            y[k], y[n + k] = even + odd, even_i + odd_i
            real, imag = over + turned, over_i + turned_i
            y[k + s] = real * w1.real - imag * w1.imag
            y[n + k + s] = real * w1.imag + imag * w1.real
            real, imag = even - odd, even_i - odd_i
            y[k + 2 * s] = real * w2.real - imag * w2.imag
            y[n + k + 2 * s] = real * w2.imag + imag * w2.real
            real, imag = over - turned, over_i - turned_i
            y[k + 3 * s] = real * w3.real - imag * w3.imag
            y[n + k + 3 * s] = real * w3.imag + imag * w3.real


def _first_by_four(y: Array, x: Array, roots: Array, m: int, way: float) -> None:
    n, w = len(x), y.dtype.type(way)
    for p in range(m):
        a, b, c, d = x[p], x[p + m], x[p + 2 * m], x[p + 3 * m]
        w1, w2, w3 = roots[p], roots[2 * p], roots[3 * p]
        even, odd, over, turn = a + c, b + d, a - c, b - d
        turned, turned_i = w * turn.imag, -w * turn.real
        y[4 * p], y[n + 4 * p] = even.real + odd.real, even.imag + odd.imag
        real, imag = over.real + turned, over.imag + turned_i
        y[4 * p + 1] = real * w1.real - imag * w1.imag
        y[n + 4 * p + 1] = real * w1.imag + imag * w1.real
        real, imag = even.real - odd.real, even.imag - odd.imag
        y[4 * p + 2] = real * w2.real - imag * w2.imag
        y[n + 4 * p + 2] = real * w2.imag + imag * w2.real
        real, imag = over.real - turned, over.imag - turned_i
        y[4 * p + 3] = real * w3.real - imag * w3.imag
        y[n + 4 * p + 3] = real * w3.imag + imag * w3.real


class _Passes(Emitter):
    """The functions of passes, with vectors as wide as the processor's."""

    def root(self, b: Builder, roots: Value, at: Value) -> Pair:
        """A root of 1 in each lane."""
        first = b.mul(at, self.i64(2))
        places = first, b.add(first, self.i64(1))
        real, imag = (self.splat(b, b.load(b.gep(roots, [place]))) for place in places)
        return real, imag

    def pair(self, b: Builder, x: Value, n: Value, at: Value) -> Pair:
        """The numbers from place `at` of n on."""
        return self.load(b, x, at), self.load(b, x, b.add(n, at))

    def put(self, b: Builder, value: Pair, y: Value, n: Value, at: Value) -> None:
        """Store numbers."""
        self.store(b, value[0], y, at)
        self.store(b, value[1], y, b.add(n, at))

    def times(self, b: Builder, x: Pair, w: Pair) -> Pair:
        """The products of numbers."""
        real = b.fsub(b.fmul(x[0], w[0]), b.fmul(x[1], w[1]))
        return real, b.fadd(b.fmul(x[0], w[1]), b.fmul(x[1], w[0]))

    def two(self, b: Builder, args: Sequence[Value], p: Value, q: Value, ws: list[Pair]) -> None:
        """Write the sums and differences of vectors m s apart."""
        y, x, _, n, m, s, _ = args
        i, k = b.add(q, b.mul(s, p)), b.add(q, b.mul(s, b.mul(p, self.i64(2))))
        first, second = self.pair(b, x, n, i), self.pair(b, x, n, b.add(i, b.mul(s, m)))
        total = [b.fadd(u, v) for u, v in zip(first, second, strict=True)]
        less = [b.fsub(u, v) for u, v in zip(first, second, strict=True)]
        self.put(b, (total[0], total[1]), y, n, k)
        self.put(b, self.times(b, (less[0], less[1]), ws[0]), y, n, b.add(k, s))

    def four(self, b: Builder, args: Sequence[Value], p: Value, q: Value, ws: list[Pair]) -> None:
        """Write the transforms of four vectors m s apart."""
        y, x, _, n, m, s, way = args
        i, step = b.add(q, b.mul(s, p)), b.mul(s, m)
        k = b.add(q, b.mul(s, b.mul(p, self.i64(4))))
        parts = []
        for _ in range(4):
            parts.append(self.pair(b, x, n, i))
            i = b.add(i, step)
        for result in self.of_four(b, parts, ws, way):
            self.put(b, result, y, n, k)
            k = b.add(k, s)

    def of_four(self, b: Builder, parts: list[Pair], ws: list[Pair], way: object) -> list[Pair]:
        """The transforms of four numbers in each lane, times their roots."""
        (ar, ai), (br, bi), (cr, ci), (dr, di) = parts
        w = self.splat(b, way)
        even, odd = (b.fadd(ar, cr), b.fadd(ai, ci)), (b.fadd(br, dr), b.fadd(bi, di))
        over = b.fsub(ar, cr), b.fsub(ai, ci)
        turned = b.fmul(w, b.fsub(bi, di)), b.fmul(b.fsub(dr, br), w)
        return [
            (b.fadd(even[0], odd[0]), b.fadd(even[1], odd[1])),
            self.times(b, (b.fadd(over[0], turned[0]), b.fadd(over[1], turned[1])), ws[0]),
            self.times(b, (b.fsub(even[0], odd[0]), b.fsub(even[1], odd[1])), ws[1]),
            self.times(b, (b.fsub(over[0], turned[0]), b.fsub(over[1], turned[1])), ws[2]),
        ]

    def every(self, b: Builder, numbers: Value, at: Value, step: int) -> Pair:
        """Each `step`th complex number from place `at` on, as many as lanes."""
        count = 2 * step * self.lanes
        wide = self.ir.VectorType(self.real, count)
        place = b.gep(numbers, [b.mul(at, self.i64(2))])
        loaded = b.load(b.bitcast(place, wide.as_pointer()), align=self.size)
        kind = self.ir.VectorType(self.i32, self.lanes)
        none = self.ir.Constant(wide, self.ir.Undefined)
        picked = [
            [self.i32(2 * step * lane + part) for lane in range(self.lanes)] for part in (0, 1)
        ]
        real, imag = (
            b.shuffle_vector(loaded, none, self.ir.Constant(kind, lanes)) for lanes in picked
        )
        return real, imag

    def in_turn(self, b: Builder, vectors: list[Value]) -> Value:
        """A long vector: the first lanes of all, then the second ones, and so on."""
        while len(vectors) > 1:
            half, size = len(vectors) // 2, vectors[0].type.count
            kind = self.ir.VectorType(self.i32, 2 * size)
            order = [self.i32(lane // 2 + size * (lane % 2)) for lane in range(2 * size)]
            vectors = [
                b.shuffle_vector(u, v, self.ir.Constant(kind, order))
                for u, v in zip(vectors[:half], vectors[half:], strict=True)
            ]
        return vectors[0]

    def first(self) -> Function:
        """(y, x, roots, n, m, way): the first pass, from complex numbers; vectors divide m."""
        n, pointer = self.i64, self.pointer

        def emit(b: Builder, function: Function) -> None:
            y, x, roots, size, m, way = function.args

            def turn(p: Value) -> None:
                places = [p]
                for _ in range(3):
                    places.append(b.add(places[-1], m))
                parts = [self.every(b, x, place, 1) for place in places]
                ws = [self.every(b, roots, b.mul(p, n(k)), k) for k in (1, 2, 3)]
                results = self.of_four(b, parts, ws, way)
                at = b.mul(p, n(4))
                for part, place in enumerate((at, b.add(size, at))):
                    mixed = self.in_turn(b, [result[part] for result in results])
                    to = b.bitcast(b.gep(y, [place]), mixed.type.as_pointer())
                    b.store(mixed, to, align=self.size)

            self.loop(b, n(0), m, self.lanes, turn)
            b.ret_void()

        kinds = [pointer, pointer, pointer, n, n, self.real]
        return self.shared(f"butterflies_first_x{self.lanes}", kinds, emit)

    def joined(self) -> Function:
        """(out, x, n, factor): complex numbers from their parts; vectors divide n."""
        n, pointer = self.i64, self.pointer

        def emit(b: Builder, function: Function) -> None:
            out, x, size, factor = function.args
            scale = self.splat(b, factor)

            def turn(k: Value) -> None:
                real, imag = self.pair(b, x, size, k)
                mixed = self.in_turn(b, [b.fmul(real, scale), b.fmul(imag, scale)])
                to = b.bitcast(b.gep(out, [b.mul(k, n(2))]), mixed.type.as_pointer())
                b.store(mixed, to, align=self.size)

            self.loop(b, n(0), size, self.lanes, turn)
            b.ret_void()

        return self.shared("butterflies_joined", [pointer, pointer, n, self.real], emit)

    def whole(self, radix: int) -> Function:
        """(y, x, roots, n, m, s, way): a pass, whose stride vectors divide."""
        n, pointer = self.i64, self.pointer

        def emit(b: Builder, function: Function) -> None:
            args = function.args
            _, _, roots, _, m, s, _ = args
            turn = self.two if radix == 2 else self.four

            def line(p: Value) -> None:
                first = b.mul(p, s)
                ws = [self.root(b, roots, b.mul(first, n(k))) for k in range(1, radix)]
                self.loop(b, n(0), s, self.lanes, lambda q: turn(b, args, p, q, ws))

            self.loop(b, n(0), m, 1, line)
            b.ret_void()

        kinds = [pointer, pointer, pointer, n, n, n, self.real]
        return self.shared(f"butterflies{radix}x{self.lanes}", kinds, emit)


class _ShortPasses(_Passes):
    """The functions of passes of a small stride."""

    def __init__(self, module: object, dtype: str) -> None:
        super().__init__(module, dtype, min(SHORT, lanes_of(dtype)))


def _define(radix: int) -> Callable[[], Typing]:
    def define() -> Typing:
        from numba import types

        def typing(
            typingctx: TypingContext, y: Type, x: Type, roots: Type, m: Type, s: Type, way: Type
        ) -> tuple[Signature, Generator] | None:  # fmt: skip
            if not same_reals(y, x):
                return None

            def codegen(
                context: CodeContext, builder: Builder, sig: Signature, v: Sequence[Value]
            ) -> Value:
                name = str(y.dtype)
                wide, short = (
                    emitter(kind, builder.module, name) for kind in (_Passes, _ShortPasses)
                )
                to, of, table = (
                    context.make_array(sig.args[k])(context, builder, v[k]) for k in range(3)
                )
                half = builder.lshr(of.nitems, wide.i64(1))
                number = context.cast(builder, v[5], types.float64, y.dtype)
                roots_at = builder.bitcast(table.data, wide.pointer)
                args = [to.data, of.data, roots_at, half, v[3], v[4], number]
                fits = builder.icmp_signed(
                    "==", builder.urem(v[4], wide.i64(wide.lanes)), wide.i64(0)
                )
                with builder.if_else(fits) as (then, otherwise):
                    with then:
                        builder.call(wide.whole(radix), args)
                    with otherwise:
                        builder.call(short.whole(radix), args)
                return context.get_dummy_value()

            n = types.int64
            return types.void(y, x, roots, n, n, types.float64), codegen

        return typing

    return define


def _define_first() -> Typing:
    from numba import types

    def typing(
        typingctx: TypingContext, y: Type, x: Type, roots: Type, m: Type, way: Type
    ) -> tuple[Signature, Generator] | None:
        if not same_reals(y):
            return None

        def codegen(
            context: CodeContext, builder: Builder, sig: Signature, v: Sequence[Value]
        ) -> Value:
            name = str(y.dtype)
            wide, short = (emitter(kind, builder.module, name) for kind in (_Passes, _ShortPasses))
            to, of, table = (
                context.make_array(sig.args[k])(context, builder, v[k]) for k in range(3)
            )
            places = [builder.bitcast(a.data, wide.pointer) for a in (to, of, table)]
            args = [*places, of.nitems, v[3], context.cast(builder, v[4], types.float64, y.dtype)]
            fits = builder.icmp_signed("==", builder.urem(v[3], wide.i64(wide.lanes)), wide.i64(0))
            with builder.if_else(fits) as (then, otherwise):
                with then:
                    builder.call(wide.first(), args)
                with otherwise:
                    builder.call(short.first(), args)
            return context.get_dummy_value()

        return types.void(y, x, roots, types.int64, types.float64), codegen

    return typing


first_by_four = Intrinsic(_first_by_four, _define_first)
first_by_four.__doc__ = """First pass, of factor 4 and stride 1, from complex numbers: as `by_four`.

first_by_four(y, x, roots, m, way): `m` is a multiple of 4.
"""


def _joined(out: Array, x: Array, scale: float) -> None:
    n, factor = len(out), x.dtype.type(scale)
    for k in range(n):
        out[k] = complex(x[k] * factor, x[n + k] * factor)


def _define_joined() -> Typing:
    from numba import types

    def typing(
        typingctx: TypingContext, out: Type, x: Type, scale: Type
    ) -> tuple[Signature, Generator] | None:
        if not same_reals(x):
            return None

        def codegen(
            context: CodeContext, builder: Builder, sig: Signature, v: Sequence[Value]
        ) -> Value:
            e = emitter(_Passes, builder.module, str(x.dtype))
            to, of = (context.make_array(sig.args[k])(context, builder, v[k]) for k in range(2))
            number = context.cast(builder, v[2], types.float64, x.dtype)
            args = [builder.bitcast(to.data, e.pointer), of.data, to.nitems, number]
            builder.call(e.joined(), args)
            return context.get_dummy_value()

        return types.void(out, x, types.float64), codegen

    return typing


joined = Intrinsic(_joined, _define_joined)
joined.__doc__ = """Complex numbers from their parts, each times `scale`; as many as 32, or more."""
by_two = Intrinsic(_by_two, _define(2))
by_four = Intrinsic(_by_four, _define(4))
by_two.__doc__ = """Pass of factor 2: y is to x, of 2 n reals, as the halves' transforms are to it.

by_two(y, x, roots, m, s, way): m numbers of each of the stride `s`, which is a multiple of 4.
"""
by_four.__doc__ = """Pass of factor 4, as `by_two`; `way` is 1, or -1 for the inverse."""
