"""The progress line of a terminal while kernels are compiled, and the remembered times."""

from __future__ import annotations

import io
import json
import sys

import pytest

import flowvm as flow
from flowvm.compiler import jit, progress, record, seconds
from flowvm.eager.declaration import Kernel, Signature
from flowvm.eager.interpreter import Operator, lowered


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(type(flow.config), "cache_dir", tmp_path / "cache", raising=False)
    monkeypatch.delitem(vars(flow.config), "cache_dir")
    return tmp_path / "cache"


def open_terminal(monkeypatch, *, prompt=False):
    """Replace stderr by a terminal during a test; before it pytest changes stderr itself."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "__stderr__", terminal)
    monkeypatch.setattr(progress, "_burst", progress._Burst())
    monkeypatch.setattr(progress, "BURST_ENDS_AFTER", 1e9)
    if prompt:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    else:
        monkeypatch.delattr(sys, "ps1", raising=False)
    return terminal


def known_to_take(monkeypatch, **kernels):
    monkeypatch.setattr(seconds, "SECONDS", kernels)


def compilation(name, took):
    """The record of a kernel that took so many seconds."""
    return record.Compilation(name, "", 1, 0, "", "t", 0.0, took, 0.0, {record.FRONT: took})


def compile_all(*names):
    for name in names:
        with progress.compiling(name):
            pass


def test_a_prompt_says_what_is_made_and_for_how_long_and_a_script_waits_for_two_seconds(
    monkeypatch,
):
    known_to_take(monkeypatch, one=0.1, two=1.5)
    compile_all("one", "two")
    terminal = open_terminal(monkeypatch)
    compile_all("one", "two")
    assert terminal.getvalue() == ""
    terminal = open_terminal(monkeypatch, prompt=True)
    compile_all("one")
    assert terminal.getvalue() == ""
    compile_all("two")
    output = terminal.getvalue()
    assert output.startswith("flowvm: making two, about 1.5 s; 1 kernel made in 0.0 s, once on")
    assert output.count("\n") == 1


def test_what_nobody_made_before_has_no_time(monkeypatch):
    terminal = open_terminal(monkeypatch, prompt=True)
    compile_all("new")
    assert terminal.getvalue() == "flowvm: making new; once on this machine\n"


def test_lines_become_fewer_and_take_nothing_back(monkeypatch):
    known_to_take(monkeypatch, long=3.0, longer=5.0, longest=7.0)
    terminal = open_terminal(monkeypatch)
    compile_all("long", "longer", "longest", "longer", "long")
    assert terminal.getvalue().count("\n") == 2  # for 3 and for 7
    assert "\r" not in terminal.getvalue()
    assert "\x1b" not in terminal.getvalue()


def test_a_kernel_is_told_by_its_op_and_dtypes(monkeypatch):
    terminal = open_terminal(monkeypatch, prompt=True)
    with progress.making("softmax"):
        compile_all("rows.<locals>.body, float32 int64 -> float32")
    compile_all("x + y, int8 int8 -> int8")
    assert "making softmax (float32, int64);" in terminal.getvalue()
    assert progress.shown("x + y, int8 int8 -> int8") == "x + y (int8)"
    assert progress.shown("add: walk") == "add"
    assert progress.shown("walk") == "walk"
    assert progress.shown("step_: x = max(x, 2 * y)\ny = x + 1") == "step_"


def test_who_listens_shows_a_line_of_its_own(monkeypatch):
    terminal = open_terminal(monkeypatch, prompt=True)
    names = []
    with progress.telling(names.append):
        compile_all("one", "two")
    assert names == ["one", "two"]
    assert terminal.getvalue() == ""
    compile_all("three")
    assert terminal.getvalue() != ""


def test_who_has_replaced_stderr_owns_its_lines(monkeypatch):
    terminal = open_terminal(monkeypatch, prompt=True)
    monkeypatch.setattr(sys, "stderr", Terminal())
    compile_all("one", "two")
    assert terminal.getvalue() == sys.stderr.getvalue() == ""


# --- how long it takes ----------------------------------------------------------------------------


def test_what_this_machine_measured_comes_first_and_scales_what_others_did(monkeypatch):
    known_to_take(monkeypatch, one=1.0, two=2.0, three=4.0)
    assert progress.estimate("three") == 4.0
    for name, took in (("one", 0.5), ("two", 1.0)):
        record.append(flow.config.cache_dir, compilation(name, took))
    assert progress.estimate("one") == 0.5
    assert progress.estimate("three") == 2.0
    assert progress.estimate("four") is None
    assert progress.estimate("an op: three") == 2.0, "what several ops need is made for one of them"


def test_what_is_remembered_is_bounded_and_the_oldest_goes(monkeypatch, own_cache):
    line = len(json.dumps(compilation("a", 1.0)._asdict())) + 1
    monkeypatch.setattr(record, "MOST_BYTES", 3 * line + 1)
    for name in "abcdefg":  # the seventh line is one more than twice as many
        record.append(own_cache, compilation(name, 1.0))
    record.append(own_cache, compilation("too short to matter", 0.001))
    assert [*progress.measured()] == ["e", "f", "g"]
    assert [p.name for p in own_cache.iterdir()] == [record.FILE]


@pytest.mark.parametrize("text", ["", "{\n", "[1]\n", '{"a": "b"}\n'])
def test_a_damaged_file_is_as_none(own_cache, text):
    own_cache.mkdir(mode=0o700)
    (own_cache / record.FILE).write_text(text)
    assert progress.measured() == {}
    record.append(own_cache, compilation("a", 1.0))
    assert progress.measured() == {"a": 1.0}


def test_where_nothing_can_be_written_nothing_is_remembered(own_cache):
    own_cache.write_text("a file in its place")
    record.append(own_cache, compilation("a", 1.0))
    assert progress.measured() == {}


def halved(x):
    return x // 2


def test_what_is_made_for_an_op_is_remembered_by_its_name(monkeypatch):
    def lower(metas, attrs):
        jit.native(halved, "int64(int64)", facts=object())
        raise KeyError

    monkeypatch.setattr(progress, "WORTH_MEASURING", 0.0)
    op = Operator("halves", Signature(()), Kernel(lower, everywhere=True))
    with pytest.raises(KeyError):
        lowered(op, (), ())
    assert [*progress.measured()] == ["halves: halved"]
    assert not any(work.op == "halves" for work in progress._burst.works)


def test_ops_of_two_threads_leave_nothing():
    """The first to begin ends first: the name of neither stays."""
    before = [*progress._burst.works]
    one, other = progress.making("one"), progress.making("other")
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    with progress.compiling("kernel") as name:
        assert name == "other: kernel"
    other.__exit__(None, None, None)
    assert progress._burst.works == before


def test_the_table_is_of_seconds():
    assert seconds.SECONDS
    assert all(0 < took < 20 for took in seconds.SECONDS.values())
