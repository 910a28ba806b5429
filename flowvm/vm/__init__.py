"""The virtual machine, as a user sees it: `flow.vm.sync()`, `stats()`, `dump()`, `trace()` ...

How it works is in `docs/architecture/vm.md`. `machine` has the state and the scheduler's logic,
`workers` the loops of native threads, `engine` the Python side, `watch` what looks on.
Not here: tensors and ops. The VM knows storages, kernels by address, and who reads what.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from flowvm.errors import ScheduleError
from flowvm.vm.engine.engine import engine as _engine
from flowvm.vm.engine.failures import Errors, Failure
from flowvm.vm.engine.tracebacks import border
from flowvm.vm.machine import layout as _w
from flowvm.vm.watch.trace import Trace, record, trace
from flowvm.vm.watch.verify import Verified, verify

if TYPE_CHECKING:
    from flowvm.vm.watch.lively import Lively

__all__ = [
    "Errors",
    "Failure",
    "ScheduleError",
    "Stats",
    "Trace",
    "Verified",
    "dump",
    "empty_cache",
    "errors",
    "last_error",
    "pending",
    "record",
    "reset_peak",
    "sequential",
    "stats",
    "sync",
    "trace",
    "verify",
]


class Stats(dict[str, int]):
    """The VM's counters; a dict that prints as a table."""

    def __repr__(self) -> str:
        width = max(map(len, self))
        return "\n".join(f"{name:{width}s}  {_amount(name, value)}" for name, value in self.items())


def _amount(name: str, value: int) -> str:
    if name.endswith("_bytes") and value >= 1024:
        return f"{value:,} ({value / 2**20:.1f} MiB)"
    return f"{value:,}"


def stats() -> Stats:
    """Counters since the process began.

    Operations that a graph captures are issued and never count as failed.

    issued, lively (issued, not released yet), edges by hazard (raw, war, waw), prescheduled (edges
    that stream order satisfied), dispatched, done, poisoned (skipped because an operand had
    failed), failed, and the memory of tensors: live, peak and reserved bytes.
    """
    word = _engine.words
    received, head = int(word[_w.RECEIVED]), int(word[_w.HEAD])
    return Stats(
        issued=received,
        lively=received - head,
        edges_raw=int(word[_w.N_RAW]),
        edges_war=int(word[_w.N_WAR]),
        edges_waw=int(word[_w.N_WAW]),
        prescheduled=int(word[_w.N_PRESCHEDULED]),
        dispatched=int(word[_w.N_DISPATCHED]),
        done=int(word[_w.N_DONE]),
        poisoned=int(word[_w.N_POISONED]),
        failed=int(word[_w.N_FAILED]),
        live_bytes=int(word[_w.LIVE_BYTES]),
        peak_bytes=int(word[_w.PEAK_BYTES]),
        reserved_bytes=int(word[_w.RESERVED_BYTES]),
    )


@border
def sync() -> None:
    """Wait until everything issued so far is done; raise the first error that nobody has seen."""
    _engine.release_dead()
    _engine.sync()


class _Dump(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def dump() -> str:
    """What is lively right now, and what each instruction waits for, as text."""
    from flowvm.vm.watch.dumping import dump_text

    return _Dump(dump_text(_engine))


def pending() -> list[Lively]:
    """What was issued and is not done, oldest first, as values; nothing is waited for."""
    from flowvm.vm.watch.lively import pending as look

    return look(_engine)


def sequential() -> AbstractContextManager[None]:
    """`with flow.vm.sequential():` runs each instruction on the thread that issues it.

    Errors raise there at once.
    """
    return _engine.run_sequentially()


def empty_cache() -> None:
    """Give memory that the VM keeps for reuse back to the system: unused blocks over 1 MiB."""
    sync()
    _engine.trim()


def reset_peak() -> None:
    """Let `stats()["peak_bytes"]` be the peak from now on: after all that was issued is done."""
    sync()
    _engine.words[_w.PEAK_BYTES] = _engine.words[_w.LIVE_BYTES]


def last_error() -> BaseException | None:
    """The newest failed instruction's exception, or None."""
    return _engine.failures.last()


def errors() -> Errors:
    """The failed instructions that are remembered, oldest first."""
    return _engine.failures.all()
