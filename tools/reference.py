"""Make the pages of docs/reference that are lists of the code: settings, commands, columns, names.

    python -m tools.reference            write them
    python -m tools.reference --check    exit code 1 where a page is not what the code says

A page of names has a line at which the site shows the docstrings (tools/site.py).
"""

from __future__ import annotations

import argparse
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

from flowvm.commands import cli
from flowvm.config import VARIABLES, Variable
from flowvm.profiler.views.edges import EDGES
from flowvm.profiler.views.query import COLUMNS
from tools.doctests import SPACES

__all__ = ["main", "pages"]

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
NAMES = {  # page: title, the module or class, what stands there
    "flow": ("flow", "flowvm", "Functions, dtypes and devices."),
    "tensor": ("flow.Tensor", "flowvm.Tensor", "Methods and properties of a tensor."),
    "nn": ("flow.nn", "flowvm.nn", "Layers, `Module`, `Graph`."),
    "functional": ("flow.nn.functional", "flowvm.nn.functional", "Layers as functions."),
    "optim": ("flow.optim", "flowvm.optim", "Optimizers and schedules."),
    "autograd": ("flow.autograd", "flowvm.autograd", "Gradients, `Function`, `gradcheck`."),
    "data": ("flow.utils.data", "flowvm.utils.data", "Datasets, loaders, samplers."),
    "linalg": ("flow.linalg", "flowvm.linalg", "Linear algebra."),
    "distributions": ("flow.distributions", "flowvm.distributions", "Probability distributions."),
    "distributed": ("flow.distributed", "flowvm.distributed", "Several processes."),
    "vm": ("flow.vm", "flowvm.vm", "The VM: wait, look, cancel, restore, schedule."),
    "profiler": ("flow.profiler", "flowvm.profiler", "Record a run, look at it, export it."),
}


def settings() -> str:
    """Return the page of settings."""
    lines = [
        "# Settings",
        "",
        "Made by `python -m tools.reference`. Each setting is an environment variable and an",
        "attribute of `flow.config`. `print(flow.config)` shows all of them with their values.",
        "",
        "```python",
        "import flowvm as flow",
        "",
        "print(flow.config.watchdog)",
        "with flow.config(watchdog=60):  # for a block, in all threads",
        "    print(flow.config.watchdog)",
        "```",
        "",
        "```text",
        "10.0",
        "60.0",
        "```",
        "",
        "| variable | attribute | takes | meaning |",
        "|---|---|---|---|",
        *map(_row, VARIABLES),
        "",
        "*At the start* means: set it before the first op. A later change is an error.",
    ]
    return "\n".join(lines) + "\n"


def _row(row: Variable) -> str:
    when = " *From the environment alone.*" if row.fixed else " *At the start.*" * row.start
    cells = f"`{row.env}`", f"`{row.name}`", row.expects, _cell(row.help) + when
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    text = text.replace("|", "\\|").replace("<", "&lt;")
    return text[:1].upper() + text[1:] + "." * (text[-1:] not in (".", "!", ""))


def commands() -> str:
    """Return the page of the command line."""
    parser = cli.parser()
    lines = [
        "# Commands",
        "",
        "Made by `python -m tools.reference`. `python -m flowvm` is the same command.",
        "Without a name behind it, it is a prompt with `flow`, `nn` and `np` imported.",
    ]
    for name, sub, text in _subparsers(parser):
        lines += ["", f"## flowvm {name}", "", _cell(text)]
        rows = [row for action in sub._actions if (row := _argument(action))]
        lines += ["", "| argument | meaning |", "|---|---|", *rows] if rows else []
    return "\n".join(lines) + "\n"


def _argument(action: argparse.Action) -> str:
    """Return the row of an argument; an empty text for --help."""
    if action.dest == "help":
        return ""
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else "")
    if not value and action.nargs != 0:
        value = action.dest.upper()
    shown = ", ".join(action.option_strings) + f" {value}" * (action.nargs != 0)
    text = f"`{shown.strip()}`".replace("|", "\\|")
    return f"| {text} | {_cell(action.help or '')} |"


def _subparsers(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            help_texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, sub in action.choices.items():
                yield name, sub, help_texts[name]


def columns() -> str:
    """Return the page of a run's columns: the schema of `p.sql`."""
    lines = [
        "# Columns of a run",
        "",
        "Made by `python -m tools.reference`. `p.query`, `p.to_columns()`, `p.to_pandas()` and CSV",
        "have these names. In `p.sql` an underscore stands for each point: `wait_dep`. Times are",
        "milliseconds. What never happened is NaN, in SQL null.",
    ]
    for title, summary, rows in (
        ("instructions", "A row is an instruction, or a task of a graph's launch.", COLUMNS),
        ("edges", "A row is an edge; `p.to_edges()` has them, too.", EDGES),
    ):
        lines += ["", f"## {title}", "", summary, "", "| column | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {_cell(text)} |" for name, text in rows.items()]
    return "\n".join(lines) + "\n"


def names(page: str) -> str:
    """Return a page of names."""
    title, path, text = NAMES[page]
    call = title if title != "flow" else "flow.relu"
    lines = [
        f"# {title}",
        "",
        text,
        "",
        "The site (`make docs`) shows every name here, with its example.",
        f"`help({call})` prints the same at a prompt.",
        "[Coverage](../coverage.md) lists the names.",
        "",
        f"<!-- names of {path} -->",
    ]
    return "\n".join(lines) + "\n"


def more() -> str:
    """Return the page of the names that have no page of their own."""
    own = {path for _, path, _ in NAMES.values()}
    lines = [
        "# More names",
        "",
        "Modules that have no page of their own. The site (`make docs`) shows their names.",
    ]
    for space, (place, _) in SPACES.items():
        path = f"flowvm.{space}"
        if path not in own and space != "flow":
            assert pkgutil.resolve_name(path) is place
            lines += ["", f"## flow.{space}", "", f"<!-- names of {path}, level 3 -->"]
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """Return the text of each page that is made here."""
    texts = {FOLDER / "config.md": settings(), FOLDER / "cli.md": commands()}
    texts[FOLDER / "profiler" / "columns.md"] = columns()
    texts[FOLDER / "api" / "more.md"] = more()
    return texts | {FOLDER / "api" / f"{page}.md": names(page) for page in NAMES}


def main(arguments: list[str] | None = None) -> int:
    """Run the tool; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args(arguments).check
    stale = [p for p, text in pages().items() if not p.exists() or p.read_text() != text]
    for path in stale:
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(pages()[path])
        print(f"{path.relative_to(FOLDER.parents[1])} {'is out of date' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
