"""Leaves: the tensors that backward leaves gradients in.

`Tensor._node` of a leaf that requires grad is its `AccumulateGrad`.  The graph holds the
accumulator and the accumulator holds its tensor weakly: a graph keeps no parameter alive, and a
gradient for a tensor that is gone goes nowhere.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from flowvm.eager.modes import note_change
from flowvm.eager.tensor import Fields, Tensor, base_of, method, refused
from flowvm.errors import AutogradError, DTypeError
from flowvm.guards.exchange import exchange
from flowvm.vm.callers.hot import hot


# public: autograd
class AccumulateGrad:
    """The node that collects the gradients of a leaf; PyTorch's name for it.

    hooks   of the tensor: each sees the sum of one backward and may replace it
    after   called with the tensor when its `.grad` has changed

    >>> x = flow.ones(2, requires_grad=True)
    >>> (x * 2).grad_fn.next_functions[0][0]
    <AccumulateGrad>
    """

    __slots__ = ("after", "hooks", "tensor")
    is_leaf = True
    index = 0
    edges: tuple[object, ...] = ()

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = weakref.ref(tensor)
        self.hooks: dict[int, Callable[..., object]] = {}
        self.after: dict[int, Callable[..., object]] = {}

    @property
    def variable(self) -> Tensor | None:
        """The leaf, None when it is gone."""
        return self.tensor()

    def name(self) -> str:
        """Return the name that PyTorch prints."""
        return "AccumulateGrad"

    def __repr__(self) -> str:
        return "<AccumulateGrad>"


hot["AccumulateGrad"] = AccumulateGrad
_node_of = vars(Fields)["_node"].__get__
_set_node = vars(Fields)["_node"].__set__


@method()
def requires_grad_(t: Tensor, requires_grad: bool = True) -> Tensor:
    """Have gradients of this leaf computed, or no longer; the tensor itself.

    DTypeError unless the dtype is a floating point or complex one; AutogradError for False on a
    tensor that an operation made.

    >>> flow.ones(2).requires_grad_()
    tensor([1., 1.], requires_grad=True)
    """
    try:
        node = t._node
        if not requires_grad:
            if node is None:
                return t
            if not node.is_leaf:
                raise AutogradError(
                    "you can only change requires_grad flags of leaf variables; use detach() for a "
                    "tensor that is outside "
                    "the graph"
                )
            t.extra()["accumulator"] = node  # with its hooks, should gradients be wanted again
            t._node = None
        elif node is None:
            if not t._meta.dtype.inexact:
                raise DTypeError(
                    "only Tensors of floating point and complex dtype can require gradients, this "
                    f"one is {t._meta.dtype.name}; convert it with .float()"
                )
            try:
                own = t._extra.get("accumulator") or AccumulateGrad(t)
            except AttributeError:
                own = AccumulateGrad(t)
            exchange(map(_node_of, (t,)), (None,), ((_set_node, (t, own)),))
        note_change()
        return t
    except AttributeError as error:
        raise refused("requires_grad_", t, error) from None


@method()
def detach_(t: Tensor) -> Tensor:
    """Take this tensor out of the graph that made it: it becomes a leaf that requires no grad.

    >>> x = flow.ones(2, requires_grad=True) * 2
    >>> x.detach_().requires_grad
    False
    """
    if base_of(t) is not t:
        raise AutogradError("can't detach views in-place; use detach() instead")
    t._node = None
    note_change()
    return t
