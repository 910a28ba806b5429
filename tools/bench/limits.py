"""The limit of the machine, and of training steps on it: `python -m tools.bench.limits`.

    --models LM,GPT             some of the models; --threads 2; --steps 9
    --graph                     tables of the graphs' tasks, not of eager instructions
    --top 6                     ops to show of each model
    --json FILE                 every figure

First comes what this machine can do, for one and two threads.  Then, for each model, the time that
each instruction of a step needs at least: its operations at the rate of multiply-adds in registers,
or its operands' bytes at the rate of the level of memory that holds them, whichever is longer.
Beside it stands the time that it took, the least of several steps; what is over counts.

Operations are those of products, convolutions and attention, as the profiler counts them.  An op
without any is held against its bytes alone, so one that computes much for each, such as `gelu`, is
over its limit even where its arithmetic runs at full speed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import flowvm as flow
from flowvm.profiler.run.roof import cpu_name
from flowvm.vm.machine.words import KIND
from tools.bench import machine
from tools.bench.ceilings import bytes_per_second, flops_per_second, hand_over, levels, vector_name
from tools.bench.graph import _ours_step
from tools.bench.targets import Training, cnn, gpt, mlp, resnet18, stepping, transformer, yolo

__all__ = ["MODELS", "Limit", "Need", "Needs", "limit_of", "needs_of"]

MODELS: dict[str, Callable[[Any], Training]] = {
    "LM": transformer,
    "GPT": gpt,
    "CNN": cnn,
    "MLP": mlp,
    "ResNet-18": resnet18,
    "YOLOv3-tiny": yolo,
}
WARM = 3  # steps before any that counts: kernels, the optimizer's state, the capture
RAN = (KIND.OP_CALL, KIND.CALLBACK)  # the tasks of a launch are rows of their own


@dataclass
class Need:
    """The instructions of one op in a step: milliseconds that they need and took."""

    op: str
    count: int = 0
    operations: float = 0.0  # time that the operations need
    needed: float = 0.0  # the longer of that and of the bytes' time, of each instruction
    took: float = 0.0
    multiplies: int = 0  # instructions whose operations take longer than their bytes

    @property
    def over(self) -> float:
        """Milliseconds over what is needed."""
        return self.took - self.needed

    @property
    def bound(self) -> str:
        """Return the bound of most of the instructions: "operations" or "bytes"."""
        return "operations" if 2 * self.multiplies > self.count else "bytes"


class Needs(list[Need]):
    """The ops of a step, the one that is furthest over what it needs first."""

    def sum(self, name: str) -> float:
        """The sum of a field of all ops."""
        return float(sum(getattr(need, name) for need in self))


@dataclass
class Limit:
    """A model's training step, by eager code and as a graph: ops, and milliseconds of whole steps,
    the least of several.
    """

    model: str
    threads: int
    eager: Needs
    graph: Needs
    eager_step: float
    graph_step: float


def needs_of(runs: list[Any], threads: int) -> Needs:
    """The ops of the same step, recorded several times: of each instruction the least time."""
    least: Any = None
    chosen: Any = None
    for run in runs:
        ran = np.isin(run.kind, RAN)
        lasted = np.maximum(0, run.time("ended") - run.time("started"))[ran]
        lasted = np.concatenate((lasted, run.tasks.times[:, 1] - run.tasks.times[:, 0]))
        names = [run.names[k] for k in (*run.op[ran], *run.tasks.op)]
        if chosen is None:
            chosen, least = (run, ran, names), lasted
        elif names == chosen[2]:
            least = np.minimum(least, lasted)
    run, ran, names = chosen
    nbytes = np.concatenate((run.nbytes[ran], run.tasks.nbytes))
    flops = np.concatenate((run.flops[ran], run.tasks.flops))
    needs: dict[str, Need] = {}
    for name, moved, multiplied, lasted in zip(names, nbytes, flops, least, strict=True):
        need = needs.setdefault(name, Need(name))
        operations = int(multiplied) / flops_per_second(threads) * 1e3
        memory = int(moved) / bytes_per_second(int(moved), threads) * 1e3
        need.count += 1
        need.operations += operations
        need.needed += max(operations, memory)
        need.multiplies += operations > memory
        need.took += float(lasted) / 1e6
    return Needs(sorted(needs.values(), key=lambda need: -need.over))


def _best(step: Callable[[], Any], steps: int) -> float:
    """Milliseconds of the quickest step: a few at a time where one is short."""
    count, best = 1, float("inf")
    for _ in range(steps):
        flow.vm.sync()
        started = time.perf_counter()
        for _ in range(count):
            step()
        flow.vm.sync()
        seconds = time.perf_counter() - started
        best = min(best, seconds / count)
        count = max(1, min(100, int(0.005 / best)))
    return best * 1e3


def _recorded(step: Callable[[], Any], steps: int) -> list[Any]:
    runs = []
    for _ in range(steps):
        with flow.profiler.profile() as profile:
            step()
            flow.vm.sync()
        runs.append(profile.run)
    return runs


def limit_of(model: str, threads: int = 1, steps: int = 9) -> Limit:
    """Measure a model of MODELS: its steps by eager code and as a graph, timed and recorded."""
    flow.manual_seed(0)
    eager, graph = stepping(MODELS[model])(flow), _ours_step(MODELS[model])
    for _ in range(WARM):
        eager()
        graph()
    times = _best(eager, steps), _best(graph, steps)
    needs = [needs_of(_recorded(step, steps), threads) for step in (eager, graph)]
    return Limit(model, threads, needs[0], needs[1], *times)


def print_machine(console: Any) -> dict[str, Any]:
    """Print the machine's limits for one and two threads; return them."""
    from rich.table import Table

    facts: dict[str, Any] = {"cpu": cpu_name(), "vectors": vector_name()}
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in (f"{facts['cpu']}, {facts['vectors']}", "one thread", "two threads", ""):
        table.add_column(head, justify="left" if not head or "," in head else "right")
    rates = [flops_per_second(threads) / 1e9 for threads in (1, 2)]
    facts["gigaflops"] = rates
    table.add_row("multiply-adds in registers", *(f"{r:.0f}" for r in rates), "GFLOP/s")
    for one, two in zip(levels(1), levels(2), strict=True):
        for kind, a, b in (("read", one.read, two.read), ("copied", one.copied, two.copied)):
            size = f" ({one.size >> 10:,} KiB)" if one.size and kind == "read" else ""
            row = (f"{a / 1e9:.0f}", f"{b / 1e9:.0f}")
            table.add_row(f"{one.name}{size}, {kind}", *row, "GB/s")
            facts[f"{one.name} {kind}"] = [a / 1e9, b / 1e9]
    facts["hand-over, ns"] = hand_over() * 1e9
    trip = machine.round_trip(3)
    facts[trip.name] = trip.ours
    table.add_row("a word seen by another core", "", f"{facts['hand-over, ns']:.0f}", "ns")
    table.add_row("an instruction issued and waited for", f"{trip.ours:.1f}", "", trip.unit)
    console.print(table)
    return facts


def print_limit(console: Any, limit: Limit, top: int, graph: bool = False) -> None:
    """Print a model's table: the ops that are furthest over what they need, and the sums."""
    from rich.table import Table
    from rich.text import Text

    needs = limit.graph if graph else limit.eager
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in (f"{limit.model}, ms a step", "n", "needs", "of", "took", "over", "reached"):
        table.add_column(head, justify="left" if head == "of" or "," in head else "right")

    def line(name: str, some: Needs, bound: str = "") -> None:
        needed, took = some.sum("needed"), some.sum("took")
        reached = f"{needed / took:.0%}" if took else ""
        figures = f"{needed:.3f}", bound, f"{took:.3f}", f"{took - needed:.3f}", reached
        table.add_row(Text(name), f"{some.sum('count'):.0f}", *figures)

    for need in needs[:top]:
        line(need.op, Needs([need]), need.bound)
    if needs[top:]:
        line(f"{len(needs) - top} other ops", Needs(needs[top:]))
    line("all", needs)
    console.print(table)
    needed = limit.eager.sum("needed")
    parts = []
    for name, some, step in (
        ("eager", limit.eager, limit.eager_step),
        ("as a graph", limit.graph, limit.graph_step),
    ):
        took = some.sum("took")
        parts.append(f"{name} {took:.3f} of kernels, {step:.3f} in all ({step / needed:.2f}x)")
    products = limit.eager.sum("operations")
    console.print(f"products alone {products:.3f} ms; a step {'; '.join(parts)}\n")


def main() -> int:
    """Measure and print; 0 whatever the figures are."""
    from rich.console import Console

    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.limits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--top", type=int, default=6)
    parser.add_argument("--json", default="", metavar="FILE")
    options = parser.parse_args()
    names = [name for name in options.models.split(",") if name]
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        parser.error(f"--models {','.join(unknown)}: the models are {', '.join(MODELS)}")
    flow.set_num_threads(options.threads)
    console = Console()
    console = console if console.is_terminal else Console(width=110)
    figures: dict[str, Any] = {"machine": print_machine(console), "models": []}
    console.print()
    for name in names:
        limit = limit_of(name, options.threads, options.steps)
        print_limit(console, limit, options.top, options.graph)
        figures["models"].append(asdict(limit))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(figures, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
