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
optimizer or of the graph (`graph.config`), other settings or parameters of any module that was
called, and other Python values of those that `build` reads (see `reads`).  Each new capture
is said on stderr, as a RecaptureWarning, and `explain()` keeps what made it necessary.

Gradients that `backward()` in build computes belong to the graph's optimizers, which step with them
at the end of a call, or where build calls `step()`; those of other leaves are in `.grad`
afterwards, as eager code leaves them.
"""

from __future__ import annotations

import copy
import functools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, ClassVar

from flowvm.eager.modes import grad_enabled
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, CaptureError, FlowError
from flowvm.files.printable import printable
from flowvm.graph.capture.breaks import Breaks
from flowvm.graph.capture.segments import Run, Segment
from flowvm.graph.capture.trees import flatten
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.plan.plan import Plan
from flowvm.guards.forks import Rank, held_at_fork
from flowvm.loading.lazy import lazy
from flowvm.meta.batched_meta import is_batched
from flowvm.nn.graph.build import GraphBuild
from flowvm.nn.graph.check import checked
from flowvm.nn.graph.compiled import MISS, Call, Compiled, Segmented, storages_of, thread_settings
from flowvm.nn.graph.explain import History, Status, call_facts, unwatched_line
from flowvm.nn.graph.gradients import Landed, Landing
from flowvm.nn.graph.plan_file import loaded_plans, runtime_state
from flowvm.nn.graph.reads import is_internal_module
from flowvm.nn.graph.repr import graph_html, graph_tree
from flowvm.nn.graph.state import graph_state, load_graph_state
from flowvm.nn.graph.steps import inlining, precisely
from flowvm.ranks.world import rank
from flowvm.serialization import load, save
from flowvm.vm.callers.tracebacks import cut

if TYPE_CHECKING:
    from flowvm.amp import grad_scaler as scaling
    from flowvm.optim import lr_scheduler
    from flowvm.optim import optimizer as optimizers
    from flowvm.profiler.views.passes import PassesView
else:
    scaling = lazy("flowvm.amp.grad_scaler")
    lr_scheduler = lazy("flowvm.optim.lr_scheduler")
    optimizers = lazy("flowvm.optim.optimizer")

MAX_PLANS = 16  # of one graph; the one that was not called for longest goes first


COPIED = ("name", "config", "_optimizers", "_scaler", "_search_result")  # of what is no user's
NOT_SAVED = "what code of loaded plans reads through classes, properties, slots and library code"
PAST_SETATTR = "what is put into the __dict__ of flowvm's own layers, past their __setattr__"
SHARED = "shares memory"  # in the key of calls whose arguments do, with what build changes


def _shares(compiled: Compiled | Segmented | Landed, leaves: Sequence[Tensor]) -> bool:
    """Return True if a call's tensors share memory with storages that its Plans change."""
    storages = storages_of(leaves)
    return any(plan.uses.meet(storages) for plan in compiled.plans)


# public: nn
class Graph(GraphBuild):
    """The base of graphs: subclass it, define `build`, call it like a function.

    >>> class Doubled(nn.Graph):
    ...     def build(self, x):
    ...         return 2 * x
    >>> graph = Doubled()
    >>> graph(flow.tensor([1.0, 2.0]))  # captured by the first call, replayed by the others
    tensor([2., 4.])
    """

    _replay: Callable[..., Any] | None = None  # of the last call; see Compiled
    has_copies: ClassVar[bool] = True  # whether a deepcopy has all that build changes

    def __init__(self) -> None:
        super().__init__()
        self._plans: OrderedDict[Any, list[Compiled | Segmented | Landed]] = OrderedDict()
        self._history = History()
        self._lock = held_at_fork(threading.RLock(), Rank.GRAPH)
        self._replay = None
        self._recorded: set[Any] = set()  # kinds of calls that eager code makes: `differentiable`
        self._checks = 0  # calls since `config.check`
        self._own = frozenset(vars(self))

    # `flow.compile`: a graph of a plain function, a method or a module (`function` puts it here)
    trace: ClassVar[Callable[[Callable[..., Any]], Graph]]

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        """A graph of copies of its modules and optimizers, captured when it is first called."""
        twin = memo[id(self)] = object.__new__(type(self))
        Graph.__init__(twin)
        for name, value in vars(self).items():
            if name not in self._own or name in COPIED:
                vars(twin)[name] = copy.deepcopy(value, memo)
        return twin

    def __reduce__(self) -> Any:
        raise ArgumentTypeError(
            f"{self.name}: a graph cannot be pickled, nor copied but by copy.deepcopy; "
            f"flow.save(graph.state_dict(), path) saves what it computes with"
        )

    def add_optimizer(self, optim: optimizers.Optimizer, *, lr_sch: object = None) -> None:
        """Step `optim` at the end of every call, then `lr_sch`.

        `build` calls `loss.backward()`; gradients are cleared and the step is taken by the graph.
        Where the step is to come earlier, or several times, `build` calls `optim.step()` (and
        `zero_grad()`) as eager code does: then the graph takes none at the end.
        """
        if not isinstance(optim, optimizers.Optimizer):
            raise ArgumentTypeError(
                f"add_optimizer takes a flow.optim.Optimizer, got {type(optim).__name__}"
            )
        if optim.not_in_graphs:
            raise ArgumentError(
                f"{type(optim).__name__} cannot be a graph's: {optim.not_in_graphs}"
            )
        if self._plans:
            raise ArgumentError(f"{self.name}: add optimizers before the first call")
        if isinstance(lr_sch, lr_scheduler.ReduceLROnPlateau):
            raise ArgumentTypeError(
                "add_optimizer cannot step a ReduceLROnPlateau, which needs the metric: call its "
                "step(metric) after the graph's call"
            )
        self._optimizers.append((optim, lr_sch))
        self.config.training = True

    def set_grad_scaler(self, grad_scaler: scaling.GradScaler) -> None:
        """Let `grad_scaler` scale what `build` calls backward() of, unscale the gradients, skip
        steps in which one is not finite, and adapt.
        """
        if not isinstance(grad_scaler, scaling.GradScaler):
            raise ArgumentTypeError(
                f"set_grad_scaler takes a flow.amp.GradScaler, got {type(grad_scaler).__name__}"
            )
        if self._plans:
            raise ArgumentError(f"{self.name}: set the scaler before the first call")
        self._scaler = grad_scaler

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph: the outputs, as `build` returns them.

        They have no gradient: backward through one is an AutogradError.
        """
        try:
            replay = self._replay
            if replay is not None and (outputs := replay(self, args, kwargs)) is not MISS:
                return outputs
            leaves: list[Tensor] = []
            structure = flatten((args, dict(sorted(kwargs.items())) if kwargs else kwargs), leaves)
            if "_lock" not in self.__dict__:
                raise ArgumentError(
                    f"{type(self).__name__}.__init__ must begin with super().__init__()"
                )
            if inlining() or is_batched(*(t._meta for t in leaves)):
                return self._inlined(args, kwargs)
            with self._lock:
                if self.config.every:
                    self._checks += 1
                    if self._checks % self.config.every == 0:
                        return checked(self, structure, leaves, args, kwargs)
                    self._replay = None  # which would not come here
                return self._call(structure, leaves, args, kwargs)
        except FlowError as error:
            cut(error)
            raise

    def _call(self, structure: object, leaves: list[Tensor], args: Any, kwargs: Any) -> Any:
        flows = tuple([t._node is not None and 1 + (not t._node.is_leaf) for t in leaves])
        around = (*thread_settings(), self.config.key, *self._options())
        if self._landing.cleared and (match := self._of_cleared(structure, leaves, flows, around)):
            compiled, tensors = match
            return compiled.run(tensors)
        priors, presence = self._landing.priors(leaves)
        leaves += priors
        settings = (flows, presence, *around)
        key = (structure, *[t._meta for t in leaves], *settings)
        if key in self._recorded:
            return self._call_recorded(args, kwargs)
        shares = False
        for compiled in self._plans.get(key, ()):
            if compiled.holds():
                shares = _shares(compiled, leaves)
                if not shares:
                    self._plans.move_to_end(key)
                    self._replay = None
                    if not any(flows) and not isinstance(compiled, Landed):
                        metas = [t._meta for t in leaves]
                        call = Call(structure, metas, self.config.key, self._scaler)
                        self._replay = compiled.replay_for(call)
                    return compiled.run(leaves)
                break
        self._replay = None
        for compiled in self._plans.get((*key, SHARED), ()) if shares else ():
            if compiled.holds():
                return compiled.run(leaves)
        if self.config.auto_parallel:
            self._search(structure, leaves[: len(flows)])
        known = len(self._landing.leaves), len(self._optimizers)
        try:
            program = None if self._needs_eager_step() else self._compile(key, structure, leaves)
        except CaptureError:
            if self._has_ends:
                self._has_ends = False
                self._recorded.add(key)
                return self._call_recorded(args, kwargs)
            if (len(self._landing.leaves), len(self._optimizers)) == known:
                raise
            return self._call(structure, leaves[: len(flows)], args, kwargs)
        if program is None:  # the step makes state that is not there yet
            return self._step_eagerly(args, kwargs)
        return program.run(leaves)

    def _call_recorded(self, args: Sequence[object], kwargs: Mapping[str, Any]) -> Any:
        """A call whose results have gradients: eager code, which the tape records."""
        return precisely(self.config.amp_dtype, self._scaler, self.build, args, kwargs)

    def _of_cleared(
        self,
        structure: object,
        leaves: list[Tensor],
        flows: tuple[int, ...],
        around: tuple[object, ...],
    ) -> tuple[Any, list[Tensor]] | None:
        """A Plan captured where some `.grad` that are there were None, if it does not ask, and what
        it is called with.
        """
        presence = self._landing.priors(leaves)[1]
        ignored = frozenset(k for k in self._landing.cleared if presence[k])
        if not ignored:
            return None
        priors, presence = self._landing.priors(leaves, ignored)
        tensors = [*leaves, *priors]
        key = (structure, *[t._meta for t in tensors], flows, presence, *around)
        for compiled in self._plans.get(key, ()):
            if ignored <= compiled.cleared and compiled.holds() and not _shares(compiled, tensors):
                self._plans.move_to_end(key)
                self._replay = None
                return compiled, tensors
        return None

    # --- capture ------------------------------------------------------------------------------

    def _compile(
        self, key: Any, structure: object, leaves: list[Tensor]
    ) -> Compiled | Segmented | Landed | None:
        before = self._written
        begun, presence = time.monotonic(), self._landing.priors(leaves)[1]
        facts = call_facts(
            structure, leaves, grad_enabled(), self.config, self._optimizers, presence
        )
        paths = {id(module): path for path, module in reversed([*self._modules()])}
        why = self._history.reason(facts, self._plans.get(key, ()), paths)
        breaks = Breaks(Run(leaves), self._optimized)
        self._status = Status(self.name, self._debug)
        with self._status.shown(), breaks:
            self._status.stage("capturing")
            captured = self._capture(structure, leaves, breaks)
        if captured is None:
            # with copies of what `build` was seen to write
            again = self._written != before
            return self._compile(key, structure, leaves) if again else None
        compiled: Compiled | Segmented | Landed = captured
        if breaks.path:
            capture_on = functools.partial(self._capture_on, structure)
            compiled = Segmented(capture_on, breaks, self._optimizers, self._lock)
        if self._landing.leaves:
            compiled = Landed(compiled, self._landing)
        if _shares(compiled, leaves):
            key = (*key, SHARED)
            why = why and "an argument and something else are one memory, which build changes"
        same = self._plans.setdefault(key, [])
        same.insert(0, compiled)
        del same[MAX_PLANS:]
        self._history.add(self.name, facts, why, len(self.plans), time.monotonic() - begun)
        self._status.finish(sum(len(plan.tasks) for plan in compiled.plans), lambda: repr(self))
        if len(self._plans) > MAX_PLANS:
            self._plans.popitem(last=False)
            self._history.drop(self.name, MAX_PLANS)
        return compiled

    def _capture_on(
        self, structure: object, leaves: Sequence[Tensor], breaks: Breaks
    ) -> Segment | None:
        """Capture what follows the segments that ran; the last segment."""
        with breaks:
            return None if self._capture(structure, leaves, breaks) is None else breaks.last

    # --- looking at it ------------------------------------------------------------------------

    @property
    def plans(self) -> list[Plan]:
        """The Plans compiled so far, the last one called last."""
        plans = [compiled for same in [*self._plans.values()] for compiled in same]
        return [plan for compiled in plans for plan in compiled.plans]

    @property
    def graphs(self) -> list[LogicalGraph]:
        """The captured graph of each Plan."""
        return [plan.graph for plan in self.plans]

    def state_dict(self) -> dict[str, Any]:
        """The state of the training: of modules by attribute, of optimizers, schedules, scaler.

        {"model": {...}, "optimizers": [...], "lr_schedulers": [...], "grad_scaler": {...}}
        """
        return graph_state(self)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Take over a `state_dict()`, before the first call or later.

        ArgumentTypeError and ArgumentError for one that does not fit; strict=False takes what fits.
        """
        with self._lock:
            load_graph_state(self, state_dict, strict)

    def runtime_state_dict(self) -> dict[str, Any]:
        """The compiled Plans as plain data, for `load_runtime_state_dict` in another process.

        Values of parameters are not in it: `state_dict()` has those.  ArgumentError for a graph
        that was not called yet, that runs in segments or on several streams, or that uses a tensor
        from outside of `build` which has no name (no attribute, closure variable or global).  What
        `build` makes of numbers is saved as it is.
        """
        with self._lock:
            return runtime_state(self, self._plans)

    def load_runtime_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the Plans of an equal graph of another process: calls of the kinds that it knew
        run without a capture.

        Optimizers need their state before (`load_state_dict`).  ArgumentError for what is damaged,
        of another version, or for which a variable, an operator or a module's code here differs.
        """
        with self._lock:
            for key, compiled in loaded_plans(self, state_dict):
                self._plans.setdefault(key, []).insert(0, compiled)
                self._unwatched.setdefault(NOT_SAVED, ("", 0))
            self._stepped = True

    def save(self, f: str | os.PathLike[str] | IO[bytes]) -> None:
        """Write `runtime_state_dict()` to a file."""
        save(self.runtime_state_dict(), f)

    def load(self, f: str | os.PathLike[str] | IO[bytes]) -> None:
        """Take over the Plans that `save` wrote; see `load_runtime_state_dict`."""
        self.load_runtime_state_dict(load(f))

    @property
    def plan(self) -> Plan:
        """The Plan that was compiled or looked up last; ArgumentError before the first call."""
        if not self._plans:
            raise ArgumentError(f"{self.name} has no plan before its first call")
        return next(reversed(self._plans.values()))[0].plans[-1]

    def debug(
        self,
        v_level: int = 1,
        *,
        ranks: int | Sequence[int] | None = None,
        max_py_stack_depth: int = 2,
        only_user_py_stack: bool = True,
        op_repr_with_py_stack: bool = False,
    ) -> None:
        """Say on stderr what is captured and compiled from now on.

        v_level   0 or -1 nothing, 1 each capture, 2 each pass, 3 the tree of the graph
        ranks     which ranks say it: one, several, -1 or None for all

        OneFlow's other arguments are taken: an op is said with the user's line, whatever they are.
        ArgumentError for another level.
        """
        if v_level not in (-1, 0, 1, 2, 3):
            raise ArgumentError(f"debug: v_level must be -1, 0, 1, 2 or 3, got {v_level!r}")
        chosen = [ranks] if isinstance(ranks, int) else ranks
        is_chosen = chosen is None or -1 in chosen or rank() in chosen
        self._debug = max(v_level, 0) if is_chosen else 0

    def reset(self) -> None:
        """Forget all Plans: the next call captures anew."""
        with self._lock:
            self._replay = None
            self._plans.clear()
            self._history = History()
            self._landing = Landing()
            self._unwatched = {}

    def explain(self) -> str:
        """Explain the graph: its Plans, the cause of each new capture, the result of
        `config.enable_auto_parallel`, and on a GPU whether launches use a CUDA graph, or why not.
        """
        count = len(self.plans)
        lines = [f"{self.name}: {count} plan{'s' * (count != 1)}"]
        for plan in self.plans:
            lines.append(f"  {plan!r}")
            if plan.device_graph is not None:
                lines += [f"    {line}" for line in plan.device_graph.lines]
        for same in self._plans.values():
            lines += [
                f"  {line}" for c in same if isinstance(c, Segmented) for line in c.describe()
            ]
        lines += [f"  {unwatched_line(*known)}" for known in self._unwatched.items()]
        if self._plans and any(is_internal_module(module) for _, module in self._modules()):
            lines.append(f"  not watched: {PAST_SETATTR}")
        lines += (
            [f"  {line}" for line in self._search_result.lines()] if self._search_result else []
        )
        lines += [f"  {line}" for line in self._history.lines()]
        return "\n".join(map(printable, lines))

    def compare(self) -> PassesView:
        """The graph that was called last before and after the passes, side by side; what each pass
        merged, removed and added.  ArgumentError before the first call.
        """
        return self.plan.passes

    def __repr__(self) -> str:
        """A tree: configuration, modules with parameters and operators, inputs and outputs."""
        if "_lock" not in self.__dict__:
            return f"<{type(self).__name__} without a call of super().__init__()>"
        last = next(reversed(self._plans.values()))[0].plans if self._plans else []
        text = graph_tree(self.name, self.config, self._modules(), self._optimizers, last)
        return printable(text, lines=True)

    def _repr_html_(self) -> str:
        return graph_html(repr(self))
