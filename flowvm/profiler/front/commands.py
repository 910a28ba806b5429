"""The profiler's commands: `flowvm run`, `view`, `why`, `query`, `diff`, `export`, `top`."""

from __future__ import annotations

import argparse
import gzip
import json
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowvm.errors import ArgumentError
from flowvm.loading.lazy import lazy
from flowvm.profiler.front.profiles import load, profile
from flowvm.vm.callers import tracebacks
from flowvm.vm.callers.lines import INTERNAL

if TYPE_CHECKING:
    from flowvm.profiler.export import trace_rules
    from flowvm.profiler.front import top
    from flowvm.profiler.front.profiles import Profile
    from flowvm.profiler.views.diff import Diff
    from flowvm.profiler.views.query import Query
    from flowvm.profiler.views.why import Why
else:
    trace_rules = lazy("flowvm.profiler.export.trace_rules")
    top = lazy("flowvm.profiler.front.top")

MOST_ROWS = 20  # of a query
# of `view`, besides the summary
SCREENS = {
    "timeline": "when everything ran", "dag": "what waited for what", "memory": "bytes over time",
    "critical": "the path that sums to the wall time", "plan": "what replays of a graph did",
}  # fmt: skip


def add_parsers(commands: Any) -> None:
    """Add the subcommands to those of the `flowvm` command."""
    run = commands.add_parser("run", help="run a script and say what bound it")
    run.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    run.add_argument("-o", dest="out", metavar="RUN", help="save the run (.flowtrace, .json, ...)")
    run.add_argument("--level", type=int, default=2, choices=(1, 2, 3), help="what to record (2)")
    run.add_argument("--json", action="store_true", help="the summary as JSON")
    run.add_argument("program", help="a script, or with -m a module")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program gets")
    view = commands.add_parser("view", help="show a saved run")
    view.add_argument("run", help="a file that Profile.save or `flowvm run -o` made")
    screens = view.add_mutually_exclusive_group()
    for name, text in SCREENS.items():
        screens.add_argument(f"--{name}", action="store_true", help=f"{text} instead")
    view.add_argument("--by", default="op", help="summary by op, line, module or stream")
    view.add_argument("--sort", default="path", help="column that the summary is sorted by")
    view.add_argument("--around", type=int, help="of the dag: what is near this instruction")
    view.add_argument("--json", action="store_true", help="the same as JSON")
    why = commands.add_parser("why", help="why an instruction started when it did")
    why.add_argument("run")
    why.add_argument("what", help="its number, or the name of an operator")
    why.add_argument("--json", action="store_true")
    query = commands.add_parser("query", help="the instructions that an expression is true of")
    query.add_argument("run")
    query.add_argument("expression", help="such as \"op == 'matmul' and wait.dep > 0.1\", in ms")
    query.add_argument("--limit", type=int, default=MOST_ROWS, help="rows at most, 0: all (20)")
    query.add_argument("--json", action="store_true")
    diff = commands.add_parser("diff", help="what differs between two runs")
    diff.add_argument("before")
    diff.add_argument("after")
    diff.add_argument("--by", default="op", help="op, line, module or stream")
    diff.add_argument("--json", action="store_true")
    export = commands.add_parser("export", help="write a run for another program")
    export.add_argument("run")
    export.add_argument(
        "out", help=".json, .json.gz (Perfetto), .speedscope.json, .html, .dot, .mmd, .svg"
    )
    export.add_argument("--edges", default="gating", choices=("gating", "all", "none"))
    export.add_argument("--against", metavar="RUN", help="of a page: an earlier run beside it")
    export.add_argument("--check", action="store_true", help="of a trace: say what viewers refuse")
    top = commands.add_parser("top", help="watch the VM of a running process")
    top.add_argument("pid", nargs="?", type=int, help="the process (default: the only one there)")
    top.add_argument("--hz", type=float, default=2.0, help="screens a second, 0.1 to 10 (2)")
    top.add_argument("--interval", type=float, help="seconds between lines (30), or --json objects")
    top.add_argument("--once", action="store_true", help="one screen, of a second, and leave")
    top.add_argument("--dump", action="store_true", help="who waits for whom right now, and leave")
    top.add_argument("--json", action="store_true", help="JSON, an object a line")
    top.add_argument("--web", action="store_true", help="in a browser: prints the address")
    top.add_argument("--port", type=int, default=0, help="for --web (0: any that is free)")


def _run(args: argparse.Namespace) -> int:
    sys.argv = [args.program, *args.arguments]
    started = getattr(sys.modules["__main__"], "__file__", None)
    if started and Path(started).stem == "flowvm":  # the command's own file is nobody's program
        INTERNAL[started] = True
    code = 0
    with profile(level=args.level) as recording:
        try:
            if args.module:
                sys.path.insert(0, "")
                runpy.run_module(args.program, run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, str(Path(args.program).resolve().parent))
                runpy.run_path(args.program, run_name="__main__")
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            if isinstance(stop.code, str):
                print(stop.code, file=sys.stderr)
        except KeyboardInterrupt:
            code = 130
            print("interrupted", file=sys.stderr)
        except BaseException as error:
            code = 1
            _print_error(error)
    if args.json:
        print(json.dumps(recording.to_dict()))
    else:
        _print(recording.summary(), sys.stderr)
    if args.out:
        print(f"written: {_write(recording, args.out)}", file=sys.stderr)
    return code


def _print_error(error: BaseException) -> None:
    """A program's error without the frames that ran it."""
    tb = error.__traceback__
    while tb is not None and (
        tb.tb_frame.f_code.co_filename == __file__ or "runpy" in tb.tb_frame.f_code.co_filename
    ):
        tb = tb.tb_next
    traceback.print_exception(type(error), error, tracebacks.shown(error, tb))


def _write(recording: Profile, out: str) -> Path:
    path = Path(out)
    if path.suffix:
        written: Path = recording.export(path)
        return written
    recording.save(path)
    return path


def _view(args: argparse.Namespace) -> int:
    recording = load(args.run)
    shown: Any
    if args.timeline:
        shown = recording.timeline()
    elif args.dag or args.around is not None:
        shown = recording.graph(around=args.around)
    elif args.critical:
        shown = recording.critical_path()
    elif args.memory:
        shown = recording.memory()
    elif args.plan:
        shown = recording.plan()
    else:
        shown = recording.summary(args.by, args.sort)
    return _show(shown, args.json)


def _why(args: argparse.Namespace) -> int:
    number = args.what.removeprefix("#")
    return _show(load(args.run).why(int(number) if number.isdecimal() else args.what), args.json)


def _query(args: argparse.Namespace) -> int:
    return _show(load(args.run).query(args.expression, args.limit or None), args.json)


def _diff(args: argparse.Namespace) -> int:
    return _show(load(args.before).diff(load(args.after), args.by), args.json)


def _export(args: argparse.Namespace) -> int:
    if args.check and not args.out.endswith((".json", ".json.gz")):
        raise ArgumentError(f"--check is for traces, .json or .json.gz, not for {args.out}")
    against = load(args.against) if args.against else None
    path = load(args.run).export(args.out, edges=args.edges, against=against)
    print(f"written: {path} ({path.stat().st_size:,} bytes)")
    if args.check:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
            problems = trace_rules.problems(json.load(file))
        print("\n".join(problems) or "no problems")
        return int(bool(problems))
    return 0


def _top(args: argparse.Namespace) -> int:
    return top.main(args)


def _show(view: Why | Query | Diff, as_json: bool) -> int:
    if as_json:
        print(json.dumps(view.to_dict()))
    else:
        _print(view, sys.stdout)
    return 0


def _print(view: Any, file: Any) -> None:
    """In colours on a terminal; else as text."""
    if file.isatty():
        from rich.console import Console

        Console(file=file).print(view)
    else:
        print(view, file=file)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": _run, "view": _view, "why": _why, "query": _query, "diff": _diff,
    "export": _export, "top": _top,
}  # fmt: skip
