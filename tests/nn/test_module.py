"""Module: registration, walking the tree, state dicts, hooks, moving and printing."""

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.nn.hooks import hooked


class Block(nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.scale = nn.Parameter(flow.ones(width))
        self.register_buffer("count", flow.zeros(1))
        self.register_buffer("scratch", flow.zeros(2), persistent=False)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.fc(x) * self.scale


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(Block(), nn.ReLU(), Block())
        self.head = nn.Linear(3, 2, bias=False)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.head(self.body(x))


def array(tensor: Any) -> np.ndarray:
    return np.array(tensor.detach().numpy())


def test_names_come_in_order_of_registration() -> None:
    net = Net()
    assert [name for name, _ in net.named_parameters()] == [
        "body.0.scale",
        "body.0.fc.weight",
        "body.0.fc.bias",
        "body.2.scale",
        "body.2.fc.weight",
        "body.2.fc.bias",
        "head.weight",
    ]
    assert [name for name, _ in net.named_buffers()] == [
        "body.0.count",
        "body.0.scratch",
        "body.2.count",
        "body.2.scratch",
    ]
    assert [name for name, _ in net.named_children()] == ["body", "head"]
    assert [name for name, _ in net.named_modules()][:3] == ["", "body", "body.0"]
    assert len(list(net.parameters())) == 7
    assert [name for name, _ in net.head.named_parameters(prefix="x")] == ["x.weight"]


def test_a_shared_parameter_comes_once() -> None:
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    b.weight = a.weight
    both = nn.Sequential(a, b, a)
    assert [name for name, _ in both.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    assert len(list(both.named_parameters(remove_duplicate=False))) == 6
    assert len(list(both.children())) == 2
    assert list(both.state_dict()) == [
        f"{i}.{name}" for i, name in itertools.product("012", ("weight", "bias"))
    ]


def test_attributes_and_tables_agree() -> None:
    block = Block()
    block.scale = nn.Parameter(flow.zeros(3))
    assert block.get_parameter("scale") is block.scale
    block.count = flow.ones(1)
    assert block.get_buffer("count") is block.count
    block.fc = nn.Linear(3, 4)
    assert block.get_submodule("fc") is block.fc
    del block.fc
    assert [name for name, _ in block.named_parameters()] == ["scale"]
    assert not hasattr(block, "fc")
    block.scale = None  # type: ignore[assignment]
    assert list(block.parameters()) == []
    block.plain = 3  # type: ignore[assignment]
    assert block.plain == 3


@pytest.mark.parametrize(
    ("do", "error", "message"),
    [
        (lambda m: setattr(m, "scale", flow.ones(3)), TypeError, "as parameter 'scale'"),
        (lambda m: setattr(m, "fc", 3), TypeError, "as module 'fc'"),
        (lambda m: m.register_buffer("b", 3), TypeError, "must be a Tensor or None"),
        (lambda m: m.register_buffer("a.b", None), KeyError, "contain"),
        (lambda m: m.register_parameter("forward", None), KeyError, "already has an attribute"),
        (lambda m: m.register_parameter("p", flow.ones(1)), TypeError, "nn.Parameter"),
        (lambda m: m.add_module("m", 3), TypeError, "must be a Module"),
        (lambda m: m.train("yes"), ValueError, "boolean"),
        (lambda m: m.get_submodule("fc.x"), AttributeError, "has no child 'x'"),
        (lambda m: m.get_parameter("fc.x"), AttributeError, "has no parameter 'x'"),
        (lambda m: m.to(flow.int64), TypeError, "floating point"),
        (lambda m: m.load_state_dict([1]), TypeError, "dict-like"),
        (lambda m: m.wieght, AttributeError, "wieght"),
        (lambda m: nn.Parameter(3.0), TypeError, "needs a Tensor"),
        (lambda m: nn.Parameter(flow.tensor([1])), RuntimeError, "floating point"),
    ],
)
def test_misuse_says_what_was_wrong(do: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        do(Block())


def test_forgetting_super_init_and_forward() -> None:
    class Forgetful(nn.Module):
        def __init__(self) -> None:
            self.fc = nn.Linear(2, 2)

    with pytest.raises(AttributeError, match=r"super\(\).__init__\(\)"):
        Forgetful()
    with pytest.raises(NotImplementedError, match=r"\[Module\].*forward"):
        nn.Module()(3)


def test_train_eval_apply_and_freezing() -> None:
    net = Net()
    assert not any(m.training for m in net.eval().modules())
    assert all(m.training for m in net.train().modules())
    calls: list[nn.Module] = []
    assert net.apply(calls.append) is net
    assert calls[-1] is net
    assert len(calls) == len(list(net.modules()))
    net.head.requires_grad_(False)
    assert [p.requires_grad for p in net.parameters()] == [True] * 6 + [False]


def test_zero_grad() -> None:
    net = Net()
    net(flow.ones(1, 3)).sum().backward()
    weight = net.head.weight
    assert weight.grad is not None
    net.zero_grad(set_to_none=False)
    assert not array(weight.grad).any()
    net.zero_grad()
    assert weight.grad is None


def test_moving_keeps_identity_and_leaves_integers_alone() -> None:
    layer = nn.BatchNorm1d(3)
    weight = layer.weight
    layer(flow.randn(4, 3)).sum().backward()
    assert layer.double() is layer
    assert layer.weight is weight
    assert weight.dtype == flow.float64
    assert weight.grad is not None
    assert weight.grad.dtype == flow.float64
    assert layer.running_mean.dtype == flow.float64
    assert layer.num_batches_tracked.dtype == flow.int64
    out = layer(flow.randn(4, 3).double())
    out.sum().backward()
    assert weight.is_leaf
    assert weight.requires_grad
    assert layer.to(flow.float32).weight.dtype == flow.float32
    assert layer.to("cpu", flow.float64).weight.dtype == flow.float64
    assert layer.to(flow.ones(1)).weight.dtype == flow.float32


def test_state_dict_round_trip() -> None:
    a, b = Net(), Net()
    state = a.state_dict()
    assert "body.0.count" in state
    assert "body.0.scratch" not in state
    assert not any(t.requires_grad for t in state.values())
    assert a.state_dict(keep_vars=True)["head.weight"] is a.head.weight
    assert repr(b.load_state_dict(state)) == "<All keys matched successfully>"
    x = flow.randn(2, 3)
    np.testing.assert_array_equal(array(a(x)), array(b(x)))
    assert list(a.head.state_dict(prefix="h.")) == ["h.weight"]


def test_state_dict_from_arrays() -> None:
    layer = nn.Linear(2, 1)
    layer.load_state_dict({"weight": np.array([[1.0, 2.0]]), "bias": np.zeros(1)})
    assert layer.weight.dtype == flow.float32
    np.testing.assert_array_equal(array(layer.weight), [[1.0, 2.0]])


def test_state_dict_that_does_not_fit_changes_nothing() -> None:
    layer = nn.Linear(2, 3)
    before = array(layer.weight)
    state = {"weight": flow.zeros(3, 2), "bias": flow.zeros(4), "extra": flow.zeros(1)}
    with pytest.raises(RuntimeError) as caught:
        layer.load_state_dict(state)
    text = str(caught.value)
    assert text.startswith("Error(s) in loading state_dict for Linear:\n\t")
    assert 'Unexpected key(s) in state_dict: "extra". ' in text
    assert "size mismatch for bias: copying a param with shape (4,) from checkpoint" in text
    np.testing.assert_array_equal(array(layer.weight), before)
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "bias"'):
        layer.load_state_dict({"weight": flow.zeros(3, 2)})
    with pytest.raises(RuntimeError, match="expected a Tensor or an array"):
        layer.load_state_dict({"weight": "no", "bias": flow.zeros(3)})
    keys = layer.load_state_dict({"weight": flow.zeros(3, 2), "extra": 1}, strict=False)
    assert keys.missing_keys == ["bias"]
    assert keys.unexpected_keys == ["extra"]
    assert not array(layer.weight).any()


def test_load_state_dict_assign_takes_the_tensors() -> None:
    layer, source = nn.Linear(2, 1), flow.ones(1, 2).double()
    layer.load_state_dict({"weight": source, "bias": flow.zeros(1)}, assign=True)
    assert layer.weight.dtype == flow.float64
    assert isinstance(layer.weight, nn.Parameter)


def test_deepcopy_is_independent() -> None:
    a = Net()
    b = copy.deepcopy(a)
    with flow.no_grad():
        b.head.weight.zero_()
    assert array(a.head.weight).any()
    assert [n for n, _ in b.named_parameters()] == [n for n, _ in a.named_parameters()]
    assert b.head.weight is b.get_parameter("head.weight")
    assert b.head.weight.requires_grad


def test_forward_hooks_run_in_order_and_may_replace() -> None:
    layer, calls = nn.Identity(), []

    def pre(module: nn.Module, args: tuple[Any, ...]) -> Any:
        calls.append("pre")
        return args[0] + 1

    def post(module: nn.Module, args: tuple[Any, ...], out: Any) -> Any:
        calls.append(("post", float(args[0]), float(out)))
        return out * 10

    handle = layer.register_forward_pre_hook(pre)
    layer.register_forward_hook(post)
    layer.register_forward_hook(lambda *_: calls.append("first"), prepend=True)
    assert float(layer(flow.tensor(1.0))) == 20.0
    assert calls == ["pre", "first", ("post", 2.0, 2.0)]
    handle.remove()
    handle.remove()
    assert float(layer(flow.tensor(1.0))) == 10.0


def test_hooks_with_kwargs() -> None:
    class Scale(nn.Module):
        def forward(self, x: flow.Tensor, by: float = 1.0) -> flow.Tensor:
            return x * by

    layer = Scale()
    with layer.register_forward_pre_hook(
        lambda m, args, kwargs: (args, {"by": 3.0}), with_kwargs=True
    ):
        assert float(layer(flow.tensor(2.0), by=5.0)) == 6.0
    result: dict[str, Any] = {}
    layer.register_forward_hook(lambda m, a, kwargs, out: result.update(kwargs), with_kwargs=True)
    assert float(layer(flow.tensor(2.0), by=5.0)) == 10.0
    assert result == {"by": 5.0}


def test_full_backward_hooks_see_and_replace_gradients() -> None:
    layer, results = nn.Linear(2, 1, bias=False), []
    with flow.no_grad():
        layer.weight.copy_(flow.tensor([[3.0, 4.0]]))

    def hook(module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
        results.append((array(grad_input[0]).tolist(), array(grad_output[0]).tolist()))
        return (grad_input[0] * 2,)

    handle = layer.register_full_backward_hook(hook)
    x = flow.ones(1, 2, requires_grad=True)
    layer(x).sum().backward()
    assert results == [([[3.0, 4.0]], [[1.0]])]
    np.testing.assert_array_equal(array(x.grad), [[6.0, 8.0]])
    handle.remove()
    layer.register_full_backward_pre_hook(lambda module, grad_output: (grad_output[0] * 10,))
    layer.weight.grad = None
    layer(flow.ones(1, 2)).sum().backward()
    np.testing.assert_array_equal(array(layer.weight.grad), [[10.0, 10.0]])


def test_backward_hooks_of_a_module_with_several_inputs_and_outputs() -> None:
    class Both(nn.Module):
        def forward(self, x: flow.Tensor, n: int, y: flow.Tensor) -> tuple[Any, ...]:
            return x * n, "note", y * x

    layer, results = Both(), []

    def hook(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        results.append([None if g is None else float(g) for g in (*grad_input, *grad_output)])

    layer.register_full_backward_hook(hook)
    x, y = (flow.tensor(v, requires_grad=True) for v in (2.0, 3.0))
    a, note, b = layer(x, 5, y)
    assert note == "note"
    (a + b * 10).backward()
    assert results == [[35.0, None, 20.0, 1.0, 10.0]]
    assert float(x.grad) == 35.0  # type: ignore[arg-type]


def test_backward_hook_without_input_gradients() -> None:
    layer, calls = nn.Linear(2, 1), []
    layer.register_full_backward_hook(lambda m, gi, go: calls.append((gi, array(go[0]).item())))
    layer(flow.ones(1, 2)).sum().backward()
    assert calls == [((None,), 1.0)]


def test_a_hook_that_raises_stops_the_call() -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("mine")

    layer = nn.Linear(2, 1)
    with layer.register_forward_hook(broken), pytest.raises(ZeroDivisionError, match="mine"):
        layer(flow.ones(1, 2))
    assert layer(flow.ones(1, 2)).shape == (1, 1)


def test_repr_folds_equal_numbered_children() -> None:
    blocks = nn.ModuleList([nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(12)])
    assert repr(blocks) == (
        "ModuleList(\n"
        "  (0-11): 12 x Sequential(\n"
        "    (0): Linear(in_features=3, out_features=3, bias=True)\n"
        "    (1): ReLU()\n"
        "  )\n"
        ")"
    )
    mixed = nn.Sequential(nn.ReLU(), nn.ReLU(), nn.Tanh(), nn.ReLU())
    assert repr(mixed) == ("Sequential(\n  (0-1): 2 x ReLU()\n  (2): Tanh()\n  (3): ReLU()\n)")

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.ReLU(), nn.ReLU()

    assert repr(Named()) == "Named(\n  (a): ReLU()\n  (b): ReLU()\n)"
    assert repr(nn.Conv2d(3, 4, 3, padding=1, bias=False)) == (
        "Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)"
    )
    assert repr(nn.LayerNorm(4)) == (
        "LayerNorm((4,), eps=1e-05, elementwise_affine=True, bias=True)"
    )


def test_parameter_shares_data_and_prints() -> None:
    base = flow.ones(2)
    param = nn.Parameter(base)
    assert param.is_leaf
    assert param.requires_grad
    with flow.no_grad():
        param.mul_(3.0)
    np.testing.assert_array_equal(base.numpy(), [3.0, 3.0])
    assert repr(param).startswith("Parameter containing:\n")
    assert not nn.Parameter(flow.tensor([1]), requires_grad=False).requires_grad
    assert type(param * 2) is flow.Tensor


class Given(nn.Module):
    def forward(self, *args, **kwargs):
        return args, kwargs


def times_ten(module, args):
    return tuple(a * 10 for a in args)


def test_forward_is_given_what_the_call_was():
    module = Given()
    for _ in range(2):  # the second time some module has hooks
        assert module() == ((), {})
        assert module(1) == ((1,), {})
        assert module(None, 2) == ((None, 2), {})
        assert module(1, input=2) == ((1,), {"input": 2})
        assert module(input=2) == ((), {"input": 2})
        Given().register_forward_pre_hook(times_ten)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_hooks_that_come_with_a_copy_run(copied):
    module = Given()
    module.register_forward_pre_hook(times_ten)
    hooked.clear()  # as where no module had hooks before
    again = copied(module)
    assert again(1) == ((10,), {})
