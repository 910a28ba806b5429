"""LLVM vector code of one dtype: inner loops that Numba's cannot say, with their sums in registers.

Vectors are as wide as the processor's, loads need no alignment, and the end of a row goes under a
mask: LLVM's own operations, which a processor without masks does lane by lane, and no instruction
of one processor.  Reduced floats are widened as they are loaded, and narrowed as they are stored.

An emitter writes into a module: one of its own, or that of the Numba function which calls what it
writes.  Long functions of the second kind are written apart (`functions_apart`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from flowvm.compiler.target import Target, target
from flowvm.guards.regions import reverting
from flowvm.ops.scalar.half import STORED, narrowed, stored_type, widened

if TYPE_CHECKING:
    from flowvm.private.code_types import (
        Builder,
        CodeContext,
        Function,
        Module,
        Signature,
        Type,
        Value,
        ValueType,
    )


AnyEmitter = TypeVar("AnyEmitter", bound="Emitter")


class Registers(NamedTuple):
    """Vector registers of a processor."""

    bytes: int  # of each
    available: int


_REGISTERS = {"avx512f": (64, 32), "avx": (32, 16), "sse2": (16, 16), "neon": (16, 32)}


def registers(of: Target | None = None) -> Registers:
    """The vector registers of a processor, by default of the one that code is compiled for."""
    has = (of or target()).has
    return Registers(*_REGISTERS[next(filter(has, ("avx512f", "avx", "sse2")), "neon")])


def lanes_of(dtype: str) -> int:
    """Elements of a vector; reduced floats are float32 in it."""
    return registers().bytes // (4 if dtype in STORED else np.dtype(dtype).itemsize)


_apart: list[Module] = []


def functions_apart() -> reverting:
    """Inside, long functions are written to the module that this gives, and only declared where
    they are called: Numba then has no work with them.  `jit` compiles one program at a time.
    """
    from llvmlite import ir

    around = len(_apart)

    def switch() -> object:
        _apart.append(ir.Module("apart"))
        return _apart[-1]

    def undo() -> None:
        del _apart[around:]

    return reverting(undo, switch)


class Emitter:
    """Vectors of one dtype in a module, and the pieces that functions of it are made of.

    `pointer` is to what is reckoned with; `memory` is to the dtype's elements, which of reduced
    floats are other ones.  Places are in elements, and masks are vectors of bits.
    """

    def __init__(self, module: Module, dtype: str, lanes: int | None = None) -> None:
        from llvmlite import ir

        self.ir, self.module, self.dtype = ir, module, dtype
        self.i1, self.i16, self.i32, self.i64 = (ir.IntType(n) for n in (1, 16, 32, 64))
        self.size = 4 if dtype in STORED else np.dtype(dtype).itemsize
        reals = {"float64": ir.DoubleType(), **dict.fromkeys(("float32", *STORED), ir.FloatType())}
        self.real = reals.get(dtype) or ir.IntType(8 * self.size)
        self.lanes = lanes or lanes_of(dtype)
        self.vector = ir.VectorType(self.real, self.lanes)
        self.bits = ir.VectorType(self.i1, self.lanes)
        self.suffix = f"v{self.lanes}{'f' if dtype in reals else 'i'}{8 * self.size}"
        self.zero = ir.Constant(self.vector, None)
        self.pointer = self.real.as_pointer()
        self.memory = stored_type(dtype).as_pointer() if dtype in STORED else self.pointer

    # --- functions --------------------------------------------------------------------------------

    def declared(self, name: str, returns: ValueType, args: list[ValueType]) -> Function:
        """A function of another module, or an intrinsic."""
        kind = self.ir.FunctionType(returns, args)
        return self.module.globals.get(name) or self.ir.Function(self.module, kind, name)

    def function(self, name: str, args: list[ValueType]) -> Function:
        """A new function of the module that returns nothing; all but "entry" stay calls."""
        function = self.ir.Function(
            self.module, self.ir.FunctionType(self.ir.VoidType(), args), name
        )
        function.attributes.add("nounwind")
        if name != "entry":
            function.attributes.add("noinline")
        return function

    def shared(
        self,
        name: str,
        args: list[ValueType],
        emit: Callable[[Builder, Function], None],
        *,
        long: bool = False,
    ) -> Function:
        """The function of this name, for whichever of a program's modules call it; `emit(builder,
        function)` writes it when it is new.

        `long`: it may be written apart, so what calls it belongs to one program alone.
        """
        name, own = f"flowvm_{name}_{self.dtype}", self.module
        home = _apart[-1] if _apart and long else own
        if name not in home.globals:
            self.module = home
            function = self.function(name, args)
            function.linkage = "linkonce_odr"  # bodies that share it are linked to one
            emit(self.ir.IRBuilder(function.append_basic_block("entry")), function)
            self.module = own
        return self.declared(name, self.ir.VoidType(), args)

    # --- vectors ----------------------------------------------------------------------------------

    def load(self, b: Builder, pointer: Value, at: Value, mask: Value = None) -> Value:
        """The vector at a place; lanes that `mask` leaves out are 0, and not read."""
        place, stored, suffix, size = self._place(b, pointer, at)
        if mask is None:
            return self.read(b, b.load(place, align=size))
        args = [stored.as_pointer(), self.i32, self.bits, stored]
        load = self.declared(f"llvm.masked.load.{suffix}.p0", stored, args)
        nothing = self.ir.Constant(stored, None)
        return self.read(b, b.call(load, [place, self.i32(size), mask, nothing]))

    def store(
        self, b: Builder, value: Value, pointer: Value, at: Value, mask: Value = None
    ) -> None:
        """Lanes that `mask` leaves out are not written."""
        place, stored, suffix, size = self._place(b, pointer, at)
        value = self.written(b, value, pointer)
        if mask is None:
            b.store(value, place, align=size)
            return
        args = [stored, stored.as_pointer(), self.i32, self.bits]
        store = self.declared(f"llvm.masked.store.{suffix}.p0", self.ir.VoidType(), args)
        b.call(store, [value, place, self.i32(size), mask])

    def prefetch(self, b: Builder, pointer: Value, writes: bool = False) -> None:
        """Have the line at `pointer`, wherever that points, brought to the first cache."""
        byte = self.ir.IntType(8).as_pointer()
        kinds = [byte, self.i32, self.i32, self.i32]
        fetch = self.declared("llvm.prefetch.p0i8", self.ir.VoidType(), kinds)
        b.call(fetch, [b.bitcast(pointer, byte), *map(self.i32, (int(writes), 3, 1))])

    def _place(self, b: Builder, pointer: Value, at: Value) -> tuple[Value, Value, str, int]:
        """Return a vector's address, its stored type, LLVM's suffix of this type, an element's
        bytes.
        """
        element = pointer.type.pointee
        stored, suffix, size = self.vector, self.suffix, self.size
        if element != self.real:
            stored, size = self.ir.VectorType(element, self.lanes), 2
            suffix = f"v{self.lanes}{'i' if element == self.i16 else 'f'}16"
        place = b.gep(pointer, [self.i64(at) if isinstance(at, int) else at])
        return b.bitcast(place, stored.as_pointer()), stored, suffix, size

    def read(self, b: Builder, value: Value) -> Value:
        """A loaded value or vector, as it is reckoned with."""
        known = value.type in (self.real, self.vector)
        return value if known else widened(b, value, self.dtype)

    def written(self, b: Builder, value: Value, pointer: Value) -> Value:
        """A value or vector as it is stored where `pointer` points."""
        same = pointer.type.pointee == self.real
        return value if same else narrowed(b, value, self.dtype)

    def splat(self, b: Builder, value: Value, kind: ValueType = None) -> Value:
        """A vector (of type `kind`) that has `value` in each lane."""
        kind = kind or self.vector
        none = self.ir.Constant(kind, self.ir.Undefined)
        first = b.insert_element(none, value, self.i32(0))
        zeros = self.ir.Constant(self.ir.VectorType(self.i32, kind.count), None)
        return b.shuffle_vector(first, none, zeros)

    def fma(self, b: Builder, x: Value, y: Value, z: Value) -> Value:
        """x y + z, rounded once where the processor has that."""
        name = f"llvm.fmuladd.{self.suffix}"
        return b.call(self.declared(name, self.vector, [self.vector] * 3), [x, y, z])

    def mask(self, b: Builder, count: Value) -> Value:
        """The first `count` lanes."""
        return self.masks(b, count, 1)[0]

    def masks(self, b: Builder, count: Value, vectors: int) -> list[Value]:
        """Return a mask for each of `vectors` vectors: the lanes before place `count` of all."""
        counts = self.ir.VectorType(self.i32, self.lanes)
        limit = self.splat(b, b.trunc(count, self.i32), counts)
        begins = range(0, vectors * self.lanes, self.lanes)
        lanes = [[self.i32(begin + lane) for lane in range(self.lanes)] for begin in begins]
        return [b.icmp_signed("<", self.ir.Constant(counts, numbers), limit) for numbers in lanes]

    def added(self, b: Builder, sums: list[Value]) -> Value:
        """Sum the lanes of as many vectors as a vector has lanes; return the vector of sums.

        Pairs of vectors become one, of sums of pairs of lanes, until one is left.
        """
        size, i32 = self.lanes, self.ir.VectorType(self.i32, self.lanes)
        even = self.ir.Constant(i32, [self.i32(2 * k) for k in range(size)])
        odd = self.ir.Constant(i32, [self.i32(2 * k + 1) for k in range(size)])
        while len(sums) > 1:
            pairs = zip(sums[::2], sums[1::2], strict=True)
            sums = [
                b.fadd(b.shuffle_vector(x, y, even), b.shuffle_vector(x, y, odd)) for x, y in pairs
            ]
        return sums[0]

    # --- control ----------------------------------------------------------------------------------

    def loop(
        self, b: Builder, start: Value, stop: Value, step: int, body: Callable[[Value], None]
    ) -> None:
        """body(i) for i from `start` on by `step`, while less than `stop`."""
        before, head, end = b.block, b.append_basic_block(), b.append_basic_block()
        b.cbranch(b.icmp_signed("<", start, stop), head, end)
        b.position_at_end(head)
        i = b.phi(self.i64)
        i.add_incoming(start, before)
        body(i)
        after = b.add(i, self.i64(step))
        i.add_incoming(after, b.block)
        b.cbranch(b.icmp_signed("<", after, stop), head, end)
        b.position_at_end(end)

    def counted(
        self,
        b: Builder,
        count: Value,
        step: int,
        state: list[Value],
        turn: Callable[[Value, list[Value]], Value],
    ) -> tuple[Value, list[Value]]:
        """`turn(i, state)` for i = 0, step, .. while i + step <= count; then where it ended and the
        state.
        """
        before = b.block
        head, body, end = (b.append_basic_block() for _ in range(3))
        b.branch(head)
        b.position_at_end(head)
        phis = [b.phi(value.type) for value in (count, *state)]
        for phi, value in zip(phis, (self.i64(0), *state), strict=True):
            phi.add_incoming(value, before)
        after = b.add(phis[0], self.i64(step))
        b.cbranch(b.icmp_signed("<=", after, count), body, end)
        b.position_at_end(body)
        for phi, value in zip(phis, (after, *turn(phis[0], phis[1:])), strict=True):
            phi.add_incoming(value, b.block)
        b.branch(head)
        b.position_at_end(end)
        return phis[0], phis[1:]

    def chosen(
        self, b: Builder, which: Value, numbers: list[int], call: Callable[[int], None]
    ) -> None:
        """`call(number)` for the number that `which` is."""
        end, nowhere = b.append_basic_block(), b.append_basic_block()
        switch = b.switch(which, nowhere)
        for number in numbers:
            block = b.append_basic_block()
            switch.add_case(self.i64(number), block)
            b.position_at_end(block)
            call(number)
            b.branch(end)
        b.position_at_end(nowhere)
        b.unreachable()
        b.position_at_end(end)

    def switched(self, b: Builder, which: Value, variants: list[Value]) -> None:
        """End a function with a call of variant number `which`, with the function's arguments."""
        nowhere = b.append_basic_block("nowhere")
        switch = b.switch(which, nowhere)
        b.position_at_end(nowhere)
        b.unreachable()
        for number, variant in enumerate(variants):
            block = b.append_basic_block()
            switch.add_case(self.i64(number), block)
            b.position_at_end(block)
            b.call(variant, b.function.args, tail=True)  # a jump: the arguments are in place
            b.ret_void()


def address_of(
    context: CodeContext, builder: Builder, sig: Signature, values: Sequence[Value], index: int
) -> Value:
    """The address of the element that the argument after array `index` says."""
    data = context.make_array(sig.args[index])(context, builder, values[index]).data
    return builder.gep(data, [values[index + 1]])


def numbers_in(context: CodeContext, builder: Builder, kind: Type, record: Value) -> list[Value]:
    """The numbers of a NamedTuple, each as an int64."""
    from numba import types

    return [
        context.cast(builder, builder.extract_value(record, k), number, types.int64)
        for k, number in enumerate(kind.types)
    ]


def same_reals(*arrays: Type) -> bool:
    """Return True if all arrays (as Numba's types) have one dtype, float32 or float64."""
    from numba import types

    kind = arrays[0].dtype
    return kind in (types.float32, types.float64) and all(a.dtype == kind for a in arrays)


def emitter(kind: type[AnyEmitter], module: Module, dtype: str) -> AnyEmitter:
    """Return an emitter of this kind; a function, so that keys of code depend on this file."""
    return kind(module, dtype)
