"""`%load_ext flowvm`, in IPython's own shell."""

from __future__ import annotations

import json
import os
import sys

import pytest

import flowvm as flow

pytest.importorskip("IPython")


@pytest.fixture
def shell():
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(colors="nocolor")
    shell.run_cell("import flowvm as flow\n%load_ext flowvm\nx = flow.ones(8, 8)")
    yield shell
    InteractiveShell.clear_instance()


def test_a_line_shows_what_bound_it_and_its_value(shell, capsys):
    result = shell.run_cell("%flow (x @ x).relu().sum()")
    assert result.success
    text = capsys.readouterr().out
    assert text.startswith("flow.profiler  ")
    assert "bound by" in text
    assert "512" in text
    assert "relu" in {row.name for row in shell.user_ns["p"].table("op")}
    assert shell.user_ns["p"].summary().instructions >= 3


def test_a_cell_has_screens_a_file_and_the_users_names(shell, capsys, tmp_path):
    out = tmp_path / "a.json"
    cell = (
        f"%%flow --graph --memory --timeline --json {out}\ny = x @ x\nz = y.relu()\nz.sum().item()"
    )
    assert shell.run_cell(cell).success
    text = capsys.readouterr().out
    for expected in ("bound by", "lanes 0=cpu", "peak ", "1 column", "512.0", "In["):
        assert expected in text, expected
    assert json.loads(out.read_text())["instructions"] >= 4
    assert flow.equal(shell.user_ns["z"], flow.full((8, 8), 8.0))
    lines = shell.user_ns["p"].run.lines
    assert {line.rsplit(":", 1)[1] for line in lines if "In[" in line} == {"1", "2", "3"}


def test_lines_of_cells_are_named_by_their_number(shell, capsys):
    """Wherever a line is shown: in profiles, in notes of errors, in graphs."""
    shell.run_cell("def f(x):\n    return x.relu() * 2", store_history=True)
    cell = "with flow.profiler.profile() as p:\n    f(x).sum().item()"
    assert shell.run_cell(cell, store_history=True).success
    lines = set(shell.user_ns["p"].run.lines)
    n = shell.execution_count - 1
    assert {f"In[{n - 1}]:2", f"In[{n}]:2"} <= lines, lines
    shell.run_cell("flow.index_select(x, 0, flow.tensor([99])).numpy()", store_history=True)
    assert f"In[{n + 1}]:1" in capsys.readouterr().out
    shell.run_cell("g = flow.compile(f); g(x); print(g)", store_history=True)
    assert f"In[{n - 1}]:2" in capsys.readouterr().out


def test_a_cell_that_raises_raises(shell, capsys):
    result = shell.run_cell("%%flow\nw = x + 1\nraise LookupError('mine')")
    assert isinstance(result.error_in_exec, LookupError)
    assert "w" in shell.user_ns
    assert "bound by" not in capsys.readouterr().out


@pytest.mark.parametrize("mine", ["3", "flow.profiler.last()"])
def test_a_variable_p_of_the_user_is_kept(shell, capsys, mine):
    shell.run_cell(f"p = {mine}")
    before = shell.user_ns["p"]
    shell.run_cell("%flow x + x")
    assert shell.user_ns["p"] is before
    assert "recorded as p1: p is a name of yours" in capsys.readouterr().out
    first = shell.user_ns["p1"]
    assert first.summary().instructions
    shell.run_cell("%flow x * x")  # its own it replaces
    assert shell.user_ns["p1"] is not first
    shell.run_cell("p1 = 7\n")
    shell.run_cell("%flow x * x")
    assert shell.user_ns["p1"] == 7
    assert shell.user_ns["p2"].summary().instructions
    shell.run_cell("del p")
    shell.run_cell("%flow x * x")
    assert shell.user_ns["p"].summary().instructions


def test_colours_where_the_terminal_has_them(shell, capsys, monkeypatch):
    """Colours are at IPython's own prompt and after the magics, unless they are switched off."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def shown():
        shell.run_cell("%flow x + x;")
        magic = capsys.readouterr().out
        shell.run_cell("p.summary()")
        shell.run_cell("p")
        prompt = capsys.readouterr().out
        assert "bound by" in magic
        assert prompt.count("bound by") == 2
        return "\x1b[" in magic, "\x1b[" in prompt

    assert shown() == (False, False)  # colors="nocolor"
    shell.colors = "linux"
    assert shown() == (True, True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown() == (False, False)


def test_a_notebook_gets_html(shell, monkeypatch):
    from flowvm.profiler.front import magics

    shown = []
    monkeypatch.setattr(magics, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", shown.append)
    shell.run_cell("%flow x + x;")
    assert shown[0]._repr_html_().startswith("<pre")


def test_no_value_where_the_cell_ends_with_none(shell, capsys):
    shell.run_cell("%%flow\nq = x + 1;")
    shell.run_cell("%%flow\nx + 1;")
    assert "tensor(" not in capsys.readouterr().out


@pytest.mark.parametrize("cell", ["%%flow --grph\nx", "%%flow --level 7\nx", "%flowtop soon"])
def test_mistakes_are_one_line(shell, capsys, cell):
    assert not shell.run_cell(cell).success
    output = capsys.readouterr()
    assert (output.out + output.err).startswith("UsageError: ")
    assert (output.out + output.err).count("\n") == 1
    assert not cell.startswith("%flowtop") or "give seconds" in output.out + output.err


def test_flowtop_shows_the_screen(shell, capsys):
    assert shell.run_cell("%flowtop 0.05").success
    assert f"pid {os.getpid()}" in capsys.readouterr().out


def test_a_notebook_has_one_display_that_is_updated(monkeypatch):
    import IPython

    from flowvm.profiler.front import live
    from flowvm.profiler.front.watcher import Watcher

    class ZMQInteractiveShell:
        pass

    shown = []
    handle = type("Handle", (), {"update": lambda self, data, raw: shown.append(data)})()

    def display(data, raw, display_id):
        assert display_id is True
        shown.append("first")
        return handle

    monkeypatch.setattr(IPython, "get_ipython", ZMQInteractiveShell)
    monkeypatch.setattr("IPython.display.display", display)
    assert live.in_notebook()
    _, show, _, seconds = live._renderer(0.1)
    assert seconds == 1.0
    view = Watcher().look()
    show(view)
    show(view)
    assert shown[0] == "first"
    assert f"pid {os.getpid()}" in shown[1]["text/plain"]


def test_nothing_of_ipython_is_imported_for_those_who_have_none():
    import subprocess

    code = (
        "import sys, flowvm.profiler; print([n for n in ('IPython', 'rich') if n in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stdout == "[]\n", process.stderr
