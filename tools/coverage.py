"""The part of PyTorch's public names that flowvm has: writes `docs/reference/coverage.md`.

    python -m tools.coverage          write the page
    python -m tools.coverage --check  say what differs from it, and fail if anything does

The names are those of `tools/pytorch_names.txt`, so no PyTorch is needed.  The facts about a
function come from its declaration: the Operator behind it, and the samples of its tests.  A test
holds the page to the tree.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import flowvm as flow
import flowvm.linalg  # which declares more
from flowvm.ops import SAMPLES
from flowvm.ops.declare.elementwise import Elementwise
from flowvm.ops.declare.registry import OpSamples, operator_of

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "coverage.md"
NAMES = ROOT / "tools" / "pytorch_names.txt"
TABLES = ("torch", "torch.special", "torch.linalg", "torch.fft", "torch.nn.functional")
HEAD = """# Coverage of PyTorch's names

Made by `python -m tools.coverage` of flowvm's declarations and of the public names of PyTorch 2.13;
a test holds it to them.

- CPU, CUDA: how a function computes there. *element* is an expression, fused with its neighbours;
  *kernel* a kernel of its own, on CUDA by a rule for it; *body* the CPU's kernel compiled for CUDA;
  *ops* a composition of others. What LAPACK factors (all of `linalg` but solving, inverses,
  determinants, Cholesky and what is made of products) computes on the CPU alone.
- 1st, 2nd: whether its gradient, and the gradient of that, are tested against finite differences.
  A dash is of functions that have none, or whose samples are PyTorch's alone.
- Graph: *waits* is of a function whose result has a shape that values decide: whoever asks for that
  shape waits, and inside a graph is an error.
"""


class Row(NamedTuple):
    """The facts about a function."""

    cpu: str
    cuda: str
    first: str
    second: str
    graph: str
    notes: str


def names() -> dict[str, list[str]]:
    """PyTorch's names by namespace, in the file's order."""
    names_of: dict[str, list[str]] = {}
    for line in NAMES.read_text().splitlines():
        if line and not line.startswith("#"):
            space, _, name = line.rpartition(".")
            names_of.setdefault(space, []).append(name)
    return names_of


def place_of(space: str) -> Any:
    """flowvm's module or class that stands for PyTorch's; None without one."""
    if space == "torch.Tensor":
        return flow.Tensor
    dotted = "flowvm" + space.removeprefix("torch")
    try:
        return importlib.import_module(dotted)
    except ImportError:
        place: Any = flow
        for part in space.split(".")[1:]:
            place = getattr(place, part, None)
        return place


def row_of(name: str, function: Any, samples: dict[int, OpSamples]) -> Row:
    """Return the facts that a function's declaration tells."""
    own = getattr(function, "__wrapped__", function)
    tested = samples.get(id(function)) or samples.get(id(own))
    cpu, cuda, graph = "ops", "ops", "yes"
    operator = own.operator if isinstance(own, Elementwise) else None
    if operator is not None:
        cpu = cuda = "element"
    elif (operator := _operator(own)) is not None:
        cpu, cuda = "kernel", "kernel" if operator.kernel.cuda else "body"
    if name in WAITS or (operator is not None and operator.signature.unsized):
        graph = "waits"
    first = "yes" if tested is not None and tested.grad else "–"
    second = "yes" if tested is not None and tested.grad and tested.grad2 else "–"
    notes = NOTES.get(name, "")
    real = getattr(function, "__name__", name)
    if not notes and real != name and real.strip("_") != name and "<" not in real:
        notes = f"is {real}"
    return Row(cpu, cuda, first, second, graph, notes)


def _operator(function: Any) -> Any:
    try:
        return operator_of(function)
    except (KeyError, TypeError):
        return None


WAITS = {
    "argwhere", "bincount", "masked_select", "nonzero", "unique", "unique_consecutive",
}  # fmt: skip
NOTES = {
    "airy_ai": "not here",
    "as_strided_scatter": "its gradient leaves out what was replaced",
    "nextafter": "float32 and float64",
    "from_numpy": "calls that use the memory are done when they return",
    "igamma": "the gradient by the second argument",
    "igammac": "the gradient by the second argument",
    "is_vulkan_available": "answers no",
    "set_flush_denormal": "answers no",
    "kthvalue": "of equal elements another may be named",
    "mode": "of equal elements another may be named",
    "topk": "of equal elements another may be named",
    "use_deterministic_algorithms": "all algorithms are",
}


def page() -> str:
    """The page as the tree has it now."""
    spaces = names()
    places = {space: place_of(space) for space in spaces}
    names_of_space = {  # which imports what is late, so all samples are known then
        space: [n for n in listed if places[space] is not None and hasattr(places[space], n)]
        for space, listed in spaces.items()
    }
    samples: dict[int, OpSamples] = {}
    for one in SAMPLES:
        samples.setdefault(id(one.function), one)
        samples.setdefault(id(getattr(one.function, "__wrapped__", one.function)), one)
    summary, sections = [], []
    for space, listed in spaces.items():
        place, public = places[space], names_of_space[space]
        missing = [n for n in listed if n not in public]
        title = "flow" + space.removeprefix("torch")
        summary.append(f"| {title} | {len(public)} | {len(listed)} |")
        sections.append(_section(title, space, place, public, missing, samples))
    table = ["| namespace | here | in PyTorch |", "|---|---|---|", *summary]
    return "\n".join([HEAD, *table, "", *sections]).rstrip() + "\n"


def _section(
    title: str,
    space: str,
    place: Any,
    public: list[str],
    missing: list[str],
    samples: dict[int, OpSamples],
) -> str:
    lines = [f"## {title}", ""]
    functions = [n for n in public if space in TABLES and _computes(getattr(place, n))]
    if functions:
        lines += [
            "| name | CPU | CUDA | 1st | 2nd | graph | notes |",
            "|---|---|---|---|---|---|---|",
        ]
        for n in functions:
            row = row_of(n, getattr(place, n), samples)
            lines.append(f"| {n} | {' | '.join(row)} |")
        lines.append("")
    others = [n for n in public if n not in functions]
    if others:
        lines += [_wrapped(("And: " if functions else "Here: ") + ", ".join(others) + "."), ""]
    if missing:
        lines += [_wrapped("Not here: " + ", ".join(missing) + "."), ""]
    return "\n".join(lines)


def _computes(value: Any) -> bool:
    """Return True if the value is a function of tensors, by the room that it is in."""
    module = getattr(value, "__module__", "") or ""
    if isinstance(value, type):
        return False
    return isinstance(value, Elementwise) or (
        callable(value) and module.startswith(("flowvm.ops.", "flowvm.nn."))
    )


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False))


def main() -> int:
    """Write the page, or compare with it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    now = page()
    if parser.parse_args().check:
        text = PAGE.read_text() if PAGE.exists() else ""
        if text != now:
            print(f"{PAGE.relative_to(ROOT)} is out of date: run python -m tools.coverage")
        return int(text != now)
    PAGE.write_text(now)
    return 0


if __name__ == "__main__":
    sys.exit(main())
