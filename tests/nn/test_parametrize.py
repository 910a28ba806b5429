"""nn.utils: parametrizations, older norms of weights, pruning, other parameters, fused layers.

The reference is torch where it is installed, else the definition.
"""

import copy
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.nn.utils import parametrize, prune
from flowvm.nn.utils.stateless import functional_call


class Doubled(nn.Module):
    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return x * 2

    def right_inverse(self, x: flow.Tensor) -> flow.Tensor:
        return x / 2


class Positive(nn.Module):
    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return x.abs()


def test_a_parameter_is_computed_of_what_is_kept() -> None:
    layer = nn.Linear(3, 2)
    weight = layer.weight
    before = weight.detach().clone()
    parametrize.register_parametrization(layer, "weight", Doubled())
    assert parametrize.is_parametrized(layer, "weight")
    assert layer.parametrizations.weight.original is weight  # type: ignore[union-attr]
    np.testing.assert_array_equal(layer.weight.numpy(), before.numpy())
    assert list(layer.state_dict()) == ["bias", "parametrizations.weight.original"]
    parametrize.register_parametrization(layer, "weight", Positive())
    assert (layer.weight >= 0).all()
    layer(flow.ones(1, 3)).sum().backward()
    assert weight.grad is not None
    np.testing.assert_array_equal(weight.grad.numpy(), 2 * np.sign(before.numpy()))
    other = copy.deepcopy(layer)
    np.testing.assert_array_equal(other.weight.detach().numpy(), layer.weight.detach().numpy())
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Linear
    assert layer.weight is weight
    np.testing.assert_array_equal(layer.weight.detach().numpy(), np.abs(before.numpy()))
    assert parametrize.is_parametrized(other)


def test_a_parametrized_parameter_is_assigned_and_cached() -> None:
    layer = nn.Linear(2, 2)
    parametrize.register_parametrization(layer, "weight", Doubled())
    layer.weight = flow.ones(2, 2)  # type: ignore[assignment]
    original = layer.parametrizations.weight.original  # type: ignore[union-attr]
    assert original.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert layer.weight is not layer.weight
    with parametrize.cached():
        assert layer.weight is layer.weight
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    assert layer.weight.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_what_a_parametrization_may_not_do() -> None:
    class Wider(nn.Module):
        def forward(self, x: flow.Tensor) -> flow.Tensor:
            return flow.cat([x, x])

    layer = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="unsafe=True"):
        parametrize.register_parametrization(layer, "weight", Wider())
    assert isinstance(layer.weight, nn.Parameter)
    with pytest.raises(ValueError, match="no parameter or buffer 'missing'"):
        parametrize.register_parametrization(layer, "missing", Doubled())
    parametrize.register_parametrization(layer, "weight", Positive())
    with pytest.raises(RuntimeError, match="right_inverse"):
        layer.weight = flow.ones(2, 2)  # type: ignore[assignment]


@pytest.mark.parametrize("where", ["utils", "parametrizations"])
@pytest.mark.parametrize("what", ["weight_norm", "spectral_norm"])
@pytest.mark.parametrize("layer", ["Linear", "ConvTranspose1d"])
@pytest.mark.filterwarnings("ignore")
def test_norms_of_weights(where: str, what: str, layer: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    results = []
    for lib in (flow, torch):
        room = lib.nn.utils if where == "utils" else lib.nn.utils.parametrizations
        args = (4, 3) if layer == "Linear" else (4, 3, 2)
        results.append(getattr(room, what)(getattr(lib.nn, layer)(*args)).double())
    mine, theirs = results
    assert list(mine.state_dict()) == list(theirs.state_dict())
    mine.load_state_dict({key: t.numpy().copy() for key, t in theirs.state_dict().items()})
    x = rng.normal(size=(2, 4) if layer == "Linear" else (2, 4, 5))
    for training in (True, False):
        outputs = []
        for lib, module in ((flow, mine), (torch, theirs)):
            module.train(training)
            module.zero_grad()
            out = module(lib.tensor(x))
            (out * out).sum().backward()
            grads = [p.grad for p in module.parameters()]
            outputs.append([np.array(t.detach().numpy()) for t in (out, *grads)])
        for ours, expected in zip(*outputs, strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9)
    before = mine(flow.tensor(x)).detach().numpy()
    if where == "utils":
        getattr(nn.utils, f"remove_{what}")(mine)
    else:
        parametrize.remove_parametrizations(mine, "weight")
    np.testing.assert_allclose(mine(flow.tensor(x)).detach().numpy(), before, rtol=1e-9)
    assert sorted(mine.state_dict()) == ["bias", "weight"]


@pytest.mark.parametrize("kind", [None, "matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (5, 3)])
def test_orthogonal_weights(kind: str, shape: Any, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    x, weight = rng.normal(size=(2, shape[1])), rng.normal(size=shape)
    for trivial in (True, False):
        results: list[Any] = []
        for lib in (flow, torch):
            utils = lib.nn.utils
            layer = lib.nn.Linear(*shape[::-1]).double()
            layer.weight.data.copy_(lib.tensor(weight))
            results.append(
                utils.parametrizations.orthogonal(layer, "weight", kind, use_trivialization=trivial)
            )
        mine, theirs = results
        assert list(mine.state_dict()) == list(theirs.state_dict())
        if shape[0] == shape[1] or not trivial:  # else completed by random numbers
            for ours, expected in zip(
                mine.state_dict().values(), theirs.state_dict().values(), strict=True
            ):
                if ours.ndim == 2:
                    np.testing.assert_allclose(ours.numpy(), expected.numpy(), atol=1e-9)
        mine.load_state_dict({key: t.numpy().copy() for key, t in theirs.state_dict().items()})
        outputs = []
        for lib, module in ((flow, mine), (torch, theirs)):
            (module(lib.tensor(x)) ** 3).sum().backward()
            grad = module.parametrizations.weight.original.grad
            outputs.append([np.array(t.detach().numpy()) for t in (module.weight, grad)])
        for ours, expected in zip(*outputs, strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9)
        q = mine.weight.detach()
        product = q @ q.mT if shape[0] < shape[1] else q.mT @ q
        np.testing.assert_allclose(product.numpy(), np.eye(min(shape)), atol=1e-9)
        assigned = nn.init.orthogonal_(flow.empty(shape, dtype=flow.float64))
        if trivial or (kind or "matrix_exp" if shape[0] == shape[1] else kind) in (
            None,
            "householder",
        ):
            mine.weight = assigned
            np.testing.assert_allclose(mine.weight.detach().numpy(), assigned.numpy(), atol=1e-9)
        else:
            with pytest.raises(NotImplementedError):
                mine.weight = assigned
        parametrize.remove_parametrizations(mine, "weight")
        assert sorted(mine.state_dict()) == ["bias", "weight"]


def test_what_cannot_be_orthogonal() -> None:
    orthogonal = nn.utils.parametrizations.orthogonal
    with pytest.raises(ValueError, match="no parameter or buffer 'other'"):
        orthogonal(nn.Linear(2, 2), "other")
    with pytest.raises(ValueError, match=r"matrices .* got shape \(2,\)"):
        orthogonal(nn.Linear(2, 2), "bias")
    with pytest.raises(ValueError, match="'matrix_exp', 'cayley', 'householder', got 'exp'"):
        orthogonal(nn.Linear(2, 2), orthogonal_map="exp")
    layer = orthogonal(nn.Conv2d(3, 4, 3))  # a batch of matrices
    layer.weight = nn.init.normal_(flow.empty(4, 3, 3, 3))  # type: ignore[assignment]
    eye = layer.weight.mT @ layer.weight  # type: ignore[operator]
    np.testing.assert_allclose(
        eye.detach().numpy(), np.broadcast_to(np.eye(3), (4, 3, 3, 3)), atol=1e-5
    )
    with pytest.raises(ValueError, match=r"\(4, 3, 3, 3\), got \(3, 3\)"):
        layer.weight = flow.ones(3, 3)  # type: ignore[assignment]


def test_the_newer_weight_norm_loads_the_older_one() -> None:
    old = nn.utils.weight_norm(nn.Linear(3, 2))
    new = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    new.load_state_dict(old.state_dict())
    x = flow.ones(1, 3)
    np.testing.assert_allclose(new(x).detach().numpy(), old(x).detach().numpy(), rtol=1e-6)


def test_the_least_are_pruned() -> None:
    layer = nn.Linear(4, 2, bias=False)
    with flow.no_grad():
        layer.weight.copy_(flow.tensor([[1.0, -2, 3, -4], [5, -6, 7, -8]]))
    prune.l1_unstructured(layer, "weight", amount=3)
    assert layer.weight.tolist() == [[0, 0, 0, -4], [5, -6, 7, -8]]
    assert list(layer.state_dict()) == ["weight_orig", "weight_mask"]
    prune.ln_structured(layer, "weight", amount=0.5, n=2, dim=1)  # of what is left
    assert layer.weight.tolist() == [[0, 0, 0, -4], [0, 0, 7, -8]]
    assert prune.is_pruned(layer)
    layer(flow.ones(1, 4)).sum().backward()
    grad = layer.weight_orig.grad
    assert grad.tolist() == [[0, 0, 0, 1], [0, 0, 1, 1]]  # type: ignore[union-attr]
    prune.remove(layer, "weight")
    assert list(layer.state_dict()) == ["weight"]
    assert layer.weight.tolist() == [[0, 0, 0, -4], [0, 0, 7, -8]]
    assert not prune.is_pruned(layer)


def test_pruning_at_random_by_mask_and_of_several() -> None:
    one, other = nn.Linear(4, 4), nn.Linear(4, 4)
    prune.random_unstructured(one, "weight", amount=0.25)
    assert int((one.weight_mask == 0).sum()) == 4  # type: ignore[arg-type]
    prune.random_structured(other, "weight", amount=1, dim=0)
    assert int((other.weight_mask.sum(1) == 0).sum()) == 1  # type: ignore[union-attr]
    prune.custom_from_mask(one, "bias", flow.tensor([1, 0, 1, 1]))
    assert one.bias is not None
    assert one.bias[1].item() == 0
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with flow.no_grad():
        net[0].weight.fill_(1.0)
        net[1].weight.fill_(2.0)
    places = [(net[0], "weight"), (net[1], "weight")]
    prune.global_unstructured(places, prune.L1Unstructured, amount=0.5)
    assert net[0].weight.abs().sum().item() == 0
    assert net[1].weight.sum().item() == 18
    with pytest.raises(ValueError, match=r"0\.0 to 1\.0"):
        prune.l1_unstructured(net[0], "bias", amount=1.5)
    with pytest.raises(ValueError, match="is not pruned"):
        prune.remove(net[0], "bias")


def test_a_call_with_other_parameters() -> None:
    net = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1, affine=False))
    own = net[0].weight
    options = {"0.weight": flow.ones(1, 2, requires_grad=True), "0.bias": flow.zeros(1)}
    out = functional_call(net.eval(), options, flow.ones(3, 2))
    np.testing.assert_allclose(out.detach().numpy(), np.full((3, 1), 2 / np.sqrt(1 + 1e-5)), 1e-6)
    out.sum().backward()
    assert options["0.weight"].grad is not None
    assert net[0].weight is own
    assert own.grad is None
    with pytest.raises(ValueError, match="no parameter or buffer"):
        functional_call(
            net, {"0.weight": options["0.weight"], "0.other": flow.ones(1)}, flow.ones(3, 2)
        )
    assert net[0].weight is own
    with pytest.raises(ValueError, match="missing are"):
        functional_call(net, options, flow.ones(3, 2), strict=True)


@pytest.mark.parametrize("kind", ["Conv2d", "ConvTranspose2d", "Linear"])
def test_fused_layers_compute_what_both_did(kind: str, rng: np.random.Generator) -> None:
    transpose = kind == "ConvTranspose2d"
    layer: Any = nn.Linear(3, 4) if kind == "Linear" else getattr(nn, kind)(3, 4, 2)
    norm: Any = nn.BatchNorm1d(4) if kind == "Linear" else nn.BatchNorm2d(4)
    x = flow.tensor(rng.normal(size=(5, 3) if kind == "Linear" else (2, 3, 4, 4)).astype("f"))
    norm(layer(x))
    with flow.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.uniform_(-1, 1)
    layer.eval(), norm.eval()
    if kind == "Linear":
        fused = nn.utils.fuse_linear_bn_eval(layer, norm)
    else:
        fused = nn.utils.fuse_conv_bn_eval(layer, norm, transpose)
    expected = norm(layer(x)).detach().numpy()
    np.testing.assert_allclose(fused(x).detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="eval"):
        nn.utils.fuse_conv_bn_eval(layer.train(), norm)


def test_gradients_are_clipped_by_a_norm_that_is_known() -> None:
    params = [nn.Parameter(flow.ones(2)) for _ in range(2)]
    for p in params:
        p.grad = flow.full((2,), 3.0)
    total = nn.utils.get_total_norm([p.grad for p in params if p.grad is not None])
    assert total.item() == 6.0
    nn.utils.clip_grads_with_norm_(params, 3.0, total)
    np.testing.assert_allclose(params[0].grad.numpy(), 1.5, rtol=1e-5)  # type: ignore[union-attr]
    assert nn.utils.skip_init(nn.Linear, 3, 2).weight.shape == (2, 3)


def test_lazy_layers_become_others() -> None:
    net = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))
    with pytest.raises(RuntimeError, match="no shape before"):
        _ = net[0].weight.shape
    optimized = list(net.parameters())
    net(flow.ones(2, 3, 6, 6))
    assert [type(m).__name__ for m in net] == ["Conv2d", "BatchNorm2d", "Flatten", "Linear"]
    assert net[3].weight.shape == (2, 64)
    assert all(a is b for a, b in zip(optimized, net.parameters(), strict=True))
    lazy = nn.LazyLinear(3)
    lazy.load_state_dict(nn.Linear(5, 3).state_dict())
    assert lazy(flow.ones(1, 5)).shape == (1, 3)
    assert lazy.in_features == 5


class _Fails(prune.BasePruningMethod):
    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: flow.Tensor, default_mask: flow.Tensor) -> flow.Tensor:
        raise ValueError("no mask")


def test_a_mask_that_fails_leaves_a_module_as_it_was() -> None:
    layer = nn.Linear(2, 3)
    with pytest.raises(ValueError, match="no mask"):
        _Fails.apply(layer, "weight")
    assert [*layer.state_dict()] == ["weight", "bias"]
    prune.l1_unstructured(layer, "weight", amount=2)
    before = {name: t.tolist() for name, t in layer.state_dict().items()}
    with pytest.raises(ValueError, match="no mask"):
        _Fails.apply(layer, "weight")
    assert {name: t.tolist() for name, t in layer.state_dict().items()} == before
    assert len(layer._forward_pre_hooks) == 1
