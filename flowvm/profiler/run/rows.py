"""What the recorder's rows say of operands, without anything that only their process knows."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.vm.machine import layout as w
from flowvm.vm.machine.recorder import INLINE

__all__ = ["operands_of", "sizes_of"]

Array = np.ndarray[Any, Any]


def operands_of(rows: Array, entries: Array) -> tuple[Array, Array, Array, Array]:
    """Offsets, owners, storages and accesses of the operands that are in the records themselves.

    Those of instructions with more than INLINE are elsewhere: they count as having none.
    """
    counts = np.where((entries[:, w.E_OUTLINE] != 0) | (rows[:, w.C_COUNT] > INLINE), 0,
                      rows[:, w.C_COUNT])  # fmt: skip
    offsets = np.concatenate(([0], np.cumsum(counts)))
    owner = np.repeat(np.arange(len(rows)), counts)
    k = np.arange(len(owner)) - offsets[owner]
    words = rows[owner, w.C_OPERANDS + k // w.PER_WORD]
    storage = (words >> (k % w.PER_WORD * w.STORAGE_BITS)) & w.STORAGE_MASK
    access = entries[owner, w.E_ACCESS + k // w.ACCESSES_PER_WORD]
    return offsets, owner, storage, (access >> (k % w.ACCESSES_PER_WORD * w.ACCESS_BITS)) & 15


def sizes_of(entries: Array, offsets: Array, owner: Array, tensor: Array, access: Array) -> Array:
    """Bytes of each operand: an instruction that makes a tensor knows; 0 of what was made before.

    `entries` are the words of each instruction's entry.
    """
    k = np.arange(len(owner)) - offsets[owner]
    makes = ((access & w.ALLOCATE) != 0) & (k < w.ENTRY_WORDS - w.E_SIZES)
    made = np.zeros(len(owner), np.int64)
    made[makes] = entries[owner[makes], w.E_SIZES + k[makes]]
    most = np.zeros(int(tensor.max(initial=-1)) + 1, np.int64)
    np.maximum.at(most, tensor, made)
    found: Array = most[tensor]
    return found
