"""`flow.sparse`: functions of sparse tensors, under PyTorch's names.

A sparse tensor is a Tensor with a layout such as `flow.sparse_coo` or `flow.sparse_csr`.  What else
is done with one are functions of `flow` and methods: `flow.sparse_coo_tensor`, `x.to_sparse_csr()`,
`x @ y`.  A function with no row in the table of `flowvm.ops.sparse.rules` is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentTypeError
from flowvm.guards.regions import Switched
from flowvm.loading.listing import listing
from flowvm.loading.missing_names import other_names
from flowvm.meta.dtype import DType, float32, float64, int32, int64
from flowvm.ops.sparse import conversion, rules
from flowvm.ops.sparse.table import RULES
from flowvm.ops.sparse.tensor import SparseTensor
from flowvm.vm.callers.tracebacks import border

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike


__all__ = [
    "DoubleTensor",
    "FloatTensor",
    "IntTensor",
    "LongTensor",
    "addmm",
    "check_sparse_tensor_invariants",
    "from_scipy",
    "log_softmax",
    "mm",
    "sampled_addmm",
    "softmax",
    "spdiags",
    "sum",
    "to_scipy",
]
__dir__ = listing(globals())


def mm(mat1: Tensor, mat2: Tensor, reduce: str = "sum") -> Tensor:
    """Return the product of two matrices; it is sparse where both are.

    reduce   how the products of a row are joined: "sum", or "mean", "amax", "amin" or "prod" of a
             sparse matrix with a dense one

    >>> x = flow.sparse_coo_tensor([[0, 1], [1, 0]], [2.0, 3.0], (2, 2))
    >>> flow.sparse.mm(x, flow.ones(2, 1))
    tensor([[2.],
            [3.]])
    """
    out: Tensor = rules.mm(mat1, mat2, reduce=reduce)
    return out


def addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1.0, alpha: float = 1.0
) -> Tensor:
    """Return `beta * input + alpha * (mat1 @ mat2)`, with `mat1` sparse.

    >>> x = flow.eye(2).to_sparse()
    >>> flow.sparse.addmm(flow.ones(2, 1), x, flow.ones(2, 1), alpha=3)
    tensor([[4.],
            [4.]])
    """
    out: Tensor = RULES["addmm"](input, mat1, mat2, beta=beta, alpha=alpha)
    return out


def sampled_addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1.0,
    alpha: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """Return `beta * input + alpha * (mat1 @ mat2)` at the places of `input`, a CSR matrix.

    >>> x = flow.eye(2).to_sparse_csr()
    >>> flow.sparse.sampled_addmm(x, flow.ones(2, 3), flow.ones(3, 2)).values()
    tensor([4., 4.])
    """
    product = rules.sampled_addmm(
        _sparse("sampled_addmm", input), mat1, mat2, beta=beta, alpha=alpha
    )
    return product if out is None else rules.changed(_sparse("sampled_addmm", out), product)


def sum(input: Tensor, dim: object = None, dtype: DType | None = None) -> Tensor:
    """Return the sum, over all dimensions or some; of a part of the sparse ones, a sparse tensor.

    >>> x = flow.sparse_coo_tensor([[0, 1], [1, 0]], [2.0, 3.0], (2, 2))
    >>> flow.sparse.sum(x), flow.sparse.sum(x, 0).to_dense()
    (tensor(5.), tensor([3., 2.]))
    """
    out: Tensor = RULES["sum"](_sparse("sum", input), dim, dtype=dtype)
    return out


def softmax(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Return the softmax over `dim` of the elements that are stored: others count as -infinity.

    >>> x = flow.sparse_coo_tensor([[0, 0], [0, 2]], [1.0, 1.0], (1, 3))
    >>> flow.sparse.softmax(x, 1).to_dense()
    tensor([[0.5000, 0.0000, 0.5000]])
    """
    out: Tensor = rules.softmax(_sparse("softmax", input), dim, dtype)
    return out


def log_softmax(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Return the logarithm of `softmax`, at the places that are stored.

    >>> x = flow.sparse_coo_tensor([[0], [0]], [1.0], (1, 3))
    >>> flow.sparse.log_softmax(x, 1).values()
    tensor([0.])
    """
    out: Tensor = rules.log_softmax(_sparse("log_softmax", input), dim, dtype)
    return out


def spdiags(
    diagonals: Tensor, offsets: Tensor, shape: tuple[int, int], layout: object = None
) -> Tensor:
    """Return the sparse matrix with each row of `diagonals` on the diagonal that `offsets` says,
    the element of column j in column j.

    >>> flow.sparse.spdiags(flow.ones(1, 3), flow.tensor([1]), (3, 3)).to_dense()
    tensor([[0., 1., 0.],
            [0., 0., 1.],
            [0., 0., 0.]])
    """
    return conversion.spdiags(diagonals, offsets, shape, layout)


# --- SciPy ----------------------------------------------------------------------------------------


def from_scipy(
    matrix: object,
    *,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a copy of a sparse matrix or array of SciPy: CSR, CSC and BSR stay what they are, all
    else becomes coordinates.

    >>> import scipy.sparse
    >>> flow.sparse.from_scipy(scipy.sparse.csr_array([[0.0, 2.0]])).layout
    flow.sparse_csr
    """
    return conversion.from_scipy(matrix, dtype=dtype, device=device, requires_grad=requires_grad)


def to_scipy(x: Tensor) -> Any:
    """Return a copy of a sparse tensor as a sparse array of SciPy.  Waits for the values.

    >>> flow.sparse.to_scipy(flow.eye(2).to_sparse_csr()).format
    'csr'
    """
    return conversion.to_scipy(_sparse("to_scipy", x))


# --- the older names of classes -------------------------------------------------------------------


def _older(dtype: DType, word: str) -> object:
    def make(*args: object, device: DeviceLike | None = None) -> Tensor:
        if len(args) > 1:
            return conversion.sparse_coo_tensor(*args, dtype=dtype, device=device)
        return conversion.sparse_coo_tensor(args[0] if args else (0,), dtype=dtype, device=device)

    make.__name__ = make.__qualname__ = f"{word}Tensor"
    make.__doc__ = f"""Return `flow.sparse_coo_tensor(indices, values, size)` of {dtype.name}: an
    older name.

    >>> flow.sparse.{word}Tensor([[0]], [1], (2,)).dtype
    flow.{dtype.name}
    """
    return make


FloatTensor, DoubleTensor = _older(float32, "Float"), _older(float64, "Double")
IntTensor, LongTensor = _older(int32, "Int"), _older(int64, "Long")


# --- checks ---------------------------------------------------------------------------------------


class check_sparse_tensor_invariants(Switched):  # noqa: N801 - PyTorch's name
    """A context manager: indices that are tensors are checked where a sparse tensor is made of
    them, which waits for them.  On this thread, inside the block; `enable()` and `disable()` stay.

    >>> with flow.sparse.check_sparse_tensor_invariants():
    ...     flow.sparse.check_sparse_tensor_invariants.is_enabled()
    True
    """

    def __init__(self, enable: bool = True) -> None:
        self._enable = bool(enable)
        self._before: bool | None = None

    def _switch(self) -> object:
        self._before = conversion.checks.now()
        conversion.checks.set(self._enable)
        return self

    def _undo(self) -> None:
        if self._before is not None:
            conversion.checks.set(self._before)
            self._before = None

    @staticmethod
    def is_enabled() -> bool:
        """Return True if such indices are checked."""
        return conversion.checks.now()

    @staticmethod
    def enable() -> None:
        """Check from now on."""
        conversion.checks.set(True)

    @staticmethod
    def disable() -> None:
        """Check no more."""
        conversion.checks.set(False)


def _sparse(name: str, x: Tensor) -> SparseTensor:
    if not isinstance(x, SparseTensor):
        raise ArgumentTypeError(
            f"sparse.{name}: a sparse tensor is needed, got {type(x).__name__}; make one with "
            f"to_sparse()"
        )
    return x


__getattr__ = border(other_names("sparse", lambda: __all__))
