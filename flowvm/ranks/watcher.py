"""The watcher of a rank: a thread that checks that the other ranks are alive.

It looks at the board ten times a second.  It raises the alert for a failed or dead rank, for an
ended rank that this one waits for, or for a wait that is too long.  Workers that wait for other
ranks look at the alert, and end with an error that names the watcher's finding.  The board shows
failures of this rank to the others.

A rank shows it on the board of its host alone.  Of ranks on other hosts the watcher hears by
`flowvm launch`, which leaves it a mark when one fails and when one has ended its program.  Another
launcher ends the others when a rank dies, and the timeout does when one is late.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np

from flowvm.config import config
from flowvm.errors import CommunicationError, FlowError, on_ranks_failed
from flowvm.meta.arrays import Array
from flowvm.ranks.launch_env import LAUNCH
from flowvm.ranks.library import error_text
from flowvm.ranks.rows import Row, step_text, unlike
from flowvm.ranks.words import ALERT, HEADER, ROW
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import OPERAND, STO
from flowvm.vm.watch.dump import elsewhere

TICK = 0.1
LEFT_AFTER = 0.5  # seconds to wait for a rank that has left: its last message may be on its way
# the same across hosts, where a message may take its time, and be the last thing a rank did
LEFT_AFTER_ELSEWHERE = 20.0
# suffixes of the marks that a rank leaves for `flowvm launch`.  FIRST: it failed before all
# others, and why.  ENDED: it has ended its program after waiting for the others; the process's end
# gives its exit code
FIRST, ENDED = ".first", ".ended"
# and of those that the launcher leaves.  ALARM: why exchanges have ended.  LEFT: the numbers of
# ranks that have ended their programs
ALARM, LEFT = ".alarm", ".left"
REPORTED = 1.0  # seconds that the cause of a failure is waited for, when it has poisoned a lane
DRAINED = 10.0  # seconds to wait, when Python ends, for instructions in flight
DEAD, STOPPED = ("Z", "X"), ("T", "t")  # states of a process
ALERTED, MPI_FAILED, DIFFERENT = 1, 2, 3  # why an exchange ends with RANKS_FAILED


class Ways(Protocol):
    """The interface of a lane that this module needs."""

    name: str
    row: int  # of messages, else 0
    peers: set[int]
    order: object


class Place(Protocol):
    """The interface of the world that this module needs."""

    rank: int
    size: int
    mpi: Any
    control: Any
    fault: str
    boards: dict[int, int]
    alert: Array
    joined: dict[int, Any]
    lanes: list[Any]
    parts: list[Part]

    def header(self, number: int) -> Array:
        """The words of a rank's header."""

    def has_left(self, number: int) -> bool:
        """Return True if a rank has ended its program."""

    def row(self, address: int) -> Array:
        """The words of a row."""

    def row_of(self, number: int, place: int) -> int:
        """The address of a rank's row; 0 on another host."""


class Part(Protocol):
    """A participant in exchanges on a device: a lane, or a communicator."""

    def settle(self) -> None:
        """Show the device's progress on the board."""

    def trouble(self) -> str:
        """Return the text of an error, "" if there is none."""

    def stop(self) -> None:
        """End all waits for other ranks: exchanges have ended."""

    def close(self) -> None:
        """Free the resources: all ranks are done."""


class Wait(NamedTuple):
    """An exchange in progress: its name and its duration so far; the ranks that have not begun it;
    (rank, row) of the ones on this host.
    """

    what: str
    seconds: float
    missing: Sequence[int]
    others_rows: Sequence[tuple[int, int]]


class Watcher:
    """A thread that watches the ranks of one world."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.pid = os.getpid()
        self.others = [number for number in place.boards if number != place.rank]
        self.elsewhere = place.size > len(place.boards)  # whether there are ranks of other hosts
        self.since: dict[int, tuple[int, float]] = {}  # row -> (awaited exchange, since when)
        self.departures: dict[int, float] = {}  # rank -> when it was first seen to have left
        self.stopped = threading.Event()
        self.uncaught = False  # whether an exception ends the program
        self.thread = threading.Thread(target=self._run, name="flowvm-ranks", daemon=True)
        on_ranks_failed.append(self.error_of)
        elsewhere.append(self.waiting)
        self.before = sys.excepthook
        sys.excepthook = self._uncaught
        atexit.register(self._leave)
        os.register_at_fork(after_in_child=self._in_child)
        self.thread.start()

    def _run(self) -> None:
        while not self.stopped.wait(TICK):
            self.look()

    # --- what is found ------------------------------------------------------------------------

    def look(self) -> None:
        """Check all other ranks once."""
        if self.place.fault:
            return
        for part in [*self.place.parts]:
            part.settle()
        different = self.difference()
        if different is not None:
            self.fail(different)
        elif cause := self._gone() or self._alarm() or self._late():
            self.raise_alert(cause)
        elif (own := self._broken() or self._troubled()) is not None:
            self.fail(own)

    def _gone(self) -> str:
        """Return a text that names a failed or dead rank, "" if there is none."""
        for number in self.others:
            header = self.place.header(number)
            if header[HEADER.STATE] == HEADER.FAILED:
                text = header[HEADER.TEXT :].tobytes()[: int(header[HEADER.LENGTH])]
                return f"rank {number} failed: {text.decode(errors='replace')}"
            pid = self._process(number)
            if header[HEADER.STATE] == HEADER.RUNNING and _state(pid) in DEAD:
                return f"rank {number} has died (process {pid})"
        return ""

    def _alarm(self) -> str:
        """Return the launcher's text about a failed rank of another host, "" if there is none."""
        return mark_text(self.place.rank, ALARM) if self.elsewhere else ""

    def has_left(self, number: int, seconds: float) -> bool:
        """Return True if a rank ended its program some time ago and this one waits that long.

        The time counts from when the rank was seen to have left: a wait may have begun long before,
        and the last message is on its way.
        """
        near = number in self.place.boards
        most = LEFT_AFTER if near else LEFT_AFTER_ELSEWHERE
        if seconds < LEFT_AFTER:
            return False
        if near:
            gone = self.place.has_left(number)
        else:
            gone = str(number) in mark_text(self.place.rank, LEFT).split()
        if not gone:
            return False
        now = time.monotonic()
        return min(seconds, now - self.departures.setdefault(number, now)) > most

    def _late(self) -> str:
        """Return a text that names a rank for which this one waits in vain, "" if there is none."""
        for wait in self._waits():
            gone = [number for number in wait.missing if self.has_left(number, wait.seconds)]
            if gone:
                return f"rank {gone[0]} has left the program, and rank {self.place.rank} waits " \
                       f"for it in {wait.what}"  # fmt: skip
            if wait.seconds > config.distributed_timeout:
                return f"rank {self.place.rank} waited {wait.seconds:.0f} s in {wait.what} for " \
                       f"{self._standing(wait)}"  # fmt: skip
        return ""

    def _waits(self) -> Iterator[Wait]:
        """Return the exchanges that this rank has begun and not done."""
        rows = {at: (j.others, j.others_rows) for at, j in [*self.place.joined.items()]}
        rows |= {w.row: (tuple(w.peers), ()) for w in [*self.place.lanes] if w.row}
        now = time.monotonic()
        for at, (others, address) in rows.items():
            row = self.place.row(at)
            begun = int(row[ROW.SEQ])
            if begun == row[ROW.DONE]:
                self.since.pop(at, None)
                continue
            number, first = self.since.get(at, (0, 0.0))
            if number != begun:
                self.since[at] = begun, (first := now)
            ahead = {other for other, r in address if self.place.row(r)[ROW.SEQ] >= begun}
            missing = [other for other in others if other not in ahead]  # or on another host
            yield Wait(step_text(row, begun), now - first, missing, address)

    def waiting(self) -> list[str]:
        """Return a line for each exchange in which this rank waits: its name, and the missing ranks
        and their state.
        """
        return [
            f"rank {self.place.rank} waits {wait.seconds:.1f} s in {wait.what} for "
            f"{self._standing(wait)}"
            for wait in self._waits()
        ]

    def _standing(self, wait: Wait) -> str:
        """Return the state of the ranks for which an exchange waits, and the stopped ranks of this
        host.
        """
        rows = dict(wait.others_rows)
        stopped = [number for number in self.others if _state(self._process(number)) in STOPPED]
        standing = []
        for number in dict.fromkeys([*wait.missing, *stopped]):
            text = f"rank {number}"
            if number in stopped:
                text += f", whose process {self._process(number)} is stopped"
            if number in rows:
                row = self.place.row(rows[number])
                last = int(row[ROW.SEQ])
                at = f"which began {step_text(row, last)} last" if last else "which began nothing"
                text += f", {at}"
            if number not in self.place.boards:
                text += " of another host"
            else:
                now = self._exchanges_of(number)
                text += f"{' and' if number in rows else ', which'} is in {now}" if now else ""
            standing.append(text)
        return "; ".join(standing) or "ranks that have all begun it"

    def _process(self, number: int) -> int:
        return int(self.place.header(number)[HEADER.PID])

    def _exchanges_of(self, number: int) -> str:
        """Return the names of the exchanges that a rank of this host has begun and not done."""
        rows = (self.place.row(self.place.row_of(number, k)) for k in range(ROW.ROWS))
        now = [step_text(row, int(row[ROW.SEQ])) for row in rows if row[ROW.SEQ] != row[ROW.DONE]]
        return " and ".join(now)

    def _broken(self) -> CommunicationError | None:
        """Return the error that has poisoned a lane, or None."""
        for way in [*self.place.lanes]:
            storage = way.order._ref & OPERAND.STORAGE_MASK
            cause = int(engine.words[STO.AT + storage * STO.WORDS + STO.POISON])
            if cause:
                failure = engine.failures.awaited(cause - 1, REPORTED)
                if failure is None:
                    return CommunicationError(f"an instruction on lane {way.name} failed")
                if not failure.captured:
                    return CommunicationError(
                        f"{type(failure.exception).__name__}: {failure.exception}\n"
                        f"  in {failure.name}\n{failure.where()}"
                    )
        return None

    def _troubled(self) -> CommunicationError | None:
        """Return the error of a device's exchanges.  The device itself looks at nothing."""
        texts = (part.trouble() for part in [*self.place.parts])
        return next((CommunicationError(text) for text in texts if text), None)

    def difference(self) -> CommunicationError | None:
        """Return an error if this rank and another of its host have begun different exchanges on
        devices.
        """
        for at, joined in [*self.place.joined.items()]:
            mine = self.place.row(at)
            for number, address in joined.others_rows if joined.wire is not None else ():
                theirs = self.place.row(address)
                seq = unlike(mine, theirs)
                if seq:
                    return self._unlike(seq, mine, number, theirs)
        return None

    def _unlike(self, seq: int, mine: Row, number: int, theirs: Row) -> CommunicationError:
        return CommunicationError(
            f"ranks do not do the same: as number {seq} of its group, rank {self.place.rank} began "
            f"{step_text(mine, seq)}, and rank {number} {step_text(theirs, seq)}"
        )

    # --- what follows -------------------------------------------------------------------------

    def raise_alert(self, cause: str) -> None:
        """Raise the alert: exchanges have ended, and waits end."""
        self.place.fault = self.place.fault or cause
        self.place.alert[ALERT.RAISED] = 1
        for part in [*self.place.parts]:
            part.stop()

    def fail(self, error: CommunicationError) -> None:
        """End this rank's part in exchanges, and tell the other ranks why."""
        text = str(error)
        first = not self.place.fault
        self.raise_alert(f"rank {self.place.rank} failed: {text}")
        if first and self.place.rank in self.place.boards:
            encoded = text.encode()[: HEADER.MOST]
            header = self.place.header(self.place.rank)
            header[HEADER.TEXT :].view(np.uint8)[: len(encoded)] = np.frombuffer(encoded, np.uint8)
            header[HEADER.LENGTH] = len(encoded)
            header[HEADER.STATE] = HEADER.FAILED
        if first:
            self._mark(FIRST, text)

    def _mark(self, ending: str, text: str = "") -> None:
        """Leave a mark for `flowvm launch`, if it started this process."""
        if folder := os.environ.get(LAUNCH):
            name = f"{self.place.rank}{ending}"
            with contextlib.suppress(OSError):
                with open(os.path.join(folder, f".{name}"), "x") as file:
                    file.write(text)
                os.rename(os.path.join(folder, f".{name}"), os.path.join(folder, name))

    def error_of(self, details: Sequence[int]) -> FlowError:
        """Return the error of a failed exchange, from the details that its kernel left."""
        why, value, at, seq = details[:4]
        own = f"rank {self.place.rank}"
        if why == DIFFERENT:
            joined = self.place.joined[at]
            number, address = joined.others_rows[value]
            return self._unlike(seq, self.place.row(at), number, self.place.row(address))
        if why == MPI_FAILED:
            return CommunicationError(f"{own}: MPI failed: {error_text(value)}")
        return CommunicationError(self.place.fault or f"{own} exchanges nothing any more")

    # --- the end ------------------------------------------------------------------------------

    def _uncaught(
        self, kind: type[BaseException], error: BaseException, tb: TracebackType | None
    ) -> None:
        if os.getpid() == self.pid:
            self.fail(self._broken() or _with_line(kind, error, tb))
            self.uncaught = True
        self.before(kind, error, tb)

    def _leave(self) -> None:
        """Wait for the other ranks before Python ends, unless something has failed, and end MPI."""
        if os.getpid() != self.pid or self.place.mpi.Is_finalized():
            return
        try:
            if not self.place.fault:
                engine.waits.wait_idle(DRAINED)
            if not self.place.fault and (own := self._broken()) is not None:
                self.fail(own)
            if not self.place.fault:
                self._mark(ENDED)
                self.place.header(self.place.rank)[HEADER.STATE] = HEADER.LEFT
                arrived = self.place.control.Ibarrier()
                while not arrived.Test() and not self.place.fault:
                    time.sleep(0.002)
        except KeyboardInterrupt:
            self.raise_alert("interrupted")
        self.stopped.set()
        if self.uncaught:  # the exception is printed already; unfinished exchanges add nothing
            engine.waits.wait_idle(1.0)
            for failure in [*engine.failures.by_seq.values()]:
                failure.seen = failure.seen or isinstance(failure.exception, CommunicationError)
        # a launcher may signal by it that another rank has ended; without a handler it kills the
        # process
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        if not self.place.fault:
            for part in [*self.place.parts]:
                part.close()
            self.place.mpi.Finalize()

    def _in_child(self) -> None:
        self.raise_alert("a child of a rank takes no part: MPI is its parent's")


def mark_text(number: int, ending: str) -> str:
    """Return the text of a mark that `flowvm launch` has left for a rank, "" if there is none."""
    try:
        with open(os.path.join(os.environ[LAUNCH], f"{number}{ending}")) as file:
            return file.read()
    except (KeyError, OSError):
        return ""


def _state(pid: int) -> str:
    """Return the letter of a process's state, as `ps` shows it, "X" if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return "X"


def _with_line(
    kind: type[BaseException], error: BaseException, tb: TracebackType | None
) -> CommunicationError:
    """Return an error that names the exception raised, and its line."""
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    where = "" if tb is None else f"  ({tb.tb_frame.f_code.co_filename}:{tb.tb_lineno})"
    text = f": {error}" if str(error) else ""
    return CommunicationError(f"{kind.__name__}{text}{where}")
