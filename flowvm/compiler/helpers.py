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

Jobs are a helper's from the start, and it ends with the last; or they are sent as they come up, to
one that waits for more.  To start a helper takes 0.3 s of a processor, so there is one for the jobs
of `ahead`, one for `later`'s and one for those of them that are pressing.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import os
import select
import sys
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
SENT = "--sent"  # after that: more jobs come, and each that is done is told
IDLE_S = 60.0  # idle seconds after which a helper ends
LEFT = "left "  # in front of a job that was left once
AHEAD = "ahead"  # the lock of helpers whose jobs were sent: these have waiters, others give way
JOB = select.PIPE_BUF  # bytes of one that is sent: it arrives whole, or not at all
READY = "flowvm.compiler.native:ready"  # a job
_MAIN = "flowvm.compiler.helpers:main"


class Helper:
    """A process that does `jobs`.  Without any, it does the jobs sent to it.

    `tells`: its stdout is a pipe.  OSError or ValueError where there can be none.
    """

    def __init__(self, jobs: Sequence[str], *, tells: bool = False) -> None:
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
            stdout=subprocess.PIPE if tells else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            process_group=0,  # Ctrl-C is not meant for it; a session of its own, which Linux may
            # schedule as one with this process's (autogroup), would ignore `nice`
        )
        _helpers.append(self)

    def is_at_work(self) -> bool:
        """Return True if the process has not ended yet."""
        return self.process.poll() is None

    def does(self, job: str) -> bool:
        """Send a job and wait.  Return True when the process says that it is done; False if the
        process has ended.
        """
        assert self.process.stdin is not None, "it has a pipe"
        assert self.process.stdout is not None, "it has another"
        with contextlib.suppress(OSError):
            self.process.stdin.write(f"{job}\n".encode())
            self.process.stdin.flush()
            return bool(self.process.stdout.readline())
        return False

    def ends(self) -> None:
        """Let the process end: no more jobs are sent."""
        assert self.process.stdin is not None, "it has a pipe"
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.wait()

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


def ahead(job: str) -> bool:
    """Let a helper do `job`, if there can be one.  It compiles what this process will probably need
    next.  Return True if it takes the job.

    A helper needs a second core.  Nothing is done if the cache may not be written, because this
    process would not find the result.
    """
    return begin_ahead() and _assistant is not None and _assistant.send(job)


def begin_ahead() -> bool:
    """Start the helper of `ahead` if it has not been started.  Return True if it is at work."""
    global _assistant
    if inside or not can_help():
        return False
    with contextlib.suppress(OSError, ValueError):
        if _assistant is None or not _assistant.is_at_work():
            _assistant = Helper([])
            assert _assistant.process.stdin is not None, "it has a pipe"
            os.set_blocking(_assistant.process.stdin.fileno(), False)
            _assistant.send(READY)  # while it waits for jobs
        return True
    return False


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
    if not inside:
        _queues[pressing].add(job, made)


class _Queue:
    """Jobs of `later` of one priority.  A thread starts their helper and waits for it."""

    def __init__(self, *first: str) -> None:
        self.first = first  # arguments of the helper, before its jobs
        self.jobs: collections.deque[tuple[str, Callable[[], None]]] = collections.deque()
        self.lock = threading.Lock()
        self.served = False  # there is a thread

    def add(self, job: str, made: Callable[[], None]) -> None:
        """Append a job."""
        with self.lock:
            self.jobs.append((job, made))
            self._begin()

    def _begin(self) -> None:
        """Start the thread, under the lock, if there are jobs and it is not at work."""
        if self.jobs and not self.served:
            threading.Thread(target=self._serve, name="flowvm-later", daemon=True).start()
            self.served = True

    def _serve(self) -> None:
        """Have jobs done, one after another, until there are no more.  An error of `made` ends this
        thread, which reports it; another thread does the other jobs.
        """
        helper: Helper | None = None
        try:
            while (job := self._next()) is not None:
                helper = helper or self._start()
                ended = helper is not None and not helper.does(job[0])
                if helper is not None and ended:
                    killed, helper = helper.process.wait() < 0, None  # the next job has another
                    if killed:  # by `stop`, most likely: nobody wants the result any more
                        continue
                job[1]()
        finally:
            with self.lock:
                self.served = False
                self._begin()
            if helper is not None:
                helper.ends()

    def _next(self) -> tuple[str, Callable[[], None]] | None:
        with self.lock:
            return self.jobs.popleft() if self.jobs else None

    def clear(self) -> None:
        """Forget the jobs that were not begun."""
        with self.lock:
            self.jobs.clear()

    def _start(self) -> Helper | None:
        with contextlib.suppress(OSError, ValueError):
            return Helper([*self.first, SENT], tells=True)
        return None


_helpers: list[Helper] = []
_assistant: Helper | None = None  # the one that waits for jobs
inside = False  # whether this process is a helper, which has none


def _new_queues() -> dict[bool, _Queue]:
    return {False: _Queue(), True: _Queue(f"{PRESSING}{os.getpid()}")}


_queues = _new_queues()  # by whether their jobs are pressing
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
    for queue in _queues.values():
        queue.clear()
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
    global _own, _assistant, _queues
    for helper in _helpers:
        helper.process.returncode = 0  # or it would be waited for
    _helpers.clear()
    _own = _assistant = None
    _queues = _new_queues()


os.register_at_fork(after_in_child=_after_fork_in_child)

# --- in a helper ----------------------------------------------------------------------------------


def main(jobs: Sequence[str]) -> None:
    """Do the jobs, unless the process that wants them ends first."""
    global inside
    inside = True
    pressing = bool(jobs) and jobs[0].startswith(PRESSING)
    parent = int(jobs[0].removeprefix(PRESSING)) if pressing else os.getppid()
    guesses, tells = len(jobs) == pressing, SENT in jobs
    jobs = [job for job in jobs[pressing:] if job != SENT]
    record.own.parent = parent
    record.began(jit.cache_dir())
    # the watching thread keeps its priority, with which it can begin anew
    watched = (parent, threading.get_ident(), jobs, tells, pressing or guesses)
    threading.Thread(target=_watch, args=watched, daemon=True).start()
    if guesses:  # this process compiles what the parent will wait for, with its priority
        _guess()
        return
    os.nice(LOW if pressing else LOWEST)
    for job in _told(jobs) if tells else jobs:
        do(job)


def _guess() -> None:
    """Do the jobs sent.  One that comes to a kernel which another process is compiling is left for
    the end: its other kernels may be there by then, and nobody waits for this process.
    """
    jobs: list[str] = []
    for job in _sent(jobs):
        jit.patient = job.startswith(LEFT)
        try:
            _do(job.removeprefix(LEFT), AHEAD)
        except BlockingIOError:
            jobs.insert(0, f"{LEFT}{job}")
        except Exception:  # nothing hangs on a guess
            continue


def _told(jobs: list[str]) -> Iterator[str]:
    """Yield jobs as the parent sends them; tell it of each that is done.

    `jobs` has what a process that begins anew is to begin with.
    """
    while jobs or (line := sys.stdin.readline()):
        if not jobs:
            jobs.append(line.rstrip("\n"))
        yield jobs[0]
        with _telling:
            jobs.clear()
            print(flush=True)


_telling = threading.Lock()  # held by who tells of a job, and by who begins anew with it


def _sent(jobs: list[str]) -> Iterator[str]:
    """Yield jobs from the parent, until it has ended, or has sent none for long.

    Of several the last comes first: backward begins where forward ended.  `jobs` are those that
    have come and are not done.
    """
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


def _watch(parent: int, worker: int, jobs: list[str], tells: bool, pressing: bool) -> None:
    """End with the parent; begin anew where `worker`, a thread, is starved."""
    clock = time.pthread_getcpuclockid(worker)
    began, used = time.monotonic(), time.clock_gettime(clock)
    closed = select.poll()
    closed.register(0, 0)  # poll stdin for hang-up only; ignore data
    while os.getppid() == parent and not closed.poll(GLANCE_S * 1000):
        now, uses = time.monotonic(), time.clock_gettime(clock)
        if not jobs or cache.queues or cache.taken(jit.cache_dir(), AHEAD):
            began, used = now, uses
        elif not pressing and now - began >= STARVED_S:
            with _telling:
                if jobs and uses - used < STARVED * (now - began):
                    more = [SENT] if tells else []
                    # with this thread's priority; the pipes stay
                    processes.replace(processes.own(_MAIN, f"{PRESSING}{parent}", *more, *jobs))
            began, used = now, uses
    os._exit(1)
