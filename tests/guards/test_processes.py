"""Processes that flowvm starts: one place does, with this interpreter's flags and a safe path."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys

import pytest

from flowvm.guards import processes
from tests.house.test_layout import FILES

# Every file that starts a process or names what does, and why it is not `flowvm.guards.processes`.
ELSEWHERE = {
    "flowvm.commands.rank": "run as a file under -I -S: it imports nothing of flowvm",
    "flowvm.commands.warmup": "a pool of multiprocessing's, which has this interpreter's flags",
    "flowvm.multiprocessing": "the user's function, in the processes of multiprocessing",
    "flowvm.utils.data.pool": "the user's dataset, in the processes of multiprocessing",
    "flowvm.commands.demo": "prints a command for the user",
    "flowvm.commands.launch": "looks for mpiexec beside this Python",
    "flowvm.utils.data.dataloader": "its pools are of flowvm.utils.data.pool",
}
CONSTANTS = {"PIPE", "DEVNULL", "STDOUT", "TimeoutExpired", "CalledProcessError", "Popen"}
STARTING = {"Process", "ProcessPoolExecutor", "Pool", "get_context", "create_subprocess_exec",
            "create_subprocess_shell", "executable"}  # fmt: skip
OF_OS = ("exec", "spawn", "posix_spawn", "fork", "system", "popen")
WORDS = re.compile("|".join({*STARTING, *(rf"os\.{name}" for name in OF_OS), "subprocess", "pty"}))


def starts(tree):
    """Expressions of a file that start a process."""
    hints = {id(n) for node in ast.walk(tree) for hint in (getattr(node, "annotation", None),
             getattr(node, "returns", None)) if hint for n in ast.walk(hint)}  # fmt: skip
    for node in ast.walk(tree):
        if id(node) in hints:
            continue
        if isinstance(node, ast.ImportFrom) and node.module in ("subprocess", "pty"):
            yield ast.unparse(node)
        if not isinstance(node, ast.Attribute):
            if isinstance(node, ast.Name) and node.id in STARTING - {"executable"}:
                yield node.id
            continue
        owner, name = ast.unparse(node.value), node.attr
        if (
            (owner == "subprocess" and name not in CONSTANTS - {"Popen"})
            or (owner in ("os", "pty") and name.startswith(OF_OS))
            or (name in STARTING and (name != "executable" or owner == "sys"))
        ):
            yield f"{owner}.{name}"


def test_one_place_starts_processes():
    texts = {module: path.read_text() for module, path in FILES.items()}
    names_of = {m: list(starts(ast.parse(text))) for m, text in texts.items() if WORDS.search(text)}
    names_of = {module: names for module, names in names_of.items() if names}
    assert names_of.pop("flowvm.guards.processes")
    assert set(names_of) == set(ELSEWHERE), names_of


@pytest.mark.parametrize(
    "text",
    ["import subprocess\nsubprocess.run([])", "from subprocess import run", "import os\nos.fork()",
     "import os\nos.execv('', [])", "context.Process()", "import sys\nrun(sys.executable)"],
)  # fmt: skip
def test_a_new_place_is_seen(text):
    assert list(starts(ast.parse(text)))


# --- what a process of flowvm's own has -------------------------------------------------------

FLAGS = ("isolated", "ignore_environment", "no_user_site", "safe_path", "optimize", "no_site",
         "dont_write_bytecode", "bytes_warning", "dev_mode", "utf8_mode", "warnings")  # fmt: skip
ASKING = f"""
import json, subprocess, sys
from flowvm.guards import processes
code = "import sys, json; sys.argv"
def told(flags):
    return [getattr(sys.flags, f, None) for f in {FLAGS[:-1]!r}] + [sys.warnoptions]
if __name__ == "__main__":
    command = processes.program("-c", {{code!r}})
    there = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    print(json.dumps([told(sys.flags), there]))
"""
TOLD = f"""
import sys, json
print(json.dumps([getattr(sys.flags, f, None) for f in {FLAGS[:-1]!r}] + [sys.warnoptions]))
"""


@pytest.mark.parametrize(
    "args",
    [[], ["-I"], ["-E"], ["-s", "-P"], ["-OO", "-B"], ["-X", "dev", "-X", "utf8=0"],
     ["-W", "error::ImportWarning", "-b"]],
    ids=" ".join,
)  # fmt: skip
def test_a_process_has_the_flags_of_this_one(args):
    text = ASKING.replace("{code!r}", repr(TOLD))
    process = subprocess.run([sys.executable, *args, "-c", text], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    own, theirs = json.loads(process.stdout)
    assert own == theirs


@pytest.mark.parametrize("args", [[], ["-I"]], ids=["plain", "isolated"])
def test_a_process_of_flowvms_own_takes_nothing_from_the_current_folder(tmp_path, args):
    for name in ("flowvm", "json", "importlib", "multiprocessing", "llvmlite", "numba"):
        (tmp_path / name).mkdir()
        for file in ("__init__.py", "__main__.py"):
            (tmp_path / name / file).write_text("open('ran', 'w').close()\nraise SystemExit(9)\n")
    import flowvm

    text = f"""
import os, sys
sys.path.remove("") if "" in sys.path else None
from flowvm.guards import processes
sys.path.insert(0, "")  # as at a prompt: the current folder, whichever it is
os.chdir({str(tmp_path)!r})
os.execv(sys.executable, processes.own("flowvm.commands.cli:main", "--version"))
"""
    process = subprocess.run([sys.executable, *args, "-c", text], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith(f"flowvm {flowvm.version.VERSION}")
    assert not (tmp_path / "ran").exists()


def test_a_process_of_flowvms_own_has_the_flowvm_of_this_one(tmp_path, monkeypatch):
    """One that is nowhere on the path of a new Python: it was put there by the program."""
    other = tmp_path / "elsewhere" / "flowvm"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    command = processes.own("flowvm.commands.cli:main", "--version")
    monkeypatch.chdir(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "elsewhere")}
    process = subprocess.run(command, capture_output=True, text=True, env=env)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith("flowvm ")


def test_a_process_says_what_its_function_returns():
    command = processes.own("flowvm.commands.cli:main", "export", "no such file.run", "out.html")
    assert subprocess.run(command, capture_output=True).returncode == 1


def test_a_program_of_the_users_is_run_as_python_runs_it(tmp_path):
    (tmp_path / "beside.py").write_text("name = 'beside'\n")
    (tmp_path / "program.py").write_text("import sys, beside; print(beside.name, *sys.argv[1:])\n")
    command = processes.program(str(tmp_path / "program.py"), "--flag")
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.stdout == "beside --flag\n", process.stderr
