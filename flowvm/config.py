"""The one table of settings.

Each is a FLOWVM_* environment variable, read when flowvm is imported, and an attribute of
`flow.config`; any may be set for a block: `with flow.config(debug=2): ...`.  Values are those of
the process, not of a thread.  Settings marked *start* are taken when the VM starts: `Config.lock`
turns a later change, which would do nothing, into an error; and `check`, which decides what code
the VM is made of, is read from the environment alone.

`print(flow.config)` shows the table: each setting, its value, what it takes and what it means.

`debug` is the one dial of what flowvm says on stderr, a line an event:

    1   threads that start, kernels that are compiled
    2   every instruction when it is done: stream, operator, operands, time, rate, the user's line
    3   and what it waited for
    4   and the source and types of each kernel that is compiled or loaded, and LLVM's code of it

From level 2 on each instruction is waited for, up to a quarter of a second: little overlaps.
"""

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from flowvm.errors import ConfigError, MissingNameError, did_you_mean
from flowvm.guards.regions import reverting
from flowvm.loading.listing import listing

__all__ = ["VARIABLES", "Config", "Variable", "config", "say"]
__dir__ = listing(globals())

PREFIX = "FLOWVM_"
TESTS = "FLOWVM_TEST_"  # variables for the tests, which are no settings


class Variable(NamedTuple):
    """One row of the table.  `parse` raises ValueError on text or a value it cannot use."""

    name: str
    default: Callable[[], object]
    parse: Callable[[object], object]
    expects: str
    help: str
    start: bool = False  # taken when the VM starts
    fixed: bool = False  # taken when flowvm is imported, from the environment alone

    @property
    def env(self) -> str:
        return PREFIX + self.name.upper()


def _integer(low: int, high: int) -> Callable[[object], int]:
    def parse(value: Any) -> int:
        if isinstance(value, float):
            raise ValueError
        number = int(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return parse


_record = _integer(1, 1 << 30)


def _choice(*names: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in names:
            raise ValueError
        return str(value)

    return parse


def _flag(value: object) -> bool:
    if isinstance(value, str):
        return {"0": False, "false": False, "off": False, "1": True, "true": True, "on": True}[
            value.lower()
        ]
    if value not in (0, 1):
        raise ValueError
    return bool(value)


def _seconds(value: Any) -> float:
    number = float(value)
    if not 0.0 <= number < float("inf"):
        raise ValueError
    return number


def _bytes(value: object) -> int:
    """`value` as a number of bytes: 1048576, "64M", "1.5GiB"."""
    number = value
    if isinstance(value, str):
        digits = value.strip().upper().removesuffix("B").removesuffix("I")
        shift = {"K": 10, "M": 20, "G": 30, "T": 40}.get(digits[-1:], 0)
        number = int(float(digits[:-1] if shift else digits) * (1 << shift))
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError
    return number


RECORD_BYTES = 256  # that the recorder takes for an instruction, about


def record_count(value: object) -> int:
    """Return `value` as a number of instructions: 1000000, or what "256M" bytes hold."""
    if isinstance(value, str) and not value.strip().isdecimal():
        return _record(_bytes(value) // RECORD_BYTES)
    return _record(value)


def _memory(value: object) -> float | int:
    """`value` as a share of the machine's memory, a float up to 1, or a number of bytes."""
    if isinstance(value, float) or (
        isinstance(value, str) and "." in value and value[-1:].isdecimal()
    ):
        share = float(value)
        if not 0.0 < share <= 1.0:
            raise ValueError
        return share
    return _bytes(value)


def _directory(value: Any) -> Path:
    if not os.fspath(value):
        raise ValueError
    return Path(value).expanduser()


def _cache_dir() -> Path:
    if "XDG_CACHE_HOME" in os.environ:
        return Path(os.environ["XDG_CACHE_HOME"]) / "flowvm"
    if sys.platform == "darwin":
        return Path("~/Library/Caches/flowvm").expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", "~")).expanduser() / "flowvm"
    return Path("~/.cache/flowvm").expanduser()


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "engine",
        lambda: "threaded",
        _choice("threaded", "sequential"),
        "threaded or sequential",
        "sequential runs every instruction on the thread that issues it, for pdb and as the oracle",
        start=True,
    ),
    Variable(
        "cache_dir",
        _cache_dir,
        _directory,
        "a folder",
        "where compiled kernels are kept from one run to the next",
        start=True,
    ),
    Variable(
        "cache_bytes",
        lambda: 2 << 30,
        _bytes,
        "bytes, such as 500M or 2G",
        "size of that folder from which on the kernels not used for longest are removed",
    ),
    Variable(
        "target",
        lambda: "",
        _choice("", "x86-64-v2", "x86-64-v3", "x86-64-v4", "armv8-a"),
        "nothing, x86-64-v2, x86-64-v3, x86-64-v4 or armv8-a",
        "the processors that kernels are compiled for: this one, or all that have the level",
        fixed=True,
    ),
    Variable(
        "debug",
        lambda: 0,
        _integer(0, 4),
        "0 to 4",
        "1 threads, compilations; 2 a line per instruction; 3 and its edges; 4 and kernels' code",
    ),
    Variable(
        "tb",
        lambda: "user",
        _choice("user", "full"),
        "user or full",
        "which frames the tracebacks of flowvm's errors have: the user's, or flowvm's own too",
    ),
    Variable(
        "profile",
        lambda: 1,
        _integer(0, 3),
        "0 to 3",
        "1 the last 64k instructions are recorded; 2 more exactly; 3 and each one's Python stack",
    ),
    Variable(
        "record",
        lambda: 1 << 16,
        record_count,
        "1 to 1073741824, or bytes such as 256M",
        f"instructions that profile() remembers by itself; one takes {RECORD_BYTES} bytes",
    ),
    Variable(
        "debug_pass",
        lambda: "",
        str,
        "a pass's name, or all",
        "print a captured graph before and after that pass",
    ),
    Variable(
        "check",
        lambda: "",
        _choice("", "memory"),
        "nothing or memory",
        "memory finds kernels that touch what is not theirs; several times slower",
        fixed=True,
    ),
    Variable(
        "workers",
        _usable_cpus,
        _integer(1, 256),
        "1 to 256",
        "threads that share one large CPU kernel; by default as many as this process has CPUs",
    ),
    Variable(
        "run_ahead",
        lambda: 8192,
        _integer(1, 1 << 20),
        "1 to 1048576",
        "instructions in flight at which issuing waits",
        start=True,
    ),
    Variable(
        "run_ahead_bytes",
        lambda: 1 << 30,
        _bytes,
        "bytes, such as 256M or 1G",
        "bytes written by instructions in flight at which issuing waits",
        start=True,
    ),
    Variable(
        "memory",
        lambda: 0.9,
        _memory,
        "a share such as 0.5, or bytes such as 8G",
        "what tensors may have of the machine's memory, or of its cgroup's; more is refused",
    ),
    Variable(
        "distributed_timeout",
        lambda: 1800.0,
        _seconds,
        "seconds",
        "how long a rank waits for another in a collective before that is an error",
    ),
    Variable(
        "kept_bytes",
        lambda: 64 << 20,
        _bytes,
        "bytes, such as 16M or 1G",
        "what is kept of shapes that were seen, so that the next call with them is quick",
    ),
    Variable(
        "calls",
        lambda: "auto",
        _choice("auto", "python", "native"),
        "auto, python or native",
        "what issues calls: compiled code, once it is there; Python functions; compiled code alone",
        fixed=True,
    ),
    Variable(
        "ahead",
        lambda: True,
        _flag,
        "0 or 1",
        "a helper compiles the kernels of gradients, and those that a shorter one does the work of",
    ),
    Variable(
        "helping",
        lambda: True,
        _flag,
        "0 or 1",
        "a thread that waits for a value schedules and runs small instructions itself",
    ),
    Variable(
        "debug_calls",
        lambda: False,
        _flag,
        "0 or 1, from the environment alone",
        "every call asserts that nothing runs in the middle of a record that is being published",
    ),
    Variable(
        "watchdog",
        lambda: 10.0,
        _seconds,
        "seconds, 0 for never",
        "instructions pending and none done for this long: print who waits for whom",
    ),
    Variable(
        "window",
        lambda: True,
        _flag,
        "0 or 1",
        "whether `flowvm top` of the same user may look at this process",
        start=True,
    ),
    Variable(
        "cuda_driver",
        lambda: "",
        str,
        "nothing, simulator, recorder, none or a library's path",
        "the CUDA driver: libcuda.so.1, one that needs no GPU, none, or a library; taken once",
    ),
    Variable(
        "sync",
        lambda: False,
        _flag,
        "0 or 1",
        "run each instruction at once, on the thread that issues it, as engine=sequential does",
        start=True,
    ),
)

_BY_NAME = {variable.name: variable for variable in VARIABLES}


class Config:
    """The settings in effect, as attributes.

    >>> with flow.config(debug=0):
    ...     print(flow.config.debug)
    0
    """

    engine: str
    cache_dir: Path
    cache_bytes: int
    target: str
    debug: int
    record: int
    tb: str
    profile: int
    debug_pass: str
    check: str
    workers: int
    run_ahead: int
    run_ahead_bytes: int
    memory: float | int
    distributed_timeout: float
    kept_bytes: int
    calls: str
    ahead: bool
    helping: bool
    debug_calls: bool
    watchdog: float
    window: bool
    cuda_driver: str
    sync: bool

    def __init__(self, environ: Mapping[str, str]) -> None:
        object.__setattr__(self, "_locked", "")
        object.__setattr__(self, "_listeners", [])
        for variable in VARIABLES:
            text = environ.get(variable.env, "")
            value = _parsed(variable, variable.env, text) if text else variable.default()
            object.__setattr__(self, variable.name, value)
        for name in sorted(environ):
            if name.startswith(TESTS):
                continue
            if name.startswith(PREFIX) and name[len(PREFIX) :].lower() not in _BY_NAME:
                hint = _hint(name, [v.env for v in VARIABLES])
                warnings.warn(f"flowvm knows no variable {name}{hint}", stacklevel=3)

    def __setattr__(self, name: str, value: object) -> None:
        checked = self._checked(name, value)
        object.__setattr__(self, name, checked)
        for listened, function in self._listeners:
            if listened == name:
                function(checked)

    def _checked(self, name: str, value: object) -> object:
        if name not in _BY_NAME:
            hint = _hint(name, list(_BY_NAME))
            raise MissingNameError(f"flow.config has no setting {name!r}{hint}", name)
        variable = _BY_NAME[name]
        checked = _parsed(variable, f"flow.config.{name}", value)
        if variable.fixed and checked != getattr(self, name):
            raise ConfigError(
                f"flow.config.{name} is taken when flowvm is imported: set {variable.env} in the "
                f"environment"
            )
        if variable.start and self._locked and checked != getattr(self, name):
            raise ConfigError(
                f"flow.config.{name} is taken when the VM starts, and {self._locked}: set it, or "
                f"{variable.env}, before the first op"
            )
        return checked

    def __call__(self, **settings: object) -> AbstractContextManager["Config"]:
        """Return a context manager that sets `settings` for a block and restores them
        afterwards.
        """
        for name, value in settings.items():
            self._checked(name, value)  # complain at the call, before anything has changed
        return self._for_a_block(settings)

    def _for_a_block(self, settings: dict[str, object]) -> AbstractContextManager["Config"]:
        before: dict[str, object] = {}

        def switch() -> Config:
            before.update({name: getattr(self, name) for name in settings})
            for name, value in settings.items():
                setattr(self, name, value)
            return self

        def undo() -> None:
            for name, value in before.items():
                setattr(self, name, value)

        return reverting(undo, switch)

    def lock(self, reason: str) -> None:
        """Refuse to change *start* settings from now on, because of `reason`; "" unlocks them."""
        object.__setattr__(self, "_locked", reason)

    def on_change(self, name: str, function: Callable[[Any], None]) -> None:
        """Call `function(value)` each time setting `name` is set."""
        self._listeners.append((name, function))

    _locked: str
    _listeners: list[tuple[str, Callable[[object], None]]]

    def as_dict(self) -> dict[str, Any]:
        """Return every setting by name."""
        return {name: getattr(self, name) for name in _BY_NAME}

    def overrides(self) -> dict[str, str]:
        """Return the FLOWVM_* variables of the environment that are in effect."""
        return {v.env: os.environ[v.env] for v in VARIABLES if os.environ.get(v.env)}

    def __repr__(self) -> str:
        rows = [
            f"    # {v.env}, {v.expects}: {v.help}\n    {v.name}={getattr(self, v.name)!r},"
            for v in VARIABLES
        ]
        return "\n".join(["flow.config(", *rows, ")"])


def _parsed(variable: Variable, where: str, value: object) -> object:
    try:
        return variable.parse(value)
    except (ValueError, TypeError, KeyError):
        raise ConfigError(
            f"{where} = {value!r} cannot be used: expected {variable.expects} ({variable.help})"
        ) from None


def _hint(name: str, known: list[str]) -> str:
    return did_you_mean(name, known) or f"; there are {', '.join(known)}"


def _is_command() -> bool:
    """Return True if flowvm is imported by `python -m flowvm` or by the `flowvm` script."""
    program = getattr(sys, "argv", [""])[0]
    # while Python looks for the module of -m, which imports its package, it is not argv[0] yet
    return Path(program).stem == "flowvm" or (program == "-m" and "flowvm" in sys.orig_argv)


def _of_this_process() -> Config:
    try:
        return Config(os.environ)
    except ConfigError as error:
        if _is_command():
            raise SystemExit(f"flowvm: {error}") from None
        raise


config = _of_this_process()  # public: flow


def say(level: int, text: str) -> None:
    """Print a line to stderr if `config.debug` is at least `level`."""
    if config.debug >= level and sys.stderr:
        with suppress(OSError, ValueError):  # no reader: that must not stop the program
            sys.stderr.write(f"flowvm: {text}\n")
