"""The `flowvm` command: the REPL, and the jobs that need no script of one's own.

Parsing arguments imports nothing heavy: a subcommand's module is imported when it runs.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from flowvm.errors import FlowError

__all__ = ["main"]

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
    except BrokenPipeError:  # whoever read what is printed, `head` perhaps, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"flowvm {args.command or 'repl'}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def run(args: argparse.Namespace) -> int:
    """Hand over to the module of the subcommand."""
    if args.command == "demo":
        from flowvm.commands import demo

        return demo.main(args)
    if args.command == "doctor":
        from flowvm.commands import doctor

        return doctor.main(args)
    if args.command == "warmup":
        from flowvm.commands import warmup

        return warmup.main(args)
    if args.command in (None, "repl"):
        from flowvm.commands import repl

        return repl.main()
    from flowvm.profiler.front.commands import COMMANDS

    return COMMANDS[args.command](args)


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    from flowvm.commands.demo import add_arguments
    from flowvm.profiler.front.commands import add_parsers

    top = argparse.ArgumentParser(prog="flowvm", description=DESCRIPTION, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"flowvm {_version()}")
    commands = top.add_subparsers(dest="command", metavar="command")
    commands.add_parser("repl", help="a Python prompt with flowvm imported (the default)")
    add_arguments(commands.add_parser("demo", help="train a small CNN on handwritten digits"))
    doctor = commands.add_parser(
        "doctor", help="say what is installed, what is missing and how to get it"
    )
    doctor.add_argument("--json", action="store_true", help="print JSON, for a report or a script")
    doctor.add_argument(
        "--private", action="store_true", help="list every private name used of other packages"
    )
    warmup = commands.add_parser("warmup", help="compile kernels ahead, into the cache folder")
    warmup.add_argument("--all", action="store_true", help="every op that declares samples")
    warmup.add_argument("--jobs", type=int, default=0, help="processes (default: one a CPU)")
    add_parsers(commands)
    return top


def _version() -> str:
    from flowvm import __version__

    return __version__
