"""The checks that ranks run together: `flowvm launch -n N checks.py FOLDER [NAME...]`, all in one
launch, or these.

Each function `check_*` runs on every rank, in this order; its outcome is left in FOLDER, a file for
each rank.  References are NumPy's, of numbers that every rank can make for all.
"""

import io
import json
import os
import sys
import traceback
from pathlib import Path

import apart
import captured
import checkpoints
import divided
import meshes
import numpy as np
import pytest
import sharded

import flowvm as flow
import flowvm.distributed as dist
from flowvm import nn
from flowvm.compat import oneflow
from flowvm.eager.global_calls import Globals
from flowvm.ops.collectives import collectives as c
from flowvm.ranks.world import Group, rank, world, world_size

RANK, SIZE = rank(), world_size()
ALL = range(SIZE)
SIGNED = (
    flow.float32, flow.float64, flow.int8, flow.int16, flow.int32, flow.int64, flow.float16,
    flow.bfloat16,
)  # fmt: skip
NUMPY = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def data(number: int, shape: tuple[int, ...] = (3, 4), seed: int = 0) -> np.ndarray:
    """Small whole numbers of a rank: sums and products of them are exact."""
    return np.random.default_rng(100 * seed + number).integers(-3, 4, shape)


def own(shape: tuple[int, ...] = (3, 4), dtype: flow.dtype = flow.float32, seed: int = 0):
    """This rank's."""
    return flow.tensor(data(RANK, shape, seed)).to(dtype)


def combined(op: str, shape: tuple[int, ...] = (3, 4), seed: int = 0) -> np.ndarray:
    """Return the ranks' data combined."""
    return NUMPY[op].reduce([data(r, shape, seed) for r in ALL])


def same(actual, expected) -> None:
    np.testing.assert_array_equal(actual.to(flow.float64).numpy(), np.asarray(expected))


def raises(kind, call, *words: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)


# --- functions ------------------------------------------------------------------------------------


def check_tensors_whose_memory_is_lent():
    x = own()
    count = x.numpy()
    total = c.all_reduce(x)
    count += 1  # nobody waits for the exchange
    same(total, combined("sum"))
    c.all_reduce_(x)
    same(x, combined("sum") + SIZE)
    assert np.array_equal(count, x.numpy())


def check_all_reduce_every_op_and_dtype():
    for op in NUMPY:
        for dtype in SIGNED if SIZE == 2 else SIGNED[::3]:
            same(c.all_reduce(own(dtype=dtype), op), combined(op))
        for dtype in (flow.uint16, flow.uint32, flow.uint64):
            x = flow.tensor(data(RANK) + 3).to(dtype)
            values = [data(r) + 3 for r in ALL]  # of 4 ranks 6**4 at most
            same(c.all_reduce(x, op), NUMPY[op].reduce(values))
    for op, numpy in (("sum", np.any), ("max", np.any), ("prod", np.all), ("min", np.all)):
        x = own(seed=5) > 0
        expected = numpy([data(r, seed=5) > 0 for r in ALL], axis=0)
        assert c.all_reduce(x, op).numpy().tolist() == expected.tolist()
    z = flow.complex(own(), own(seed=1))
    values = [data(r) + 1j * data(r, seed=1) for r in ALL]
    for op, numpy in (("sum", np.add), ("prod", np.multiply)):
        assert np.array_equal(c.all_reduce(z, op).numpy(), numpy.reduce(values))
    np.testing.assert_allclose(c.all_reduce(own(), "mean").numpy(), combined("sum") / SIZE, 1e-6)


def check_all_reduce_of_any_shape_and_strides():
    for shape in ((), (0,), (3, 0, 2), (1,), (70001,)):
        same(c.all_reduce(own(shape)), combined("sum", shape))
    x = own((6, 8))
    before = x.numpy().copy()
    same(c.all_reduce(x.t()), combined("sum", (6, 8)).T)
    same(c.all_reduce(x[::2, 1::3]), combined("sum", (6, 8))[::2, 1::3])
    assert np.array_equal(x.numpy(), before)
    c.all_reduce_(x[:, 1:3])
    before[:, 1:3] = combined("sum", (6, 8))[:, 1:3]
    same(x, before)


def check_memory_of_what_is_exchanged_is_had_again():
    def exchanges(times: int) -> int:
        for _ in range(times):
            c.all_reduce_(flow.ones(1 << 18))  # a block of 1 MiB, of the allocator's slabs
            c.all_reduce(flow.ones(1 << 18))
            flow.vm.sync()
        return flow.vm.stats()["reserved_bytes"]

    assert exchanges(20) == exchanges(4)


def check_float16_sums_are_rounded_once():
    x = flow.full((5,), 2048.0 if RANK == 0 else 1.0, dtype=flow.float16)
    expected = np.float16(2048 + SIZE - 1)  # one at a time, each 1 would be lost
    assert c.all_reduce(x).tolist() == [float(expected)] * 5


def check_all_gather():
    for dim in (0, 1, -1):
        expected = np.concatenate([data(r) for r in ALL], dim)
        same(c.all_gather(own(), dim=dim), expected)
        for dtype in (flow.bool, flow.bfloat16, flow.complex128):
            x = own(dtype=dtype)
            whole = c.all_gather(x, dim=dim)
            parts = [flow.tensor(data(r)).to(dtype) for r in ALL]
            assert whole.tolist() == flow.cat(parts, dim).tolist()
            assert whole.is_contiguous()
    sizes = [r % 3 for r in ALL]  # some have nothing
    for dim in (0, 1):
        shapes = [(s, 4) if dim == 0 else (4, s) for s in sizes]
        expected = np.concatenate([data(r, s) for r, s in enumerate(shapes)], dim)
        same(c.all_gather(own(shapes[RANK]), sizes=sizes, dim=dim), expected)


def check_reduce_scatter():
    for dim in (0, 1):
        shape = (2 * SIZE, 3) if dim == 0 else (3, 2 * SIZE)
        for op in NUMPY:
            expected = np.split(combined(op, shape), SIZE, dim)[RANK]
            same(c.reduce_scatter(own(shape), op, dim=dim), expected)
    sizes = [(r + 1) % 3 for r in ALL]
    shape = (sum(sizes), 5)
    expected = np.split(combined("sum", shape), np.cumsum(sizes)[:-1])[RANK]
    same(c.reduce_scatter(own(shape), sizes=sizes), expected)
    mean = c.reduce_scatter(own((SIZE, 2), flow.bfloat16), "mean")
    np.testing.assert_allclose(
        mean.to(flow.float32).numpy(), combined("sum", (SIZE, 2))[RANK : RANK + 1] / SIZE, 0.01
    )


def check_all_to_all():
    shape = (2 * SIZE, 3 * SIZE, 2)
    for split in (0, 1):
        for concat in (0, 1, 2):
            parts = [np.split(data(r, shape), SIZE, split)[RANK] for r in ALL]
            result = c.all_to_all(own(shape), split_dim=split, concat_dim=concat)
            same(result, np.concatenate(parts, concat))
    sizes = [r % 3 for r in ALL]  # what goes to each, whoever sends
    parts = [np.split(data(r, (sum(sizes), 2)), np.cumsum(sizes)[:-1])[RANK] for r in ALL]
    result = c.all_to_all(
        own((sum(sizes), 2)), split_sizes=sizes, concat_sizes=[sizes[RANK]] * SIZE
    )
    same(result, np.concatenate(parts))


def check_broadcast():
    for src in ALL:
        for dtype in (flow.float32, flow.bool, flow.complex64, flow.bfloat16):
            expected = flow.tensor(data(src)).to(dtype)
            assert c.broadcast(own(dtype=dtype), src).tolist() == expected.tolist()
            x = own(dtype=dtype) if src == RANK else None
            assert c.broadcast(x, src, meta=expected._meta).tolist() == expected.tolist()
    x = own((4, 4)).t()
    c.broadcast_(x, SIZE - 1)
    same(x, data(SIZE - 1, (4, 4)).T)
    raises(ValueError, lambda: c.broadcast(own(), SIZE), "not in the group")


def check_messages():
    if SIZE == 1:
        raises(ValueError, lambda: c.send(own(), 0), "itself")
        return
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for shape in ((), (0, 3), (5,), (300_000,)):  # the last one is larger than what MPI buffers
        meta = own(shape)._meta
        c.send(own(shape), after)
        same(c.recv(meta, before), data(before, shape))
    x = flow.zeros(4)
    c.send(own((4,)), after, tag=7)
    c.recv_(x, before, tag=7)
    same(x, data(before, (4,)))
    y = own((2, 2))
    c.send(y, after)
    y.fill_(9.0)  # what was sent is what it was
    same(c.recv(y._meta, before), data(before, (2, 2)))


def check_groups():
    last = Group.of([SIZE - 1])
    assert Group.of([SIZE - 1]) is last
    assert last.size == 1
    evens, odds = list(ALL)[::2], list(ALL)[1::2]
    mine = evens if RANK % 2 == 0 else odds
    same(c.all_reduce(own(), group=mine), sum(data(r) for r in mine))
    turned = list(reversed(ALL))
    expected = np.concatenate([data(r) for r in turned])
    same(c.all_gather(own(), group=turned), expected)
    if RANK < 2 and SIZE > 1:
        same(c.all_reduce(own(), group=[0, 1]), data(0) + data(1))
        same(c.broadcast(own(), 1, group=[0, 1]), data(1))
    elif SIZE > 2:
        raises(ValueError, lambda: c.all_reduce(own(), group=[0, 1]), "not in the group")
    raises(ValueError, lambda: Group.of([0, 0]), "different ranks")
    raises(ValueError, lambda: Group.of([SIZE]), "different ranks")


def check_bad_input_is_refused_at_the_call():
    raises(TypeError, lambda: c.all_reduce([1.0]), "must be a Tensor")
    raises(ValueError, lambda: c.all_reduce(own(), "median"), "op is one of")
    raises(RuntimeError, lambda: c.all_reduce(own(dtype=flow.int32), "mean"), "take the sum")
    raises(RuntimeError, lambda: c.all_reduce(own(dtype=flow.complex64), "max"), "no order")
    raises(RuntimeError, lambda: c.all_gather(flow.tensor(1.0)), "0-d")
    raises(IndexError, lambda: c.all_gather(own(), dim=2), "dim")
    raises(ValueError, lambda: c.all_gather(own(), sizes=[1] * (SIZE + 1)), "sizes are")
    raises(RuntimeError, lambda: c.reduce_scatter(own((3, 1)), sizes=[9] * SIZE), "rows")
    if SIZE == 2:
        raises(RuntimeError, lambda: c.reduce_scatter(own((3, 1))), "do not divide")
    raises(ValueError, lambda: c.broadcast(None, 0), "meta")


# --- autograd, graphs -----------------------------------------------------------------------------


def check_gradients():
    x = own().requires_grad_()
    (c.all_reduce(x) * (RANK + 1)).sum().backward()
    same(x.grad, np.full((3, 4), sum(r + 1 for r in ALL)))
    x = own((2, 3)).requires_grad_()
    (c.all_gather(x) ** 2).sum().backward()
    same(x.grad, 2 * SIZE * data(RANK, (2, 3)))
    x = own((SIZE, 3)).requires_grad_()
    (c.reduce_scatter(x) * (RANK + 1)).sum().backward()
    same(x.grad, np.repeat([[r + 1] for r in ALL], 3, 1))
    x = own((SIZE, 3)).requires_grad_()
    (c.all_to_all(x) * (RANK + 1)).sum().backward()
    same(x.grad, np.repeat([[r + 1] for r in ALL], 3, 1))
    x = own().requires_grad_()
    (c.broadcast(x, 0) * (RANK + 1)).sum().backward()
    same(x.grad, np.full((3, 4), sum(r + 1 for r in ALL) if RANK == 0 else 0))
    if SIZE > 1:
        y = c.all_reduce(own().requires_grad_(), "max").sum()
        raises(RuntimeError, y.backward, "only a sum has a gradient")


class Exchanging(nn.Graph):
    """Collectives among other work, one of whose results nobody uses."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)

    def build(self, x):
        h = self.layer(x)
        total = c.all_reduce(h)
        c.barrier()
        c.all_reduce(h * 2)
        same_again = c.all_reduce(h)
        parts = c.all_gather(h.relu())
        return total + same_again, parts.sum(0)


def check_a_graph_replays_collectives():
    graph = Exchanging()
    weight = data(0, (4, 4), 9)
    with flow.no_grad():
        graph.layer.weight.copy_(flow.tensor(weight))
    for step in range(6):
        total, parts = graph(own((2, 4), seed=step))
        products = [data(r, (2, 4), step) @ weight.T for r in ALL]
        same(total, 2 * sum(products))
        same(parts, np.maximum(np.concatenate(products), 0).sum(0))
        same(c.all_reduce(own()), combined("sum"))  # eager ones in between
    if SIZE > 1:
        text = graph.plans[0].dump()
        assert text.count("all_reduce") == 3, text  # neither merged nor dropped
        assert "on stream comm" in text


def check_a_graph_trains_with_reduced_gradients():
    x, y = data(0, (8, 3), 1) / 4.0, data(0, (8, 2), 2) / 4.0
    mine = slice(8 * RANK // SIZE, 8 * (RANK + 1) // SIZE)

    class Step(nn.Graph):
        def __init__(self, layer, optimizer):
            super().__init__()
            self.layer = layer
            self.add_optimizer(optimizer)

        def build(self, x, y):
            loss = c.all_reduce(((self.layer(x) - y) ** 2).sum()) / 16
            loss.backward()
            return loss

    layer = nn.Linear(3, 2, bias=False)
    with flow.no_grad():
        layer.weight.fill_(0.25)
    weight = np.full((2, 3), 0.25)
    share = nn.Linear(3, 2, bias=False)
    share.weight = layer.weight
    layer.weight.register_hook(lambda g: c.all_reduce(g, "mean"))
    step = Step(layer, flow.optim.SGD(layer.parameters(), lr=0.5))
    for _ in range(5):
        loss = step(flow.tensor(x[mine]).float(), flow.tensor(y[mine]).float())
        error = x @ weight.T - y
        np.testing.assert_allclose(loss.item(), (error**2).sum() / 16, 1e-5)
        # each rank's backward sends the gradient of all ranks' losses: the mean of them is the sum
        weight -= 0.5 * 2 / 16 * error.T @ x
    np.testing.assert_allclose(layer.weight.numpy(), weight, 1e-5, 1e-6)


# --- flow.distributed, flow.comm ------------------------------------------------------------------


def check_process_groups():
    raises(ValueError, dist.get_rank, "init_process_group")
    raises(ValueError, lambda: dist.init_process_group("gloo"), "by MPI and NCCL")
    if not flow.cuda.is_available():
        raises(RuntimeError, lambda: dist.init_process_group("nccl"), "CUDA is not available")
        assert not dist.is_nccl_available()
    raises(ValueError, lambda: dist.init_process_group(world_size=SIZE + 1), "world_size is")
    dist.init_process_group("mpi", timeout=600)
    raises(ValueError, dist.init_process_group, "already")
    assert flow.config.distributed_timeout == 600
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (RANK, SIZE, "mpi")
    assert dist.is_initialized()
    assert dist.get_node_local_rank() == RANK
    assert (flow.env.get_rank(), flow.env.get_local_rank()) == (RANK, RANK)
    assert (flow.env.get_world_size(), flow.env.get_node_size()) == (SIZE, 1)
    assert flow.env.all_device_placement("cpu") == flow.placement("cpu", ALL)
    assert dist.group.WORLD.size == SIZE
    group = dist.new_group([SIZE - 1, 0] if SIZE > 1 else [0])
    assert dist.get_process_group_ranks(group) == sorted({0, SIZE - 1})
    inside = RANK in (0, SIZE - 1)
    assert (dist.get_rank(group) >= 0) is inside
    assert dist.get_world_size(group) == (group.size if inside else -1)
    assert dist.get_global_rank(group, group.size - 1) == SIZE - 1
    assert dist.get_group_rank(group, SIZE - 1) == group.size - 1
    if inside:
        x = flow.ones(2)
        dist.all_reduce(x, group=group)
        assert x.tolist() == [group.size] * 2
    dist.destroy_process_group()
    assert not dist.is_initialized()
    dist.init_process_group()


def check_distributed_collectives():
    x = own()
    work = dist.all_reduce(x, async_op=True)
    assert work.wait()
    assert work.is_completed()
    same(x, combined("sum"))
    for op, name in ((dist.ReduceOp.MAX, "max"), (dist.ReduceOp.PRODUCT, "prod")):
        x = own()
        assert dist.all_reduce(x, op) is None
        same(x, combined(name))
    last = SIZE - 1
    x = own()
    dist.reduce(x, last)
    same(x, combined("sum") if RANK == last else data(RANK))
    x = own()
    dist.broadcast(x, last)
    same(x, data(last))
    outs = [flow.zeros(3, 4) for _ in ALL]
    dist.all_gather(outs, own())
    for r in ALL:
        same(outs[r], data(r))
    for shape in ((3 * SIZE, 4), (SIZE, 3, 4)):
        out = flow.zeros(shape)
        dist.all_gather_into_tensor(out, own())
        same(out, np.reshape([data(r) for r in ALL], shape))
    out = flow.zeros(2, 2)
    dist.reduce_scatter(out, [own((2, 2), seed=k) for k in ALL])
    same(out, combined("sum", (2, 2), RANK))
    out = flow.zeros(2)
    dist.reduce_scatter_tensor(out, own((2 * SIZE,)), dist.ReduceOp.MAX)
    same(out, combined("max", (2 * SIZE,))[2 * RANK : 2 * RANK + 2])
    outs = [flow.zeros(k + 1) for k in ALL]
    dist.all_to_all(outs, [own((RANK + 1,), seed=k) for k in ALL])
    for r in ALL:
        same(outs[r], data(r, (r + 1,), RANK)[: r + 1])
    out = flow.zeros(SIZE, 2)
    dist.all_to_all_single(out, own((SIZE, 2)))
    same(out, [data(r, (SIZE, 2))[RANK] for r in ALL])
    out = flow.zeros(3)
    dist.scatter(out, [own((3,), seed=k) for k in ALL] if RANK == last else None, src=last)
    same(out, data(last, (3,), RANK))
    outs = [flow.zeros(3) for _ in ALL]
    dist.gather(own((3,)), outs if RANK == last else None, dst=last)
    for r in ALL if RANK == last else ():
        same(outs[r], data(r, (3,)))
    dist.barrier()
    assert dist.barrier(async_op=True).wait()
    raises(TypeError, lambda: dist.all_reduce(x, op="sum"), "ReduceOp.SUM")
    raises(ValueError, lambda: dist.broadcast(x, SIZE), f"ranks are 0 to {SIZE - 1}")
    raises(ValueError, lambda: dist.all_gather([], x), "0 tensors")
    raises(TypeError, lambda: dist.all_reduce(3.0), "must be a Tensor")
    raises(RuntimeError, lambda: dist.all_gather_into_tensor(flow.zeros(1), x), "needed")


def check_distributed_messages():
    if SIZE == 1:
        raises(ValueError, lambda: dist.send(own(), 0), "itself")
        return
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    out = flow.zeros(200_000)
    works = [dist.isend(own((200_000,)), after), dist.irecv(out, before)]
    assert all(work.wait() for work in works)
    same(out, data(before, (200_000,)))
    dist.send(own(), after, tag=3)
    x = flow.zeros(3, 4)
    assert dist.recv(x, before, tag=3) == before
    same(x, data(before))
    ops = [dist.P2POp(dist.irecv, x, before), dist.P2POp(dist.isend, own(seed=4), after)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(x, data(before, seed=4))


def check_objects():
    objects = [None] * SIZE
    dist.all_gather_object(objects, {"rank": RANK, "text": "x" * (10 * RANK)})
    assert objects == [{"rank": r, "text": "x" * (10 * r)} for r in ALL]
    things = [RANK, "a", None] if RANK == SIZE - 1 else [0, 0, 0]
    dist.broadcast_object_list(things, SIZE - 1)
    assert things == [SIZE - 1, "a", None]
    objects = [None] * SIZE
    dist.gather_object(RANK, objects if RANK == 0 else None, dst=0)
    assert objects == ([*ALL] if RANK == 0 else [None] * SIZE)
    out = [None]
    dist.scatter_object_list(out, [f"for {r}" for r in ALL] if RANK == 0 else None, src=0)
    assert out == [f"for {RANK}"]


def check_comm():
    comm = flow.comm
    x = own()
    comm.all_reduce(x)
    same(x, combined("sum"))
    outs = [flow.zeros(3, 4) for _ in ALL]
    comm.all_gather(outs, own())
    comm.all_to_all(outs, outs)
    for out in outs:
        same(out, data(RANK))
    x = flow.zeros(3, 4)
    comm.scatter(x, [own(seed=k) for k in ALL] if RANK == 0 else None, src=0)
    same(x, data(0, seed=RANK))
    comm.gather(own(), outs if RANK == 0 else None, dst=0)
    for r in ALL if RANK == 0 else ():
        same(outs[r], data(r))
    comm.reduce_scatter(x, [own(seed=k) for k in ALL])
    same(x, combined("sum", seed=RANK))
    comm.barrier()
    if SIZE > 1:
        comm.send(own((2, 5), flow.bfloat16), (RANK + 1) % SIZE)
        message = comm.recv((RANK - 1) % SIZE)
        assert message.dtype is flow.bfloat16
        same(message, data((RANK - 1) % SIZE, (2, 5)))


# --- training -------------------------------------------------------------------------------------


def model(norm: bool = False) -> nn.Module:
    """A perceptron with the same weights on every rank and in every world."""
    layers = [nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)]
    if norm:
        layers.insert(1, nn.BatchNorm1d(16))
    network = nn.Sequential(*layers).double()
    rng = np.random.default_rng(3)
    with flow.no_grad():
        for p in network.parameters():
            p.copy_(flow.tensor(rng.standard_normal(tuple(p.shape)) / 4))
    return network


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1000 + step)
    return rng.standard_normal((8, 6)), rng.standard_normal((8, 3))


def part(x: np.ndarray):
    return flow.tensor(x[8 * RANK // SIZE : 8 * (RANK + 1) // SIZE])


def check_ddp_trains_as_one_rank_does():
    for options in ({}, {"bucket_cap_mb": 0.0005}, {"static_graph": True}):
        ddp = nn.parallel.DistributedDataParallel(model(), **options)
        alone = model()
        optimizers = [flow.optim.Adam(m.parameters(), lr=0.05) for m in (ddp, alone)]
        for step in range(5):
            x, y = batch(step)
            for optimizer in optimizers:
                optimizer.zero_grad()
            losses = (
                nn.functional.mse_loss(ddp(part(x)), part(y)),
                nn.functional.mse_loss(alone(flow.tensor(x)), flow.tensor(y)),
            )
            for loss in losses:
                loss.backward()
            np.testing.assert_allclose(
                c.all_reduce(losses[0].detach(), "mean").item(), losses[1].item(), 1e-12
            )
            for p, q in zip(ddp.parameters(), alone.parameters(), strict=True):
                np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), 1e-9, 1e-12)
            for optimizer in optimizers:
                optimizer.step()
    assert list(ddp.state_dict()) == [f"module.{name}" for name in alone.state_dict()]


def check_ddp_begins_alike_and_keeps_buffers_alike():
    network = model(norm=True)
    with flow.no_grad():
        for p in network.parameters():
            p.add_(float(RANK))
    ddp = nn.parallel.DistributedDataParallel(network)
    expected = model(norm=True)
    for p, q in zip(ddp.module.parameters(), expected.parameters(), strict=True):
        same(p, q.numpy())
    for step in range(3):
        ddp(part(batch(step)[0])).sum().backward()
    ddp(part(batch(3)[0]))  # whose statistics were the first rank's before it
    first = expected
    first.train()
    for step in range(3):
        x = batch(step)[0]
        first(flow.tensor(x[: 8 // SIZE]))
    x = batch(3)[0]
    first(part(x))
    for name, b in ddp.module.named_buffers():
        np.testing.assert_allclose(b.numpy(), dict(first.named_buffers())[name].numpy(), 1e-9)


def check_ddp_no_sync_adds_up():
    ddp, alone = nn.parallel.DistributedDataParallel(model()), model()
    for step in range(2):
        x, y = batch(step)
        with ddp.no_sync():
            nn.functional.mse_loss(ddp(part(x)), part(y)).backward()
        nn.functional.mse_loss(ddp(part(y.repeat(2, 1))), part(y)).backward()
        for inputs in (x, y.repeat(2, 1)):
            nn.functional.mse_loss(alone(flow.tensor(inputs)), flow.tensor(y)).backward()
        for p, q in zip(ddp.parameters(), alone.parameters(), strict=True):
            np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), 1e-9, 1e-12)
            p.grad = q.grad = None


class Training(nn.Graph):
    """A step of a model, with its optimizer."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.add_optimizer(flow.optim.SGD(network.parameters(), lr=0.1, momentum=0.9))

    def build(self, x, y):
        loss = nn.functional.mse_loss(self.network(x), y)
        loss.backward()
        return loss


def check_ddp_in_a_graph():
    for norm in (False, True):
        ddp = nn.parallel.DistributedDataParallel(model(norm), bucket_cap_mb=0.001)
        step = Training(ddp)
        eager = nn.parallel.DistributedDataParallel(model(norm), bucket_cap_mb=0.001)
        optimizer = flow.optim.SGD(eager.parameters(), lr=0.1, momentum=0.9)
        for number in range(5):
            x, y = map(part, batch(number))
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(eager(x), y)
            loss.backward()
            optimizer.step()
            np.testing.assert_allclose(step(x, y).item(), loss.item(), 1e-9)
        for p, q in zip(ddp.parameters(), eager.parameters(), strict=True):
            np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), 1e-9, 1e-12)
        assert len(step.plans) == 1
        if SIZE > 1:  # gradients are reduced while backward goes on
            assert step.plans[0].dump().count("all_reduce_") >= 2


class Branches(nn.Module):
    """Each call uses one of two layers, or none."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3, bias=False) for _ in range(3)]).double()

    def forward(self, x, which):
        return self.layers[which](x)


def check_ddp_with_unused_parameters():
    ddp = nn.parallel.DistributedDataParallel(Branches(), find_unused_parameters=True)
    x = np.arange(6.0).reshape(2, 3)
    ddp(flow.tensor(x), RANK % 2).sum().backward()
    for k in (0, 1):
        users = sum(r % 2 == k for r in ALL)
        grad = ddp.module.layers[k].weight.grad
        if users:
            np.testing.assert_allclose(grad.numpy(), np.tile(x.sum(0), (3, 1)) * users / SIZE)
        else:
            assert grad is None
    assert ddp.module.layers[2].weight.grad is None
    if SIZE > 1:
        strict = nn.parallel.DistributedDataParallel(Branches(), bucket_cap_mb=1e-5)
        strict(flow.tensor(x), 2).sum().backward()
        call = strict.forward
        raises(RuntimeError, lambda: call(flow.tensor(x), 2), "find_unused_parameters=True")


def check_ddp_by_oneflows_arguments():
    ddp = nn.parallel.DistributedDataParallel(Branches(), bucket_size=1)
    ddp(flow.ones(2, 3, dtype=flow.float64), RANK % 2).sum().backward()
    assert ddp.layers is ddp.module.layers
    if SIZE > 1:  # no rank has used it
        assert not ddp.module.layers[2].weight.grad.numpy().any()
    buffers = nn.Module()
    buffers.register_buffer("own", flow.tensor([float(RANK)]))
    assert nn.parallel.DistributedDataParallel(buffers).own.item() == 0.0


def check_global_tensors_outside_their_placement():
    last, every = flow.placement("cpu", [SIZE - 1]), flow.placement("cpu", [*ALL])
    mine = flow.ones(2, 3) * 5 if RANK == SIZE - 1 else flow.empty(4, dtype=flow.int32)
    x = mine.to_global(last, flow.sbp.broadcast)  # others are told what it is
    assert (x.shape, x.dtype) == ((2, 3), flow.float32)
    assert x.numpy().size == x.to_local().numel() == (6 if RANK == SIZE - 1 else 0)
    y = flow.zeros(2, 3, placement=every, sbp=flow.sbp.broadcast)
    same(y.copy_(x).to_local(), np.full((2, 3), 5))
    z = mine.new_ones(2 * SIZE, placement=every, sbp=flow.sbp.split(0), dtype=flow.float32)
    z.check_meta_consistency()
    assert z.to_local().shape == (2,)
    tensor = flow.Tensor(SIZE, 2, placement=every, sbp=flow.sbp.split(0))
    assert tensor.to_local().shape == (1, 2)
    state = flow.utils.global_view.to_global(
        {"w": mine, "n": 3} if RANK == SIZE - 1 else None,
        last,
        lambda whole, t: flow.sbp.split(0) if t is whole["w"] else flow.sbp.broadcast,
    )
    assert state["n"] == 3
    assert state["w"].sbp == (flow.sbp.split(0),)
    file = io.BytesIO()
    flow.save({"x": x, "z": z}, file, global_dst_rank=0)
    assert bool(file.tell()) == (RANK == 0)
    file.seek(0)
    back = flow.load(file, global_src_rank=0)
    assert back["x"].placement.flat == (0,)
    same(back["z"].to_global(every, flow.sbp.broadcast).to_local(), np.ones(2 * SIZE))


def check_gradients_of_several_placements_are_clipped_together():
    places = [flow.placement("cpu", [k]) for k in ALL]
    params = [nn.Parameter(flow.ones(4).to_global(p, flow.sbp.broadcast)) for p in places]
    for p in params:
        p.grad = p.detach().clone()
    norm = nn.utils.clip_grad_norm_(params, 1.0).item()
    np.testing.assert_allclose(norm, np.sqrt(4 * SIZE), rtol=1e-6)
    np.testing.assert_allclose(params[RANK].grad.to_local().numpy(), 1 / norm, rtol=1e-5)


def check_gradients_of_nested_placements_are_clipped_together():
    every, first = flow.placement("cpu", [*ALL]), flow.placement("cpu", [0])
    grid = flow.placement("cpu", [[k] for k in ALL])
    split, whole = flow.sbp.split(0), flow.sbp.broadcast
    held = [(every, split), (first, whole), (grid, (split, whole)), (every, whole)]
    params = []
    for place, sbp in held:
        full = flow.ones(2 * SIZE).to_global(every, whole)
        params.append(nn.Parameter(full.to_global(place, sbp)))
        params[-1].grad = params[-1].detach().clone()
    norm = nn.utils.clip_grad_norm_(params, 1.0).item()
    np.testing.assert_allclose(norm, np.sqrt(8 * SIZE), rtol=1e-6)
    for p in params:
        np.testing.assert_allclose(p.grad.to_local().numpy(), 1 / norm, rtol=1e-5)


def check_what_oneflow_reads_and_names():
    last = flow.placement("cpu", [SIZE - 1])
    x = (flow.ones(2, 3) * 5).to_global(last, flow.sbp.broadcast)
    Globals.read_together = True  # as where `oneflow` is imported
    try:
        np.testing.assert_array_equal(x.numpy(), np.full((2, 3), 5))
    finally:
        Globals.read_together = False
    assert flow.device("cpu", RANK) == flow.ones(1).device
    with pytest.raises(flow.errors.DeviceError, match="one CPU device"):
        flow.device("cpu", SIZE)
    every = flow.placement(device_type="cpu", device_ids={0: range(SIZE)}, hierarchy=(1, SIZE))
    assert every.shape == (1, SIZE)
    layer = nn.Linear(3, 2 * SIZE).to_global(flow.placement.all("cpu"), flow.sbp.broadcast)
    layer.to_global(sbp=flow.sbp.split(0))  # the placement stays
    assert layer.weight.sbp == (flow.sbp.split(0),)
    like = flow.zeros(2 * SIZE, placement=flow.placement.all("cpu"), sbp=flow.sbp.split(0))
    tensor = like.new_tensor(list(range(SIZE)))
    assert (tensor.sbp, tensor.placement, tensor.dtype) == (like.sbp, like.placement, like.dtype)
    assert tensor.to_local().tolist() == [RANK]
    file = io.BytesIO()
    if RANK == 0:
        flow.save({"w": flow.ones(3)}, file)
        file.seek(0)
    back = flow.load(file, flow.placement.all("cpu"), global_src_rank=0)
    assert back["w"].placement is flow.placement.all("cpu")
    same(back["w"].to_local(), np.ones(3))


def check_oneflows_refusals_and_placements_that_meet():
    first, last = flow.placement("cpu", [0]), flow.placement("cpu", [SIZE - 1])
    x, y = (flow.ones(2, placement=p, sbp=flow.sbp.broadcast) for p in (first, last))
    layer = nn.Linear(2, 2).to_global(first, flow.sbp.broadcast)
    local = nn.Linear(2, 2).state_dict()
    os.environ["ONEFLOW_ENABLE_GLOBAL_INPUTS_WITH_INCONSISTENT_PLACEMENT"] = "true"
    oneflow.take()  # as where it is imported
    try:
        z = y + x * 2
        assert z.placement is last
        np.testing.assert_array_equal(z.numpy(), [3, 3])
        assert flow.where(flow.tensor([0, 2]), 1.0, 0.0).tolist() == [0, 1]
        raises(flow.errors.ArgumentError, lambda: flow.save(x, io.BytesIO()), "global_dst_rank")
        raises(flow.errors.FlowError, lambda: layer.load_state_dict(local), "local / global")
    finally:
        oneflow.leave()
        del os.environ["ONEFLOW_ENABLE_GLOBAL_INPUTS_WITH_INCONSISTENT_PLACEMENT"]
    layer.load_state_dict(local)
    if SIZE > 1:
        raises(flow.errors.DeviceError, lambda: x + y, "one placement")


def check_variables_of_torchrun():
    if SIZE > 1:
        assert int(os.environ["RANK"]) == RANK
        assert int(os.environ["WORLD_SIZE"]) == SIZE
        assert os.environ["MASTER_ADDR"]


def check_ddp_bad_input():
    ddp = nn.parallel.DistributedDataParallel
    raises(ValueError, lambda: ddp(nn.ReLU()), "parameters that require a gradient")
    raises(ValueError, lambda: ddp(model(), device_ids=[0, 1]), "one device")
    raises(ValueError, lambda: ddp(model(), bucket_cap_mb=-1), "above 0")


def check_a_sampler_shares_the_indices():
    sampler = flow.utils.data.DistributedSampler(range(10), shuffle=True, seed=1)
    assert sampler.num_replicas == SIZE
    assert sampler.rank == RANK
    shares = c.all_gather(flow.tensor(list(sampler))).tolist()
    assert set(shares) == set(range(10))


def check_a_loader_with_workers_feeds_ranks():
    data = flow.utils.data
    numbers = data.TensorDataset(flow.arange(5 * SIZE))
    loader = data.DataLoader(
        numbers, 2, sampler=data.DistributedSampler(numbers), num_workers=1
    )  # forked, with MPI in the parent
    result = flow.cat([batch for (batch,) in loader])
    assert sorted(c.all_gather(result).tolist()) == list(range(5 * SIZE))


def check_a_forked_child_takes_no_part():
    if SIZE == 1:
        return
    x = own()
    c.all_reduce(x).numpy()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            c.all_reduce(x).numpy()
        except flow.errors.CommunicationError as error:
            code = "takes no part" not in str(error)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    same(c.all_reduce(x), combined("sum"))  # and the parent does


def check_the_order_of_accesses_is_kept():
    x, graph = own((2, 4)), Exchanging()

    def work():
        y = x
        for _ in range(20):
            y = c.all_reduce(y.relu()) / SIZE
            graph(y)
        return y

    graph(x)
    assert flow.vm.verify(flow.vm.trace(work)).pairs > 0


APART = [apart] if world().hosts > 1 else []  # what only ranks of several hosts can show
CHECKS = {
    name: thing
    for place in (globals(), *map(vars, (meshes, sharded, captured, checkpoints, divided, *APART)))
    for name, thing in place.items()
    if name.startswith("check_")
}

if __name__ == "__main__":
    outcome = {}
    for name in sys.argv[2:] or CHECKS:
        try:
            CHECKS[name]()
            outcome[name] = ""
        except Exception:
            outcome[name] = traceback.format_exc()
            break  # the ranks are not at one place any more
    Path(sys.argv[1], f"{RANK}.json").write_text(json.dumps(outcome))
    if any(outcome.values()):
        sys.exit(1)
