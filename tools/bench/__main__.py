"""`python -m tools.bench [--groups eager,kernels] [--peers torch,jax] [--only TEXT] [--json]`: one
table of what is promised.  Every op over sizes is `python -m tools.bench.kernels`.

Ours and the peer run in turn in one process, one thread each (`flow.set_num_threads(1)`,
`torch.set_num_threads(1)`); a ratio is the median of paired ratios.  Absolute times are this
machine's at this moment.

    python -m tools.bench --groups kernels --checkout FOLDER --cpu

compares with flowvm as it is in another folder, which may not be more than 3 % quicker: the lowest
CPU seconds of each, in turn, so that other programs on the machine matter little.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import flowvm as flow
from tools.bench import (
    contended,
    convolutions,
    eager,
    graph,
    machine,
    products,
    reading,
    recorder,
    scheduling,
    sparse,
    startup,
    targets,
    top,
    verdicts,
    vmap,
)  # fmt: skip
from tools.bench.measure import Result, import_jax

GROUPS = (
    "eager,reading,kernels,products,graph,recorder,top,machine,scheduling,startup,vmap,sparse,"
    "convolutions,contended,verdicts"
)


def _peers(names: str) -> dict[str, Any]:
    packages = {}
    for name in filter(None, names.split(",")):
        try:
            packages[name] = import_jax() if name == "jax" else importlib.import_module(name)
        except ImportError:
            print(f"bench: {name} is not installed; its columns stay empty", file=sys.stderr)
    if "torch" in packages:
        packages["torch"].set_num_threads(1)
    return packages


def _all(groups: list[str], options: argparse.Namespace) -> Iterator[Result]:
    rounds, only, folder = options.rounds, options.only, options.checkout
    packages = _peers(options.peers)
    if "eager" in groups:
        yield from eager.results(packages, rounds)
    if "reading" in groups:
        yield from reading.results(packages, rounds, only)
    if "kernels" in groups:
        yield from targets.results(list(packages), rounds, only, folder)
    if "products" in groups:
        yield from products.results(packages, rounds, only, options.threads)
    if "convolutions" in groups:
        yield from convolutions.results(packages, rounds, only, options.threads)
    if "graph" in groups:
        yield from graph.results(list(packages), rounds)
    if "recorder" in groups:
        yield from recorder.results(rounds)
    if "top" in groups:
        yield from top.results(rounds)
    if "machine" in groups:
        yield from machine.results(rounds)
    if "scheduling" in groups:
        yield from scheduling.results(rounds)
    if "vmap" in groups:
        yield from vmap.results(packages, rounds, only)
    if "sparse" in groups:
        yield from sparse.results(packages, rounds, only, options.threads)
    if "contended" in groups:
        yield from contended.results(packages, rounds, only)
    if "verdicts" in groups:
        yield from verdicts.results(rounds, only)
    if "startup" in groups:
        yield from startup.results(packages, max(3, rounds // 2))


def main() -> int:
    """Run, print, and exit with 0 whatever the figures are: this measures, it does not judge."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peers", default="torch,jax,numpy", help="comma-separated; '' for none")
    parser.add_argument("--groups", default=GROUPS, help=f"some of {GROUPS}")
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of a table")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--checkout", default="", metavar="FOLDER", help="flowvm elsewhere")
    parser.add_argument("--cpu", action="store_true", help="the lowest CPU seconds")
    parser.add_argument("--threads", type=int, default=1, help="of products, ours and PyTorch's")
    options = parser.parse_args()
    flow.set_num_threads(1)
    rows = []
    groups = options.groups.split(",")
    for row in _all(groups, options):
        if options.only not in row.name:
            continue
        rows.append(row)
        if options.json:
            print(json.dumps(row.as_dict()), flush=True)
        else:
            print(f"  {row.name} ...", file=sys.stderr)
    if not options.json:
        _print(rows)
    return 0


def _print(rows: list[Result]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in ("what", "ours", "peer", "ratio", "reach", ""):
        table.add_column(head, justify="right" if head in ("ours", "peer", "ratio") else "left")
    for r in rows:
        table.add_row(
            r.name,
            f"{r.ours:.3g} {r.unit}",
            "" if r.peer is None else f"{r.peer_name} {r.peer:.3g}",
            "" if r.ratio is None else f"{r.ratio:.2f}",
            r.reach,
            "" if r.met is None else "[green]met[/]" if r.met else "[red]missed[/]",
        )
    console = Console()
    (console if console.is_terminal else Console(width=120)).print(table)


if __name__ == "__main__":
    sys.exit(main())
