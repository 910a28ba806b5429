"""`flowvm launch -n 2 -m tools.bench.comm [--rounds 9] [--only step]`: exchanges of ranks.

All-reduce of 4 MB, 64 KB and 64 B against nonblocking MPI by mpi4py and PyTorch's gloo; a training
step of an MLP, a CNN and a transformer with DistributedDataParallel against PyTorch's DDP with
gloo, and the share of exchanges in which a rank computed as well; what global tensors cost beside
local ones, where nothing is exchanged, and when a graph is captured and compiled.  Ours and the
peers run by turns in one launch, one thread each; a figure is the median of rounds, in
microseconds, and its ratio the median of the rounds' ratios.

"in a graph" is a graph of 20 in a chain, replayed; "issued" is a loop that waits once, at its end;
"waited" waits for each, as PyTorch and mpi4py do.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import flowvm as flow
import flowvm.distributed as dist
from flowvm import nn
from flowvm.ops.collectives.collectives import all_reduce
from flowvm.ranks.world import rank, world_size

SIZES = ((16, 1000), (16384, 300), (1 << 20, 20))  # float32 numbers, and how often
CHAIN = 20  # all-reduces of a graph
Runs = dict[str, Callable[[int], None]]


def timed(
    runs: Runs, often: int, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Microseconds of one of each, a number a round."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            dist.barrier()
            begun = clock()
            run(often)
            if number:  # the first round is for warming up
                times[name].append(1e6 * (clock() - begun) / often)
    return times


def report(what: str, rows: dict[str, list[float]], ours: str) -> None:
    """A line for each peer, by rank 0."""
    if rank():
        return
    mine = rows[ours]
    for name, times in rows.items():
        ratio = statistics.median(a / b for a, b in zip(mine, times, strict=True))
        middle, least = statistics.median(times), min(times)
        print(f"{what:18s} {name:22s} {middle:10.1f} us  (least {least:8.1f})  {ratio:6.2f}x")


def peers() -> tuple[Any, Any]:
    """torch with its process group, and mpi4py; None where it is not installed."""
    try:
        import torch
        import torch.distributed as theirs
    except ImportError:
        torch = theirs = None
    if torch is not None:
        torch.set_num_threads(1)
        port = [0]
        if rank() == 0:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = [free.getsockname()[1]]
        dist.broadcast_object_list(port, 0)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port[0]))
        theirs.init_process_group("gloo", rank=rank(), world_size=world_size())
    return torch, theirs


def all_reduces(torch: Any, theirs: Any, rounds: int) -> None:
    """All-reduce of each size."""
    from mpi4py import MPI

    everybody = MPI.COMM_WORLD.Dup()
    for count, often in SIZES:
        mine, array = flow.zeros(count), np.zeros(count, np.float32)

        def issued(times: int, mine: Any = mine) -> None:
            for _ in range(times):
                dist.all_reduce(mine)
            flow.vm.sync()

        def waited(times: int, mine: Any = mine) -> None:
            for _ in range(times):
                work = dist.all_reduce(mine, async_op=True)
                assert work is not None
                work.wait()

        def raw(times: int, array: Any = array) -> None:
            for _ in range(times):
                everybody.Iallreduce(MPI.IN_PLACE, array).Wait()

        @flow.compile
        def chain(x: Any) -> Any:
            for _ in range(CHAIN):
                x = all_reduce(x)
            return x

        def replayed(times: int, mine: Any = mine, chain: Any = chain) -> None:
            for _ in range(times // CHAIN):
                chain(mine)
            flow.vm.sync()

        runs: Runs = {
            "flowvm in a graph": replayed,
            "flowvm issued": issued,
            "flowvm waited": waited,
            "mpi4py Iallreduce": raw,
        }
        if torch is not None:
            tensor = torch.zeros(count)

            def gloo(times: int, tensor: Any = tensor) -> None:
                for _ in range(times):
                    theirs.all_reduce(tensor)

            runs["PyTorch gloo"] = gloo
        report(f"all_reduce {4 * count} B", timed(runs, often, rounds), "flowvm issued")


def networks(nn: Any) -> dict[str, Any]:
    """An MLP and a CNN of either framework."""
    mlp = nn.Sequential(
        nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    cnn = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 14 * 14, 10),
    )  # fmt: skip
    return {"MLP": mlp, "CNN": cnn, "transformer": transformer(nn)}


def transformer(nn: Any) -> Any:
    """Two layers, and a sum over all places."""
    layers = [nn.TransformerEncoderLayer(64, 4, 256, 0.0, batch_first=True) for _ in range(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 32, 10))


SHAPES = {"MLP": (64, 256), "CNN": (32, 1, 28, 28), "transformer": (16, 32, 64)}


class Training(nn.Graph):
    """A step as a graph."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.add_optimizer(flow.optim.SGD(network.parameters(), lr=0.01))

    def build(self, x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(self.network(x), y)
        loss.backward()
        return loss


def steps(torch: Any, rounds: int) -> None:
    """A training step on each rank's batch: forward, backward, SGD."""
    mine = {k: nn.parallel.DistributedDataParallel(m) for k, m in networks(nn).items()}
    alone = networks(nn)
    for what, shape in SHAPES.items():
        x = np.random.default_rng(rank()).standard_normal(shape).astype(np.float32)
        y = np.random.default_rng(rank()).integers(0, 10, shape[0])

        def step(model: Any, x: Any = x, y: Any = y) -> Callable[[int], None]:
            optimizer = flow.optim.SGD(model.parameters(), lr=0.01)
            batch = flow.tensor(x), flow.tensor(y)

            def run(times: int) -> None:
                for _ in range(times):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
                    optimizer.step()
                flow.vm.sync()

            return run

        graph = Training(nn.parallel.DistributedDataParallel(networks(nn)[what]))
        inputs = flow.tensor(x), flow.tensor(y)

        def replayed(times: int, graph: Any = graph, inputs: Any = inputs) -> None:
            for _ in range(times):
                graph(*inputs)
            flow.vm.sync()

        runs: Runs = {
            "flowvm DDP": step(mine[what]),
            "flowvm DDP, graph": replayed,
            "flowvm alone": step(alone[what]),
        }
        if torch is not None:
            model = torch.nn.parallel.DistributedDataParallel(networks(torch.nn)[what])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            batch = torch.tensor(x), torch.tensor(y)

            def theirs(
                times: int, model: Any = model, optimizer: Any = optimizer, batch: Any = batch
            ) -> None:
                for _ in range(times):
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
                    optimizer.step()

            runs["PyTorch DDP, gloo"] = theirs
        report(f"{what} step", timed(runs, 20, rounds), "flowvm DDP")


def hidden_shares(
    graph: Any, inputs: tuple[Any, ...], rounds: int, steps: int
) -> Iterator[list[float]]:
    """Yield the share of exchanges during which a rank computed, of each rank, for each round of
    some steps; the first round, which captures, is left out.
    """
    for number in range(rounds + 1):
        with flow.profiler.profile(level=2) as p:
            for _ in range(steps):
                graph(*inputs)
            flow.vm.sync()
        ranks = flow.profiler.gather(p).summary().ranks
        if number:
            yield [one.hidden for one in ranks]


def hidden(rounds: int) -> None:
    """Print the share of exchanges during which a rank computed, with and without the pass `late`.

    The backward of the graph makes eight buckets of gradients.
    """
    layers = [m for _ in range(8) for m in (nn.Linear(512, 512), nn.ReLU())]
    x, y = flow.randn(512, 512), flow.randint(0, 10, (512,))
    for without in ((), ("late",)):
        network = nn.Sequential(*layers, nn.Linear(512, 10))
        graph, shares = Training(nn.parallel.DistributedDataParallel(network)), []
        graph.config.disable(*without)
        for some in hidden_shares(graph, (x, y), rounds, 5):
            shares += some
        if rank() == 0:
            what = f"without {without[0]}" if without else ""
            print(f"exchanges hidden {what:14s} {statistics.median(shares):6.0%}  of {len(shares)}")


def placed(rounds: int) -> None:
    """Issuing `a + b` of global tensors and of local ones; the call of a graph that captures and
    compiles it.
    """
    where = flow.placement.all("cpu")
    local = [flow.randn(8, 8) for _ in range(2)]
    tensors = [flow.randn(8, 8, placement=where, sbp=flow.sbp.split(0)) for _ in range(2)]

    def adding(a: Any, b: Any) -> Callable[[int], None]:
        def run(times: int) -> None:
            for _ in range(times):
                a + b
            # what is issued is what is timed: there are fewer than the VM has in flight

        return run

    runs: Runs = {"global": adding(*tensors), "local": adding(*local)}
    for run in runs.values():
        run(2000)
        flow.vm.sync()
    report("issue a + b", timed(runs, 1000, 5 * rounds), "global")

    def capturing(sbp: Any) -> Callable[[int], None]:
        prepared = []
        for _ in range(rounds + 1):
            network, shape = transformer(nn), SHAPES["transformer"]
            x, y = flow.randn(*shape), flow.randint(0, 10, shape[:1])
            if sbp is not None:
                network = network.to_global(where, flow.sbp.broadcast)
                x, y = (t.to_global(where, sbp) for t in (x, y))
            prepared.append((Training(network), x, y))
            prepared[-1][0](x, y)  # eagerly: that makes what the optimizer keeps
        flow.vm.sync()

        def run(times: int) -> None:
            graph, x, y = prepared.pop()
            graph(x, y)  # by the time that its thread has computed: it does not wait

        return run

    captures: Runs = {"global, data parallel": capturing(flow.sbp.split(0)),
                      "local": capturing(None)}  # fmt: skip
    times = timed(captures, 1, rounds, time.thread_time)
    report("capture", times, "global, data parallel")


def main() -> None:
    """Print the benchmarks; docs/reference/distributed-performance.md has the figures promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=("allreduce", "step", "hidden", "placed"), default=None)
    args = parser.parse_args()
    flow.set_num_threads(1)
    dist.init_process_group("mpi")
    torch, theirs = peers()
    if rank() == 0:
        print(f"{world_size()} ranks; the ratio is ours to that line's; load {os.getloadavg()[0]}")
    if args.only in (None, "allreduce"):
        all_reduces(torch, theirs, args.rounds)
    if args.only in (None, "step"):
        steps(torch, args.rounds)
    if args.only in (None, "hidden"):
        hidden(args.rounds)
    if args.only in (None, "placed"):
        placed(args.rounds)


if __name__ == "__main__":
    main()
