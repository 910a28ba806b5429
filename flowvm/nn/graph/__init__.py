"""nn.Graph: eager code captured once for each kind of call, and replayed as a Plan.

Here: what a user's `build` means, when a call is of a kind seen before, the state and the saved
form of a graph, what it prints. Not here: capture, passes and Plans, which know no modules
(`flowvm.graph`).
"""

from typing import Any

from flowvm.errors import MissingNameError
from flowvm.loading.lazy import lazy

blocks = lazy("flowvm.nn.graph.blocks")


def __getattr__(name: str) -> Any:
    if name in ("GraphModule", "GraphTensor"):
        return getattr(blocks, name)
    raise MissingNameError(f"flowvm.nn.graph has no {name!r}", name)
