"""nn.Graph: eager code, captured once for each kind of call and replayed as a Plan.

    class Train(flow.nn.Graph):
        def __init__(self, model, optimizer):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x, y):
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            return loss

    train = Train(model, optimizer)
    loss = train(x, y)            # captures, compiles, runs; later calls replay

Parameters and buffers are the modules' own: train with a graph, evaluate eagerly, or the other way
round.  What a call may differ in without a new capture: the inputs' values, learning rates and step
counts, random numbers.  Anything else (structure, shapes, dtypes, numbers among the arguments,
train or eval, other parameters) selects another Plan, captured when it is first needed.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.graph.capture import Capture, capturing
from flowvm.graph.logical import LogicalGraph
from flowvm.graph.passes import optimize
from flowvm.graph.plan import Plan, compile_plan
from flowvm.graph.trees import difference, flatten, unflatten
from flowvm.live import Guard
from flowvm.nn.graph_steps import LIVE_OPTIONS, Steps, WithoutGrads
from flowvm.nn.module import Module
from flowvm.tensor import Tensor

if TYPE_CHECKING:
    from flowvm.optim import Optimizer

__all__ = ["Graph", "compile"]

MAX_PLANS = 16  # of one graph; the one that was not called for longest goes first


class Graph:
    """The base of graphs: subclass it, define `build`, call it like a function."""

    def __init__(self) -> None:
        self.name = type(self).__name__
        self._optimizers: list[tuple[Optimizer, Any]] = []
        self._plans: OrderedDict[Any, _Compiled] = OrderedDict()
        self._history: list[str] = []
        self.without_passes: tuple[str, ...] = ()  # names of passes to leave out
        self._lock = threading.RLock()
        self._stepped = False  # eagerly, once, if there is an optimizer

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """What the graph computes; to be defined.  Runs once for each kind of call."""
        raise NotImplementedError(f"{type(self).__name__} must define build(self, ...)")

    def add_optimizer(self, optim: Optimizer, *, lr_sch: Any = None) -> None:
        """Step `optim` at the end of every call, then `lr_sch`.

        `build` calls `loss.backward()`; gradients are cleared and the step is taken by the graph.
        """
        from flowvm.optim import Optimizer

        if not isinstance(optim, Optimizer):
            raise ArgumentTypeError(
                f"add_optimizer takes a flow.optim.Optimizer, got {type(optim).__name__}"
            )
        if self._plans:
            raise ArgumentError(f"{self.name}: add optimizers before the first call")
        self._optimizers.append((optim, lr_sch))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph: the outputs, as `build` returns them, without a place in autograd."""
        leaves: list[Tensor] = []
        structure = flatten((args, kwargs), leaves)
        with self._lock:
            return self._call(structure, leaves, args, kwargs)

    def _call(self, structure: Any, leaves: list[Tensor], args: Any, kwargs: Any) -> Any:
        key = (structure, *[t._meta for t in leaves], *self._state())
        compiled = self._plans.get(key)
        if compiled is None or not compiled.holds():
            if self._needs_eager_step():
                return self._step_eagerly(args, kwargs)
            compiled = self._compile(key, structure, leaves)
            if compiled is None:  # the step makes state that is not there yet
                return self._step_eagerly(args, kwargs)
        else:
            self._plans.move_to_end(key)
        return compiled.run(leaves)

    # --- which Plan ---------------------------------------------------------------------------

    def _modules(self) -> Iterator[tuple[str, Module]]:
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield from value.named_modules(prefix=name)

    def _roots(self) -> list[Any]:
        """Where modules are found; what is no module among them is looked over."""
        return list(self.__dict__.values())

    def _state(self) -> list[Any]:
        """What a Plan depends on besides the arguments."""
        found: list[Any] = []
        for value in self._roots():
            if isinstance(value, Module):
                _add_state(value, found)
        for optimizer, _ in self._optimizers:
            for group in optimizer.param_groups:
                found += [
                    value if isinstance(value, (bool, int, float, str, tuple)) else id(value)
                    for name, value in group.items()
                    if name not in LIVE_OPTIONS
                ]
        return found

    def _needs_eager_step(self) -> bool:
        """Whether an optimizer has yet to make its state, which its first step does."""
        return not self._stepped and any(not o.state for o, _ in self._optimizers)

    def _step_eagerly(self, args: Any, kwargs: Any) -> Any:
        for optimizer, _ in self._optimizers:
            optimizer.zero_grad()
        outputs = self.build(*args, **kwargs)
        self._stepped = True
        for optimizer, schedule in self._optimizers:
            optimizer.step()
            optimizer.zero_grad()
            if schedule is not None:
                schedule.step()
        leaves: list[Tensor] = []
        structure = flatten(outputs, leaves)
        return unflatten(structure, iter([t.detach() for t in leaves]))

    # --- capture ------------------------------------------------------------------------------

    def _compile(self, key: Any, structure: Any, leaves: list[Tensor]) -> _Compiled | None:
        if self._plans:
            self._history.append(difference(next(reversed(self._plans)), key))
        with capturing(self.name) as capture:
            for name, module in self._modules():
                for kind in (module._parameters, module._buffers):
                    for own, tensor in kind.items():
                        if tensor is not None:
                            capture.name_variable(tensor, f"{name}.{own}" if name else own)
            inputs = [capture.placeholder(t._meta, f"input {i}") for i, t in enumerate(leaves)]
            for t, given in zip(inputs, leaves, strict=True):
                t.requires_grad_(given.requires_grad)
            args, kwargs = unflatten(structure, iter(inputs))
            with (
                WithoutGrads(self._parameters_of_all()),
                Steps(self._optimizers, capture) as steps,
            ):
                outputs = self.build(*args, **kwargs)
                made: list[Tensor] = []
                result = flatten(outputs, made)
                steps.take()
                for t in made:
                    capture.output(t)
        if steps.made_state:
            return None
        optimized = optimize(capture.graph, self.without_passes)
        compiled = _Compiled(capture, compile_plan(optimized), result, steps)
        self._plans[key] = compiled
        if len(self._plans) > MAX_PLANS:
            self._plans.popitem(last=False)
        return compiled

    def _parameters_of_all(self) -> list[Tensor]:
        found = [p for _, m in self._modules() for p in m._parameters.values() if p is not None]
        for optimizer, _ in self._optimizers:
            found += [p for group in optimizer.param_groups for p in group["params"]]
        return list({id(p): p for p in found}.values())

    # --- looking at it ------------------------------------------------------------------------

    @property
    def plans(self) -> list[Plan]:
        """The Plans compiled so far, the last one called last."""
        return [compiled.plan for compiled in self._plans.values()]

    @property
    def graphs(self) -> list[LogicalGraph]:
        """What was captured for each of them."""
        return [compiled.plan.graph for compiled in self._plans.values()]

    def explain(self) -> str:
        """Which Plans there are, and what made a new capture necessary each time."""
        lines = [f"{self.name}: {len(self._plans)} plans"]
        lines += [f"  {plan!r}" for plan in self.plans]
        lines += [f"  captured again: {why}" for why in self._history]
        return "\n".join(lines)

    def __repr__(self) -> str:
        if not self._plans:
            return f"<Graph {self.name}: not captured yet>"
        return "\n".join(repr(graph) for graph in self.graphs)


def _add_state(module: Module, found: list[Any]) -> None:
    found.append(module.training)
    for p in module._parameters.values():
        found.append(None if p is None else p._ref)
    for b in module._buffers.values():
        found.append(None if b is None else b._ref)
    for child in module._modules.values():
        if child is not None:
            _add_state(child, found)


def _is_set(cell: Any) -> bool:
    """Whether a closure's variable has a value yet."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


class _Compiled:
    """A Plan with what Python does around each replay."""

    def __init__(self, capture: Capture, plan: Plan, structure: Any, steps: Steps) -> None:
        self.plan, self.structure, self.steps = plan, structure, steps
        self.guards: list[Guard] = capture.guards
        self.draws = capture.draws

    def holds(self) -> bool:
        """Whether every decision that the captured code made would be made again."""
        return all(find() == outcome for find, outcome in self.guards)

    def run(self, inputs: list[Tensor]) -> Any:
        for generator, drawn in self.draws:
            drawn[0] = generator.draw_now()
        outputs = self.plan.launch(inputs)
        self.steps.after_launch()
        return unflatten(self.structure, iter(outputs))


# --- functions ----------------------------------------------------------------------------------


class _FunctionGraph(Graph):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.name = getattr(function, "__qualname__", repr(function))
        self.function = function

    def build(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def _roots(self) -> list[Any]:
        return [cell for _, cell in self._closed_over()]

    def _closed_over(self) -> list[tuple[str, Any]]:
        """Names and values that the function closes over."""
        code = getattr(self.function, "__code__", None)
        cells = getattr(self.function, "__closure__", None) or ()
        names = code.co_freevars if code is not None else ()
        return [(n, c.cell_contents) for n, c in zip(names, cells, strict=False) if _is_set(c)]

    def _modules(self) -> Iterator[tuple[str, Module]]:
        for name, value in self._closed_over():
            if isinstance(value, Module):
                yield from value.named_modules(prefix=name)


def compile(function: Callable[..., Any]) -> Graph:
    """A graph of a plain function, or a decorator: `@flow.compile`.

    Called with tensors it captures what the function does, once for each kind of call, and replays
    it.  Modules that the function closes over are watched as a Graph's attributes are; tensors that
    it reaches otherwise are taken for variables.
    """
    if not callable(function):
        raise ArgumentTypeError(f"compile takes a function, got {type(function).__name__}")
    graph = _FunctionGraph(function)
    functools.update_wrapper(graph, function)
    return graph
