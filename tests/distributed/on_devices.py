"""Exchanges of CUDA tensors by a simulated NCCL: run by `flowvm launch -n N on_devices.py FOLDER`.

As in `checks.py`, each function `check_*` runs on every rank.
"""

import json
import re
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest

import flowvm as flow
import flowvm.distributed as dist
from flowvm import nn
from flowvm.ops.collectives import collectives as c
from flowvm.ranks.world import rank, world_size

RANK, SIZE = rank(), world_size()
DEVICE = flow.device(f"cuda:{RANK % 2}")
P, B, S = flow.placement.all("cuda"), flow.sbp.broadcast, flow.sbp.split
DTYPES = (
    flow.float32, flow.float64, flow.float16, flow.bfloat16, flow.int8, flow.uint8, flow.int32,
    flow.int64,
)  # fmt: skip


def data(number, shape=(4, 3)):
    """Small whole numbers of a rank: sums and products of them are exact."""
    return np.random.default_rng(number).integers(0, 3, shape)


def own(dtype=flow.float32, shape=(4, 3)):
    return flow.tensor(data(RANK, shape)).to(dtype).to(DEVICE)


def same(actual, expected):
    assert actual.device == DEVICE, actual.device
    np.testing.assert_array_equal(actual.to(flow.float64).cpu().numpy(), np.asarray(expected))


def check_reductions_of_every_dtype():
    every = [data(r) for r in range(SIZE)]
    for dtype in DTYPES if SIZE == 2 else DTYPES[::3]:
        for op, of in (("sum", np.add), ("prod", np.multiply), ("min", np.minimum),
                       ("max", np.maximum)):  # fmt: skip
            same(c.all_reduce(own(dtype), op), of.reduce(every))
    same(c.all_reduce(own(flow.bool)), np.logical_or.reduce(every))
    same(c.all_reduce_(own(), "mean"), np.mean(every, 0))
    same(c.reduce_(own(), 0), np.sum(every, 0) if RANK == 0 else data(RANK))
    with pytest.raises(flow.errors.DTypeError, match="NCCL has no sum of int16"):
        c.all_reduce(own(flow.int16))


def check_parts_equal_and_not():
    every = [data(r) for r in range(SIZE)]
    same(c.all_gather(own(flow.int16)), np.concatenate(every))
    sizes = [r % 3 for r in range(SIZE)]  # some ranks have nothing
    mine = own(flow.float16)[: sizes[RANK]]
    parts = [e[:n] for e, n in zip(every, sizes, strict=True)]
    same(c.all_gather(mine, sizes=sizes), np.concatenate(parts))
    begin = np.cumsum([0, *sizes])[RANK]
    whole = [data(r, (sum(sizes), 2)) for r in range(SIZE)]
    part = c.reduce_scatter(own(shape=(sum(sizes), 2)), sizes=sizes)
    same(part, np.sum(whole, 0)[begin : begin + sizes[RANK]])
    wide = np.sum([data(r, (2 * SIZE, 2)) for r in range(SIZE)], 0)
    same(c.reduce_scatter(own(shape=(2 * SIZE, 2))), wide[2 * RANK : 2 * RANK + 2])
    inputs = [(RANK + to) % 3 for to in range(SIZE)]
    receive_sizes = [(RANK + of) % 3 for of in range(SIZE)]
    rows = own(shape=(sum(inputs), 2))
    result = c.all_to_all(rows, split_sizes=inputs, concat_sizes=receive_sizes)
    expected = []
    for r in range(SIZE):
        sent = [(r + to) % 3 for to in range(SIZE)]
        at = np.cumsum([0, *sent])[RANK]
        expected.append(data(r, (sum(sent), 2))[at : at + sent[RANK]])
    same(result, np.concatenate(expected))
    same(c.broadcast(own(), SIZE - 1), data(SIZE - 1))


def check_messages_go_round_and_back():
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    dist.init_process_group("nccl")
    assert dist.is_nccl_available()
    assert dist.get_backend() == "nccl"
    for turn in range(3):  # each sends first: nobody waits for a whole circle
        x = own() + turn
        dist.isend(x, after)
        x.zero_()
        actual = flow.zeros(4, 3, device=DEVICE)
        dist.irecv(actual, before)
        same(actual, data(before) + turn)
    pair = dist.new_group([0, 1])
    if RANK < 2:
        x = own()
        dist.all_reduce(x, group=pair)
        same(x, data(0) + data(1))
    dist.destroy_process_group()


def losses(where, as_graph):
    """Return the losses of some steps of an MLP, whose parameters all ranks have."""
    flow.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).to_global(where, B)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
    x, y = (flow.randn(8, n, placement=where, sbp=S(0)) for n in (6, 2))

    def step(x, y):
        loss = nn.functional.mse_loss(model(x), y)
        if not as_graph:
            optimizer.zero_grad()
        loss.backward()
        if not as_graph:
            optimizer.step()
        return loss

    class Step(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x, y):
            return step(x, y)

    run = Step() if as_graph else step
    curve = [run(x, y).item() for _ in range(4)]
    if as_graph:
        assert re.search(r"a CUDA graph of \d branches", run.explain()), run.explain()
    return curve


def check_training_is_that_of_the_cpu():
    expected = losses(flow.placement.all("cpu"), False)
    assert expected[-1] < expected[0]
    for as_graph in (False, True)[SIZE > 2 :]:
        np.testing.assert_allclose(losses(P, as_graph), expected, rtol=1e-5)


def check_global_tensors_change_hands():
    flow.manual_seed(0)
    whole = flow.randn(5, 4).numpy()
    x = flow.tensor(whole, placement=P, sbp=S(0))
    assert x.to_local().device.index == RANK % 2
    for sbp in (B, S(1), S(0), B):
        x = x.to_global(sbp=sbp)
        np.testing.assert_array_equal(x.numpy(), whole)
    first, last = (flow.placement("cuda", [r]) for r in (0, SIZE - 1))
    result = x.to_global(placement=first, sbp=B).to_global(placement=last) * 2
    np.testing.assert_array_equal(result.to_global(placement=P, sbp=B).numpy(), 2 * whole)
    local = flow.full((2, 2), float(RANK)).to_global(P, S(0))  # goes to the device first
    np.testing.assert_array_equal(local.numpy()[::2, 0], range(SIZE))


def check_pipeline_stages_with_micro_batches():
    stages = [flow.placement("cuda", [r]) for r in range(SIZE)]
    flow.manual_seed(0)
    layers = [nn.Linear(4, 4) for _ in stages]
    expected = flow.ones(8, 4)
    for layer in layers:
        expected = layer(expected)
    for k, layer in enumerate(layers):
        layer.to_global(stages[k], B).config.set_stage(k)

    class Train(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = nn.Sequential(*layers)
            self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))
            self.config.set_gradient_accumulation_steps(4)

        def build(self, x):
            loss = self.model(x).square().mean()
            loss.backward()
            return loss

    train, x = Train(), flow.ones(8, 4, placement=stages[0], sbp=B)
    batches = [train(x).to_global(placement=P, sbp=B).mean().item() for _ in range(3)]
    np.testing.assert_allclose(batches[0], (expected**2).mean().item(), rtol=1e-5)
    assert batches[2] < batches[1] < batches[0]


outcome = {}
for name, check in [*globals().items()]:
    if name.startswith("check_"):
        try:
            check()
            outcome[name] = ""
        except BaseException:
            outcome[name] = traceback.format_exc()
            break
Path(sys.argv[1], f"{RANK}.json").write_text(json.dumps(outcome))
sys.exit(any(outcome.values()))
