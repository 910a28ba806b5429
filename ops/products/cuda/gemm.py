"""Matrix products by cuBLAS, of matrices that lie in memory in rows.

cuBLAS reads matrices by columns, so out = A B is asked for as out' = B' A': a matrix by rows is its
transpose by columns, and nothing moves.  A matrix is read in place if its rows or its columns are
contiguous (`readable`).

float32 is computed in TF32 only where the user allows it (`flowvm.cuda.options`), which rules ask
when a call is lowered; float16 and bfloat16 are summed in float32.
"""

from __future__ import annotations

from typing import NamedTuple

from flowvm.cuda.launch import Const, LibraryStep, Operand, Scratch, StreamWord
from flowvm.errors import DTypeError, ShapeError
from flowvm.launch import View
from flowvm.meta.dtype import DType

MOST = (1 << 31) - 1  # of a size or a leading dimension: cuBLAS takes ints
# cudaDataType_t
_STORED = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
FLOAT32, FLOAT64, TF32 = 68, 70, 77  # cublasComputeType_t
PLAIN, TRANSPOSED = 0, 1  # cublasOperation_t
DEFAULT = -1  # cublasGemmAlgo_t


class Place(NamedTuple):
    """The begin of an array: `at` bytes into operand k or, with k None, into the scratch."""

    dtype: DType
    k: int | None
    at: int = 0

    def moved(self, elements: int) -> Place:
        """Return the place `elements` elements further on."""
        return self._replace(at=self.at + elements * self.dtype.itemsize)

    def array(self, *shape: int) -> Operand | Scratch:
        """A dense array that begins here."""
        if self.k is None:
            return Scratch(self.at, self.dtype.name, shape)
        return Operand(self.k, View(self.dtype, shape), self.at)


class Matrices(NamedTuple):
    """A stack of matrices: strides in elements of rows, columns, and from one to the next."""

    place: Place
    row: int
    column: int
    step: int = 0


def readable(rows: int, columns: int, row: int, column: int) -> tuple[int, int] | None:
    """Return how cuBLAS reads a matrix of these sizes and strides for a product by rows.

    The answer is PLAIN or TRANSPOSED, and the leading dimension; None if cuBLAS cannot read it.
    """
    if column == 1 or columns == 1:
        apart = row if rows > 1 else max(columns, 1)
        if max(columns, 1) <= apart <= MOST:
            return PLAIN, apart
    if row == 1 or rows == 1:
        apart = column if columns > 1 else max(rows, 1)
        if max(rows, 1) <= apart <= MOST:
            return TRANSPOSED, apart
    return None


class Size(NamedTuple):
    """The size of a batch of products of (m, k) and (k, n)."""

    m: int
    n: int
    k: int
    batch: int = 1


def multiply(
    out: Matrices, a: Matrices, b: Matrices, size: Size, alpha: float = 1.0, beta: float = 0.0, *,
    tf32: bool,
) -> LibraryStep:  # fmt: skip
    """out = alpha a b + beta out.

    The rows of `out` must be contiguous and a and b `readable`.  `tf32`: float32 may be computed
    so.
    """
    (m, n, k, count), dtype = size, out.place.dtype.name
    if dtype not in _STORED:
        raise DTypeError(f"cuBLAS has no product of {dtype}")
    if max(m, n, k, count) > MOST:
        raise ShapeError(f"a product of {m} x {k} and {k} x {n}: cuBLAS takes sizes below 2^31")
    left, right = readable(m, k, a.row, a.column), readable(k, n, b.row, b.column)
    if left is None or right is None:
        raise ValueError(f"strides {a[1:]} and {b[1:]} are not for cuBLAS")
    stored, compute = Const(_STORED[dtype]), _compute(dtype, tf32)
    number = "&f64" if dtype == "float64" else "&f32"
    return LibraryStep(
        "cublasGemmStridedBatchedEx",
        (
            StreamWord("cublas"), Const(right[0]), Const(left[0]), Const(n), Const(m), Const(k),
            (number, alpha),
            b.place.array(1), stored, Const(right[1]), Const(b.step),
            a.place.array(1), stored, Const(left[1]), Const(a.step),
            (number, beta),
            out.place.array(1), stored, Const(out.row if m > 1 else max(n, 1)), Const(out.step),
            Const(count), Const(compute), Const(DEFAULT),
        ),
    )  # fmt: skip


def _compute(dtype: str, tf32: bool) -> int:
    if dtype == "float64":
        return FLOAT64
    return TF32 if dtype == "float32" and tf32 else FLOAT32


def zeros(place: Place, elements: int) -> LibraryStep:
    """Return the step that sets `elements` elements to zero."""
    size = Const(elements * place.dtype.itemsize)
    return LibraryStep(
        "cuMemsetD8Async", (place.array(elements), Const(0), size, StreamWord("stream"))
    )
