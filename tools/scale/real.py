"""The same step on real ranks: what `python -m tools.scale --real 2` launches, and compares with.

Each rank first records the step alone, all at the same time, so that what they take from each other
by sharing a machine is in the times; then how long an all-reduce takes, of few bytes and of many;
then the step data parallel.  The prediction is made of the first two.  Of all times the least is
taken: what else runs on the machine only adds to them.
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
from tools.scale.links import Link, Network, fitted
from tools.scale.models import MODELS, Step, batch, network
from tools.scale.ranks import Mix, Prediction, predict
from tools.scale.recording import Work, record, replays

FEW, MANY = 64, 1 << 22  # bytes
CHAIN = 10  # all-reduces in a row


class Compared(NamedTuple):
    """What was predicted for so many ranks, of what, and the seconds that a step took on them."""

    predicted: Prediction
    work: Work
    link: Link
    measured: float


def compare(name: str, width: int, layers: int, size: int, ranks: int, launches: int) -> Compared:
    """Launch the ranks, and predict what they measured.  CommunicationError if they fail."""
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
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not out.exists():
            raise CommunicationError(f"--real: {ranks} ranks ended with {done.returncode}:\n"
                                     f"{done.stdout}{done.stderr}")  # fmt: skip
        found = json.loads(out.read_text())
    work = Work.from_json(found["work"])
    link = fitted(found["few"], found["many"], MANY, ranks)
    predicted = predict(work, Mix(data=ranks), Network(link, link))
    return Compared(predicted, work, link, found["seconds"])


def exchanged(nbytes: int, launches: int) -> float:
    """Seconds of an all-reduce in a graph, the least."""

    @flow.compile
    def chain(x: Any) -> Any:
        for _ in range(CHAIN):
            x = all_reduce(x)
        return x

    x = flow.zeros(nbytes // 4)
    for _ in range(3):
        chain(x)
    flow.vm.sync()
    times = []
    for _ in range(launches):
        dist.barrier()
        with flow.profiler.profile() as p:
            chain(x)
            flow.vm.sync()
        spent = p.run.task_times[:, 1] - p.run.task_times[:, 0]
        times.append(float(spent.sum()) / CHAIN * 1e-9)
    return min(times)


def main(argv: list[str]) -> None:
    """On each rank: measure, and write what rank 0 found."""
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
    few, many = (exchanged(nbytes, args.launches) for nbytes in (FEW, MANY))
    alike = network(args.model, args.width, args.layers)
    step = Step(nn.parallel.DistributedDataParallel(alike))
    for _ in range(3):
        step(*inputs)
    flow.vm.sync()
    dist.barrier()
    _, _, lasted = replays(step, inputs, args.launches)
    if dist.get_rank() == 0:
        found = {"work": work.to_json(), "few": few, "many": many,
                 "seconds": float(lasted.min())}  # fmt: skip
        args.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
