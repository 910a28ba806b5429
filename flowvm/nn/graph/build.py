"""GraphBuild: what a graph does with the user's `build`.

It is captured, for a Plan to be made of it; run eagerly, once, where an optimizer has yet to make
its state; or run as a part of another graph's build.  `Graph` above it decides which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from flowvm.autograd.backward import seeded
from flowvm.eager.global_calls import partial_grads, spread
from flowvm.eager.modes import grad_enabled
from flowvm.eager.tensor import Tensor
from flowvm.errors import CaptureError
from flowvm.graph.capture.breaks import Breaks
from flowvm.graph.capture.capture import capturing
from flowvm.graph.capture.trees import flatten, parts_of, unflatten
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.passes.checkpointing import check_marks
from flowvm.graph.passes.passes import PASSES, optimize
from flowvm.graph.plan.plan import compile_plan
from flowvm.nn.graph.compiled import Compiled, known_objects, left_behind, storages_of
from flowvm.nn.graph.config import GraphConfig
from flowvm.nn.graph.environment import Environment, capture_environment, note_graph
from flowvm.nn.graph.explain import Status, say_difference, say_unwatched
from flowvm.nn.graph.gradients import Gradients, Landing, MicroBatches, SetAside, in_turn, settle
from flowvm.nn.graph.parallel import Holding
from flowvm.nn.graph.steps import Steps, Turns, eager_step, fixed_options, precisely
from flowvm.nn.module import Module
from flowvm.nn.stages import CHECKPOINTED, in_flight, stays_in_stage

if TYPE_CHECKING:
    from flowvm.amp import GradScaler
    from flowvm.optim import Optimizer


def _differs(structure: object, leaves: Sequence[Tensor], value: object) -> bool:
    """Return True if `value` is no longer the tree of this structure and these tensors.

    Behind the tree's own tensors may stand others.
    """
    tensors: list[Tensor] = []
    try:
        now = flatten(value, tensors)
    except CaptureError:  # what no graph takes was put there
        return True
    return now != structure or [*map(id, tensors)] != [*map(id, leaves[: len(tensors)])]


class GraphBuild(Holding):
    """A graph's modules, optimizers and settings, and its build.

    _adopted   those of its optimizers (ids) that `build` was found to step, and nobody else steps
    _landing   leaves outside its optimizers whose `.grad` calls change
    _stepped   whether an eager step was made that made optimizers' state
    _own       names of attributes that are no user's
    _has_ends  the last capture ended because code outside may go backward from its results
    _given     storages of the tensors of the call that is captured now, or was last
    """

    # whether code outside may go backward from a result: then such calls are made by eager code
    differentiable: ClassVar[bool] = False
    # whether eager code may make a call that no replay can
    reruns: ClassVar[bool] = False
    # whether `build` writes to copies of the caller's tensors, as OneFlow's graphs do
    apart: ClassVar[list[bool]] = [False]

    def __init__(self) -> None:
        self.name = type(self).__name__
        self.config = GraphConfig()
        self._optimizers: list[tuple[Optimizer, Any]] = []
        self._adopted: set[int] = set()
        self._scaler: GradScaler | None = None
        self._landing = Landing()
        self._stepped = False
        self._has_ends = False
        self._debug = 0
        self._status: Status | None = None  # of the capture that is made now, or was last
        self._own: frozenset[str] = frozenset()
        self._leaf_storages: list[int] = []
        self._written: frozenset[int] = frozenset()  # places of inputs that `build` gets copies of
        self._search_result = None
        self._unwatched: dict[str, tuple[str, int]] = {}  # what captures could not watch, and where

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the graph's outputs; a subclass defines this.  Runs once for each kind of
        call.
        """
        raise NotImplementedError(f"{type(self).__name__} must define build(self, ...)")

    def _inlined(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
        """Run `build` eagerly, or as a part of the graph that is being captured.

        Passes, order and checkpoints are the outer graph's; mixed precision is its own.
        """
        if self._optimizers:
            raise CaptureError(
                f"{self.name} steps an optimizer, so it cannot be called inside another graph's "
                f"build: give the optimizer to the outer graph, or call the two one after the other"
            )
        if self.config.gradient_accumulation_steps > 1:
            raise CaptureError(
                f"{self.name} accumulates gradients over its inputs' parts, so it cannot be called "
                f"inside another graph's build: set that for the outer graph"
            )
        note_graph(self, self._modules(), self._own)
        return precisely(self.config.amp_dtype, None, self.build, args, kwargs)

    def named_attributes(self) -> Iterator[tuple[str, object]]:
        """Yield the attributes in which modules are looked for, with their names."""
        yield from vars(self).items()

    def _modules(self) -> Iterator[tuple[str, Module]]:
        """Modules that have a name here, those of graphs among the attributes too; others are
        watched as well, and have none.
        """
        for name, value in self.named_attributes():
            if isinstance(value, Module):
                yield from value.named_modules(prefix=name)
            elif isinstance(value, GraphBuild):
                yield from ((f"{name}.{path}", module) for path, module in value._modules())

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters, buffers and the optimizers' states: "fc.weight", "fc.weight.exp_avg"."""
        names: dict[int, str] = {}
        for path, module in self._modules():
            for kind in (module._parameters, module._buffers):
                for own, tensor in kind.items():
                    if tensor is not None:
                        name = names.setdefault(id(tensor), f"{path}.{own}" if path else own)
                        parts = parts_of(tensor)
                        for k, part in enumerate(parts):
                            yield (name if len(parts) == 1 else f"{name}.{k}"), part
        for number, (optimizer, _) in enumerate(self._optimizers):
            for place, param in enumerate(optimizer._all_params()):
                name = names.get(id(param)) or f"optimizer {number}.{place}"
                yield name, param
                for key, value in optimizer.state.get(param, {}).items():
                    if isinstance(value, Tensor):
                        yield f"{name}.{key}", value

    def _options(self) -> list[object]:
        """The optimizers' settings, but those that are live."""
        scaler = () if self._scaler is None else self._scaler.key()
        return [
            *scaler,
            *(
                value if isinstance(value, (bool, int, float, str, tuple)) else id(value)
                for optimizer, _ in self._optimizers
                for group in optimizer.param_groups
                for value in fixed_options(optimizer, group).values()
            ),
        ]

    def _needs_eager_step(self) -> bool:
        """Return True if an optimizer has no state yet; its first step makes it."""
        return not self._stepped and any(not o.state for o, _ in self._optimizers)

    def _step_eagerly(self, args: Any, kwargs: Any) -> Any:
        self._cut()
        self._place_scaler()
        if self.apart[0]:  # nobody knows yet what it writes
            leaves: list[Tensor] = []
            structure = flatten((args, kwargs), leaves)
            args, kwargs = unflatten(structure, iter([t.clone() for t in leaves]))
        with spread.within(self.config.zero[1]):
            return self._eager_step(args, kwargs)

    def _eager_step(self, args: object, kwargs: object) -> Any:
        with SetAside(self._stepped_parameters()), eager_step(), self._turns() as turns:
            times = self.config.gradient_accumulation_steps
            each = self._build_held, args, kwargs, times, self.name
            structure, leaves = precisely(self.config.amp_dtype, self._scaler, in_turn, each, {})
            self._stepped = True
            if times > 1:
                settle(self._stepped_parameters())
            turns.take(self._adopted)
        for _, schedule in self._optimizers:
            if schedule is not None:
                schedule.step()
        return unflatten(structure, iter(leaves))

    # --- capture ------------------------------------------------------------------------------

    def _place_scaler(self) -> None:
        """Have the scale where the parameters are: a graph computes on one device."""
        params = [p for optimizer, _ in self._optimizers for p in optimizer._all_params()]
        if self._scaler is not None and params:
            self._scaler.follow(params[0]._meta.device)

    def _optimized(self, graph: LogicalGraph) -> LogicalGraph:
        without = self.config.without
        meets = graph.uses().meet(self._leaf_storages)
        if meets:
            without = tuple(PASSES)
        if meets or graph.written_inputs():  # launches in flight together share variables alone
            graph = replace(graph, nodes=[replace(n, stream=0) for n in graph.nodes])
        passed = self._status.passed if self._status is not None else None
        modules = [module for _, module in self._modules()]
        together = self.config.pipeline_schedule == "gpipe"
        every = self.config.gradient_accumulation_steps if together else 0
        count = in_flight(modules, self.name, every)
        settings = replace(
            graph,
            order=self.config.order,
            regst_num=self.config.regst_num,
            in_flight=count,
            abreast=count if stays_in_stage(graph.nodes, modules) else 1,
        )
        optimized = optimize(settings, without, passed)
        place = self.config.placement
        if place is None or meets or graph.written_inputs():
            return optimized
        return place(optimized)

    def _capture(
        self, structure: object, leaves: Sequence[Tensor], breaks: Breaks
    ) -> Compiled | None:
        """Run `build` under capture: what runs it, or its last segment, from now on."""
        self._leaf_storages = storages_of(leaves)
        self._place_scaler()
        self._cut()
        paths: dict[int, str] = {}
        for path, module in self._modules():
            paths.setdefault(id(module), path)
        around = self._surroundings()
        with capturing(self.name) as capture, capture_environment(capture, paths, around):
            capture.breaks, breaks.watchers = breaks, around.watchers
            marked = [m for _, m in self._modules() if CHECKPOINTED in vars(m)]
            capture.checkpoints = (*self.config.checkpoints, *marked)
            resumed = bool(breaks.path)
            for name, tensor in self._named_tensors():
                capture.name_variable(tensor, name)
            inputs = [capture.placeholder(t._meta, f"input {i}") for i, t in enumerate(leaves)]
            for t, leaf in zip(inputs, leaves, strict=True):
                t.requires_grad_(leaf.requires_grad)
            capture.buffers.stand_for(inputs, leaves)
            shown = [(t._meta, t._ref) for t in inputs]
            batch = MicroBatches(capture, self.config.gradient_accumulation_steps)
            own = [t.clone() if k in self._written else t for k, t in enumerate(inputs)]
            unpacked = batch.unpack(own)
            args, kwargs = unflatten(structure, iter(unpacked))
            around.reads.own_all((args, kwargs))
            owned, landing = self._stepped_parameters(), self._landing
            with (
                Gradients(capture, owned, landing, inputs, leaves) as gradients,
                Steps(self._optimizers, capture) as steps,
                self._turns() as turns,
            ):
                capture.on_step = self._step_in_build
                tensors: list[Tensor] = []
                several = batch.times > 1
                with seeded(1.0 / batch.times), partial_grads.within(several), batch:
                    amp = self.config.amp_dtype
                    built = precisely(amp, self._scaler, self._build_held, args, kwargs)
                    result = flatten(built, tensors)
                    ends = [k for k, t in enumerate(tensors) if t._node is not None]
                    changed = _differs(structure, unpacked, (args, kwargs))
                    known = {} if breaks.path else known_objects(inputs, tensors)
                    tensors = batch.pack(tensors)
                    batch.acc(owned, [*gradients.new_leaves, *landing.leaves])
                leftovers = left_behind(inputs, shown)
                capture.phase = "backward"
                if several:
                    settle(owned)
                self._warn(gradients, turns)
                capture.phase = "optimizer"
                turns.take(self._adopted)
                cleared = gradients.cleared  # before anything here reads
                acts, grads = gradients.take()
                if landing.leaves:
                    result = ("tuple", result, flatten(acts, tensors), flatten(grads, tensors))
                for t in tensors:
                    capture.output(t)
        capture.drop_unasked()
        written = frozenset(capture.graph.written_inputs()) if self.apart[0] else frozenset()
        if written or steps.made_state:
            self._written |= written
            breaks.undo()
            return None
        if changed:
            breaks.undo()
            self._refuse_changed()
        flow_on = ends or any(one.flows for one in leftovers)
        if flow_on and self.differentiable and not capture.backwards:
            breaks.undo()
            self._has_ends = True
            raise CaptureError(f"{self.name}: code outside may go backward from its results")
        around.settle(capture)
        self._say_unwatched(around.reads.unwatched)
        for label, tensor in around.tensors():
            if label != "constant":  # what a pass made is called so
                capture.name_reached(tensor, label)
        check_marks(self.name, capture.checkpoints, capture.forgotten, paths.values())
        if leftovers and breaks.path:
            raise CaptureError(
                f"{self.name}: build runs in segments, and changes how an argument shows its "
                f"memory, or makes its gradient go on; give it a clone()"
            )
        if breaks.path:
            last, plan = breaks.finish(capture)
            if resumed:  # the first segment asks for what the first capture saw, not for this
                last.watched = list(around.watchers)
            last.end = compiled = Compiled(capture, plan, result, steps, [])
        else:
            plan = compile_plan(self._optimized(capture.graph))
            compiled = Compiled(capture, plan, result, steps, around.watchers)
            compiled.cleared = cleared
        compiled.ends, compiled.leftovers = [] if capture.backwards else ends, leftovers
        compiled.known = {} if several else known
        return compiled

    def _refuse_changed(self) -> NoReturn:
        """`build` changed a list or dict among its arguments, which no replay does.

        A function or module without optimizers is eager code from now on in such calls; else it is
        a CaptureError.
        """
        text = (
            f"{self.name}: build changes a list or dict among its arguments, which no replay does"
        )
        if self._optimizers or not self.reruns:
            raise CaptureError(f"{text}: change a copy of it, and return what is new")
        say_difference(
            f"{text}: such calls run as eager code.  Change a copy, to have them replayed"
        )
        self._has_ends = True
        raise CaptureError(text)

    def _surroundings(self) -> Environment:
        """Return the environment that `build` sees now."""
        environment = Environment()
        environment.add_graph(self, self._own)
        for optimizer, _ in self._optimizers:
            environment.add_optimizer(optimizer)
        return environment

    def _stepped_parameters(self) -> list[Tensor]:
        """Parameters whose gradients are the graph's own: those of its optimizers."""
        own = [o for o, _ in self._optimizers if id(o) not in self._adopted]
        return [p for optimizer in own for p in optimizer._all_params()]

    # --- steps in build -----------------------------------------------------------------------

    def _turns(self) -> Turns:
        """Return the record of which optimizers `build` steps in this call."""
        whole = self.config.gradient_accumulation_steps == 1
        return Turns([o for o, _ in self._optimizers], self._scaler, whole, self.name)

    def _step_in_build(self, optimizer: Optimizer) -> None:
        """An optimizer is to step in `build`: it is the graph's, or `_adopt` says what then."""
        if not any(optimizer is own for own, _ in self._optimizers):
            self._adopt(optimizer)

    def _adopt(self, optimizer: Optimizer) -> None:
        """An optimizer that is not the graph's is to step in `build`: a CaptureError."""
        raise CaptureError(
            f"{self.name}: {type(optimizer).__name__}.step() in build: give the optimizer to "
            f"the graph first, with add_optimizer()"
        )

    def _say_unwatched(self, unwatched: Mapping[str, tuple[str, int]]) -> None:
        """Say, once, what a capture saw that no call can ask for."""
        for text, place in unwatched.items():
            if text not in self._unwatched:
                self._unwatched[text] = place
                say_unwatched(self.name, text, place)

    def _warn(self, gradients: Gradients, turns: Turns) -> None:
        """Say where a graph does what its author may not expect."""
        behind = [o for o in turns.optimizers if turns.behind(o, self._adopted)]
        trains = grad_enabled() and any(module.training for _, module in self._modules())
        if behind and trains and not gradients.capture.backwards:
            say_difference(
                f"graph {self.name} has an optimizer, and build did not call backward(): the step "
                f"of {type(behind[0]).__name__} will change nothing"
            )
        for optimizer in behind if len(turns.optimizers) > 1 else ():
            if any(gradients.times.get(id(p), 0) > 1 for p in optimizer._all_params()):
                say_difference(
                    f"graph {self.name} steps its {type(optimizer).__name__} after build, with the "
                    f"sum of the gradients of several backward().  Where eager code steps between "
                    f"them, call the optimizer's step() and zero_grad() in build, too"
                )
