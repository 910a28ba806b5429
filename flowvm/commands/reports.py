"""The launcher's end of its connections to the ranks: how each does, on whatever host.

    rank -> launcher    {"rank", "token", "host"}, then marks {"mark", "text"}, at the end {"code"}
    launcher -> rank    {"environment"}, then marks

Each is a line of JSON.  A rank whose connection ends without a code is lost, with its host or its
`flowvm.commands.rank`; TCP itself finds a host that does not answer any more.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import secrets
import selectors
import signal
import socket
import struct
import time
from typing import Any, NamedTuple

from flowvm.commands.rank import keep_alive
from flowvm.ranks.watcher import ALARM, ENDED, FIRST, LEFT

LOCAL = "127.0.0.1"
MOST = 1 << 20  # bytes of a line
SIOCGIFADDR = 0x8915  # Linux: the address of a network interface
LOST = "lost"


class Failure(NamedTuple):
    """A failed rank: its place in the order of failures, its exit code, or LOST, and the text."""

    when: float
    rank: int
    code: int | str
    text: str

    @property
    def how(self) -> str:
        """A phrase that says how the rank ended."""
        if self.code == LOST:
            return self.text
        assert isinstance(self.code, int)
        if self.code < 0:
            known = {s.value: s.name for s in signal.Signals}
            return f"killed by {known.get(-self.code, f'signal {-self.code}')}"
        return f"with exit code {self.code}"

    @property
    def exit_code(self) -> int:
        """The exit code for the shell."""
        if not isinstance(self.code, int):
            return 1
        return self.code if self.code > 0 else 128 - self.code


class Rank:
    """A connection of a rank, and what it has told so far."""

    def __init__(self, link: socket.socket) -> None:
        self.link, self.read = link, b""
        self.number, self.host = -1, ""  # -1: it has not said its token yet
        self.marks: dict[str, tuple[float, str]] = {}  # when each came, and its text
        self.code: int | str | None = None
        self.ended = 0.0  # when the code came

    def failure(self) -> Failure | None:
        """Return how the rank has failed, None if it has not.

        A program that did not read the result of a failed exchange ends with 1, as all programs do
        whose issued work failed.
        """
        if not self.code:
            return None
        when = self.marks[ENDED][0] if ENDED in self.marks else self.ended
        text = self.marks[FIRST][1] if FIRST in self.marks else ""
        if self.code == LOST:
            text = f"lost with its host {self.host}"
        first = 0.0 if FIRST in self.marks else when
        return Failure(first, self.number, self.code, text)

    def say(self, what: dict[str, object]) -> None:
        """Tell the rank something.  One that is gone is found when it is read from."""
        with contextlib.suppress(OSError):
            self.link.sendall(json.dumps(what).encode() + b"\n")


class Reports:
    """The connections of all ranks of a launch.

    everywhere     True: ranks of other hosts connect, too
    environment    variables for the ranks' programs
    """

    def __init__(self, everywhere: bool, environment: dict[str, str]) -> None:
        self.token, self.environment = secrets.token_hex(16), environment
        self.listener = socket.create_server(("" if everywhere else LOCAL, 0), backlog=1024)
        self.places = [*addresses(), LOCAL] if everywhere else [LOCAL]
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.ranks: list[Rank] = []
        self.alarmed = False
        self.ended: set[int] = set()

    @property
    def where(self) -> str:
        """The argument of `flowvm.commands.rank` that says where the launcher is."""
        return ",".join([str(self.listener.getsockname()[1]), *self.places])

    def close(self) -> None:
        """Close all connections, which ends the ranks that are left."""
        for rank in self.ranks:
            rank.link.close()
        self.selector.close()
        self.listener.close()

    def look(self, seconds: float) -> None:
        """Take what comes within a time, and tell all ranks what they must know of others."""
        for key, _ in self.selector.select(seconds):
            if key.data is None:
                link, _ = self.listener.accept()
                keep_alive(link)
                rank = Rank(link)
                self.ranks.append(rank)
                self.selector.register(link, selectors.EVENT_READ, rank)
            else:
                self._read(key.data)
        self._tell()

    def are_complete(self) -> bool:
        """Return True if every rank has told its end."""
        return all(rank.code is not None for rank in self.ranks)

    def failures(self) -> list[Failure]:
        """Return the failures so far, the first one first."""
        return sorted(failure for rank in self.ranks if (failure := rank.failure()))

    def _read(self, rank: Rank) -> None:
        try:
            data = rank.link.recv(1 << 16)
        except OSError as error:
            data = b""
            if error.errno in (errno.EAGAIN, errno.EINTR):
                return
        *lines, rank.read = (rank.read + data).split(b"\n")
        try:
            for line in lines:
                self._take(rank, json.loads(line))
        except (ValueError, KeyError, TypeError):  # no rank of ours
            data = b""
        if data and len(rank.read) < MOST:
            return
        self.selector.unregister(rank.link)
        rank.link.close()
        if rank.number < 0:
            self.ranks.remove(rank)
        elif rank.code is None:
            rank.code, rank.ended = LOST, time.monotonic()

    def _take(self, rank: Rank, what: dict[str, Any]) -> None:
        if rank.number < 0:
            if not secrets.compare_digest(str(what["token"]), self.token):
                raise ValueError
            rank.number, rank.host = int(what["rank"]), str(what["host"])
            rank.say({"environment": self.environment})
        if "mark" in what:
            rank.marks[str(what["mark"])] = time.monotonic(), str(what["text"])
        if "code" in what:
            rank.code, rank.ended = int(what["code"]), time.monotonic()

    def _tell(self) -> None:
        """Tell the ranks of failures and ends.  Those of one host know already, by their board."""
        if not self.alarmed and (why := self._first()):
            self.alarmed = True
            self._mark(ALARM, why)
        ended = {rank.number for rank in self.ranks if ENDED in rank.marks}
        if ended != self.ended:
            self.ended = ended
            self._mark(LEFT, " ".join(map(str, sorted(ended))))

    def _first(self) -> str:
        """Return a text of the first failure, "" if there is none."""
        for rank in self.ranks:
            if FIRST in rank.marks:
                return f"rank {rank.number} failed: {rank.marks[FIRST][1]}"
        for failure in self.failures():
            return f"rank {failure.rank} has ended, {failure.how}"
        return ""

    def _mark(self, mark: str, text: str) -> None:
        for rank in self.ranks:
            if rank.number >= 0 and rank.code is None:
                rank.say({"mark": mark, "text": text})


def addresses() -> list[str]:
    """Return the addresses of this host's interfaces, by which others may reach it."""
    hosts = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                hosts.append(socket.inet_ntoa(answer[20:24]))
    return [*(a for a in hosts if not a.startswith("127.")), socket.gethostname()]
