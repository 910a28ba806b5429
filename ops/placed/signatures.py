"""SBP signatures: an op's results along one dimension of a placement, by its operands' sbp.

A signature is legal if the op, run on what each rank holds, gives what the signature says of its
results.  They follow from an op's *letters*, as an einsum's do: each dimension of each operand has
a letter, or none where nothing is known of it.

- a letter that an operand and the results have may be split: `abc -> ac` computes its a's apart;
- one that only operands have is summed over, so splitting it leaves partial sums, if the op says so
  (`sums`);
- an op that is linear in some operands together takes partial sums of these, the others whole, and
  gives partial sums (`linear`).

An op's declaration says its letters (`letters=`, see `flowvm.ops.declare.letters`); those of an
elementwise op follow from its expression.  Without letters there is one signature, which every op
has: all of everything, everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flowvm.eager.interpreter import Operator
from flowvm.meta.placements import broadcast, partial_sum, sbp, split
from flowvm.ops.declare.letters import Letters, Metas


@dataclass(frozen=True)
class Signature:
    """The sbp of operands and results along one dimension of a placement."""

    inputs: tuple[sbp, ...]
    outputs: tuple[sbp, ...]

    def __repr__(self) -> str:
        inputs = ", ".join(s.short for s in self.inputs)
        return f"{inputs} -> {', '.join(s.short for s in self.outputs)}"


def signatures(
    op: Operator, metas: Metas, attrs: tuple[object, ...], outs: Metas, parts: int
) -> list[Signature]:
    """Return the legal signatures of a call on `parts` ranks.

    The metas are local ones of the logical shapes.  The last one is legal for every op.  Operands
    that an op writes are among its inputs.
    """
    whole = Signature((broadcast,) * len(metas), (broadcast,) * len(outs))
    letters = op.rules.letters and op.rules.letters(metas, attrs, outs)
    if letters is None:
        return [whole]
    uneven = {
        letter
        for names, m in zip((*letters.inputs, *letters.outputs), (*metas, *outs), strict=True)
        for letter, size in zip(names, m.shape, strict=True)
        if letter in letters.even and size % parts
    }
    splits = _splits(letters, uneven)
    return [*dict.fromkeys([*splits, *_partials(letters)]), whole]


# --- from letters ---------------------------------------------------------------------------------


def _splits(letters: Letters, but: set[str]) -> Iterable[Signature]:
    operands = (*letters.inputs, *letters.outputs)
    for letter in dict.fromkeys(x for names in operands for x in names if x):
        summed = not any(letter in names for names in letters.outputs)
        missing = any(letter not in names for names in letters.outputs)
        if missing and letter not in letters.sums:
            continue
        if letter in but:
            continue
        rest = partial_sum if missing else broadcast
        inputs = [
            split(names.index(letter))
            if letter in names
            else (rest if k in letters.added else broadcast)
            for k, names in enumerate(letters.inputs)
        ]
        outputs = [
            split(names.index(letter)) if letter in names else partial_sum
            for names in letters.outputs
        ]
        if summed or not missing or not letters.added:  # what is added, is to all results
            yield Signature(tuple(inputs), tuple(outputs))


def _partials(letters: Letters) -> Iterable[Signature]:
    for group in letters.linear:
        inputs = [partial_sum if k in group else broadcast for k in range(len(letters.inputs))]
        yield Signature(tuple(inputs), (partial_sum,) * len(letters.outputs))
