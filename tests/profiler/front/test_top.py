"""`flowvm top`: its screen in a terminal, its lines, its JSON, and its refusals."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time

import pytest

import flowvm as flow
from flowvm.commands.cli import main
from flowvm.profiler.front import top
from flowvm.vm.engine.engine import engine
from tests.vm.kernels import Gate, tensor, update, wait_for_gate
from tests.vm.live import until

TOP = [sys.executable, "-m", "flowvm", "top", str(os.getpid())]


@pytest.fixture(autouse=True)
def same_priority(monkeypatch):
    monkeypatch.setattr(os, "nice", lambda by: 0)


@pytest.fixture
def stuck():
    flow.vm.sync()
    x, y = tensor([1]), tensor([2])
    with Gate() as gate:
        wait_for_gate(x, x, gate.address)
        update(y, x, 1)
        until(lambda: gate.is_reached and len(flow.vm.pending()) == 2, "both are received")
        yield gate
    engine.waits.wait_idle()


def test_once(stuck, capsys):
    assert main(["top", str(os.getpid()), "--once", "--interval", "0.05"]) == 0
    text = capsys.readouterr().out
    assert f"pid {os.getpid()}" in text.split("\n")[0]
    assert "wait_for_gate" in text
    assert "in flight 2/" in text
    assert main(["top", str(os.getpid()), "--once", "--json", "--interval", "0.05"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["in_flight"] == 2
    assert data["streams"][0]["running"].endswith("wait_for_gate")


def test_dump(stuck, capsys):
    assert main(["top", str(os.getpid()), "--dump"]) == 0
    assert "running on cpu" in capsys.readouterr().out


def test_lines_and_objects_for_a_log(capsys, monkeypatch):
    tensor([1]).item()
    naps = []

    sleep, main_thread = time.sleep, threading.main_thread()

    def nap(seconds):
        if threading.current_thread() is not main_thread:
            sleep(seconds)  # one of flowvm's own threads
            return
        naps.append(seconds)
        if len(naps) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(top.time, "sleep", nap)
    assert main(["top", str(os.getpid())]) == 130
    assert naps == [30.0] * 4
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"flowvm pid {os.getpid()} | ") for line in lines)
    naps.clear()
    assert main(["top", str(os.getpid()), "--json", "--interval", "2"]) == 130
    assert naps == [2.0] * 4
    assert [json.loads(x)["pid"] for x in capsys.readouterr().out.splitlines()] == [os.getpid()] * 3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("4194304",), "there is no process 4194304"),
        (("--hz", "0"), "--hz is 0.1 to 10"),
        (("--interval", "-1"), "--interval more than 0"),
    ],
)
def test_mistakes_are_said_in_a_line(capsys, args, message):
    assert main(["top", *args]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_without_a_number_there_must_be_one_process(capsys, monkeypatch):
    monkeypatch.setattr(top.window, "shown", list)
    assert main(["top", "--once"]) == 1
    assert "none of your processes shows a VM" in capsys.readouterr().err
    monkeypatch.setattr(top.window, "shown", lambda: [os.getpid(), 1 << 22])
    assert main(["top", "--once"]) == 1
    error = capsys.readouterr().err
    assert f"several processes show a VM, name one: {os.getpid()} (" in error
    assert "4194304 (gone)" in error
    monkeypatch.setattr(top.window, "shown", lambda: [os.getpid()])
    tensor([1]).item()
    assert main(["top", "--once", "--interval", "0.01"]) == 0


class Terminal:
    """`flowvm top` in a terminal of its own."""

    def __init__(self, folder, **env):
        self.near, far = pty.openpty()
        self.text = ""
        size = {"COLUMNS": "120", "LINES": "120"}  # with rows for the streams of other tests, too
        variables = {**os.environ, "TERM": "xterm", **size, **env}
        self.process = subprocess.Popen(
            [*TOP, "--hz", "10"], stdin=far, stdout=far, stderr=far, cwd=folder, env=variables
        )
        os.close(far)

    def until(self, what):
        """Read until the program prints `what`."""
        begun, deadline = len(self.text), time.monotonic() + 200
        while what not in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.text[begun:]):
            assert time.monotonic() < deadline, self.text[begun:]
            if select.select([self.near], [], [], 1.0)[0]:
                self.text += os.read(self.near, 1 << 16).decode(errors="replace")

    def press(self, key):
        os.write(self.near, key.encode())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        os.close(self.near)


def test_a_terminal_has_keys(stuck, tmp_path):
    with Terminal(tmp_path) as screen:
        screen.until("wait_for_gate")
        screen.press("s")
        screen.until("by util")
        screen.press("w")
        screen.until("instructions in flight")
        screen.press("m")
        screen.until("  peak ")  # of whichever memory, for other tests may have used a device
        screen.press("g")
        screen.until("the last ")
        screen.until("lanes 0=")
        screen.press("d")
        screen.until("instructions written: flowvm view flowvm-")
        screen.press("p")
        screen.until("PAUSED")
        screen.press("q")
        assert screen.process.wait(200) == 0
    (written,) = tmp_path.glob("*.flowtrace")
    assert "wait_for_gate" in flow.profiler.load(written).run.names
    assert "\x1b[3" in screen.text  # colours


def test_a_plain_terminal(stuck, tmp_path):
    with Terminal(tmp_path, NO_COLOR="1", PYTHONIOENCODING="ascii") as screen:
        screen.until("wait_for_gate")
        screen.press("q")
        assert screen.process.wait(200) == 0
    assert screen.text.isascii()
    assert "\x1b[32m" not in screen.text
