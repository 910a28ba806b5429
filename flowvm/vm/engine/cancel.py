"""Cancels of issued instructions: `flow.vm.cancel()`, and unhandled Ctrl-C.

A cancel is an instruction that does nothing, with a number of its own.  An instruction in front of
it that has not started is dropped when its turn comes (`flowvm.vm.workers.execute.drop`).  So
order, edges and memory stay valid.  Kernels that only write memory of their own stop between two
chunks.

Persistent tensors (`flowvm.vm.engine.persistent`: with gradients, buffers of modules, states of
optimizers) keep their values if a dropped instruction would only have updated them.
"""

from __future__ import annotations

import builtins
import functools
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from flowvm.errors import CancelledError
from flowvm.loading.lazy import lazy
from flowvm.vm.callers.hot import hot
from flowvm.vm.callers.interrupt import protected, raised
from flowvm.vm.callers.tracebacks import on_interrupted, users
from flowvm.vm.engine.failures import Failure, Failures
from flowvm.vm.engine.persistent import persistent
from flowvm.vm.machine.words import CTL, ERR, STO
from flowvm.vm.watch.protocol import ThreadTable, Waiter

if TYPE_CHECKING:
    from flowvm.vm.watch import in_flight
else:
    in_flight = lazy("flowvm.vm.watch.in_flight")

NAMED_AFTER = 0.75  # seconds after which a wait behind a Ctrl-C is named
PATIENCE = 0.15  # seconds for running instructions to end, before a prompt counts the dropped ones


@dataclass(frozen=True)
class Cancelled:
    """The instructions that a cancel has dropped so far; `bool()` is False if there are none.

    >>> dropped = flow.vm.Cancelled(instructions=3, kept=0)
    >>> bool(dropped), bool(flow.vm.Cancelled(0, 0))
    (True, False)
    """

    instructions: int
    kept: int  # updates among their writes, of tensors that keep their values

    def __bool__(self) -> bool:
        return self.instructions > 0

    def __repr__(self) -> str:
        if not self:
            return "nothing was to cancel"
        plural = "s" * (self.instructions > 1)
        text = f"cancelled {self.instructions:,} instruction{plural} not started"
        if self.kept:
            updates = "an update" if self.kept == 1 else f"{self.kept:,} updates"
            text += (
                f"; among them {updates} of parameters or the like, which are as they were: others "
                f"of the same step may have been made"
            )
        return text


class Cancelling(Protocol):
    """The interface of an engine that this module needs."""

    m: Any
    words: Any
    failures: Failures

    @property
    def threads(self) -> ThreadTable:
        """Scheduler, workers and helpers."""

    @property
    def waits(self) -> Waiter:
        """The waits of issuing threads."""


def cancel(
    vm: Cancelling, how: str, code: CodeType | None, last: int, seconds: float = 0.0
) -> Cancelled:
    """Drop all issued instructions that have not started, at a user's line.  Wait at most `seconds`
    for running ones.  Return the count of dropped instructions.
    """
    words = vm.words
    before = int(words[CTL.N_CANCELLED]), int(words[CTL.N_KEPT])
    if not vm.threads.running or words[CTL.RECEIVED] == words[CTL.HEAD]:
        return Cancelled(0, 0)
    _publish(vm, how, code, last, dict(persistent()))
    if seconds:
        vm.waits.wait_idle(seconds)
    return Cancelled(int(words[CTL.N_CANCELLED]) - before[0], int(words[CTL.N_KEPT]) - before[1])


@protected
def _publish(
    vm: Cancelling, how: str, code: CodeType | None, last: int, updates: dict[int, bool]
) -> None:
    seq = -1
    try:
        for seq in hot["counter"]:  # noqa: B007 - not next(): see the engine
            break
    finally:
        hot["fill_hole"](seq)
    error = CancelledError(f"never computed: {how} came before it had started")
    with vm.failures.lock:
        vm.failures.by_seq[seq] = Failure(seq, "cancel", error, code, last, seen=True)
    vm.words[ERR.AT + seq % ERR.LENGTH * ERR.WORDS + ERR.POISONED] = 0
    for storage, for_launches in updates.items():
        vm.words[STO.AT + storage * STO.WORDS + STO.KEEP] = -seq - 1 if for_launches else seq + 1
    vm.words[CTL.CANCEL] = seq + 1  # last: it makes the others count


_named = [0]  # the number of Ctrl-C when a wait was last named


def name_wait(vm: Any, begun: float) -> None:
    """Print once, on stderr, the wait of the main thread, if it has caught a Ctrl-C since and waits
    for long.  `begun` is the wait's beginning by the monotonic clock.
    """
    if raised[0] == _named[0] or time.monotonic() - begun < NAMED_AFTER:
        return
    if threading.current_thread() is threading.main_thread():
        _named[0] = raised[0]
        chain = in_flight.chain_text(in_flight.pending(vm))
        text = (
            "flowvm: a Ctrl-C was caught, and what was issued before it is still waited for; "
            f"flow.vm.cancel() takes back what has not started\n{chain}"
        )
        with suppress(OSError, ValueError, AttributeError):  # stderr may be closed, or none
            print(text.rstrip(), file=sys.stderr, flush=True)


def interrupted(vm: Cancelling, tb: TracebackType | None) -> None:
    """Cancel the issued instructions after a Ctrl-C that ended a line at a prompt, or the
    program.
    """
    _named[0] = raised[0]
    code, last = None, -1
    tb = users(tb)
    while tb is not None:
        code, last, tb = tb.tb_frame.f_code, tb.tb_lasti, tb.tb_next
    at_prompt = hasattr(sys, "ps1")
    dropped = cancel(vm, "Ctrl-C", code, last, PATIENCE if at_prompt else 0.0)
    if dropped and at_prompt:
        print(f"flowvm: {dropped!r}", file=sys.stderr)


def install(vm: Cancelling) -> None:
    """Let an unhandled Ctrl-C cancel.  Python's own prompt and programs report it by
    `sys.excepthook`, IPython behind each cell.
    """
    callback = functools.partial(interrupted, vm)
    on_interrupted.append(callback)

    def behind_a_cell(result: Any) -> None:
        error = result.error_in_exec
        if isinstance(error, KeyboardInterrupt):
            callback(error.__traceback__)

    shell = getattr(builtins, "get_ipython", lambda: None)()
    if shell is not None:
        shell.events.register("post_run_cell", behind_a_cell)
