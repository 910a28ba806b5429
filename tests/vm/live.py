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

from flowvm.vm import layout as w
from flowvm.vm.engine import CALL_STREAM, engine

_streams = [CALL_STREAM]


def streams(count: int) -> list[int]:
    """`count` streams, the default one first; made once a process, since a stream stays."""
    while len(_streams) < count:
        _streams.append(engine.new_stream(f"test{len(_streams)}"))
    return _streams[:count]


def word(index: int) -> int:
    """A control word of the VM, now."""
    return int(engine.words[index])


def until(condition: Any, what: str, seconds: float = 30.0) -> None:
    """Yield until `condition()`: for what no waiter reports, such as that something is stuck."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
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

    def result(self, seconds: float = 60.0) -> Any:
        self.join(seconds)
        assert not self.is_alive(), f"{self.function} does not return"
        if self.error is not None:
            raise self.error
        return self.value


# a process started in the background of a shell ignores SIGINT, and so do its children
PRELUDE = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import numpy as np
import flowvm
from flowvm.vm import layout as w
from flowvm.vm import engine as engine_module
from flowvm.vm.engine import engine, hot
import kernels
from kernels import *
"""


def script(body: str, timeout: float = 60.0, check: bool = True, **env: str) -> Any:
    """Run `body` after PRELUDE in a Python of its own; `.seconds` is how long it took."""
    source = PRELUDE + textwrap.dedent(body)
    variables = {**os.environ, **{f"FLOWVM_{k.upper()}": v for k, v in env.items()}}
    variables["PYTHONPATH"] = str(Path(__file__).parent)
    start = time.monotonic()
    done: Any = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=variables,
    )
    done.seconds = time.monotonic() - start
    if check:
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def lively() -> int:
    """Instructions received and not released yet."""
    return word(w.RECEIVED) - word(w.HEAD)
