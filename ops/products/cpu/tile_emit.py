"""The pieces of LLVM code that the functions of `ops/products/cpu/tile.py` are made of.

Everything is vectors of `TileShape.lanes` elements, which LLVM turns into the registers of the
processor at hand; masks are its masked loads and stores, which a processor without them does lane
by lane.  Imported only to compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from flowvm.ops.products.cpu.tile_shape import TileShape
from flowvm.ops.scalar.half import STORED, narrowed, stored_type, widened

__all__ = ["Emitter"]


class Emitter:
    """A module under construction, and the pieces that its functions are made of.

    `pointer` is to what is reckoned with; `memory` is to the dtype's elements, which of reduced
    floats are other ones: they are loaded as float32, and stored from it.
    """

    def __init__(self, dtype: str, shape: TileShape) -> None:
        self.module, self.shape, self.dtype = ir.Module(), shape, dtype
        self.i1, self.i32, self.i64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
        self.real = ir.DoubleType() if dtype == "float64" else ir.FloatType()
        self.size = 8 if dtype == "float64" else 4
        self.vector = ir.VectorType(self.real, shape.lanes)
        self.mask = ir.VectorType(self.i1, shape.lanes)
        self.suffix = f"v{shape.lanes}f{8 * self.size}"
        self.pointer = self.real.as_pointer()
        self.memory = stored_type(dtype).as_pointer() if dtype in STORED else self.pointer

    def intrinsic(self, name: str, returns: Any, args: list[Any]) -> Any:
        known = self.module.globals.get(name)
        kind = ir.FunctionType(returns, args)
        return known or ir.Function(self.module, kind, name)

    def vectors_at(self, builder: Any, pointer: Any, j: int) -> tuple[Any, Any, str, int]:
        """Vector j of the row at `pointer`: where it is, its type as stored, LLVM's suffix of that,
        bytes of an element.
        """
        stored = ir.VectorType(pointer.type.pointee, self.shape.lanes)
        element = pointer.type.pointee
        size = self.size if element == self.real else 2
        place = builder.gep(pointer, [self.i64(j * self.shape.lanes)])
        suffix = f"v{self.shape.lanes}{'i' if element == ir.IntType(16) else 'f'}{8 * size}"
        return builder.bitcast(place, stored.as_pointer()), stored, suffix, size

    def load(self, builder: Any, pointer: Any, j: int, mask: Any) -> Any:
        """Vector j of the row at `pointer`; lanes that `mask` leaves out are 0, and not read."""
        place, stored, suffix, size = self.vectors_at(builder, pointer, j)
        if mask is None:
            value = builder.load(place, align=size)
        else:
            kinds = [stored.as_pointer(), self.i32, self.mask, stored]
            load = self.intrinsic(f"llvm.masked.load.{suffix}.p0{suffix}", stored, kinds)
            zero = ir.Constant(stored, None)
            value = builder.call(load, [place, self.i32(size), mask[j], zero])
        return self.read(builder, value)

    def store(self, builder: Any, value: Any, pointer: Any, j: int, mask: Any) -> None:
        place, stored, suffix, size = self.vectors_at(builder, pointer, j)
        value = self.written(builder, value, pointer)
        if mask is None:
            builder.store(value, place, align=size)
            return
        kinds = [stored, stored.as_pointer(), self.i32, self.mask]
        store = self.intrinsic(f"llvm.masked.store.{suffix}.p0{suffix}", ir.VoidType(), kinds)
        builder.call(store, [value, place, self.i32(size), mask[j]])

    def read(self, builder: Any, value: Any) -> Any:
        """A loaded value or vector, as it is reckoned with."""
        known = value.type in (self.real, self.vector)
        return value if known else widened(builder, value, self.dtype)

    def written(self, builder: Any, value: Any, pointer: Any) -> Any:
        """A value or vector as it is stored where `pointer` points."""
        same = pointer.type.pointee == self.real
        return value if same else narrowed(builder, value, self.dtype)

    def splat(self, builder: Any, scalar: Any, lanes_of: Any = None) -> Any:
        kind = self.vector if lanes_of is None else lanes_of
        undefined = ir.Constant(kind, ir.Undefined)
        first = builder.insert_element(undefined, scalar, self.i32(0))
        zeros = ir.Constant(ir.VectorType(self.i32, self.shape.lanes), None)
        return builder.shuffle_vector(first, undefined, zeros)

    def masks(self, builder: Any, columns: Any, vectors: int) -> list[Any]:
        """Which lanes of each vector lie left of column number `columns`."""
        lanes, counts = self.shape.lanes, ir.VectorType(self.i32, self.shape.lanes)
        limit = self.splat(builder, builder.trunc(columns, self.i32), counts)
        steps = [[self.i32(j * lanes + lane) for lane in range(lanes)] for j in range(vectors)]
        return [builder.icmp_signed("<", ir.Constant(counts, s), limit) for s in steps]

    def function(self, name: str, kinds: list[Any]) -> Any:
        """A new function of the module that returns nothing."""
        function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), kinds), name)
        function.attributes.add("nounwind")
        if name != "entry":
            function.attributes.add("noinline")
        return function

    def loop(self, b: Any, start: Any, stop: Any, step: int, body: Callable[[Any], None]) -> None:
        """body(i) for i from `start` on by `step`, while less than `stop`."""
        before, head, done = b.block, b.append_basic_block(), b.append_basic_block()
        b.cbranch(b.icmp_signed("<", start, stop), head, done)
        b.position_at_end(head)
        i = b.phi(self.i64)
        i.add_incoming(start, before)
        body(i)
        after = b.add(i, self.i64(step))
        i.add_incoming(after, b.block)
        b.cbranch(b.icmp_signed("<", after, stop), head, done)
        b.position_at_end(done)

    def switched(self, entry: Any, which: Any, builder: Any, variants: list[Any]) -> None:
        """End `entry` with a call of variant number `which`."""
        nowhere = entry.append_basic_block("nowhere")
        switch = builder.switch(which, nowhere)
        builder.position_at_end(nowhere)
        builder.unreachable()
        for number, variant in enumerate(variants):
            block = entry.append_basic_block()
            switch.add_case(self.i64(number), block)
            builder.position_at_end(block)
            builder.call(variant, entry.args, tail=True)  # a jump: the arguments are in place
            builder.ret_void()
