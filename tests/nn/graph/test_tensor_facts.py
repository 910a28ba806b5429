"""A Plan serves calls in which the tensors outside are as they were: their memory, shape, strides
and hooks, and the schedule whose rate the code asks for.
"""

import pytest

import flowvm as flow
from flowvm.errors import CaptureWarning, RecaptureWarning

pytestmark = pytest.mark.filterwarnings("ignore::flowvm.errors.RecaptureWarning")


def test_shapes_that_change_in_place_are_noticed():
    """Change shape and strides; the memory stays where it is."""
    p = flow.arange(6.0).reshape(2, 3)
    summed = flow.compile(lambda: p.sum(0))
    assert summed().tolist() == [3, 5, 7]
    p.t_()
    assert summed().tolist() == [3, 12]
    p.resize_(2)
    assert summed().tolist() == p.sum(0).tolist()
    p.unsqueeze_(1)
    assert summed().shape == (1,)


def test_the_changed_shape_is_said():
    p = flow.ones(2, 3)
    doubled = flow.compile(lambda: p * 2)
    doubled()
    p.t_()
    with pytest.warns(RecaptureWarning, match=r"p f32\[2,3\] -> f32\[3, 2\]"):
        assert doubled().shape == (3, 2)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_leaves_are_noticed(register):
    p, calls = flow.ones(2, requires_grad=True), []

    @flow.compile
    def step():
        p.grad = None
        (p * 3).sum().backward()
        return p.grad + 0

    assert step().tolist() == [3, 3]
    if register == "register_hook":
        handle = p.register_hook(lambda g: g * 2)
        assert step().tolist() == [6, 6]
    else:
        handle = p.register_post_accumulate_grad_hook(lambda t: calls.append(len(calls)))
        step()
        assert calls
    handle.remove()
    assert step().tolist() == [3, 3]


def test_the_rate_of_a_schedule_is_followed():
    optimizer = flow.optim.SGD([flow.ones(1, requires_grad=True)], lr=1.0)
    schedule = flow.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    rates = flow.compile(lambda x: x * schedule.get_last_lr()[0])
    for rate in (1.0, 0.5, 0.25):
        assert rates(flow.ones(1)).item() == rates(flow.ones(1)).item() == rate
        optimizer.step()
        schedule.step()


def test_a_version_is_said_to_be_fixed():
    p = flow.ones(1)
    fixed = flow.compile(lambda x: x + p._version)
    with pytest.warns(CaptureWarning, match="_version, which writing counts"):
        fixed(p)


def test_parameters_of_a_distribution_are_followed():
    normal = flow.distributions.Normal(flow.zeros(1), flow.ones(1))
    mean = flow.compile(lambda x: normal.mean + x)
    for loc in (0.0, 2.0, 3.0):
        normal.loc = flow.tensor([loc])
        assert mean(flow.ones(1)).item() == loc + 1
    inside = flow.compile(lambda x: flow.distributions.Normal(x, x, validate_args=False).mean + x)
    for x in (1.0, 2.0):
        assert inside(flow.full((1,), x)).item() == 2 * x
    assert len(inside.plans) == 1


def test_settings_are_followed():
    sampler = flow.utils.data.DistributedSampler([1, 2], num_replicas=1, rank=0)
    scaled = flow.compile(lambda x: x * flow.get_num_threads() + sampler.epoch)
    before = flow.get_num_threads()
    try:
        for threads in (1, 2):
            flow.set_num_threads(threads)
            sampler.set_epoch(10 * threads)
            assert scaled(flow.ones(1)).item() == 11 * threads
    finally:
        flow.set_num_threads(before)
