"""Helper processes: they compile code that this process can do without for a while.

A helper
- has the lowest priority, until it is seen that other programs leave it next to nothing: then it
  begins anew with one that is low (a process may not raise its own), and where the machine is busy
  it has that from the start; the one that makes gradients' kernels (`ahead`) has its parent's,
  which waits for them soon;
- ends with its parent, however that ends: it watches the pipe that is its stdin;
- does its jobs one after another, and whatever a job compiles is in the cache from then on; so what
  a short program begins a later one goes on with.  Of several programs that begin at one time only
  one does a job, the others' helpers wait for it.

A job is "module:function" or "module:function:argument", of flowvm.  Where the cache may not be
written, the helpers write to a folder of this process, where `native_if_cached` looks, too.

Jobs are a helper's from the start, and it ends with the last; or they are sent as they come up, to
one that waits for more.  There is one for the jobs of `ahead`, one for `later`'s and one for those
of them that are pressing.  All are forked from one process that has imported what they need
(`flowvm.compiler.zygote`).
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
from typing import TYPE_CHECKING

from flowvm.compiler import cache, jit, record
from flowvm.config import config
from flowvm.guards import processes
from flowvm.guards.forks import held_at_fork
from flowvm.loading.lazy import lazy

if TYPE_CHECKING:
    import shutil
    import tempfile

    from flowvm.compiler import zygote
else:  # when something is to be made, and not with flowvm
    shutil = lazy("shutil")
    tempfile = lazy("tempfile")
    zygote = lazy("flowvm.compiler.zygote")

GLANCE_S = 1.0  # between two checks that the parent lives; a fork of it may hold its pipe
# Under 20 busy processes the lowest priority was a hundredth of a core, and the VM of a program
# that trained for minutes was never compiled.
LOWEST, LOW = 19, 5  # of `nice`
BUSY = 4.0  # processes that run for each core; beside so many the lowest is next to nothing
STARVED_S, STARVED = 2.0, 1 / 8  # the part of a core, over this time, under which it begins anew
PRESSING = "--pressing="  # in front of the jobs, with the program: low, and not the lowest
SENT = "--sent"  # after that: more jobs come, and each that is done is told
IDLE_S = 60.0  # idle seconds after which a helper ends
LEFT = "left "  # in front of a job that was left once
AHEAD = "ahead"  # the lock of helpers whose jobs were sent: these have waiters, others give way
JOB = select.PIPE_BUF  # bytes of one that is sent: it arrives whole, or not at all
_MAIN = "flowvm.compiler.helpers:main"


class Helper:
    """A process that does `jobs`.  Without any, it does the jobs sent to it.

    `pressing`: its priority is low, and not the lowest.  `tells`: its stdout is a pipe.  OSError or
    ValueError where there can be none.
    """

    def __init__(self, jobs: Sequence[str], *, pressing: bool = False, tells: bool = False) -> None:
        if jobs and (pressing or _is_busy()):
            jobs = [f"{PRESSING}{os.getpid()}", *jobs]
        environment = {
            **os.environ,
            "FLOWVM_AHEAD": "0",
            "FLOWVM_ENGINE": "sequential",  # a job's instructions run at once, on one thread
            "FLOWVM_CACHE_DIR": str(_folder()),
            "FLOWVM_CHECK": config.check,
            "FLOWVM_DEBUG": "0",
            "FLOWVM_WINDOW": "0",
        }
        self.process = _forked(environment, jobs, tells)
        _helpers.append(self)

    def is_at_work(self) -> bool:
        """Return True if the process has not ended yet."""
        return self.process.poll() is None

    def does(self, job: str) -> bool:
        """Send a job and wait.  Return True when the process says that it is done; False if the
        process has ended.
        """
        assert self.process.stdout is not None, "it has a pipe"
        with contextlib.suppress(OSError):
            self.process.stdin.write(f"{job}\n".encode())
            self.process.stdin.flush()
            return bool(self.process.stdout.readline())
        return False

    def ends(self) -> None:
        """Let the process end: no more jobs are sent."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def send(self, job: str) -> bool:
        """Send a job.  Return True if the process takes it."""
        line = f"{job}\n".encode()
        try:
            return len(line) <= JOB and os.write(self.process.stdin.fileno(), line) == len(line)
        except (BlockingIOError, BrokenPipeError):
            return False


def at_work() -> list[int]:
    """The processes that compile for this one now, by their numbers."""
    helpers = [h.process.pid for h in list(_helpers) if h.is_at_work() and h.process.pid]
    template = _zygote
    return helpers if template is None else [template.process.pid, *helpers]


def _is_busy() -> bool:
    """Return True if the machine has so much to do that the lowest priority gets nothing."""
    with contextlib.suppress(OSError):  # the system does not count
        return os.getloadavg()[0] > BUSY * len(os.sched_getaffinity(0))
    return False


def _forked(environment: dict[str, str], jobs: Sequence[str], tells: bool) -> zygote.Child:
    """Return a process that does `main(jobs)`, forked from one that is started if there is none."""
    global _zygote
    with _zygote_lock:
        if _zygote is not None and not _zygote.serves(environment):
            _zygote.leave()
            _older.append(_zygote)
            _zygote = None
        if _zygote is None:
            _zygote = zygote.Zygote(_MAIN, environment)
        return _zygote.fork(jobs, tells=tells)


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
            os.set_blocking(_assistant.process.stdin.fileno(), False)
        return True
    return False


def can_help() -> bool:
    """Return True if helpers can relieve this process: there is a second core, and this process
    will find their results.
    """
    return len(os.sched_getaffinity(0)) > 1 and _may_write(jit.cache_dir())


def later(job: str, work: Callable[[], None], *, pressing: bool = False) -> None:
    """Let a helper do `job`.  Then, or if there is no helper, call `work` on a thread.

    `pressing`: this process may soon wait for it, so its priority is low and not the lowest.  In a
    helper nothing is done.
    """
    if not inside:
        _queues[pressing].add(job, work)


class _Queue:
    """Jobs of `later` of one priority.  A thread starts their helper and waits for it."""

    def __init__(self, pressing: bool) -> None:
        self.pressing = pressing
        self.jobs: collections.deque[tuple[str, Callable[[], None]]] = collections.deque()
        self.lock = threading.Lock()
        self.served = False  # there is a thread
        self.cleared = 0  # times

    def add(self, job: str, work: Callable[[], None]) -> None:
        """Append a job."""
        with self.lock:
            self.jobs.append((job, work))
            self._begin()

    def _begin(self) -> None:
        """Start the thread, under the lock, if there are jobs and it is not at work."""
        if self.jobs and not self.served:
            threading.Thread(target=self._serve, name="flowvm-later", daemon=True).start()
            self.served = True

    def _serve(self) -> None:
        """Have jobs done, one after another, until there are no more.  An error of `work` ends this
        thread, which reports it; another thread does the other jobs.
        """
        helper: Helper | None = None
        try:
            while (job := self._next()) is not None:
                cleared, helper = self.cleared, helper or self._start()
                ended = helper is not None and not helper.does(job[0])
                if helper is not None and ended:
                    killed, helper = helper.process.wait() < 0, None  # the next job has another
                    if killed or cleared != self.cleared:  # by `stop`, most likely: nobody wants
                        continue  # the result any more
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
            self.cleared += 1

    def _start(self) -> Helper | None:
        with contextlib.suppress(OSError, ValueError):
            return Helper([SENT], pressing=self.pressing, tells=True)
        return None


_helpers: list[Helper] = []
_assistant: Helper | None = None  # the one that waits for jobs
_zygote: zygote.Zygote | None = None  # of which new helpers are forked
_older: list[zygote.Zygote] = []  # those before it, which end after their helpers
_zygote_lock = held_at_fork(threading.Lock())
inside = False  # whether this process is a helper, which has none


def _new_queues() -> dict[bool, _Queue]:
    return {pressing: _Queue(pressing) for pressing in (False, True)}


_queues = _new_queues()  # by whether their jobs are pressing
_own: Path | None = None  # instead of the cache


def native_if_cached(
    function: Callable[..., object], signature: str, *, facts: object = ()
) -> int | None:
    """Do as `jit.native_if_cached`; look into the helpers' own folder, too, if the cache may not be
    written.
    """
    address = jit.native_if_cached(function, signature, facts=facts)
    if address is None and _own is not None:
        address = jit.native_if_cached(function, signature, facts=facts, folder=_own)
    return address


def cached_bytes(name: str) -> bytes | None:
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
    with _zygote_lock:
        _older[:] = [template for template in _older if template.process.poll() is None]


def stop() -> None:
    """Stop all helpers: this process ends."""
    global _own, _assistant, _zygote
    for queue in _queues.values():
        queue.clear()
    with _zygote_lock:
        for template in (*_older, *([] if _zygote is None else [_zygote])):
            template.stop()
        _older.clear()
        _zygote = None
    for helper in _helpers:
        helper.process.wait()
    _helpers.clear()
    _assistant = None
    if _own is not None:
        shutil.rmtree(_own, ignore_errors=True)
        _own = None


def _after_fork_in_child() -> None:
    """Forget the helpers and their folder in a forked child: they are the parent's."""
    global _own, _assistant, _queues, _zygote
    for helper in _helpers:
        helper.process.forget()
    for template in (*_older, *([] if _zygote is None else [_zygote])):
        template.forget()
    _helpers.clear()
    _older.clear()
    _own = _assistant = _zygote = None
    _queues = _new_queues()


os.register_at_fork(after_in_child=_after_fork_in_child)

# --- in a helper ----------------------------------------------------------------------------------


def main(jobs: Sequence[str]) -> None:
    """Do the jobs, unless the process that wants them ends first."""
    global inside
    inside = True
    pressing = bool(jobs) and jobs[0].startswith(PRESSING)
    guesses, tells = len(jobs) == pressing, SENT in jobs
    if pressing and not record.own.parent:  # it has begun anew, and is no zygote's copy
        record.own.parent = int(jobs[0].removeprefix(PRESSING))
        record.began(jit.cache_dir())
    jobs = [job for job in jobs[pressing:] if job != SENT]
    # the watching thread keeps its priority, with which it can begin anew
    watched = (os.getppid(), jobs, tells, pressing or guesses)
    threading.Thread(target=_watch, args=watched, daemon=True).start()
    if guesses:  # this process compiles what the parent will wait for, with its priority
        _guess()
        return
    os.nice(LOW if pressing else LOWEST)
    for job in _reported_jobs(jobs) if tells else jobs:
        do(job)


def _guess() -> None:
    """Do the jobs sent.  One that comes to a kernel which another process is compiling is left for
    the end: its other kernels may be there by then, and nobody waits for this process.
    """
    jobs: list[str] = []
    for job in _incoming_jobs(jobs):
        jit.patient = job.startswith(LEFT)
        try:
            _do(job.removeprefix(LEFT), AHEAD)
        except BlockingIOError:
            jobs.insert(0, f"{LEFT}{job}")
        except Exception:  # nothing hangs on a guess
            continue


def _reported_jobs(jobs: list[str]) -> Iterator[str]:
    """Yield jobs as the parent sends them; tell it of each that is done.

    `jobs` has what a process that begins anew is to begin with.
    """
    while jobs or (line := sys.stdin.readline()):
        if not jobs:
            jobs.append(line.rstrip("\n"))
        yield jobs[0]
        with _report_lock:
            jobs.clear()
            print(flush=True)


_report_lock = threading.Lock()  # held by who tells of a job, and by who begins anew with it


def _incoming_jobs(jobs: list[str]) -> Iterator[str]:
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


def _watch(parent: int, jobs: list[str], tells: bool, pressing: bool) -> None:
    """End with the program and with the parent; begin anew where this process is starved."""
    began, used = time.monotonic(), time.process_time()
    closed = select.poll()
    closed.register(0, 0)  # poll stdin for hang-up only; ignore data
    while os.getppid() == parent and not closed.poll(GLANCE_S * 1000):
        now, uses = time.monotonic(), time.process_time()
        if not jobs or cache.queues or cache.is_locked(jit.cache_dir(), AHEAD):
            began, used = now, uses
        elif not pressing and now - began >= STARVED_S:
            with _report_lock:
                if jobs and uses - used < STARVED * (now - began):
                    more = [SENT] if tells else []
                    for_whom = f"{PRESSING}{record.own.parent}"
                    # with this thread's priority; the pipes stay
                    processes.replace(processes.own(_MAIN, for_whom, *more, *jobs))
            began, used = now, uses
    os._exit(1)
