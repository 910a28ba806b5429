"""The step on real ranks, which `python -m tools.scale --real 2` launches and compares with.

Each rank first records the step alone, all at the same time: so the times contain what ranks take
from each other by sharing a machine.  Then it measures an all-reduce, of few bytes and of many, and
the handover between computation and exchange.  Then it runs the step data parallel.  The prediction
is made of the first two.  The least of all times counts, since anything else that runs on the
machine only adds to them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import flowvm as flow
import flowvm.distributed as dist
from flowvm import nn
from flowvm.errors import ArgumentError, CommunicationError
from flowvm.ops.collectives.collectives import all_reduce
from flowvm.vm.machine.words import KIND
from tools.scale.links import Link, Network, fitted
from tools.scale.models import MODELS, Step, batch, network
from tools.scale.ranks import Mix, Prediction, predict
from tools.scale.recording import Work, record, replays

FEW, MANY = 64, 1 << 22  # bytes
CHAIN = 10  # all-reduces in a row
CHAINS = 20  # launches of it at least: they are short, and on a busy machine one tells nothing


class Compared(NamedTuple):
    """A prediction for some ranks, its data, and the seconds that a step took on them."""

    predicted: Prediction
    work: Work
    link: Link
    handover: float
    measured: float


def compare(name: str, width: int, layers: int, size: int, ranks: int, launches: int) -> Compared:
    """Launch the ranks, and predict their measurements.  CommunicationError if they fail."""
    if name not in MODELS:
        raise ArgumentError(f"--real is for {' and '.join(MODELS)}, not {name!r}")
    if ranks < 2:
        raise ArgumentError(f"--real: 2 ranks or more, got {ranks}")
    with tempfile.TemporaryDirectory(prefix="flowvm-scale-") as folder:
        out = Path(folder) / "measured.json"
        values = [str(v) for v in (out, name, width, layers, size, launches)]
        command = [
            sys.executable, "-m", "flowvm", "launch", "-n", str(ranks), "--threads", "1",
            "-m", "tools.scale.real", *values,
        ]  # fmt: skip
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode or not out.exists():
            raise CommunicationError(f"--real: {ranks} ranks ended with {process.returncode}:\n"
                                     f"{process.stdout}{process.stderr}")  # fmt: skip
        outcome = json.loads(out.read_text())
    work = Work.from_json(outcome["work"])
    link = fitted(outcome["few"], outcome["many"], MANY, ranks)
    handover = outcome["handover"]
    predicted = predict(work, Mix(data=ranks), Network(link, link), handover=handover)
    return Compared(predicted, work, link, handover, outcome["seconds"])


def exchanged(nbytes: int, launches: int) -> tuple[float, float]:
    """Return the least seconds of an all-reduce in a graph, and of a hand-over to computation."""

    @flow.compile
    def chain(x: Any) -> Any:
        for _ in range(CHAIN):
            x = all_reduce(x.cos())
        return x

    x = flow.zeros(nbytes // 4)
    for _ in range(3):
        chain(x)
    flow.vm.sync()
    each, between = [], []
    for _ in range(max(CHAINS, launches)):
        dist.barrier()
        with flow.profiler.profile() as p:
            chain(x)
            flow.vm.sync()
        run = p.run
        spent = 1e-9 * (run.tasks.times[:, 1] - run.tasks.times[:, 0])
        launch = run.kind == KIND.LAUNCH
        whole = 1e-9 * float((run.time("ended") - run.time("started"))[launch].sum())
        each.append(float(spent[run.tasks.op == run.names.index("all_reduce")].mean()))
        between.append(max(0.0, whole - float(spent.sum())) / (2 * CHAIN))
    return min(each), min(between)


def main(argv: list[str]) -> None:
    """Run on each rank: measure, and write rank 0's results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("model", choices=MODELS)
    for name in ("width", "layers", "size", "launches"):
        parser.add_argument(name, type=int)
    args = parser.parse_args(argv)
    dist.init_process_group("mpi")
    inputs = batch(args.model, args.width, args.size)
    dist.barrier()
    work = record(Step(network(args.model, args.width, args.layers)), *inputs,
                  launches=args.launches, least=True)  # fmt: skip
    few, handover = exchanged(FEW, args.launches)
    many, _ = exchanged(MANY, args.launches)
    alike = network(args.model, args.width, args.layers)
    step = Step(nn.parallel.DistributedDataParallel(alike))
    for _ in range(3):
        step(*inputs)
    flow.vm.sync()
    dist.barrier()
    _, _, lasted = replays(step, inputs, args.launches)
    if dist.get_rank() == 0:
        outcome = {"work": work.to_json(), "few": few, "many": many, "handover": handover,
                 "seconds": float(lasted.min())}  # fmt: skip
        args.out.write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(sys.argv[1:])
