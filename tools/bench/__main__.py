"""`python -m tools.bench [--peers torch,numpy] [--json] [--rounds N] [--only TEXT]`: one table of
what is promised.

Ours and the peer run in turn in one process, one thread each (`FLOWVM_WORKERS=1`,
`torch.set_num_threads(1)`); a ratio is the median of paired ratios.  Absolute times are this
machine's at this moment.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("FLOWVM_WORKERS", "1")

from tools.bench import eager, machine, startup
from tools.bench.measure import Result


def _peers(names: str) -> dict[str, Any]:
    found = {}
    for name in filter(None, names.split(",")):
        try:
            found[name] = importlib.import_module(name)
        except ImportError:
            print(f"bench: {name} is not installed; its columns stay empty", file=sys.stderr)
    if "torch" in found:
        found["torch"].set_num_threads(1)
    return found


def _all(peers: dict[str, Any], rounds: int) -> Iterator[Result]:
    yield from eager.results(peers, rounds)
    yield from machine.results(rounds)
    yield from startup.results(peers, max(3, rounds // 2))


def main() -> int:
    """Run, print, and exit with 0 whatever the figures are: this measures, it does not judge."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument("--peers", default="torch,numpy", help="comma-separated; '' for none")
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of a table")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="rows whose name has this text")
    options = parser.parse_args()
    rows = []
    for row in _all(_peers(options.peers), options.rounds):
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
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
