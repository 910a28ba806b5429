"""`BlockMask`: which blocks of attention's matrix are computed, and the mask inside of those that
are computed in part.  `flex_attention` shows its names.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import flowvm.ops as _ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, AssertedError
from flowvm.meta.dtype import bool_, int32, int64
from flowvm.nn.attention.mask_mods import MaskMod, create_mask, mask_of, noop_mask, numbers_of

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike


BLOCK = 128  # how many queries and keys a block has unless said
ALL = 1 << 30  # of one block that has everything
SHADES = " ░█"  # of no element, some, all


def _of_a_slice(batch: Tensor, head: Tensor, token_q: Tensor, token_kv: Tensor) -> NoReturn:
    raise ArgumentError(
        "Cannot use mask_mod from a sliced BlockMask: places in it are other places now.  Set its "
        "mask_mod, made of that of the whole mask: part.mask_mod = moved(whole.mask_mod)"
    )


def _dense(counts: Tensor, indices: Tensor, columns: int) -> Tensor:
    """int32 (..., rows, columns): 1 where a row's first `counts` indices say so."""
    listed = _ops.arange(indices.shape[-1], device=indices.device) < counts.unsqueeze(-1)
    at = _ops.where(listed, indices, columns).to(int64)
    dense = _ops.zeros(*indices.shape[:-1], columns + 1, dtype=int32, device=indices.device)
    return dense.scatter(-1, at, 1)[..., :columns].contiguous()


def _ordered(dense: Tensor) -> tuple[Tensor, Tensor]:
    """The opposite: how many of each row, and the places, those that count in front."""
    dense = dense.to(int32)
    places = _ops.argsort(dense, -1, descending=True, stable=True)
    return dense.sum(-1).to(int32), places.to(int32)


def _turned(counts: Tensor | None, indices: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    if counts is None or indices is None:
        return None, None
    return _ordered(_dense(counts, indices, indices.shape[-1]).transpose(-2, -1))


def _fewer(counts: Tensor, indices: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    counts, indices = counts[..., :rows], indices[..., :rows, :]
    return _ordered(_dense(counts, indices, indices.shape[-1])[..., :columns])


class BlockMask:
    """A mask of the keys that each query sees, by blocks; `create_block_mask` returns one.

    seq_lengths                          (queries, keys)
    BLOCK_SIZE                           how many of each a block has
    kv_num_blocks, kv_indices            of each row of blocks: how many `mask_mod` is asked of, and
                                         which, in front of the others; int32 (B, H, rows), and
                                         (B, H, rows, columns)
    full_kv_num_blocks, full_kv_indices  the same of blocks that are seen whole, or None
    q_num_blocks, q_indices, full_...    the same of each column of blocks, or None
    mask_mod                             of (b, h, q_idx, kv_idx)

    >>> from flowvm.nn.attention.flex_attention import create_block_mask
    >>> mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 6, 6, BLOCK_SIZE=2)
    >>> mask.shape, round(mask.sparsity(), 2)
    ((1, 1, 6, 6), 33.33)
    >>> mask.to_dense()[0, 0]
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=int32)
    >>> mask.kv_num_blocks, mask.full_kv_num_blocks
    (tensor([[[1, 1, 1]]], dtype=int32), tensor([[[0, 1, 2]]], dtype=int32))
    """

    _TENSORS = (
        "kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices",
        "q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices",
    )  # fmt: skip

    def __init__(
        self,
        seq_lengths: tuple[int, int],
        kv_num_blocks: Tensor,
        kv_indices: Tensor,
        full_kv_num_blocks: Tensor | None = None,
        full_kv_indices: Tensor | None = None,
        q_num_blocks: Tensor | None = None,
        q_indices: Tensor | None = None,
        full_q_num_blocks: Tensor | None = None,
        full_q_indices: Tensor | None = None,
        BLOCK_SIZE: tuple[int, int] = (BLOCK, BLOCK),
        mask_mod: MaskMod = noop_mask,
    ) -> None:
        if kv_indices.ndim < 2:
            raise ArgumentError(
                f"BlockMask must have at least 2 dimensions, got kv_indices of shape "
                f"{tuple(kv_indices.shape)}"
            )
        for side, one, other in (
            ("kv", full_kv_num_blocks, full_kv_indices), ("q", full_q_num_blocks, full_q_indices),
        ):  # fmt: skip
            if (one is None) != (other is None):
                raise AssertedError(
                    f"full_{side}_num_blocks and full_{side}_indices must be both provided or "
                    f"omitted"
                )
        self.seq_lengths = seq_lengths
        self.kv_num_blocks, self.kv_indices = kv_num_blocks, kv_indices
        self.full_kv_num_blocks, self.full_kv_indices = full_kv_num_blocks, full_kv_indices
        self.q_num_blocks, self.q_indices = q_num_blocks, q_indices
        self.full_q_num_blocks, self.full_q_indices = full_q_num_blocks, full_q_indices
        self.BLOCK_SIZE, self.mask_mod = BLOCK_SIZE, mask_mod

    @classmethod
    def from_kv_blocks(
        cls,
        kv_num_blocks: Tensor,
        kv_indices: Tensor,
        full_kv_num_blocks: Tensor | None = None,
        full_kv_indices: Tensor | None = None,
        BLOCK_SIZE: int | tuple[int, int] = BLOCK,
        mask_mod: MaskMod | None = None,
        seq_lengths: tuple[int, int] | None = None,
        compute_q_blocks: bool = True,
    ) -> BlockMask:
        """Return a BlockMask from its rows of blocks; with `compute_q_blocks` the columns are
        computed.
        """
        if kv_indices.ndim < 2:
            raise ArgumentError(
                f"BlockMask must have at least 2 dimensions, got kv_indices of shape "
                f"{tuple(kv_indices.shape)}"
            )
        size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
        if seq_lengths is None:
            seq_lengths = kv_indices.shape[-2] * size[0], kv_indices.shape[-1] * size[1]
        mask = cls(
            seq_lengths, kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices,
            BLOCK_SIZE=size, mask_mod=noop_mask if mask_mod is None else mask_mod,
        )  # fmt: skip
        if compute_q_blocks:
            mask.q_num_blocks, mask.q_indices = _turned(kv_num_blocks, kv_indices)
            full = _turned(full_kv_num_blocks, full_kv_indices)
            mask.full_q_num_blocks, mask.full_q_indices = full
        return mask

    def _rows(
        self, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], **more: Any
    ) -> BlockMask:
        full: tuple[Tensor | None, Tensor | None] = (None, None)
        if self.full_kv_num_blocks is not None and self.full_kv_indices is not None:
            full = change(self.full_kv_num_blocks, self.full_kv_indices)
        return BlockMask.from_kv_blocks(
            *change(self.kv_num_blocks, self.kv_indices), *full, BLOCK_SIZE=self.BLOCK_SIZE,
            compute_q_blocks=self.q_indices is not None, **more,
        )  # fmt: skip

    def as_tuple(self, flatten: bool = True) -> tuple[Any, ...]:
        """seq_lengths, the tensors, BLOCK_SIZE, mask_mod; pairs as two values, if `flatten`."""
        tensors = [getattr(self, name) for name in self._TENSORS]
        if flatten:
            return (*self.seq_lengths, *tensors, *self.BLOCK_SIZE, self.mask_mod)
        return (self.seq_lengths, *tensors, self.BLOCK_SIZE, self.mask_mod)

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, H, queries, keys)."""
        return (*self.kv_indices.shape[:-2], *self.seq_lengths)

    def __getitem__(self, index: object) -> BlockMask:
        """The mask of some of the batch, heads, rows of blocks; an int keeps its dimension.

        Its mask_mod is an error until it is set, for it does not know which places these are.
        """
        positions = index if isinstance(index, tuple) else (index,)
        if len(positions) > self.kv_num_blocks.ndim:
            raise ArgumentError(
                f"BlockMask[...]: {self.kv_num_blocks.ndim} dimensions, "
                f"got {len(positions)} indices"
            )
        at = tuple(
            (slice(i, i + 1 or None) if isinstance(i, int) else i) for i in positions
        )  # fmt: skip
        return self._rows(
            lambda counts, indices: (counts[at], indices[at]),
            mask_mod=_of_a_slice, seq_lengths=self.seq_lengths,
        )  # fmt: skip

    def _adjust(self, new_q_len: int, new_kv_len: int) -> BlockMask:
        """The upper left corner, of other lengths."""
        rows = -(-new_q_len // self.BLOCK_SIZE[0])
        columns = -(-new_kv_len // self.BLOCK_SIZE[1])
        return self._rows(
            lambda counts, indices: _fewer(counts, indices, rows, columns),
            mask_mod=self.mask_mod, seq_lengths=(new_q_len, new_kv_len),
        )  # fmt: skip

    def numel(self) -> int:
        """Return the number of elements of the mask."""
        return math.prod(self.shape)

    def sparsity(self) -> float:
        """Return the share of the mask, in per cent, that lies in blocks that are not computed."""
        blocks = self.kv_num_blocks.sum()
        if self.full_kv_num_blocks is not None:
            blocks = blocks + self.full_kv_num_blocks.sum()
        computed = int(blocks.item()) * self.BLOCK_SIZE[0] * self.BLOCK_SIZE[1]
        return 100 * (1 - computed / self.numel())

    def to_dense(self) -> Tensor:
        """int32 (B, H, rows of blocks, columns of blocks): 1 for each block that is computed."""
        dense = _dense(self.kv_num_blocks, self.kv_indices, self.kv_indices.shape[-1])
        if self.full_kv_num_blocks is not None and self.full_kv_indices is not None:
            columns = self.full_kv_indices.shape[-1]
            dense = dense | _dense(self.full_kv_num_blocks, self.full_kv_indices, columns)
        return dense

    def to_string(self, grid_size: int | tuple[int, int] = (20, 20), limit: int = 4) -> str:
        """A picture of its blocks, of `limit` heads at most, of up to `grid_size` rows and columns
        each (-1: of all).
        """
        dense = self.to_dense().numpy()
        *before, rows, columns = dense.shape
        size = (grid_size, grid_size) if isinstance(grid_size, int) else grid_size
        tall, wide = (
            n if most == -1 else most for n, most in zip((rows, columns), size, strict=True)
        )
        down, right = max(1, -(-rows // tall)), max(1, -(-columns // wide))
        parts = []
        for count, place in enumerate(itertools.product(*map(range, before))):
            if count == limit:
                parts.append("...\nTo print out more, set BlockMask.to_string(limit=N), or index")
                break
            text = f"{place}\n"
            for r in range(0, rows, down):
                for c in range(0, columns, right):
                    share = dense[place][r : r + down, c : c + right].mean()
                    text += SHADES[(share > 0) + int(share == 1)] * 2
                text += "\n"
            parts.append(text)
        return "\n".join(parts)

    def to(self, device: Any) -> BlockMask:
        """Return a copy with its tensors on `device`."""
        mask = BlockMask(
            self.seq_lengths, self.kv_num_blocks, self.kv_indices,
            BLOCK_SIZE=self.BLOCK_SIZE, mask_mod=self.mask_mod,
        )  # fmt: skip
        for name in self._TENSORS:
            t = getattr(self, name)
            setattr(mask, name, t if t is None else t.to(device))
        return mask

    def __str__(self) -> str:
        text = self.to_string().strip()
        return f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%,\n{text}\n)"

    def __repr__(self) -> str:
        tensors = [(name, getattr(self, name)) for name in self._TENSORS]
        shapes = "".join(
            f"    {name}={None if t is None else tuple(t.shape)},\n" for name, t in tensors
        )
        name = getattr(self.mask_mod, "__name__", self.mask_mod)
        return (
            f"BlockMask(\n{shapes}    BLOCK_SIZE={self.BLOCK_SIZE},\n    shape={self.shape},\n"
            f"    sparsity={self.sparsity():.2f}%,\n    mask_mod={name}\n)"
        )


def create_block_mask(
    mask_mod: MaskMod,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: DeviceLike | None = None,
    BLOCK_SIZE: int | tuple[int, int] = BLOCK,
    _compile: bool = False,
    separate_full_blocks: bool = True,
    compute_dq_write_order: bool = False,
    dq_kv_order: bool = True,
) -> BlockMask:
    """The blocks of queries and keys of which `mask_mod` (b, h, q_idx, kv_idx) lets some be seen.

    B, H                   None where it does not depend on them
    BLOCK_SIZE             how many queries and keys a block has, one number or two
    separate_full_blocks   list blocks that are seen whole apart, so that nobody asks mask_mod there

    `_compile`, `compute_dq_write_order` and `dq_kv_order` are taken: what they are for are kernels
    that flowvm does not have.  ArgumentTypeError for what is no mask_mod.

    >>> from flowvm.nn.attention.flex_attention import create_block_mask
    >>> create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256).sparsity()
    25.0
    """
    if numbers_of(mask_mod) != 4:
        raise ArgumentTypeError(
            "create_block_mask wants a mask_mod (b, h, q_idx, kv_idx), got one of five, a score_mod"
        )
    rows, columns = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
    mask = create_mask(mask_mod, B, H, Q_LEN, KV_LEN, device)
    mask = _ops.pad(mask, (0, -KV_LEN % columns, 0, -Q_LEN % rows))
    down, right = mask.shape[-2] // rows, mask.shape[-1] // columns
    counts = mask.reshape(*mask.shape[:2], down, rows, right, columns).sum((3, 5))
    full: tuple[Tensor | None, Tensor | None] = (None, None)
    part = counts > 0
    if separate_full_blocks:
        whole = counts == rows * columns
        part, full = part & ~whole, _ordered(whole)
    return BlockMask.from_kv_blocks(
        *_ordered(part), *full, BLOCK_SIZE=(rows, columns), mask_mod=mask_mod,
        seq_lengths=(Q_LEN, KV_LEN),
    )  # fmt: skip


def whole_mask(mask: BlockMask, sizes: tuple[int, ...], device: DeviceLike) -> Tensor:
    """Bools that broadcast to `sizes` (B, H, queries, keys): what is seen by the blocks and, where
    they are seen in part, by the mask_mod.
    """
    queries, keys = sizes[-2:]
    columns = -(-keys // mask.BLOCK_SIZE[1])

    def spread(counts: Tensor, indices: Tensor) -> Tensor:
        dense = _dense(counts, indices, max(columns, indices.shape[-1])).to(bool_)
        for dim, size in ((-2, mask.BLOCK_SIZE[0]), (-1, mask.BLOCK_SIZE[1])):
            dense = _ops.repeat_interleave(dense, size, dim)
        return dense[..., :queries, :keys]

    visible = spread(mask.kv_num_blocks, mask.kv_indices)
    if visible.shape[-2] < queries:
        raise ArgumentError(
            f"flex_attention: the block_mask has {mask.kv_indices.shape[-2]} rows of blocks of "
            f"{mask.BLOCK_SIZE[0]} queries, and there are {queries} queries"
        )
    visible = visible & mask_of(mask.mask_mod, sizes, device)
    if mask.full_kv_num_blocks is not None and mask.full_kv_indices is not None:
        visible = visible | spread(mask.full_kv_num_blocks, mask.full_kv_indices)
    return visible
