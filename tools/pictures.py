"""Make the pictures of the README and of docs/reference/profiler/README.md from flowvm's output.

    python -m tools.pictures [folder]     docs/pictures by default
    python -m tools.pictures --ranks      that of two ranks, too, which are launched for it

A small training program runs, and every screen is printed to a recording console, which rich turns
into SVG.  So a picture shows what a reader would see; only the times are those of another machine.
"""

from __future__ import annotations

import argparse
import io
import linecache
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

import flowvm as flow
from tools.browser import CHROMIUM, browse

__all__ = ["PAGES", "PICTURES", "main"]

WIDTH = 110  # columns
TRIES = 12  # runs, of which the shortest is shown: on a busy machine the others wait for a core
FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"

PROGRAM = """\
import flowvm as flow
from flowvm import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 512)
        self.fc2 = nn.Linear(512, 10)

    def forward(self, x):
        return self.fc2(flow.relu(self.fc1(x)))


net = Net()
optimizer = flow.optim.SGD(net.parameters(), lr=0.1)
data = flow.Stream("data")


def scaled(images):
    with flow.stream(data):
        return (images - images.mean()) / images.std()


def step(x, labels):
    loss = nn.functional.cross_entropy(net(x), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def train(batches):
    for images, labels in batches:
        with flow.profiler.span("step"):
            loss = step(scaled(images), labels)
            print(f"{loss.item():.3f}")


def look_up(table, index):
    rows = table[index]
    return rows.mean() * 2


class Step(nn.Graph):
    def __init__(self, net, optimizer):
        super().__init__()
        self.net = net
        self.add_optimizer(optimizer)

    def build(self, x, labels):
        loss = nn.functional.cross_entropy(self.net(x), labels)
        loss.backward()
        return loss
"""

# rich's own template fetches fonts from the Internet; this one uses what is there
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def wall(profile: Any) -> int:
    """Return the wall time of a profile, in ns."""
    return int(profile.run.wall)


def program() -> dict[str, Any]:
    """Run the program, under the lines of train.py, and return its names."""
    linecache.cache["train.py"] = (len(PROGRAM), None, PROGRAM.splitlines(True), "train.py")
    names: dict[str, Any] = {"__name__": "train", "print": lambda text: None}
    flow.manual_seed(0)
    exec(compile(PROGRAM, "train.py", "exec"), names)
    return names


class Session:
    """The subjects of the pictures: the program, and a profile of some of its steps."""

    def __init__(self) -> None:
        self.names = program()
        batches = [(flow.rand(256, 784), flow.randint(0, 10, (256,))) for _ in range(12)]
        self.names["train"](batches)  # compiles, or loads, the kernels
        profiles = [self.recorded(batches) for _ in range(TRIES)]
        self.profile = min(profiles, key=wall)
        steps = [p.part("step", k) for p in profiles for k in range(1, len(batches))]
        self.step = min(steps, key=wall)

    def recorded(self, batches: list[Any]) -> Any:
        """Return the profile of a training run."""
        with flow.profiler.profile() as profile:
            self.names["train"](batches)
        return profile

    def chosen(self) -> int:
        """The number of an instruction of the step that waited for others."""
        run = self.step.run
        numbers = [int(n) for n, op in zip(run.seq, run.op, strict=True)
                 if run.names[op] == "relu_backward"]  # fmt: skip
        return numbers[0]


def error_text(session: Session) -> str:
    """The traceback of a mistake that only a kernel can see."""
    source = (
        "table = flow.randn(500, 64)\n"
        "loss = look_up(table, flow.tensor([3, 512, 7]))\n"
        "scaled = loss / 100\n"
        "print(scaled.item())\n"
    )
    linecache.cache["main.py"] = (len(source), None, source.splitlines(True), "main.py")
    try:
        exec(compile(source, "main.py", "exec"), {**session.names, "print": print})
    except IndexError as error:
        tb = error.__traceback__.tb_next if error.__traceback__ else None  # without this function
        text = "".join(traceback.format_exception(type(error), error, tb))
        return text.replace("flowvm.errors.", "").rstrip()
    raise AssertionError("the index is in range")


def trace(session: Session) -> Any:
    """Return the trace of two lines."""
    return flow.vm.trace(session.names["look_up"], flow.randn(8, 4), flow.tensor([1, 2]))


def replayed(session: Session) -> Any:
    """A graph of the same step, which has been called twice."""
    step = session.names["Step"](session.names["net"], session.names["optimizer"])
    for _ in range(2):  # what the first call does may be eager
        step(flow.rand(256, 784), flow.randint(0, 10, (256,)))
    return step


def graph(session: Session) -> str:
    """The tree of a graph of the same step."""
    return repr(replayed(session))


def explanation(session: Session) -> Any:
    """Explain a tensor: where its values come from."""
    tensor = session.names["look_up"](flow.randn(8, 4), flow.tensor([1, 2]))
    flow.vm.sync()
    return flow.explain(tensor)


# name -> (what is typed, what it prints)
PICTURES: dict[str, tuple[str, Callable[[Session], Any]]] = {
    "summary": ("p", lambda s: s.profile.summary()),
    "timeline": ('p.part("step").timeline()', lambda s: s.step.timeline()),
    "dag": ('p.part("step").graph()', lambda s: s.step.graph()),
    "why": ('p.why("relu_backward")', lambda s: s.step.why(s.chosen())),
    "critical": ("p.critical_path()", lambda s: s.step.critical_path()),
    "memory": ("p.memory()", lambda s: s.profile.memory()),
    "trace": ("flow.vm.trace(look_up, table, index)", trace),
    "explain": ("flow.explain(look_up(table, index))", explanation),
    "graph": ("step  # an nn.Graph", graph),
    "error": ("", error_text),
}  # fmt: skip

PAGES = ("dag", "moment", "memory", "plan")  # tabs of the page
RANKS = """\
from pathlib import Path
import sys
import flowvm as flow
from flowvm.ops.collectives.collectives import all_reduce, barrier
from flowvm.ranks.world import rank

net = flow.nn.Sequential(flow.nn.Linear(256, 256), flow.nn.ReLU(), flow.nn.Linear(256, 10))
optimizer = flow.optim.SGD(net.parameters(), lr=0.1)


def step(number):
    x = flow.rand(64, 256)
    for _ in range(12 if number % 2 == rank() else 1):  # one of them has more to do
        x = (x @ net[0].weight).tanh()
    loss = net(x).sum()
    optimizer.zero_grad()
    loss.backward()
    for parameter in net.parameters():
        parameter.grad = all_reduce(parameter.grad)
    optimizer.step()
    return loss.item()


for number in range(4):
    step(number)
barrier()
flow.vm.sync()
with flow.profiler.profile() as p:
    for number in range(4):
        with flow.profiler.span("step"):
            step(number)
ranks = flow.profiler.gather(p)
if rank() == 0:
    ranks.export(Path(sys.argv[1]) / "ranks.html")
"""


def picture(typed: str, shown: Any) -> str:
    """Return the SVG of a prompt with typed text and its output."""
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False,
        color_system="truecolor", legacy_windows=False,
    )  # fmt: skip
    if typed:
        console.print(f"[bold]>>>[/bold] {typed.replace('[', chr(92) + '[')}")
    if isinstance(shown, str):
        console.print(shown, markup=False)
    else:
        console.print(shown)
    console.print()  # or the frame cuts off what hangs below the last line
    return console.export_svg(title="", code_format=SVG, unique_id="flowvm")


def pages(session: Session, folder: Path, ranks: bool) -> list[Path]:
    """Pictures of the profiler's page, where a browser is installed."""
    with tempfile.TemporaryDirectory() as place:
        page = session.profile.export(Path(place) / "run.html")
        step = replayed(session)
        with flow.profiler.profile() as p:
            for _ in range(3):
                step(flow.rand(256, 784), flow.randint(0, 10, (256,))).item()
        of_graph = p.export(Path(place) / "graph.html")
        shots = [
            _shot(of_graph if tab == "plan" else page, tab, folder / f"page-{tab}.png")
            for tab in PAGES
        ]
        if ranks:
            program = Path(place) / "train.py"
            program.write_text(RANKS)
            launch = [sys.executable, "-m", "flowvm", "launch", "-n", "2", str(program), place]
            subprocess.run(launch, check=True)
            page = Path(place) / "ranks.html"
            shots.append(_shot(page, "timeline", folder / "page-ranks.png"))
    return shots


def _shot(page: Path, tab: str, path: Path) -> Path:
    """A picture of a tab of a page."""
    browse(f"file://{page}#{tab}", page.parent / f"chromium-{path.stem}",
           f"--screenshot={path.resolve()}", "--window-size=1200,720",
           "--hide-scrollbars", "--virtual-time-budget=3000")  # fmt: skip
    return path


def main(arguments: list[str] | None = None) -> int:
    """Write all pictures; their names on stdout."""
    parser = argparse.ArgumentParser(prog="python -m tools.pictures", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--ranks", action="store_true", help="the page of two ranks, too")
    options = parser.parse_args(arguments)
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    session = Session()
    for name, (typed, show) in PICTURES.items():
        path = folder / f"{name}.svg"
        path.write_text(picture(typed, show(session)), encoding="utf-8")
        print(path)
    if CHROMIUM:
        print(*pages(session, folder, options.ranks), sep="\n")
    else:
        print("no Chromium here: the pictures of the page are left as they are", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
