"""`lib` is flowvm or PyTorch: a test that asks for it runs on both, so PyTorch checks what the test
expects of flowvm. The expected numbers are NumPy's or written out.
"""

import importlib
import pkgutil
import types

import numpy as np
import pytest

import flowvm.autograd
import flowvm.ops
from flowvm.eager.values import adopt_array

for _module in pkgutil.iter_modules(flowvm.ops.__path__):
    importlib.import_module(f"flowvm.ops.{_module.name}")


def leaf(values, requires_grad=True, dtype=np.float64):
    """A tensor with these values."""
    return adopt_array(np.array(values, dtype)).requires_grad_(requires_grad)


def value(t):
    """Return the values of a tensor."""
    return t.numpy()


def _flow():
    return types.SimpleNamespace(
        leaf=leaf, value=value, autograd=flowvm.autograd, name="flow",
        no_grad=flowvm.autograd.no_grad,
        Function=flowvm.autograd.Function, once_differentiable=flowvm.autograd.once_differentiable,
        functional=flowvm.autograd.functional, enable_grad=flowvm.autograd.enable_grad,
        inference_mode=flowvm.autograd.inference_mode, checkpoint=flowvm.autograd.checkpoint,
        set_grad_enabled=flowvm.autograd.set_grad_enabled,
        is_grad_enabled=flowvm.autograd.is_grad_enabled,
    )  # fmt: skip


def _torch():
    torch = pytest.importorskip("torch")
    from torch.utils import checkpoint

    def torch_leaf(values, requires_grad=True, dtype=np.float64):
        return torch.from_numpy(np.array(values, dtype)).requires_grad_(requires_grad)

    def torch_checkpoint(function, *args):
        return checkpoint.checkpoint(function, *args, use_reentrant=False)

    return types.SimpleNamespace(
        leaf=torch_leaf, value=lambda t: t.detach().numpy(), autograd=torch.autograd, name="torch",
        no_grad=torch.no_grad, Function=torch.autograd.Function, enable_grad=torch.enable_grad,
        once_differentiable=torch.autograd.function.once_differentiable,
        functional=torch.autograd.functional, inference_mode=torch.inference_mode,
        checkpoint=torch_checkpoint, set_grad_enabled=torch.set_grad_enabled,
        is_grad_enabled=torch.is_grad_enabled,
    )  # fmt: skip


@pytest.fixture(params=["flow", "torch"])
def lib(request):
    """flowvm or PyTorch, under the names that both have."""
    return _flow() if request.param == "flow" else _torch()


@pytest.fixture
def flow():
    """Give flowvm alone, for cases that PyTorch does otherwise or not at all."""
    return _flow()


@pytest.fixture
def check(lib):
    """check(tensor, expected): equal but for rounding."""

    def compare(t, expected):
        np.testing.assert_allclose(lib.value(t), expected, rtol=1e-9, atol=1e-12)

    return compare
