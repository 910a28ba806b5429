"""A worker process of a DataLoader, from its first line to its last.

It reads tasks from its socket and answers each, in order.  It ends when the main process hangs up,
which happens as well when that is killed; where a dataset's code does not come back then, a thread
that waits for nothing else ends the process.  Ctrl-C is the main process's to handle: here it is
ignored.

It is alone with its dataset: kernels, if it runs any, have one thread, for the other workers use
the other cores; and its VM starts with its first op, so a dataset of NumPy's starts none.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import select
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from flowvm.config import config
from flowvm.ops import manual_seed
from flowvm.utils.data.fetch import Recipe
from flowvm.utils.data.messages import Answer, Failure, Task, fetch, post
from flowvm.utils.data.segments import Segments, encoded
from flowvm.utils.data.worker_info import WorkerInfo, begin_process

PATIENCE_S: Final = 5.0  # in which a worker may finish a batch that is not wanted any more


def serve(
    channel: socket.socket,
    recipe: Recipe,
    worker: tuple[int, int, int, int],
    init: Callable[[int], object] | None,
) -> None:
    """Be worker `worker` (id, how many, base seed, most segments) until `channel` ends."""
    signal.set_wakeup_fd(-1)  # the parent's file descriptor and handlers are not for this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_follow, args=(channel,), name="loader-parent", daemon=True).start()
    number, count, base_seed, most = worker
    config.workers = 1
    seed = base_seed + number
    random.seed(seed)
    manual_seed(seed)
    np.random.seed(np.random.SeedSequence((base_seed, number)).generate_state(4))
    begin_process(WorkerInfo(number, count, seed, recipe.dataset))
    # of these: the main process has gone, or has closed the pass while this one answered
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _Loop(channel, recipe, Segments(most), _begun(init, number)).run()


def _begun(init: Callable[[int], object] | None, number: int) -> Exception | None:
    try:
        if init is not None:
            init(number)
    except Exception as error:  # raised in the main process, at its request of the first batch
        return error
    return None


def _follow(channel: socket.socket) -> None:
    """End this process when the other end was closed and nothing else has ended it."""
    poll = select.poll()
    poll.register(channel, select.POLLRDHUP)
    poll.poll()
    time.sleep(PATIENCE_S + 1.0)
    os._exit(1)


class _Loop:
    """The loop of a worker over its tasks.  `broken` is the exception of a failed start."""

    def __init__(
        self, channel: socket.socket, recipe: Recipe, segments: Segments, broken: Exception | None
    ) -> None:
        self.channel = channel
        self.recipe = recipe
        self.segments = segments
        self.broken = broken
        self.make = None if broken else recipe.maker()
        self.epoch = -1
        self.stream: Iterator[Any] | None = None  # of the epoch

    def run(self) -> None:
        """Answer tasks until there are no more."""
        while (message := fetch(self.channel)) is not None:
            task: Task = message[0]
            self.segments.take_back(task.back)
            if task.epoch != self.epoch:
                self.epoch, self.stream = task.epoch, None
            self._answer(task)

    def _answer(self, task: Task) -> None:
        try:
            kind, parts = self._result_of(task.job)
        except Exception as error:
            kind, parts = "error", encoded(_failure(error))
        placed, fd = self.segments.place(*parts)
        try:
            answer = Answer(task.epoch, task.number, kind, placed)
            post(self.channel, pickle.dumps(answer, 5), fd)
        finally:
            if fd is not None:
                os.close(fd)

    def _result_of(self, job: object) -> tuple[str, tuple[bytes, list[memoryview]]]:
        if self.recipe.streams:
            try:
                if self.stream is None:
                    self.stream = iter(())  # the value if the next line fails
                    self._check()
                    self.stream = self.recipe.stream()
                job = next(self.stream)
            except StopIteration:
                return "end", (b"", [])
        self._check()
        assert self.make is not None
        batch = self.make(job)
        try:
            return "batch", encoded(batch)
        except Exception as error:
            error.add_note(
                f"The batch was made, and is a {type(batch).__name__} that a worker process cannot "
                "hand over: it must be picklable.  With threads=True it need not be."
            )
            raise

    def _check(self) -> None:
        if self.broken is not None:
            raise self.broken


def _failure(error: Exception) -> Failure:
    text = "".join(traceback.format_exception(error))
    return Failure(type(error).__qualname__, text, _pickled(error))


def _pickled(error: Exception) -> bytes | None:
    """Return the exception as a pickle; None if it cannot be pickled or unpickled."""
    try:
        pickled = pickle.dumps(error)
        if type(pickle.loads(pickled)) is type(error):
            return pickled
    except Exception:  # whatever a class raises there: its text is handed over
        return None
    return None
