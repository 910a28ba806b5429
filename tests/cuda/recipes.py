"""Kernels of declared ops, compiled to PTX in another process.

    compile_op(ptx_of, "flowvm.ops.rows.softmax:_softmax", [((3, 4), "float32")], (1,))

A kernel made of closures cannot travel there, but what made it can: the op, its metas and attrs.
"""

from __future__ import annotations

import functools
import importlib
import operator
from types import SimpleNamespace

from flowvm.cuda.compiler import compilation
from flowvm.meta.dtype import dtype_named
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.registry import operator_of

CAPABILITIES = ((7, 0), (8, 0), (9, 0), (10, 0))
_visited = set()


def op_of(path):
    """The operator behind "module:name"."""
    module, _, name = path.partition(":")
    return operator_of(operator.attrgetter(name)(importlib.import_module(module)))


@functools.cache
def steps_of(path, specs, attrs):
    from flowvm.ops.declare.cuda.lowering import launch_of

    metas = tuple(TensorMeta.of(shape, dtype_named(dtype)) for shape, dtype in specs)
    return launch_of(op_of(path), metas, attrs).steps


def kernel_of(path, specs, attrs, k):
    """The kernel of step k."""
    return steps_of(path, specs, attrs)[k].kernel


def compile_op(ptx_of, path, specs, attrs, capabilities=CAPABILITIES):
    """Compile each kernel of the launch, as large as it is on a GPU, that was not before."""
    assert not compilation.simulated(), "patch `simulated`: the other process does not simulate"
    specs = tuple(specs)
    steps = steps_of(path, specs, attrs)
    assert steps
    for k, step in enumerate(steps):
        signature = compilation.signature_of(step)
        if (step.kernel, signature) in _visited:
            continue
        _visited.add((step.kernel, signature))
        namespace = SimpleNamespace(recipe=("recipes:kernel_of", (path, specs, attrs, k)))
        for text, cc in zip(ptx_of(namespace, signature, capabilities), capabilities, strict=True):
            assert f".target sm_{cc[0]}{cc[1]}" in text
            assert ".local " not in text, f"{path}: {step.kernel.__qualname__} spills"
