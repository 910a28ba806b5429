"""LLVM vector code of one dtype, as the inner loops of convolution and pooling are written in it.

Loads need no alignment, and the end of a row goes under a mask.  Vectors have the width that the
processor has, and all operations are LLVM's own: no instruction of one processor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flowvm.ops.products.cpu.tile_shape import tile_shape

__all__ = ["Emitter", "address_of", "emitter", "functions_apart", "lanes_of", "roomy", "same_reals"]


def lanes_of(dtype: str) -> int:
    """Elements of a vector."""
    return tile_shape(dtype).lanes


def roomy() -> bool:
    """Whether there are 32 vector registers, not 16."""
    shape = tile_shape("float32")
    return shape.rows * shape.vectors >= 24


_apart: list[Any] = []


@contextlib.contextmanager
def functions_apart() -> Iterator[Any]:
    """Inside, long functions are written to the module that this gives, and only declared where
    they are called: Numba then has no work with them.  `jit` compiles one program at a time.
    """
    from llvmlite import ir

    _apart.append(ir.Module("apart"))
    try:
        yield _apart[-1]
    finally:
        _apart.pop()


class Emitter:
    """Vectors of one dtype in the module of a builder; `function` makes the functions in it."""

    def __init__(self, module: Any, dtype: str) -> None:
        from llvmlite import ir

        self.ir, self.module, self.dtype = ir, module, dtype
        self.i1, self.i16, self.i32, self.i64 = (ir.IntType(n) for n in (1, 16, 32, 64))
        self.size = np.dtype(dtype).itemsize
        real = {"float32": ir.FloatType(), "float64": ir.DoubleType()}.get(dtype)
        self.real = real or ir.IntType(8 * self.size)
        self.lanes = lanes_of("float32") * 4 // self.size
        self.vector = ir.VectorType(self.real, self.lanes)
        self.suffix = f"v{self.lanes}{'f' if real else 'i'}{8 * self.size}"
        self.zero = ir.Constant(self.vector, None)

    def function(
        self, name: str, args: list[Any], emit: Callable[[Any, Any], None], *, long: bool = False
    ) -> Any:
        """The function of this name; `emit(builder, function)` writes it when it is new.

        `long`: it may be written apart, so what calls it belongs to one program alone.
        """
        name, own = f"flowvm_{name}_{self.dtype}", self.module
        home = _apart[-1] if _apart and long else own
        if name not in home.globals:
            kind = self.ir.FunctionType(self.ir.VoidType(), args)
            made = self.ir.Function(home, kind, name)
            made.linkage = "linkonce_odr"  # bodies that share it are linked to one
            made.attributes.add("noinline")
            made.attributes.add("nounwind")
            self.module = home
            emit(self.ir.IRBuilder(made.append_basic_block("entry")), made)
            self.module = own
        return self.declared(name, self.ir.VoidType(), args)

    def declared(self, name: str, returns: Any, args: list[Any]) -> Any:
        kind = self.ir.FunctionType(returns, args)
        return self.module.globals.get(name) or self.ir.Function(self.module, kind, name)

    def place(self, b: Any, pointer: Any, at: Any) -> Any:
        return b.bitcast(b.gep(pointer, [at]), self.vector.as_pointer())

    def load(self, b: Any, pointer: Any, at: Any) -> Any:
        return b.load(self.place(b, pointer, at), align=self.size)

    def store(self, b: Any, value: Any, pointer: Any, at: Any) -> None:
        b.store(value, self.place(b, pointer, at), align=self.size)

    def splat(self, b: Any, value: Any, lanes: Any = None) -> Any:
        kind = lanes or self.vector
        none = self.ir.Constant(kind, self.ir.Undefined)
        first = b.insert_element(none, value, self.i32(0))
        zeros = self.ir.Constant(self.ir.VectorType(self.i32, kind.count), None)
        return b.shuffle_vector(first, none, zeros)

    def fma(self, b: Any, x: Any, y: Any, z: Any) -> Any:
        name = f"llvm.fma.{self.suffix}"
        return b.call(self.declared(name, self.vector, [self.vector] * 3), [x, y, z])

    def counted(
        self, b: Any, count: Any, step: int, state: list[Any], turn: Callable[[Any, list[Any]], Any]
    ) -> tuple[Any, list[Any]]:
        """`turn(i, state)` for i = 0, step, .. while i + step <= count; then where it ended and the
        state.
        """
        before = b.block
        head, body, done = (b.append_basic_block() for _ in range(3))
        b.branch(head)
        b.position_at_end(head)
        phis = [b.phi(value.type) for value in (count, *state)]
        for phi, value in zip(phis, (self.i64(0), *state), strict=True):
            phi.add_incoming(value, before)
        after = b.add(phis[0], self.i64(step))
        b.cbranch(b.icmp_signed("<=", after, count), body, done)
        b.position_at_end(body)
        for phi, value in zip(phis, (after, *turn(phis[0], phis[1:])), strict=True):
            phi.add_incoming(value, b.block)
        b.branch(head)
        b.position_at_end(done)
        return phis[0], phis[1:]

    def added(self, b: Any, sums: list[Any]) -> Any:
        """A vector of the sums of the lanes of as many vectors as it has lanes: pairs of vectors
        become one of sums of pairs of lanes, until one is left.
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

    def mask(self, b: Any, count: Any) -> Any:
        """The first `count` lanes."""
        kind = self.ir.VectorType(self.i32, self.lanes)
        lane = self.ir.Constant(kind, [self.i32(k) for k in range(self.lanes)])
        return b.icmp_signed("<", lane, self.splat(b, b.trunc(count, self.i32), kind))

    def load_some(self, b: Any, pointer: Any, at: Any, mask: Any) -> Any:
        """A vector of which only the lanes of `mask` are read; the others are 0."""
        name = f"llvm.masked.load.{self.suffix}.p0"
        args = [self.vector.as_pointer(), self.i32, mask.type, self.vector]
        load = self.declared(name, self.vector, args)
        return b.call(load, [self.place(b, pointer, at), self.i32(self.size), mask, self.zero])

    def store_some(self, b: Any, value: Any, pointer: Any, at: Any, mask: Any) -> None:
        name = f"llvm.masked.store.{self.suffix}.p0"
        args = [self.vector, self.vector.as_pointer(), self.i32, mask.type]
        store = self.declared(name, self.ir.VoidType(), args)
        b.call(store, [value, self.place(b, pointer, at), self.i32(self.size), mask])

    def chosen(self, b: Any, rows: Any, heights: list[int], call: Callable[[int], None]) -> None:
        """`call(height)` for the height that `rows` is."""
        done, nowhere = b.append_basic_block(), b.append_basic_block()
        switch = b.switch(rows, nowhere)
        for height in heights:
            block = b.append_basic_block()
            switch.add_case(self.i64(height), block)
            b.position_at_end(block)
            call(height)
            b.branch(done)
        b.position_at_end(nowhere)
        b.unreachable()
        b.position_at_end(done)


def address_of(context: Any, builder: Any, sig: Any, values: Any, index: int) -> Any:
    """The address of the element that the argument after array `index` says."""
    data = context.make_array(sig.args[index])(context, builder, values[index]).data
    return builder.gep(data, [values[index + 1]])


def same_reals(*arrays: Any) -> bool:
    from numba import types

    kind = arrays[0].dtype
    return kind in (types.float32, types.float64) and all(a.dtype == kind for a in arrays)


def emitter(kind: type[Emitter], module: Any, dtype: str) -> Any:
    """An emitter of this kind; a function, so that what depends on this file is known by it."""
    return kind(module, dtype)
