"""PyTorch's own samples of modules (its module_db), float64, with the same weights: outputs,
gradients, names of the state.  Skipped without torch.
"""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest

import flowvm as flow

MODULES = (
    "GRU", "GRUCell", "LSTM", "LSTMCell", "MultiheadAttention", "RNN", "RNNCell", "Transformer",
    "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer",
)  # fmt: skip
MOST = 16  # samples of a module, of all that there are


@functools.cache
def module_db():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        common = pytest.importorskip("torch.testing._internal.common_modules")
    return {info.name.removeprefix("nn."): info for info in common.module_db}


def ours(torch, value):
    """A torch value as flowvm's."""
    if isinstance(value, torch.Tensor):
        return flow.tensor(value.detach().numpy()).requires_grad_(value.requires_grad)
    if isinstance(value, torch.nn.TransformerEncoderLayer):
        return flow.nn.TransformerEncoderLayer(
            value.linear1.in_features, value.self_attn.num_heads, value.linear1.out_features, 0.0,
            ours(torch, value.activation), batch_first=value.self_attn.batch_first,
            norm_first=value.norm_first, bias=value.linear1.bias is not None,
        )  # fmt: skip
    if isinstance(value, torch.dtype):
        return getattr(flow, str(value).removeprefix("torch."))
    if isinstance(value, dict):
        return {k: ours(torch, v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(ours(torch, v) for v in value)
    return getattr(flow.nn.functional, value.__name__) if callable(value) else value


def tensors(*values):
    """All tensors of nested values."""
    result = []
    for value in values:
        if isinstance(value, dict):
            result += tensors(*value.values())
        elif isinstance(value, (list, tuple)):
            result += tensors(*value)
        elif hasattr(value, "detach"):
            result.append(value)
    return result


def gradients(lib, module, outputs, inputs):
    leaves = [t for t in tensors(*inputs) if t.requires_grad] + list(module.parameters())
    loss = sum(t.sin().sum() for t in outputs if t.requires_grad)
    return lib.autograd.grad(loss, leaves, allow_unused=True)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore")
def test_samples(name, training):
    torch = pytest.importorskip("torch")
    info = module_db()[name]
    float64 = torch.float64
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=float64, requires_grad=True, training=training
    )
    inputs = [s for s in inputs if s.forward_input is not None]
    for sample in inputs[:: -(-len(inputs) // MOST)]:
        constructor, arguments = sample.constructor_input, sample.forward_input
        theirs = (
            info.module_cls(*constructor.args, **constructor.kwargs).to(float64).train(training)
        )
        args, kwargs = ours(torch, tuple(constructor.args)), ours(torch, constructor.kwargs)
        mine = getattr(flow.nn, name)(*args, **kwargs).double().train(training)
        mine.load_state_dict({k: ours(torch, v) for k, v in theirs.state_dict().items()})
        assert list(mine.state_dict()) == list(theirs.state_dict())
        args, kwargs = ours(torch, tuple(arguments.args)), ours(torch, arguments.kwargs)
        outputs = tensors(mine(*args, **kwargs))
        expected = tensors(theirs(*arguments.args, **arguments.kwargs))
        outputs += gradients(flow, mine, outputs, (args, kwargs))
        expected += gradients(torch, theirs, expected, (arguments.args, arguments.kwargs))
        for a, b in zip(outputs, expected, strict=True):
            assert (a is None) == (b is None)
            if b is not None:
                np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), 1e-7, 1e-8)
