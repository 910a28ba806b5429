"""Helpers of the nn tests, as fixtures."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest

import flowvm as flow


def values(tensor: Any) -> np.ndarray:
    """A copy of a tensor's values, flowvm's or torch's."""
    return np.array(tensor.detach().numpy())


class LayerComparison:
    """Runs the same layer, built by `make(nn)`, in flowvm and in torch, on the same numbers.

    Output, gradients of the inputs and of the parameters, and buffers must agree.
    """

    def __init__(self, torch: ModuleType, rng: np.random.Generator) -> None:
        self.torch = torch
        self.rng = rng

    def draw(self, shape: Any) -> np.ndarray:
        return shape if isinstance(shape, np.ndarray) else self.rng.normal(size=shape)

    def check(self, make: Any, shapes: tuple[Any, ...], training: bool = True) -> None:
        ours, theirs = make(flow.nn).double(), make(self.torch.nn).double()
        for module, lib in ((ours, flow), (theirs, self.torch)):
            module.train(training)
            assert isinstance(module, lib.nn.Module)
        for (name, mine), (other, param) in zip(
            ours.named_parameters(), theirs.named_parameters(), strict=True
        ):
            assert (name, tuple(mine.shape)) == (other, tuple(param.shape))
            drawn = self.draw(tuple(mine.shape))
            for target, lib in ((mine, flow), (param, self.torch)):
                with lib.no_grad():
                    target.copy_(lib.tensor(drawn))
        inputs = [self.draw(shape) for shape in shapes]
        self._compare(self._run(flow, ours, inputs), self._run(self.torch, theirs, inputs))

    def _run(self, lib: Any, module: Any, inputs: list[np.ndarray]) -> dict[str, np.ndarray]:
        args = [lib.tensor(value) for value in inputs]
        floats = [arg for arg, value in zip(args, inputs, strict=True) if value.dtype.kind == "f"]
        for arg in floats:
            arg.requires_grad_(True)
        out = module(*args)
        # A fixed, uneven weight on each element shows gradients that went to the wrong place.
        weight = np.cos(np.arange(out.numel(), dtype=np.float64)).reshape(tuple(out.shape))
        (out * lib.tensor(weight)).sum().backward()
        results = {"output": values(out)}
        results |= {f"grad of input {i}": values(arg.grad) for i, arg in enumerate(floats)}
        results |= {f"grad of {k}": values(p.grad) for k, p in module.named_parameters()}
        results |= {f"buffer {k}": values(b) for k, b in module.named_buffers()}
        return results

    def _compare(self, ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
        assert list(ours) == list(theirs)
        for what, expected in theirs.items():
            # 1e-7: torch keeps the constants of some float64 functions in float32.
            np.testing.assert_allclose(ours[what], expected, 1e-7, 1e-7, err_msg=what)


@pytest.fixture
def like_torch(rng: np.random.Generator) -> LayerComparison:
    return LayerComparison(pytest.importorskip("torch"), rng)
