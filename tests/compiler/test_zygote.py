"""The process that helpers are forked from."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowvm.compiler import helpers, zygote

WORK = """
import os, sys
def work(args):
    if args == ["exit"]:
        return 7
    print(os.getppid(), os.getpgrp(), len(os.listdir("/proc/self/task")), flush=True)
    sys.stdin.read()
    print(*args, flush=True)
"""


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[zygote.Zygote]:
    (tmp_path / "forked_work.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path)
    process = zygote.Zygote("forked_work:work", dict(os.environ))
    yield process
    process.stop()


def _line(child: zygote.Child) -> list[str]:
    assert child.stdout is not None
    return child.stdout.readline().decode().split()


def test_children_live_until_they_or_their_zygote_end(one: zygote.Zygote) -> None:
    first, second = (one.fork(["done", name], tells=True) for name in "ab")
    for child in (first, second):
        parent, group, threads = map(int, _line(child))
        assert parent == one.process.pid
        assert group != os.getpgrp(), "Ctrl-C would be a child's, too"
        assert threads == 1
        assert child.poll() is None
        assert Path(f"/proc/{child.pid}").exists()
    first.stdin.close()  # of which no other child has a copy
    assert _line(first) == ["done", "a"]
    assert first.wait(60) == 0
    assert one.fork(["exit"], tells=False).wait(60) == 7
    assert second.poll() is None
    one.process.kill()
    assert second.wait(60) == -signal.SIGKILL


def test_a_child_that_never_began_has_failed(one: zygote.Zygote) -> None:
    child = one.fork([], tells=False)
    one.process.kill()
    assert child.wait(60) == 1
    one.process.wait(60)
    assert not one.serves(dict(os.environ))


def test_a_helper_has_the_environment_of_its_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that is forked later, from another zygote, too."""
    (tmp_path / "noted_environment.py").write_text(
        "import os\n"
        "from pathlib import Path\n"
        "def note(path): Path(path).write_text(f\"{os.getppid()} {os.environ.get('NOTED')}\")\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    notes = []
    for name, value in (("a", "1"), ("b", "1"), ("c", "2")):
        monkeypatch.setenv("NOTED", value)
        assert helpers.Helper([f"noted_environment:note:{tmp_path / name}"]).process.wait(60) == 0
        notes.append((tmp_path / name).read_text().split())
    assert [value for _, value in notes] == ["1", "1", "2"]
    assert notes[0] == notes[1]
    assert notes[1][0] != notes[2][0]
    helpers.bury()
