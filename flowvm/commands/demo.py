"""The main job: train a small CNN on real handwritten digits, eagerly and again as a graph.  Then
show the virtual machine's work for it, and last a case where a graph matters.

Both trainings begin with the same weights and see the same images, so they must come to the same
losses.  Its kernels are large, so a graph saves little there, and a network of small kernels is
timed, too.  Everything printed is measured in this run.  The exit code is 0 only if both trainings
reach 97 % on the test images, so the demo is also an end-to-end check.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import flowvm as flow
from flowvm.compiler import progress
from flowvm.eager.native import install
from flowvm.loading.lazy import lazy
from flowvm.vm.engine.engine import engine

if TYPE_CHECKING:
    from rich.console import Console

    from flowvm import nn
    from flowvm.eager.tensor import Tensor
    from flowvm.nn import Module
    from flowvm.nn import functional as F
    from flowvm.optim import Optimizer
    from flowvm.profiler import terminal
    from flowvm.profiler.views import timeline
else:
    nn = lazy("flowvm.nn")
    F = lazy("flowvm.nn.functional")
    terminal = lazy("flowvm.profiler.terminal")
    timeline = lazy("flowvm.profiler.views.timeline")

GOAL = 0.97
SETTLE_S = 60  # for the VM to be compiled
SMALL_BATCH, SMALL_STEPS, ROUNDS = 16, 200, 3  # of the network with small kernels


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `flowvm demo`."""
    parser.add_argument("--epochs", type=_positive, default=10, help="passes over the data (10)")
    parser.add_argument("--batch", type=_positive, default=32, help="images a step (32)")
    parser.add_argument("--lr", type=float, default=3e-3, help="Adam's learning rate (0.003)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and shuffling (0)")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer from 1 up, got {text!r}")
    return int(text)


@dataclass
class Training:
    """One of the two trainings: `step(images, labels)` returns the loss without waiting for it."""

    name: str
    model: "Module"
    step: Callable[["Tensor", "Tensor"], "Tensor"]
    losses: list[float] = field(default_factory=list)  # of each epoch, the mean
    accuracy: float = 0.0
    seconds: float = 0.0  # of all epochs but the first, which compiles and captures
    images: int = 0  # seen in that time
    peak_bytes: int = 0  # of tensors at once, beside tensors from before this training

    @property
    def speed(self) -> float:
        """Images a second."""
        return self.images / self.seconds


def main(args: argparse.Namespace) -> int:
    """Train twice, report, and return the exit code."""
    from rich.console import Console

    console = Console(highlight=False)
    data = flow.datasets.load_digits("train"), flow.datasets.load_digits("test")
    (_, labels), (_, test_labels) = data
    weights = sum(p.numel() for p in build_model().parameters())
    console.print(
        f"flowvm {flow.__version__}: {len(labels)} digits to learn from, "
        f"{len(test_labels)} to be tested on, {weights} weights"
    )
    warm_up(console, args.batch)

    before = flow.vm.stats()
    eager, steps = run(console, eager_training, data, args)
    now = flow.vm.stats()
    graph, _ = run(console, graph_training, data, args)
    report(console, before, now, steps)
    show_plan(console, graph)
    show_one_step(console, eager, data)
    with busy(console, "timing a network of small kernels, eagerly and as a graph"):
        small = small_kernels(data, args)
    compare(console, eager, graph, small)
    what_next(console)
    return 0 if min(eager.accuracy, graph.accuracy) >= GOAL else 1


def eager_training(
    args: argparse.Namespace, build: Callable[[], "Module"] | None = None
) -> Training:
    """Build a training that issues every op in every step; the model is the CNN, or the result of
    `build`.
    """
    flow.manual_seed(args.seed)
    model = (build or build_model)()
    optimizer = flow.optim.Adam(model.parameters(), lr=args.lr)
    return Training("eager", model, lambda x, y: train_step(model, optimizer, x, y))


def graph_training(
    args: argparse.Namespace, build: Callable[[], "Module"] | None = None
) -> Training:
    """Build a training whose step is captured once: a call replays it as one instruction."""

    flow.manual_seed(args.seed)

    class TrainStep(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = (build or build_model)()
            self.add_optimizer(flow.optim.Adam(self.model.parameters(), lr=args.lr))

        def build(self, images: "Tensor", labels: "Tensor") -> "Tensor":
            loss = F.cross_entropy(self.model(images), labels)
            loss.backward()
            return loss

    graph = TrainStep()
    return Training("graph", graph.model, graph)


def run(
    console: "Console", make: Callable[[Any], Training], data: object, args: argparse.Namespace
) -> tuple[Training, int]:
    """Make a training and run it.  Return it and the number of steps."""
    flow.vm.sync()
    live_before = flow.vm.stats()["live_bytes"]  # the model that was trained before, for one
    training = make(args)
    steps = train(console, training, data, args)
    training.peak_bytes -= live_before
    return training, steps


def train(console: "Console", training: Training, data: Any, args: argparse.Namespace) -> int:
    """Run all epochs, each with a line.  Return the number of steps."""
    flow.manual_seed(args.seed)  # of the order of the images
    (images, labels), test = data
    feed = flow.utils.data
    dataset = feed.TensorDataset(images, labels)
    loader = feed.DataLoader(dataset, batch_size=args.batch, shuffle=True, drop_last=True)
    console.print(f"\n{training.name}:")
    with progress_bar(console, args.epochs * len(loader)) as advance:
        for epoch in range(1, args.epochs + 1):
            flow.vm.reset_peak()
            started = time.perf_counter()
            training.losses.append(train_epoch(training, loader, advance))
            seconds = time.perf_counter() - started
            training.peak_bytes = max(training.peak_bytes, flow.vm.stats()["peak_bytes"])
            training.accuracy = accuracy_on(training.model, *test)
            if epoch > 1 or args.epochs == 1:
                training.seconds += seconds
                training.images += len(loader) * args.batch
            console.print(
                f"  epoch {epoch:2}   loss {training.losses[-1]:.4f}   test accuracy "
                f"{training.accuracy:6.2%}   {len(loader) * args.batch / seconds:8,.0f} images/s"
            )
    verdict = "reached" if training.accuracy >= GOAL else "missed"
    console.print(f"{training.accuracy:.2%} of the test digits right ({GOAL:.0%} {verdict})")
    return int(args.epochs) * len(loader)


def small_kernels(data: Any, args: argparse.Namespace) -> list[float]:
    """Images a second that a small MLP learns from, eagerly and as a graph: the best of a few."""
    (images, labels), _ = data
    batch = images[:SMALL_BATCH].flatten(1), labels[:SMALL_BATCH]
    speeds = []
    for make in (eager_training, graph_training):
        step = make(args, build_mlp).step
        step(*batch).item()  # compiles and captures
        best = float("inf")
        for _ in range(ROUNDS):
            began = time.perf_counter()
            for _ in range(SMALL_STEPS):
                loss = step(*batch)
            loss.item()
            best = min(best, time.perf_counter() - began)
        speeds.append(SMALL_STEPS * SMALL_BATCH / best)
    return speeds


def compare(console: "Console", eager: Training, graph: Training, small: list[float]) -> None:
    """Show the two trainings beside each other, and a network where each call counts."""
    from rich.table import Table

    table = Table(title="\nEager beside graph", title_justify="left")
    table.add_column("")
    for name in ("eager", "graph", "graph against eager"):
        table.add_column(name, justify="right")
    gap = max(abs(a - b) for a, b in zip(eager.losses, graph.losses, strict=True))
    table.add_row(
        "MLP (small kernels), images/s",
        f"{small[0]:,.0f}",
        f"{small[1]:,.0f}",
        f"{small[1] / small[0]:.2f}x",
    )
    table.add_row(
        "CNN (large kernels), images/s",
        f"{eager.speed:,.0f}",
        f"{graph.speed:,.0f}",
        f"{graph.speed / eager.speed:.2f}x",
    )
    table.add_row(
        "CNN, peak memory in training",
        f"{eager.peak_bytes / 2**20:.2f} MiB",
        f"{graph.peak_bytes / 2**20:.2f} MiB",
        f"{graph.peak_bytes / eager.peak_bytes:.2f}x",
    )
    table.add_row(
        "CNN, loss of the last epoch",
        f"{eager.losses[-1]:.6f}",
        f"{graph.losses[-1]:.6f}",
        f"{gap:.1g} apart at most",
    )
    console.print(table)
    a_step = SMALL_BATCH * 1e6
    console.print(
        f"A graph replays a step as one instruction: the MLP's takes {a_step / small[1]:,.0f} us "
        f"instead of {a_step / small[0]:,.0f}. It gains most where calls cost more than kernels."
    )


def what_next(console: "Console") -> None:
    """Print commands to try next."""
    python = min(sys.executable, os.path.relpath(sys.executable), key=len)
    console.print("\nWhat to try next")
    commands = [
        ("-m flowvm", "a prompt with flow, nn and np"),
        ("-m flowvm run SCRIPT.py", "a program of yours, and where its time goes"),
        ("-m flowvm warmup", "compile now what ops would at their first use"),
    ]
    first = os.path.join(os.path.dirname(flow.__path__[0]), "tutorials", "01_the_repl.py")
    if os.path.exists(first):
        commands.append((os.path.relpath(first), "the first of the tutorials"))
    for command, what in commands:
        console.print(f"  {python} {command:27} {what}", soft_wrap=True)


def build_mlp() -> "Module":
    """Three linear layers, so small that a call costs more than its kernel."""
    return nn.Sequential(
        nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)
    )


def build_model() -> "Module":
    """Two 3x3 convolutions with batch norm, a pooling and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def train_step(
    model: "Module", optimizer: "Optimizer", images: "Tensor", labels: "Tensor"
) -> "Tensor":
    """One step of training.  Returns the loss without waiting for it."""
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    detached: Tensor = loss.detach()
    return detached


def first_step(_: list[str]) -> int:
    """Take the first training step alone, for `flowvm doctor --cold`; return the exit code."""
    model = build_model()
    optimizer = flow.optim.Adam(model.parameters())
    train_step(model, optimizer, flow.zeros(64, 1, 8, 8), flow.zeros(64, dtype=flow.int64)).item()
    return 0


def train_epoch(training: Training, loader: Any, advance: Callable[[], None]) -> float:
    """Run one pass over the data.  Return the mean loss; reading it is the only wait."""
    losses = []
    training.model.train()
    for images, labels in loader:
        losses.append(training.step(images, labels))
        advance()
    total: float = sum(loss.item() for loss in losses)
    return total / len(losses)


def accuracy_on(model: "Module", images: "Tensor", labels: "Tensor") -> float:
    """The share of `images` whose largest output is at their label."""
    model.eval()
    with flow.no_grad():
        right: float = (model(images).argmax(1) == labels).float().mean().item()
    return right


def warm_up(console: "Console", batch: int) -> None:
    """Run one step and one test of a spare network, so that all compiling is done."""
    began = time.perf_counter()
    with busy(console, "first step: loading kernels from the cache, or compiling them"):
        model = build_model()
        images, labels = flow.zeros(batch, 1, 8, 8), flow.zeros(batch, dtype=flow.int64)
        train_step(model, flow.optim.Adam(model.parameters()), images, labels).item()
        accuracy_on(model, images, labels)
    seconds = time.perf_counter() - began
    console.print(f"first step in {seconds:.2f} s (kernels from the cache, or compiled)")
    if not is_compiled():
        with busy(console, "first run on this machine: helper processes compile the VM, too"):
            settled = settle()
        if not settled:
            console.print(
                f"the VM is still being compiled after {SETTLE_S} s: until it is done, eager "
                "steps run "
                f"on the VM's slower Python code"
            )


def is_compiled() -> bool:
    """Return True if the VM and the call functions are compiled code by now."""
    before = flow.vm.stats()["native_hits"]
    (flow.ones(()) + 1).item()
    calls = flow.vm.stats()["native_hits"] > before or not install.is_enabled()
    return engine.threads.running and calls


def settle() -> bool:
    """Wait until the VM and the call functions are compiled, at most SETTLE_S.  Measured times are
    then the usual ones.
    """
    until = time.monotonic() + SETTLE_S
    while not (compiled := is_compiled()) and time.monotonic() < until:
        time.sleep(0.05)  # leave a core to the compiler
    return compiled


@contextmanager
def busy(console: "Console", what: str) -> Iterator[None]:
    """A context that prints the present activity, and on a terminal the kernel being compiled for
    it.
    """
    if not console.is_terminal:
        console.print(f"{what} ...")
        yield
        return
    count = 0
    with console.status(f"{what} ...") as status:

        def show(kernel: str) -> None:
            nonlocal count
            count += 1
            status.update(f"{what}: number {count}, {progress.shown(kernel)} ...")

        with progress.telling(show):
            yield


@contextmanager
def progress_bar(console: "Console", steps: int) -> Iterator[Callable[[], None]]:
    """Return a function that advances a bar by a step, or does nothing without a terminal."""
    if not console.is_terminal:
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("  step"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=steps)
        yield lambda: bar.advance(task)


def report(console: "Console", before: dict[str, int], now: dict[str, int], steps: int) -> None:
    """Print a table of the VM's work between two calls of `flow.vm.stats()`."""
    from rich.table import Table

    counts = {name: count - before.get(name, 0) for name, count in now.items()}
    kinds = [name for name in counts if name.startswith("edges_")]
    edges = sum(counts[kind] for kind in kinds)
    mib = {name: f"{now[name] / 2**20:.1f} MiB" for name in now if name.endswith("_bytes")}
    title = "\nWhat the virtual machine did for the eager training"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("count", justify="right")
    table.add_column("note", style="dim")
    table.add_row(
        "instructions issued",
        f"{counts['issued']:,}",
        f"{counts['issued'] / steps:.0f} a step, with the tests between",
    )
    table.add_row(
        "instructions done",
        f"{counts['done']:,}",
        f"{counts['dispatched']:,} dispatched, {counts['poisoned']} poisoned by an error",
    )
    table.add_row(
        "edges",
        f"{edges:,}",
        ", ".join(f"{kind.removeprefix('edges_')} {counts[kind]:,}" for kind in kinds),
    )
    table.add_row(
        "prescheduled",
        f"{counts['prescheduled'] / max(edges, 1):.1%}",
        "of the edges: stream order kept them, nobody waited",
    )
    table.add_row(
        "peak memory",
        mib["peak_bytes"],
        f"{mib['live_bytes']} live, {mib['reserved_bytes']} reserved",
    )
    console.print(table)


def show_plan(console: "Console", training: Training) -> None:
    """Show the Plan of the graph's step: its memory and its tasks."""
    (plan,) = training.step.plans  # type: ignore[attr-defined]
    console.print("\nThe Plan that each step of the graph replays, as one instruction")
    lines = plan.dump().splitlines()
    registers = sum(line.startswith("  regst ") for line in lines)
    for line in lines:
        if not line.startswith("  regst "):
            console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
    console.print(f"  and {registers} registers: print(graph.plans[0].dump()) shows them")


def show_one_step(console: "Console", training: Training, data: Any) -> None:
    """Show the profile of one step: its bound, its timeline and its instructions."""
    (images, labels), _ = data
    batch = images[:32], labels[:32]
    training.model.train()
    training.step(*batch).item()
    with flow.profiler.profile() as profile:
        training.step(*batch).item()
    console.print("\nOne step of the eager training: what bound it, when, and its instructions")
    lanes = timeline.timeline(profile, width=min(console.width, terminal.WIDE))
    for screen in (profile.summary(), lanes, profile.graph()):
        console.print(screen)
        console.print()
