"""Processes that compile for this one what it can do without for a while.

A helper
- has the lowest priority, until it is seen that other programs leave it next to nothing: then it
  begins anew with one that is low (a process may not raise its own);
- ends with its parent, however that ends: it watches the pipe that is its stdin;
- does its jobs one after another, and whatever a job compiles is in the cache from then on; so what
  a short program begins a later one goes on with.  Of several programs that begin at one time only
  one does a job, the others' helpers wait for it.

A job is "module:function" or "module:function:argument", of flowvm.  Where the cache may not be
written, the helpers write to a folder of this process, where `kept` looks, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowvm.compiler import cache, jit
from flowvm.config import config
from flowvm.loading.lazy import lazy

if TYPE_CHECKING:
    import shutil
    import subprocess
    import tempfile
else:  # when something is to be made, and not with flowvm
    shutil = lazy("shutil")
    subprocess = lazy("subprocess")
    tempfile = lazy("tempfile")

GLANCE_S = 1.0  # between two looks whether the parent is there, whose pipe a fork of it may hold
# Under 20 busy processes the lowest priority was a hundredth of a core, and the VM of a program
# that trained for minutes was never compiled.
LOWEST, LOW = 19, 5  # of `nice`
STARVED_S, STARVED = 2.0, 1 / 8  # the part of a core, over this time, under which it begins anew
PRESSING = "--pressing="  # in front of the jobs, with the parent: it has begun anew
_START = """
import sys, json
sys.path[:] = json.loads(sys.argv[1])
from flowvm.compiler import helpers
helpers.main(sys.argv[2:])
"""


class Helper:
    """One process, which does `jobs`.  OSError or ValueError where there can be none."""

    def __init__(self, jobs: Sequence[str]) -> None:
        environment = {
            **os.environ,
            "FLOWVM_CACHE_DIR": str(_folder()),
            "FLOWVM_CHECK": config.check,
            "FLOWVM_DEBUG": "0",
            "FLOWVM_WINDOW": "0",
        }
        path = json.dumps([p or os.getcwd() for p in sys.path])
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, path, *jobs],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            process_group=0,  # Ctrl-C is not meant for it; a session of its own, which Linux may
            # schedule as one with what this one has (autogroup), would take no notice of `nice`
        )
        _helpers.append(self)

    def is_at_work(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None


def later(job: str, made: Callable[[], None]) -> None:
    """Have `job` done by a helper, and then, or if there is none, call `made` on a thread."""
    try:
        helper = Helper([job])
    except (OSError, ValueError):
        helper = None

    def wait() -> None:
        if helper is not None:
            helper.process.wait()
        if helper is None or helper.process.returncode >= 0:  # else this process ends
            made()

    threading.Thread(target=wait, name="flowvm-later", daemon=True).start()


_helpers: list[Helper] = []
_own: Path | None = None  # instead of the cache


def kept(function: Callable[..., Any], signature: str, *, facts: object = ()) -> int | None:
    """`jit.kept`, also of what helpers have made where the cache may not be written."""
    address = jit.kept(function, signature, facts=facts)
    if address is None and _own is not None:
        address = jit.kept(function, signature, facts=facts, folder=_own)
    return address


def kept_bytes(name: str) -> bytes | None:
    """What is in the cache by this name, or where helpers write instead; None where nothing is."""
    data = cache.read(jit.cache_dir(), name)
    return cache.read(_own, name) if data is None and _own is not None else data


def _folder() -> Path:
    """Where helpers write: the cache, or else a folder of this process."""
    global _own
    if _own is None and not _may_write(jit.cache_dir()):
        _own = Path(tempfile.mkdtemp(prefix="flowvm-"))
    return _own or jit.cache_dir()


def _may_write(folder: Path) -> bool:
    """Whether entries can be kept there, as far as that can be told without writing one."""
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return not cache.trouble(folder) and os.access(folder, os.W_OK)
    return False


def bury() -> None:
    """Let the system forget those that have ended: till then it lists them, as defunct."""
    for helper in list(_helpers):
        if not helper.is_at_work():
            with contextlib.suppress(ValueError):  # somebody else was here
                _helpers.remove(helper)


def stop() -> None:
    """Nobody wants what is being made any more: this process ends."""
    global _own
    for helper in _helpers:
        helper.process.kill()
        helper.process.wait()
    _helpers.clear()
    if _own is not None:
        shutil.rmtree(_own, ignore_errors=True)
        _own = None


def _after_fork_in_child() -> None:
    """The helpers are the parent's, and so is their folder."""
    global _own
    for helper in _helpers:
        helper.process.returncode = 0  # or it would be waited for
    _helpers.clear()
    _own = None


os.register_at_fork(after_in_child=_after_fork_in_child)

# --- in a helper ----------------------------------------------------------------------------------


def main(jobs: Sequence[str]) -> None:
    """Do the jobs, unless the process that wants them ends first."""
    pressing = jobs[0].startswith(PRESSING)
    parent = int(jobs[0].removeprefix(PRESSING)) if pressing else os.getppid()
    jobs, worker = jobs[pressing:], threading.get_ident()
    # the watching thread keeps its priority, with which it can begin anew
    watched = (parent, worker, jobs, pressing)
    threading.Thread(target=_watch, args=watched, daemon=True).start()
    os.nice(LOW if pressing else LOWEST)
    for job in jobs:
        do(job)


def do(job: str) -> None:
    """Do the job here, while no helper of any process does it."""
    module, name, *argument = job.split(":")
    with _alone(job.replace(":", ".")):
        getattr(importlib.import_module(module), name)(*argument)


def _watch(parent: int, worker: int, jobs: Sequence[str], pressing: bool) -> None:
    """End with the parent; begin anew where `worker`, a thread, is starved."""
    clock = time.pthread_getcpuclockid(worker)
    began, used = time.monotonic(), time.clock_gettime(clock)
    while os.getppid() == parent:
        if select.select([sys.stdin], [], [], GLANCE_S)[0]:
            break  # nothing is ever written to it: it was closed
        now, uses = time.monotonic(), time.clock_gettime(clock)
        if _queues:
            began, used = now, uses
        elif not pressing and now - began >= STARVED_S:
            if uses - used < STARVED * (now - began):
                jobs = [f"{PRESSING}{parent}", *jobs]
                again = [sys.executable, "-P", "-c", _START, sys.argv[1], *jobs]
                os.execv(sys.executable, again)  # with this thread's priority; the pipe stays
            began, used = now, uses
    os._exit(1)


_queues = False  # whether the thread that works waits for another process


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """No other process does this meanwhile; without that, where there can be no locks."""
    global _queues
    lock = -1
    with contextlib.suppress(OSError):
        flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(jit.cache_dir() / f"{name}.lock", flags, 0o600)
        _queues = True
        fcntl.flock(lock, fcntl.LOCK_EX)
    _queues = False
    try:
        yield
    finally:
        if lock >= 0:
            os.close(lock)
