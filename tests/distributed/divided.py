"""Checks of work that is divided otherwise than by samples alone: sequences around a ring, stages
by schedules, batches of which ranks have different numbers; `checks.py` runs them.
"""

import numpy as np
import pytest

import flowvm as flow
import flowvm.distributed as dist
from flowvm import nn
from flowvm.distributed import pipelining
from flowvm.distributed.algorithms.ddp_comm_hooks import default_hooks
from flowvm.distributed.tensor import init_device_mesh
from flowvm.distributed.tensor.experimental import context_parallel, context_parallel_unshard
from flowvm.nn import functional as F
from flowvm.ranks.world import rank, world_size

RANK, SIZE = rank(), world_size()
ALL, BROADCAST, SPLIT = flow.placement.all("cpu"), flow.sbp.broadcast, flow.sbp.split


def numbers(*shape, seed=0):
    return flow.tensor(np.random.default_rng(seed).standard_normal(shape), dtype=flow.float32)


def close(actual, expected):
    np.testing.assert_allclose(actual.detach().numpy(), expected.detach().numpy(), 2e-4, 2e-5)


# --- sequences ------------------------------------------------------------------------------------


def attended(q, k, v, g, causal=True):
    """The result of attention, and the gradients."""
    leaves = [t.detach().clone().requires_grad_() for t in (q, k, v)]
    out = F.scaled_dot_product_attention(*leaves, is_causal=causal)
    return (out.detach(), *flow.autograd.grad(out, leaves, g))


def check_context_parallel():
    mesh = init_device_mesh("cpu", (SIZE,))
    inputs = [numbers(2, 3, 4 * SIZE, 4, seed=k) for k in range(4)]
    replayed = flow.compile(attended)
    for causal in (True, False):
        expected = attended(*inputs, causal)
        with context_parallel(mesh, buffers=inputs, buffer_seq_dims=[2] * 4):
            assert inputs[0].shape == (2, 3, 4, 4)
            for function in (attended, replayed, replayed):
                results = context_parallel_unshard(mesh, function(*inputs, causal), [2] * 4)
                for a, b in zip(results, expected, strict=True):
                    close(a, b)
        assert inputs[0].shape == (2, 3, 4 * SIZE, 4)
        for a, b in zip(replayed(*inputs, causal), expected, strict=True):
            close(a, b)  # outside of the region it is not around the ranks


def check_a_ring_of_global_tensors():
    inputs = [numbers(1, 1, 3 * SIZE + 1, 4, seed=k) for k in range(4)]
    expected = attended(*inputs)
    cut = [t.to_global(ALL, BROADCAST).to_global(sbp=SPLIT(2)) for t in inputs]
    replayed = flow.compile(attended)
    for function in (attended, replayed, replayed):
        for a, b in zip(function(*cut), expected, strict=True):
            assert a.sbp == (SPLIT(2),) or SIZE == 1
            close(a, b)


def check_context_parallel_bad_input():
    mesh = init_device_mesh("cpu", (SIZE,))
    odd = context_parallel(mesh, buffers=[numbers(2 * SIZE + 1, 2)], buffer_seq_dims=[0])
    with pytest.raises(flow.errors.ShapeError, match=f"no multiple of {2 * SIZE}"), odd:
        pass
    x = numbers(1, 1, 2 * SIZE, 2)
    refused = pytest.raises(flow.errors.ArgumentError, match="takes no attn_mask")
    with context_parallel(mesh, buffers=[x], buffer_seq_dims=[2]), refused:
        F.scaled_dot_product_attention(x, x, x, attn_mask=flow.zeros(2, 2))


# --- stages ---------------------------------------------------------------------------------------


def layers(count):
    flow.manual_seed(5)
    return [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(count)]


def alone(parts, x, y):
    loss = F.mse_loss(nn.Sequential(*parts)(x), y)
    loss.backward()
    return loss


SCHEDULES = [
    (pipelining.ScheduleGPipe, 1), (pipelining.Schedule1F1B, 1),
    (pipelining.ScheduleInterleaved1F1B, 2), (pipelining.ScheduleLoopedBFS, 2),
]  # fmt: skip


def check_pipeline_schedules():
    x, y = numbers(8, 6, seed=1), numbers(8, 6, seed=2)
    for kind, each in SCHEDULES:
        count = SIZE * each
        whole, parts = layers(count), layers(count)
        own = range(RANK, count, SIZE)
        stages = [pipelining.PipelineStage(parts[k], k, count, "cpu") for k in own]
        schedule = kind(stages[0] if each == 1 else stages, 4, loss_fn=F.mse_loss)
        args = (x,) if RANK == 0 else ()
        for _ in range(2):  # gradients add up; shapes are known the second time
            expected, losses = alone(whole, x, y), []
            named = {"target": y, "losses": losses} if RANK == SIZE - 1 else {}
            out = schedule.step(*args, **named)
            assert (out is None) == (RANK != SIZE - 1)
            if out is not None:
                close(flow.stack(losses).mean(), expected)
        for k in own:
            for p, q in zip(parts[k].parameters(), whole[k].parameters(), strict=True):
                close(p.grad, q.grad)
        out = schedule.eval(*args)
        if out is not None:
            close(out, nn.Sequential(*whole)(x))


def check_a_pipeline_says_what_is_wrong():
    with pytest.raises(flow.errors.ArgumentError, match="is not on this rank"):
        pipelining.PipelineStage(nn.ReLU(), 2 * SIZE, 2 * SIZE)
    stage = pipelining.PipelineStage(nn.ReLU(), RANK, SIZE)
    with pytest.raises(flow.errors.ArgumentError, match="at least 1"):
        pipelining.ScheduleGPipe(stage, 0)
    schedule = pipelining.Schedule1F1B(stage, 4)
    if RANK == 0:  # nothing was sent yet
        with pytest.raises(flow.errors.ArgumentError, match="for 4 micro-batches"):
            schedule.step(flow.ones(2, 3))


class Staged(nn.Graph):
    def __init__(self, parts, schedule):
        super().__init__()
        self.model = nn.Sequential(*parts)
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))
        self.config.set_gradient_accumulation_steps(4)
        self.config.set_pipeline_schedule(schedule)

    def build(self, x, y):
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        return loss


def check_schedules_of_a_plan():
    x, y = numbers(8, 6, seed=1), numbers(8, 6, seed=2)
    for schedule, each in (("gpipe", 1), ("1f1b", 2)):  # with two stages each it is interleaved
        count = SIZE * each
        whole, parts = layers(count), layers(count)
        places = [flow.placement("cpu", [k % SIZE]) for k in range(count)]
        for k, part in enumerate(parts):
            part.to_global(places[k], BROADCAST).config.set_stage(k)
        graph = Staged(parts, schedule)
        inputs = [t.to_global(ALL, BROADCAST, check_meta=False).to_global(place, BROADCAST)
                 for t, place in ((x, places[0]), (y, places[-1]))]  # fmt: skip
        optimizer = flow.optim.SGD([p for part in whole for p in part.parameters()], lr=0.1)
        for _ in range(2):
            graph(*inputs)
            optimizer.zero_grad()
            alone(whole, x, y)
            optimizer.step()
        (plan,) = graph.plans
        assert plan.graph.in_flight == (4 if schedule == "gpipe" else count - RANK)
        for part, other in zip(parts, whole, strict=True):
            for p, q in zip(part.parameters(), other.parameters(), strict=True):
                close(p.to_global(ALL, BROADCAST).to_local(), q)


# --- data parallel --------------------------------------------------------------------------------


def model():
    flow.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))


def batches(of):
    """One batch on the first rank, two on the next."""
    return [numbers(5, 3, seed=10 * of + k) for k in range(of + 1)]


def trained_together(by_all):
    """The last rank's values, where ranks are models in one process."""
    models = [model() for _ in range(SIZE)]
    optimizers = [flow.optim.SGD(m.parameters(), lr=0.1) for m in models]
    for step in range(SIZE):
        active = [r for r in range(SIZE) if step < len(batches(r))]
        for r in active:
            for b, first in zip(models[r].buffers(), models[active[-1]].buffers(), strict=True):
                b.copy_(first)
        for r in active:
            optimizers[r].zero_grad()
            models[r](batches(r)[step]).square().sum().backward()
        count = SIZE if by_all else len(active)
        each = zip(*(models[r].parameters() for r in active), strict=True)
        for parameters in each:
            mean = sum(p.grad for p in parameters) / count
            for p in parameters:
                p.grad = mean.clone()
        for r in active:
            optimizers[r].step()
    return models[-1]


def check_join():
    for by_all in (True, False):
        ddp = nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=1e-5)
        optimizer = flow.optim.SGD(ddp.parameters(), lr=0.1)
        with ddp.join(divide_by_initial_world_size=by_all):
            for x in batches(RANK):
                optimizer.zero_grad()
                ddp(x).square().sum().backward()
                optimizer.step()
        expected = trained_together(by_all)
        for p, q in zip(ddp.module.parameters(), expected.parameters(), strict=True):
            close(p, q)
        for p, q in zip(ddp.module.buffers(), expected.buffers(), strict=True):
            close(p.float(), q.float())


def check_join_that_throws():
    ddp = nn.parallel.DistributedDataParallel(model())

    def train():
        with ddp.join(throw_on_early_termination=True):
            for x in batches(RANK):
                ddp(x).square().sum().backward()

    if SIZE == 1:
        train()
        return
    with pytest.raises(flow.errors.CommunicationError, match="has no more inputs"):
        train()


def own_hook(state, bucket):
    state.append(bucket.index())
    work = dist.all_reduce(bucket.buffer(), group=dist.group.WORLD, async_op=True)
    return work.get_future().then(lambda future: future.value()[0] / SIZE)


def check_comm_hooks():
    if not dist.is_initialized():
        dist.init_process_group()
    calls = []
    hooks = [
        (None, None, 0.0), (None, default_hooks.allreduce_hook, 1e-6),
        (None, default_hooks.fp16_compress_hook, 4e-3),
        (None, default_hooks.bf16_compress_hook, 3e-2),
        (None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), 4e-3),
        (calls, own_hook, 1e-6),
    ]  # fmt: skip
    expected = None
    for state, hook, most in hooks:
        ddp = nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=1e-5)
        if hook is not None:
            ddp.register_comm_hook(state, hook)
        ddp(numbers(5, 3, seed=RANK)).square().sum().backward()
        gradients = [p.grad.numpy() for p in ddp.parameters()]
        expected = expected or gradients
        scale = max(abs(w).max() for w in expected)
        for a, b in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=most * scale)
    if SIZE > 1:
        assert calls == list(range(len(ddp._buckets)))
    with pytest.raises(flow.errors.ArgumentError, match="a hook already"):
        ddp.register_comm_hook(None, own_hook)
