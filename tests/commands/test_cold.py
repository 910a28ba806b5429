"""`flowvm doctor --cold`: a program in a process of its own with an empty cache."""

import pytest

from flowvm.commands import cold
from flowvm.compiler import waterfall
from flowvm.errors import ArgumentError


def test_a_script_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ArgumentError, match=r"there is no script .*missing\.py"):
        cold.main(str(tmp_path / "missing.py"))
    with pytest.raises(ArgumentError, match="give the path of a file"):
        cold.main(str(tmp_path))


def test_a_script_runs_with_a_cache_of_its_own(tmp_path, capfd, monkeypatch):
    script = tmp_path / "program.py"
    script.write_text(
        "import os, sys\n"
        "print('cache of', len(os.listdir(os.environ['FLOWVM_CACHE_DIR'])))\n"
        "sys.exit(3)\n"
    )
    assert cold.main(str(script)) == 3
    out = capfd.readouterr().out
    assert "cache of 0" in out
    assert "program.py, with an empty cache:" in " ".join(out.split())
    assert "0 functions compiled" in " ".join(out.split())


def test_without_a_script_the_demo_takes_its_step(monkeypatch, capsys):
    started = []

    class Process:
        pid = 7

        def wait(self):
            return 0

    def start(command, env):
        started.append((command, env["FLOWVM_CACHE_DIR"]))
        return Process()

    monkeypatch.setattr(cold.processes, "start", start)
    monkeypatch.setattr(waterfall, "tables", lambda rows: [])
    assert cold.main("") == 0
    ((command, _),) = started
    assert any("first_step" in str(part) for part in command)
    assert "the first training step of the demo" in " ".join(capsys.readouterr().out.split())
