"""The counts of processor time that Linux keeps for each thread."""

from __future__ import annotations

import threading
import time

import pytest

from flowvm.vm.watch import cores


@pytest.mark.parametrize("text", [
    b"\0" * 64,  # a cell of which nothing was read
    b"\0" * 8 + b"501 8559543393 44058\n",  # of which an earlier wait was
    b"501\n", b"x y z\n", b"-1 2 3\n", b"\n", b"",
])  # fmt: skip
def test_text_without_counts(text, monkeypatch):
    """No `int` fails: a Ctrl-C that came while it words its error would be lost."""

    def checked(word):
        assert word.isdigit(), word
        return int(word)

    monkeypatch.setattr(cores, "int", checked, raising=False)
    assert cores._counts(text) == (0, 0)


def test_the_counts_of_this_thread():
    used, _ = cores.scheduled(threading.get_native_id())
    until = time.thread_time_ns() + 20_000_000
    while time.thread_time_ns() < until:
        sum(range(1000))
    more, ready = cores.scheduled(threading.get_native_id())
    assert more - used >= 10_000_000
    assert ready >= 0
    assert cores._counts(b"12 34 5\n") == (12, 34)
    assert cores.scheduled(2**30) == (0, 0)
