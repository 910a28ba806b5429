"""A Pool: the worker processes of a DataLoader, from their start to their end.

Each worker has a socket for small messages (`flowvm.utils.data.worker` has the other end); large
data goes through shared memory (`flowvm.utils.data.segments`).

Workers end when their sockets do: with the last reference to the Pool, at exit, after an
interrupt.  A worker that does not end within PATIENCE_S is terminated, and killed.  A forked child
closes the sockets that it has inherited, so that workers still see their parent's end.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import select
import signal
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.context import BaseContext
from time import monotonic
from typing import Any, Final

from flowvm.errors import LoaderError
from flowvm.guards.apart import apart
from flowvm.utils.data.fetch import Recipe
from flowvm.utils.data.messages import Answer, Task, fetch, post
from flowvm.utils.data.segments import Borrowed
from flowvm.utils.data.worker import PATIENCE_S, serve
from flowvm.vm.callers import interrupt

LOOK_S: Final = 0.5  # between two looks whether a silent worker is alive
SPARE: Final = 4  # segments of a worker beside the ones of its batches in advance

_ends: dict[int, socket.socket] = {}  # this process's ends of its workers' sockets, by id


def _close_ends() -> None:
    for end in list(_ends.values()):
        end.close()
    _ends.clear()


os.register_at_fork(after_in_child=_close_ends)


def context_of(chosen: str | BaseContext | None) -> BaseContext:
    """Return the context that starts workers: the argument's, or else `set_start_method`'s, or else
    a fork.

    A fork costs milliseconds and takes any dataset as it is.  It waits until nothing in flowvm is
    half done, and then the child can compute (docs/reference/reliability/forks.md); a new
    interpreter would import flowvm for half a second in every worker.
    """
    if isinstance(chosen, BaseContext):
        return chosen
    set_before: str | None = multiprocessing.get_start_method(allow_none=True)
    return multiprocessing.get_context(chosen or set_before or "fork")


class Worker:
    """The main process's record of a worker."""

    def __init__(self, id: int, process: Any, channel: socket.socket) -> None:
        self.id = id
        self.process = process
        self.pid: int = process.pid
        self.channel = channel
        self.borrowed = Borrowed()
        self.unsent: deque[bytes] = deque()  # tasks for which its socket had no room
        self.busy = 0  # unanswered tasks, of this pass or an earlier one

    def give(self, task: Task) -> None:
        """Send a task, or keep it until there is room: this never waits."""
        self.busy += 1
        self.unsent.append(pickle.dumps(task, 5))
        self.send()

    def send(self) -> None:
        """Send as many waiting tasks as the socket has room for."""
        try:
            while self.unsent:
                post(self.channel, self.unsent[0])
                self.unsent.popleft()
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            self.unsent.clear()  # it has died, which reading its socket will tell

    def answers(self) -> Iterator[tuple[Answer, list[Any]]]:
        """Yield the worker's answers, with their memory.  EOFError if the worker has gone."""
        while True:
            try:
                message = fetch(self.channel)
            except BlockingIOError:
                return
            if message is None:
                raise EOFError
            answer, fd = message
            try:
                parts = self.borrowed.parts(answer.placed, fd)
            finally:
                if fd is not None:
                    os.close(fd)
            self.busy -= 1
            yield answer, parts


class Pool:
    """The worker processes for one recipe.  They end with this object."""

    def __init__(
        self,
        recipe: Recipe,
        count: int,
        ahead: int,
        context: BaseContext,
        base_seed: int,
        init: Callable[[int], object] | None,
    ) -> None:
        interrupt.install()  # for the worker's end, which may run in a finalizer
        self.recipe = recipe
        self.depth = count * ahead
        self.epoch = 0
        self.workers: list[Worker] = []
        self.patience = [PATIENCE_S]  # a list, for `_end` reads it and must not know the pool
        self.close = weakref.finalize(self, _end, self.workers, os.getpid(), self.patience)
        self._poll = select.poll()
        self._by_fd: dict[int, Worker] = {}
        try:
            for i in range(count):
                self._start(context, (i, count, base_seed, ahead + SPARE), init)
        except BaseException:
            self.close()
            raise

    def _start(
        self,
        context: BaseContext,
        worker: tuple[int, int, int, int],
        init: Callable[[int], object] | None,
    ) -> None:
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own.setblocking(False)
        _ends[id(own)] = own
        try:
            with theirs:
                process = context.Process(  # type: ignore[attr-defined]
                    target=serve,
                    args=(theirs, self.recipe, worker, init),
                    name=f"flowvm-data-{worker[0]}",
                    daemon=True,
                )
                process.start()
        except BaseException:
            del _ends[id(own)]
            own.close()
            raise
        one = Worker(worker[0], process, own)
        self.workers.append(one)
        self._by_fd[own.fileno()] = one
        self._poll.register(own, select.POLLIN)

    @property
    def usable(self) -> bool:
        """True if the pool's workers exist and are this process's."""
        return self.close.alive and all(worker.channel.fileno() >= 0 for worker in self.workers)

    def ready(self, seconds: float) -> list[Worker]:
        """Wait for messages.  Return the workers that have sent some.  Also send tasks that did not
        fit before.
        """
        for worker in self.workers:
            mask = select.POLLIN | (select.POLLOUT if worker.unsent else 0)
            self._poll.modify(worker.channel, mask)
        answers = []
        for fd, events in self._poll.poll(1000 * seconds):
            worker = self._by_fd[fd]
            if events & select.POLLOUT:
                worker.send()
            if events & ~select.POLLOUT:
                answers.append(worker)
        if not answers:  # a process that was forked meanwhile may keep a dead one's socket open
            for worker in self.workers:
                if worker.process.exitcode is not None:
                    raise self.dead(worker)
        return answers

    def dead(self, worker: Worker) -> LoaderError:
        """The error for a worker that has gone."""
        worker.process.join(PATIENCE_S)
        code = worker.process.exitcode
        self.close()
        return LoaderError(
            f"DataLoader worker (pid(s) {worker.pid}) exited unexpectedly: worker process "
            f"{worker.id} {_ending(code)}"
        )


def _ending(code: int | None) -> str:
    if code is None:
        return "has closed its socket and does not end"
    if code >= 0:
        return f"ended with exit code {code}; what it printed is above, if it said why"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = "; perhaps there was no memory left" if name == "SIGKILL" else ""
    return f"was killed by {name} (exit code {code}){hint}"


def _end(workers: list[Worker], owner: int, patience: list[float]) -> None:
    if threading.main_thread().is_alive():
        apart(_part, workers, owner, patience)  # a Ctrl-C would be lost in a finalizer
    else:  # at exit, where no thread can be started
        _part(workers, owner, patience)


def _part(workers: list[Worker], owner: int, patience: list[float]) -> None:
    mine = os.getpid() == owner
    for worker in workers:
        if mine and worker.channel.fileno() >= 0:
            with contextlib.suppress(OSError):  # it has gone already
                worker.channel.shutdown(socket.SHUT_RDWR)
        _ends.pop(id(worker.channel), None)
        worker.channel.close()
    if not mine:
        return
    _join(workers, patience[0])
    for end in ("terminate", "kill"):
        late = [worker for worker in workers if worker.process.exitcode is None]
        for worker in late:
            getattr(worker.process, end)()
        _join(late, PATIENCE_S)


def _join(workers: list[Worker], seconds: float) -> None:
    until = monotonic() + seconds
    for worker in workers:
        worker.process.join(max(0.0, until - monotonic()))
