"""Hooks on tensors and nodes, and where they are kept.

A node without hooks is a plain `Node`, and the engine asks nothing more of it.  The first hook
turns the node into a `HookedNode`, by its class, and puts a `NodeHooks` into its `extra`; a leaf's
hooks are on its accumulator.  So hooks cost nothing where there are none.

The order, as in PyTorch: hooks of the tensor (which may replace the gradient), `retain_grad`, hooks
before the node, the node's gradient function, hooks after it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import count
from typing import Any

from flowvm.autograd.leaf import AccumulateGrad
from flowvm.eager.modes import note_change
from flowvm.eager.nodes import Node, OutputEdge
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentTypeError, AutogradError
from flowvm.guards.exchange import first_of
from flowvm.guards.regions import Switched

_ids = count()
Hooks = dict[int, Callable[..., object]]


# public: autograd
class RemovableHandle(Switched):
    """The handle of a registered hook: `remove()`, or leaving a with block, takes the hook out.

    >>> x = flow.ones(2, requires_grad=True)
    >>> handle = x.register_hook(lambda g: g * 10)
    >>> handle.remove()
    >>> x.sum().backward()
    >>> x.grad
    tensor([1., 1.])
    """

    def __init__(self, table: Hooks, hook: Callable[..., object]) -> None:
        self.id = next(_ids)
        self._table = table
        table[self.id] = hook
        note_change()

    def remove(self) -> None:
        """Take the hook out; nothing happens the second time."""
        self._table.pop(self.id, None)
        note_change()

    def _undo(self) -> None:
        self.remove()


class NodeHooks:
    """The hooks of one node, and the line that made it if anomalies are being looked for."""

    __slots__ = ("after", "before", "retain", "tensor", "trace")

    def __init__(self) -> None:
        self.tensor: dict[int, Hooks] = {}  # by output: of the tensor that the output is
        self.retain: dict[int, weakref.ref[Tensor]] = {}  # by output: whose .grad is to be kept
        self.before: Hooks = {}
        self.after: Hooks = {}
        self.trace: str = ""


class HookedNode(Node):
    """A Node that has had a hook."""

    __slots__ = ()


def hooks_of(node: Node) -> NodeHooks:
    """The node's hooks, made now if it has had none."""
    hooks: NodeHooks | None = getattr(node, "extra", None)
    if hooks is None:
        hooks = first_of(node, Node, "extra", NodeHooks())
    if node.__class__ is Node:
        node.__class__ = HookedNode
    return hooks


def run_hooks(hooks: Hooks, g: Tensor) -> Tensor:
    """`g` after a tensor's hooks; each may return another gradient of its shape."""
    for hook in list(hooks.values()):
        new = hook(g)
        if new is None:
            continue
        if not isinstance(new, Tensor):
            raise ArgumentTypeError(
                f"a tensor's hook returns a Tensor or None, {_name(hook)} returned "
                f"{type(new).__name__}"
            )
        if new._meta.shape != g._meta.shape:
            raise AutogradError(
                f"the hook {_name(hook)} returned a gradient of shape {tuple(new.shape)} in "
                f"place of one of "
                f"shape {tuple(g.shape)}"
            )
        g = new.to(g._meta.dtype) if new._meta.dtype is not g._meta.dtype else new
    return g


def _name(hook: Callable[..., object]) -> str:
    return getattr(hook, "__qualname__", repr(hook))


def _needs_grad(t: Tensor, what: str) -> Any:
    node = t._node
    if node is None:
        raise AutogradError(
            f"cannot {what} a tensor that doesn't require gradient; call requires_grad_() on it, "
            f"or compute it from "
            f"one that does"
        )
    return node


@method()
def register_hook(t: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Call `hook(grad)` whenever this tensor's gradient is known; its result, if any, replaces it.

    Returns a handle with `remove()`.

    >>> x = flow.ones(2, requires_grad=True)
    >>> _ = x.register_hook(lambda grad: grad * 10)
    >>> x.sum().backward()
    >>> x.grad
    tensor([10., 10.])
    """
    node = _needs_grad(t, "register a hook on")
    if not callable(hook):
        raise ArgumentTypeError(f"a hook is callable, got {type(hook).__name__}")
    if node.is_leaf:
        return RemovableHandle(node.hooks, hook)
    index = node.index
    return RemovableHandle(hooks_of(node_of(node)).tensor.setdefault(index, {}), hook)


@method()
def register_post_accumulate_grad_hook(
    t: Tensor, hook: Callable[[Tensor], None]
) -> RemovableHandle:
    """Call `hook(tensor)` after a backward has added to the `.grad` of this leaf.

    >>> x = flow.ones(2, requires_grad=True)
    >>> _ = x.register_post_accumulate_grad_hook(lambda leaf: print(leaf.grad))
    >>> x.sum().backward()
    tensor([1., 1.])
    """
    node = _needs_grad(t, "register a hook on")
    if not node.is_leaf:
        raise AutogradError(
            "post accumulate grad hooks cannot be registered on non-leaf tensors; use register_hook"
        )
    return RemovableHandle(node.after, hook)


@method()
def retain_grad(t: Tensor) -> None:
    """Keep this tensor's gradient in `.grad`, though it is no leaf.

    >>> x = flow.ones(2, requires_grad=True)
    >>> y = x * 2
    >>> y.retain_grad()
    >>> y.sum().backward()
    >>> y.grad
    tensor([1., 1.])
    """
    node = _needs_grad(t, "retain_grad")
    if not node.is_leaf:
        hooks_of(node_of(node)).retain[node.index] = weakref.ref(t)


def retains_grad(t: Tensor) -> bool:
    """Return True if backward puts this tensor's gradient into `.grad`, though it is no leaf.

    >>> y = flow.ones(2, requires_grad=True) * 2
    >>> y.retain_grad()
    >>> y.retains_grad
    True
    """
    node = t._node
    if node is None or node.is_leaf:
        return False
    hooks: NodeHooks | None = getattr(node_of(node), "extra", None)
    own = hooks.retain.get(node.index) if hooks is not None else None
    return own is not None and own() is t


Tensor.retains_grad = property(retains_grad)  # type: ignore[assignment, method-assign]


def node_of(edge: Any) -> Node:
    """The node that an edge leads to: of a leaf, its accumulator."""
    node: Node = edge.node if edge.__class__ is OutputEdge else edge
    return node


# --- what PyTorch's grad_fn has ---------------------------------------------------------------


def _register_after(node: Node, hook: Callable[..., object]) -> RemovableHandle:
    """Call `hook(grad_inputs, grad_outputs)` after the node; its result replaces `grad_inputs`."""
    return RemovableHandle(hooks_of(node).after, hook)


def _register_before(node: Node, hook: Callable[..., object]) -> RemovableHandle:
    """Call `hook(grad_outputs)` before the node; its result replaces `grad_outputs`."""
    return RemovableHandle(hooks_of(node).before, hook)


def _next_functions(node: Node) -> tuple[tuple[object, int], ...]:
    """For each input, the node that its gradient goes to and which output of it the input is."""
    return tuple(
        (None, 0) if e is None else (e if e.is_leaf else node_of(e), e.index) for e in node.edges
    )


Node.register_hook = _register_after  # type: ignore[attr-defined]
Node.register_prehook = _register_before  # type: ignore[attr-defined]
Node.next_functions = property(_next_functions)  # type: ignore[attr-defined]
AccumulateGrad.next_functions = ()  # type: ignore[attr-defined]
