"""One process that has imported flowvm and Numba, and the helpers that are forked from it.

A helper needs Python, flowvm and Numba, which is more than a second of a processor; forked from a
process that has them it costs some milliseconds.  That process, the zygote, has one thread and runs
nothing, so its memory is whole at any moment.

The program and the zygote have a socket in common.  Each message of it asks for a child, and
brings the child's stdin and stdout and the writing end of its *life*, a pipe.  The zygote writes
the child's number there, and its exit code when it has ended.  The child keeps that end open, too,
so the life is over when both are.

Invariants
- Only the zygote starts and reaps children, and `flowvm.guards.processes` starts both.
- The system kills a child when the zygote has ended, however it has (`PR_SET_PDEATHSIG`).  The
  zygote ends with the program, or when it had no child for `IDLE_S`.
- A child that never began ends with code 1; one whose end nobody saw was killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO

from flowvm.compiler import jit, native, record
from flowvm.guards import processes

GLANCE_S = 1.0  # between two checks that the program lives; a fork of it may hold the socket
IDLE_S = 60.0  # seconds without a child after which a zygote ends
STOP_S = 5.0  # seconds that it gets to kill its children; the system does, where it is killed
MOST = 1 << 16  # bytes of a message
ENDS = 3  # descriptors of a message: a child's stdin, stdout and life
PR_SET_PDEATHSIG = 1  # linux/prctl.h
_MAIN = "flowvm.compiler.zygote:main"


class Child:
    """A process forked from a zygote, with the attributes of `subprocess.Popen` that are needed.

    `stdout` is None unless it `tells`.
    """

    def __init__(self, stdin: int, stdout: int | None, life: int) -> None:
        self.stdin: IO[bytes] = os.fdopen(stdin, "wb")
        self.stdout = None if stdout is None else os.fdopen(stdout, "rb")
        self.pid = 0  # until it has begun
        self.returncode: int | None = None
        self._life = os.fdopen(life, "rb", buffering=0)
        self._text = b""
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code; None while the process, or the wish for one, lives."""
        self._read(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return its exit code."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            self._read(GLANCE_S if until is None else min(GLANCE_S, until - time.monotonic()))
            if self.returncode is None and until is not None and time.monotonic() >= until:
                raise TimeoutError(f"process {self.pid} has not ended in {timeout:g} s")
        return self.returncode

    def forget(self) -> None:
        """Close this process's ends of the pipes: it was forked, and the child is its parent's."""
        self.returncode = 0
        self._close()

    def _read(self, seconds: float) -> None:
        """Read what there is of the child's life; wait for it up to `seconds`."""
        with self._lock:
            while self.returncode is None and _readable(self._life, max(0.0, seconds)):
                data = self._life.read(64)
                self._text += data or b""
                *words, _ = self._text.split(b"\n")
                if words:
                    self.pid = int(words[0])
                if not data:
                    # both are over, and the zygote told the code unless it was killed
                    self.returncode = int(words[1]) if len(words) > 1 else -9 if words else 1
                    self._close()

    def _close(self) -> None:
        for file in (self.stdin, self.stdout, self._life):
            with contextlib.suppress(OSError):
                if file is not None:
                    file.close()


def _readable(file: IO[bytes], seconds: float) -> bool:
    waiting = select.poll()
    waiting.register(file, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


class Zygote:
    """The process whose children do `call`, "module:function" of flowvm with a list of texts.

    OSError where there can be none.
    """

    def __init__(self, call: str, environment: dict[str, str]) -> None:
        self.facts = _facts(environment)
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = processes.start(
                processes.own(_MAIN, call, str(os.getpid())),
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # a second thread of OpenBLAS would be none of a child's
                env={**environment, "OPENBLAS_NUM_THREADS": "1"},
                process_group=0,  # Ctrl-C is not meant for it; a session of its own, which Linux
                # may schedule as one with this process's (autogroup), would ignore `nice`
            )

    def serves(self, environment: dict[str, str]) -> bool:
        """Return True if children of this process are as those of a new one would be."""
        return self.process.poll() is None and self.facts == _facts(environment)

    def fork(self, args: Sequence[str], *, tells: bool) -> Child:
        """Ask for a child.  It `tells` if its stdout is a pipe.  This waits for nothing."""
        message = json.dumps(list(args)).encode()
        if len(message) > MOST:
            raise OSError(f"the jobs of a helper take {len(message)} bytes, and {MOST} at most")
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:

            def pipe(reads: bool) -> tuple[int, int]:
                """Return the child's end, which it `reads`, and this process's."""
                their, our = os.pipe() if reads else os.pipe()[::-1]
                theirs.callback(os.close, their)
                ours.callback(os.close, our)
                return their, our

            (their_stdin, stdin), (their_life, life) = pipe(True), pipe(False)
            if tells:
                their_stdout, stdout = pipe(False)
            else:
                their_stdout, stdout = os.open(os.devnull, os.O_WRONLY), None
                theirs.callback(os.close, their_stdout)
            ends = [their_stdin, their_stdout, their_life]
            socket.send_fds(self.socket, [message], ends, socket.MSG_DONTWAIT)
            ours.pop_all()
            return Child(stdin, stdout, life)

    def stop(self) -> None:
        """End the process, which kills its children first: their processor time is this
        process's, as that of all children that were waited for.
        """
        self.socket.close()
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def leave(self) -> None:
        """Let the process end when its children have ended."""
        self.socket.close()

    def forget(self) -> None:
        """Close this process's end: it was forked, and the zygote is its parent's."""
        self.process.returncode = 0  # or it would be waited for
        self.socket.close()


def _facts(environment: dict[str, str]) -> object:
    """Return all that a new process takes over from this one."""
    folder = ""
    with contextlib.suppress(OSError):
        folder = os.getcwd()
    return processes.own(_MAIN), environment, folder


# --- in the zygote --------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> None:
    """Fork children for a program, until it ends."""
    call, program = arguments[0], int(arguments[1])
    parent = os.getppid()
    module, _, name = call.partition(":")
    work: Callable[[list[str]], object] = getattr(importlib.import_module(module), name)
    record.own.parent = program
    native.ready()
    gc.freeze()  # or a child's collections would write to all of its memory, which is a copy then
    record.began(jit.cache_dir())
    _Server(work, parent).run()


class _Server:
    """The children of this process, and the ends of their lives that it writes."""

    def __init__(self, work: Callable[[list[str]], object], parent: int) -> None:
        self.work = work
        self.parent = parent
        self.socket = socket.socket(fileno=os.dup(0))
        self.lives: dict[int, int] = {}
        self.ended, self.wake = os.pipe()
        for end in (self.ended, self.wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self.wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._stop)

    def run(self) -> None:
        """Serve.  A program that asks for no more is waited for, until its children have ended."""
        waiting = select.poll()
        waiting.register(self.socket, select.POLLIN)
        waiting.register(self.ended, select.POLLIN)
        is_served, idle = True, time.monotonic()
        while os.getppid() == self.parent:
            ready = [fd for fd, _ in waiting.poll(GLANCE_S * 1000)]
            if self.ended in ready:
                os.read(self.ended, 1 << 12)
            self._reap()
            if is_served and self.socket.fileno() in ready:
                is_served = self._serve()
                if not is_served:
                    waiting.unregister(self.socket)
            if self.lives:
                idle = time.monotonic()
            elif not is_served or time.monotonic() - idle > IDLE_S:
                return

    def _serve(self) -> bool:
        """Fork a child.  Return False if the program asks for no more."""
        message, ends, *_ = socket.recv_fds(self.socket, MOST, ENDS)
        if not message:
            return False
        try:
            args = json.loads(message)
            pid = processes.forked(functools.partial(self._in_child, args, ends))
        except OSError:  # no more processes: the end of the child's life tells it
            os.close(ends[2])
        else:
            self.lives[pid] = ends[2]
            self._tell(pid, pid)
        for end in ends[:2]:
            os.close(end)
        return True

    def _reap(self) -> None:
        for pid in list(self.lives):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._tell(pid, os.waitstatus_to_exitcode(status))
                os.close(self.lives.pop(pid))

    def _tell(self, pid: int, number: int) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more
            os.write(self.lives[pid], f"{number}\n".encode())

    def _stop(self, *_: object) -> None:
        for pid in self.lives:
            os.kill(pid, signal.SIGKILL)
        for pid in self.lives:
            os.waitpid(pid, 0)
        os._exit(0)

    def _in_child(self, args: list[str], ends: list[int]) -> object:
        """Do the work of a child."""
        zygote = os.getppid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        self.socket.close()
        for end in (self.ended, self.wake, *self.lives.values()):
            os.close(end)
        _end_with(zygote)
        for end, place in zip(ends[:2], (0, 1), strict=True):
            os.dup2(end, place)
            os.close(end)
        os.set_inheritable(ends[2], True)  # the life goes on in a process that takes its place
        return self.work(args)


def _end_with(parent: int) -> None:
    """Have the system kill this process when its parent, which is process `parent`, ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)
