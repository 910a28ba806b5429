"""The `flowvm` command: the REPL, and the jobs that need no script of one's own.

Parsing arguments imports nothing heavy: a subcommand's module is imported when it runs.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowvm.commands import demo, lab
from flowvm.errors import FlowError
from flowvm.loading.lazy import lazy
from flowvm.profiler.front.commands import COMMANDS, add_parsers
from flowvm.version import VERSION

if TYPE_CHECKING:
    from flowvm.commands import cold, doctor, launch, repl, warmup
else:
    cold = lazy("flowvm.commands.cold")
    doctor = lazy("flowvm.commands.doctor")
    launch = lazy("flowvm.commands.launch")
    repl = lazy("flowvm.commands.repl")
    warmup = lazy("flowvm.commands.warmup")

DESCRIPTION = (
    "flowvm, a deep learning framework around a virtual machine. With no command: the REPL."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's) and return the exit code."""
    args = parser().parse_args(argv)
    try:
        return run(args)
    except FlowError as error:
        print(f"flowvm {args.command or 'repl'}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of the output, `head` perhaps, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"flowvm {args.command or 'repl'}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def run(args: argparse.Namespace) -> int:
    """Run the module of the subcommand."""
    if args.command == "demo":
        return demo.main(args)
    if args.command == "doctor":
        return doctor.main(args) if args.cold is None else cold.main(args.cold)
    if args.command == "warmup":
        return warmup.main(args)
    if args.command == "launch":
        return launch.main(args)
    if args.command == "lab":
        return lab.main(args)
    if args.command in (None, "repl"):
        return repl.main()
    return COMMANDS[args.command](args)


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    top = argparse.ArgumentParser(prog="flowvm", description=DESCRIPTION, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"flowvm {VERSION}")
    commands = top.add_subparsers(dest="command", metavar="command")
    commands.add_parser("repl", help="a Python prompt with flowvm imported (the default)")
    demo.add_arguments(commands.add_parser("demo", help="train a small CNN on handwritten digits"))
    checkup = commands.add_parser(
        "doctor", help="say what is installed, what is missing and how to get it"
    )
    checkup.add_argument("--json", action="store_true", help="print JSON, for a report or a script")
    checkup.add_argument(
        "--private", action="store_true", help="list every private name used of other packages"
    )
    checkup.add_argument(
        "--cold",
        nargs="?",
        const="",
        metavar="SCRIPT",
        help="run SCRIPT, or a training step, with an empty cache; draw compilations",
    )
    ahead = commands.add_parser("warmup", help="compile kernels ahead, into the cache folder")
    ahead.add_argument("ops", nargs="*", metavar="OP", help="these, not the usual ones")
    ahead.add_argument("--all", action="store_true", help="every sample of every op (or OP)")
    ahead.add_argument("--jobs", type=int, default=0, help="processes (default: one a CPU)")
    launch.add_arguments(
        commands.add_parser("launch", help="run a script on several ranks, by mpiexec")
    )
    lab.add_arguments(
        commands.add_parser("lab", help="simulate a run on other machines, by other policies")
    )
    add_parsers(commands)
    return top
