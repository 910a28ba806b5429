"""`python -m tools.lost [--minutes 5] [--every 20]`: a job that loses a rank again and again.

A transformer is trained on two or three ranks by turns: every 20 seconds one of them is killed or
stopped, and `flowvm launch --restarts` goes on with what hosts are left, from the newest whole
checkpoint.  Its losses must be those of one process that nobody disturbs, to 1e-6.  They are
float64: another number of ranks adds in another order.

`flowvm launch -n 3 -m tools.lost --program FOLDER STEPS` is the program itself.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

import flowvm as flow
import flowvm.distributed as dist
import flowvm.distributed.checkpoint as dcp
from flowvm import nn
from flowvm.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from flowvm.distributed.fsdp import fully_shard
from tools import hosts

BATCH, LENGTH, WIDTH, WORDS = 12, 8, 16, 11  # one, two, three or four ranks divide the batch
CLOSE = 1e-6
GONE = "this host is lost"
TIMEOUT = "5"  # seconds that a rank waits for one that is stopped


class Transformer(nn.Module):
    """Two layers; the words of a row are predicted from the word before them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, 0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: flow.Tensor) -> flow.Tensor:
        """Return the scores of the next word at each place."""
        x = self.table(words)
        for layer in self.layers:
            x = layer(x)
        scores: flow.Tensor = self.head(x)
        return scores


def network() -> Transformer:
    """The transformer before its first step."""
    flow.manual_seed(0)
    return Transformer().double()


def loss_of(model: nn.Module, step: int, rank: int, ranks: int) -> flow.Tensor:
    """The mean loss of a rank's rows in a step."""
    rows = np.random.default_rng(step).integers(0, WORDS, (BATCH, LENGTH + 1))[rank::ranks]
    scores = model(flow.tensor(rows[:, :-1]))
    return nn.functional.cross_entropy(scores.flatten(0, 1), flow.tensor(rows[:, 1:]).flatten())


def undisturbed(steps: int) -> list[float]:
    """The losses of one process."""
    model = network()
    optimizer = flow.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, step, 0, 1)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def program(folder: Path, steps: int, every: int, killed_at: int = -1) -> None:
    """Train from the newest checkpoint on; the first rank writes each loss into FOLDER/losses.

    every       steps between two checkpoints
    killed_at   the step in which the last rank kills itself at the first start, once the checkpoint
                before it is whole; its host is gone then, and a save that it had begun is in parts
    """
    dist.init_process_group()
    start, rank, ranks = dist.restart(), dist.get_rank(), dist.get_world_size()
    model = network()
    for part in (*model.layers, model):
        fully_shard(part)
    optimizer = flow.optim.AdamW(model.parameters(), lr=0.01)
    first, saved = 0, Future[None]()
    saved.set_result(None)
    if start.checkpoint:
        parameters, states = get_state_dict(model, optimizer)
        into: dict[str, Any] = {"model": parameters, "optimizer": states, "step": 0}
        dcp.load(into, checkpoint_id=start.checkpoint)
        set_state_dict(
            model, optimizer, model_state_dict=into["model"], optim_state_dict=into["optimizer"]
        )
        first = into["step"]
    with open(folder / "losses", "a") as losses:
        for step in range(first, steps):
            if step and step % every == 0 and step != first:
                saved.result()  # one at a time
                parameters, states = get_state_dict(model, optimizer)
                saved = dcp.async_save(
                    {"model": parameters, "optimizer": states, "step": step},
                    checkpoint_id=folder / "checkpoints" / f"step_{step}",
                )
            if step == killed_at and start.count == 0:
                saved.result()
                dist.barrier()
                if rank == ranks - 1:
                    lose_host(folder, ranks - 1)
            optimizer.zero_grad()
            loss = loss_of(model, step, rank, ranks)
            loss.backward()
            optimizer.step()
            dist.all_reduce(mean := loss.detach().clone(), op=dist.ReduceOp.AVG)
            value = mean.item()
            if rank == 0:
                print(step, value.hex(), start.count, ranks, file=losses, flush=True)
    saved.result()


def lose_host(folder: Path, host: int) -> None:
    """End this rank as if its host were gone, in the middle of a save."""
    part = folder / "checkpoints" / "step_lost" / f"{1:016x}-{host:05}.safetensors"
    part.parent.mkdir()
    part.write_bytes(b"half")
    if (
        hosts.RSH in os.environ
    ):  # it is a host of `tools.hosts`, which waits for this line to end it
        print(GONE, flush=True)
        signal.pause()
    (folder / "hosts").write_text(f"localhost:{host}\n")
    os.kill(os.getpid(), signal.SIGKILL)


# --- around it ------------------------------------------------------------------------------------


def options(folder: Path, where: str, restarts: int, *args: str) -> list[str]:
    """The arguments of `flowvm launch` for a job in a new folder, on hosts such as "a:2,b:1"."""
    (folder / "checkpoints").mkdir()
    (folder / "hosts").write_text(where.replace(",", "\n"))
    return [
        "--hosts", str(folder / "hosts"), "--restarts", str(restarts), "--checkpoint",
        str(folder / "checkpoints"), "-m", "tools.lost", "--program", str(folder), *args,
    ]  # fmt: skip


def losses_of(folder: Path) -> dict[int, list[tuple[float, int, int]]]:
    """Each step's (loss, restarts before it, ranks), as often as it was computed."""
    losses: dict[int, list[tuple[float, int, int]]] = {}
    for line in (folder / "losses").read_text().splitlines():
        step, value, count, ranks = line.split()
        losses.setdefault(int(step), []).append((float.fromhex(value), int(count), int(ranks)))
    return losses


def furthest(folder: Path, expected: list[float]) -> float:
    """Return the largest distance of a loss from the wanted one; all steps must be there."""
    losses = losses_of(folder)
    if sorted(losses) != list(range(len(expected))):
        raise AssertionError(f"{len(losses)} steps of {len(expected)} have a loss")
    return max(abs(value - expected[step]) for step, runs in losses.items() for value, *_ in runs)


def ranks_of(parent: int) -> list[int]:
    """The processes below a launcher that compute: those that have no child of their own."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (place / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(place.name))
    leaves, look = [], [parent]
    while look:
        below = children.get(look.pop(), [])
        look += below
        leaves += [process for process in below if process not in children]
    return sorted(leaves)


def disturb(folder: Path, launcher: subprocess.Popen[bytes], until: float, every: float) -> int:
    """Kill or stop a rank again and again, and change the number of hosts.  Return how often."""
    seed = random.SystemRandom().randrange(1 << 30)
    chance, times = random.Random(seed), 0
    print(f"seed {seed}", flush=True)
    while launcher.poll() is None and time.monotonic() + every < until:
        time.sleep(every)
        ranks = ranks_of(launcher.pid)
        if not ranks:
            continue
        how = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
        (folder / "hosts").write_text(f"localhost:{chance.choice([2, 3])}\n")
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(ranks), how)
            times += 1
    return times


def main() -> int:
    """Run the job, disturb it, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", nargs="+", metavar="ARG", help=argparse.SUPPRESS)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument(
        "--every", type=float, default=20.0, help="seconds between two ranks that are lost"
    )
    parser.add_argument("--steps", type=int, default=6000)
    args = parser.parse_args()
    if args.program:
        folder, *numbers = args.program
        program(Path(folder), *map(int, numbers))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begun = time.monotonic()
        started = [sys.executable, "-m", "flowvm", "launch"]
        launcher = subprocess.Popen(
            [*started, *options(folder, "localhost:3", 1000, str(args.steps), "50")],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
            env={**os.environ, "FLOWVM_DISTRIBUTED_TIMEOUT": TIMEOUT},
        )  # fmt: skip
        assert launcher.stderr is not None
        times = disturb(folder, launcher, begun + 60 * args.minutes, args.every)
        log = launcher.communicate()[1].decode()
        took = time.monotonic() - begun
        starts = sorted({(count, ranks) for runs in losses_of(folder).values()
                         for _, count, ranks in runs})  # fmt: skip
        for line in log.splitlines():
            if line.startswith("flowvm launch:"):
                print(line)
        print(f"exit code {launcher.returncode} after {took:.0f} s; {times} ranks lost")
        print("ranks of each start: " + ", ".join(str(ranks) for _, ranks in starts))
        apart = furthest(folder, undisturbed(args.steps))
        print(f"{args.steps} losses, at most {apart:.2g} from those of one process, undisturbed")
        return int(launcher.returncode != 0 or not apart <= CLOSE)


if __name__ == "__main__":
    sys.exit(main())
