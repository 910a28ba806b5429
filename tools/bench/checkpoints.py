"""`flowvm launch -n 2 --threads 1 -m tools.bench.checkpoints [--rounds 5]`: their cost.

A transformer is trained with `fully_shard` and AdamW, in turn without checkpoints and with one that
`async_save` writes every 100 steps, which here are a few seconds.  `save`, which waits for the
files, stands beside.  A figure is a step's mean time in milliseconds, the ratio the median of the
rounds'.

On a busy machine that ratio says little.  So the last line has what one checkpoint takes of the
processor: in the program's thread, `get_state_dict` and `async_save`, and in the thread that
writes; and their share of 100 steps at their least time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import flowvm as flow
import flowvm.distributed as dist
import flowvm.distributed.checkpoint as dcp
from flowvm import nn
from flowvm.distributed.checkpoint.state_dict import get_state_dict
from flowvm.distributed.fsdp import fully_shard
from flowvm.ranks.world import rank, world_size
from tools.bench.comm import transformer

BATCH, LENGTH, WIDTH = 32, 32, 64  # of the transformer of tools.bench.comm


class Timed(dcp.FileSystemWriter):
    """A writer that takes the processor time of its two parts."""

    seconds: ClassVar[dict[str, list[float]]] = {"call": [], "writing": []}

    def prepared(self, state: Mapping[str, Any]) -> Callable[[float], None]:
        """See StorageWriter."""
        rest = super().prepared(state)

        def timed(patience: float) -> None:
            begun = time.thread_time()
            rest(patience)
            self.seconds["writing"].append(time.thread_time() - begun)

        return timed


class Training:
    """The transformer, and its steps with a checkpoint every `often` ones."""

    def __init__(self, folder: Path) -> None:
        flow.manual_seed(0)
        self.folder = folder
        self.model: Any = transformer(nn)
        for part in (*list(self.model)[:2], self.model):
            fully_shard(part)
        self.optimizer = flow.optim.AdamW(self.model.parameters(), lr=1e-3)
        rng = np.random.default_rng(rank())
        self.x = flow.tensor(rng.standard_normal((BATCH, LENGTH, WIDTH)).astype(np.float32))
        self.y = flow.tensor(rng.integers(0, 10, BATCH))

    def steps(self, count: int, often: int, save: Any) -> float:
        """Return the mean milliseconds of a step; all that was saved is written then."""
        saved: Future[None] | None = None
        dist.barrier()
        begun = time.perf_counter()
        for step in range(count):
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(self.x), self.y).backward()
            self.optimizer.step()
            if save is not None and step % often == often // 2:
                now = time.thread_time()
                parameters, states = get_state_dict(self.model, self.optimizer)
                state = {"model": parameters, "optimizer": states}
                saved = save(state, storage_writer=Timed(self.folder))
                if saved is not None:
                    Timed.seconds["call"].append(time.thread_time() - now)
        if saved is not None:
            saved.result()
        flow.vm.sync()
        dist.barrier()
        return 1e3 * (time.perf_counter() - begun) / count


def main() -> None:
    """Print the figures; docs/reference/distributed-performance.md has those promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--often", type=int, default=100)
    args = parser.parse_args()
    dist.init_process_group()
    where = [tempfile.mkdtemp(prefix="flowvm-bench-") if rank() == 0 else None]
    dist.broadcast_object_list(where, 0)
    training = Training(Path(str(where[0])) / "step")
    kinds = {"none": None, "async_save": dcp.async_save, "save": dcp.save}
    times_by_kind: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(args.rounds + 1):
        for name, save in kinds.items():
            took = training.steps(args.steps, args.often, save)
            if number:
                times_by_kind[name].append(took)
    if rank() == 0:
        load = os.getloadavg()[0]
        print(f"{world_size()} ranks, a checkpoint every {args.often} steps; load {load}")
        for name, times in times_by_kind.items():
            ratio = statistics.median(
                a / b for a, b in zip(times, times_by_kind["none"], strict=True)
            )
            print(f"{name:12s} {statistics.median(times):8.2f} ms (least {min(times):.2f}) "
                  f"{100 * (ratio - 1):+6.1f} %")  # fmt: skip
        call, writing = (1e3 * statistics.median(times) for times in Timed.seconds.values())
        share = (call + writing) / (args.often * min(times_by_kind["none"]))
        print(f"a checkpoint: {call:.1f} ms in the program's thread, {writing:.1f} ms in the one "
              f"that writes: {share:.2%} of {args.often} steps")  # fmt: skip
        shutil.rmtree(str(where[0]))


if __name__ == "__main__":
    main()
