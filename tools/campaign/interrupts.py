"""Random programs (training, modes, graphs, captures, compiles), exceptions at random moments.

A case is a program, a list of some hundred parts, and for each part how it is interrupted:

    ["bytecode", call, k, e]    exception number e of `ERRORS` in front of the k-th bytecode behind
                                so many thousandths of the part's calls (`tests.guards.boundaries`)
    ["signal", when, e]         a signal, whose handler raises exception number e
    ["ctrl-c", when]            the same, taken as flowvm takes SIGINT
    ["kill", when]              SIGINT from another thread
    ["deep", frames]            so many frames more, and Python's own RecursionError comes

`when` is in thousandths of the time that the part takes.  After each, all that may be switched is
as before, and the VM computes what it should (`tests.vm.callers.test_every_boundary`); no lock is
taken, of flowvm's or of a library's (a handler of the program's own may leave one of Python's
taken, which the main thread gives back where it waits); now and then the model, the optimizer and
the graph are what they were, and in programs that only Ctrl-C comes into, the live bytes.

All parts of a process's cases go through the same objects, as they do in a program that somebody
interrupts often.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import itertools
import logging
import os
import queue
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import flowvm as flow
from flowvm import nn
from flowvm.compiler import jit
from flowvm.guards.apart import apart
from flowvm.private import locks
from flowvm.utils.data import DataLoader
from flowvm.vm.callers.interrupt import interrupt
from tools.campaign._steps import left_out, ranges

boundaries: Any = importlib.import_module("tests.guards.boundaries")
known: Any = importlib.import_module("tests.vm.callers.test_every_boundary")

BATCH = 40
PATIENCE = 120
AMOUNTS: Counter[str] = Counter()
STEPS = 400  # of a case
WAYS = ("bytecode", "bytecode", "bytecode", "signal", "ctrl-c", "ctrl-c", "kill", "deep")
ERRORS = (boundaries.Interruption, KeyboardInterrupt, MemoryError, RecursionError)
LOOK = 200  # steps between two thorough looks
SEVERAL = 0.02  # seconds: parts that take longer come seldom
_fresh = itertools.count()


def triple(x: int) -> int:
    """Return three times `x`: a function to compile."""
    return 3 * x


def _module_of_llvm() -> Any:
    """An object that takes llvmlite's lock when it is collected."""
    return apart(importlib.import_module("llvmlite.binding").parse_assembly, "")


# --- parts ------------------------------------------------------------------------------------


@dataclass
class _Part:
    run: Callable[[], Any]
    seconds: float = 0.0  # that it takes
    calls: int = 0  # that it makes


class _Parts:
    """The parts of programs, and the values that must be the same behind all of them."""

    def __init__(self) -> None:
        functions, self.train, self.step = known.calls()
        train, streams = self.train, [flow.Stream(f"s{k}") for k in range(3)]
        graph = flow.compile(lambda t: (t * 2 + 1).sum())
        ones = flow.ones(8, 8)
        rows: Any = flow.ones(64)  # a dataset, too: it has numbers, and a length

        def loop() -> None:
            for _ in range(3):
                train.adam.zero_grad()
                train.loss(train.x).backward()
                train.adam.step()

        def on_streams() -> None:
            x = rows
            for s in streams:
                with flow.stream(s), flow.no_grad():
                    x = x + 1
            x.sum().item()

        def nested() -> None:
            with flow.inference_mode(), flow.autocast("cpu"), flow.enable_grad():
                train.model(train.x)
                with flow.profiler.span("inner"), flow.printoptions(precision=2):
                    train.model(train.x)

        def recorded() -> None:
            with flow.vm.record():
                train.model(train.x)

        def profiled() -> None:
            with flow.profiler.profile():
                train.model(train.x)

        def compiling() -> None:
            jit.native(triple, "int64(int64)", facts=("interrupts", next(_fresh), time.time_ns()))

        def new_graph() -> None:
            scale = 1 + next(_fresh) % 7
            graph = flow.compile(lambda t: nn.functional.gelu(t * scale).sum(0))
            graph(flow.ones(3, 5))

        def random_numbers() -> None:
            nn.functional.dropout(flow.randn(8), 0.5).sum().item()

        def launches() -> None:
            results = [graph(ones) for _ in range(4)]
            assert [y.item() for y in results] == [192.0] * 4

        def hooks() -> None:
            with train.model.register_forward_hook(lambda *_: None):
                train.model(train.x)

        def anomalies() -> None:
            with flow.autograd.detect_anomaly():
                train.loss(train.x).backward()

        def modules_die() -> None:
            modules = [_module_of_llvm() for _ in range(10)]
            modules.clear()

        def all_kinds_die() -> None:
            objects: list[Any] = [_module_of_llvm(), rows + 1]
            with flow.profiler.profile() as p:
                objects.append(train.model(train.x))
            objects += [p, flow.compile(lambda t: t + 1), flow.optim.Adam(train.model.parameters())]
            objects.append(objects)
            del objects
            gc.collect(1)

        def generators_die() -> None:
            def numbers() -> Any:
                held = rows + 1
                try:
                    while True:
                        yield held
                finally:
                    held.sum().item()

            for _ in range(5):  # closed, for of one that is dropped CPython ignores what comes
                with contextlib.closing(numbers()) as generator:
                    next(generator)

        def loader_threads() -> None:
            for batch in DataLoader(rows, batch_size=8, num_workers=2, threads=True):
                batch.sum().item()
                break

        def loader_processes() -> None:
            for batch in DataLoader(rows, batch_size=8, num_workers=1):
                batch.sum().item()
                break

        def lines_of_a_log() -> None:
            logging.getLogger(f"flowvm.campaign.{next(_fresh) % 99}").error("a line")

        def imports() -> None:
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(f"no_such_module_{next(_fresh) % 99}")

        log = logging.getLogger("flowvm.campaign")
        log.propagate = False
        log.addHandler(logging.NullHandler())
        own = [
            modules_die, all_kinds_die, generators_die, loader_threads, loader_processes,
            lines_of_a_log, imports, loop, on_streams, nested, recorded, profiled, compiling,
            new_graph, random_numbers, launches, hooks, anomalies,
        ]  # fmt: skip
        named = {name.replace(" ", "_"): f for name, f in functions.items()}
        self.by_name = {
            name: _Part(f) for name, f in ({f.__name__: f for f in own} | named).items()
        }
        for part in self.by_name.values():
            part.run()
            part.run()
            part.seconds = min(_timed(part.run) for _ in range(3))
            part.calls = boundaries.count_calls(part.run)
        self.loss = train.loss(train.x).item()
        self.live, self.failed = self.live_bytes(), -1

    def begin(self) -> None:
        """Begin the steps: memory and errors from before do not count from now on."""
        self.live = self.live_bytes()
        self.failed = max((error.seq for error in flow.vm.errors()), default=-1)

    def live_bytes(self) -> int:
        """Return the bytes that stay alive when everything is done."""
        for part in (self.train, self.step.train):
            part.adam.zero_grad()
        gc.collect()
        flow.vm.sync()
        return flow.vm.stats()["live_bytes"]

    def wrong(self, may_lose: bool) -> str:
        """Return the difference from the state before, in words; this check takes a while."""
        for program in (self.train, self.step.train):
            loss = program.loss(program.x).item()
            if abs(loss - self.loss) > 1e-6:
                return f"the loss is {loss}, was {self.loss}"
        loss = self.step(self.step.train.x).item()
        if abs(loss - self.loss) > 1e-6:
            return f"the graph's loss is {loss}, was {self.loss}"
        if failed := [error for error in flow.vm.errors() if error.seq > self.failed]:
            return f"the VM has errors: {failed}"
        more = self.live_bytes() - self.live
        return f"{more} bytes more are live" if more > 0 and not may_lose else ""


def _timed(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


@functools.cache
def _parts() -> _Parts:
    return _Parts()


# --- cases ------------------------------------------------------------------------------------

# those that take 10 ms and more come in one step of twenty
QUICK = (
    "loop", "on_streams", "nested", "random_numbers", "launches", "hooks", "anomalies", "an_op",
    "an_op_with_a_number", "an_op_that_records", "in_place", "a_view", "many_die", "numpy", "item",
    "sync", "backward", "an_optimizer", "modes", "a_checkpoint", "a_replay", "a_step_of_a_graph",
    "a_capture", "recorded", "modules_die", "generators_die", "lines_of_a_log", "imports",
)  # fmt: skip
SLOW = (
    "compiling", "new_graph", "a_capture_of_a_step", "profiled", "all_kinds_die", "loader_threads",
    "loader_processes",
)  # fmt: skip
FORKING = "loader_processes"  # what comes into hooks of a fork CPython ignores: Ctrl-C is put off


def case(seed: int) -> dict[str, Any]:
    """See `tools.campaign.__main__`."""
    rng = random.Random(seed)
    steps = []
    ways = ("ctrl-c", "kill") if rng.random() < 0.4 else WAYS
    for _ in range(STEPS):
        way = rng.choice(ways)
        slow = way != "deep" and rng.random() < 0.05  # Numba is not written for so few frames
        name = rng.choice(SLOW if slow else QUICK)
        if name == FORKING and way not in ("ctrl-c", "kill"):
            name = "loader_threads"
        how: list[Any] = [way, rng.randrange(1000)]
        if way == "bytecode":
            how += [int(10 ** rng.uniform(0, 2.5)), rng.randrange(len(ERRORS))]
        elif way == "signal":
            how.append(rng.randrange(len(ERRORS)))
        elif way == "deep":
            how[1] = rng.randrange(2, 60)
        steps.append([name, how])
    return {"steps": steps}


def kind(case: dict[str, Any]) -> str:
    """See `tools.campaign.__main__`."""
    return "program" if _may_lose(case) else "program, only Ctrl-C"


def _may_lose(case: dict[str, Any]) -> bool:
    """Return True if exceptions may lose memory: only Ctrl-C is put off (reliability.md)."""
    return any(how[0] not in ("ctrl-c", "kill") for _, how in case["steps"])


def parts(case: dict[str, Any]) -> list[Any]:
    """See `tools.campaign.__main__`."""
    return ranges(len(case["steps"]))


def without(case: dict[str, Any], k: int) -> dict[str, Any]:
    """See `tools.campaign.__main__`."""
    return {"steps": left_out(case["steps"], *ranges(len(case["steps"]))[k])}


def check(case: dict[str, Any]) -> str:
    """Run, and compare after each interrupt."""
    parts, before = _parts(), known.state()
    may_lose = _may_lose(case)
    parts.begin()
    with _watching():
        for number, (name, how) in enumerate(case["steps"], 1):
            where, problem = _WAYS[how[0]](parts.by_name[name], *how[1:])
            AMOUNTS["interrupts"] += bool(where)
            AMOUNTS[f"by {how[0]}"] += bool(where)
            problem = problem or _left_taken(how[0]) or known.wrong_now(before)
            if not problem and (number % LOOK == 0 or number == len(case["steps"])):
                problem = parts.wrong(may_lose)
            assert not problem, f"step {number}, {name}, {how}, {where or 'nothing'}: {problem}"
    return "fine"


def _left_taken(way: str) -> str:
    """Return the libraries' locks that this thread has left taken, in words."""
    own = threading.get_ident()
    names = [one.name for one in locks.held_locks() if one.owner in (0, own)]
    if way in ("ctrl-c", "kill"):  # which are put off there
        return f"{', '.join(names)} is left taken" if names else ""
    locks.give_back()
    return "llvmlite's lock is left taken" if "llvmlite's lock" in names else ""


# --- ways -------------------------------------------------------------------------------------

_ignored: list[str] = []  # where CPython ignored an exception


@contextlib.contextmanager
def _watching() -> Any:
    """Takes note of exceptions that CPython ignores; threads change often."""
    hook, interval = sys.unraisablehook, sys.getswitchinterval()
    sys.unraisablehook = lambda event: _ignored.append(f"{event.exc_value!r} in {event.object!r}")
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.unraisablehook = hook
        sys.setswitchinterval(interval)


def _by_bytecode(part: _Part, call: int, k: int, error: int) -> tuple[str, str]:
    after, ignored = part.calls * call // 1000, len(_ignored)
    where, problem = boundaries.interrupted(part.run, k, ERRORS[error], after)
    if len(_ignored) > ignored and "swallowed" in problem:
        problem = ""  # it came in what a finalizer calls
    return where, problem


def _by_signal(part: _Part, when: int, error: int) -> tuple[str, str]:
    def handler(signum: int, frame: Any) -> None:
        raise ERRORS[error]("injected")

    def send(seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)

    return _signalled(part, when, signal.SIGALRM, handler, send)


def _by_ctrl_c(part: _Part, when: int) -> tuple[str, str]:
    def send(seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)

    return _signalled(part, when, signal.SIGALRM, interrupt, send, is_ctrl_c=True)


def _by_kill(part: _Part, when: int) -> tuple[str, str]:
    def send(seconds: float) -> None:
        if seconds:
            _sender().send(seconds)
        else:
            _sender().call_off()

    return _signalled(part, when, signal.SIGINT, interrupt, send, is_ctrl_c=True)


class _Sender:
    """A thread that sends SIGINT after a while, if it is not called off."""

    def __init__(self) -> None:
        self.until = 0.0
        # not a semaphore: its lock is taken in Python, and an interrupt there leaves it taken
        self.due: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.lock = threading.Lock()
        threading.Thread(target=self._serve, daemon=True).start()

    def send(self, seconds: float) -> None:
        self.until = time.perf_counter() + seconds
        self.due.put(None)

    def call_off(self) -> None:
        with self.lock:
            self.until = 0.0

    def _serve(self) -> None:
        while True:
            self.due.get()
            time.sleep(max(0.0, self.until - time.perf_counter()))
            with self.lock:
                if self.until:
                    self.until = 0.0
                    os.kill(os.getpid(), signal.SIGINT)


@functools.cache
def _sender() -> _Sender:
    return _Sender()


def _signalled(
    part: _Part,
    when: int,
    signum: signal.Signals,
    handler: Callable[[int, Any], None],
    send: Callable[[float], None],
    *,
    is_ctrl_c: bool = False,
) -> tuple[str, str]:
    """Run with a signal meanwhile; return its place, and the problem."""
    handled: list[str] = []
    ignored = len(_ignored)

    def handle(signum: int, frame: Any) -> None:
        code = frame.f_code
        handled.append(f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}")
        handler(signum, frame)

    before = signal.signal(signum, handle)
    if before is signal.SIG_DFL:
        before = _late  # a signal may come to a thread that has not run since, after all is over
    problem, error = "", None
    try:
        try:
            try:
                send(max(1e-6, part.seconds * when / 1000))
                part.run()
            finally:
                send(0)
            if handled and is_ctrl_c:  # it was put off: it comes yet
                deadline = time.monotonic() + 5
                while time.monotonic() < deadline:
                    time.sleep(0.0005)
                problem = (
                    f"the Ctrl-C was swallowed, handled at {handled}, ignored {_ignored[ignored:]}"
                )
            elif handled and len(_ignored) == ignored:
                problem = "the exception was swallowed"
        except BaseException as raised:
            error = raised
            if not handled or not (isinstance(raised, KeyboardInterrupt) or _is_ours(raised)):
                problem = f"another exception came out: {raised!r}"
    finally:
        while True:
            with contextlib.suppress(*ERRORS):  # it comes in one of these calls: both once more
                if signal.getsignal(signum) is not handle:
                    break
                signal.signal(signum, before)
    del error
    return handled[0] if handled else "", problem


def _late(signum: int, frame: Any) -> None:
    """Do nothing."""


def _is_ours(error: BaseException) -> bool:
    ours: bool = boundaries._is_ours(error)
    return ours


def _by_depth(part: _Part, frames: int) -> tuple[str, str]:
    depth, limit = _depth(), sys.getrecursionlimit()
    problem, came = "", ""
    try:
        sys.setrecursionlimit(depth + frames)
        part.run()
    except RecursionError:
        came = f"{frames} frames deep"
    except BaseException as error:
        came = f"{frames} frames deep"
        if not _tells_of_depth(error):
            problem = f"another exception came out: {error!r}"
    finally:
        sys.setrecursionlimit(limit)
    return came, problem


def _tells_of_depth(error: BaseException | None) -> bool:
    return error is not None and (
        isinstance(error, RecursionError)
        or "RecursionError" in str(error)  # ctypes says so in an ArgumentError of its own
        or _tells_of_depth(error.__cause__)
        or _tells_of_depth(error.__context__)
    )


def _depth() -> int:
    frame: FrameType | None = sys._getframe()
    depth = 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


_WAYS: dict[str, Callable[..., tuple[str, str]]] = {
    "bytecode": _by_bytecode,
    "signal": _by_signal,
    "ctrl-c": _by_ctrl_c,
    "kill": _by_kill,
    "deep": _by_depth,
}
