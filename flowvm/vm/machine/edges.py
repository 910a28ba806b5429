"""The rule `[one writer]? readers*` over recorded operands, which gives the edges between
instructions.

The scheduler follows the same rule access by access (`machine.connect_read`, `connect_write`) and
forgets an access when its instruction is done.  Here it is worked out from the operands of a whole
run at once, so the edges are complete, also where the producer had finished long before its
consumer was issued: a const access waits for the last writer in front; a mut or mut2 access waits
for the last writer in front and for every reader since.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flowvm.meta.arrays import Array

HAZARDS = ("RAW", "WAR", "WAW")
RAW, WAR, WAW = 0, 1, 2


@dataclass(frozen=True)
class Edges:
    """Edge e: instruction `target[e]` waits for `source[e]` (indices), sorted by target.

    `hazard` is an index into HAZARDS, `operand` the flat number of the target's operand that it is
    about.  Two instructions have one edge, even if they share several tensors: one about an
    operand that the target writes, if there is one.
    """

    source: Array
    target: Array
    hazard: Array
    operand: Array


def tensors_of(owner: Array, storage: Array, release: Array) -> Array:
    """Return the number of each operand's tensor: storages in order of appearance.

    A storage's id is used again after its ReleaseTensor, for another tensor.  `owner` is each
    operand's instruction (ascending), `release` says which instructions release.
    """
    if not len(storage):
        return np.zeros(0, np.int64)
    order = np.argsort(storage, kind="stable")
    s, o = storage[order], owner[order]
    over = release[o[:-1]] & (o[1:] != o[:-1])
    starts = np.concatenate(([True], (s[1:] != s[:-1]) | over))
    group = np.cumsum(starts) - 1
    first = order[starts]  # where a group's first access is: the sort is stable
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    tensor = np.empty(len(storage), np.int64)
    tensor[order] = rank[group]
    return tensor


def connect(owner: Array, tensor: Array, writes: Array) -> Edges:
    """Return the edges of a run, given each operand's instruction (ascending), tensor, and
    access.
    """
    if not len(owner):
        none = np.zeros(0, np.int64)
        return Edges(none, none, none, none)
    order = np.lexsort((~writes, owner, tensor))  # an instruction's writing access comes first
    t, o = tensor[order], owner[order]
    fresh = np.concatenate(([True], (t[1:] != t[:-1]) | (o[1:] != o[:-1])))
    order, t, o = order[fresh], t[fresh], o[fresh]  # that access stands for all it has of a tensor
    w = writes[order]
    index = np.arange(len(t))
    last = np.maximum.accumulate(np.where(w, index, -1))
    before = np.concatenate(([-1], last[:-1]))
    raw = ~w & (before >= 0) & (t[before] == t)
    following = np.minimum.accumulate(np.where(w, index, len(t))[::-1])[::-1]
    after = np.concatenate((following[1:], [len(t)]))
    over = np.minimum(after, len(t) - 1)
    overwritten = (after < len(t)) & (t[over] == t)
    source = np.concatenate((index[overwritten], before[raw]))
    target = np.concatenate((after[overwritten], index[raw]))
    hazard = np.concatenate((np.where(w[overwritten], WAW, WAR), np.full(raw.sum(), RAW)))
    # stable: of edges between the same two, the ones about writes come first
    by_pair = np.lexsort((o[source], o[target]))
    source, target, hazard = source[by_pair], target[by_pair], hazard[by_pair]
    a, b = o[source], o[target]
    one = np.concatenate(([True], (a[1:] != a[:-1]) | (b[1:] != b[:-1])))[: len(a)]
    return Edges(a[one], b[one], hazard[one], order[target[one]])
