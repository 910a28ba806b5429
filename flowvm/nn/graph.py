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
round.  What a call may differ in without a new capture: the inputs' values, learning rates and
step counts, random numbers.  Another Plan is captured, when it is first needed, for other
structures of the arguments, shapes, dtypes, numbers among them, grad mode, other options of an
optimizer, and other settings or parameters of any module that was called.  Further Python values
that `build` reaches are taken as they are at the capture.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from flowvm.errors import ArgumentError, ArgumentTypeError, AutogradError
from flowvm.graph.capture import Capture, capturing
from flowvm.graph.logical import LogicalGraph
from flowvm.graph.passes import optimize
from flowvm.graph.plan import Plan, compile_plan
from flowvm.graph.trees import difference, flatten, unflatten
from flowvm.interpreter import Node, grad_enabled
from flowvm.live import Guard
from flowvm.nn.graph_steps import LIVE_OPTIONS, Steps, WithoutGrads
from flowvm.nn.module import Module
from flowvm.nn.watching import Watched, watching
from flowvm.ops.recording import Recorded
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
        self._plans: OrderedDict[Any, list[_Compiled]] = OrderedDict()
        self._history: deque[str] = deque(maxlen=MAX_PLANS)
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
        from flowvm.optim.lr_scheduler import ReduceLROnPlateau

        if not isinstance(optim, Optimizer):
            raise ArgumentTypeError(
                f"add_optimizer takes a flow.optim.Optimizer, got {type(optim).__name__}"
            )
        if self._plans:
            raise ArgumentError(f"{self.name}: add optimizers before the first call")
        if isinstance(lr_sch, ReduceLROnPlateau):
            raise ArgumentTypeError(
                "add_optimizer cannot step a ReduceLROnPlateau, which needs the metric: call its "
                "step(metric) after the graph's call"
            )
        self._optimizers.append((optim, lr_sch))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph: the outputs, as `build` returns them.

        They have no gradient: backward through one is an AutogradError.
        """
        leaves: list[Tensor] = []
        structure = flatten((args, dict(sorted(kwargs.items())) if kwargs else kwargs), leaves)
        if "_lock" not in self.__dict__:
            raise ArgumentError(
                f"{type(self).__name__}.__init__ must begin with super().__init__()"
            )
        with self._lock:
            return self._call(structure, leaves, args, kwargs)

    def _call(self, structure: Any, leaves: list[Tensor], args: Any, kwargs: Any) -> Any:
        key = (structure, *[t._meta for t in leaves], grad_enabled(), *self._options())
        for compiled in self._plans.get(key, ()):
            if compiled.holds():
                self._plans.move_to_end(key)
                return compiled.run(leaves)
        made = None if self._needs_eager_step() else self._compile(key, structure, leaves)
        if made is None:  # the step makes state that is not there yet
            return self._step_eagerly(args, kwargs)
        return made.run(leaves)

    # --- which Plan ---------------------------------------------------------------------------

    def _modules(self) -> Iterator[tuple[str, Module]]:
        """Modules that have a name here; others are watched too, and have none."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield from value.named_modules(prefix=name)

    def _options(self) -> list[Any]:
        """The optimizers' settings, but those that are live."""
        return [
            value if isinstance(value, (bool, int, float, str, tuple)) else id(value)
            for optimizer, _ in self._optimizers
            for group in optimizer.param_groups
            for name, value in group.items()
            if name not in LIVE_OPTIONS
        ]

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
        if key in self._plans:
            self._history.append("a module's setting, or a decision by a changing number")
        elif self._plans:
            self._history.append(difference(next(reversed(self._plans)), key))
        with watching() as seen, capturing(self.name) as capture:
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
                trained = capture.phase == "backward"
                steps.take()
                for t in made:
                    capture.output(t)
        if steps.made_state:
            return None
        optimized = optimize(capture.graph, self.without_passes)
        compiled = _Compiled(capture, compile_plan(optimized), result, steps, list(seen.values()))
        compiled.ends = [k for k, t in enumerate(made) if t._node is not None and not trained]
        same = self._plans.setdefault(key, [])
        same.insert(0, compiled)
        del same[MAX_PLANS:]
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
        return [compiled.plan for same in self._plans.values() for compiled in same]

    @property
    def graphs(self) -> list[LogicalGraph]:
        """What was captured for each of them."""
        return [plan.graph for plan in self.plans]

    def explain(self) -> str:
        """Which Plans there are, and what made a new capture necessary each time."""
        count = len(self.plans)
        lines = [f"{self.name}: {count} plan{'s' * (count != 1)}"]
        lines += [f"  {plan!r}" for plan in self.plans]
        lines += [f"  captured again: {why}" for why in self._history]
        return "\n".join(lines)

    def __repr__(self) -> str:
        if not self._plans:
            return f"<Graph {self.name}: not captured yet>"
        return "\n".join(repr(graph) for graph in self.graphs)


class _Compiled:
    """A Plan with what Python does around each replay.

    `ends` are the outputs that eager code could have gone backward from.
    """

    def __init__(
        self,
        capture: Capture,
        plan: Plan,
        structure: Any,
        steps: Steps,
        modules: list[Module],
    ) -> None:
        self.plan, self.structure, self.steps = plan, structure, steps
        self.guards: list[Guard] = capture.guards
        self.draws = capture.draws
        self.watched = [Watched(module) for module in modules]
        self.ends: list[int] = []

    def holds(self) -> bool:
        """Whether the modules are as they were, and every decision would be made again."""
        for watched in self.watched:
            if not watched.holds():
                return False
        return all(find() == outcome for find, outcome in self.guards)

    def run(self, inputs: list[Tensor]) -> Any:
        for generator, drawn in self.draws:
            drawn[0] = generator.draw_now()
        outputs = self.plan.launch(inputs)
        for k in self.ends:
            out = outputs[k]
            out._node = Node(_NO_GRADIENT, (), (), (), (), (), (out._meta,))
        self.steps.after_launch()
        return unflatten(self.structure, iter(outputs))


def _no_gradient(c: Any, *gradients: Any) -> Any:
    raise AutogradError(
        "backward through the output of a graph: what led to it was replayed, not recorded.  Call "
        "backward() inside build, or call the graph under flow.no_grad() if no gradient is wanted"
    )


_NO_GRADIENT = Recorded("graph", _no_gradient)


# --- functions ----------------------------------------------------------------------------------


class _FunctionGraph(Graph):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.name = getattr(function, "__qualname__", repr(function))
        self.function = function

    def build(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

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


def _is_set(cell: Any) -> bool:
    """Whether a closure's variable has a value yet."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def compile(function: Callable[..., Any]) -> Graph:
    """A graph of a plain function, or a decorator: `@flow.compile`.

    Called with tensors it captures what the function does, once for each kind of call, and replays
    it.  Modules that it calls are watched; tensors that it reaches are variables; other Python
    values are taken as they are when it is captured.
    """
    if not callable(function):
        raise ArgumentTypeError(f"compile takes a function, got {type(function).__name__}")
    graph = _FunctionGraph(function)
    functools.update_wrapper(graph, function, updated=())
    return graph
