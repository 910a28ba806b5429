"""The register tile: the inner loop of every matrix product and convolution, as LLVM vector code.

    C (rows x columns)  =  start + A (rows x depth) B (depth x columns)

for a C so small that its sums stay in vector registers while the loop runs over the depth.  What
makes a product fast is here and in the order in which its tiles are visited
(`ops/products/cpu/gemm.py`): each step of the depth loads one row of B as vectors, and multiplies
it by each of A's numbers of that step, so that arithmetic, not loads, is the limit.  This is the
micro-kernel of BLIS (Van Zee and van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS
Functionality", 2015; Low et al., "Analytical Modeling Is Enough for High-Performance BLIS", 2016).
Numba's loops cannot say it: LLVM would not keep two dozen sums in registers.

Invariants
- An element's sum goes over the depth in order, one fused multiply-add a step, whatever the tile's
  rows and columns; so results do not depend on how C was cut into tiles.
- Nothing outside the given rows and columns is read or written, except that B's rows are read to
  the tile's full width where `padded` says that they may be.
- Any strides of A; unit stride along the columns of B, C and start.
- No instruction of one processor: vectors of the width that it has, and LLVM's own operations.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import struct
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flowvm.compiler import jit
from flowvm.compiler.jit import llvm
from flowvm.compiler.native import ARRAYS, Intrinsic
from flowvm.loading.lazy import lazy
from flowvm.ops.products.cpu.tile_shape import TileShape, tile_shape

if TYPE_CHECKING:
    from flowvm.ops.products.cpu import tile_code, tile_packing, tile_thin
    from flowvm.private.code_types import (
        Builder,
        CodeContext,
        Generator,
        Signature,
        Type,
        TypingContext,
        Value,
    )
else:  # Numba, for a compilation only
    tile_code = lazy("flowvm.ops.products.cpu.tile_code")
    tile_packing = lazy("flowvm.ops.products.cpu.tile_packing")
    tile_thin = lazy("flowvm.ops.products.cpu.tile_thin")

START_NONE, START_ROWS, START_COLUMN = 0, 1, 2  # what `start` is


# --- compiled once, called by address -----------------------------------------------------------


class TileFunctions(NamedTuple):
    """The addresses of one dtype's functions, which are the first argument of the calls below."""

    tile: int
    dots: int
    stream: int
    copy: int  # into a panel
    transpose: int
    store: int  # out of a panel, by copying or transposing
    store_transposed: int


def tile_functions(dtype: str, names: Container[str] = TileFunctions._fields) -> TileFunctions:
    """Return the functions for "float32", "float64" or reduced floats, whose panels are float32.

    The functions in `names` are compiled if the cache does not have them; the others are 0.
    """
    return TileFunctions(*(_address(n, dtype) if n in names else 0 for n in TileFunctions._fields))


@functools.cache
def _address(name: str, dtype: str) -> int:
    make = functools.partial(_lowered, name, dtype, tile_shape(dtype))
    return jit.load(make, f"{name}, {dtype}")


def emitted(name: str, dtype: str, shape: TileShape) -> Any:
    """The llvmlite module of a function of TileFunctions: its C function is called entry."""
    emitters = {
        "tile": tile_code.emit_tile,
        "dots": tile_thin.emit_dots,
        "stream": tile_thin.emit_stream,
        "copy": tile_packing.emit_copy,
        "transpose": tile_packing.emit_transpose,
        "store": tile_packing.emit_store,
        "store_transposed": tile_packing.emit_store_transposed,
    }
    return emitters[name](dtype, shape)


def _lowered(name: str, dtype: str, shape: TileShape) -> jit.Lowered:
    module = llvm.parse_assembly(str(emitted(name, dtype, shape)))
    return jit.Lowered([], "entry", written=(module,))


_C: dict[str, Any] = {
    "i": ctypes.c_int64, "f": ctypes.c_double, "x": ctypes.c_void_p, "r": ctypes.c_void_p,
}  # fmt: skip


def _passed(kind: str, value: Any) -> Any:
    if kind == "x":
        return value.ctypes.data
    if kind == "r":
        return struct.pack("".join("d" if isinstance(v, float) else "q" for v in value), *value)
    return value


def caller(kinds: str, doc: str) -> Intrinsic:
    """call(function, ...): call the function at an address, with an argument for each of `kinds`: i
    is an integer or an address, f a float64, x an array, whose address is passed, r a record (a
    const that is a NamedTuple), likewise.
    """

    def python(function: int, *args: object) -> None:
        passed = [_passed(k, a) for k, a in zip(kinds, args, strict=True)]
        ctypes.CFUNCTYPE(None, *(_C[k] for k in kinds))(function)(*passed)

    def define() -> object:
        from llvmlite import ir
        from numba import types

        number_types = {"i": types.int64, "f": types.float64}

        def typing(typingctx: TypingContext, *args: object) -> tuple[Signature, Generator]:
            def codegen(
                context: CodeContext,
                builder: Builder,
                signature: Signature,
                values: Sequence[Value],
            ) -> Value:
                passed = [
                    context.make_array(kind)(context, builder, value).data
                    if isinstance(kind, types.Array)
                    else value
                    for kind, value in zip(signature.args[1:], values[1:], strict=True)
                ]
                kind = ir.FunctionType(ir.VoidType(), [value.type for value in passed])
                builder.call(builder.inttoptr(values[0], kind.as_pointer()), passed)
                return context.get_dummy_value()

            argument_types = [number_types.get(k, a) for k, a in zip(kinds, args[1:], strict=True)]
            return types.void(types.int64, *argument_types), codegen

        # Numba would take *args for one argument, a tuple
        names = ["typingctx", "function", *(f"a{i}" for i in range(len(kinds)))]
        parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
        typing.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return typing

    def text(result: str, function: str, *values: str) -> str:
        types = {"i": "i64", "f": "double", "x": "ptr", "r": "ptr"}
        passed = (f"{types[k]} {value}" for k, value in zip(kinds, values, strict=True))
        return f"""
{result}.f = inttoptr i64 {function} to ptr
call void {result}.f({", ".join(passed)})
"""

    intrinsic = Intrinsic(python, define, text=text)
    intrinsic.__doc__ = doc
    return intrinsic


def _address_define() -> Callable[..., object]:
    from llvmlite import ir
    from numba import types

    def typing(typingctx: TypingContext, x: Type) -> tuple[Signature, Generator]:
        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> Value:
            data = context.make_array(signature.args[0])(context, builder, values[0]).data
            return builder.ptrtoint(data, ir.IntType(64))

        return types.int64(x), codegen

    return typing


def _address_python(x: Any) -> int:
    return int(x.ctypes.data)


def _address_build(builder: Any, values: list[Value], dtypes: list[str]) -> tuple[Value, str]:
    from llvmlite import ir

    return builder.ptrtoint(values[0], ir.IntType(64)), "int64"


address = Intrinsic(_address_python, _address_define, build=_address_build, takes=ARRAYS)
address.__doc__ = """address(array): where its first element is."""


multiply_tile = caller(
    "iiiiiiiiiiiiii",
    """One tile of C = start + A B, inside a body.

multiply_tile(function, depth, a, a_row, a_step, b, b_row, padded, c, c_row, kind, start, start_row,
              rows, columns)

Matrices are addresses of their first elements; strides are in elements.  C is `rows` by `columns`,
both at least 1 and at most the `tile_shape`'s.

A: element (i, k) is at a + i * a_row + k * a_step: packed, row-major or transposed, as it lies.
B: row k is `columns` elements from b + k * b_row.  `padded` is 1 if all `tile_shape` columns of it
   may be read, as in a packed panel: that is faster on a tile narrower than its vectors.
C: row i is `columns` elements from c + i * c_row.
start: kind START_NONE is 0; START_ROWS is the row from start + i * start_row for row i (C itself,
   to accumulate; with start_row 0 a bias of the columns); START_COLUMN is the number at start + i *
   start_row for all of row i (a bias of the rows).
""",
)

multiply_dots = caller(
    "iiiiiiiiii",
    """A few dot products of rows, for matrices too thin for tiles, inside a body.

multiply_dots(function, depth, x, x_row, y, y_row, c, c_row, c_column, rows, columns)

Row i of X is `depth` elements from x + i * x_row, and Y's rows likewise.  The dot product of row i
with row j is written to c + i * c_row + j * c_column.  `rows` is 1 to 4, `columns` at most
`dot_columns(rows)`.  A sum is kept a lane, and the lanes are added as a tree: which other rows are
computed with it does not change a dot product.
""",
)


def dot_columns(rows: int) -> int:
    """Return the most columns that `multiply_dots` takes with `rows` rows, at most 4."""
    return 8 if rows == 1 else 4


multiply_stream = caller(
    "iiiiiiiiii",
    """C = A B for up to 4 rows of A and any number of columns, inside a body.

multiply_stream(function, depth, a, a_row, a_step, b, b_row, c, c_row, rows, columns)

The operands are as in `multiply_tile`.  B is read once, a few of its rows side by side and each
from end to end, as memory likes it; the sums are in memory, so C should fit the first cache.
""",
)

copy_panel = caller(
    "iiiiiiii",
    """Rows that are no longer than the `tile_shape`'s columns copied to a panel, inside a body.

copy_panel(function, x, x_row, x_column, rows, columns, y, y_row, width)

Element (i, j), which is at x + i * x_row + j * x_column, goes to y + i * y_row + j, where elements
from `columns` to `width` become 0.
""",
)

transpose_block = caller(
    "iiiiiii",
    """The transpose of a block of at most `lanes` by `lanes` elements, inside a body.

transpose_block(function, x, x_row, rows, columns, y, y_row, width)

Row i of the block is `columns` elements from x + i * x_row, for `rows` rows.  Row j of its
transpose is `width` elements from y + j * y_row, for `columns` rows, where elements from `rows` to
`width` (at most `lanes`) become 0: the padding of a packed panel.
""",
)
