"""`graph.config.check(n)`: every n-th call of a graph is run as eager code, too, and compared.

What is compared are the outputs and all that a step leaves: parameters, buffers, gradients, what
optimizers, schedules and the scaler have, and the random number generator.  Twice:

- of a capture without the passes after which kernels are not eager code's (`INEXACT`): each bit;
- of the call itself: the outputs, but for rounding.

Eager code and that capture run on copies of the graph's modules and optimizers, so the call is what
it would be without the check.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, CheckError
from flowvm.graph.capture.trees import flatten, unflatten
from flowvm.graph.logical.nodes import OpNode
from flowvm.graph.plan.plan import Plan
from flowvm.loading.lazy import lazy
from flowvm.meta.dtype import bfloat16
from flowvm.meta.global_meta import GlobalMeta
from flowvm.nn.graph.state import graph_state
from flowvm.ops.random.generator import get_rng_state, set_rng_state

if TYPE_CHECKING:
    from flowvm.ops.placed import boxing
else:
    boxing = lazy("flowvm.ops.placed.boxing")

Graph = Any  # flowvm.nn.graph.graph.Graph, which imports this

# Sums in another order, a product and a sum made one multiply-add, a zero of the other sign.
INEXACT: Final = ("buckets", "fusion", "pairs", "epilogues", "accumulate", "slices")
UNITS: Final = 1 << 12  # of the last place of the largest element, by which outputs may differ
SHOWN: Final = 4  # values in an error's text


class Difference(NamedTuple):
    """A value that is not eager code's: its name, and how it differs."""

    name: str
    text: str


class Run(NamedTuple):
    """Results of one run of a call: the outputs, and the changed values by name."""

    outputs: list[Any]
    values: dict[str, Any]


def checked(
    graph: Graph, structure: object, leaves: list[Tensor], args: object, kwargs: object
) -> Any:
    """The outputs of a call that was run eagerly, too.

    CheckError where both differ.  ArgumentError for a function that changes tensors which are not
    its arguments: the copy that runs eagerly would change them again.
    """
    call = _Call(graph, args, kwargs)
    begun = get_rng_state()
    arguments = call.arguments()
    outputs = graph._call(structure, leaves, args, kwargs)
    own, ended = _run_of(graph, outputs, call.leaves), get_rng_state()
    graph._replay = None  # or the next call would not come here
    landed = [leaf for leaf in graph._landing.leaves if isinstance(leaf, Tensor)]
    if not graph.has_copies and (landed or any(plan.uses.changed for plan in graph.plans)):
        raise ArgumentError(
            f"{graph.name}: check() cannot run a function again that changes tensors besides its "
            f"arguments; make it an nn.Graph with its modules as attributes, or compile a module"
        )
    try:
        eager = call.run(begun, arguments, eagerly=True)
        exact = call.run(begun, arguments, without=INEXACT)
        for twin, results, units in ((call.last, exact, 0), (graph, own, UNITS)):
            if differences := [*_differences(results, eager, units)]:
                raise CheckError(call.text(twin, differences, units, begun, arguments, eager))
    finally:
        set_rng_state(ended)
    return outputs


class _Call:
    """A call that is run again on copies."""

    def __init__(self, graph: Graph, args: Any, kwargs: Any) -> None:
        self.graph, self.before = graph, copy.deepcopy(graph) if graph.has_copies else graph
        self.leaves: list[Tensor] = []
        self.structure = flatten((args, kwargs), self.leaves)
        self.last: Graph = graph  # the copy that ran last

    def arguments(self) -> list[Tensor]:
        """Copies of the tensors among the arguments, with their gradients."""
        return [_copied(t) for t in self.leaves]

    def run(
        self,
        begun: Tensor,
        arguments: Sequence[Tensor],
        without: Sequence[str] = (),
        eagerly: bool = False,
    ) -> Run:
        """The call on copies, from the same random numbers on."""
        twin = self.last = copy.deepcopy(self.before)
        twin.config.check(0)
        twin.config.disable(*(name for name in without if name in twin.config.passes))
        leaves = [_copied(t) for t in arguments]
        args, kwargs = unflatten(self.structure, iter(leaves))
        set_rng_state(begun)
        outputs = twin._step_eagerly(args, kwargs) if eagerly else twin(*args, **kwargs)
        return _run_of(twin, outputs, leaves)

    def text(
        self,
        twin: Graph,
        differences: Sequence[Difference],
        units: int,
        begun: Tensor,
        arguments: Sequence[Tensor],
        eager: Run,
    ) -> str:
        """Return the error message for `twin`, whose results differ: by how much, the first node
        that wrote such a value, and the pass that made it.
        """
        graph, names = self.graph, [d.name for d in differences]
        how = f"by more than rounding ({units} units in the last place of the largest element)"
        if not units:
            how = f"bit by bit, without the passes {', '.join(INEXACT)}"
        lines = [f"{graph.name}: a replay is not what eager code is, {how}:"]
        lines += [f"  {d.name}: {d.text}" for d in differences[:SHOWN]]
        lines += [f"  and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
        node = _first_node(twin, names)
        if node is not None:
            line = f", {node.line}" if node.line else ""
            lines.append(f"The first node that wrote one of them is {node.operator.name}{line}")
        always = () if units else INEXACT
        for name, runs in graph.config.passes.items():
            if runs and name not in always:
                again = self.run(begun, arguments, without=(*always, name))
                if not [*_differences(again, eager, units)]:
                    lines.append(f"Without the pass {name!r} (graph.config.disable) it is the same")
                    break
        return "\n".join(lines)


def _copied(t: Tensor) -> Tensor:
    """A leaf with the same numbers and the same gradient."""
    twin: Tensor = t.detach().clone().requires_grad_(t.requires_grad)
    if t.is_leaf and t.grad is not None:
        twin.grad = t.grad.detach().clone()
    return twin


def _run_of(graph: Graph, outputs: object, arguments: Sequence[Tensor]) -> Run:
    arrays: list[Tensor] = []
    flatten(outputs, arrays)
    values = {}
    if graph.has_copies:
        for name, value in _walk("", graph_state(graph)):
            values[name] = value
        for name, tensor in graph._named_tensors():
            values[f"{name}.grad"] = tensor.grad
    for k, argument in enumerate(arguments):
        if argument.is_leaf:
            values[f"argument {k}"], values[f"argument {k}.grad"] = argument, argument.grad
    values["the random number generator"] = get_rng_state()
    return Run([_array(t) for t in arrays], {name: _array(value) for name, value in values.items()})


def _walk(name: str, value: object) -> Iterator[tuple[str, Any]]:
    """Tensors and numbers of nested dicts and lists, with their places."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _walk(f"{name}.{key}" if name else str(key), part)
    elif isinstance(value, (list, tuple)):
        for k, part in enumerate(value):
            yield from _walk(f"{name}[{k}]", part)
    else:
        yield name, value


def _array(value: object) -> Any:
    """A copy, which nothing changes any more; bfloat16, which NumPy has not, as float32; of a
    global tensor what is here.
    """
    if not isinstance(value, Tensor):
        return value
    own = boxing.part_of(value) if isinstance(value._meta, GlobalMeta) else value.detach()
    on_cpu = own.cpu()
    return np.array((on_cpu.float() if on_cpu.dtype is bfloat16 else on_cpu).numpy())


def _differences(run: Run, eager: Run, units: int) -> Iterator[Difference]:
    """Yield the differences between a run and the eager one: of any bit or, for outputs alone, of
    more than `units` units.
    """
    for k, (mine, theirs) in enumerate(zip(run.outputs, eager.outputs, strict=True)):
        if text := _difference(mine, theirs, units):
            yield Difference(f"output {k}", text)
    for name, theirs in () if units else eager.values.items():
        if text := _difference(run.values.get(name), theirs, units):
            yield Difference(name, text)


def _difference(mine: object, theirs: object, units: int) -> str:
    """Describe how two values differ, "" if they are equal.  Only NaNs may have other bits."""
    if not isinstance(theirs, np.ndarray) or not isinstance(mine, np.ndarray):
        same = type(mine) is type(theirs) and (mine == theirs or mine != mine)
        return "" if same else f"{_shown(mine)}, eagerly {_shown(theirs)}"
    if (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
        return f"{mine.dtype} of {mine.shape}, eagerly {theirs.dtype} of {theirs.shape}"
    inexact = theirs.dtype.kind in "fc"
    if units and inexact:
        finite = np.abs(theirs[np.isfinite(theirs)])
        largest = float(finite.max()) if finite.size else 0.0
        far = units * float(np.finfo(theirs.dtype).eps) * largest
        with np.errstate(invalid="ignore"):
            differ = ~np.isclose(mine, theirs, 0.0, far, equal_nan=True)
    else:
        differ = mine != theirs
        if inexact:
            differ &= ~(np.isnan(mine) & np.isnan(theirs))
        if theirs.dtype.kind == "f":
            differ |= (np.signbit(mine) != np.signbit(theirs)) & ~np.isnan(theirs)
    if not differ.any():
        return ""
    place = tuple(int(k) for k in np.argwhere(differ)[0])
    where = f" at {list(place)}" if place else ""
    return (
        f"{int(differ.sum())} of {differ.size} elements differ, the first{where}: "
        f"{mine[place]!s}, eagerly {theirs[place]!s}"
    )


def _shown(value: object) -> str:
    return f"an array of {value.shape}" if isinstance(value, np.ndarray) else repr(value)


def _first_node(graph: Graph, names: Sequence[str]) -> OpNode | None:
    """The node that writes, first of all, an output or a variable that differs."""
    plans: list[Plan] = graph.plans
    if not plans:
        return None
    variables = {name: t.storage().id for name, t in graph._named_tensors()}
    outputs = plans[-1].graph.outputs
    buffers = {
        outputs[int(name.split()[1])].buffer
        for name in names
        if name.startswith("output ") and int(name.split()[1]) < len(outputs)
    }
    ids = {variables[name] for name in names if name in variables}
    for plan in plans:
        for node in plan.graph.nodes:
            for operand in node.written():
                held = operand.buffer.held
                if operand.buffer in buffers or (held is not None and held.id in ids):
                    return node
    return None
