"""Files for inputs of any size, computed from a few translations with chosen sizes.

A LogicalGraph has numbers for sizes.  So the model is captured and translated with several values
of each named size, and the results are compared node by node.  An integer that differs is a formula
of the sizes: it is found from some values, checked with others, and computed in the file from the
inputs' shapes.  Any other difference depends on the size, and is an error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.errors import ArgumentError, FlowError
from flowvm.loading.lazy import lazy
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import int64
from flowvm.onnx.axes import Axes
from flowvm.onnx.writer import Writer

if TYPE_CHECKING:
    import onnx
else:
    onnx = lazy("onnx")

MOST = 4  # named sizes: translations are 2 to this power, and two

Sizes = dict[str, int]
Shapes = list[tuple[int, ...]]  # of the outputs


class Probes:
    """Values for named sizes, at which a model is captured.

    at      the points: `corners`, of which the formulas are made, then those that hold them
            against what is found
    parts   formulas may divide: the points are multiples of the examples' sizes
    """

    def __init__(self, values: Mapping[str, Sequence[int]], parts: bool) -> None:
        self.names, self.values, self.parts = list(values), values, parts
        corners = itertools.product((0, 1), repeat=len(self.names))
        self.corners = [frozenset(n for n, k in zip(self.names, c, strict=True) if k)
                        for c in corners]  # fmt: skip
        self.at: list[Sizes] = [
            {n: values[n][n in corner] for n in self.names} for corner in self.corners
        ]
        self.at += [{n: values[n][k] for n in self.names} for k in (2, 3)]

    def formula(self, values: Sequence[int]) -> Formula | None:
        """Return the formula that gives these numbers at the points.  None if it is no sum of
        products of sizes.
        """
        by_corner = dict(zip(self.corners, values, strict=False))
        terms: dict[frozenset[str], Fraction] = {}
        for corner in self.corners:
            inside = [s for s in self.corners if s <= corner]
            change = sum((-1) ** (len(corner) - len(s)) * by_corner[s] for s in inside)
            steps = math.prod(self.values[n][1] - self.values[n][0] for n in corner)
            for s in inside:  # the product of (size - first) over the corner, written out
                rest = math.prod(-self.values[n][0] for n in corner - s)
                terms[s] = terms.get(s, Fraction(0)) + Fraction(change * rest, steps)
        terms = {s: f for s, f in terms.items() if f}
        whole = math.lcm(*[f.denominator for f in terms.values()])
        formula = Formula({s: int(f * whole) for s, f in terms.items()}, whole)
        right = all(formula.at(p) == v for p, v in zip(self.at, values, strict=True))
        return formula if right and (whole == 1 or self.parts) else None


class Formula:
    """A sum of products of sizes, each with a factor, over a number."""

    def __init__(self, terms: Mapping[frozenset[str], int], under: int) -> None:
        self.terms = sorted(terms.items(), key=lambda t: (-len(t[0]), sorted(t[0])))
        self.under = under

    def at(self, sizes: Sizes) -> Fraction:
        """Return the formula's value for these sizes."""
        total = sum(f * math.prod(sizes[n] for n in names) for names, f in self.terms)
        return Fraction(total, self.under)

    def __str__(self) -> str:
        signs = {1: "", -1: "-"}
        parts = [
            signs.get(f, f"{f}*") + "*".join(sorted(names)) if names else str(f)
            for names, f in self.terms
        ]
        text = " + ".join(parts or ["0"]).replace("+ -", "- ")
        return text if self.under == 1 else f"({text})/{self.under}"


def probes(examples: Sizes, sizes_in_use: set[int]) -> list[Probes]:
    """Return sets of points to try, one after another: sizes above the examples' sizes, below them,
    and multiples.

    sizes_in_use  sizes that other dimensions have, which a probe must not be mistaken for
    """
    if len(examples) > MOST:
        raise ArgumentError(
            f"onnx.export: {len(examples)} sizes have names ({', '.join(examples)}), and {MOST} "
            f"can; give sizes that are the same one name"
        )

    def pick(ways: Callable[[int], Any]) -> dict[str, list[int]]:
        used, choice = set(sizes_in_use), {}
        for name, n in examples.items():
            free = [v for v in itertools.islice(ways(n), 4096) if v > 2 and v not in used][:4]
            if len(free) < 4:
                free = [v for v in range(n + 3, n + 4096) if v not in used][:4]
            used.update(free)
            choice[name] = free
        return choice

    above = pick(lambda n: iter(range(max(n, 4) + 1, n + 4096)))
    below = pick(lambda n: iter(range(n - 1, 2, -1)))
    multiples = pick(lambda n: iter(range(2 * n, 4096 * n, n)))
    return [Probes(above, False), Probes(below, False), Probes(multiples, True)]


def example_sizes(inputs: Sequence[str], shapes: Shapes, axes: Mapping[str, Axes]) -> Sizes:
    """The named sizes as the examples have them."""
    sizes: Sizes = {}
    for name, shape in zip(inputs, shapes, strict=True):
        for axis, dim in sorted(axes.get(name, {}).items()):
            if sizes.setdefault(dim, shape[axis]) != shape[axis]:
                raise ArgumentError(
                    f"onnx.export: {dim} is the size {sizes[dim]} and, in dimension {axis} of "
                    f"{name}, {shape[axis]}"
                )
    return sizes


def translated(
    points: Sequence[Probes], translate: Callable[[Sizes], tuple[Writer, Shapes]]
) -> tuple[Probes, list[Writer], list[Shapes]]:
    """The translations at the first points at which the model can be captured."""
    first: FlowError | None = None
    for probe in points:
        writers, shapes = [], []
        try:
            for sizes in probe.at:
                writer, outputs = translate(sizes)
                writers.append(writer)
                shapes.append(outputs)
        except FlowError as error:
            if first is None:
                text = ", ".join(f"{n} = {v}" for n, v in sizes.items())
                first = ArgumentError(f"onnx.export: the model fails with {text}: {error}")
            continue
        return probe, writers, shapes
    assert first is not None
    raise first from None


class Merged:
    """Several translations merged: the first one, with the differing numbers computed.

    where      a named size -> an input and the dimension that has it
    examples   the sizes as the examples have them
    """

    def __init__(
        self,
        probe: Probes,
        writers: Sequence[Writer],
        where: Mapping[str, tuple[str, int]],
        examples: Sizes,
    ) -> None:
        self.examples = examples
        self.probe, self.writers, self.w, self.where = probe, writers, writers[0], where
        self._results: dict[Any, str] = {}
        nodes, self.w.nodes = self.w.nodes, []  # nodes that compute sizes come in front
        self._merge(nodes)
        self.w.nodes += nodes

    def dims(
        self, name: str, shapes: Sequence[tuple[int, ...]], example: Sequence[int], own: Axes
    ) -> list[int | str]:
        """The dimensions of an output, from its shapes at the points; `own` are names for them.

        example   its shape as the examples give it, which must be one of the same
        """
        if {len(s) for s in shapes} != {len(example)}:
            raise ArgumentError(
                f"onnx.export: {name} has another number of dimensions for other sizes"
            )
        dims: list[int | str] = []
        for axis, sizes in enumerate(zip(*shapes, strict=True)):
            formula = self.probe.formula(sizes)
            if formula and formula.at(self.examples) != example[axis]:
                raise ArgumentError(
                    f"onnx.export: dimension {axis} of {name} is {example[axis]} with the "
                    f"examples, and {formula} with other sizes: the model decides by a size"
                )
            if len(set(sizes)) == 1:
                dims.append(own.get(axis, sizes[0]))
            else:
                dims.append(own.get(axis, str(formula) if formula else f"{name}_dim_{axis}"))
        return dims

    # --- comparing ------------------------------------------------------------------------------

    def _merge(self, nodes: Sequence[object]) -> None:
        everywhere = [nodes, *[w.nodes for w in self.writers[1:]]]
        before: list[dict[str, tuple[int, int]]] = [{} for _ in everywhere]
        for place, same in enumerate(itertools.zip_longest(*everywhere)):
            first = same[0]
            kinds = {n and (n.op_type, len(n.input), len(n.output)) for n in same}
            if len(kinds) > 1:
                self._refuse(next(n for n in same if n), "other nodes for other sizes")
            if any(_attributes(n) != _attributes(first) for n in same[1:]):
                self._refuse(first, f"the size is an attribute of ONNX's {first.op_type}")
            for k, names in enumerate(zip(*[n.input for n in same], strict=True)):
                held = [w.initializers.get(n) for w, n in zip(self.writers, names, strict=True)]
                if all(held):
                    self._constant(first, k, held)
                elif (
                    any(held) or len({b.get(n, n) for b, n in zip(before, names, strict=True)}) > 1
                ):
                    self._refuse(first, "other operands for other sizes")
            for places, node in zip(before, same, strict=True):
                places.update({n: (place, k) for k, n in enumerate(node.output)})

    def _constant(self, node: Any, k: int, held: Sequence[Any]) -> None:
        """Replace constant input `k` of a node by a formula; `held` are its values at the
        points.
        """
        if all(t.raw_data == held[0].raw_data and t.dims == held[0].dims for t in held[1:]):
            return
        arrays = [onnx.numpy_helper.to_array(t) for t in held]
        if len({a.shape for a in arrays}) > 1 or arrays[0].ndim > 1 or not _whole(arrays):
            self._refuse(node, "a table is made for the size")
        columns = np.stack([a.reshape(-1).astype(np.int64) for a in arrays], axis=1).tolist()
        differ = [c for c in columns if len(set(c)) > 1]
        rest = [c[0] for c in columns if len(set(c)) == 1]
        if (node.op_type, k, len(differ)) == ("Reshape", 1, 1) and min(rest, default=1) > 0:
            whole = [c[0] if len(set(c)) == 1 else -1 for c in columns]
            node.input[k] = self.w.ints(*whole)
            return
        formulas = [self.probe.formula(c) for c in columns]
        if None in formulas:
            self._refuse(node, f"the numbers {differ[0]} are no sum of products of sizes")
        values = [self._value(f) for f in formulas if f]
        value = self._once("Concat", *values, axis=0) if len(values) > 1 else values[0]
        if not arrays[0].ndim:
            value = self._once("Reshape", value, self.w.constant(np.zeros(0), int64))
        if held[0].data_type != onnx.TensorProto.INT64:
            value = self._once("Cast", value, to=held[0].data_type)
        node.input[k] = value

    def _refuse(self, node: Any, why: str) -> None:
        origin = self.w.origins.get(node.name) or next(
            (o for o in (w.origins.get(node.name) for w in self.writers) if o), "the result"
        )
        at = "; ".join(
            ", ".join(f"{n} = {v}" for n, v in sizes.items()) for sizes in self.probe.at[:2]
        )
        raise ArgumentError(
            f"onnx.export: {origin} is translated for one size alone ({why}; tried {at}).  Leave "
            f"out of dynamic_axes or dynamic_shapes the sizes that it hangs on."
        )

    # --- computing ------------------------------------------------------------------------------

    def _once(self, kind: str, *inputs: str, **attributes: object) -> str:
        key = kind, inputs, tuple(attributes.items())
        if key not in self._results:
            self._results[key] = self.w.op(kind, *inputs, **attributes)
        return self._results[key]

    def _value(self, formula: Formula) -> str:
        """A vector of one integer."""
        terms = []
        for names, factor in formula.terms:
            parts = []
            for n in sorted(names):
                name, axis = self.where[n]
                parts.append(self._once("Shape", name, start=axis, end=axis + 1))
            if factor != 1 or not parts:
                parts.append(self.w.ints(factor))
            terms.append(self._joined("Mul", parts))
        value = self._joined("Add", terms) if terms else self.w.ints(0)
        return value if formula.under == 1 else self._once("Div", value, self.w.ints(formula.under))

    def _joined(self, kind: str, parts: Sequence[str]) -> str:
        value = parts[0]
        for part in parts[1:]:
            value = self._once(kind, value, part)
        return value


def _attributes(node: Any) -> list[bytes]:
    return [a.SerializeToString(deterministic=True) for a in node.attribute]


def _whole(arrays: Sequence[Array]) -> bool:
    """Return True if the arrays hold integers that int64 can represent."""
    for a in arrays:
        if a.dtype.kind == "b":
            return False
        if a.dtype.kind not in "iu":
            values = a.astype(np.float64)
            if not (np.abs(values) < 1 << 53).all() or (values != np.round(values)).any():
                return False
    return True
