"""`flow.autograd.graph`: packed forms of saved tensors, and one hook for several tensors.

Saved tensors can be kept in another form between forward and backward.

Inside `saved_tensors_hooks` each tensor that a node saves is handed to `pack` as soon as the node
has it, and what that gives is kept in the tensor's place; the first gradient function that asks has
`unpack` make a tensor of it again.  A node is met, and asks, as in a checkpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flowvm.autograd.checkpoint import Listener, placed
from flowvm.autograd.hooks import RemovableHandle, node_of, register_hook
from flowvm.autograd.modes import no_grad
from flowvm.eager.modes import current_backward
from flowvm.eager.nodes import Node
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, AutogradError
from flowvm.guards.regions import Switched
from flowvm.loading.listing import listing

__all__ = [
    "Node",
    "disable_saved_tensors_hooks",
    "increment_version",
    "register_multi_grad_hook",
    "save_on_cpu",
    "saved_tensors_hooks",
]
__dir__ = listing(globals())


Pack = Callable[[Tensor], object]  # a saved tensor to what is kept of it
Unpack = Callable[[Any], Tensor]  # what was kept to the tensor


class _Local(threading.local):
    def __init__(self) -> None:
        self.why_not: str | None = None


_local = _Local()


class _Packed:
    """The packed form of a node's saved tensors, in their place.

    edges   the places of the tensors in the graph
    packed_versions  the storages that packed values share with saved tensors, and their versions
        at that time
    """

    def __init__(self, saved: tuple[Tensor, ...], pack: Pack, unpack: Unpack) -> None:
        self.unpack = unpack
        self.edges = tuple(t._node for t in saved)
        with no_grad():
            self.values = [pack(t.detach()) for t in saved]
        self.packed_versions = [
            (own, own.version) if own is not None and any(own is s for s in _storages(v)) else None
            for own, v in zip([t._storage for t in saved], self.values, strict=True)
        ]

    def recall(self, node: Node) -> tuple[Tensor, ...]:
        """The tensors again; they are the node's from now on."""
        tensors = []
        with no_grad():
            for value, edge, version_note in zip(
                self.values, self.edges, self.packed_versions, strict=True
            ):
                tensor = self.unpack(value)
                if not isinstance(tensor, Tensor):
                    raise ArgumentTypeError(
                        f"saved_tensors_hooks: the unpack hook gives a Tensor, got a "
                        f"{type(tensor).__name__}"
                    )
                if version_note is not None and version_note[0].version != version_note[1]:
                    raise AutogradError(
                        f"{node.operator.name} saved a tensor of shape {tuple(tensor.shape)} for "
                        f"its gradient; the pack hook kept its memory, and it was changed in place "
                        f"since.  Keep a clone()"
                    )
                tensors.append(placed(tensor, edge))
        saved = node._saved = tuple(tensors)
        node.versions = tuple(t._storage.version if t._storage is not None else 0 for t in tensors)
        return saved


def _storages(value: object) -> list[object]:
    """Return the storages of the tensors in a hook's result."""
    if isinstance(value, Tensor):
        return [value._storage]
    if isinstance(value, dict):
        value = tuple(value.values())
    return [s for v in value for s in _storages(v)] if isinstance(value, (tuple, list)) else []


def _pack_saved(
    pack: Pack, unpack: Unpack, keeps: Callable[[Tensor], bool] | None, number: int, node: Node
) -> None:
    saved = node._saved
    if type(saved) is not tuple or not saved:
        return  # a checkpoint's, or none
    if keeps is not None and not any(map(keeps, saved)):
        return
    for tensor, version in zip(saved, node.versions, strict=True):
        if tensor._storage is not None and tensor._storage.version != version:
            return  # changed in place since: who goes backward is told so
    node._saved = _Packed(saved, pack, unpack)


class saved_tensors_hooks(Switched):  # noqa: N801 - PyTorch's name
    """Pack tensors saved for gradients by `pack_hook`; backward unpacks them by `unpack_hook`.

    `unpack_hook` returns a tensor of the same values.  Of nested hooks the innermost count.  Both
    run without recording.

    >>> x = flow.tensor([1.0, 2.0], requires_grad=True)
    >>> with flow.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(), flow.from_numpy):
    ...     y = (x * x).sum()
    >>> y.backward()
    >>> x.grad
    tensor([2., 4.])
    """

    def __init__(self, pack_hook: Pack, unpack_hook: Unpack) -> None:
        for hook in (pack_hook, unpack_hook):
            if not callable(hook):
                raise ArgumentTypeError(f"a hook is callable, got {type(hook).__name__}")
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook
        self._listening: Any = None

    _keeps: Callable[[Tensor], bool] | None = None  # of a saved tensor; None: all

    def _switch(self) -> None:
        if _local.why_not is not None:
            raise AutogradError(_local.why_not)
        listener = Listener(partial(_pack_saved, self.pack_hook, self.unpack_hook, self._keeps))
        self._listening = listener.listening(alone=False)
        self._listening._switch()

    def _on_exit(self, kind: object = None, *error: object) -> None:
        self._listening._on_exit(kind, *error)

    def _undo(self) -> None:
        if self._listening is not None:
            self._listening._undo()


class some_saved_tensors_hooks(saved_tensors_hooks):  # noqa: N801 - beside PyTorch's
    """Pack the tensors of nodes that save a tensor which `keeps` accepts.

    `pack_hook` gets all tensors that such a node saves.  The hooks around get the tensors of other
    nodes.
    """

    def __init__(
        self, keeps: Callable[[Tensor], bool], pack_hook: Pack, unpack_hook: Unpack
    ) -> None:
        super().__init__(pack_hook, unpack_hook)
        self._keeps = keeps


class save_on_cpu(saved_tensors_hooks):  # noqa: N801 - PyTorch's name
    """Keep tensors saved for gradients in the CPU's memory until backward asks for them.

    `pin_memory` and `device_type` are taken, and change nothing.

    >>> x = flow.tensor([3.0], requires_grad=True)
    >>> with flow.autograd.graph.save_on_cpu():
    ...     y = x * x
    >>> y.backward()
    >>> x.grad
    tensor([6.])
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        super().__init__(lambda t: (t.device, t.cpu()), lambda pair: pair[1].to(pair[0]))


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
    """Count a change in place that flowvm did not see, so that backward refuses the old values.

    >>> x = flow.ones(2)
    >>> before = x.version
    >>> flow.autograd.graph.increment_version(x)
    >>> x.version - before
    1
    """
    tensor.bump()


# --- one hook for several tensors -----------------------------------------------------------------


class _Joint:
    """A hook of several tensors; the backward's BackwardRun keeps the gradients that it has seen.

    nodes    where the tensors stood when it was made, one for each
    """

    def __init__(self, hook: Callable[[object], object], tensors: Sequence[Tensor]) -> None:
        self.hook = hook
        self.nodes = [node_of(t._node) for t in tensors]
        self.removed = False

    def first(self, g: Tensor) -> None:
        """Take a gradient; call the hook with the first of a backward."""
        run_notes = current_backward().notes
        if self not in run_notes:
            run_notes[self] = None
            self.hook(g)

    def see(self, place: int, g: Tensor) -> None:
        """Take the gradient of one tensor; call the hook when all that will come are there."""
        backward_run = current_backward()
        grads = backward_run.notes.get(self)
        if grads is None:
            due = sum(node in backward_run.counts for node in self.nodes)
            grads = backward_run.notes[self] = _Found([None] * len(self.nodes), due)
            backward_run.ends.append(partial(self._ended, grads))
        grads.gradients[place] = g
        grads.due -= 1
        if not grads.due:
            self.hook(grads.gradients)

    def _ended(self, slot: _Found) -> None:
        """The backward came to all nodes, and brought some of them no gradient."""
        if slot.due and not self.removed:
            self.hook(slot.gradients)


class _Found:
    """The gradients that a `_Joint` has seen in one backward, and the number for which it waits."""

    def __init__(self, gradients: list[Tensor | None], due: int) -> None:
        self.gradients, self.due = gradients, due


class _Handles(RemovableHandle):
    """The handles of a joint hook as one."""

    def __init__(self, joint: _Joint, handles: Sequence[RemovableHandle]) -> None:
        super().__init__({}, joint.hook)
        self._joint, self._handles = joint, handles

    def remove(self) -> None:
        self._joint.removed = True
        for handle in self._handles:
            handle.remove()


def register_multi_grad_hook(
    tensors: Sequence[Tensor], fn: Callable[[object], object], *, mode: str = "all"
) -> RemovableHandle:
    """Call `fn` once in each backward that comes to any of `tensors`.

    mode "all"  with a list of their gradients, when those of all tensors that this backward comes
                to are known; None for a tensor that it does not come to, or brings no gradient
         "any"  with the first gradient that is known of any of them; tensors that require no
                gradient are left out

    `fn` gives nothing and changes no gradient.  Returns a handle with `remove()`.  ArgumentError
    for another mode; AutogradError, for "all", for a tensor that requires no gradient.

    >>> a, b = flow.ones(2, requires_grad=True), flow.ones(2, requires_grad=True)
    >>> c, d = a * b, a * b
    >>> def told(grads):
    ...     print([g is not None for g in grads])
    >>> handle = flow.autograd.graph.register_multi_grad_hook((a, b, c, d), told)
    >>> c.sum().backward(retain_graph=True)
    [True, True, True, False]
    >>> c.sum().backward(inputs=(a,), retain_graph=True)
    [True, False, True, False]
    >>> handle.remove()
    """
    if mode not in ("all", "any"):
        raise ArgumentError(f'register_multi_grad_hook: mode is "all" or "any", got {mode!r}')
    if not callable(fn):
        raise ArgumentTypeError(f"a hook is callable, got {type(fn).__name__}")
    tensors = list(tensors)
    for place, t in enumerate(tensors):
        if not isinstance(t, Tensor):
            raise ArgumentTypeError(
                f"register_multi_grad_hook: tensors[{place}] is a {type(t).__name__}"
            )
        if t._node is None and mode == "all":
            raise AutogradError(
                f"register_multi_grad_hook: tensors[{place}] of shape {tuple(t.shape)} doesn't "
                f'require gradient; leave it out, or say mode="any"'
            )
    if mode == "any":
        tensors = [t for t in tensors if t._node is not None]
    joint = _Joint(fn, tensors)
    if mode == "any":
        handles = [register_hook(t, joint.first) for t in tensors]
    else:
        handles = [register_hook(t, partial(joint.see, i)) for i, t in enumerate(tensors)]
    return _Handles(joint, handles)
