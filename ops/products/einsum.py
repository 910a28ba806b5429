"""einsum: sums of products in index notation, two operands at a time.

An operand is brought to dimensions in a common order by diagonals, sums and permutations, which are
views or other ops; then a pair is one batched matrix product: (batch, kept left, summed) @ (batch,
summed, kept right).  The gradient falls out of these.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowvm.eager.autocast import autocast_dtype, lowered, outside
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, ShapeError
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.products.matmul import matmul
from flowvm.vm.callers.hot import hot

_LETTERS = string.ascii_uppercase + string.ascii_lowercase  # of labels that are numbers


def _terms(equation: str, tensors: Sequence[Tensor]) -> tuple[list[str], str]:
    """The labels of each operand and of the output, the dots replaced by labels of their own."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(tensors):
        raise ArgumentError(
            f"einsum: {equation!r} names {len(terms)} operands, {len(tensors)} were given"
        )
    spread = 0
    for term, t in zip(terms, tensors, strict=True):
        letters = term.replace("...", "")
        if not all(c.isascii() and c.isalpha() for c in letters) or term.count("...") > 1:
            raise ArgumentError(
                f"einsum: {term!r} in {equation!r} is not letters with at most one '...'"
            )
        extra = t._meta.ndim - len(letters)
        if extra < 0 or (extra > 0 and "..." not in term):
            raise ShapeError(
                f"einsum: {term!r} in {equation!r} has {len(letters)} labels, the operand has "
                f"shape {tuple(t.shape)}"
            )
        spread = max(spread, extra if "..." in term else 0)
    dots = [
        str(chr(0xE000 + i)) for i in range(spread)
    ]  # private characters: no label is one of them

    def filled(term: str, ndim: int) -> str:
        extra = ndim - len(term.replace("...", ""))
        return term.replace("...", "".join(dots[spread - extra :]))

    full = [filled(term, t._meta.ndim) for term, t in zip(terms, tensors, strict=True)]
    if arrow:
        output = right.replace("...", "".join(dots))
    else:
        letters = "".join(terms).replace("...", "")
        output = "".join(dots) + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    known = set("".join(full))
    if len(set(output)) != len(output) or not set(output) <= known:
        raise ArgumentError(
            f"einsum: the output of {equation!r} must name each label once, and only labels of "
            f"the operands"
        )
    return full, output


def _without_repeats(t: Tensor, labels: str) -> tuple[Tensor, str]:
    """A label that comes twice takes the diagonal of its two dimensions."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            if t.shape[first] != t.shape[second]:
                raise ShapeError(
                    f"einsum: label {label!r} has sizes {t.shape[first]} and {t.shape[second]} "
                    f"in one operand"
                )
            t = t.diagonal(0, first, second)
            rest = "".join(c for i, c in enumerate(labels) if i not in (first, second))
            labels = rest + label
    return t, labels


def _summed(t: Tensor, labels: str, needed: str) -> tuple[Tensor, str]:
    """Sum away the labels that nothing else needs."""
    gone = [i for i, c in enumerate(labels) if c not in needed]
    if not gone:
        return t, labels
    return t.sum(gone), "".join(c for c in labels if c in needed)


def _contracted(a: Tensor, la: str, b: Tensor, lb: str, needed: str) -> tuple[Tensor, str]:
    """The product of a pair, summed over the labels of both that are not needed further on."""
    sizes: dict[str, int] = {}
    for labels, t in ((la, a), (lb, b)):
        for c, d in zip(labels, t._meta.shape, strict=True):
            sizes[c] = d if sizes.get(c, 1) == 1 else sizes[c]
    both = [c for c in la if c in lb]
    batch = "".join(c for c in both if c in needed)
    inner = "".join(c for c in both if c not in needed)
    left = "".join(c for c in la if c not in lb)
    right = "".join(c for c in lb if c not in la)

    def arranged(t: Tensor, labels: str, order: str) -> Tensor:
        t = t.permute([labels.index(c) for c in order])
        wide = [d if c in (left + right) else sizes[c] for c, d in zip(order, t.shape, strict=True)]
        return t.expand(wide)

    def size(labels: str) -> int:
        return math.prod(sizes[c] for c in labels)

    matrix_a = arranged(a, la, batch + left + inner).reshape((size(batch), size(left), size(inner)))
    matrix_b = arranged(b, lb, batch + inner + right).reshape(
        (size(batch), size(inner), size(right))
    )
    labels = batch + left + right
    if inner:
        out = matmul(matrix_a, matrix_b)
    else:  # nothing is summed: a product of elements, for every dtype
        out = matrix_a * matrix_b
    return out.reshape([sizes[c] for c in labels]), labels


def _written_as_equation(*arguments: object) -> tuple[str, Sequence[object]]:
    """The equation of operands, each with a list of its labels, and the operands."""
    operands, lists = arguments[0 : len(arguments) // 2 * 2 : 2], arguments[1::2]
    if len(arguments) % 2:
        lists = (*lists, arguments[-1])
    terms = []
    for labels in lists:
        if not isinstance(labels, (list, tuple)):
            raise ArgumentTypeError(
                "einsum takes an equation and its operands, or each operand and a list of its "
                f"labels; got a {type(labels).__name__} in the place of such a list"
            )
        for label in labels:
            if label is not Ellipsis and not (type(label) is int and 0 <= label < 52):
                raise ArgumentError(f"einsum: a label is an int from 0 to 51 or ..., got {label!r}")
        terms.append("".join("..." if n is Ellipsis else _LETTERS[n] for n in labels))
    count = len(operands)
    output = [f"->{terms[count]}"] if len(terms) > count else []
    return "".join([",".join(terms[:count]), *output]), operands


# public: flow
def einsum(equation: object, *operands: Any) -> Tensor:
    """The sum of products that `equation` describes, as in "bij,bjk->bik".

    A label names a dimension; labels that the output leaves out are summed over.  "..." stands for
    further dimensions, which broadcast.  Without "->" the output has the labels that come once, in
    alphabetical order.  A label that comes twice in one operand takes its diagonal.

    In place of an equation, each operand may be followed by a list of numbers from 0 to 51 that
    name its dimensions (... is Ellipsis), and the last list names the output's:
    `einsum(a, [0, 1], b, [1, 2], [0, 2])`.

    >>> a, b = flow.tensor([[1, 2], [3, 4]]), flow.tensor([10, 20])
    >>> flow.einsum("ij,j->i", a, b)
    tensor([ 50, 110])
    """
    if isinstance(equation, Tensor):
        equation, arguments = _written_as_equation(equation, *operands)
        operands = tuple(arguments)
    tensors = (
        list(operands[0])
        if len(operands) == 1 and not isinstance(operands[0], Tensor)
        else list(operands)
    )
    if not isinstance(equation, str) or not tensors:
        raise ArgumentTypeError(
            "einsum takes an equation and its operands: einsum('ij,jk->ik', a, b)"
        )
    for t in tensors:
        if not isinstance(t, Tensor):
            raise ArgumentTypeError(f"einsum: the operands must be Tensors, got {type(t).__name__}")
    if hot["autocast"] and autocast_dtype() is not None:
        return outside(einsum, equation, *lowered(*tensors))
    labels, output = _terms(equation, tensors)
    sizes: dict[str, int] = {}
    for term, t in zip(labels, tensors, strict=True):
        for c, d in zip(term, t._meta.shape, strict=True):
            if d != 1 and sizes.setdefault(c, d) != d:
                raise ShapeError(
                    f"einsum: a label of {equation!r} has sizes {sizes[c]} and {d}, in operands "
                    f"of shapes " + ", ".join(str(tuple(t.shape)) for t in tensors)
                )
    result, have = _without_repeats(tensors[0], labels[0])
    for i in range(1, len(tensors)):
        other, term = _without_repeats(tensors[i], labels[i])
        needed = output + "".join(labels[i + 1 :])
        result, have = _summed(result, have, needed + term)
        other, term = _summed(other, term, needed + have)
        result, have = _contracted(result, have, other, term, needed)
    result, have = _summed(result, have, output)
    if have != output:
        result = result.permute([have.index(c) for c in output])
    return result


def _samples(rng: np.random.Generator) -> list[Sample]:
    cases = (
        ("ij,jk->ik", (2, 3), (3, 4)),
        ("bij,bjk", (2, 2, 3), (2, 3, 2)),
        ("ii->i", (3, 3)),
        ("ii", (3, 3)),
        ("ij->ji", (2, 3)),
        ("i,j->ij", (2,), (3,)),
        ("...i,ij->...j", (2, 2, 3), (3, 2)),
        ("ij,ij,j->i", (2, 3), (2, 3), (3,)),
        ("i,i->", (3,), (3,)),
        ("bhqd,bhkd->bhqk", (1, 2, 3, 2), (1, 2, 2, 2)),
    )
    return [Sample((c[0], *(rng.standard_normal(s) for s in c[1:]))) for c in cases]


samples(
    einsum,
    _samples,
    np.einsum,
    errors=(
        (lambda flow: flow.einsum("ij,jk", flow.ones(2, 3), flow.ones(2, 3)), RuntimeError),
        (lambda flow: flow.einsum("ij,jk", flow.ones(2, 3)), ValueError),
        (lambda flow: flow.einsum("ij->ijj", flow.ones(2, 3)), ValueError),
    ),
)
