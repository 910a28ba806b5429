"""IPython: `%load_ext flowvm`.

    %flow model(x)                      what bound one statement
    %%flow [--graph] [--memory] [--timeline] [--json FILE] [--level N]
    ...                                 the same of a cell, and other screens of it
    %flowtop [SECONDS]                  what the VM does, while it does it in another thread

What was recorded is left in the variable `p`, or where that is a name of yours in the first free
one of `p1`, `p2` and so on, which is said.  Output is that of `Profile`'s methods: in a terminal in
colours, in a notebook as HTML.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import linecache
import shlex
import time
from typing import TYPE_CHECKING, Any

from flowvm.errors import ArgumentError
from flowvm.files.writer import put
from flowvm.profiler.front.live import in_notebook, live
from flowvm.profiler.front.profiles import profile
from flowvm.profiler.front.watcher import Watcher
from flowvm.profiler.terminal import has_colours

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowvm.profiler.grammar import View


VARIABLE = "p"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ArgumentError(f"%%flow: {message}; {' '.join(self.format_usage().split())}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="%%flow", add_help=False, allow_abbrev=False)
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--timeline", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--level", type=int, default=2, choices=(1, 2, 3))
    return parser


# public: flow (late, unlisted)
def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext flowvm`: the magics, for `shell`."""
    recorded: dict[str, object] = {}

    def flow(line: str, cell: str | None = None) -> None:
        """%flow statement, or %%flow [--graph] [--memory] [--timeline] [--json FILE] [--level N]"""
        try:
            arguments = _parser().parse_args([] if cell is None else shlex.split(line))
            source = shell.transform_cell((line if cell is None else cell).strip())
        except (ArgumentError, ValueError) as error:
            raise _usage(error) from None

        _measure(shell, source, arguments, recorded)

    def flowtop(line: str) -> None:
        """%flowtop [SECONDS]: look at the VM for so long (10), or until it is interrupted."""
        try:
            seconds = float(line or 10)
        except ValueError:
            message = f"%flowtop {line}: give seconds, as in %flowtop 5, or nothing"
            raise _usage(ValueError(message)) from None
        if shell.__class__.__name__ != "ZMQInteractiveShell":
            watcher = Watcher()
            watcher.look()
            time.sleep(min(seconds, 1.0))
            print(watcher.look())
            seconds -= 1.0
        if seconds > 0:
            with live(hz=1):
                time.sleep(seconds)

    shell.register_magic_function(flow, "line_cell", "flow")
    shell.register_magic_function(flowtop, "line", "flowtop")


def _usage(error: Exception) -> Exception:
    from IPython.core.error import UsageError

    reason: Exception = UsageError(str(error))
    return reason


def _measure(
    shell: Any, source: str, arguments: argparse.Namespace, recorded: dict[str, object]
) -> None:
    """`recorded` are the variables that hold what was recorded before, and what that is."""
    with profile(level=arguments.level) as recording:
        result = _run(shell, source)
    name = _name(shell.user_ns, recorded)
    shell.user_ns[name] = recorded[name] = recording
    _show(shell, recording.summary())
    if name != VARIABLE:
        print(f"recorded as {name}: {VARIABLE} is a name of yours")
    for name, method in (("timeline", "timeline"), ("graph", "graph"), ("memory", "memory")):
        if getattr(arguments, name):
            _show(shell, getattr(recording, method)())
    if arguments.json:
        put(arguments.json, json.dumps(recording.to_dict()), "%flow --json")
        print(f"written: {arguments.json}")
    if result is not None:
        shell.displayhook(result)


def _name(names: Mapping[str, object], recorded: Mapping[str, object]) -> str:
    """The first of p, p1, p2, ... that is free, or holds what was left there."""
    candidates = itertools.chain([VARIABLE], (f"{VARIABLE}{k}" for k in itertools.count(1)))
    return next(n for n in candidates if n not in names or names[n] is recorded.get(n, recorded))


def _run(shell: Any, source: str) -> Any:
    """Run a cell in the user's namespace: the value of its last line, if that is an expression."""
    tree = ast.parse(source)
    name = f"In[{shell.execution_count}]"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    last = tree.body[-1] if tree.body else None
    tail = None
    if isinstance(last, ast.Expr) and not source.rstrip().endswith(";"):
        tail = ast.Expression(last.value)
        tree.body.pop()
    exec(compile(tree, name, "exec"), shell.user_global_ns, shell.user_ns)
    if tail is None:
        return None
    return eval(compile(tail, name, "eval"), shell.user_global_ns, shell.user_ns)


def _show(shell: object, view: View) -> None:
    """In colours where the terminal has them, as HTML in a notebook, else as text."""
    if in_notebook():
        from IPython.display import display

        display(view)
    else:
        print(view.coloured() if has_colours() else view)
