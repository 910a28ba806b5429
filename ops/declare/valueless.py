"""The "meta" device: tensors that have a shape, a dtype and no values.

A call there is an instruction as any other: the op's infer function says what comes out, the
outputs have no memory, and the kernel does nothing.  So order, errors about shapes, autograd and
modules are what they are elsewhere.
"""

from __future__ import annotations

import functools

import numpy as np

from flowvm.compiler import jit
from flowvm.eager.declaration import Invocation
from flowvm.eager.interpreter import Operator, device_of
from flowvm.errors import ValuelessError
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.vm.engine.entries import no_op

_LAYOUT = np.zeros(1, np.int64)


@functools.cache
def _kernel() -> int:
    return jit.native(no_op, "int32(int64, int64, int64, int64)")


def invocation(outputs: tuple[TensorMeta, ...], pack: str = "") -> Invocation:
    """Return an Invocation that computes nothing and has outputs of these metas."""
    return Invocation(outputs, _kernel(), _LAYOUT, scalar_pack=pack)


def lower(op: Operator, metas: tuple[TensorMeta, ...], attrs: Attrs) -> Invocation:
    """Lower a call of `op` on the meta device.

    ValuelessError where the shape of what comes out depends on values.
    """
    if op.signature.unsized:
        raise ValuelessError(
            f"{op.name}: what comes out has as many elements as values say, and tensors on the "
            f"meta device have no values"
        )
    if op.kernel.infer is None:
        raise ValuelessError(f"{op.name} has no rule for output shapes, so it needs values")
    inferred = op.kernel.infer(metas, attrs)
    device = device_of(metas, attrs)
    outputs = tuple(
        m if m.device is device else TensorMeta.of(m.shape, m.dtype, device, m.stride)
        for m in inferred.outputs
    )
    return invocation(outputs, getattr(inferred, "pack", "")[::-1])
