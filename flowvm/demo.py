"""The main job: train a small CNN on real handwritten digits, eagerly, then show what the virtual
machine did for it.

Everything printed is measured in this run.  The exit code is 0 only if the network reaches 97 % on
the test images, so the demo is also an end-to-end check.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from flowvm.nn import Module
    from flowvm.optim import Optimizer
    from flowvm.tensor import Tensor

__all__ = ["add_arguments", "main"]

GOAL = 0.97


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


def main(args: argparse.Namespace) -> int:
    """Train, report, and return the exit code."""
    from rich.console import Console

    import flowvm as flow
    from flowvm.utils.data import DataLoader, TensorDataset

    console = Console(highlight=False)
    flow.manual_seed(args.seed)
    train, test = flow.datasets.load_digits("train"), flow.datasets.load_digits("test")
    model = build_model()
    optimizer = flow.optim.Adam(model.parameters(), lr=args.lr)
    loader = DataLoader(TensorDataset(*train), batch_size=args.batch, shuffle=True)
    weights = sum(p.numel() for p in model.parameters())
    console.print(
        f"flowvm {flow.__version__}: {len(train[1])} digits to learn from, "
        f"{len(test[1])} to be tested on, {weights} weights"
    )
    warm_up(console, args.batch)

    before, began, training, accuracy = flow.vm.stats(), time.perf_counter(), 0.0, 0.0
    with progress_bar(console, args.epochs * len(loader)) as advance:
        for epoch in range(1, args.epochs + 1):
            started = time.perf_counter()
            loss = train_epoch(model, optimizer, loader, advance)
            seconds = time.perf_counter() - started
            accuracy = accuracy_on(model, *test)
            training += seconds
            console.print(
                f"  epoch {epoch:2}   loss {loss:.4f}   test accuracy {accuracy:6.2%}   "
                f"{len(train[1]) / seconds:8,.0f} images/s"
            )
    verdict = "reached" if accuracy >= GOAL else "missed"
    console.print(
        f"{accuracy:.2%} of the test digits right ({GOAL:.0%} {verdict}), "
        f"{time.perf_counter() - began:.1f} s, "
        f"{args.epochs * len(train[1]) / training:,.0f} images/s\n"
    )
    report(console, before, flow.vm.stats(), args.epochs * len(loader))
    show_one_step(console)
    return 0 if accuracy >= GOAL else 1


def build_model() -> "Module":
    """Two 3x3 convolutions with batch norm, a pooling and a linear layer."""
    from flowvm import nn

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
    from flowvm.nn import functional as F

    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    detached: Tensor = loss.detach()
    return detached


def train_epoch(
    model: "Module", optimizer: "Optimizer", loader: Any, advance: Callable[[], None]
) -> float:
    """One pass over the data; the mean loss.  Reading that is the only wait."""
    losses = []
    model.train()
    for images, labels in loader:
        losses.append(train_step(model, optimizer, images, labels))
        advance()
    total: float = sum(loss.item() for loss in losses)
    return total / len(losses)


def accuracy_on(model: "Module", images: "Tensor", labels: "Tensor") -> float:
    """The share of `images` whose largest output is at their label."""
    import flowvm as flow

    model.eval()
    with flow.no_grad():
        right: float = (model(images).argmax(1) == labels).float().mean().item()
    return right


def warm_up(console: "Console", batch: int) -> None:
    """One step and one test of a network that is thrown away, so that all compiling is done."""
    import flowvm as flow

    began = time.perf_counter()
    with console.status("first step: kernels come from the cache, or are compiled ..."):
        model = build_model()
        images, labels = flow.zeros(batch, 1, 8, 8), flow.zeros(batch, dtype=flow.int64)
        train_step(model, flow.optim.Adam(model.parameters()), images, labels).item()
        accuracy_on(model, images, labels)
    seconds = time.perf_counter() - began
    console.print(f"first step in {seconds:.2f} s (kernels from the cache, or compiled)")


@contextmanager
def progress_bar(console: "Console", steps: int) -> Iterator[Callable[[], None]]:
    """A function that advances a bar by a step, or does nothing where there is no terminal."""
    if not console.is_terminal:
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("  step"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=steps)
        yield lambda: progress.advance(task)


def report(console: "Console", before: dict[str, int], now: dict[str, int], steps: int) -> None:
    """What the VM did between two calls of `flow.vm.stats()`, as a table."""
    from rich.table import Table

    done = {name: count - before[name] for name, count in now.items()}
    kinds = [name for name in done if name.startswith("edges_")]
    edges = sum(done[kind] for kind in kinds)
    mib = {name: f"{now[name] / 2**20:.1f} MiB" for name in now if name.endswith("_bytes")}
    table = Table(title="What the virtual machine did", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("count", justify="right")
    table.add_column("note", style="dim")
    table.add_row(
        "instructions issued",
        f"{done['issued']:,}",
        f"{done['issued'] / steps:.0f} a step, with the tests between",
    )
    table.add_row(
        "instructions done",
        f"{done['done']:,}",
        f"{done['dispatched']:,} dispatched, {done['poisoned']} poisoned by an error",
    )
    table.add_row(
        "edges",
        f"{edges:,}",
        ", ".join(f"{kind.removeprefix('edges_')} {done[kind]:,}" for kind in kinds),
    )
    table.add_row(
        "prescheduled",
        f"{done['prescheduled'] / max(edges, 1):.1%}",
        "of the edges: stream order kept them, nobody waited",
    )
    table.add_row(
        "peak memory",
        mib["peak_bytes"],
        f"{mib['live_bytes']} live, {mib['reserved_bytes']} reserved",
    )
    console.print(table)


def show_one_step(console: "Console") -> None:
    """The instructions of one small step, and what each waits for."""
    import flowvm as flow

    flow.manual_seed(0)
    layer = flow.nn.Linear(4, 3)
    optimizer = flow.optim.SGD(layer.parameters(), lr=0.1)
    images, labels = flow.randn(8, 4), flow.zeros(8, dtype=flow.int64)
    train_step(layer, optimizer, images, labels).item()
    console.print("\nThe instruction DAG of one step: a linear layer, cross entropy, backward, SGD")
    console.print(flow.vm.trace(train_step, layer, optimizer, images, labels))
