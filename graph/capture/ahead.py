"""Kernels of gradients, made by a helper while this process makes the kernels of the calls.

Where a call compiles something and backward will come through it, a helper is told of the call: its
operator, metas and attributes.  There it is captured, on tensors without values,
and so is its backward, which compiles what both need and runs nothing.  When backward comes here,
its kernels are in the cache, or in the making (`flowvm.compiler.cache.alone`).

That is a guess and nothing hangs on it: which kernels there are, and what they compute, is decided
where they are asked for.
"""

from __future__ import annotations

import base64
import pickle
from functools import partial

from flowvm.autograd.backward import grad
from flowvm.compiler import helpers
from flowvm.config import config
from flowvm.eager.interpreter import Operator
from flowvm.eager.modes import recorder_mode
from flowvm.eager.tensor import Tensor
from flowvm.graph.capture.capture import Capture
from flowvm.graph.logical.plain import read_operator, saved_operator
from flowvm.guards.regions import reverting
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare import valueless


def foretell(
    op: Operator, metas: tuple[TensorMeta, ...], attrs: Attrs, needs: tuple[bool, ...]
) -> None:
    """Have a helper compile the kernels that this call's gradient will need."""
    if not config.ahead or any(meta.device.type != "cpu" for meta in metas):
        return
    try:
        call = pickle.dumps((saved_operator(op), metas, attrs, needs))
    except Exception:  # an attribute that cannot be sent: nobody waits for this
        return
    text = base64.b64encode(call).decode()
    helpers.ahead(f"{__name__}:{compile_gradient.__name__}:{text}")


def _inferred(op: Operator) -> reverting:
    """Only infer calls of `op` inside: the process that makes the call makes its kernel."""
    if op.kernel.infer is None or op.signature.unsized:
        return reverting(lambda: None)
    plain = op.kernel.lower

    def undo() -> None:
        op.kernel.lower = plain
        op.lru.forget()

    return reverting(undo, partial(setattr, op.kernel, "lower", partial(valueless.lower, op)))


def compile_gradient(text: str) -> None:
    """The helper's part."""
    operator, metas, attrs, needs = pickle.loads(base64.b64decode(text))
    op = read_operator(operator)
    numbers = [1] * len(op.signature.scalars)
    capture = Capture(op.name)
    # as in the parent: a short body is enough for the first calls
    with config(ahead=True), recorder_mode().within(capture):
        tensors = [capture.placeholder(meta, f"{k}") for k, meta in enumerate(metas)]
        inputs = [t for t, needed in zip(tensors, needs, strict=True) if needed]
        for tensor in inputs:
            tensor.requires_grad_()
        with _inferred(op):
            results = op.call(*tensors, *attrs, *numbers)
        results = results if isinstance(results, tuple) else (results,)
        outputs = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
        gradients = [
            capture.placeholder(TensorMeta.of(r.shape, r.dtype, r.device), f"g{k}")
            for k, r in enumerate(outputs)
        ]
        grad(outputs, inputs, gradients, allow_unused=True)
