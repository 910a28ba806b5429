"""`flowvm run`, `view`, `why`, `diff`, `export`: their output, and their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flowvm.commands.cli import main

SCRIPT = """
import sys
import flowvm as flow
x = flow.ones(16, 16)
for _ in range(3):
    x = (x @ x) / 16
print("sum", x.sum().item(), sys.argv[1:])
if sys.argv[1:] == ["fail"]:
    raise ValueError("planted")
if sys.argv[1:] == ["exit"]:
    sys.exit(3)
"""


def flowvm(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flowvm", *args], cwd=folder, capture_output=True, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    (folder / "script.py").write_text(SCRIPT)
    process = flowvm(folder, "run", "-o", "a.flowtrace", "script.py", "some", "--flags")
    assert process.returncode == 0, process.stderr
    assert process.stdout == "sum 256.0 ['some', '--flags']\n"  # the script's own, and nothing else
    assert "bound by" in process.stderr  # of the rows only those that took any share of the time
    return folder


def test_a_script_s_error_and_exit_code_are_kept(folder):
    failed = flowvm(folder, "run", "script.py", "fail")
    assert failed.returncode == 1
    assert "ValueError: planted" in failed.stderr
    assert "runpy" not in failed.stderr
    assert "bound by" in failed.stderr, "what was recorded until then is shown"
    assert flowvm(folder, "run", "script.py", "exit").returncode == 3


def test_a_module_and_json(folder):
    process = flowvm(folder, "run", "--json", "-m", "script")
    assert process.returncode == 0, process.stderr
    data = json.loads(process.stdout.splitlines()[-1])
    assert data["instructions"] > 5
    assert "matmul" in [row["name"] for row in data["rows"]]


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ((), "bound by"),
        (("--by", "line"), "script.py:6"),
        (("--timeline",), "python"),
        (("--dag",), "matmul"),
        (("--critical",), "observed path"),
        (("--memory",), "memory  peak"),
        (("--by", "line", "--sort", "run"), "script.py:7"),
    ],
)
def test_view(folder, capsys, args, shown):
    assert main(["view", str(folder / "a.flowtrace"), *args]) == 0
    assert shown in capsys.readouterr().out
    assert main(["view", str(folder / "a.flowtrace"), *args, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_query(folder, capsys):
    run = str(folder / "a.flowtrace")
    assert main(["query", run, "op == 'matmul' and run >= 0"]) == 0
    assert capsys.readouterr().out.startswith(" 3 of ")
    assert main(["query", run, "op == 'matmul'", "--limit", "1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["count"], len(data["rows"]), data["rows"][0]["op"]) == (3, 1, "matmul")
    assert main(["query", run, "op == 'matmul' and wat.dep > 0.1"]) == 1
    assert "there is no column 'wat.dep'" in capsys.readouterr().err


def test_files_that_are_no_runs(folder, tmp_path, capsys):
    whole = (folder / "a.flowtrace").read_bytes()
    middle = len(whole) // 2
    for name, data in (
        ("empty", b""),
        ("short", whole[:middle]),
        ("garbled", whole[:middle] + bytes(x ^ 255 for x in whole[middle : middle + 99])
         + whole[middle + 99 :]),
        ("text", b"not a run"),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(data)
        for verb, *more in (("view",), ("why", "1"), ("query", "run > 1"), ("export", "a.html")):
            assert main([verb, str(tmp_path / name), *more]) == 1
            error = capsys.readouterr().err
            assert "is not a saved run" in error
            assert error.count("\n") == 1


def test_why_diff_and_export(folder, capsys):
    run = str(folder / "a.flowtrace")
    assert main(["why", run, "matmul"]) == 0
    number = capsys.readouterr().out.split()[0]
    assert main(["why", run, number]) == 0
    assert capsys.readouterr().out.startswith(number)
    assert main(["diff", run, run, "--by", "line"]) == 0
    assert "1.00x" in capsys.readouterr().out
    for name in ("a.json", "a.json.gz"):
        assert main(["export", run, str(folder / name), "--check"]) == 0
        assert "no problems" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("view", "nothing.flowtrace"), "No such file"),
        (("view", "script.py"), "is not a saved run"),
        (("why", "a.flowtrace", "99999"), "#99999 is not in this run"),
        (("export", "a.flowtrace", "a.xyz"), "the ending says the format"),
        (("export", "a.flowtrace", "a.svg", "--check"), "--check is for traces"),
        (("view", "a.flowtrace", "--by", "hour"), "op, line, module, stream"),
        (("view", "a.flowtrace", "--around", "1" + 20 * "0"), "is not in this run"),
    ],
)
def test_mistakes_are_said_in_a_line(folder, capsys, args, message):
    paths = [str(folder / a) if "." in a else a for a in args]
    assert main(paths) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
