"""Sequences of different lengths for recurrent layers: padded, packed, and lists of them.

A PackedSequence has the samples of each step one below the other, the longest sequence first, so
that step t is the first `batch_sizes[t]` of them and nothing is computed for padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, ShapeError
from flowvm.loading.listing import listing, own_names
from flowvm.meta.device import Device
from flowvm.meta.dtype import float16, float32, float64, int8, int16, int32, int64, uint8

__dir__ = listing(globals())


class _Packed(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Packed):
    """Sequences of different lengths: `data` (rows, *), the samples of each step.

    `batch_sizes` (steps,), int64 on the CPU: how many samples a step has.  `sorted_indices` put the
    given samples in the order of their lengths, `unsorted_indices` put them back; None where they
    were given in that order.  Made by `pack_padded_sequence` or `pack_sequence`.

    >>> packed = nn.utils.rnn.pack_sequence([flow.tensor([1, 2, 3]), flow.tensor([4])])
    >>> packed.data, packed.batch_sizes
    (tensor([1, 4, 2, 3]), tensor([2, 1, 1]))
    """

    def __new__(
        cls,
        data: Tensor,
        batch_sizes: Tensor | None = None,
        sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> Self:
        if batch_sizes is None:  # PackedSequence((data, batch_sizes)), as it once was
            data, batch_sizes = data
        if batch_sizes.device.type != "cpu":
            raise ArgumentError(
                f"PackedSequence: batch_sizes must be on the CPU, got a tensor on "
                f"{batch_sizes.device}"
            )
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """The sequences in another dtype or on another device; itself if nothing changes."""
        data = self.data.to(*args, **kwargs)
        if data is self.data:
            return self
        indices = [t if t is None else t.to(data.device) for t in self[2:]]
        return type(self)(data, self.batch_sizes, *indices)

    def cpu(self) -> PackedSequence:
        """The sequences on the CPU."""
        return self.to("cpu")

    def cuda(self, device: Device | str | int | None = None) -> PackedSequence:
        """The sequences on a CUDA device."""
        where = f"cuda:{device}" if isinstance(device, int) else device
        return self.to("cuda" if where is None else where)

    def double(self) -> PackedSequence:
        """Data of float64."""
        return self.to(float64)

    def float(self) -> PackedSequence:
        """Data of float32."""
        return self.to(float32)

    def half(self) -> PackedSequence:
        """Data of float16."""
        return self.to(float16)

    def long(self) -> PackedSequence:
        """Data of int64."""
        return self.to(int64)

    def int(self) -> PackedSequence:
        """Data of int32."""
        return self.to(int32)

    def short(self) -> PackedSequence:
        """Data of int16."""
        return self.to(int16)

    def char(self) -> PackedSequence:
        """Data of int8."""
        return self.to(int8)

    def byte(self) -> PackedSequence:
        """Data of uint8."""
        return self.to(uint8)

    def pin_memory(self) -> PackedSequence:
        """Itself: memory is not pinned here."""
        return self

    def is_pinned(self) -> bool:
        """False: memory is not pinned here."""
        return False

    @property
    def is_cuda(self) -> bool:
        """True if the data is on a CUDA device."""
        return bool(self.data.device.type == "cuda")


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """Return the inverse of a permutation: `invert_permutation(p)[p[i]]` is i; None for None.

    >>> nn.utils.rnn.invert_permutation(flow.tensor([2, 0, 1]))
    tensor([1, 2, 0])
    """
    if permutation is None:
        return None
    places = ops.arange(permutation.numel(), device=permutation.device)
    inverse: Tensor = ops.empty_like(permutation).scatter(0, permutation, places)
    return inverse


def _lengths(name: str, lengths: Tensor | Sequence[int], batch: int) -> list[int]:
    numbers = lengths.tolist() if isinstance(lengths, Tensor) else [int(n) for n in lengths]
    if not isinstance(numbers, list) or len(numbers) != batch:
        raise ArgumentError(
            f"{name}: lengths must be one for each of the {batch} samples, got {numbers}"
        )
    return numbers


def _rows(sizes: Sequence[int], batch: int) -> list[int]:
    """List the rows of packed data as rows of an array (steps, batch)."""
    return [t * batch + b for t, size in enumerate(sizes) for b in range(size)]


def pack_padded_sequence(
    input: Tensor,
    lengths: Tensor | Sequence[int],
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> PackedSequence:
    """The first `lengths[b]` steps of each sample b of input (steps, samples, *), packed.

    batch_first: input is (samples, steps, *).  With enforce_sorted the lengths must fall, else the
    samples are sorted first.  ArgumentError for lengths that are not positive, longer than the
    input, not one a sample, or, with enforce_sorted, rising.

    >>> packed = nn.utils.rnn.pack_padded_sequence(flow.arange(6).reshape(3, 2), [3, 1])
    >>> packed.data, packed.batch_sizes
    (tensor([0, 1, 2, 4]), tensor([2, 1, 1]))
    """
    if input.ndim < 2:
        raise ShapeError(
            f"pack_padded_sequence: input needs 2 dimensions, got shape {tuple(input.shape)}"
        )
    x = input.transpose(0, 1) if batch_first else input
    steps, batch = x.shape[:2]
    numbers = _lengths("pack_padded_sequence", lengths, batch)
    order = sorted(range(batch), key=lambda b: -numbers[b])
    if not numbers or min(numbers) <= 0 or max(numbers) > steps:
        raise ArgumentError(
            f"pack_padded_sequence: lengths must be from 1 to the input's {steps} steps, got "
            f"{numbers}"
        )
    if enforce_sorted and any(a < b for a, b in itertools.pairwise(numbers)):
        raise ArgumentError(
            f"pack_padded_sequence: lengths must fall with enforce_sorted=True, got {numbers}; "
            "enforce_sorted=False sorts the samples"
        )
    sizes = [sum(n > t for n in numbers) for t in range(max(numbers))]
    indices = None
    if not enforce_sorted:
        indices = ops.tensor(order, dtype=int64, device=input.device)
        x = ops.index_select(x, 1, indices)
    rows = ops.tensor(_rows(sizes, batch), dtype=int64, device=input.device)
    data = ops.index_select(x.reshape((steps * batch, *x.shape[2:])), 0, rows)
    return PackedSequence(data, ops.tensor(sizes, dtype=int64), indices)


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(the sequences side by side, (steps, samples, *), their lengths): what was packed.

    `total_length` steps, as many as the longest has at least, else ArgumentError.

    >>> packed = nn.utils.rnn.pack_sequence([flow.tensor([1, 2, 3]), flow.tensor([4])])
    >>> nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    (tensor([[1, 2, 3],
            [4, 0, 0]]), tensor([3, 1]))
    """
    sizes = sequence.batch_sizes.tolist()
    steps, batch = len(sizes), sizes[0]
    if total_length is not None:
        if total_length < steps:
            raise ArgumentError(
                f"pad_packed_sequence: total_length {total_length} is less than the longest "
                f"sequence's {steps}"
            )
        steps = total_length
    data = sequence.data
    rows = ops.tensor(_rows(sizes, batch), dtype=int64, device=data.device)
    blank = ops.full(
        (steps * batch, *data.shape[1:]), padding_value, dtype=data.dtype, device=data.device
    )
    padded = ops.index_copy(blank, 0, rows, data).reshape((steps, batch, *data.shape[1:]))
    lengths = ops.tensor([sum(size > b for size in sizes) for b in range(batch)], dtype=int64)
    if sequence.unsorted_indices is not None:
        padded = ops.index_select(padded, 1, sequence.unsorted_indices)
        lengths = ops.index_select(lengths, 0, sequence.unsorted_indices.to("cpu"))
    return padded.transpose(0, 1) if batch_first else padded, lengths


def pad_sequence(
    sequences: Tensor | Iterable[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Tensors (length, *) side by side, (longest, count, *), filled up with `padding_value`.

    batch_first: (count, longest, *).  `padding_side` is "right" or "left".

    >>> nn.utils.rnn.pad_sequence([flow.ones(2), flow.ones(1)], batch_first=True)
    tensor([[1., 1.],
            [1., 0.]])
    """
    if isinstance(sequences, Tensor):
        sequences = sequences.unbind(0)
    if not isinstance(sequences, Iterable):
        raise ArgumentTypeError(
            f"pad_sequence: sequences must be tensors, got {type(sequences).__name__}"
        )
    if padding_side not in ("left", "right"):
        raise ArgumentError(
            f'pad_sequence: padding_side must be "left" or "right", got {padding_side!r}'
        )
    rows = list(sequences)
    if not rows:
        raise ArgumentError("pad_sequence: got no sequence")
    longest = max(len(s) for s in rows)
    filled = []
    for s in rows:
        if s.shape[1:] != rows[0].shape[1:]:
            raise ShapeError(
                f"pad_sequence: sequences must agree in all but the first dimension, got shapes "
                f"{tuple(rows[0].shape)} and {tuple(s.shape)}"
            )
        more = (longest - s.shape[0], *s.shape[1:])
        rest = ops.full(more, padding_value, dtype=s.dtype, device=s.device)
        filled.append(ops.cat([rest, s] if padding_side == "left" else [s, rest], 0))
    stacked: Tensor = ops.stack(filled, 0 if batch_first else 1)
    return stacked


def unpad_sequence(
    padded_sequences: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False
) -> list[Tensor]:
    """The first `lengths[b]` steps of each sample b of (steps, samples, *), as a list.

    >>> padded = flow.tensor([[1, 2, 3], [4, 0, 0]])
    >>> nn.utils.rnn.unpad_sequence(padded, flow.tensor([3, 1]), batch_first=True)
    [tensor([1, 2, 3]), tensor([4])]
    """
    x = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    numbers = _lengths("unpad_sequence", lengths, x.shape[0])
    return [x[b][:n] for b, n in enumerate(numbers)]


def pack_sequence(sequences: Iterable[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Tensors (length, *) packed; the longest first if enforce_sorted.

    >>> nn.utils.rnn.pack_sequence([flow.ones(2), flow.zeros(1)]).data
    tensor([1., 0., 1.])
    """
    rows = list(sequences)
    lengths = [len(s) for s in rows]
    return pack_padded_sequence(pad_sequence(rows), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of a PackedSequence, in the order in which they were given.

    >>> packed = nn.utils.rnn.pack_sequence([flow.tensor([1, 2, 3]), flow.tensor([4])])
    >>> nn.utils.rnn.unpack_sequence(packed)
    [tensor([1, 2, 3]), tensor([4])]
    """
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)


__all__ = own_names(globals())
