"""Helpers for tests of the VM that runs: streams, processes of their own, and looking without
waiting."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

from flowvm.vm.callers.hot import CALL_STREAM
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL

PATIENCE_S = 240.0  # less than a test may take, so that it is said what did not come
_streams = [CALL_STREAM]


def streams(count: int) -> list[int]:
    """`count` streams, the default one first; made once a process, since a stream stays."""
    while len(_streams) < count:
        _streams.append(engine.streams.new(f"test{len(_streams)}"))
    return _streams[:count]


def word(index: int) -> int:
    """A control word of the VM, now."""
    return int(engine.words[index])


def until(condition: Any, what: str) -> None:
    """Yield until `condition()`: for what no waiter reports, such as that something is stuck."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        os.sched_yield()


class Background(threading.Thread):
    """A thread whose result or exception `result()` gives; one that hangs fails its test."""

    def __init__(self, function: Any, *args: Any) -> None:
        super().__init__(daemon=True)
        self.function, self.args = function, args
        self.value: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.value = self.function(*self.args)
        except BaseException as error:
            self.error = error

    def result(self) -> Any:
        self.join(PATIENCE_S)
        assert not self.is_alive(), f"{self.function} does not return"
        if self.error is not None:
            raise self.error
        return self.value


# a process started in the background of a shell ignores SIGINT, and so do its children
PRELUDE = """
import os, signal, sys, threading, time, warnings
# Python 3.12 and later warn of every fork beside threads; that a child works is what is tested
warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
signal.signal(signal.SIGINT, signal.default_int_handler)
import numpy as np
import flowvm
from flowvm.vm.machine.words import CTL, OPERAND, RING, STO, STR
from flowvm.vm.engine import engine as engine_module
from flowvm.vm.callers.hot import hot
from flowvm.vm.engine.engine import engine
import kernels
from kernels import *
"""


def script(body: str, check: bool = True, **env: str) -> Any:
    """Run `body` after PRELUDE in a Python of its own."""
    source = PRELUDE + textwrap.dedent(body)
    variables = {**os.environ, **{f"FLOWVM_{k.upper()}": v for k, v in env.items()}}
    variables["PYTHONPATH"] = str(Path(__file__).parent)
    process: Any = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, env=variables
    )
    if check:
        assert process.returncode == 0, (
            f"exit {process.returncode}\n{process.stdout}\n{process.stderr}"
        )
    return process


def in_flight() -> int:
    """Instructions received and not released yet."""
    return word(CTL.RECEIVED) - word(CTL.HEAD)
