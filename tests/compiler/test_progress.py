"""The line that a terminal shows while kernels are compiled."""

from __future__ import annotations

import io
import sys

from flowvm.compiler import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def open_terminal(monkeypatch, patience):
    """What stderr is from now on; the test is begun, for before it pytest changes stderr itself."""
    made = Terminal()
    monkeypatch.setattr(progress, "PATIENCE", patience)
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr(sys, "__stderr__", made)
    monkeypatch.setattr(progress, "_burst", progress._Burst())
    monkeypatch.setattr(progress, "BURST_ENDS_AFTER", 1e9)
    return made


def compile_two():
    for name in ("one", "two"):
        with progress.compiling(name):
            pass


def test_a_short_burst_shows_nothing(monkeypatch):
    terminal = open_terminal(monkeypatch, 1.0)
    compile_two()
    assert terminal.getvalue() == ""


def test_a_long_burst_counts_and_takes_its_line_back(monkeypatch):
    terminal = open_terminal(monkeypatch, -1.0)
    compile_two()
    assert "first run only) ... 1\r\x1b[2K" in terminal.getvalue()
    assert "\n" not in terminal.getvalue()


def test_who_listens_shows_a_line_of_its_own(monkeypatch):
    terminal = open_terminal(monkeypatch, -1.0)
    names = []
    with progress.telling(names.append):
        compile_two()
    assert names == ["one", "two"]
    assert terminal.getvalue() == ""
    compile_two()
    assert terminal.getvalue() != ""


def test_who_has_replaced_stderr_owns_its_lines(monkeypatch):
    terminal = open_terminal(monkeypatch, -1.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    compile_two()
    assert terminal.getvalue() == sys.stderr.getvalue() == ""
