"""A Python prompt with flowvm at hand.

IPython where it is installed, else the standard prompt with history and completion.
"""

import code
import sys
from pathlib import Path
from typing import Any

import numpy as np

import flowvm as flow
from flowvm.config import config
from flowvm.loading.lazy import lazy

readline, rlcompleter = lazy("readline"), lazy("rlcompleter")  # not every Python has them


def main() -> int:
    """Open the prompt; returns when the user leaves it."""
    names = namespace()
    if sys.stdin.isatty() and _ipython(names):
        return 0
    _plain(names)
    return 0


def namespace() -> dict[str, Any]:
    """Return the names defined at the prompt: flow, nn, np."""
    return {"flow": flow, "nn": flow.nn, "np": np}


def banner() -> str:
    """Two lines: what runs here, and what to type first."""
    python = ".".join(map(str, sys.version_info[:3]))
    engine = f"{flow.config.engine} engine, {flow.config.workers} cpu workers"
    return (
        f"flowvm {flow.__version__}, Python {python}, {engine}\n"
        "flow, nn and np are imported. Try: x = flow.randn(2, 3); x @ x.T; flow.vm.stats()"
    )


def _ipython(names: dict[str, object]) -> bool:
    try:
        import IPython
        from traitlets.config import Config
    except ImportError:
        return False
    settings = Config()
    settings.TerminalInteractiveShell.banner1 = banner() + "\n"
    IPython.start_ipython(argv=[], user_ns=names, config=settings)
    return True


def _plain(names: dict[str, object]) -> None:
    history = _line_editing(names) if sys.stdin.isatty() else None
    console = {"__name__": "__console__", "__doc__": None} | names
    try:
        code.interact(banner=banner(), local=console, exitmsg="")
    finally:  # exit() leaves by SystemExit
        if history is not None:
            _save_history(history)


def _line_editing(names: dict[str, object]) -> Path | None:
    """Switch on completion and history; the history's file, or None where there is no readline."""
    try:
        readline.set_completer(rlcompleter.Completer(names).complete)
    except ImportError:
        return None
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    history = config.cache_dir / "repl_history"
    try:
        readline.read_history_file(history)
    except OSError:  # the first session, or a folder that cannot be read: start empty
        readline.clear_history()
    return history


def _save_history(history: Path) -> None:
    readline.set_history_length(2000)
    try:
        history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        readline.write_history_file(history)
    except OSError as error:
        print(f"the history was not kept: {error}", file=sys.stderr)
