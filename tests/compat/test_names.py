"""Names of PyTorch and OneFlow that programs import: what they do, and a list of what is not."""

import copy

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn, serialization
from flowvm.compat import framework, primitives
from flowvm.compat.coalescing import _flatten_dense_tensors, _unflatten_dense_tensors
from flowvm.errors import ArgumentError, ArgumentTypeError, MissingNameError, ShapeError
from flowvm.nn import functional as F
from flowvm.nn.graph import GraphModule, GraphTensor
from tools import names

HERE = flow.placement("cpu", [0])


@pytest.fixture
def installed():
    with flow.mock_torch.enable():
        yield


def test_modules_of_both_are_mirrors(installed):
    import oneflow.boxing.nccl
    import oneflow.framework.tensor
    import torch.distributed.nn.functional
    from oneflow.nn.graph.util import ArgsTree
    from oneflow.nn.optimizer.lr_scheduler import StepLR
    from oneflow.utils.global_view import global_mode
    from torch.optim.optimizer import ParamsT
    from torch.utils.checkpoint import get_device_states, set_device_states

    assert oneflow.framework.tensor.Tensor is flow.Tensor
    assert ArgsTree is framework.ArgsTree
    assert StepLR is flow.optim.lr_scheduler.StepLR
    assert global_mode is flow.utils.global_view.global_mode
    assert ParamsT is not None
    set_device_states(*get_device_states(flow.ones(2)))
    oneflow.boxing.nccl.nccl.enable_use_compute_stream(True)
    assert torch.distributed.nn.functional.all_reduce(flow.ones(2)).tolist() == [1, 1]
    assert torch._C._jit_set_profiling_mode(False) is False


def test_tensors_are_laid_in_a_vector_and_back():
    tensors = [flow.ones(2, 2), flow.arange(3.0)]
    vector = _flatten_dense_tensors(tensors)
    assert vector.tolist() == [1, 1, 1, 1, 0, 1, 2]
    back = _unflatten_dense_tensors(vector, tensors)
    assert [t.tolist() for t in back] == [t.tolist() for t in tensors]
    with pytest.raises(ShapeError, match="flat has 3"):
        _unflatten_dense_tensors(vector[:3], tensors)
    with pytest.raises(ArgumentError, match="at least one"):
        _flatten_dense_tensors([])


def test_a_storage_is_mapped_from_a_file(tmp_path):
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(6)))
    storage = flow.UntypedStorage.from_file(str(path), False, 4)
    assert storage.nbytes() == 4
    assert storage.tensor.tolist() == [0, 1, 2, 3]


def test_oneflows_methods():
    x = flow.tensor([[-1.0, 2.0, 0.5], [1.0, 0.0, 3.0]])
    for name in ("silu", "selu", "mish"):
        np.testing.assert_array_equal(getattr(x, name)().numpy(), getattr(F, name)(x).numpy())
    y = x.t()
    assert y.contiguous_() is y
    assert y.is_contiguous()
    assert y.tolist() == x.t().tolist()


# --- oneflow._C -----------------------------------------------------------------------------------


def test_functions_are_oneflows(rng):
    x, w = (rng.standard_normal(s).astype("f") for s in ((2, 4, 3), (5, 3)))
    a, b = flow.tensor(x), flow.tensor(w)
    of = {
        "matmul": (primitives.matmul(a, b, transpose_b=True, alpha=0.5), x @ w.T * 0.5),
        "gather": (primitives.gather(b, flow.tensor([[0, 4]]), axis=0), w[[[0, 4]]]),
        "transpose": (primitives.transpose(a, perm=(2, 0, 1)), x.transpose(2, 0, 1)),
        "bias_add": (primitives.bias_add(a, flow.arange(4.0)), x + np.arange(4)[:, None]),
        "slice": (primitives.named("slice")(b, [1, 0], [4, 3], [2, 1]), w[1:4:2]),
        "trunc": (primitives.named("trunc_divide")(b, 0.5), np.trunc(w / 0.5)),
    }
    for name, (result, expected) in of.items():
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, err_msg=name)
    assert primitives.named("relu") is flow.relu
    assert primitives.named("new_ones")(b, 2).tolist() == [1, 1]
    with pytest.raises(MissingNameError):
        primitives.named("no_such_function")


def test_losses_are_of_each_row(rng):
    logits, label = rng.standard_normal((4, 3)), np.array([0, 2, 1, 1])
    each = -np.log(np.exp(logits) / np.exp(logits).sum(1, keepdims=True))[range(4), label]
    x, y = flow.tensor(logits), flow.tensor(label)
    shares = flow.softmax(x, -1)
    for result in (
        primitives.sparse_softmax_cross_entropy(x, y),
        primitives.sparse_cross_entropy(shares, y, 3),
        primitives.softmax_cross_entropy(x, F.one_hot(y, 3)),
    ):
        np.testing.assert_allclose(result.numpy(), each, rtol=1e-6)


def test_what_was_fused_is_what_it_computes(rng):
    x = rng.standard_normal((2, 3, 3))
    scaled = np.where(np.tril(np.ones((3, 3))), x * 0.5, -1e4)
    expected = np.exp(scaled) / np.exp(scaled).sum(-1, keepdims=True)
    out, shares = primitives.fused_scale_tril_softmax_mask_scale(
        flow.tensor(x), p=0.0, diagonal=0, tril_scale_value=0.5, tril_fill_value=-1e4
    )
    np.testing.assert_allclose(shares.numpy(), expected, rtol=1e-6)
    np.testing.assert_array_equal(out.numpy(), shares.numpy())
    mask = flow.tensor(np.tril(np.ones((3, 3))))
    masked = primitives.fused_scale_mask_softmax(flow.tensor(x), mask, fill_value=-1e4, scale=0.5)
    np.testing.assert_allclose(masked.numpy(), expected, rtol=1e-6)


# --- oneflow.framework, graphs --------------------------------------------------------------------


def test_ranges_are_balanced():
    assert framework.BalancedRanges(7, 3) == [(0, 3), (3, 5), (5, 7)]
    with pytest.raises(ArgumentError, match="at least one part"):
        framework.BalancedRanges(7, 0)


def test_a_tree_of_arguments_is_walked_and_mapped():
    args = ([1, {"a": 2}], 3)
    tree = framework.ArgsTree(args, True, "root_", "0")
    assert [name for name, _ in tree.iter_named_nodes()] == [
        "root_0", "root_0-1", "root_0-1-2", "root_0-1-3", "root_0-1-3-a", "root_0-5",
    ]  # fmt: skip
    assert [node.value() for _, node in tree.iter_named_nodes() if node.is_leaf()] == [1, 2, 3]
    assert tree.map_tuple_leaf(lambda v: v + 1) == ([2, {"a": 3}], 4)
    assert list(tree.iter_nodes())[1:3] == [[1, {"a": 2}], 1]
    with pytest.raises(ArgumentError, match="gen_name"):
        next(framework.ArgsTree(args).iter_named_nodes())


class Step(nn.Graph):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))

    def build(self, x):
        loss = self.model(x).square().sum()
        loss.backward()
        return loss


def network():
    flow.manual_seed(3)
    return nn.Sequential(
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 1)
    )


def test_a_module_is_marked_for_checkpointing_through_its_block():
    plain, marked, configured = network(), network(), network()
    marked[0].to(GraphModule).activation_checkpointing = True
    assert marked[0].to(GraphModule).to(nn.Module) is marked[0]
    assert marked.to(nn.Module) is marked
    assert marked[1].weight.to(GraphTensor).type == "PARAMETER"
    one, two, three = Step(plain), Step(marked), Step(configured)
    three.config.checkpoint(configured[0])
    two.debug(0, ranks=[0], max_py_stack_depth=3)
    assert two.config.training
    x = flow.linspace(-1, 1, 8).reshape(2, 4)
    for _ in range(2):
        assert one(x).item() == two(x).item() == three(x).item()
    kinds = [[node.operator.name for node in g.plans[0].graph.nodes] for g in (one, two, three)]
    assert kinds[1] == kinds[2] != kinds[0]


def test_tensors_are_made_global_in_a_mode():
    view = flow.utils.global_view
    with view.global_mode(True, placement=HERE, sbp=flow.sbp.broadcast):
        assert flow.randn(2, device="cpu").is_global
        assert view.current_global_mode().sbp == (flow.sbp.broadcast,)
        with view.global_mode(False):
            assert not flow.zeros(2).is_global
    assert not view.current_global_mode().is_enabled
    with pytest.raises(ArgumentError, match="placement and sbp"):
        view.global_mode(True)


def test_placements_by_oneflows_earlier_names():
    assert flow.placement(device_type="cpu", device_ids={0: [0]}) is HERE
    assert flow.placement(device_type="cpu", device_ids=[0]) is HERE
    with pytest.raises(ArgumentError, match="do not fit"):
        flow.placement(device_type="cpu", device_ids={0: [0], 1: [0]})
    with pytest.raises(ArgumentError, match="or device_type"):
        flow.placement("cpu", [0], device_type="cpu")


# --- tools/names ----------------------------------------------------------------------------------

PROGRAM = """
import torch as t
import torch.nn.functional as F
from torch import nn
from oneflow.one_embedding import Ftrl
x = t.relu(F.gelu(t.ones(2)))
nn.Linear(1, 2).weight.no_such_attribute
t.no_such.name(x)
"""


def test_the_names_that_a_folder_uses_are_looked_up(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "model.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("import torch\n)")
    uses = {use.name: use for use in names.uses([tmp_path])}
    assert {name for name, use in uses.items() if use.why} == {
        "oneflow.one_embedding", "torch.no_such",
    }  # fmt: skip
    assert uses["torch.no_such"].why == "not known"
    assert "nn.Embedding" in uses["oneflow.one_embedding"].why
    assert uses["torch.no_such"].place == f"{tmp_path / 'one' / 'model.py'}:8"
    assert uses["torch.nn.functional.gelu"].why == ""


def test_fused_functions_of_recommenders_and_attention(rng):
    rows = rng.standard_normal((2, 3, 4)).astype(np.float32)
    x = flow.tensor(rows)
    products = rows @ rows.transpose(0, 2, 1)
    expected = np.stack([products[:, 1, 0], products[:, 2, 0], products[:, 2, 1]], 1)
    result = primitives.named("fused_dot_feature_interaction")([x], output_padding=1)
    np.testing.assert_allclose(result.numpy(), np.pad(expected, ((0, 0), (0, 1))), rtol=1e-5)
    pooled = primitives.named("fused_dot_feature_interaction")([x[:, :1], x[:, 1:]], pooling="sum")
    pairs = rows[:, 0] * rows[:, 1] + rows[:, 0] * rows[:, 2] + rows[:, 1] * rows[:, 2]
    np.testing.assert_allclose(pooled.numpy(), pairs, rtol=1e-4, atol=1e-5)
    hidden = flow.tensor(rng.standard_normal((5, 2, 2 * 3 * 4)).astype(np.float32))
    scores, value = primitives.named("fused_self_attention")(hidden, head_size=4, alpha=0.5)
    parts = hidden.numpy().reshape(5, 2, 2, 12).transpose(1, 2, 0, 3)
    want = parts[..., :4] @ parts[..., 4:8].swapaxes(-1, -2) / 2
    np.testing.assert_allclose(scores.numpy(), want, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(value.numpy(), parts[..., 8:])


def test_the_area_below_a_curve(rng):
    label, score = rng.integers(0, 2, 50), rng.integers(0, 9, 50) / 9
    pairs = [
        (p > n) + (p == n) / 2 for p in score[label == 1] for n in score[label == 0]
    ]  # of each pair, which is above
    area = primitives.named("roc_auc_score")(flow.tensor(label), flow.tensor(score))
    np.testing.assert_allclose(area.numpy(), [np.mean(pairs)], rtol=1e-6)


def test_modules_whose_activations_are_computed_again(installed):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        CheckpointWrapper,
        apply_activation_checkpointing,
    )

    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    x = flow.ones(4, 2)
    before = model(x)
    apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, nn.Linear))
    assert isinstance(model[0], CheckpointWrapper)
    after = model(x)
    assert flow.equal(before, after)
    after.sum().backward()
    assert model[0]._checkpoint_wrapped_module.weight.grad is not None


def test_optimizers_of_programs_find_pytorchs_helpers(installed):
    import torch.optim.optimizer as of_torch

    class Halving(of_torch.Optimizer):
        def __init__(self, params, differentiable=False):
            super().__init__(params, {"differentiable": differentiable})

        @of_torch._use_grad_for_differentiable
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.mul_(0.5)

    p = nn.Parameter(flow.ones(2))
    Halving([p]).step()
    assert p.tolist() == [0.5, 0.5]
    assert of_torch._default_to_fused_or_foreach([p], False) == (False, False)
    with pytest.raises(ValueError, match="empty parameter list"):
        flow.optim.SGD([])
    import oneflow as of

    assert of.optim.SGD([]).param_groups[0]["params"] == []


def test_an_optimizer_needs_parameters_again_behind_oneflow():
    with pytest.raises(ValueError, match="empty parameter list"):
        flow.optim.SGD([])


def test_oneflows_ways_hold_where_it_is_imported():
    with flow.mock_torch.enable():
        import oneflow as of

        x = of.tensor([1 + 2j, 3j], requires_grad=True)
        assert x.type() == "oneflow.ComplexFloatTensor"
        (x.real() + x.conj().imag).sum().backward()  # called, and read
        assert x.grad.tolist() == [1 - 1j, 1 - 1j]
        assert type(x.real()) is flow.Tensor
        twice = x * 2
        copied = copy.deepcopy(twice)
        assert copied.is_leaf
        assert copied.tolist() == [2 + 4j, 6j]
        (twice.sum()).backward()  # it starts with 1
        assert x.grad.tolist() == [3 - 1j, 3 - 1j]
        assert of.zeros(2).copy_(np.array([1, 2])).tolist() == [1, 2]
    assert flow.ones(1).type() == "flowvm.FloatTensor"
    with pytest.raises(flow.errors.AutogradError, match="deepcopy"):
        copy.deepcopy(twice)
    with pytest.raises(flow.errors.AutogradError, match="real outputs"):
        (x * 2).sum().backward()
    with pytest.raises(ArgumentTypeError, match="src must be a Tensor"):
        flow.zeros(2).copy_(np.ones(2))


def trained(flow, nn):
    """A graph that trains one layer by SGD with momentum."""
    layer = nn.Linear(3, 2)
    nn.init.constant_(layer.weight, 0.5)
    nn.init.constant_(layer.bias, 0.25)
    optimizer = flow.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)

    class Training(nn.Graph):
        def __init__(self):
            super().__init__()
            self.layer = layer
            self.add_optimizer(optimizer)

        def build(self, x):
            loss = self.layer(x).sum()
            loss.backward()
            return loss

    return Training()


def test_graphs_have_oneflows_state_dicts_where_it_is_imported(tmp_path):
    x = flow.ones(4, 3)
    with flow.mock_torch.enable():
        import oneflow as of

        graph = trained(of, of.nn)
        graph(x), graph(x)
        state = graph.state_dict()
        assert list(state) == [
            "layer", "layer.weight-momentum", "layer.bias-momentum", "System-Train-TrainStep",
        ]  # fmt: skip
        assert state["System-Train-TrainStep"].tolist() == [2]
        assert state["layer.bias-momentum"].tolist() == pytest.approx([4 + 0.9 * 4] * 2)
        of.save(state, tmp_path / "state")
        again = trained(of, of.nn)
        again.load_state_dict(of.load(tmp_path / "state"))
        assert [graph(x).item() for _ in range(2)] == [again(x).item() for _ in range(2)]
        assert again.state_dict()["System-Train-TrainStep"].tolist() == [4]
        with pytest.raises(ArgumentError, match="lacks"):
            again.load_state_dict({"System-Train-TrainStep": state["System-Train-TrainStep"]})
    assert set(trained(flow, nn).state_dict()) == {"layer", "optimizers"}


def test_safe_globals_end_with_their_block():
    before = serialization.get_safe_globals()
    with serialization.safe_globals([dict]):
        assert dict in serialization.get_safe_globals()
    assert serialization.get_safe_globals() == before
