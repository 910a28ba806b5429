"""Run the examples in the docstrings of every public name, and the programs of the pages in docs/.

    python -m tools.doctests              all of them
    python -m tools.doctests flow nn      these spaces
    python -m tools.doctests docs         the pages (tools/pages.py says how)
    python -m tools.doctests docs/how-to/load-data.md    these pages
    python -m tools.doctests --missing    and say which names have none

Each name's examples run in a namespace of their own, which has `flow`, `nn`, `F` and `np`, after
`flow.manual_seed(0)`.  In a space that is complete (SPACES), a name without an example is an error.
A name has an example where its docstring has one, or where that begins with the name it stands for,
as "In-place `add`: ..." does, and that one has an example.
"""

from __future__ import annotations

import argparse
import doctest
import inspect
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import flowvm as flow
import flowvm.asyncs
import flowvm.distributed.checkpoint.consolidation
import flowvm.distributed.checkpoint.format_utils
import flowvm.distributed.device_mesh
import flowvm.distributed.fsdp.wrap
import flowvm.distributed.functional
import flowvm.distributed.nn
import flowvm.distributed.tensor.parallel
import flowvm.distributions.utils
import flowvm.nn.attention.flex_attention
import flowvm.utils.benchmark
import flowvm.utils.dlpack
import flowvm.utils.flop_counter
import flowvm.utils.global_view
import flowvm.utils.tensor
from flowvm import nn
from tools import pages


class Space(NamedTuple):
    """A place of public names; `complete`: each of them has an example."""

    place: Any
    complete: bool


SPACES = {
    "flow": Space(flow, True),
    "Tensor": Space(flow.Tensor, True),
    "nn": Space(nn, True),
    "nn.functional": Space(nn.functional, True),
    "nn.init": Space(nn.init, True),
    "linalg": Space(flow.linalg, True),
    "masked": Space(flow.masked, True),
    "fft": Space(flow.fft, True),
    "special": Space(flow.special, True),
    "optim": Space(flow.optim, True),
    "optim.lr_scheduler": Space(flow.optim.lr_scheduler, True),
    "func": Space(flow.func, True),
    "func.forward_ad": Space(flow.func.forward_ad, True),
    "autograd": Space(flow.autograd, True),
    "distributions": Space(flow.distributions, True),
    "env": Space(flow.env, True),
    "mock_torch": Space(flow.mock_torch, True),
    "utils.global_view": Space(flowvm.utils.global_view, True),
    "utils.benchmark": Space(flowvm.utils.benchmark, True),
    "asyncs": Space(flowvm.asyncs, True),
    "utils.tensor": Space(flowvm.utils.tensor, True),
    "utils.data": Space(flow.utils.data, True),
    "nn.attention.flex_attention": Space(nn.attention.flex_attention, True),
    "nn.utils": Space(nn.utils, True),
    "nn.utils.rnn": Space(nn.utils.rnn, True),
    "nn.utils.parametrize": Space(nn.utils.parametrize, True),
    "nn.utils.parametrizations": Space(nn.utils.parametrizations, True),
    "nn.utils.prune": Space(nn.utils.prune, True),
    "optim.swa_utils": Space(flow.optim.swa_utils, True),
    "autograd.functional": Space(flow.autograd.functional, True),
    "autograd.graph": Space(flow.autograd.graph, True),
    "signal.windows": Space(flow.signal.windows, True),
    "amp": Space(flow.amp, True),
    "testing": Space(flow.testing, True),
    "fx": Space(flow.fx, True),
    "jit": Space(flow.jit, True),
    "library": Space(flow.library, True),
    "overrides": Space(flow.overrides, True),
    "errors": Space(flow.errors, True),
    "vm": Space(flow.vm, True),
    "profiler": Space(flow.profiler, True),
    "lab": Space(flow.lab, True),
    "distributions.utils": Space(flow.distributions.utils, False),
    "futures": Space(flow.futures, True),
    "utils.dlpack": Space(flowvm.utils.dlpack, True),
    "utils.flop_counter": Space(flowvm.utils.flop_counter, True),
    "distributed.checkpoint": Space(flow.distributed.checkpoint, True),
    "distributed.checkpoint.consolidation": Space(flow.distributed.checkpoint.consolidation, True),
    "distributed.checkpoint.format_utils": Space(flow.distributed.checkpoint.format_utils, True),
    "distributed.checkpoint.state_dict": Space(flow.distributed.checkpoint.state_dict, True),
    "distributed.checkpoint.stateful": Space(flow.distributed.checkpoint.stateful, True),
    "distributed.fsdp": Space(flow.distributed.fsdp, True),
    "distributed.fsdp.wrap": Space(flow.distributed.fsdp.wrap, True),
    "distributed.device_mesh": Space(flow.distributed.device_mesh, True),
    "distributed.functional": Space(flow.distributed.functional, True),
    "distributed.nn": Space(flow.distributed.nn, True),
    "distributed.tensor": Space(flow.distributed.tensor, True),
    "distributed.tensor.parallel": Space(flow.distributed.tensor.parallel, True),
    "distributed.tensor.placement_types": Space(flow.distributed.tensor.placement_types, True),
}
STANDS_FOR = re.compile(
    r"(?:In-place |A copy of what )`(\w+)`|`(?:flow|x|input)\.(\w+)(?:\(.*?\))?`"
    r"|`(\w+)`(?:;| in place| over two| with return_indices| under its older name)"
)
# their examples are in the functions that make them or take them: infer functions, `grad_fn`,
# `flow.vm.trace`, `flow.profiler.profile`
SHOWN_ELSEWHERE = {"Launch", "Node", "Run", "Trace"}
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def names(place: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public functions, classes, methods and properties of a module or class, by name."""
    for name in sorted(getattr(place, "__all__", None) or dir(place)):
        value = getattr(place, name)
        if name.startswith("_") or getattr(value, "__module__", None) == "typing":
            continue
        if callable(value) or isinstance(value, property):
            yield name, value


def text_of(value: Any) -> str:
    """Return a value's docstring with examples, and for a class its methods' too."""
    texts = [inspect.getdoc(value) or ""]
    if inspect.isclass(value) and value is not flow.Tensor:  # whose methods are names themselves
        own = [m for n, m in vars(value).items() if not n.startswith("__")]
        texts += [inspect.getdoc(m) or "" for m in own if callable(m) or hasattr(m, "__get__")]
    return "\n\n".join(text for text in texts if ">>>" in text)


def has_example(space: str, value: Any, visited: frozenset[str] = frozenset()) -> bool:
    """Return True if a docstring has an example, or refers to one that has."""
    if ">>>" in text_of(value) or getattr(value, "__name__", "") in SHOWN_ELSEWHERE:
        return True
    stands = STANDS_FOR.match(inspect.getdoc(value) or "")
    if stands is None or (name := next(filter(None, stands.groups()))) in visited:
        return False
    others = [getattr(p, name, None) for p in (SPACES[space].place, flow, flow.Tensor)]
    return any(
        has_example(space, other, visited | {name})
        for other in others
        if other is not None and other is not value
    )


def run(name: str, text: str) -> tuple[int, int]:
    """Run a docstring's examples; print failures, return the numbers of examples and failures."""
    known = {"flow": flow, "nn": nn, "F": nn.functional, "np": np, "__name__": "__main__"}
    test = doctest.DocTestParser().get_doctest(text, known, name, None, None)
    flow.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        failed, tried = doctest.DocTestRunner(verbose=False, optionflags=FLAGS).run(test)
    return tried, failed


def run_pages(names: list[str]) -> int:
    """Run the programs of pages, "docs" for all of them; return the number of failures."""
    chosen = dict.fromkeys(Path(name).resolve() for name in names if name != "docs")
    if "docs" in names:
        chosen |= dict.fromkeys(pages.pages())
    count, failures = 0, []
    for page in chosen:
        ran, wrong = pages.run(page)
        count += ran
        failures += wrong
        print(*wrong, sep="\n", end="\n" * bool(wrong))
    if chosen:
        print(f"{count} blocks of {len(chosen)} pages, {len(failures)} failed")
    return len(failures)


def main(arguments: list[str]) -> int:
    """Run the tool; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.doctests", description=__doc__)
    parser.add_argument("spaces", nargs="*", metavar="SPACE", help="default: all, and docs")
    parser.add_argument("--missing", action="store_true", help="say which names have no example")
    options = parser.parse_args(arguments)
    chosen = options.spaces or [*SPACES, "docs"]
    if unknown := [name for name in chosen if name not in SPACES and name[:4] != "docs"]:
        parser.error(f"no such space: {' '.join(unknown)}; there are {' '.join(SPACES)} docs")
    texts: set[str] = set()  # texts: one function has several names
    tried = failed = wrong = 0
    for space in filter(SPACES.__contains__, chosen):
        without, count = [], 0
        for name, value in names(SPACES[space].place):
            count += 1
            if not has_example(space, value):
                without.append(name)
            text = text_of(value)
            if text not in texts:
                texts.add(text)
                more, bad = run(f"{space}.{name}", text)
                tried, failed = tried + more, failed + bad
        complete = SPACES[space].complete
        print(f"{space:20} {count - len(without):4} of {count:4} names have an example")
        if without and (complete or options.missing):
            print(f"  {'an example is missing' if complete else 'none'}: {' '.join(without)}")
        wrong += complete * len(without)
    if texts:
        print(f"{tried} examples, {failed} failed")
    failed += run_pages([name for name in chosen if name not in SPACES])
    return int(bool(failed or wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
