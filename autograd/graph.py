"""`flow.autograd.graph`: what nodes save, kept in another form between forward and backward.

Inside `saved_tensors_hooks` each tensor that a node saves is handed to `pack` as soon as the node
has it, and what that gives is kept in the tensor's place; the first gradient function that asks has
`unpack` make a tensor of it again.  A node is met, and asks, as in a checkpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from flowvm.autograd.checkpoint import Listener, placed
from flowvm.autograd.modes import no_grad
from flowvm.eager.nodes import Node
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentTypeError, AutogradError
from flowvm.guards.regions import Switched
from flowvm.loading.listing import listing

__all__ = [
    "Node",
    "disable_saved_tensors_hooks",
    "increment_version",
    "save_on_cpu",
    "saved_tensors_hooks",
]
__dir__ = listing(globals())


class _Local(threading.local):
    def __init__(self) -> None:
        self.why_not: str | None = None


_local = _Local()


class _Packed:
    """In the place of what a node saved: that, packed.

    edges   where each of the tensors stood in the graph
    kept    the storages that packed values share with what was packed, and their versions then
    """

    def __init__(self, saved: tuple[Tensor, ...], pack: Any, unpack: Any) -> None:
        self.unpack = unpack
        self.edges = tuple(t._node for t in saved)
        with no_grad():
            self.values = [pack(t.detach()) for t in saved]
        self.kept = [
            (own, own.version) if own is not None and any(own is s for s in _storages(v)) else None
            for own, v in zip([t._storage for t in saved], self.values, strict=True)
        ]

    def recall(self, node: Node) -> tuple[Tensor, ...]:
        """The tensors again; they are the node's from now on."""
        found = []
        with no_grad():
            for value, edge, kept in zip(self.values, self.edges, self.kept, strict=True):
                tensor = self.unpack(value)
                if not isinstance(tensor, Tensor):
                    raise ArgumentTypeError(
                        f"saved_tensors_hooks: the unpack hook gives a Tensor, got a "
                        f"{type(tensor).__name__}"
                    )
                if kept is not None and kept[0].version != kept[1]:
                    raise AutogradError(
                        f"{node.operator.name} saved a tensor of shape {tuple(tensor.shape)} for "
                        f"its gradient; the pack hook kept its memory, and it was changed in place "
                        f"since.  Keep a clone()"
                    )
                found.append(placed(tensor, edge))
        node._saved = tuple(found)
        node.versions = tuple(t._storage.version if t._storage is not None else 0 for t in found)
        return node._saved


def _storages(value: Any) -> list[Any]:
    """Of the tensors in what a hook gave."""
    if isinstance(value, Tensor):
        return [value._storage]
    if isinstance(value, dict):
        value = tuple(value.values())
    return [s for v in value for s in _storages(v)] if isinstance(value, (tuple, list)) else []


def _pack_saved(pack: Any, unpack: Any, number: int, node: Node) -> None:
    saved: Any = node._saved
    if type(saved) is not tuple or not saved:
        return  # a checkpoint's, or none
    for tensor, version in zip(saved, node.versions, strict=True):
        if tensor._storage is not None and tensor._storage.version != version:
            return  # changed in place since: who goes backward is told so
    node._saved = _Packed(saved, pack, unpack)


class saved_tensors_hooks(Switched):  # noqa: N801 - PyTorch's name
    """Inside, what is saved for gradients goes through `pack_hook`, and in backward through
    `unpack_hook`, which gives a tensor of the same values again.

    Of hooks inside one another the innermost count.  Both run without recording.

    >>> x = flow.tensor([1.0, 2.0], requires_grad=True)
    >>> with flow.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(), flow.from_numpy):
    ...     y = (x * x).sum()
    >>> y.backward()
    >>> x.grad
    tensor([2., 4.])
    """

    def __init__(
        self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]
    ) -> None:
        for hook in (pack_hook, unpack_hook):
            if not callable(hook):
                raise ArgumentTypeError(f"a hook is callable, got {type(hook).__name__}")
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook
        self._listening: Any = None

    def _switch(self) -> None:
        if _local.why_not is not None:
            raise AutogradError(_local.why_not)
        listener = Listener(partial(_pack_saved, self.pack_hook, self.unpack_hook))
        self._listening = listener.listening(alone=False)
        self._listening._switch()

    def _left(self, kind: Any = None, *error: Any) -> None:
        self._listening._left(kind, *error)

    def _undo(self) -> None:
        if self._listening is not None:
            self._listening._undo()


class save_on_cpu(saved_tensors_hooks):  # noqa: N801 - PyTorch's name
    """Inside, what is saved for gradients lies in the CPU's memory until backward asks for it.

    `pin_memory` and `device_type` are taken, and change nothing.

    >>> x = flow.tensor([3.0], requires_grad=True)
    >>> with flow.autograd.graph.save_on_cpu():
    ...     y = x * x
    >>> y.backward()
    >>> x.grad
    tensor([6.])
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        super().__init__(lambda t: (t.device, t.cpu()), lambda kept: kept[1].to(kept[0]))


class disable_saved_tensors_hooks(Switched):  # noqa: N801 - PyTorch's name
    """Inside, `saved_tensors_hooks` is an AutogradError that says `error_message`.

    >>> with flow.autograd.graph.disable_saved_tensors_hooks("not here"):
    ...     with flow.autograd.graph.save_on_cpu():
    ...         pass
    Traceback (most recent call last):
        ...
    flowvm.errors.AutogradError: not here
    """

    def __init__(self, error_message: str) -> None:
        self.error_message, self._before = error_message, _local.why_not

    def _switch(self) -> None:
        self._before = _local.why_not
        _local.why_not = self.error_message

    def _undo(self) -> None:
        _local.why_not = self._before


def increment_version(tensor: Tensor) -> None:
    """Count a change in place that flowvm did not see, so that a backward which needs what was
    there is an error.

    >>> x = flow.ones(2)
    >>> before = x.version
    >>> flow.autograd.graph.increment_version(x)
    >>> x.version - before
    1
    """
    tensor.bump()
