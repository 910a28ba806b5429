"""Methods of dense tensors that make sparse ones, or that only sparse ones have.

They are attached with `import flowvm`; what they do is imported when one is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.loading.lazy import lazy
from flowvm.meta.formats import Layout, sparse_bsc, sparse_bsr, sparse_coo, sparse_csc, sparse_csr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowvm.ops.sparse import conversion, rules
else:
    conversion = lazy("flowvm.ops.sparse.conversion")
    rules = lazy("flowvm.ops.sparse.rules")


@method()
def to_sparse(
    x: Tensor,
    sparse_dim: int | Layout | None = None,
    *,
    layout: Layout | None = None,
    blocksize: Sequence[int] | None = None,
    dense_dim: int | None = None,
) -> Tensor:
    """Return a sparse tensor of the elements that are not zero.  Waits for their number.

    sparse_dim   how many dimensions are sparse, the others are each value's; a layout will do
    layout       such as `flow.sparse_csr`; coordinates by default
    blocksize    rows and columns of a block, for layouts with blocks

    >>> flow.tensor([[0.0, 2.0], [0.0, 0.0]]).to_sparse()
    tensor(indices=tensor([[0],
                           [1]]),
           values=tensor([2.]),
           size=(2, 2), nnz=1, layout=flow.sparse_coo)
    """
    if isinstance(sparse_dim, Layout):
        layout, sparse_dim = sparse_dim, None
    if layout is not None and sparse_dim is not None:
        raise ArgumentError("to_sparse: give sparse_dim or a layout, not both")
    return conversion.from_dense(x, layout or sparse_coo, blocksize, dense_dim, sparse_dim)


def _attach(name: str, layout: Layout, blocks: bool, shown: str, bounds: str) -> None:
    def plain(x: Tensor, dense_dim: int | None = None) -> Tensor:
        return conversion.from_dense(x, layout, None, dense_dim, name=name)

    def blocked(x: Tensor, blocksize: int | Sequence[int], dense_dim: int | None = None) -> Tensor:
        return conversion.from_dense(x, layout, blocksize, dense_dim, name=name)

    variant = blocked if blocks else plain
    variant.__name__ = variant.__qualname__ = name
    call = f"{name}((1, 1))" if blocks else f"{name}()"
    variant.__doc__ = f"""Return a sparse tensor with layout `flow.{layout.name}`.  Waits for the
    number of elements that are not zero.

    >>> flow.tensor([[0.0, 2.0], [0.0, 0.0]]).{call}.{shown}()
    tensor({bounds})
    """
    method(name)(variant)


_attach("to_sparse_csr", sparse_csr, False, "crow_indices", "[0, 1, 1]")
_attach("to_sparse_bsr", sparse_bsr, True, "crow_indices", "[0, 1, 1]")
_attach("to_sparse_csc", sparse_csc, False, "ccol_indices", "[0, 0, 1]")
_attach("to_sparse_bsc", sparse_bsc, True, "ccol_indices", "[0, 0, 1]")


@method()
def to_sparse_coo(x: Tensor) -> Tensor:
    """Return a sparse tensor of coordinates.  Waits for the number of elements that are not zero.

    >>> flow.tensor([0.0, 2.0]).to_sparse_coo().indices()
    tensor([[1]])
    """
    return conversion.from_dense(x, sparse_coo, name="to_sparse_coo")


@method()
def sparse_mask(x: Tensor, mask: Tensor) -> Tensor:
    """Return the elements at the places that a sparse tensor stores, as a sparse tensor.

    >>> mask = flow.sparse_coo_tensor([[1]], [1.0], (2,))
    >>> flow.tensor([3.0, 4.0]).sparse_mask(mask).to_dense()
    tensor([0., 4.])
    """
    return rules.sparse_mask(x, mask)  # type: ignore[no-any-return]


def _refusing(name: str) -> None:
    def refuse(x: Tensor, *args: object, **kwargs: object) -> None:
        raise ArgumentTypeError(
            f"{name}: a sparse tensor is needed, got one with layout flow.strided; make it sparse "
            f"with to_sparse() or to_sparse_csr()"
        )

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"""ArgumentTypeError: only a sparse tensor has it.

        >>> try:
        ...     flow.ones(2).{name}()
        ... except flow.FlowError as error:
        ...     print(type(error).__name__)
        ArgumentTypeError
        """
    method(name)(refuse)


for _name in (
    "_coalesced_", "_dimI", "_dimV", "_indices", "_nnz", "_values", "ccol_indices", "coalesce",
    "col_indices", "crow_indices", "indices", "row_indices", "sparse_resize_",
    "sparse_resize_and_clear_", "values",
):  # fmt: skip
    _refusing(_name)
