"""Sequential, ModuleList, ModuleDict, ParameterList, ParameterDict."""

import copy
import pickle

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn


def names(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_children()]


def test_sequential_runs_in_order_and_indexes() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    x = flow.ones(1, 3)
    expected = net[2](net[1](net[0](x)))
    np.testing.assert_array_equal(net(x).detach().numpy(), expected.detach().numpy())
    assert isinstance(net[-1], nn.Linear)
    assert isinstance(net[:2], nn.Sequential)
    assert len(net[1:]) == 2
    assert names(net[1:]) == ["1", "2"]
    assert [type(m).__name__ for m in net] == ["Linear", "ReLU", "Linear"]


def test_sequential_from_a_dict_and_a_slice_of_it() -> None:
    net = nn.Sequential({"hidden": nn.Linear(3, 4), "act": nn.ReLU(), "out": nn.Linear(4, 2)})
    assert net.hidden is net[0]  # type: ignore[attr-defined]
    assert names(net[1:]) == ["act", "out"]
    net[1] = nn.Tanh()
    assert names(net) == ["hidden", "act", "out"]
    assert isinstance(net[1], nn.Tanh)


def test_changing_length_renumbers() -> None:
    items = nn.ModuleList([nn.ReLU(), nn.Tanh()])
    items.append(nn.Sigmoid()).insert(0, nn.GELU())
    assert [type(m).__name__ for m in items] == ["GELU", "ReLU", "Tanh", "Sigmoid"]
    assert isinstance(items.pop(1), nn.ReLU)
    del items[0]
    assert names(items) == ["0", "1"]
    items += [nn.Mish()]
    assert names(items) == ["0", "1", "2"]
    assert names(items + [nn.ReLU()]) == ["0", "1", "2", "3"]  # noqa: RUF005 - + is under test
    assert items[-1] in items
    items[0] = nn.ELU()
    assert isinstance(items[:1], nn.ModuleList)
    assert isinstance(items[0], nn.ELU)
    net = nn.Sequential(nn.ReLU(), nn.Linear(2, 2))
    del net[0]
    assert names(net.extend([nn.Tanh()])) == ["0", "1"]


def test_module_dict() -> None:
    heads = nn.ModuleDict({"a": nn.Linear(2, 1)})
    heads["b"] = nn.Linear(2, 2)
    heads.update({"c": nn.ReLU()})
    assert list(heads) == list(heads.keys()) == ["a", "b", "c"]
    assert heads["b"](flow.ones(1, 2)).shape == (1, 2)
    assert isinstance(heads.pop("c"), nn.ReLU)
    assert "c" not in heads
    assert len(heads) == 2
    assert next(heads.named_parameters())[0] == "a.weight"
    with pytest.raises(KeyError, match="it has"):
        heads["z"]
    with pytest.raises(KeyError, match="already has an attribute 'keys'"):
        heads["keys"] = nn.ReLU()
    heads.clear()
    assert list(heads.values()) == []


def test_parameter_containers() -> None:
    weights = nn.ParameterList([flow.ones(2), nn.Parameter(flow.zeros(3))])
    assert [name for name, _ in weights.named_parameters()] == ["0", "1"]
    assert weights[0].requires_grad
    weights.append(flow.ones(1))
    assert len(weights[1:]) == 2
    table = nn.ParameterDict({"scale": flow.ones(2)})
    table["shift"] = flow.zeros(2)
    assert [name for name, _ in table.named_parameters()] == ["scale", "shift"]
    assert "(scale): Parameter of shape (2,)" in repr(table)


def test_parameter_containers_hold_anything() -> None:
    inner = nn.ParameterList([flow.ones(2), 3.5])
    outer = nn.ParameterList([inner, flow.zeros(1), None])
    assert [name for name, _ in outer.named_parameters()] == ["1", "0.0"]  # its own come first
    assert list(inner) == [inner[0], 3.5]
    assert "(1): float 3.5" in repr(outer)
    outer[2] = flow.ones(1)
    assert list(outer.state_dict()) == ["1", "2", "0.0"]
    del outer[0]
    assert [name for name, _ in outer.named_parameters()] == ["0", "1"]
    copied = copy.deepcopy(outer)
    assert copied[1] is not outer[1]
    assert copied[1].tolist() == [1.0]
    table = nn.ParameterDict({"layers": inner, "rate": 0.5})
    assert list(table.state_dict()) == ["layers.0"]
    assert table.pop("rate") == 0.5
    assert list(table) == ["layers"]
    assert pickle.loads(pickle.dumps(table))["layers"][1] == 3.5


@pytest.mark.parametrize(
    ("do", "message"),
    [
        (lambda: nn.Sequential(nn.ReLU(), 3), "holds Modules, got int"),  # type: ignore[arg-type]
        (lambda: nn.ModuleList([3]), "holds Modules, got int"),  # type: ignore[list-item]
        (lambda: nn.ModuleList([nn.ReLU()])[1], "index 1 is out of range for ModuleList of 1"),
        (lambda: nn.ParameterDict({"keys": flow.ones(1)}), "has an attribute 'keys'"),
    ],
)
def test_misuse(do: object, message: str) -> None:
    with pytest.raises((TypeError, LookupError), match=message):
        do()  # type: ignore[operator]


def test_a_list_keeps_places_free_and_is_multiplied() -> None:
    items = nn.ModuleList([None, nn.ReLU()])
    assert items[0] is None
    assert list(items.named_children()) == [("1", items[1])]
    assert len(nn.Sequential(nn.ReLU(), nn.Tanh()) * 2) == 4
    with pytest.raises(ValueError, match="leaves nothing"):
        nn.Sequential(nn.ReLU()) * 0


def test_a_dict_of_parameters_is_a_dict() -> None:
    held = nn.ParameterDict({"a": flow.ones(2)})
    assert held.get("b") is None
    assert held.setdefault("b", flow.zeros(1)).tolist() == [0.0]
    both = held.copy()
    assert list(reversed(both)) == ["b", "a"]
    assert both.popitem()[0] == "b"
    assert list(held) == ["a", "b"]
    held |= nn.ParameterDict({"c": flow.ones(1)})
    assert [name for name, _ in held.named_parameters()] == ["a", "b", "c"]


def test_a_buffer_is_registered_where_it_is_assigned() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = nn.Buffer(flow.ones(2))
            self.own = nn.Buffer(flow.zeros(1), persistent=False)

    net = Net()
    assert [name for name, _ in net.named_buffers()] == ["kept", "own"]
    assert list(net.state_dict()) == ["kept"]
    assert isinstance(net.kept, flow.Tensor)
