"""Custom ops: each has a schema, functions by dispatch key, maybe a gradient, and a name.  See
`flowvm.library`, which makes them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from flowvm.autograd import Function, no_grad
from flowvm.eager.autocast import autocast_dtype, autocasting
from flowvm.eager.modes import grad_enabled
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, AutogradError, MissingNameError, ModeError
from flowvm.meta.dtype import float64
from flowvm.schemas import Schema
from flowvm.utils._pytree import tree_flatten, tree_map, tree_unflatten

if TYPE_CHECKING:
    from collections.abc import Mapping


COMPOSITE: Final = ("CompositeImplicitAutograd", "")
KEYS: Final = {"cpu": "CPU", "cuda": "CUDA", "meta": "Meta", "default": COMPOSITE[0]}
_ops: dict[str, CustomOpDef] = {}


class CustomOpDef:
    """An op: called by its schema.

    >>> @flow.library.custom_op("own::twice", mutates_args=())
    ... def twice(x: flow.Tensor) -> flow.Tensor:
    ...     return x * 2
    >>> twice(flow.tensor([1, 2]))
    tensor([2, 4])
    """

    def __init__(self, schema: Schema, outside: bool) -> None:
        self.schema, self.name = schema, schema.name
        self.outside = outside  # it computes outside of the graph
        self.functions: dict[str, Callable[..., object]] = {}  # by dispatch key
        self.backward: Callable[..., object] | None = None
        self._setup: Callable[..., object] | None = None
        self._casts: dict[str, object] = {}
        self._init_fn: Callable[..., object] | None = None  # of a decorator

    @property
    def _schema(self) -> Schema:
        return self.schema

    @property
    def _qualname(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<CustomOpDef({self.name})>"

    def __call__(self, *args: object, **kwargs: object) -> Any:
        values = self.schema.arguments(args, kwargs)
        if self._casts and autocast_dtype() is not None:
            with autocasting(None):
                return self._called(self._cast(values))
        return self._called(values)

    def _called(self, values: dict[str, Any]) -> Any:
        tensors = [t for t in tree_flatten(list(values.values()))[0] if isinstance(t, Tensor)]
        recorded = grad_enabled() and any(t.requires_grad for t in tensors)
        if recorded and (function := self.functions.get("Autograd")) is not None:
            return self._run(function, values)
        if recorded and self._is_outside(tensors):
            return self._recorded(values)
        return self.computed(values, tensors)

    def _is_outside(self, tensors: Sequence[Tensor]) -> bool:
        return self.outside or self.backward is not None

    def computed(self, values: dict[str, object], tensors: Sequence[Tensor]) -> Any:
        key = KEYS.get(next((t.device.type for t in tensors), "cpu"), "CPU")
        function = self.functions.get(key)
        if function is None:
            others = ("CompositeExplicitAutograd", *COMPOSITE)
            ways = (self.functions.get(other) for other in others)
            fake = key == "Meta" and self.outside
            function = None if fake else next(filter(None, ways), None)
        if function is None and key == "Meta":
            raise ModeError(
                f"there was no fake impl registered for {self!r}: give register_fake a function "
                f"that returns outputs without values, of the right shapes and dtypes"
            )
        if function is None:
            raise ModeError(
                f"could not run {self.name!r} with arguments from the {key!r} backend: there are "
                f"functions for {sorted(self.functions) or 'none'}"
            )
        if not self.outside:
            return self._run(function, values)
        with no_grad():
            result = self._run(function, values)
        self.check_apart(result, tensors)
        for p in self.schema.parameters:
            if p.written and values[p.name] is not None:
                for x in tree_flatten(values[p.name])[0]:
                    x.bump()  # writes by NumPy are not counted
        return result

    def _run(self, function: Callable[..., object], values: dict[str, object]) -> object:
        places = [values[p.name] for p in self.schema.parameters if not p.keyword]
        return function(
            *places, **{p.name: values[p.name] for p in self.schema.parameters if p.keyword}
        )

    def check_apart(self, result: object, tensors: Sequence[Tensor]) -> None:
        outs = [t for t in tree_flatten(result)[0] if isinstance(t, Tensor)]
        storages = {id(t.storage()) for t in tensors}
        for out in outs:
            if id(out.storage()) in storages:
                raise ArgumentError(
                    f"{self.name}: the output of a custom op may be neither an input nor share "
                    f"memory with one, or with another output; return a clone()"
                )
            storages.add(id(out.storage()))

    def _recorded(self, arguments: Mapping[str, object]) -> Any:
        """Make the call with a Node of its own."""
        op, leaves = self, tree_flatten(arguments)
        shape = []

        class Made(Function):
            @staticmethod
            def forward(ctx: Any, *flat: object) -> Any:
                values = tree_unflatten(list(flat), leaves[1])
                tensors = [t for t in flat if isinstance(t, Tensor)]
                output = op.computed(values, tensors)
                if op._setup is not None:
                    places = tuple(values[p.name] for p in op.schema.parameters if not p.keyword)
                    named = {p.name: values[p.name] for p in op.schema.parameters if p.keyword}
                    if named:
                        op._setup(ctx=ctx, inputs=places, keyword_only_inputs=named, output=output)
                    else:
                        op._setup(ctx=ctx, inputs=places, output=output)
                outs, spec = tree_flatten(output)
                shape.append(spec)
                ctx.spec = spec
                return tuple(outs) if len(outs) != 1 else outs[0]

            @staticmethod
            def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
                if op.backward is None:
                    raise AutogradError(
                        f"backward through {op.name}, which has no gradient; give it one by "
                        f"register_autograd"
                    )
                nested = tree_unflatten(list(grads), ctx.spec)
                several = isinstance(nested, tuple)
                gradients = op.backward(ctx, *nested) if several else op.backward(ctx, nested)
                gradients = gradients if isinstance(gradients, tuple) else (gradients,)
                places = [p for p in op.schema.parameters if not p.keyword]
                if len(gradients) != len(places):
                    raise AutogradError(
                        f"{op.name}: the gradient function gives one for each of the "
                        f"{len(places)} inputs, got {len(gradients)}"
                    )
                flat = []
                by_name = dict(zip((p.name for p in places), gradients, strict=True))
                for p in op.schema.parameters:
                    count, g = len(tree_flatten(arguments[p.name])[0]), by_name.get(p.name)
                    flat += list(g) if isinstance(g, (list, tuple)) else [g] + [None] * (count - 1)
                return tuple(flat)

        Made.__name__ = f"GeneratedBackwardFor_{self.name.replace('::', '_')}_default"
        result = Made.apply(*leaves[0])
        return tree_unflatten(list(result) if isinstance(result, tuple) else [result], shape[0])

    # --- what belongs to it -----------------------------------------------------------------------

    def register_kernel(
        self, device_types: Any, fn: Callable[..., object] | None = None, /
    ) -> Callable[..., Any]:
        """Register `fn` as the kernel for devices of these types; None: for all."""
        if fn is None:
            return functools.partial(self.register_kernel, device_types)
        kinds = (device_types,) if isinstance(device_types, str) else device_types
        for kind in ("default",) if kinds is None else kinds:
            if kind not in KEYS:
                raise ArgumentError(
                    f"{self.name}: there are no devices of type {kind!r}; one of {sorted(KEYS)}"
                )
            self.functions[KEYS[kind]] = fn
        return fn

    def register_fake(self, fn: Callable[..., Any], /) -> Callable[..., Any]:
        """Register `fn`, which returns tensors of the right shapes and dtypes for tensors without
        values.
        """
        self.functions["Meta"] = fn
        return fn

    def register_autograd(
        self,
        backward: Callable[..., object],
        /,
        *,
        setup_context: Callable[..., object] | None = None,
    ) -> None:
        """Register a gradient.  `backward(ctx, *grads)` returns a gradient for each input.
        `setup_context(ctx, inputs, output)`, or `(ctx, inputs, keyword_only_inputs, output)`,
        stores values for it in ctx.
        """
        if any(p.written for p in self.schema.parameters):
            raise ArgumentError(f"{self.name}: an op that changes its arguments has no gradient")
        self.backward, self._setup = backward, setup_context

    def register_vmap(self, func: Callable[..., object] | None = None, /) -> Callable[[Any], Any]:
        """Accept and ignore: vmap batches the op by its letters, or calls it for each sample."""
        return func if func is not None else lambda function: function

    def register_autocast(self, device_type: str, cast_inputs: object, /) -> None:
        """Convert floating point inputs to `cast_inputs` in a region of autocast."""
        self._casts[device_type] = cast_inputs

    def _cast(self, args: object) -> Any:
        """Return the arguments converted for autocast."""

        def cast(x: Any) -> Any:
            to = self._casts.get(x.device.type) if isinstance(x, Tensor) else None
            if to is None or not x.is_floating_point() or x.dtype is float64:
                return x
            return x.to(to)

        return tree_map(cast, args)


def defined(schema: Schema, outside: bool) -> CustomOpDef:
    space, _, name = schema.name.partition("::")
    if not space or not name:
        raise ArgumentError(f"an op is called 'space::name', got {schema.name!r}")
    if schema.name in _ops and not outside:
        raise ArgumentError(f"there is an op {schema.name!r} already")
    op = _ops[schema.name] = CustomOpDef(schema, outside)
    return op


def known(op: object) -> CustomOpDef:
    """Return the op of this name, or behind `torch.ops.space.name`; MissingNameError if there is
    none.
    """
    if isinstance(op, CustomOpDef):
        return op
    name = op if isinstance(op, str) else getattr(op, "name", "")
    known_op = _ops.get(str(name).replace(".", "::") if "::" not in str(name) else name)
    if known_op is None:
        raise MissingNameError(f"there is no op {op!r}: make it with custom_op, or define", str(op))
    return known_op


def find(name: str) -> CustomOpDef | None:
    """Return the op of this name, None if there is none."""
    return _ops.get(name)


def forget(op: CustomOpDef) -> None:
    """Remove an op."""
    _ops.pop(op.name, None)
