"""State dicts of graphs as OneFlow has them: a graph's modules by attribute, the optimizers' state
by the names of parameters, and the number of steps.

    {"model": {"fc.weight": ...}, "model.fc.weight-momentum": ..., "System-Train-TrainStep": ...}

Schedules and the gradient scaler keep flowvm's names, for OneFlow has no such entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentTypeError
from flowvm.meta.dtype import int64
from flowvm.meta.placements import broadcast, placement
from flowvm.nn.graph.graph import Graph
from flowvm.nn.graph.state import graph_state, load_graph_state
from flowvm.ops.shapes.create import tensor

STEP: Final = "System-Train-TrainStep"
# what optimizers keep of a parameter -> OneFlow's word behind the parameter's name
_WORDS: Final = {
    "momentum_buffer": "momentum", "exp_avg": "m", "exp_avg_sq": "v", "max_exp_avg_sq": "max_v",
    "square_avg": "mean_square", "grad_avg": "mean_gradient", "sum": "sum",
}  # fmt: skip
_OURS: Final = {word: key for key, word in _WORDS.items()}
_steps: WeakKeyDictionary[Graph, int] = WeakKeyDictionary()
_call = Graph.__call__


def call(graph: Graph, *args: object, **kwargs: object) -> Any:
    """Call the graph, and count a step if it has an optimizer."""
    out = _call(graph, *args, **kwargs)
    if graph._optimizers:
        _steps[graph] = _steps.get(graph, 0) + 1
    return out


def _parameters(graph: Graph) -> Iterator[tuple[int, int, str, Tensor]]:
    """Each parameter of an optimizer: the optimizer's number, its own, its name and itself."""
    names: dict[int, str] = {}
    for path, module in graph._modules():
        for own, param in module._parameters.items():
            if param is not None:
                names.setdefault(id(param), f"{path}.{own}" if path else own)
    for number, (optimizer, _) in enumerate(graph._optimizers):
        for place, param in enumerate(optimizer._all_params()):
            yield number, place, names.get(id(param), f"optimizer{number}.{place}"), param


def state_dict(graph: Graph) -> dict[str, Any]:
    """Return the state of a graph by OneFlow's names."""
    state = graph_state(graph)
    optimizer_states = state.pop("optimizers", None)
    if optimizer_states is None:
        return state
    spread = False
    for number, place, name, param in _parameters(graph):
        spread |= param.is_global
        for key, value in optimizer_states[number]["state"].get(place, {}).items():
            state[f"{name}-{_WORDS.get(key, key)}"] = value
    step = tensor([_steps.get(graph, 0)], dtype=int64)
    state[STEP] = step.to_global(placement("cpu", [0]), broadcast) if spread else step
    return state


def load_state_dict(graph: Graph, state_dict: Mapping[str, Any], strict: bool = True) -> None:
    """Take over a `state_dict()` with OneFlow's names, or one with flowvm's.

    ArgumentTypeError and ArgumentError as `nn.Graph.load_state_dict` has them.
    """
    if not isinstance(state_dict, Mapping):
        raise ArgumentTypeError(f"a graph's state is a dict, not {type(state_dict).__name__}")
    with graph._lock:
        if STEP not in state_dict:
            load_graph_state(graph, state_dict, strict)
            return
        state = dict(state_dict)
        step = state.pop(STEP)
        optimizer_states = [
            {**optimizer.state_dict(), "state": {}} for optimizer, _ in graph._optimizers
        ]
        for number, place, name, _ in _parameters(graph):
            entry = {}
            for word in [w for w in state if w.startswith(f"{name}-")]:
                key = word.removeprefix(f"{name}-")
                entry[_OURS.get(key, key)] = state.pop(word)
            if entry:
                optimizer_states[number]["state"][place] = entry
        load_graph_state(graph, {**state, "optimizers": optimizer_states}, strict)
        _steps[graph] = int(step.numpy()[0])
