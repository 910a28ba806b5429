"""`torch.optim.optimizer`: what optimizers of programs import from there."""

import flowvm as flow
from flowvm.compat import optim_names
from flowvm.optim import optimizer


class Halving:
    """The least that a `step` needs: options."""

    def __init__(self, **defaults):
        self.defaults = defaults

    @optim_names._use_grad_for_differentiable
    def step(self, p, factor=0.5):
        """Halve."""
        return p * factor


def test_steps_are_recorded_where_options_say_so():
    p = flow.ones(2, requires_grad=True)
    assert not Halving().step(p).requires_grad
    assert not Halving(differentiable=False).step(p).requires_grad
    y = Halving(differentiable=True).step(p, factor=0.25)
    y.sum().backward()
    assert p.grad.tolist() == [0.25, 0.25]
    with flow.no_grad():
        assert Halving(differentiable=True).step(p).requires_grad
        assert not flow.is_grad_enabled()
    assert Halving.step.__doc__ == "Halve."


def test_steps_take_loops_over_single_tensors():
    assert optim_names._default_to_fused_or_foreach([], False, use_fused=True) == (False, False)
    assert optim_names._get_capturable_supported_devices() == ["cpu", "cuda"]


def test_other_names_are_the_optimizers():
    assert optim_names.Optimizer is optimizer.Optimizer
    assert optim_names.required is optimizer.required
