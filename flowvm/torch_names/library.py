"""`flow.library`: custom ops under PyTorch's names: a schema, a function for each device or for
all, a function for tensors without values, a gradient.

An op here is a Python function that others find by its name, as `torch.ops.space.name` too
(`flowvm.compat`).  What `custom_op` makes computes outside of the graph, as there: gradients are
what `register_autograd` says.  What `Library.impl` gives for CompositeImplicitAutograd, or for one
device, is differentiated through, as far as it is made of ops.  A kernel of one's own is declared
with `flow.ops.op` (CONTRIBUTING.md).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flowvm.custom_ops import COMPOSITE, KEYS, CustomOpDef, defined, forget, known
from flowvm.errors import ArgumentError, ArgumentTypeError, ModeError
from flowvm.loading.listing import listing
from flowvm.op_checks import CHECKS
from flowvm.schemas import infer_schema, parsed

__all__ = [
    "CustomOpDef",
    "Library",
    "custom_op",
    "define",
    "fallthrough_kernel",
    "impl",
    "impl_abstract",
    "infer_schema",
    "opcheck",
    "register_autocast",
    "register_autograd",
    "register_fake",
    "register_kernel",
    "register_vmap",
]
__dir__ = listing(globals())


class Library:
    """Ops of a name space. "DEF" and "FRAGMENT" define ops, "IMPL" adds functions to ops defined
    elsewhere.

    >>> lib = flow.library.Library("mine", "DEF")
    >>> lib.define("plus(Tensor x, float y=1.0) -> Tensor")
    'plus'
    >>> lib.impl("plus", lambda x, y=1.0: x + y, "CompositeImplicitAutograd")
    >>> flow.library.opcheck("mine::plus", (flow.ones(2),))["test_schema"]
    'SUCCESS'
    """

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        if kind not in ("DEF", "IMPL", "FRAGMENT"):
            raise ArgumentError(f"a library is of kind DEF, IMPL or FRAGMENT, got {kind!r}")
        if kind != "IMPL" and ns in ("aten", "prims", "prim"):
            raise ArgumentError(f"{ns!r} is a reserved name space; take another")
        self.ns, self.kind, self.dispatch_key = ns, kind, dispatch_key
        self._ops: list[tuple[CustomOpDef, str]] = []

    def __repr__(self) -> str:
        return f"Library(kind={self.kind}, ns={self.ns}, dispatch_key={self.dispatch_key})>"

    def define(self, schema: str, alias_analysis: str = "", *, tags: object = ()) -> str:
        """Define an op.  Return its name.  ArgumentError for an op that exists, or a text that is
        no schema.
        """
        if self.kind == "IMPL":
            raise ArgumentError("a library of kind IMPL defines no ops; FRAGMENT does")
        parsed_schema = parsed(schema)
        name = parsed_schema.name.removeprefix(f"{self.ns}::")
        op = defined(parsed_schema._replace(name=f"{self.ns}::{name}"), outside=False)
        self._ops.append((op, ""))
        return name

    def impl(
        self,
        op_name: Any,
        fn: Callable[..., object],
        dispatch_key: str = "",
        *,
        with_keyset: bool = False,
        allow_override: bool = False,
    ) -> None:
        """Give an op its function for a dispatch key: CPU, CUDA, Meta, Autograd,
        CompositeExplicitAutograd, or CompositeImplicitAutograd, which is the default.
        """
        if not callable(fn):
            raise ArgumentTypeError(f"impl: a function is needed, got {type(fn).__name__}")
        name = op_name.name if hasattr(op_name, "name") else op_name
        op = known(name if "::" in name else f"{self.ns}::{name}")
        key = dispatch_key or self.dispatch_key or COMPOSITE[0]
        key = "Autograd" if key.startswith("Autograd") else key
        if key in op.functions and not allow_override:
            raise ArgumentError(f"{op.name} has a function for {key} already")
        op.functions[key] = fn
        self._ops.append((op, key))

    def _destroy(self) -> None:
        """Remove the ops and functions that this library has added."""
        for op, key in self._ops:
            if key:
                op.functions.pop(key, None)
            else:
                forget(op)
        self._ops.clear()


_own_library = Library("", "FRAGMENT")  # the ops that functions here define


def define(qualname: str, schema: str, *, lib: Library | None = None, tags: object = ()) -> Any:
    """Define the op "space::name" with the schema "(Tensor x) -> Tensor".

    >>> flow.library.define("own::ninefold", "(Tensor x) -> Tensor")
    >>> @flow.library.impl("own::ninefold", "cpu")
    ... def ninefold(x):
    ...     return x * 9
    >>> flow.library.opcheck("own::ninefold", (flow.ones(2),), test_utils="test_schema")
    {'test_schema': 'SUCCESS'}
    """
    (lib or _own_library)._ops.append((defined(parsed(qualname + schema), outside=False), ""))


def impl(
    qualname: object,
    types: Any,
    func: Callable[..., object] | None = None,
    *,
    lib: Library | None = None,
) -> Any:
    """Give an op its function for device types, "default" for all; a decorator without `func`.

    >>> flow.library.define("own::negated", "(Tensor x) -> Tensor")
    >>> flow.library.impl("own::negated", "default", lambda x: -x)
    """
    if isinstance(qualname, Library):  # as lib, name, dispatch key
        return lambda function: qualname.impl(types, function, func or "") or function  # type: ignore[arg-type,func-returns-value]
    if func is None:
        return lambda function: impl(qualname, types, function, lib=lib) or function
    op = known(qualname)
    for kind in (types,) if isinstance(types, str) else types:
        if kind not in KEYS:
            raise ArgumentError(f"{op.name}: no device type {kind!r}; one of {sorted(KEYS)}")
        op.functions[KEYS[kind]] = func
        (lib or _own_library)._ops.append((op, KEYS[kind]))
    return None


def fallthrough_kernel(*args: object) -> Any:
    """Raise ModeError: a key without a function is passed over here.

    >>> flow.library.fallthrough_kernel.__name__
    'fallthrough_kernel'
    """
    raise ModeError("fallthrough_kernel is not called; leave the key without a function")


def custom_op(
    name: str,
    fn: Callable[..., object] | None = None,
    /,
    *,
    mutates_args: object,
    device_types: object = None,
    schema: str | None = None,
    tags: object = None,
) -> Any:
    """Make `fn` the op "space::name", or return a decorator.  `mutates_args` names the tensors that
    it changes, `device_types` the devices where it runs.  The annotations give its schema.

    >>> @flow.library.custom_op("own::thrice", mutates_args=())
    ... def thrice(x: flow.Tensor) -> flow.Tensor:
    ...     return x * 3
    >>> thrice(flow.tensor([1, 2]))
    tensor([3, 6])
    """
    if fn is None:
        return lambda function: custom_op(
            name, function, mutates_args=mutates_args, device_types=device_types, schema=schema
        )
    text = schema or infer_schema(fn, mutates_args=mutates_args)
    op = defined(parsed(name + text), outside=True)
    op.register_kernel(device_types, fn)
    op._init_fn = fn
    functools.update_wrapper(op, fn)
    return op


def register_kernel(
    op: object,
    device_types: object,
    func: Callable[..., object] | None = None,
    /,
    *,
    lib: object = None,
) -> Callable[..., Any]:
    """Register a kernel as CustomOpDef.register_kernel does.

    >>> flow.library.define("own::half", "(Tensor x) -> Tensor")
    >>> _ = flow.library.register_kernel("own::half", "cpu", lambda x: x / 2)
    """
    return known(op).register_kernel(device_types, func)


def register_fake(
    op: object, func: Any = None, /, *, lib: object = None, **kwargs: object
) -> Callable[..., Any]:
    """Register `func`, which returns the op's results for tensors without values.

    >>> @flow.library.custom_op("own::same", mutates_args=())
    ... def same(x: flow.Tensor) -> flow.Tensor:
    ...     return x.clone()
    >>> _ = flow.library.register_fake("own::same", lambda x: flow.empty_like(x))
    >>> same(flow.ones(2, device="meta")).shape
    flow.Size([2])
    """
    return known(op).register_fake if func is None else known(op).register_fake(func)


impl_abstract = register_fake


def register_autograd(
    op: object,
    backward: Callable[..., object],
    /,
    *,
    setup_context: Callable[..., object] | None = None,
    lib: object = None,
) -> None:
    """Register a gradient as CustomOpDef.register_autograd does.

    >>> @flow.library.custom_op("own::tenfold", mutates_args=())
    ... def tenfold(x: flow.Tensor) -> flow.Tensor:
    ...     return x * 10
    >>> flow.library.register_autograd("own::tenfold", lambda ctx, g: g * 10)
    >>> x = flow.ones(2, requires_grad=True)
    >>> tenfold(x).sum().backward()
    >>> x.grad
    tensor([10., 10.])
    """
    known(op).register_autograd(backward, setup_context=setup_context)


def register_vmap(
    op: object, func: Callable[..., object] | None = None, /, *, lib: object = None
) -> Callable[[Any], Any]:
    """Accept and ignore: vmap batches an op by its letters, or calls it for each sample.

    >>> flow.library.define("own::kept", "(Tensor x) -> Tensor")
    >>> _ = flow.library.register_vmap("own::kept", lambda info, dims, x: (x, 0))
    """
    return known(op).register_vmap(func)


def register_autocast(
    op: object, device_type: str, cast_inputs: object, /, *, lib: object = None
) -> None:
    """Register a dtype as CustomOpDef.register_autocast does.

    >>> @flow.library.custom_op("own::copied", mutates_args=())
    ... def copied(x: flow.Tensor) -> flow.Tensor:
    ...     return x.clone()
    >>> flow.library.register_autocast("own::copied", "cpu", flow.bfloat16)
    >>> with flow.autocast("cpu"):
    ...     copied(flow.ones(2)).dtype
    flow.bfloat16
    """
    known(op).register_autocast(device_type, cast_inputs)


# --- checking -------------------------------------------------------------------------------------


def opcheck(
    op: object,
    args: tuple[object, ...],
    kwargs: dict[str, object] | None = None,
    *,
    test_utils: Any = (
        "test_schema",
        "test_autograd_registration",
        "test_faketensor",
        "test_aot_dispatch_dynamic",
    ),
    raise_exception: bool = True,
    atol: float | None = None,
    rtol: float | None = None,
) -> dict[str, Any]:
    """Test an op against its schema, for these arguments.  It must change exactly the arguments
    that its schema names.  It has a gradient if an argument wants one.  Its fake returns equal
    metadata.

    The result of each test, "SUCCESS" or the error; the first error, if `raise_exception`.

    >>> @flow.library.custom_op("own::spoilt", mutates_args=())
    ... def spoilt(x: flow.Tensor) -> flow.Tensor:
    ...     return x.mul_(2).clone()
    >>> flow.library.opcheck(spoilt, (flow.ones(2),), test_utils="test_schema")
    Traceback (most recent call last):
        ...
    flowvm.errors.ArgumentError: own::spoilt changes its argument x, and its schema does not say so
    """
    known_op = known(op)
    results: dict[str, object] = {}
    for name in (test_utils,) if isinstance(test_utils, str) else test_utils:
        if name not in CHECKS:
            raise ArgumentError(f"opcheck: no test {name!r}; there are {', '.join(CHECKS)}")
        try:
            CHECKS[name](known_op, args, kwargs or {}, atol, rtol)
            results[name] = "SUCCESS"
        except Exception as error:
            if raise_exception:
                raise
            results[name] = error
    return results
