"""The only place in which flowvm starts processes.

- `own` is Python for flowvm's own work.  It imports nothing from the current folder, and finds the
  flowvm that this process has imported, installed or not.
- `program` is Python for a program of the user's, which is run as the user's command line would.
- Both have the flags of this interpreter: who runs it with `-I` or `-E` means its helpers, too.

`tests/guards/test_processes.py` lists every other file that starts a process, with its reason.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowvm.loading.lazy import lazy

if TYPE_CHECKING:
    import subprocess
else:
    subprocess = lazy("subprocess")

# flags of `sys.flags` that change the meaning of code or imports; -I stands for three of them
_FLAGS = (
    ("dont_write_bytecode", "-B"), ("no_site", "-S"), ("optimize", "-O"), ("bytes_warning", "-b"),
)  # fmt: skip
_ISOLATION = (("ignore_environment", "-E"), ("no_user_site", "-s"), ("safe_path", "-P"))
_OPTIONS = (  # of -X, likewise
    "dev", "utf8", "frozen_modules", "int_max_str_digits", "no_debug_ranges", "pycache_prefix",
    "warn_default_encoding", "gil", "cpu_count",
)  # fmt: skip
_START = """
import sys, json
from importlib import import_module
from importlib.util import spec_from_file_location
given = json.loads(sys.argv.pop(1))
class Places:
    def find_spec(name, path=None, target=None):
        place = given["places"].get(name)
        return spec_from_file_location(name, place) if place else None
sys.meta_path.insert(0, Places)
sys.path[:] = given["path"]
module, _, function = given["call"].partition(":")
sys.exit(getattr(import_module(module), function)(sys.argv[1:]))
"""


def flags(*more: str) -> list[str]:
    """Return this interpreter's flags, as its command line has them, and `more` of them once."""
    options = [f for name, f in _FLAGS for _ in range(int(getattr(sys.flags, name)))]
    if sys.flags.isolated:
        options.append("-I")
    else:
        options += [flag for name, flag in _ISOLATION if getattr(sys.flags, name)]
    options += [
        flag for flag in more if flag not in options and not (flag == "-P" and "-I" in options)
    ]
    for name in _OPTIONS:
        if name in sys._xoptions:
            value = sys._xoptions[name]
            options += ["-X", name if value is True else f"{name}={value}"]
    for warning in sys.warnoptions:
        options.append(f"-W{warning}")
    return options


def own(call: str, *args: str) -> list[str]:
    """Return the command of a Python that calls "module:function" of flowvm with a list of `args`;
    its exit code is what that returns.

    OSError where there is no Python to be run.
    """
    program = {"call": call, "path": [p for p in sys.path if p], "places": _places()}
    return [_python(), *flags("-P"), "-c", _START, json.dumps(program), *args]


def program(*args: str) -> list[str]:
    """Return the command of a Python that runs a program of the user's: a file, or "-m" and a
    module, and its arguments.
    """
    return [_python(), *flags(), *args]


def isolated(file: str, *args: str) -> list[str]:
    """Return the command of a Python that runs a file of flowvm's which imports no package."""
    return [_python(), "-I", "-S", file, *args]


def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process; `options` are the options of `subprocess.Popen`."""
    return subprocess.Popen(command, **options)


def forked(work: Callable[[], Any]) -> int:
    """Fork a child that does `work`, and return its number.  Nothing of this process ends with it:
    neither what was registered at exit, nor blocks that are open.
    """
    if pid := os.fork():
        return pid
    code = 1
    try:
        code = int(work() or 0)
    finally:
        os._exit(code)


def output(command: list[str]) -> str:
    """Return what a command prints; it is waited for, and its exit code is not looked at."""
    process = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return str(process.stdout)


def replace(command: list[str]) -> None:
    """Let another program take this process's place."""
    os.execv(command[0], command)


def _python() -> str:
    if not sys.executable:
        raise OSError(
            "sys.executable is empty (Python is embedded in another program), so flowvm cannot "
            "start Python processes"
        )
    return sys.executable


def _places() -> dict[str, str]:
    """Return the files of flowvm's package and of packages that may lie beside it."""
    places = {"flowvm": str(Path(__file__).parents[1] / "__init__.py")}
    for name in ("flowvm.ops", "flowvm.autograd", "flowvm.graph"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            places[name] = spec.origin
    return places
