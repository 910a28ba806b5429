"""Messages between a DataLoader and its worker processes, over a socket.

A socket keeps messages apart (SOCK_SEQPACKET) and has little room.  A message longer than LONGEST
goes into a file of memory, whose descriptor is sent.
"""

from __future__ import annotations

import os
import pickle
import socket
from typing import Any, Final, NamedTuple

LONGEST: Final = 1 << 14  # bytes of a message that goes as it is
APART: Final = b"apart"  # in place of another: that is in the first file


class Placed(NamedTuple):
    """A batch in a message: its pickle, and the places in a segment of the memory left out."""

    payload: bytes
    segment: int
    size: int  # of the segment; 0: none
    spans: tuple[tuple[int, int], ...]


class Task(NamedTuple):
    """The next task of a worker."""

    epoch: int  # which pass of the loader it belongs to
    number: int  # of the batch
    back: list[int]  # segments that are not used any more
    job: Any  # the argument of `Recipe.maker`; None for a stream, of which the next is taken


class Answer(NamedTuple):
    """The answer to a task."""

    epoch: int
    number: int
    kind: str  # "batch"; "error", where that is a Failure; "end", a worker's stream has ended
    placed: Placed


class Failure(NamedTuple):
    """An exception of a worker."""

    name: str
    text: str  # its traceback
    pickled: bytes | None  # the exception itself, where pickle can do that


def post(channel: socket.socket, data: bytes, fd: int | None = None) -> None:
    """Send a pickled message, and a file descriptor with it."""
    fds = [] if fd is None else [fd]
    if len(data) <= LONGEST:
        socket.send_fds(channel, [data], fds)
        return
    file = os.memfd_create("flowvm-message")
    try:
        with open(file, "wb", closefd=False) as stream:
            stream.write(data)
        socket.send_fds(channel, [APART], [file, *fds])
    finally:
        os.close(file)


def fetch(channel: socket.socket) -> tuple[Any, int | None] | None:
    """The next message, and the file descriptor that came with it, which is the caller's; None
    where the other end was closed.
    """
    try:
        data, fds, _, _ = socket.recv_fds(channel, LONGEST, 2)
    except ConnectionResetError:
        return None
    if not data:
        return None
    if data == APART:
        file, *fds = fds
        try:
            data = os.pread(file, os.fstat(file).st_size, 0)
        finally:
            os.close(file)
    return pickle.loads(data), fds[0] if fds else None
