"""A tensor taken apart along one dimension: `split`, `chunk`, `tensor_split`, `unbind` and their
kin.

The pieces are views.  They are one node with an edge for each piece, so that their gradient is one
`cat`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.keywords import spelled
from flowvm.eager.modes import current_trace_recorder, grad_enabled
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.nodes import Node, OutputEdge
from flowvm.eager.tensor import Tensor, base_of, method
from flowvm.errors import ArgumentError, ShapeError
from flowvm.ops.declare.composite import Recorded, filled_of, need_tensor, whole, wrap_dim
from flowvm.ops.declare.rebase import remember_view
from flowvm.ops.declare.registry import samples
from flowvm.ops.shapes.join import cat, stack
from flowvm.ops.shapes.slices import _select, _slice
from flowvm.ops.shapes.views import _dims_of, _xs

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


# public: flow


def _pieces_grad(c: Node, *gradients: Tensor | None) -> tuple[Tensor]:
    gradient = next(g for g in gradients if g is not None)
    dtype = gradient._meta.dtype
    parts = [
        filled_of(m, 0, dtype) if g is None else g
        for g, m in zip(gradients, c.out_metas, strict=True)
    ]
    (dim, removed) = c.attrs
    return (stack(parts, dim) if removed else cat(parts, dim),)


_split_op = Recorded("split", _pieces_grad, ("x",))


def _pieces(x: Tensor, at: int, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Views of consecutive pieces that cover dimension `at`; each piece of size 0 in `sizes`
    selects.
    """
    plain = _plain(x)
    out, start = [], 0
    for size in sizes:
        out.append(_slice(plain, at, start, size, 1))
        start += size
    return _joined(x, out, (at, False))


def _plain(x: Tensor) -> Tensor:
    """Return `x`, detached if it is in the graph: its pieces get one Node later."""
    return x.detach() if x._node is not None and grad_enabled() else x


def _joined(x: Tensor, out: list[Tensor], attrs: tuple[int, bool]) -> tuple[Tensor, ...]:
    base = base_of(x)
    if x._node is not None and grad_enabled():
        if (trace := current_trace_recorder()) is not None:
            trace.pieces(_split_op, x, tuple(out), attrs)
        for piece in out:
            piece._kin = base
            if not (base._node is not None and base._node.is_leaf):
                remember_view(base, piece)
        if out:
            metas = tuple(piece._meta for piece in out)
            node = Node(_split_op, (x._node,), (), (), (x._meta,), attrs, metas)
            for i, piece in enumerate(out):
                piece._node = OutputEdge(node, i) if len(out) > 1 else node
    return tuple(out)


@method()
@steady
@spelled(split_size="split_size_or_sections", split_sizes="split_size_or_sections")
def split(
    tensor: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0
) -> tuple[Tensor, ...]:
    """Views of consecutive pieces of dimension `dim`: of this size (the last may be smaller), or of
    these sizes.

    >>> flow.split(flow.arange(5), 2)
    (tensor([0, 1]), tensor([2, 3]), tensor([4]))
    """
    x = need_tensor("split", "tensor", tensor)
    if x._meta.ndim == 0:
        raise ShapeError("split: a 0-d tensor has no dimension to split")
    at = wrap_dim("split", dim, x._meta.ndim)
    size = x._meta.shape[at]
    if isinstance(split_size_or_sections, (tuple, list)):
        sizes = _dims_of((split_size_or_sections,))
        if sum(sizes) != size or any(s < 0 for s in sizes):
            raise ShapeError(
                f"split: sizes {sizes} do not add up to dimension {dim} of size {size}"
            )
        return _pieces(x, at, sizes)
    (step,) = _dims_of((split_size_or_sections,))
    if step < 0 or (step == 0 and size > 0):
        raise ArgumentError(f"split: split_size must be positive, got {step}")
    if size == 0:
        return _pieces(x, at, (0,))
    return _pieces(x, at, [min(step, size - i) for i in range(0, size, step)])


@method()
@steady
def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """`split` with a list of sizes.

    >>> flow.split_with_sizes(flow.arange(4), [1, 3])
    (tensor([0]), tensor([1, 2, 3]))
    """
    return split(input, list(split_sizes), dim)


@method()
@steady
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Split a tensor into at most `chunks` pieces: ceil(size / chunks) each, the last maybe less.

    >>> flow.chunk(flow.arange(5), 2)
    (tensor([0, 1, 2]), tensor([3, 4]))
    """
    x = need_tensor("chunk", "input", input)
    chunks = whole("chunk", "chunks", chunks)
    if chunks <= 0:
        raise ArgumentError(f"chunk: chunks must be positive, got {chunks}")
    if x._meta.ndim == 0:
        raise ShapeError("chunk: a 0-d tensor has no dimension to split")
    at = wrap_dim("chunk", dim, x._meta.ndim)
    size = x._meta.shape[at]
    if size == 0:
        if chunks > MOST_PIECES:
            raise ArgumentError(f"chunk: at most {MOST_PIECES} pieces, got {chunks}")
        return _pieces(x, at, [0] * chunks)
    return split(x, -(-size // chunks), at)


MOST_PIECES = 1 << 24
# PyTorch's names, which say which of the two it is
_CUT = spelled(
    indices="indices_or_sections",
    sections="indices_or_sections",
    tensor_indices_or_sections="indices_or_sections",
)


@method()
@steady
@_CUT
def tensor_split(
    input: Tensor, indices_or_sections: int | Sequence[int] | Tensor, dim: int = 0
) -> tuple[Tensor, ...]:
    """Pieces cut at these indices, or this many whose sizes differ by at most one (NumPy's
    array_split).

    >>> flow.tensor_split(flow.arange(5), 3)
    (tensor([0, 1]), tensor([2, 3]), tensor([4]))
    """
    x = need_tensor("tensor_split", "input", input)
    if x._meta.ndim == 0:
        raise ShapeError("tensor_split: a 0-d tensor has no dimension to split")
    at = wrap_dim("tensor_split", dim, x._meta.ndim)
    size = x._meta.shape[at]
    if isinstance(indices_or_sections, Tensor):
        indices_or_sections = indices_or_sections.tolist()
    if isinstance(indices_or_sections, (tuple, list)):
        cuts = [slice(None, i).indices(size)[1] for i in _dims_of((indices_or_sections,))]
        edges = [0, *cuts, size]
        spans = [(a, max(0, b - a)) for a, b in itertools.pairwise(edges)]
        if all(a <= b for a, b in itertools.pairwise(edges)):
            return _pieces(x, at, [n for _, n in spans])
        return tuple(_slice(x, at, a, n, 1) for a, n in spans)
    (sections,) = _dims_of((indices_or_sections,))
    if sections <= 0:
        raise ArgumentError(f"tensor_split: sections must be positive, got {sections}")
    if sections > MOST_PIECES:
        raise ArgumentError(f"tensor_split: at most {MOST_PIECES} pieces, got {sections}")
    each, more = divmod(size, sections)
    return _pieces(x, at, [each + (i < more) for i in range(sections)])


def _even_split(
    name: str, x: Tensor, sections: int | Sequence[int], dim: int, least: int
) -> tuple[Tensor, ...]:
    if need_tensor(name, "input", x)._meta.ndim < least:
        raise ShapeError(f"{name}: needs at least {least} dimensions, got shape {tuple(x.shape)}")
    if not isinstance(sections, (tuple, list, Tensor)):
        sections = whole(name, "sections", sections)
    if isinstance(sections, int) and (sections <= 0 or x._meta.shape[dim] % sections):
        raise ShapeError(
            f"{name}: dimension {dim} of size {x._meta.shape[dim]} does not split into {sections} "
            f"equal pieces; tensor_split makes unequal ones"
        )
    return tensor_split(x, sections, dim)


@method()
@_CUT
def hsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Pieces along dimension 1 (0 of a 1-d tensor); an int must divide its size.

    >>> flow.hsplit(flow.arange(4), 2)
    (tensor([0, 1]), tensor([2, 3]))
    """
    one = isinstance(input, Tensor) and input._meta.ndim == 1
    return _even_split("hsplit", input, indices_or_sections, 0 if one else 1, 1)


@method()
@_CUT
def vsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Pieces along dimension 0 of a tensor of at least 2.

    >>> flow.vsplit(flow.tensor([[1, 2], [3, 4]]), 2)
    (tensor([[1, 2]]), tensor([[3, 4]]))
    """
    return _even_split("vsplit", input, indices_or_sections, 0, 2)


@method()
@_CUT
def dsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Pieces along dimension 2 of a tensor of at least 3.

    >>> [part.shape for part in flow.dsplit(flow.ones(1, 2, 4), 2)]
    [flow.Size([1, 2, 2]), flow.Size([1, 2, 2])]
    """
    return _even_split("dsplit", input, indices_or_sections, 2, 3)


@method()
@steady
def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """A view for each index of dimension `dim`, without it.

    >>> flow.unbind(flow.tensor([[1, 2], [3, 4]]))
    (tensor([1, 2]), tensor([3, 4]))
    """
    x = need_tensor("unbind", "input", input)
    if x._meta.ndim == 0:
        raise ShapeError("unbind: a 0-d tensor has no dimension to take apart")
    at = wrap_dim("unbind", dim, x._meta.ndim)
    plain = _plain(x)
    out = [_select(plain, at, i) for i in range(x._meta.shape[at])]
    return _joined(x, out, (at, True))


# --- samples ------------------------------------------------------------------------------------


def _cut(x: Any, size: int | Sequence[int], dim: int = 0) -> list[Any]:
    sizes = [size] * (x.shape[dim] // size) if isinstance(size, int) else size
    return np.split(
        x,
        list(np.cumsum(sizes))[: None if isinstance(size, int) and x.shape[dim] % size else -1],
        dim,
    )


samples(
    split,
    lambda rng: _xs(rng, ((5, 2), 2), ((2, 4), 2, 1), ((5,), (1, 4)), ((2, 3), (1, 0, 2), -1)),
    _cut,
    errors=(
        (lambda flow: flow.split(flow.ones(4), (1, 2)), RuntimeError),
        (lambda flow: flow.split(flow.ones(4), 0), ValueError),
        (lambda flow: flow.split(flow.ones(()), 1), RuntimeError),
    ),
)
samples(split_with_sizes, lambda rng: _xs(rng, ((5, 2), (2, 3)), ((2, 4), (1, 3), 1)), _cut)
samples(
    chunk,
    lambda rng: _xs(rng, ((5, 2), 2), ((2, 4), 3, 1), ((3,), 5)),
    lambda x, n, dim=0: _cut(x, -(-x.shape[dim] // n), dim),
    errors=((lambda flow: flow.chunk(flow.ones(3), 0), ValueError),),
)
samples(
    tensor_split,
    lambda rng: _xs(rng, ((5, 2), 2), ((2, 4), (1, 3), 1), ((3,), 5), ((4,), (3, 1))),
    np.array_split,
    errors=((lambda flow: flow.tensor_split(flow.ones(3), 0), ValueError),),
)
samples(
    hsplit,
    lambda rng: _xs(rng, ((2, 4), 2), ((4,), (1, 3))),
    np.hsplit,
    errors=((lambda flow: flow.hsplit(flow.ones(3), 2), RuntimeError),),
)
samples(
    vsplit,
    lambda rng: _xs(rng, ((4, 2), 2), ((4, 1), (1, 3))),
    np.vsplit,
    errors=((lambda flow: flow.vsplit(flow.ones(3), 3), RuntimeError),),
)
samples(dsplit, lambda rng: _xs(rng, ((2, 1, 4), 2)), np.dsplit)
samples(
    unbind,
    lambda rng: _xs(rng, ((3, 2),), ((2, 3), -1), ((2,),)),
    lambda x, dim=0: [np.take(x, i, dim) for i in range(x.shape[dim])],
    errors=((lambda flow: flow.unbind(flow.ones(())), RuntimeError),),
)
