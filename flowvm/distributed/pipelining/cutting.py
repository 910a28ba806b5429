"""`pipeline`: a model cut into stages, by its graph of calls.

Values that a later stage wants travel through those between.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from flowvm.distributed.pipelining.stages import PipelineStage
from flowvm.errors import ArgumentError
from flowvm.fx import Graph, GraphModule, Node, Tracer
from flowvm.guards.regions import Mode
from flowvm.nn.module import Module

_tracing: Mode[Any] = Mode(None)


# public: distributed.pipelining
class SplitPoint(enum.Enum):
    """The side of a module at which a model is cut.

    >>> from flowvm.distributed.pipelining import SplitPoint
    >>> SplitPoint.BEGINNING.value
    1
    """

    BEGINNING = 1
    END = 2


# public: distributed.pipelining
def pipe_split() -> None:
    """Mark in a `forward` that the next stage begins here; without `pipeline` it does nothing.

    >>> from flowvm.distributed.pipelining import pipe_split
    >>> pipe_split()
    """
    tracer = _tracing.now()
    if tracer is not None:
        tracer.graph.create_node("call_function", pipe_split)


class _Whole(Tracer):
    """Modules are nodes, except for those around a cut, and those that may call `pipe_split`."""

    def __init__(self, cuts: Mapping[str, SplitPoint]) -> None:
        super().__init__()
        self.cuts = cuts

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        """Return True unless a cut is inside."""
        if module_qualified_name in self.cuts:
            return True
        if any(name.startswith(f"{module_qualified_name}.") for name in self.cuts):
            return False
        return bool(self.cuts) or super().is_leaf_module(m, module_qualified_name)


def _sections(graph: Graph, cuts: Mapping[str, SplitPoint]) -> list[list[Node]]:
    """The nodes of each stage."""
    sections: list[list[Node]] = [[]]
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        if node.op == "call_function" and node.target is pipe_split:
            sections.append([])
            continue
        cut = cuts.get(str(node.target)) if node.op == "call_module" else None
        if cut is SplitPoint.BEGINNING and sections[-1]:
            sections.append([])
        sections[-1].append(node)
        if cut is SplitPoint.END:
            sections.append([])
    return sections if sections[-1] else sections[:-1]


def _outputs_used(nodes: Sequence[Node], inside: set[Node]) -> list[Node]:
    """The values that nodes take and do not make, in the order of their use."""
    names = [n for node in nodes for n in node.all_input_nodes if n not in inside]
    return list(dict.fromkeys(names))


def _value(root: Module, path: str) -> Module:
    return reduce(getattr, path.split("."), root)


# public: distributed.pipelining
class Pipe:
    """A model in stages: `num_stages`, `get_stage_module(k)`, `build_stage(k, device, group)`.

    `pipeline` makes one.
    """

    def __init__(self, stages: Sequence[Module]) -> None:
        self.stages = list(stages)

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return len(self.stages)

    def get_stage_module(self, stage_idx: int) -> Module:
        """The module of a stage; its parameters are those of the model."""
        if not 0 <= stage_idx < len(self.stages):
            raise ArgumentError(
                f"get_stage_module: stages are 0 to {len(self.stages) - 1}, got {stage_idx}"
            )
        return self.stages[stage_idx]

    def build_stage(self, stage_index: int, device: Any = None, group: Any = None) -> PipelineStage:
        """The stage, which has to be one of this rank."""
        module = self.get_stage_module(stage_index)
        return PipelineStage(module, stage_index, self.num_stages, device, group=group)

    def __call__(self, *args: object) -> Any:
        """Run all stages, one after the other, on this rank."""
        for stage in self.stages:
            out = stage(*args)
            args = out if isinstance(out, tuple) else (out,)
        return out

    def __repr__(self) -> str:
        return f"Pipe({', '.join(type(s).__name__ for s in self.stages)})"


# public: distributed.pipelining
def pipeline(
    module: Module,
    mb_args: Sequence[object] = (),
    mb_kwargs: Mapping[str, object] | None = None,
    split_spec: Mapping[str, SplitPoint] | None = None,
    split_policy: Callable[[GraphModule], GraphModule] | None = None,
) -> Pipe:
    """Cut a model into stages, where `split_spec` says or its `forward` calls `pipe_split`.

    mb_args       a micro-batch; shapes are found when stages run
    split_spec    {"layers.2": SplitPoint.BEGINNING}: a cut at one side of a module

    ArgumentError for a name of no module, `mb_kwargs` or `split_policy`, or a model with values
    that its first stage does not take.

    >>> from flowvm.distributed.pipelining import SplitPoint, pipeline
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> pipe = pipeline(model, (flow.ones(1, 2),), split_spec={"2": SplitPoint.BEGINNING})
    >>> pipe.num_stages, [n for n, _ in pipe.get_stage_module(1).named_parameters()]
    (2, ['2.weight', '2.bias'])
    """
    if mb_kwargs or split_policy is not None:
        raise ArgumentError("pipeline: keyword arguments and split_policy are not taken")
    cuts = dict(split_spec or {})
    names = {name for name, _ in module.named_modules()}
    if unknown := sorted(cuts.keys() - names):
        raise ArgumentError(f"pipeline: {', '.join(unknown)} is no module of the model")
    tracer = _Whole(cuts)
    with _tracing.within(tracer):
        graph = tracer.trace(module)
    sections = _sections(graph, cuts)
    (output,) = (node for node in graph.nodes if node.op == "output")
    results = list(dict.fromkeys(output.all_input_nodes))
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    # what each stage takes, the last one first: what it wants itself, and what goes on
    takes: list[list[Node]] = []
    after = results
    for nodes in reversed(sections):
        inside = set(nodes)
        passed = [n for n in after if n not in inside]
        after = list(dict.fromkeys([*_outputs_used(nodes, inside), *passed]))
        takes.insert(0, after)
    stages = []
    for k, nodes in enumerate(sections):
        last = k == len(sections) - 1
        stages.append(_stage(
            module, k, nodes, placeholders if k == 0 else takes[k],
            None if last else takes[k + 1], output,
        ))  # fmt: skip
    return Pipe(stages)


def _stage(
    root: Module, number: int, nodes: Sequence[Node], takes: Sequence[Node],
    gives: Sequence[Node] | None, output: Node,
) -> GraphModule:  # fmt: skip
    graph = Graph()
    new: dict[Node, Node] = {node: graph.placeholder(node.name) for node in takes}
    paths = {}
    for node in nodes:
        new[node] = graph.node_copy(node, new.__getitem__)
        if node.op in ("call_module", "get_attr"):
            paths[str(node.target)] = _value(root, str(node.target))
    if gives is None:
        graph.node_copy(output, new.__getitem__)
    else:
        out = tuple(new[node] for node in gives)
        graph.output(out[0] if len(out) == 1 else out)
    stage = GraphModule(paths, graph, f"Stage{number}")
    stage.training = root.training
    return stage
