"""Custom operations with a gradient of their own: subclass `Function`, give it `forward` and
`backward`, call `apply`.

`ctx` *is* the node that the outputs get, as in PyTorch: what forward keeps on it is there in
backward, and a program can see it as `output.grad_fn`.  Gradients are ordinary operations, so under
`create_graph` they are recorded and can be differentiated again.

Invariant: a node holds no tensor that holds the node.  Outputs that forward saved are kept without
their place in the graph and get it back when they are read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from flowvm.autograd.modes import no_grad
from flowvm.eager.batched import maps
from flowvm.eager.modes import grad_enabled
from flowvm.eager.nodes import Node, OutputEdge
from flowvm.eager.tensor import Tensor, alias
from flowvm.errors import ArgumentTypeError, AutogradError
from flowvm.loading.lazy import lazy
from flowvm.meta.batched_meta import axes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowvm.ops.batched import levels as levels_of
else:
    levels_of = lazy("flowvm.ops.batched.levels")

# public: autograd


class FunctionCtx(Node):
    """The `ctx` of a Function: a node that carries values from forward to backward.

    Any attribute may be set on it; tensors that backward needs belong into `save_for_backward`,
    which notices in-place changes to them and frees them in time.

    >>> class Scale(flow.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x, factor):
    ...         ctx.factor = factor
    ...         return x * factor
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         return g * ctx.factor, None
    >>> x = flow.ones(2, requires_grad=True)
    >>> Scale.apply(x, 3.0).sum().backward()
    >>> x.grad
    tensor([3., 3.])
    """

    needs_input_grad: tuple[bool, ...]
    extra: object

    def __init__(self, operator: object, args: tuple[object, ...]) -> None:
        recording = grad_enabled()
        edges = tuple(a._node if recording and isinstance(a, Tensor) else None for a in args)
        metas = tuple(a._meta if isinstance(a, Tensor) else None for a in args)
        super().__init__(operator, edges, (), (), metas, (), ())  # type: ignore[arg-type]
        self.needs_input_grad = tuple(e is not None for e in edges)
        self._materialize = True
        self._saving: tuple[Tensor | None, ...] = ()
        self._dirty: tuple[Tensor, ...] = ()
        self._constant: tuple[Tensor, ...] = ()
        self._places: dict[
            int, int
        ] = {}  # saved tensors that are outputs: where each is among them
        self._shape: list[int | None] = []  # of what was saved: the place of each tensor, or None

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors (arguments, outputs, or others) for `saved_tensors` in backward."""
        for t in tensors:
            if t is not None and not isinstance(t, Tensor):
                raise ArgumentTypeError(
                    f"save_for_backward can only save Tensors, got {type(t).__name__}; set other "
                    f"things as attributes "
                    f"of ctx"
                )
        self._saving = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for `saved_for_forward`, for a tangent's rule; `func.jvp` asks backward."""
        for t in tensors:
            if t is not None and not isinstance(t, Tensor):
                raise ArgumentTypeError(
                    f"save_for_forward can only save Tensors, got {type(t).__name__}"
                )
        self.saved_for_forward = tensors

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors given to `save_for_backward`; AutogradError if they were freed or changed."""
        if self._saving:  # forward has not returned yet
            return self._saving
        saved = self.saved
        self.refuse_changed()
        return tuple(None if i is None else saved[i] for i in self._shape)

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Say which arguments forward changed in place; each must be one of its outputs."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Say which outputs have no gradient."""
        self._constant = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """False: backward gets None, not zeros, for an output without a gradient."""
        self._materialize = value

    # --- when forward has returned ------------------------------------------------------------

    def _recorded_outputs(self, saved: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        again = list(saved)
        for i, place in self._places.items():
            again[i] = alias(saved[i], saved[i]._meta)
            again[i]._node = self._edge(place)
        return tuple(again)

    def _edge(self, place: int) -> FunctionCtx | OutputEdge:
        return self if len(self.out_metas) == 1 else OutputEdge(self, place)

    def _attach(self, outputs: list[object]) -> list[object]:
        """The outputs, each with its place in the graph."""
        results = list(outputs)
        self.out_metas = tuple(o._meta if isinstance(o, Tensor) else None for o in outputs)  # type: ignore[misc]
        dirty = {id(t) for t in self._dirty}
        constant = {id(t) for t in self._constant}
        missing = dirty - {id(o) for o in outputs}
        if missing:
            raise AutogradError(
                f"{self.name()}: every tensor given to mark_dirty must be returned by forward as "
                f"well"
            )
        recording = any(self.needs_input_grad)
        for place, out in enumerate(outputs):
            if not isinstance(out, Tensor):
                continue
            if id(out) in dirty:
                if recording and out._node is not None and out._node.is_leaf:
                    raise AutogradError(
                        f"{self.name()}: a leaf tensor that requires grad cannot be changed in "
                        f"place; give apply() a "
                        f"clone()"
                    )
                out.bump()
            elif out._node is not None or id(out) in self._arguments:
                outputs[place] = out = alias(out, out._meta)  # an argument, passed through
            differentiable = out._meta.dtype.inexact and id(results[place]) not in constant
            out._node = self._edge(place) if recording and differentiable else None
        self._keep(results, outputs, recording)
        return outputs

    def _keep(self, results: Sequence[object], outputs: list[Any], recording: bool) -> None:
        saving, self._saving = self._saving, ()
        if not recording:
            return
        places = {id(o): i for i, o in enumerate(results) if isinstance(o, Tensor)}
        saved: list[Tensor] = []
        for t in saving:
            self._shape.append(None if t is None else len(saved))
            if t is None:
                continue
            place = places.get(id(t))
            if place is not None and outputs[place]._node is not None:
                self._places[len(saved)] = place
                t = alias(t, t._meta)
            saved.append(t)
        self._saved = tuple(saved)
        self.versions = tuple(t.version for t in saved)

    _arguments: frozenset[int] = frozenset()


class _Operator:
    """The operator that the engine calls for the nodes of one Function class."""

    outputs = saves = ()

    def __init__(self, function: type[Function]) -> None:
        self.function = function
        self.name = function.__name__

    def grad(self, ctx: FunctionCtx, *gradients: Tensor | None) -> tuple[object, ...]:
        results = self.function.backward(ctx, *gradients)
        if not isinstance(results, tuple):
            results = tuple(results) if isinstance(results, list) else (results,)
        expected = len(ctx.edges)
        if len(results) < expected or any(r is not None for r in results[expected:]):
            raise AutogradError(
                f"function {self.name}Backward returned an incorrect number of gradients "
                f"(expected {expected}, got "
                f"{len(results)}): one for each argument of forward, None where there is none"
            )
        return results[:expected]


class Function:
    """The base of custom operations.

    forward(ctx, *args) and backward(ctx, *grads) are static methods.  Or, for the other style,
    forward(*args) and setup_context(ctx, inputs, output).  backward returns one gradient, or None,
    for each argument of forward.

    >>> class Exp(flow.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         y = x.exp()
    ...         ctx.save_for_backward(y)
    ...         return y
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         (y,) = ctx.saved_tensors
    ...         return g * y
    >>> x = flow.zeros(2, requires_grad=True)
    >>> Exp.apply(x).sum().backward()
    >>> x.grad
    tensor([1., 1.])
    """

    _operator: ClassVar[_Operator]

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls._operator = _Operator(cls)

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the outputs, a tensor or a tuple; not recorded."""
        raise NotImplementedError("a Function defines the static method forward")

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[object, ...], output: object) -> None:
        """Keep on `ctx` the values that backward needs, if forward does not take it."""
        raise NotImplementedError

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Compute the gradients of the arguments from the gradients of the outputs."""
        raise NotImplementedError("a Function defines the static method backward")

    generate_vmap_rule: ClassVar[bool] = False

    @staticmethod
    def vmap(info: object, in_dims: tuple[object, ...], *args: object) -> Any:
        """Compute all examples of a map: (the outputs, where the examples are in them).

        `info` has batch_size and randomness; in_dims says where the examples are in each argument,
        None where it has none.  A class without this is mapped as its forward's and backward's ops.
        """
        raise NotImplementedError

    @classmethod
    def apply(cls, *args: object) -> Any:
        """Call the operation; inside a map by the class's own `vmap`, if it has one."""
        if cls is Function:
            raise AutogradError("subclass Function, and call apply on the subclass")
        if maps.now() and cls.vmap is not Function.vmap:
            return _mapped(cls, args)
        ctx = FunctionCtx(cls._operator, args)
        with no_grad():
            if cls.setup_context is Function.setup_context:
                result = cls.forward(ctx, *args)
            else:
                result = cls.forward(*args)
                cls.setup_context(ctx, args, result)
        several = isinstance(result, (tuple, list))
        ctx._arguments = frozenset(id(a) for a in args if isinstance(a, Tensor))
        outputs = ctx._attach(list(result) if several else [result])
        ctx._arguments = frozenset()
        if not several:
            return outputs[0]
        if hasattr(result, "_fields"):
            return type(result)(*outputs)
        return tuple(outputs)


# not public
class VmapInfo(NamedTuple):
    """The map that a Function's `vmap` computes.

    >>> flow.autograd.function.VmapInfo(3, "error").batch_size
    3
    """

    batch_size: int
    randomness: str


def _mapped(cls: type[Function], args: tuple[Any, ...]) -> Any:
    """Return the outputs for all examples of the innermost map that an argument has."""
    levels = {a.level for x in args if isinstance(x, Tensor) for a in axes_of(x._meta)}
    around = maps.now()
    if cls.generate_vmap_rule:
        raise AutogradError(
            f"{cls.__name__}: a Function has its own vmap or generate_vmap_rule=True, not both"
        )
    position = max((i for i, m in enumerate(around) if m.level.number in levels), default=None)
    if position is None:
        with maps.within(()):
            return cls.apply(*args)
    inner = around[position]
    level = inner.level
    in_dims = tuple(levels_of.place_of(x, level) if isinstance(x, Tensor) else None for x in args)
    whole = [
        x if d is None else levels_of.level_as_dim(x, level, d)
        for x, d in zip(args, in_dims, strict=True)
    ]
    with maps.within(around[:position]):
        result = cls.vmap(VmapInfo(level.size, inner.randomness), in_dims, *whole)
    if not isinstance(result, tuple) or len(result) != 2:
        count = len(result) if isinstance(result, tuple) else 1
        raise AutogradError(
            f"{cls.__name__}.vmap: expected the rule to have two returns, (output, out_dims), got "
            f"{count}"
        )
    outputs, dims = result
    several = isinstance(outputs, (tuple, list))
    listed = list(outputs) if several else [outputs]
    one = dims is None or isinstance(dims, int)
    places = [dims] * len(listed) if one else list(dims)
    if not one and (type(dims) is not type(outputs) or len(dims) != len(listed)):
        raise AutogradError(
            f"{cls.__name__}.vmap returned an incompatible (output, out_dims): out_dims {dims!r} "
            f"for {len(listed)} output(s); one for each"
        )
    shown = [
        x if d is None or not isinstance(x, Tensor) else levels_of.entered(x, level, d)
        for x, d in zip(listed, places, strict=True)
    ]
    return tuple(shown) if several else shown[0]


class _Refuse(Function):
    """Passes tensors through; its gradient is an error."""

    @staticmethod
    def forward(ctx: object, *tensors: Tensor) -> Any:
        return tensors

    @staticmethod
    def backward(ctx: object, *gradients: object) -> object:
        raise AutogradError(
            "trying to differentiate twice a function that was marked with @once_differentiable"
        )


def once_differentiable(backward: Callable[..., object]) -> Callable[..., Any]:
    """Mark a Function's backward as one that cannot be differentiated: it runs unrecorded, and a
    second derivative raises.

    >>> class Double(flow.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return x * 2
    ...     @staticmethod
    ...     @flow.autograd.once_differentiable
    ...     def backward(ctx, g):
    ...         return g * 2
    >>> x = flow.ones(2, requires_grad=True)
    >>> Double.apply(x).sum().backward()
    >>> x.grad
    tensor([2., 2.])
    """

    @functools.wraps(backward)
    def once(ctx: object, *gradients: object) -> object:
        with no_grad():
            results = backward(ctx, *gradients)
        recorded = [g for g in gradients if isinstance(g, Tensor) and g._node is not None]
        if not grad_enabled() or not recorded:
            return results
        listed = list(results) if isinstance(results, (tuple, list)) else [results]
        tensors = [r for r in listed if isinstance(r, Tensor)]
        refused = iter(_Refuse.apply(*tensors, *recorded))
        return tuple(next(refused) if isinstance(r, Tensor) else r for r in listed)

    return once
