"""Hooks of all modules, of state dicts, and hooks that are always called."""

from collections import OrderedDict
from typing import Any

import pytest

import flowvm as flow
from flowvm import nn
from flowvm.nn.modules import module as everywhere


def test_hooks_of_all_modules_run_in_front_of_a_modules_own() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    calls: list[str] = []
    net[1].register_forward_hook(lambda m, args, out: calls.append("own"))
    with everywhere.register_module_forward_hook(
        lambda m, args, out: calls.append(type(m).__name__)
    ):
        net(flow.ones(1, 2))
    assert calls == ["Linear", "ReLU", "own", "Sequential"]
    with everywhere.register_module_forward_pre_hook(lambda m, args: (args[0] * 0,)):
        assert nn.Identity()(flow.ones(2)).tolist() == [0, 0]
    assert nn.Identity()(flow.ones(2)).tolist() == [1, 1]
    with everywhere.register_module_full_backward_hook(lambda m, i, o: (i[0] * 2,)):
        x = flow.ones(2, requires_grad=True)
        nn.Identity()(x * 1).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2]


def test_what_a_module_is_given_may_be_replaced() -> None:
    def frozen(module: nn.Module, name: str, param: nn.Parameter) -> nn.Parameter:
        return nn.Parameter(param.detach(), requires_grad=False)

    with everywhere.register_module_parameter_registration_hook(frozen):
        layer = nn.Linear(2, 2)
    assert [p.requires_grad for p in layer.parameters()] == [False, False]
    names: list[str] = []
    with everywhere.register_module_module_registration_hook(lambda m, n, c: names.append(n)):
        nn.Sequential(nn.ReLU())
    with everywhere.register_module_buffer_registration_hook(lambda m, n, b: names.append(n)):
        nn.BatchNorm1d(2)
    assert names == ["0", "running_mean", "running_var", "num_batches_tracked"]


def test_a_hook_that_is_called_always() -> None:
    class Fails(nn.Module):
        def forward(self, x: Any) -> Any:
            raise ValueError("no")

    calls: list[Any] = []
    layer = Fails()
    layer.register_forward_hook(lambda m, args, out: calls.append("never"))
    layer.register_forward_hook(
        lambda m, args, kwargs, out: calls.append((args, kwargs, out)),
        with_kwargs=True,
        always_call=True,
    )
    with pytest.raises(ValueError, match="no"):
        layer(1)
    assert calls == [((1,), {}, None)]


def test_hooks_of_state_dicts() -> None:
    net = nn.Sequential(nn.Linear(2, 1), nn.ReLU())
    order: list[str] = []
    net.register_state_dict_pre_hook(lambda m, prefix, keep: order.append(f"pre {prefix!r}"))

    def drop(m: nn.Module, d: dict[str, Any], prefix: str, about: Any) -> None:
        del d[prefix + "bias"]

    net[0].register_state_dict_post_hook(drop)
    saved = net.state_dict()
    assert isinstance(saved, OrderedDict)
    assert order == ["pre ''"]
    assert list(saved) == ["0.weight"]
    assert saved._metadata["0"] == {"version": 1}  # type: ignore[attr-defined]
    net[0].register_load_state_dict_pre_hook(
        lambda m, d, prefix, *rest: d.setdefault(prefix + "bias", flow.ones(1))
    )
    net.load_state_dict(saved)
    assert net[0].bias.tolist() == [1.0]


def test_a_hook_may_excuse_names() -> None:
    net = nn.Linear(2, 1)
    net.register_load_state_dict_post_hook(lambda m, keys: keys.missing_keys.clear())
    net.load_state_dict({"weight": flow.ones(1, 2)})
    assert net.weight.tolist() == [[1.0, 1.0]]
    with pytest.raises(RuntimeError, match="size mismatch"):
        net.load_state_dict({"weight": flow.zeros(2, 2)})


def test_extra_state_goes_along() -> None:
    class Counts(nn.Module):
        count = 0

        def get_extra_state(self) -> Any:
            return {"seen": self.count}

        def set_extra_state(self, state: Any) -> None:
            self.count = state["seen"]

    one, other = nn.Sequential(Counts()), nn.Sequential(Counts())
    one[0].count = 3
    saved = one.state_dict()
    assert saved == {"0._extra_state": {"seen": 3}}
    other.load_state_dict(saved)
    assert other[0].count == 3
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict({})


def test_a_module_may_change_what_it_is_loaded_from() -> None:
    class Renamed(nn.Linear):
        def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
            state_dict[prefix + "weight"] = state_dict.pop(prefix + "w")
            super()._load_from_state_dict(state_dict, prefix, *rest)

    net = nn.Sequential(Renamed(2, 1, bias=False))
    net.load_state_dict({"0.w": flow.ones(1, 2)})
    assert net[0].weight.tolist() == [[1.0, 1.0]]


def test_batch_norm_loads_what_older_programs_saved() -> None:
    layer = nn.BatchNorm1d(2)
    older = dict(layer.state_dict())
    del older["num_batches_tracked"]
    layer.load_state_dict(older)
    newer = layer.state_dict()
    del newer["num_batches_tracked"]
    with pytest.raises(RuntimeError, match="num_batches_tracked"):
        layer.load_state_dict(newer)


def test_submodules_are_set_and_modules_are_emptied() -> None:
    net = nn.Sequential(nn.Sequential(nn.ReLU()))
    net.set_submodule("0.0", nn.Linear(2, 1))
    assert isinstance(net[0][0], nn.Linear)
    with pytest.raises(AttributeError):
        net.set_submodule("0.missing", nn.ReLU(), strict=True)
    assert net.to_empty(device="cpu")[0][0].weight.shape == (1, 2)
    assert net.type(flow.float64)[0][0].weight.dtype is flow.float64
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = net.nothing  # type: ignore[attr-defined]


def test_a_model_that_is_parallel_on_one_device() -> None:
    net = nn.Linear(2, 1)
    both = nn.DataParallel(net, device_ids=[0])
    assert both.module is net
    assert list(both.state_dict()) == ["module.weight", "module.bias"]
    assert both(flow.ones(3, 2)).tolist() == net(flow.ones(3, 2)).tolist()
    assert nn.parallel.data_parallel(net, flow.ones(3, 2)).shape == (3, 1)
    with pytest.raises(ValueError, match="one device"):
        nn.DataParallel(net, device_ids=[0, 1])
