"""Tests of a custom op against its schema, for `flow.library.opcheck`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from flowvm.custom_ops import CustomOpDef
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, AutogradError
from flowvm.testing import assert_close
from flowvm.utils._pytree import tree_flatten, tree_map


def _mapped(function: Callable[[Tensor], object], values: object) -> Any:
    return tree_map(lambda v: function(v) if isinstance(v, Tensor) else v, values)


def _check_schema(
    op: CustomOpDef, args: Sequence[object], kwargs: Any, atol: object, rtol: object
) -> None:
    args, kwargs = _mapped(lambda t: t.detach().clone(), (args, kwargs))
    values = op.schema.arguments(args, kwargs)
    before = _mapped(lambda t: t.clone(), values)
    result = op(*args, **kwargs)
    for p in op.schema.parameters:
        changed = False
        try:
            assert_close(values[p.name], before[p.name], atol=0, rtol=0, equal_nan=True)
        except AssertionError:
            changed = True
        except (TypeError, ValueError):
            continue  # no tensor is in it
        if changed and not p.written:
            raise ArgumentError(
                f"{op.name} changes its argument {p.name}, and its schema does not say so"
            )
    tensors = [t for t in tree_flatten(list(values.values()))[0] if isinstance(t, Tensor)]
    op.check_apart(result, tensors)


def _check_autograd(
    op: CustomOpDef, args: object, kwargs: object, atol: float | None, rtol: float | None
) -> None:
    leaves = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)]
    if any(t.requires_grad for t in leaves) and op.outside and op.backward is None:
        raise AutogradError(f"{op.name} has no gradient, and an argument requires grad")


def _check_fake(
    op: CustomOpDef, args: Any, kwargs: Any, atol: float | None, rtol: float | None
) -> None:
    copies = _mapped(lambda t: t.detach().clone(), (args, kwargs))
    real = op(*copies[0], **copies[1])
    args, kwargs = _mapped(lambda t: t.detach().to("meta"), (args, kwargs))
    fake = op(*args, **kwargs)
    for r, f in zip(tree_flatten(real)[0], tree_flatten(fake)[0], strict=True):
        if isinstance(r, Tensor) and (r.shape != f.shape or r.dtype != f.dtype):
            raise ArgumentError(
                f"{op.name}: its fake gives {f.dtype} {tuple(f.shape)} where it gives {r.dtype} "
                f"{tuple(r.shape)}"
            )


def _check_gradient(
    op: CustomOpDef, args: object, kwargs: object, atol: float | None, rtol: float | None
) -> None:
    """Check that gradients computed twice are equal, and have their inputs' shapes."""
    runs = []
    for _ in range(2):
        copied = _mapped(
            lambda t: t.detach().clone().requires_grad_(t.requires_grad), (args, kwargs)
        )
        leaves = [t for t in tree_flatten(copied)[0] if isinstance(t, Tensor) and t.requires_grad]
        out = op(*copied[0], **copied[1])
        outs = [t for t in tree_flatten(out)[0] if isinstance(t, Tensor) and t.requires_grad]
        if outs:
            sum((t.sum() for t in outs[1:]), outs[0].sum()).backward()
        runs.append([t.grad for t in leaves])
    assert_close(runs[0], runs[1], atol=atol, rtol=rtol)


CHECKS: Final = {
    "test_schema": _check_schema,
    "test_autograd_registration": _check_autograd,
    "test_faketensor": _check_fake,
    "test_aot_dispatch_static": _check_gradient,
    "test_aot_dispatch_dynamic": _check_gradient,
}
