"""Checks of training with parameters that are cut among ranks: `checks.py` runs them."""

import copy
import functools
import gc

import numpy as np
import pytest

import flowvm as flow
import flowvm.distributed as dist
import flowvm.distributed.tensor as dt
from flowvm import nn
from flowvm.distributed.checkpoint.state_dict import get_model_state_dict as model_state
from flowvm.distributed.fsdp import (
    FSDPModule,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    StateDictType,
    fully_shard,
    register_fsdp_forward_method,
)
from flowvm.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy
from flowvm.distributed.tensor import DTensor, Replicate, Shard
from flowvm.distributed.tensor import parallel as tp
from flowvm.ranks.world import rank, world_size

FSDP = FullyShardedDataParallel
RANK, SIZE = rank(), world_size()
BATCH, STEPS = 8, 3


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width + 1)  # which no number of ranks divides
        self.down = nn.Linear(2 * width + 1, width, bias=False)

    def forward(self, x: flow.Tensor, *, scale: float = 1.0) -> flow.Tensor:
        return x + scale * self.down(flow.nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.blocks = nn.ModuleList(Block(6) for _ in range(2))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight  # tied

    def forward(self, tokens: flow.Tensor) -> dict[str, flow.Tensor]:
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return {"logits": self.head(x)}


def model() -> Model:
    flow.manual_seed(0)
    return Model()


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [
        (rng.integers(0, 11, (BATCH, 5)), rng.integers(0, 11, (BATCH, 5))) for _ in range(STEPS)
    ]


def loss_of(net: nn.Module, x: np.ndarray, y: np.ndarray) -> flow.Tensor:
    logits = net(flow.tensor(x))["logits"]
    return nn.functional.cross_entropy(logits.flatten(0, 1), flow.tensor(y).flatten())


def own(a: np.ndarray) -> np.ndarray:
    each = len(a) // SIZE
    return a[RANK * each : (RANK + 1) * each]


def whole(x: flow.Tensor) -> np.ndarray:
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach().numpy()


def train(net: nn.Module, part, clip: float = 0.5):
    optimizer = flow.optim.AdamW(net.parameters(), lr=0.02)
    calls = []
    for x, y in batches():
        optimizer.zero_grad()
        loss = loss_of(net, part(x), part(y))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        mean = loss.detach().clone()
        if part is own:
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        calls.append((mean.item(), whole(norm).item()))
    return calls


def alone():
    net = model()
    return net, train(net, lambda a: a)


def agree(net: nn.Module, result, expected) -> None:
    plain, losses = expected
    np.testing.assert_allclose(result, losses, rtol=2e-5, atol=1e-6)
    named = dict(net.named_parameters())
    for name, p in plain.named_parameters():
        np.testing.assert_allclose(whole(named[name]), whole(p), atol=2e-5, err_msg=name)


def shard(net: Model, **args) -> Model:
    for block in net.blocks:
        fully_shard(block, **args)
    return fully_shard(net, **args)


def check_sharded_training_is_that_of_one_rank():
    expected = alone()
    for inputs in ({}, {"reshard_after_forward": True}, {"reshard_after_forward": False}):
        net = shard(model(), **inputs)
        agree(net, train(net, own), expected)
        assert isinstance(net, Model)
        assert all(isinstance(p, DTensor) for p in net.parameters())
        assert all(p.placements == (Shard(0),) for p in net.parameters())
        assert net.head.weight is net.table.weight
    if SIZE > 1:
        same = nn.parallel.DistributedDataParallel(model())
        result = train(same, own)
        np.testing.assert_allclose(result, expected[1], rtol=2e-5)


def check_rows_of_ranks_have_the_same():
    rows = 2 if SIZE > 1 else 1
    mesh = dt.init_device_mesh("cpu", (rows, SIZE // rows), mesh_dim_names=("same", "cut"))
    net = shard(model(), mesh=mesh)
    agree(net, train(net, own), alone())
    assert net.head.weight.placements == (Replicate(), Shard(0))


def check_tensor_parallel_modules_are_cut_further():
    data = 2 if SIZE == 4 else 1
    pair = dt.init_device_mesh("cpu", (data, SIZE // data), mesh_dim_names=("data", "model"))

    def rows(a: np.ndarray) -> np.ndarray:
        k, each = pair.get_local_rank("data"), len(a) // data
        return a[k * each : (k + 1) * each]

    styles = {
        "blocks.*.up": tp.ColwiseParallel(use_local_output=False),
        "blocks.*.down": tp.RowwiseParallel(),
    }
    _, expected = alone()
    for inputs in ({}, {"reshard_after_forward": True}, {"reshard_after_forward": False}):
        net = tp.parallelize_module(model(), pair["model"], styles)
        shard(net, mesh=pair["data"], **inputs)
        result = np.array(train(net, rows))
        losses = flow.tensor(result[:, 0])
        dist.all_reduce(losses, op=dist.ReduceOp.AVG)
        np.testing.assert_allclose(losses.numpy(), [a for a, _ in expected], rtol=2e-5)
        np.testing.assert_allclose(result[:, 1], [b for _, b in expected], rtol=2e-5)
    weight = net.blocks[0].up.weight
    assert weight.device_mesh.mesh.tolist() == pair.mesh.T.tolist()
    assert weight.placements == (Shard(0), Shard(0))
    for mesh in (None, pair) if SIZE > 1 else ():
        other = tp.parallelize_module(model(), pair["model"], styles)
        with pytest.raises(flow.errors.ArgumentError, match='mesh=pair\\["data"\\]'):
            shard(other, mesh=mesh)


def check_other_dimensions_are_cut():
    net = fully_shard(
        model(), shard_placement_fn=lambda p: Shard(1) if p.ndim == 2 else None,
    )  # fmt: skip
    agree(net, train(net, own), alone())
    assert net.head.weight.placements == (Shard(1),)


def check_sharded_training_is_captured():
    class Step(nn.Graph):
        def __init__(self, net: nn.Module, optimizer: flow.optim.Optimizer) -> None:
            super().__init__()
            self.net = net
            self.add_optimizer(optimizer)

        def build(self, x: flow.Tensor, y: flow.Tensor) -> flow.Tensor:
            loss = nn.functional.cross_entropy(self.net(x)["logits"].flatten(0, 1), y)
            loss.backward()
            return loss

    results = []
    for graph in (False, True):
        net = shard(model())
        optimizer = flow.optim.SGD(net.parameters(), lr=0.5)
        step = Step(net, optimizer)
        losses = []
        for x, y in batches():
            mine = flow.tensor(own(x)), flow.tensor(own(y)).flatten()
            if not graph:
                optimizer.zero_grad()
            losses.append((step(*mine) if graph else step.build(*mine)).item())
            if not graph:
                optimizer.step()
        results.append(losses)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5)


def check_captures_gather_for_themselves():
    net = fully_shard(nn.Linear(3, 3), reshard_after_forward=False)
    x = flow.ones(1, 3)
    with flow.no_grad():
        before = net(x).numpy()  # what was gathered is kept
        graph = flow.compile(net)
        for factor in (1.0, 2.0, 4.0):
            np.testing.assert_allclose(graph(x).numpy(), factor * before, rtol=1e-6)
            np.testing.assert_allclose(net(x).numpy(), factor * before, rtol=1e-6)
            for p in net.parameters():
                p.mul_(2.0)


def check_weights_are_not_kept_for_backward():
    """Check that backward saves the place of weights, and that they are the weights of forward."""
    net = fully_shard(nn.Sequential(nn.Linear(8, 8 * SIZE, bias=False)), reshard_after_forward=True)
    x = flow.ones(2, 8, requires_grad=True)
    y = net(x)
    group = net._fsdp_group
    assert group._whole is None
    assert net[0].weight is group.params[0]
    (g,) = flow.autograd.grad(y.sum(), x)
    np.testing.assert_allclose(g.numpy(), np.tile(whole(net[0].weight).sum(0), (2, 1)), rtol=1e-5)
    y = net(x)
    with flow.no_grad():
        net[0].weight.mul_(2.0)
    with pytest.raises(flow.errors.AutogradError, match="changed between forward and backward"):
        flow.autograd.grad(y.sum(), x)
    side = 256 * SIZE
    large = fully_shard(nn.Linear(side, side, bias=False), reshard_after_forward=True)
    x = flow.ones(1, side, requires_grad=True)
    for step in range(2):  # the first one compiles
        flow.vm.sync()
        gc.collect()
        before = flow.memory.allocated()
        y = large(x).sum()
        flow.vm.sync()
        gc.collect()
        assert flow.memory.allocated() - before < side * side, step  # a quarter of the weights
        y.backward()
        large.weight.grad = x.grad = None
    layer = fully_shard(nn.Linear(4, 4), reshard_after_forward=False)
    layer(flow.ones(1, 4))
    assert layer.weight.is_global
    assert layer._fsdp_group._whole is not None
    layer.reshard()
    assert layer._fsdp_group._whole is None
    above = fully_shard(nn.Sequential(fully_shard(nn.Linear(2, 2))))  # with no parameter of its own
    above(flow.ones(1, 2))
    assert above[0].weight.is_global
    handle = layer.unshard(async_op=True)
    handle.wait()
    assert layer.weight.shape == (4, 4)
    assert not layer.weight.is_global
    assert layer._parameters["weight"].is_global


def check_gradients_wait_without_sync():
    expected = copy.deepcopy(model())
    for x, y in batches():
        loss_of(expected, x, y).backward()
    net = shard(model())
    for k, (x, y) in enumerate(batches()):
        net.set_requires_gradient_sync(k == STEPS - 1)
        loss_of(net, own(x), own(y)).backward()
        assert (net.table.weight.grad is None) == (k < STEPS - 1)
    named = dict(net.named_parameters())
    for name, p in expected.named_parameters():
        np.testing.assert_allclose(whole(named[name].grad), p.grad.numpy(), atol=2e-6)


def check_sharded_modules_are_checkpointed():
    checkpoint = flow.utils.checkpoint.checkpoint

    class Again(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: flow.Tensor, **more) -> flow.Tensor:
            return checkpoint(self.inner, x, use_reentrant=False, **more)

    expected = alone()
    for inside in (True, False):
        net = model()
        for i, block in enumerate(net.blocks):
            if inside:  # the sharded module's forward is a checkpoint
                net.blocks[i] = fully_shard(Again(block), reshard_after_forward=True)
            else:
                net.blocks[i] = Again(fully_shard(block, reshard_after_forward=bool(i)))
        fully_shard(net)
        result = train(net, own)
        np.testing.assert_allclose(result, expected[1], rtol=2e-5)


def check_precision_of_sharded_modules():
    policy = MixedPrecisionPolicy(
        param_dtype=flow.bfloat16, reduce_dtype=flow.float32, output_dtype=flow.float64
    )
    calls = []

    class Layer(nn.Linear):
        def forward(self, x: flow.Tensor) -> flow.Tensor:
            calls.append((x.dtype, self.weight.dtype))
            return super().forward(x)

    flow.manual_seed(0)
    net = fully_shard(Layer(4, 3), mp_policy=policy)
    x = flow.ones(2, 4, requires_grad=True)
    y = net(x)
    y.sum().backward()
    assert calls == [(flow.bfloat16, flow.bfloat16)]
    assert (y.dtype, x.grad.dtype) == (flow.float64, flow.float32)
    assert (net.weight.dtype, net.weight.grad.dtype) == (flow.float32, flow.float32)
    assert (whole(net.weight.grad) == 2).all()


def check_what_sharded_modules_say():
    net = shard(model())
    with pytest.raises(flow.errors.ArgumentError, match="sharded already"):
        fully_shard(net)
    with pytest.raises(flow.errors.ArgumentError, match="not copied"):
        copy.deepcopy(net)
    with pytest.raises(flow.errors.ArgumentTypeError, match="expected a Module"):
        fully_shard(flow.ones(2))
    scalar = nn.Module()
    scalar.scale = nn.Parameter(flow.tensor(1.0))
    with pytest.raises(flow.errors.ArgumentError, match=r"scalar parameters\. Change scale"):
        fully_shard(scalar)
    mesh = dt.init_device_mesh("cpu", (1, 1, SIZE))
    with pytest.raises(flow.errors.ArgumentError, match="one dimension, or two"):
        fully_shard(nn.Linear(2, 2), mesh=mesh)
    frozen = nn.Linear(3, 3)
    frozen.bias.requires_grad_(False)
    fully_shard(frozen)
    frozen(flow.ones(1, 3)).sum().backward()
    assert (frozen.bias.grad, frozen.weight.grad.placements) == (None, (Shard(0),))
    state = net.state_dict()
    assert isinstance(state["head.weight"], DTensor)
    other = shard(model())
    with flow.no_grad():
        other.head.weight.zero_()
    other.load_state_dict(state)
    assert np.array_equal(whole(other.head.weight), whole(net.head.weight))
    net.blocks[0].set_modules_to_forward_prefetch([net.blocks[1]])
    net.blocks[1].set_modules_to_backward_prefetch([net.blocks[0]])
    net.set_gradient_divide_factor(float(2 * SIZE))
    x, y = batches()[0]
    loss_of(net, own(x), own(y)).backward()
    loss_of(other, own(x), own(y)).backward()
    np.testing.assert_allclose(
        2 * whole(net.head.weight.grad), whole(other.head.weight.grad), rtol=1e-4, atol=1e-7
    )
    pair = fully_shard([nn.Linear(3, 3), nn.Linear(3, 3)])
    assert pair[0]._fsdp_group is pair[1]._fsdp_group
    pair[1](pair[0](flow.ones(1, 3))).sum().backward()
    assert all(isinstance(m, FSDPModule) and m.weight.grad is not None for m in pair)
    register_fsdp_forward_method(net, "extra_repr")
    assert net.extra_repr() == ""


def wrapped(**args) -> FSDP:
    return FSDP(model(), auto_wrap_policy=ModuleWrapPolicy({Block}), **args)


def check_wrapped_training_is_that_of_one_rank():
    plain, expected = alone()
    pair = dt.init_device_mesh("cpu", (2 if SIZE > 1 else 1, max(SIZE // 2, 1)))
    for inputs in (
        {}, {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
        {"sharding_strategy": ShardingStrategy.NO_SHARD},
        {"sharding_strategy": ShardingStrategy.HYBRID_SHARD, "device_mesh": pair},
    ):  # fmt: skip
        net = wrapped(**inputs)
        assert len(FSDP.fsdp_modules(net)) == 3
        assert FSDP.fsdp_modules(net, root_only=True) == [net]
        np.testing.assert_allclose(train(net, own), expected, rtol=2e-5)
        state = net.state_dict()
        assert list(state) == list(plain.state_dict())
        for name, value in plain.state_dict().items():
            np.testing.assert_allclose(state[name].numpy(), value.numpy(), atol=2e-5)


def check_state_of_wrapped_modules():
    net = wrapped()
    optimizer = flow.optim.AdamW(net.parameters(), lr=0.02)
    x, y = batches()[0]
    loss_of(net, own(x), own(y)).backward()
    assert not net.clip_grad_norm_(1.0).is_global
    optimizer.step()
    whole_state = net.state_dict()
    assert not any(v.is_global for v in whole_state.values())
    with FSDP.state_dict_type(net, StateDictType.SHARDED_STATE_DICT):
        cut_state, cut_steps = net.state_dict(), FSDP.optim_state_dict(net, optimizer)
        assert all(v.is_global for v in cut_state.values())
    with FSDP.state_dict_type(
        net, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)
    ):
        assert bool(net.state_dict()) == (RANK == 0)
    steps = FSDP.optim_state_dict(net, optimizer)
    for state, optim in ((whole_state, steps), (cut_state, cut_steps)):
        other = wrapped()
        second = flow.optim.AdamW(other.parameters(), lr=0.5)
        assert str(other.load_state_dict(state)).startswith("<All keys")
        second.load_state_dict(FSDP.optim_state_dict_to_load(other, second, optim))
        for p, q in zip(net.parameters(), other.parameters(), strict=True):
            assert np.array_equal(whole(p), whole(q))
            a, b = optimizer.state[p]["exp_avg"], second.state[q]["exp_avg"]
            assert np.array_equal(whole(a), whole(b))
    assert list(model_state(net)) == list(whole_state)
    assert all(v.is_global for v in model_state(net).values())
    with pytest.raises(flow.errors.ArgumentError, match="LOCAL_STATE_DICT"):
        FSDP.set_state_dict_type(net, StateDictType.LOCAL_STATE_DICT)
    with FSDP.summon_full_params(net, with_grads=True), flow.no_grad():
        for p in net.parameters():
            assert not p.is_global
            assert p.grad.shape == p.shape
            p.add_(1.0)
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(whole(p), whole(q) + 1, atol=1e-6)
    with net.no_sync():
        net.zero_grad()
        loss_of(net, own(x), own(y)).backward()
        assert net.table.weight.grad is None
    loss_of(net, own(x), own(y)).backward()
    assert net.table.weight.grad is not None


def check_wrapped_modules_are_told_of_dtypes():
    calls = []

    class Layer(nn.BatchNorm1d):
        def forward(self, x: flow.Tensor) -> flow.Tensor:
            calls.append((x.dtype, self.weight.dtype, self.running_mean.dtype))
            return x * self.weight

    precision = MixedPrecision(param_dtype=flow.bfloat16, buffer_dtype=flow.float16)
    net = FSDP(Layer(4), mixed_precision=precision, sync_module_states=True)
    net(flow.ones(2, 4))
    assert calls == [(flow.bfloat16, flow.bfloat16, flow.float16)]
    for inputs, says in (
        ({"sharding_strategy": ShardingStrategy.HYBRID_SHARD}, "of 2 dimensions"),
        ({"process_group": dist.group.WORLD, "device_mesh": dt.init_device_mesh("cpu", (SIZE,))},
         "not both"),
    ):  # fmt: skip
        with pytest.raises(flow.errors.ArgumentError, match=says):
            FSDP(nn.Linear(2, 2), **inputs)
    sizes = functools.partial(size_based_auto_wrap_policy, min_num_params=100)
    net = FSDP(model(), auto_wrap_policy=sizes)
    assert [type(m.module).__name__ for m in FSDP.fsdp_modules(net)] == ["Model", "Block", "Block"]
