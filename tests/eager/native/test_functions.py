"""Functions that native code takes over: calls of modules, steps of optimizers, regions."""

import copy
import inspect
import pickle
import traceback

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.eager.modes import recording
from flowvm.eager.native import functions, install
from flowvm.eager.native.objects import native_class
from flowvm.errors import ShapeError
from flowvm.guards import lru_cache
from flowvm.vm.callers.hot import hot

pytestmark = pytest.mark.skipif(bool(install.unsupported()), reason=install.unsupported())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, x, scale=1.0, *, shift=0.0):
        return self.layers(x) * scale + shift


class Nothing(nn.Module):
    def forward(self):
        return "nothing"


# --- modules -------------------------------------------------------------------------------------


def test_a_call_of_a_module_is_native_and_as_its_twin():
    call, twin = nn.Module.__call__, nn.Module.__call__.twin
    assert isinstance(call, native_class())
    assert inspect.signature(call) == inspect.signature(twin)
    net, x = Net(), flow.ones(5, 3)
    for inputs, named in (((x,), {}), ((x, 2.0), {}), ((x,), {"shift": 1.0, "scale": 3.0})):
        expected = twin(net, *inputs, **named)
        for _ in range(3):
            np.testing.assert_array_equal(net(*inputs, **named).numpy(), expected.numpy())
    assert Nothing()() == "nothing"
    net.forward = lambda x: "its own"
    assert net(x) == "its own"


def test_calls_of_modules_that_are_wrong():
    net = Net()
    with pytest.raises(TypeError):
        net()
    with pytest.raises(TypeError):
        net(1, 2, 3, 4)
    with pytest.raises(TypeError):
        net(flow.ones(1, 3), other=1)
    with pytest.raises((TypeError, AttributeError)):
        nn.Module.__call__()
    with pytest.raises(AttributeError):
        nn.Module.__call__(3, flow.ones(1))
    with pytest.raises(NotImplementedError, match="forward"):
        nn.Module()(flow.ones(1))
    half = Net.__new__(Net)
    with pytest.raises(AttributeError):
        half(flow.ones(1, 3))


def test_an_error_says_which_layer_it_was_and_shows_the_users_frames():
    net = Net()
    for _ in range(3):
        with pytest.raises(ShapeError) as error:
            net(flow.ones(5, 2))
        assert error.value.__notes__ == ["in layers.0 (Linear) of Net"]
        names = [frame.name for frame in traceback.extract_tb(error.value.__traceback__)]
        assert names == [
            "test_an_error_says_which_layer_it_was_and_shows_the_users_frames",
            "forward",
        ]

    class Broken(nn.Module):
        def forward(self, x):
            raise ZeroDivisionError(x)

    with pytest.raises(ZeroDivisionError) as other:
        nn.Sequential(Broken())(1)
    assert not hasattr(other.value, "__notes__")


def test_modules_with_hooks_and_without():
    net, calls = Net(), []
    handle = net.layers[1].register_forward_hook(lambda m, args, out: calls.append(type(m)))
    x = flow.ones(2, 3)
    expected = net(x).numpy()
    handle.remove()
    np.testing.assert_array_equal(net(x).numpy(), expected)
    assert calls == [nn.ReLU]


# --- steps ---------------------------------------------------------------------------------------

OPTIMIZERS = {
    "sgd": lambda p: flow.optim.SGD(p, lr=0.1, weight_decay=0.01),
    "momentum": lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    "adam": lambda p: flow.optim.Adam(p, lr=0.1),
    "adamw": lambda p: flow.optim.AdamW(p, lr=0.1),
    "amsgrad": lambda p: flow.optim.Adam(p, lr=0.1, amsgrad=True),
}


def trained(make, steps=5, between=lambda opt, step: None):
    flow.manual_seed(3)
    net = Net()
    opt = make(net.parameters())
    for step in range(steps):
        opt.zero_grad()
        net(flow.ones(5, 3)).pow(2).sum().backward()
        between(opt, step)
        opt.step()
    return [p.detach().numpy() for p in net.parameters()], opt


@pytest.fixture
def by_python(monkeypatch):
    """Steps whose parameters are all left to Python, inside."""

    def patch():
        for module in (flow.optim.sgd, flow.optim.adam):
            for name in ("_each", "_each_momentum"):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, getattr(module, name).twin)

    return patch


def some_without(opt, step):
    if step % 2:
        opt.param_groups[0]["params"][1].grad = None


def state_is_lost(opt, step):
    if step == 3:
        opt.state.pop(opt.param_groups[0]["params"][0], None)
    if step == 4:
        opt.param_groups[0]["lr"] = 0.5


def one_twice(opt, step):
    if step == 1:
        opt.param_groups[0]["params"].append(opt.param_groups[0]["params"][0])


@pytest.mark.parametrize("between", [lambda o, s: None, some_without, state_is_lost, one_twice])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_the_python_loop(name, between, by_python):
    weights, ours = trained(OPTIMIZERS[name], between=between)
    by_python()
    expected, theirs = trained(OPTIMIZERS[name], between=between)
    for a, b in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    steps = [[e.get("step") for e in opt.state.values()] for opt in (ours, theirs)]
    assert steps[0] == steps[1]


def test_what_is_left_of_a_step_and_what_is_not_counted():
    net = Net()
    opt = flow.optim.Adam(net.parameters())
    for _ in range(3):
        opt.zero_grad()
        net(flow.ones(2, 3)).sum().backward()
        opt.step()
    params = opt.param_groups[0]["params"]
    each = flow.optim.adam._each
    numbers = False, False, True, 0.1, 0.9, 0.99, 1e-8, 0.0
    if not isinstance(each, native_class()) or each.begin is not None:
        pytest.skip("calls are Python's")
    assert each(params, opt.state, *numbers) == []
    assert [e["step"] for e in opt.state.values()] == [4] * 4
    opt.state[params[2]]["step"] = 4.0  # no int
    opt.state[params[3]]["exp_avg"] = None
    assert list(map(id, each(params, opt.state, *numbers))) == list(map(id, params[2:]))
    assert [e["step"] for e in opt.state.values()] == [5, 5, 4.0, 4]
    for wrong in (
        (tuple(params), opt.state, *numbers),
        (params, None, *numbers),
        (params, opt.state),
        (params, opt.state, *numbers, 1),
    ):
        assert each(*wrong) is wrong[0]
    with pytest.raises(TypeError):
        each()
    half = object.__new__(flow.Tensor)
    assert [*map(id, each([half, 3, None], opt.state, *numbers))] == [*map(id, (half, 3, None))]
    (rest,) = each([params[0]], opt.state, False, False, True, "a", 0.9, 0.99, 1e-8, 0.0)
    assert rest is params[0]
    assert opt.state[params[0]]["step"] == 5


def test_a_step_records_nothing_and_ends_whatever_comes():
    class Failing(flow.optim.Optimizer):
        def _step_group(self, group):
            assert not flow.is_grad_enabled()
            assert hot["unrecorded"]
            raise ZeroDivisionError

    opt = Failing([nn.Parameter(flow.ones(2))], {})
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            opt.step()
        assert flow.is_grad_enabled()
        assert not hot["unrecorded"]
    with flow.no_grad():
        with pytest.raises(ZeroDivisionError):
            opt.step()
        assert not flow.is_grad_enabled()


def test_what_is_called_in_a_region_may_switch_it():
    @functions.unrecorded
    def inside(value):
        results = [flow.is_grad_enabled()]
        with flow.enable_grad():
            results.append(flow.is_grad_enabled())
        flow.set_grad_enabled(True)
        results.append(flow.is_grad_enabled())
        with recording(False):
            results.append(flow.is_grad_enabled())
        return results, value

    for _ in range(3):
        assert inside(value=4) == ([False, True, True, False], 4)
        assert flow.is_grad_enabled()
        assert not hot["unrecorded"]


def test_optimizers_are_copied_and_pickled():
    _, opt = trained(OPTIMIZERS["adam"])
    again = pickle.loads(pickle.dumps(opt.state_dict()))
    assert [e["step"] for e in again["state"].values()] == [5] * 4
    assert copy.deepcopy(opt).param_groups[0]["lr"] == 0.1
    assert copy.copy(nn.Module.__call__) is nn.Module.__call__


# --- inline caches -------------------------------------------------------------------------------


def test_what_is_dropped_is_not_known_again():
    x, y = flow.ones(3, 5), flow.ones(3, 5)
    for _ in range(4):
        (x + y).sum(1)
    before = lru_cache.clearings[0]
    lru_cache.drop_old()
    lru_cache.drop_old()
    assert lru_cache.clearings[0] > before
    for _ in range(4):
        assert (x + y).sum(1).tolist() == [10, 10, 10]


def test_more_lines_than_are_known():
    shapes = [(k, 3) for k in range(1, 40)]
    for _ in range(3):
        for shape in shapes:
            x = flow.ones(*shape)
            assert (x + x * 2).sum().item() == 9 * shape[0]
            assert x.view((-1, 3)).shape == shape
            assert x[0:1].sum().item() == 3


def test_a_list_that_has_changed_is_another_argument():
    x, size = flow.ones(4, 6), [4, 6]
    for _ in range(4):
        assert x.reshape(size).shape == (4, 6)
    size[:] = [6, 4]
    assert x.reshape(size).shape == (6, 4)
