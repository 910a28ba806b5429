"""Checks of ranks under PyTorch's names of global tensors: `checks.py` runs them."""

import copy

import numpy as np
import pytest

import flowvm as flow
import flowvm.distributed.functional as fc
import flowvm.distributed.tensor as dt
from flowvm import nn
from flowvm.distributed.device_mesh import DeviceMesh
from flowvm.distributed.tensor import DTensor, Partial, Replicate, Shard
from flowvm.distributed.tensor import parallel as tp
from flowvm.ranks.world import rank, world_size

RANK, SIZE = rank(), world_size()


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def check_meshes():
    mesh = dt.init_device_mesh("cpu", (1, SIZE), mesh_dim_names=("data", "model"))
    assert mesh.shape == (1, SIZE)
    assert mesh.mesh.tolist() == [list(range(SIZE))]
    assert mesh.get_coordinate() == [0, RANK]
    model = mesh["model"]
    assert (model.size(), model.get_local_rank()) == (SIZE, RANK)
    assert mesh["data"].mesh.tolist() == [RANK]
    assert mesh["model", "data"].mesh.tolist() == [[r] for r in range(SIZE)]
    assert mesh._flatten().mesh.tolist() == list(range(SIZE))
    assert list(mesh.get_group("model").ranks) == list(range(SIZE))
    assert mesh == DeviceMesh("cpu", [list(range(SIZE))], mesh_dim_names=("data", "model"))
    for wrong in ("rows", 2):
        with pytest.raises(flow.errors.ArgumentError, match="has no dimension"):
            mesh.size(wrong)
    with pytest.raises(flow.errors.ArgumentError, match="flowvm launch"):
        dt.init_device_mesh("cpu", (SIZE + 1,))


def check_tensors_on_a_mesh():
    mesh = dt.init_device_mesh("cpu", (SIZE,))
    whole = numbers(2 * SIZE + 1, 3)
    x = dt.distribute_tensor(flow.tensor(whole), mesh, [Shard(0)])
    assert isinstance(x, DTensor)
    assert not isinstance(x.to_local(), DTensor)
    assert (x.placements, x.device_mesh) == ((Shard(0),), mesh)
    shape, offset = dt.dtensor.compute_local_shape_and_global_offset(x.shape, mesh, [Shard(0)])
    part = whole[offset[0] : offset[0] + shape[0]]
    assert np.array_equal(x.to_local().numpy(), part)
    assert np.array_equal(x.full_tensor().numpy(), whole)
    assert x.redistribute(placements=[Shard(-1)]).placements == (Shard(1),)
    assert np.array_equal(
        DTensor.from_local(flow.tensor(part), mesh, [Shard(0)], shape=whole.shape)
        .full_tensor()
        .numpy(),
        whole,
    )
    summed = DTensor.from_local(flow.tensor(whole * RANK), mesh, [Partial()])
    assert np.array_equal(summed.full_tensor().numpy(), whole * sum(range(SIZE)))
    assert not hasattr(flow.ones(1), "placements")
    assert dt.zeros(2 * SIZE, 2, device_mesh=mesh, placements=[Shard(0)]).to_local().shape == (2, 2)
    flow.manual_seed(3)
    apart = dt.randn((5, 4), device_mesh=mesh, placements=[Shard(1)]).full_tensor()
    flow.manual_seed(3)
    assert np.array_equal(apart.numpy(), flow.randn(5, 4).numpy())


def check_gradients_of_parts():
    """Check gradients of local parts, with the `grad_placements` of PyTorch."""
    mesh = dt.init_device_mesh("cpu", (SIZE,))
    for grads, factor in (([Replicate()], 1), ([Partial()], SIZE)):
        w = dt.distribute_tensor(flow.tensor(numbers(4, 3)), mesh, [Shard(0)]).requires_grad_()
        (w.full_tensor(grad_placements=grads) * 2).sum().backward()
        assert w.grad.placements == (Shard(0),)
        assert (w.grad.full_tensor() == 2 * factor).all()


def _mlp():
    flow.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(10, 4 * SIZE),
        nn.Linear(4 * SIZE, 4 * SIZE),
        nn.GELU(),
        nn.LayerNorm(4 * SIZE),
        nn.Linear(4 * SIZE, 4),
    )


PLANS = {
    "heads": {"1": tp.ColwiseParallel(), "4": tp.RowwiseParallel(),
              "3": tp.PrepareModuleInputOutput(
                  input_layouts=Shard(-1), desired_input_layouts=Replicate(), use_local_input=True,
                  output_layouts=Replicate(), desired_output_layouts=Shard(-1))},
    "vocabulary": {"0": tp.RowwiseParallel(), "4": tp.ColwiseParallel(output_layouts=Replicate())},
    "columns": {"0": tp.ColwiseParallel(output_layouts=Replicate())},
    "global between": {"1": tp.ColwiseParallel(use_local_output=False),
                       "3": tp.SequenceParallel(sequence_dim=0), "4": tp.ColwiseParallel(
                           input_layouts=Shard(0), output_layouts=Replicate())},
}  # fmt: skip


def check_tensor_parallel_modules():
    mesh = dt.init_device_mesh("cpu", (SIZE,))
    tokens = flow.tensor(np.random.default_rng(1).integers(0, 10, (4 * SIZE,)))
    for name, plan in PLANS.items():
        plain = _mlp()
        model = tp.parallelize_module(copy.deepcopy(plain), mesh, plan)
        ours, theirs = model(tokens), plain(tokens)
        assert np.allclose(ours.detach().numpy(), theirs.detach().numpy(), atol=1e-5), name
        ours.square().sum().backward()
        theirs.square().sum().backward()
        for (path, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
            grad = p.grad.full_tensor() if isinstance(p, DTensor) else p.grad
            assert np.allclose(grad.numpy(), q.grad.numpy(), atol=1e-3), (name, path)
    style = tp.RowwiseParallel()  # of an embedding first: what it takes of a linear is another
    tp.parallelize_module(nn.Embedding(10, 4), mesh, style)
    flow.manual_seed(0)
    whole, linear = flow.tensor(numbers(3, 4 * SIZE)), nn.Linear(4 * SIZE, 2)
    expected = linear(whole).detach().numpy()
    part = whole[:, 4 * RANK : 4 * RANK + 4]
    linear = tp.parallelize_module(copy.deepcopy(linear), mesh, style)
    assert np.allclose(linear(part).detach().numpy(), expected, atol=1e-5)
    with pytest.raises(flow.errors.ArgumentError, match="no module of Sequential is called"):
        tp.parallelize_module(_mlp(), mesh, {"7": tp.ColwiseParallel()})
    with pytest.raises(flow.errors.ArgumentTypeError, match="takes Linear and Embedding"):
        tp.parallelize_module(_mlp(), mesh, {"2": tp.ColwiseParallel()})


VIEWS = [  # a shape, its SBP on four ranks in two rows, a view, and the view's SBP
    ((8, 4), (0, 0), (2, 4, 4), (0, 1)),
    ((8, 4), (0, 0), (4, 2, 4), (0, 0)),
    ((3, 8), (1, 1), (3, 2, 4), (1, 2)),
    ((8, 4), (0, 1), (2, 4, 4), (0, 2)),
]


def check_views_of_a_dimension_that_is_cut_twice():
    if SIZE != 4:
        return
    where, split = flow.placement("cpu", [[0, 1], [2, 3]]), flow.sbp.split
    whole = [flow.sbp.broadcast] * 2
    for shape, cuts, view, expected in VIEWS:
        values, grads = numbers(*shape), numbers(*view, seed=1)
        x = flow.tensor(values).to_global(where, whole).to_global(where, [split(d) for d in cuts])
        x = x.detach().requires_grad_()
        y = x.view(*view)
        assert y.sbp == tuple(split(d) for d in expected)
        assert np.array_equal(y.to_global(where, whole).to_local().numpy(), values.reshape(view))
        (y * flow.tensor(grads).to_global(where, whole)).sum().backward()
        back = x.grad.to_global(where, whole).to_local().numpy()
        assert np.array_equal(back, grads.reshape(shape))


def check_functional_collectives():
    mesh = dt.init_device_mesh("cpu", (SIZE,))
    x = flow.full((2 * SIZE,), RANK + 1.0, requires_grad=True)
    total = SIZE * (SIZE + 1) / 2
    assert (fc.all_reduce(x, "sum", mesh) == total).all()
    assert (fc.all_reduce(x, "avg", (mesh, 0)) == total / SIZE).all()
    assert (fc.reduce_scatter_tensor(x, "sum", 0, mesh) == total).all()
    assert fc.all_gather_tensor(x[None], 1, mesh).shape == (1, 2 * SIZE * SIZE)
    assert (fc.broadcast(x, SIZE - 1, mesh) == SIZE).all()
    out = fc.all_to_all_single_autograd(x, None, None, mesh)
    assert out.tolist() == [r + 1.0 for r in range(SIZE) for _ in range(2)]
    (out * flow.arange(2.0 * SIZE)).sum().backward()
    assert x.grad.tolist() == [2.0 * RANK, 2.0 * RANK + 1] * SIZE


def check_a_rank_may_log_and_lines_may_differ():
    where = flow.placement("cpu", list(range(SIZE)))
    weight = flow.full((4,), 2.0, placement=where, sbp=flow.sbp.broadcast)
    if RANK == 0:
        assert (weight * 3).mean().item() == 6.0  # of what it has whole: nobody else is asked
    if RANK == 0:
        parts = weight.to_global(where, flow.sbp.split(0)) + 1
    else:
        parts = weight.to_global(where, flow.sbp.split(0)) + 1
    assert parts.to_global(where, flow.sbp.broadcast).tolist() == [3.0] * 4
