"""`flowvm lab run.flowtrace --workers 1,2,4,8 --policy fifo,heft`: a recorded graph of work on
machines that are not there.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from flowvm.errors import ArgumentError
from flowvm.loading.lazy import lazy

if TYPE_CHECKING:
    from flowvm.lab import comparison, graphs, machines
else:
    comparison = lazy("flowvm.lab.comparison")
    graphs = lazy("flowvm.lab.graphs")
    machines = lazy("flowvm.lab.machines")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `flowvm lab`."""
    parser.add_argument("run", help="a .flowtrace, WfFormat .json, .stg or .graphml")
    parser.add_argument("--workers", default="1,2,4,8", help="how many, several (1,2,4,8)")
    parser.add_argument(
        "--policy", default="fifo,critical_path,heft", help="names (fifo,critical_path,heft)"
    )
    parser.add_argument("--link", help='between workers, such as "8GB/s" (edges take no time)')
    parser.add_argument("--issued", action="store_true", help="tasks start no sooner than issued")
    parser.add_argument(
        "--here", action="store_true", help="with this machine's wake-ups, measured"
    )
    parser.add_argument("--csv", metavar="FILE", help="write a row a schedule")
    parser.add_argument("--svg", metavar="FILE", help="write box plots over the bounds")
    parser.add_argument("--json", action="store_true", help="the table as JSON")


def main(args: argparse.Namespace) -> int:
    """Print makespans, a row a policy, a column a number of workers."""
    dag = graphs.Dag.load(args.run, issued=args.issued)
    counts = [_count(text) for text in args.workers.split(",")]
    policies = [name.strip() for name in args.policy.split(",")]
    kind = machines.Machine
    table = {str(n): kind.here(n) if args.here else kind(n, link=args.link) for n in counts}
    results = comparison.sweep({Path(args.run).name: dag}, table, policies)
    if args.csv:
        results.csv(args.csv)
    if args.svg:
        results.svg(args.svg)
    makespan = {(row[2], row[1]): float(row[4]) for row in results.rows}
    limits = {name: machines.bounds(dag, machine).best for name, machine in table.items()}
    if args.json:
        rows = {p: {name: makespan[p, name] for name in table} for p in policies}
        print(json.dumps({"tasks": len(dag), "makespan": rows, "bound": limits}))
        return 0
    print(
        f"{len(dag)} tasks, {len(dag.source)} edges: work {dag.work * 1e3:.4g} ms, "
        f"span {dag.span * 1e3:.4g} ms, width {dag.width}"
    )
    if dag.run is not None:
        print(f"recorded: {dag.run.wall / 1e6:.4g} ms")
    wide = max(map(len, [*policies, "workers", "bound"]))
    print("  ".join([f"{'workers':{wide}s}", *(f"{name:>9s}" for name in table)]) + "   ms")
    for policy in policies:
        values = [f"{makespan[policy, name] * 1e3:9.4g}" for name in table]
        print("  ".join([f"{policy:{wide}s}", *values]))
    print("  ".join([f"{'bound':{wide}s}", *(f"{v * 1e3:9.4g}" for v in limits.values())]))
    return 0


def _count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ArgumentError(f"--workers: numbers from 1 up, got {text!r}")
    return int(text)
