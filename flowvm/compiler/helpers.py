"""Helper processes: they compile code that this process can do without for a while.

A helper
- has the lowest priority, until it is seen that other programs leave it next to nothing: then it
  begins anew with one that is low (a process may not raise its own); the one that makes gradients'
  kernels (`ahead`) has its parent's, which waits for them soon;
- ends with its parent, however that ends: it watches the pipe that is its stdin;
- does its jobs one after another, and whatever a job compiles is in the cache from then on; so what
  a short program begins a later one goes on with.  Of several programs that begin at one time only
  one does a job, the others' helpers wait for it.

A job is "module:function" or "module:function:argument", of flowvm.  Where the cache may not be
written, the helpers write to a folder of this process, where `kept` looks, too.

Jobs are a helper's from the start, and it ends with the last; or `ahead` sends them as they come up
to one that waits for more.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowvm.compiler import cache, jit, record
from flowvm.config import config
from flowvm.guards import processes
from flowvm.loading.lazy import lazy

if TYPE_CHECKING:
    import shutil
    import subprocess
    import tempfile
else:  # when something is to be made, and not with flowvm
    shutil = lazy("shutil")
    subprocess = lazy("subprocess")
    tempfile = lazy("tempfile")

GLANCE_S = 1.0  # between two checks that the parent lives; a fork of it may hold its pipe
# Under 20 busy processes the lowest priority was a hundredth of a core, and the VM of a program
# that trained for minutes was never compiled.
LOWEST, LOW = 19, 5  # of `nice`
STARVED_S, STARVED = 2.0, 1 / 8  # the part of a core, over this time, under which it begins anew
PRESSING = "--pressing="  # in front of the jobs, with the parent: low, and not the lowest
IDLE_S = 10.0  # idle seconds after which a helper ends
AHEAD = "ahead"  # the lock of helpers whose jobs were sent: these have waiters, others give way
JOB = select.PIPE_BUF  # bytes of one that is sent: it arrives whole, or not at all
_MAIN = "flowvm.compiler.helpers:main"


class Helper:
    """A process that does `jobs`.  Without any, it does the jobs sent to it.

    OSError or ValueError where there can be none.
    """

    def __init__(self, jobs: Sequence[str]) -> None:
        environment = {
            **os.environ,
            "FLOWVM_AHEAD": "0",
            "FLOWVM_ENGINE": "sequential",  # a job's instructions run at once, on one thread
            "FLOWVM_CACHE_DIR": str(_folder()),
            "FLOWVM_CHECK": config.check,
            "FLOWVM_DEBUG": "0",
            "FLOWVM_WINDOW": "0",
        }
        self.process = processes.start(
            processes.own(_MAIN, *jobs),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            process_group=0,  # Ctrl-C is not meant for it; a session of its own, which Linux may
            # schedule as one with this process's (autogroup), would ignore `nice`
        )
        _helpers.append(self)

    def is_at_work(self) -> bool:
        """Return True if the process has not ended yet."""
        return self.process.poll() is None

    def send(self, job: str) -> bool:
        """Send a job.  Return True if the process takes it."""
        assert self.process.stdin is not None, "it has a pipe"
        line = f"{job}\n".encode()
        try:
            return len(line) <= JOB and os.write(self.process.stdin.fileno(), line) == len(line)
        except (BlockingIOError, BrokenPipeError):
            return False


def at_work() -> list[int]:
    """The processes that compile for this one now, by their numbers."""
    return [h.process.pid for h in list(_helpers) if h.is_at_work()]


def ahead(job: str) -> None:
    """Let a helper do `job`, if there can be one.  It compiles what this process will probably need
    next.

    A helper needs a second core.  Nothing is done if the cache may not be written, because this
    process would not find the result.
    """
    global _assistant
    if not can_help():
        return
    with contextlib.suppress(OSError, ValueError):
        if _assistant is None or not _assistant.is_at_work():
            _assistant = Helper([])
            assert _assistant.process.stdin is not None, "it has a pipe"
            os.set_blocking(_assistant.process.stdin.fileno(), False)
        _assistant.send(job)


def can_help() -> bool:
    """Return True if helpers can relieve this process: there is a second core, and this process
    will find their results.
    """
    return len(os.sched_getaffinity(0)) > 1 and _may_write(jit.cache_dir())


def later(job: str, made: Callable[[], None], *, pressing: bool = False) -> None:
    """Let a helper do `job`.  Then, or if there is no helper, call `made` on a thread.

    `pressing`: this process may soon wait for it, so its priority is low and not the lowest.  In a
    helper nothing is done.
    """
    if inside:
        return
    try:
        helper = Helper([f"{PRESSING}{os.getpid()}", job] if pressing else [job])
    except (OSError, ValueError):
        helper = None

    def wait() -> None:
        if helper is not None:
            helper.process.wait()
        if helper is None or helper.process.returncode >= 0:  # else this process ends
            made()

    threading.Thread(target=wait, name="flowvm-later", daemon=True).start()


_helpers: list[Helper] = []
_assistant: Helper | None = None  # the one that waits for jobs
inside = False  # whether this process is a helper, which has none
_own: Path | None = None  # instead of the cache


def kept(function: Callable[..., Any], signature: str, *, facts: object = ()) -> int | None:
    """Do as `jit.kept`; also look into the helpers' own folder, if the cache may not be written."""
    address = jit.kept(function, signature, facts=facts)
    if address is None and _own is not None:
        address = jit.kept(function, signature, facts=facts, folder=_own)
    return address


def kept_bytes(name: str) -> bytes | None:
    """Return the cache's entry of this name, or the one in the helpers' own folder; None if there
    is none.
    """
    data = cache.read(jit.cache_dir(), name)
    return cache.read(_own, name) if data is None and _own is not None else data


def _folder() -> Path:
    """Return the folder to which helpers write: the cache, or else a folder of this process."""
    global _own
    if _own is None and not _may_write(jit.cache_dir()):
        _own = Path(tempfile.mkdtemp(prefix="flowvm-"))
    return _own or jit.cache_dir()


def _may_write(folder: Path) -> bool:
    """Return True if entries can probably be written to a folder.  This check writes none."""
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return not cache.trouble(folder) and os.access(folder, os.W_OK)
    return False


def bury() -> None:
    """Let the system forget helpers that have ended; until then it lists them as defunct."""
    for helper in list(_helpers):
        if not helper.is_at_work():
            with contextlib.suppress(ValueError):  # another thread was faster
                _helpers.remove(helper)


def stop() -> None:
    """Stop all helpers: this process ends."""
    global _own, _assistant
    for helper in _helpers:
        helper.process.kill()
        helper.process.wait()
    _helpers.clear()
    _assistant = None
    if _own is not None:
        shutil.rmtree(_own, ignore_errors=True)
        _own = None


def _after_fork_in_child() -> None:
    """Forget the helpers and their folder in a forked child: they are the parent's."""
    global _own, _assistant
    for helper in _helpers:
        helper.process.returncode = 0  # or it would be waited for
    _helpers.clear()
    _own = _assistant = None


os.register_at_fork(after_in_child=_after_fork_in_child)

# --- in a helper ----------------------------------------------------------------------------------


def main(jobs: Sequence[str]) -> None:
    """Do the jobs, unless the process that wants them ends first."""
    global inside
    inside = True
    pressing = bool(jobs) and jobs[0].startswith(PRESSING)
    parent = int(jobs[0].removeprefix(PRESSING)) if pressing else os.getppid()
    jobs, worker = jobs[pressing:], threading.get_ident()
    record.own.parent = parent
    record.began(jit.cache_dir())
    # the watching thread keeps its priority, with which it can begin anew
    watched = (parent, worker, jobs, pressing or not jobs)
    threading.Thread(target=_watch, args=watched, daemon=True).start()
    if jobs:  # else this process compiles what the parent will wait for, as the parent would
        os.nice(LOW if pressing else LOWEST)
    for job in jobs:
        do(job)
    for job in () if jobs else _sent():
        with contextlib.suppress(Exception):  # it was a guess
            _do(job, AHEAD)


def _sent() -> Iterator[str]:
    """Yield jobs from the parent, until it has ended, or has sent none for long.

    Of several the last comes first: backward begins where forward ended.
    """
    jobs: list[str] = []
    rest = b""
    while True:
        while select.select([0], [], [], 0 if jobs else IDLE_S)[0]:
            if not (data := os.read(0, JOB)):
                return
            *lines, rest = (rest + data).split(b"\n")
            jobs += map(bytes.decode, lines)
        if not jobs:
            return
        yield jobs.pop()


def do(job: str) -> None:
    """Do a job in this process, while no helper of any process does it."""
    _do(job, job.replace(":", "."))


def _do(job: str, lock: str) -> None:
    module, name, *argument = job.split(":", 2)
    record.own.job = " ".join([name, *(text for text in argument if text.isidentifier())])
    with cache.alone(jit.cache_dir(), lock):
        getattr(importlib.import_module(module), name)(*argument)


def _watch(parent: int, worker: int, jobs: Sequence[str], pressing: bool) -> None:
    """End with the parent; begin anew where `worker`, a thread, is starved."""
    clock = time.pthread_getcpuclockid(worker)
    began, used = time.monotonic(), time.clock_gettime(clock)
    closed = select.poll()
    closed.register(0, 0)  # poll stdin for hang-up only; ignore data
    while os.getppid() == parent and not closed.poll(GLANCE_S * 1000):
        now, uses = time.monotonic(), time.clock_gettime(clock)
        if cache.queues or cache.taken(jit.cache_dir(), AHEAD):
            began, used = now, uses
        elif not pressing and now - began >= STARVED_S:
            if uses - used < STARVED * (now - began):
                jobs = [f"{PRESSING}{parent}", *jobs]
                # with this thread's priority; the pipe stays
                processes.replace(processes.own(_MAIN, *jobs))
            began, used = now, uses
    os._exit(1)
