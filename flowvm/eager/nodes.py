"""Nodes: recorded calls, which lead gradients back.  `flowvm.autograd` goes over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from flowvm.eager.modes import grad_enabled
from flowvm.eager.tensor import Tensor, alias
from flowvm.errors import ArgumentTypeError, AutogradError
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.vm.callers.hot import hot
from flowvm.vm.callers.lines import NO_ORIGIN


class Node:
    """A recorded call: where the gradients of its outputs go.

    edges    for each input, the Node or leaf accumulator that its gradient goes to, or None
    saved    what the gradient needs, with the versions the tensors had
    metas    the inputs' metas; attrs: the call's attributes and scalars
    seq      the instruction that the call issued, by which its line and module are found; NO_ORIGIN
             if it issued none
    """

    __slots__ = (
        "_saved", "attrs", "edges", "extra", "metas", "operator", "out_metas", "seq", "versions",
    )  # fmt: skip
    is_leaf = False
    index = 0

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError("a grad_fn can be neither copied nor pickled; detach the tensor")

    extra: object  # hooks and the like; unset where there are none

    def __init__(
        self,
        operator: Any,
        edges: tuple[Any, ...],
        saved: tuple[Tensor, ...],
        versions: tuple[int, ...],
        metas: tuple[TensorMeta, ...],
        attrs: Attrs,
        out_metas: tuple[TensorMeta, ...],
        seq: int = NO_ORIGIN,
    ) -> None:
        self.operator = operator
        self.edges = edges
        self._saved: Any = saved  # a tuple; None when released; or what `recall`s it: a checkpoint
        self.versions = versions
        self.metas = metas
        self.attrs = attrs
        self.out_metas = out_metas
        self.seq = seq

    @property
    def needs(self) -> tuple[bool, ...]:
        """For each input, True if it needs a gradient."""
        return tuple([edge is not None for edge in self.edges])  # each gradient asks

    def name(self) -> str:
        """The operator's name with "Backward", as PyTorch prints it."""
        return "".join(p.capitalize() for p in self.operator.name.split("_")) + "Backward"

    @property
    def saved(self) -> tuple[Tensor, ...]:
        """The saved tensors; AutogradError when they were released.

        One that was changed in place since is a `Changed`: an error for a gradient that reads it,
        and none where only the gradient of an input without one would.
        """
        saved: tuple[Tensor, ...] = self._saved
        if saved.__class__ is not tuple:
            saved = self._recalled()
        for tensor, version in zip(saved, self.versions, strict=True):
            if tensor._storage is not None and tensor._storage.version != version:
                saved = self._with_changed(saved)
                break
        return self._recorded_outputs(saved) if saved and grad_enabled() else saved

    def _with_changed(self, saved: tuple[Tensor, ...]) -> tuple[Any, ...]:
        return tuple(
            tensor
            if tensor._storage is None or tensor._storage.version == version
            else Changed(
                f"{self.operator.name} saved a tensor of shape {tuple(tensor.shape)} for its "
                f"gradient, and it was changed in place since (version {tensor.version}, saved "
                f"at {version}).  Work on a clone()"
            )
            for tensor, version in zip(saved, self.versions, strict=True)
        )

    def refuse_changed(self) -> None:
        """AutogradError if a saved tensor was changed in place since."""
        if self._saved.__class__ is tuple:
            for value in self._with_changed(self._saved):
                if value.__class__ is Changed:
                    value.refuse()

    def _recalled(self) -> tuple[Tensor, ...]:
        if self._saved is None:
            raise AutogradError(
                f"backward through {self.operator.name} a second time: what it saved was freed by "
                f"the first.  Give the first backward retain_graph=True"
            )
        recalled: tuple[Tensor, ...] = self._saved.recall(self)
        return recalled

    def release(self) -> None:
        """Drop what was saved: after a backward that need not be repeated."""
        self._saved = None

    def _recorded_outputs(self, saved: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """`saved` with the outputs among them in the graph again, for gradients of gradients.

        A node saves its outputs without their place in the graph: holding it would be a reference
        cycle.
        """
        outputs = getattr(self.operator, "differentiable", ())
        again = list(saved)
        for i, name in enumerate(self.operator.saves if outputs else ()):
            if name in outputs:
                again[i] = alias(saved[i], saved[i]._meta)
                place = outputs.index(name)
                again[i]._node = self if len(outputs) == 1 else OutputEdge(self, place)
        return tuple(again)

    def __repr__(self) -> str:
        return f"<{self.name()}>"


class Changed:
    """Stands for a saved tensor that was changed in place: AutogradError wherever it is read."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def refuse(self, *_: object) -> NoReturn:
        """Raise the error that this stands for."""
        raise AutogradError(self.text)

    # what Python looks up in the class, and not by `__getattr__`
    __getattr__ = __getitem__ = __len__ = __iter__ = __bool__ = __neg__ = __abs__ = refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = refuse
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = refuse
    __hash__ = None  # type: ignore[assignment]


class OutputEdge:
    """Output `index` of a Node that has several."""

    __slots__ = ("index", "node")
    is_leaf = False

    def __init__(self, node: Node, index: int) -> None:
        self.node = node
        self.index = index

    def name(self) -> str:
        """The node's name."""
        return self.node.name()

    def __repr__(self) -> str:
        return repr(self.node)


# Who is to be told of every node as it is made (`flowvm.autograd.node_listeners`): while there is
# somebody, nodes are made by Node's `__init__` alone.
askers: dict[object, Callable[..., None]] = {}

hot.update({"Node": Node, "OutputEdge": OutputEdge, "askers": askers})
