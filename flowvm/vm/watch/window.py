"""A window into a running VM, for `flowvm top` in another process.

The process listens on a Unix socket of the abstract namespace, named by its user and number.  So
there is no file to clean up, and an ended process cannot be found.  It answers only its own user
and root: the kernel names the asking user.  An answer is words of the VM as they are (`socket.send`
copies them without the GIL), and the names that only Python knows.  It has no tensor's values.  The
asking process does all counting and formatting.

Reading from outside was weighed against this: a shared mapping would be shared with children that
were forked, too, and the VM's words must not be; reading another process's memory needs a
permission that Ubuntu gives to parents only.

A connection is one question, a line of JSON, and one answer: eight bytes with the length of a JSON
header, the header, and the raw words of header["parts"], a list of (first word, count).
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import struct
import sys
import time
from pathlib import Path
from types import CodeType
from typing import Any, Protocol

from flowvm.compiler import jit
from flowvm.errors import VMError
from flowvm.files.schema import Check, integer, read_json, row, several, wrong
from flowvm.guards.collection import Uncollected
from flowvm.vm.callers.hot import FRAMES, hot
from flowvm.vm.callers.lines import apart, short_position
from flowvm.vm.machine.words import ARRAY, CTL, ENT, INS, REC, RING, STR
from flowvm.vm.watch.dump import dump_text
from flowvm.vm.watch.flight import Recorded
from flowvm.vm.watch.in_flight import begun, fronts
from flowvm.vm.watch.spaces import space_of, spaces

SAMPLE = 1024  # instructions in an answer, unless more are asked for
# waits, marks of the user and new entries that an answer has at most
WAITS, MARKS, FRESH = 512, 64, 2048
PATIENCE_S = 2  # for the asking process to take the answer
MOST_HEADER = 1 << 26  # bytes of an answer's header
PARTS: Check = several(row(integer(0, ARRAY.WORDS), integer(0, ARRAY.WORDS)), 1 << 10)
_CREDENTIALS = struct.Struct("3i")
_LENGTH = struct.Struct("<q")
_TIMEVAL = struct.Struct("@ll")
_WORD_BYTES = 8
# (id of a code object, offset) -> its line; the object is kept, so its id is not another's
_known: dict[tuple[int, int], tuple[CodeType | None, str]] = {}


class _BySeq(Protocol):
    by_seq: dict[int, Any]


class _Begun(Protocol):
    begun: int  # monotonic ns


class Shown(Recorded, Protocol):
    """The interface of an engine that its window shows."""

    @property
    def failures(self) -> _BySeq:
        """The engine's failed instructions."""

    @property
    def watch(self) -> _Begun:
        """The engine's watchdog, which knows the time of its start."""


def _name(pid: int) -> str:
    return f"\0flowvm-window-{os.getuid()}-{pid}"


def listen() -> socket.socket:
    """Return the socket of this process; OSError if there can be none."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(_name(os.getpid()))
        listener.listen(4)
    except BaseException:
        listener.close()
        raise
    return listener


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Number and user of the process at the other end."""
    size = _CREDENTIALS.size
    pid, uid, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return pid, uid


def serve(vm: Shown, listener: socket.socket) -> None:
    """Answer one question, or time out as the listener does."""
    connection, _ = listener.accept()
    with connection:
        try:
            # the kernel's timeouts: Python's would release the GIL once more at every call, and
            # taking it back disturbs the observed threads
            connection.setblocking(True)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                connection.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(PATIENCE_S, 0))
            if _peer(connection)[1] not in (0, os.getuid()):
                return
            request = b""
            while not request.endswith(b"\n") and len(request) < 4096:
                request += (more := connection.recv(4096))
                if not more:
                    break
            question = read_json(request, "a question")
            check_question(question)
            header, parts = answer(vm, question)
            text = json.dumps(header).encode()
            buffers = [memoryview(_LENGTH.pack(len(text)) + text)]
            buffers += [vm.words[first : first + count].cast("B") for first, count in parts]
            while buffers:  # all at once, unless the socket has no room
                sent = connection.sendmsg(buffers)
                while buffers and sent >= len(buffers[0]):
                    sent -= len(buffers.pop(0))
                if buffers:
                    buffers[0] = buffers[0][sent:]
        except Exception:  # the asking process has gone, or asks nonsense: the next one is answered
            return


def ask(pid: int, question: dict[str, object]) -> tuple[dict[str, Any], list[tuple[int, bytes]]]:
    """The answer of process `pid`: its header, and (first word, bytes) of each part.

    VMError, with the reason, where there is none.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        raise VMError(f"there is no process {pid}") from None
    except (PermissionError, OverflowError):
        pass
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(3 * PATIENCE_S)
        try:
            connection.connect(_name(pid))
        except OSError:
            raise VMError(
                f"process {pid} shows no VM: it has run no flowvm operation yet, is another user's "
                "or another container's, or has FLOWVM_WINDOW=0 or FLOWVM_ENGINE=sequential"
            ) from None
        if _peer(connection)[1] not in (0, os.getuid()):
            raise VMError(f"the window of process {pid} is another user's")
        try:
            connection.sendall(json.dumps(question).encode() + b"\n")
            with connection.makefile("rb") as reply:
                (length,) = _LENGTH.unpack(reply.read(_LENGTH.size))
                if not 0 <= length <= MOST_HEADER:
                    raise ValueError(f"a header of {length} bytes")
                header = read_json(reply.read(length), "an answer")
                PARTS(header.get("parts") if isinstance(header, dict) else None, "an answer")
                if any(sum(part) > ARRAY.WORDS for part in header["parts"]):
                    raise ValueError("words that no VM has")
                parts = [
                    (first, reply.read(_WORD_BYTES * count)) for first, count in header["parts"]
                ]
                counts = [count for _, count in header["parts"]]
                if counts != [len(raw) / _WORD_BYTES for _, raw in parts]:
                    raise ValueError("cut short")
        except TimeoutError:
            raise VMError(
                f"process {pid} does not answer: either it is stopped, or its Python is in a "
                "long C call"
            ) from None
        except (OSError, ValueError, struct.error):
            raise VMError(f"process {pid} went away while it answered") from None
    return header, parts


def shown() -> list[int]:
    """The processes of this user that show a VM."""
    prefix = "@" + _name(0)[1:].removesuffix("0")
    with open("/proc/net/unix") as sockets:
        names = {line.split()[-1] for line in sockets if prefix in line}
    return sorted(int(n.removeprefix(prefix)) for n in names if n.startswith(prefix))


def _ring(base: int, words: int, mask: int, first: int, last: int) -> list[tuple[int, int]]:
    """The parts of a ring's region that have rows [first, last), at most once around."""
    first = max(first, last - mask - 1)
    parts = []
    while first < last:
        at = first & mask
        count = min(last - first, mask + 1 - at)
        parts.append((base + at * words, count * words))
        first += count
    return parts


def check_question(question: object) -> None:
    """Raise ArgumentError for a question that `answer` must not see."""
    if not isinstance(question, dict):
        wrong("a question", question, "a record")
    for name, value in question.items():
        if name != "dump":
            integer(0)(value, f"a question's {name}")


def answer(vm: Shown, question: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Return the VM's state: names and numbers, and the parts of its words that belong to them.

    The question has `since` (instructions below were seen), `most` (instructions wanted), `entries`
    (number of entries whose names are known), `waits` (waits that ended by then are known), `dump`
    (the text of `flow.vm.dump()` is wanted).
    """
    words, flight = vm.words, vm.flight
    received, head = begun(vm), int(words[CTL.HEAD])
    most = min(int(question.get("most", SAMPLE)), REC.LENGTH)
    first = max(int(question.get("since", 0)), received - most, flight.first)
    streams = vm.streams.count
    known = min(int(question.get("entries", 0)), len(vm.entries.info))
    fresh = vm.entries.info[known : known + FRESH]
    in_flight = max(head, received - most)
    parts = [(CTL.AT, CTL.WORDS), (STR.AT, streams * STR.WORDS)]
    parts += _ring(INS.AT, INS.WORDS, RING.SLOT_MASK, in_flight, received)
    parts += _ring(REC.AT, REC.WORDS, REC.MASK, first, received)
    if fresh:
        parts.append((ENT.AT + known * ENT.WORDS, len(fresh) * ENT.WORDS))
    ended = int(question.get("waits", 0))
    waits = [x for x in list(flight.waits)[-WAITS:] if x.ended > ended]
    flight.start()
    lines, line_of = _lines(vm, first, received)
    header = {
        "parts": parts,
        "pid": os.getpid(),
        "program": os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python",
        "begun": vm.watch.begun,
        "uncompiled": vm.threads.uncompiled,
        "now": time.monotonic_ns(),
        "zero": flight.zero,
        "clocks": flight.clocks(),
        "first": first,
        "received": received,
        "head": head,
        "scheduled": _scheduled(vm),
        "in_flight": in_flight,
        "room": int(words[CTL.RUN_AHEAD]),
        "streams": [vm.streams.name(s) for s in range(streams)],
        "spaces": [space_of(vm, s) for s in range(streams)],
        "memory": spaces(vm),
        "entries": known,
        "of": len(vm.entries.info),
        "reused": vm.entries.reused,
        "names": [getattr(info, "name", None) or "" for info, _ in fresh],
        "bytes": [sum(m.nbytes for m in getattr(info, "metas", ())) for info, _ in fresh],
        "fronts": fronts(vm),
        "lines": lines,
        "line_of": line_of,
        "waits": [(x.cause, x.begun, x.ended, x.thread, x.seq) for x in waits],
        "marks": list(flight.marks)[-MARKS:],
        "compiling": _compiling(),
        "again": len(getattr(sys.modules.get("flowvm.nn.graph.explain"), "again", ())),
        "errors": sum(not f.seen and not f.captured for f in list(vm.failures.by_seq.values())),
    }
    if question.get("dump"):
        header["dump"] = dump_text(vm)
    return header, parts


def _scheduled(vm: Shown) -> int:
    """Processor time of the scheduler so far, in ns; 0 where no thread runs it."""
    thread = next((t.native_id for t in vm.threads.members if t.name == "flowvm-sched"), None)
    try:
        spent = Path(f"/proc/self/task/{thread}/schedstat").read_text("ascii")
    except OSError:
        return 0
    return int(spent.split()[0])


def _compiling() -> list[str]:
    """Return the names of functions that threads now compile or load.  The calls of `jit.load` are
    found in the stacks, so other threads pay nothing.
    """
    texts = []
    with Uncollected():
        for frame in list(sys._current_frames().values()):
            at: Any = frame
            while at is not None and at.f_code is not jit.load.__code__:
                at = at.f_back
            if at is not None:
                texts.append(str(at.f_locals.get("name", "?")))
    return texts


def _lines(vm: Shown, first: int, last: int) -> tuple[list[str], list[int]]:
    """The user's lines of instructions [first, last): a table, and for each its number there."""
    table: dict[str, int] = {}
    numbers: dict[tuple[int, int], int] = {}
    lines = []
    old = max(first, last - FRAMES)
    flight = vm.flight
    places = itertools.chain(
        ((flight.codes, flight.lasts, seq & REC.MASK) for seq in range(first, old)),
        ((hot["codes"], hot["lasts"], seq & (FRAMES - 1)) for seq in range(old, last)),
    )
    for codes, lasts, place in places:
        code, at, _ = apart(codes[place], lasts[place])
        key = (id(code), at)
        number = numbers.get(key)
        if number is None:
            if key not in _known:
                if len(_known) > 1 << 14:
                    _known.clear()
                _known[key] = (code, short_position(code, at))
            number = numbers[key] = table.setdefault(_known[key][1], len(table))
        lines.append(number)
    return list(table), lines
