"""The operands in the recorder's rows, read without the state of their process; and rows of a table
that are alike.
"""

from __future__ import annotations

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.vm.machine.recorder import INLINE
from flowvm.vm.machine.words import ENT, OPERAND, REC


def distinct(rows: Array) -> tuple[Array, Array]:
    """The first row of each that differ, and for each row the number of its like among those.

    `numpy.unique(rows, axis=0)` compares records, where a Ctrl-C becomes a TypeError.
    """
    order = np.lexsort(rows.T[::-1])
    ordered = rows[order]
    new = np.ones(len(rows), bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    which = np.empty(len(rows), np.intp)
    which[order] = np.cumsum(new) - 1
    return order[new], which


def operands_of(rows: Array, entries: Array) -> tuple[Array, Array, Array, Array]:
    """Offsets, owners, storages and accesses of the operands that are in the records themselves.

    Those of instructions with more than INLINE are elsewhere: they count as having none.
    """
    counts = np.where((entries[:, ENT.OUTLINE] != 0) | (rows[:, REC.COUNT] > INLINE), 0,
                      rows[:, REC.COUNT])  # fmt: skip
    offsets = np.concatenate(([0], np.cumsum(counts)))
    owner = np.repeat(np.arange(len(rows)), counts)
    k = np.arange(len(owner)) - offsets[owner]
    words = rows[owner, REC.OPERANDS + k // REC.PER_WORD]
    storage = (words >> (k % REC.PER_WORD * OPERAND.STORAGE_BITS)) & OPERAND.STORAGE_MASK
    access = entries[owner, ENT.ACCESS + k // OPERAND.ACCESSES_PER_WORD]
    return (
        offsets,
        owner,
        storage,
        (access >> (k % OPERAND.ACCESSES_PER_WORD * OPERAND.ACCESS_BITS)) & 15,
    )


def sizes_of(entries: Array, offsets: Array, owner: Array, tensor: Array, access: Array) -> Array:
    """Bytes of each operand: an instruction that makes a tensor knows; 0 of what was made before.

    `entries` are the words of each instruction's entry.
    """
    k = np.arange(len(owner)) - offsets[owner]
    makes = ((access & OPERAND.ALLOCATE) != 0) & (k < ENT.WORDS - ENT.SIZES)
    sizes = np.zeros(len(owner), np.int64)
    sizes[makes] = entries[owner[makes], ENT.SIZES + k[makes]]
    most = np.zeros(int(tensor.max(initial=-1)) + 1, np.int64)
    np.maximum.at(most, tensor, sizes)
    rows: Array = most[tensor]
    return rows
