"""`flow.multiprocessing`: all names of Python's multiprocessing, and `spawn`.

Tensors that go through its queues and pipes are copied, but those on memory of `share_memory_`,
which the other process then has, too.  A fork waits until nothing is half done
(docs/reference/reliability/forks.md), so every start method works.
"""

from __future__ import annotations

import multiprocessing as _python
import multiprocessing.connection as _connection
from collections.abc import Callable
from multiprocessing import *  # noqa: F403 - its names are its own
from typing import Any, Final

from flowvm.errors import ArgumentError, VMError
from flowvm.loading.listing import listing

__all__ = [
    "ProcessContext",
    "get_all_sharing_strategies",
    "get_sharing_strategy",
    "set_sharing_strategy",
    "spawn",
    "start_processes",
]
__all__ += _python.__all__
__all__.sort()
__dir__ = listing(globals())

_STRATEGY: Final = "file_descriptor"  # PyTorch's name of its default


def get_all_sharing_strategies() -> set[str]:
    """Return the names of strategies; in all of them, shared memory is a file without a name."""
    return {"file_descriptor", "file_system"}


def get_sharing_strategy() -> str:
    """Return PyTorch's default; `set_sharing_strategy` changes nothing."""
    return _STRATEGY


def set_sharing_strategy(new_strategy: str) -> None:
    """Accept and ignore a strategy, see `get_sharing_strategy`.  ArgumentError for an unknown
    one.
    """
    if new_strategy not in get_all_sharing_strategies():
        raise ArgumentError(
            f"{new_strategy!r} is not a sharing strategy; take one of "
            f"{sorted(get_all_sharing_strategies())}"
        )


class ProcessContext:
    """The processes that `spawn` has started."""

    def __init__(self, processes: list[Any]) -> None:
        self.processes = processes

    def pids(self) -> list[int]:
        """Return the numbers of the processes."""
        return [process.pid for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for the processes.  Return True if all have ended.  If one fails, the others are
        ended, and a VMError names it.
        """
        alive: dict[Any, Any] = {p.sentinel: p for p in self.processes if p.is_alive()}
        for sentinel in _connection.wait(list(alive), timeout) if alive else []:
            alive.pop(sentinel).join()
        failed = [p for p in self.processes if p.exitcode not in (None, 0)]
        if failed:
            for process in alive.values():
                process.terminate()
            for process in alive.values():
                process.join(grace_period)
            index = self.processes.index(failed[0])
            raise VMError(
                f"process {index} of spawn ended with exit code {failed[0].exitcode}; what it "
                f"raised is on its stderr"
            )
        return not alive


def start_processes(
    fn: Callable[..., object],
    args: tuple[object, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Call fn(i, *args) in processes i = 0, 1, ..., nprocs - 1.

    join    wait for them (then the result is None); VMError if one fails
    """
    context = _python.get_context(start_method)
    processes = []
    for i in range(nprocs):
        process = context.Process(target=fn, args=(i, *args), daemon=daemon)  # type: ignore[attr-defined]
        process.start()
        processes.append(process)
    started = ProcessContext(processes)
    if not join:
        return started
    while not started.join():
        pass
    return None


def spawn(
    fn: Callable[..., object],
    args: tuple[object, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Do as start_processes; each process is a new Python."""
    return start_processes(fn, args, nprocs, join, daemon, start_method)
