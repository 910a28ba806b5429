"""`python -m flowvm launch -n 2 --threads 1 -m tools.bench.ranks [--only TEXT] [--rounds 15]`: the
speed of ranks as promised, a row each.

Ours and the peer run by turns in one launch, one thread each.  A figure is the least of rounds: on
a machine with other work to do, that is the time that nobody disturbed.  The ratio is of the two
least times; "hidden" is a share.  `tools.bench.comm` has medians, and more sizes.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import flowvm as flow
import flowvm.distributed as dist
from flowvm import nn
from flowvm.distributed.device_mesh import init_device_mesh
from flowvm.distributed.fsdp import fully_shard
from flowvm.distributed.tensor import parallel as tp
from flowvm.ranks.world import rank, world_size
from tools.bench.comm import SHAPES, Runs, Training, hidden_shares, networks, peers, timed

SPLIT = 8  # micro-batches of a pipeline
WIDTH, HEADS, CLASSES = 64, 4, 10


class Row(NamedTuple):
    """A line of the table: what runs, who is compared with whom, and the ratio to reach."""

    name: str
    runs: Runs
    often: int  # of one round
    ours: str
    peer: str
    reach: float


def numbers(shape: tuple[int, ...]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A batch of this rank, and its classes."""
    rng = np.random.default_rng(rank())
    x = rng.standard_normal(shape).astype(np.float32)
    return x, rng.integers(0, CLASSES, shape[0])


def step(
    model: Any, x: Any, y: Any, optim: Any, functional: Any, wait: bool
) -> Callable[[int], None]:
    """Run training steps: forward, backward, SGD."""
    optimizer = optim.SGD(model.parameters(), lr=0.01)

    def run(times: int) -> None:
        for _ in range(times):
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        if wait:
            flow.vm.sync()

    return run


def replayed(graph: Any, *inputs: Any) -> Callable[[int], None]:
    """Run a graph."""

    def run(times: int) -> None:
        for _ in range(times):
            graph(*inputs)
        flow.vm.sync()

    return run


def ours(model: Any, x: Any, y: Any) -> Callable[[int], None]:
    """Run steps of a model of ours."""
    return step(model, x, y, flow.optim, nn.functional, True)


def theirs(torch: Any, model: Any, x: Any, y: Any) -> Callable[[int], None]:
    """Run steps of one of PyTorch's."""
    x, y = torch.tensor(x), torch.tensor(y)
    return step(model, x, y, torch.optim, torch.nn.functional, False)


# --- rows -----------------------------------------------------------------------------------------


def global_tensors(torch: Any) -> Iterator[Row]:
    """Data parallel by global tensors, against DistributedDataParallel."""
    x, y = numbers(SHAPES["MLP"])
    where = flow.placement.all("cpu")
    model = networks(nn)["MLP"].to_global(where, flow.sbp.broadcast)
    inputs = [flow.tensor(v).to_global(where, flow.sbp.split(0)) for v in (x, y)]
    ddp = nn.parallel.DistributedDataParallel(networks(nn)["MLP"])
    runs: Runs = {
        "global tensors": ours(model, *inputs),
        "DDP": ours(ddp, flow.tensor(x), flow.tensor(y)),
    }
    yield Row("global MLP", runs, 20, "global tensors", "DDP", 1.3)


def sharded(torch: Any) -> Iterator[Row]:
    """Parameters cut by `fully_shard`, against PyTorch's."""
    if torch is None:
        return
    from torch.distributed.fsdp import fully_shard as their_fully_shard

    x, y = numbers(SHAPES["MLP"])
    model, peer = networks(nn)["MLP"], networks(torch.nn)["MLP"]
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (world_size(),))
    for part in (model[0], model[2], model):
        fully_shard(part)
    for part in (peer[0], peer[2], peer):
        their_fully_shard(part, mesh=mesh)
    runs: Runs = {
        "fully_shard": ours(model, flow.tensor(x), flow.tensor(y)),
        "PyTorch FSDP2": theirs(torch, peer, x, y),
    }
    yield Row("fully_shard MLP", runs, 10, "fully_shard", "PyTorch FSDP2", 0.3)


def small_exchange(torch: Any) -> Iterator[Row]:
    """All-reduce of 64 bytes, each waited for, and issued one behind the other."""
    from mpi4py import MPI

    everybody = MPI.COMM_WORLD.Dup()
    mine, array = flow.zeros(16), np.zeros(16, np.float32)

    def waited(times: int) -> None:
        for _ in range(times):
            work = dist.all_reduce(mine, async_op=True)
            assert work is not None
            work.wait()

    def issued(times: int) -> None:
        for _ in range(times):
            dist.all_reduce(mine)
        flow.vm.sync()

    def raw(times: int) -> None:
        for _ in range(times):
            everybody.Allreduce(MPI.IN_PLACE, array)

    def started(times: int) -> None:
        for _ in range(times):
            everybody.Iallreduce(MPI.IN_PLACE, array).Wait()

    runs: Runs = {
        "issued": issued, "waited": waited, "mpi4py Iallreduce": started, "mpi4py Allreduce": raw,
    }  # fmt: skip
    yield Row("all-reduce 64 B", runs, 1000, "issued", "mpi4py Iallreduce", 1.1)


def block(nn: Any, width: int = WIDTH, heads: int = HEADS) -> Any:
    """A layer of a transformer of either framework, whose heads may be shared among ranks."""

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            n, length = x.shape[0], x.shape[1]
            z = self.before(x)
            q, k, v = (
                f(z).view(n, length, -1, width // heads).transpose(1, 2)
                for f in (self.q, self.k, self.v)
            )
            attended = nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + self.o(attended.transpose(1, 2).reshape(n, length, -1))
            return x + self.down(nn.functional.gelu(self.up(self.between(x))))

    return Block()


def megatron(nn: Any, tp: Any, mesh: Any) -> Any:
    """Two layers whose products are cut by columns, then by rows, and a sum over all places."""
    model = nn.Sequential(block(nn), block(nn), nn.Flatten(), nn.Linear(WIDTH * 32, CLASSES))
    plan = {f"{k}.{name}": tp.ColwiseParallel() for k in "01" for name in ("q", "k", "v", "up")}
    plan |= {f"{k}.{name}": tp.RowwiseParallel() for k in "01" for name in ("o", "down")}
    return tp.parallelize_module(model, mesh, plan)


def tensor_parallel(torch: Any) -> Iterator[Row]:
    """A transformer by Megatron's cut, eagerly and as a graph, against DTensor."""
    if torch is None:
        return
    from torch.distributed.tensor import parallel as their_tp

    rng = np.random.default_rng(0)  # all ranks have the same batch
    x = rng.standard_normal((16, 32, WIDTH)).astype(np.float32)
    y = rng.integers(0, CLASSES, 16)
    mesh = init_device_mesh("cpu", (world_size(),))
    their_mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (world_size(),))
    inputs = flow.tensor(x), flow.tensor(y)
    runs: Runs = {
        "eager": ours(megatron(nn, tp, mesh), *inputs),
        "graph": replayed(Training(megatron(nn, tp, mesh)), *inputs),
        "DTensor": theirs(torch, megatron(torch.nn, their_tp, their_mesh), x, y),
    }
    for kind in ("eager", "graph"):
        yield Row(f"tensor parallel, {kind}", runs, 10, kind, "DTensor", 0.4)


def half(nn: Any, stage: int) -> Any:
    """A stage of a pipeline."""
    sizes = ((256, 512), (512, 512), (512, 512)) if stage == 0 else ((512, 512), (512, 512))
    layers = [m for a, b in sizes for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, *([nn.Linear(512, CLASSES)] if stage else []))


class Pipeline(nn.Graph):
    """A step of a model of stages, in micro-batches."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.add_optimizer(flow.optim.SGD(network.parameters(), lr=0.01))
        self.config.set_gradient_accumulation_steps(SPLIT)

    def build(self, x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(self.network(x), y)
        loss.backward()
        return loss


def pipeline(torch: Any) -> Iterator[Row]:
    """Two stages and eight micro-batches, against `torch.distributed.pipelining`."""
    if torch is None or world_size() != 2:
        return
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rng = np.random.default_rng(0)
    x = rng.standard_normal((256, 256)).astype(np.float32)
    y = rng.integers(0, CLASSES, 256)
    places = [flow.placement("cpu", [r]) for r in range(2)]
    stages = [half(nn, k).to_global(places[k], flow.sbp.broadcast) for k in range(2)]
    for k, stage in enumerate(stages):
        stage.config.set_stage(k, places[k])
    everywhere = flow.placement.all("cpu")
    inputs = [
        flow.tensor(v).to_global(everywhere, flow.sbp.broadcast).to_global(place, flow.sbp.split(0))
        for v, place in zip((x, y), places, strict=True)
    ]
    graph = Pipeline(nn.Sequential(*stages))

    own = half(torch.nn, rank())
    stage = PipelineStage(own, rank(), 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, SPLIT, loss_fn=torch.nn.functional.cross_entropy)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.01)
    batch, classes = torch.tensor(x), torch.tensor(y)

    def piped(times: int) -> None:
        for _ in range(times):
            optimizer.zero_grad()
            if rank() == 0:
                schedule.step(batch)
            else:
                schedule.step(target=classes, losses=[])
            optimizer.step()

    runs: Runs = {"graph": replayed(graph, *inputs), "PyTorch pipelining": piped}
    yield Row("pipeline", runs, 10, "graph", "PyTorch pipelining", 0.6)


ROWS = (global_tensors, sharded, small_exchange, tensor_parallel, pipeline)


# --- what is hidden -------------------------------------------------------------------------------


def hidden(rounds: int) -> None:
    """Print the share of exchanges during which a rank computed in the backward of a transformer
    of several buckets, as a graph.
    """
    layers = [nn.TransformerEncoderLayer(256, 4, 512, 0.0, batch_first=True) for _ in range(4)]
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 32, CLASSES))
    graph = Training(nn.parallel.DistributedDataParallel(network))
    x, y = (flow.tensor(v) for v in numbers((32, 32, 256)))
    shares = [min(some) for some in hidden_shares(graph, (x, y), rounds, 3)]
    if rank() == 0:
        middle = statistics.median(shares)
        print(f"{'hidden, transformer':24s} {max(shares):6.0%}  (median {middle:.0%})  reach 85%")


def report(row: Row, times: dict[str, list[float]]) -> None:
    """Print the row, by rank 0: the least time of each, and the ratio to reach."""
    if rank():
        return
    least = {name: min(t) for name, t in times.items()}
    ratio = least[row.ours] / least[row.peer]
    timings = "  ".join(f"{name} {t:.1f} us" for name, t in least.items())
    print(f"{row.name:24s} {ratio:6.2f}x  (reach {row.reach}x)  {timings}", flush=True)


def main() -> None:
    """Print the rows; docs/reference/distributed-performance.md has the figures promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="rows of a function whose name has this text")
    args = parser.parse_args()
    flow.set_num_threads(1)
    dist.init_process_group("mpi")
    torch, _ = peers()
    if rank() == 0:
        print(f"{world_size()} ranks; least times of {args.rounds}; load {os.getloadavg()[0]}")
    measured: dict[int, dict[str, list[float]]] = {}
    for make in ROWS:
        if args.only not in make.__name__:
            continue
        for row in make(torch):
            if id(row.runs) not in measured:
                measured[id(row.runs)] = timed(row.runs, row.often, args.rounds)
            report(row, measured[id(row.runs)])
    if args.only in "hidden":
        hidden(min(args.rounds, 8))


if __name__ == "__main__":
    main()
