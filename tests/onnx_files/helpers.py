"""Exported models, run by onnxruntime, beside flowvm's results."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import flowvm as flow

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def tensors_of(value: Any) -> list[flow.Tensor]:
    """The tensors of nested tuples, lists and dicts, in their order."""
    if isinstance(value, flow.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value
    items = items if isinstance(value, (tuple, list, dict)) else ()
    return [t for item in items for t in tensors_of(item)]


def run(proto: Any, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return a model's outputs, by onnxruntime on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(inputs))


def check(model: Any, *args: Any, tol: float = 2e-5, **options: Any) -> Any:
    """Export `model`, hold it against onnx.checker, and its numbers against flowvm's."""
    proto = flow.onnx.export(model, args, **options)
    onnx.checker.check_model(proto, full_check=True)
    inputs = tensors_of(args)
    names = [i.name for i in proto.graph.input]
    outputs = run(proto, {n: t.numpy() for n, t in zip(names, inputs, strict=True)})
    if isinstance(model, flow.nn.Module):
        model.eval()
    with flow.no_grad():
        expected = [t.numpy() for t in tensors_of(model(*args))]
    assert len(outputs) == len(expected) == len(proto.graph.output)
    for ours, theirs in zip(expected, outputs, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(theirs, ours, rtol=tol, atol=tol)
    return proto
