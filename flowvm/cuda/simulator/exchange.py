"""Exchanges of simulated NCCL between processes: files in a folder that lives as long as the
communicator.

A rank writes the data that it sends to a file, when its stream comes to the exchange.  The exchange
is ready when the other ranks' files exist.  So streams wait for each other as on GPUs, and other
streams go on.  The n-th exchange of a communicator belongs to the n-th of the other ranks.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from flowvm.cuda.simulator.streams import Work


@dataclass
class Communicator:
    """This rank's part of a communicator."""

    folder: Path
    size: int
    rank: int
    device: int
    exchanges: int = 0  # collectives that were called
    sent: Counter[int] = field(default_factory=Counter)  # messages by target
    received: Counter[int] = field(default_factory=Counter)  # by source
    files: list[str] = field(default_factory=list)  # files of the last collective, or group of them
    ended: bool = False
    error: int = 0  # that comes up while nothing is called


class Part:
    """One rank's part of an exchange.  `begins` returns the files to write and the names of the
    files to read.  `then` takes the contents of the files read.
    """

    reads: tuple[str, ...] = ()

    def __init__(
        self,
        comm: Communicator,
        begins: Callable[[], tuple[dict[str, bytes], tuple[str, ...]]],
        then: Callable[[list[bytes]], None],
    ) -> None:
        self.comm, self.begins, self.then = comm, begins, then

    def write(self) -> None:
        """Write this rank's files, now that its turn has come."""
        written, self.reads = self.begins()
        for name, data in written.items():
            _write(self.comm.folder, name, data)

    @property
    def ready(self) -> bool:
        """Return True if all files to read exist, or the communicator has ended."""
        return self.comm.ended or all((self.comm.folder / name).exists() for name in self.reads)

    def read(self) -> None:
        """Read the other ranks' files and pass their contents to `then`."""
        if not self.comm.ended:
            self.then([(self.comm.folder / name).read_bytes() for name in self.reads])


class Exchanging:
    """Parts of an exchange in flight: written once, ready when all other ranks' files exist."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self.written = False

    def work(self) -> Work:
        return Work("exchange", run=self.run, poll=self.poll)

    def poll(self) -> bool:
        """Write this rank's files at the first call.  Return True if the other ranks' files
        exist.
        """
        if not self.written:
            self.written = True
            for part in self.parts:
                part.write()
        return all(part.ready for part in self.parts)

    def run(self) -> None:
        """Read the other ranks' files and compute the result."""
        self.written = False  # a graph does it again
        for part in self.parts:
            part.read()
        # all have written these collectives, so all have read those before
        for comm in {id(part.comm): part.comm for part in self.parts}.values():
            own = [p.reads[comm.rank] for p in self.parts if p.comm is comm and len(p.reads) > 1]
            for name in comm.files if own else ():
                (comm.folder / name).unlink(missing_ok=True)
            comm.files = own or comm.files


def _write(folder: Path, name: str, data: bytes) -> None:
    """Write a file atomically: a reader sees all of its bytes or no file."""
    with contextlib.suppress(FileNotFoundError):  # the folder of an ended rank
        (folder / f".{name}").write_bytes(data)
        os.replace(folder / f".{name}", folder / name)
