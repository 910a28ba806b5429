"""OneFlow's ways where PyTorch has others: a table of what changes while `import oneflow` means
flowvm.

Each row is a place (a class and an attribute, or a list and an index) and what stands there.
`take` puts it there at the first import, and `leave` puts back what was there before.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from flowvm import serialization
from flowvm.autograd.backward import takes_complex
from flowvm.compat import graph_states
from flowvm.compat.environment import parse_boolean_from_env
from flowvm.eager.global_calls import Globals
from flowvm.eager.tensor import Tensor
from flowvm.interop.pickles import _deepcopy
from flowvm.nn import state
from flowvm.nn.graph.build import GraphBuild
from flowvm.nn.graph.graph import Graph
from flowvm.ops.declare import core
from flowvm.ops.pointwise.compare import takes_numbers
from flowvm.ops.shapes.create import as_tensor
from flowvm.optim import optimizer


class _Part(Tensor):
    """The real or imaginary part of a tensor: OneFlow's programs call what PyTorch's read."""

    def __call__(self) -> Tensor:
        plain: Tensor = self.as_subclass(Tensor)
        return plain


def _part(name: str) -> property:
    """The property `name` whose value may be called."""
    own = getattr(Tensor, name)
    return property(lambda x: own.fget(x).as_subclass(_Part), own.fset, doc=own.__doc__)


def _copied(t: Tensor, memo: dict[int, object]) -> Tensor:
    """A copy of a leaf as ever; of another tensor, a leaf with its values."""
    if t.is_leaf or id(t) in memo:
        return _deepcopy(t, memo)
    out: Tensor = t.detach().clone()
    memo[id(t)] = out
    return out


def _copy_from(x: Tensor, src: object, non_blocking: bool = False) -> Tensor:
    """`copy_` that takes NumPy's arrays, too."""
    source = as_tensor(src) if isinstance(src, np.ndarray) else src
    return core.copy_(x, source, non_blocking)


def _placements_meet() -> bool:
    """Return OneFlow's switch for operands of several placements in one call."""
    name = "ONEFLOW_ENABLE_GLOBAL_INPUTS_WITH_INCONSISTENT_PLACEMENT"
    return parse_boolean_from_env(name, False)


def _changes() -> list[tuple[Any, object, object]]:
    """Return the rows: a place, an attribute or index of it, and OneFlow's value."""
    return [
        (optimizer.takes_none, 0, True),  # parameters of a stage that is elsewhere
        (Globals, "read_together", True),
        (Globals, "meeting", staticmethod(_placements_meet)),
        (serialization.gathers_alone, 0, True),
        (state.alike, 0, True),
        (GraphBuild.apart, 0, True),
        (takes_complex, 0, True),
        (takes_numbers, 0, True),
        (Tensor, "__deepcopy__", _copied),
        (Tensor, "copy_", _copy_from),
        (Tensor, "real", _part("real")),
        (Tensor, "imag", _part("imag")),
        (Graph, "__call__", graph_states.call),
        (Graph, "state_dict", graph_states.state_dict),
        (Graph, "load_state_dict", graph_states.load_state_dict),
    ]


_before: Final[list[tuple[object, object, object]]] = []


def _put(place: Any, key: object, value: object) -> None:
    if isinstance(key, str):
        setattr(place, key, value)
    else:
        place[key] = value


def take() -> None:
    """Let flowvm behave as OneFlow does."""
    if not _before:
        for place, key, value in _changes():
            was = vars(place)[key] if isinstance(key, str) else place[key]
            _before.append((place, key, was))
            _put(place, key, value)


def leave() -> None:
    """Restore what `take` changed."""
    while _before:
        _put(*_before.pop())
