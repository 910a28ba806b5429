"""The `flowvm` command, its subcommands and the data they use, run as a user would run them."""

import json
import os
import re
import select
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from flowvm.commands.doctor import FAIL, INFO, OK, environment
from flowvm.datasets import digits_arrays
from flowvm.errors import ArgumentError


def flowvm(*args: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m flowvm`, with variables set as in FLOWVM_DEBUG="1"."""
    return subprocess.run(
        [sys.executable, "-m", "flowvm", *args],
        input=stdin,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
    )


def test_the_digits_are_all_there() -> None:
    images, labels = digits_arrays()
    assert (images.shape, images.dtype) == ((1797, 1, 8, 8), np.float32)
    assert (labels.shape, labels.dtype) == ((1797,), np.int64)
    assert (images.min(), images.max()) == (0, 1)
    assert images.sum(dtype=np.float64) == 561718 / 16  # the pixel sum of UCI's file
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_the_split_is_fixed_and_loses_nothing() -> None:
    every = digits_arrays()[0].reshape(1797, -1)
    train, test = digits_arrays("train"), digits_arrays("test")
    assert (len(train[1]), len(test[1])) == (1437, 360)
    both = np.concatenate([train[0], test[0]]).reshape(1797, -1)
    assert sorted(map(bytes, both)) == sorted(map(bytes, every))
    assert test[1][:10].tolist() == [3, 3, 8, 8, 7, 2, 2, 4, 4, 2]
    with pytest.raises(ArgumentError, match="'train' or 'test', got 'tset'"):
        digits_arrays("tset")


def test_version() -> None:
    import flowvm as flow

    process = flowvm("--version")
    assert (process.returncode, process.stdout.strip()) == (0, f"flowvm {flow.__version__}")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("dmeo",), "invalid choice: 'dmeo'"),
        (("demo", "--epochs", "0"), "expected an integer from 1 up, got '0'"),
        (("doctor", "--jsn"), "unrecognized arguments: --jsn"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(args: tuple[str, ...], message: str) -> None:
    process = flowvm(*args)
    assert process.returncode == 2
    assert message in process.stderr


def test_a_bad_setting_is_named() -> None:
    process = flowvm("doctor", FLOWVM_DEBUG="loud")
    assert process.returncode == 1
    assert "FLOWVM_DEBUG = 'loud' cannot be used: expected 0 to 4" in process.stderr


def test_the_prompt_has_flow_and_numpy() -> None:
    process = flowvm(stdin="print((flow.ones(2) + np.float32(1)).tolist())\nprint(nn.__name__)\n")
    assert process.returncode == 0, process.stderr
    assert "[2.0, 2.0]" in process.stdout
    assert "flowvm.nn" in process.stdout
    assert "flow, nn and np are imported" in process.stderr  # code.interact prints its banner there


def test_doctor_finds_everything_well_here() -> None:
    process = flowvm("doctor", "--json")
    report = json.loads(process.stdout)
    assert (process.returncode, report["failed"]) == (0, 0), report
    subjects = {check["subject"] for check in report["checks"]}
    assert {"python", "numba", "cpu", "cuda", "cache", "calls", "self-test", "speed"} <= subjects


def test_doctor_says_who_makes_calls(monkeypatch) -> None:
    from flowvm.config import config
    from flowvm.eager.native import install

    def line() -> tuple[str, str]:
        (check,) = [check for check in environment() if check.subject == "calls"]
        return check.verdict, check.text

    monkeypatch.setitem(config.__dict__, "debug_calls", False)
    monkeypatch.setitem(config.__dict__, "calls", "python")
    assert line()[0] == INFO
    for calls in ("auto", "native"):
        monkeypatch.setitem(config.__dict__, "calls", calls)
        assert line()[0] == OK
    monkeypatch.setattr(install, "why_not", lambda: "a slot is elsewhere")
    assert line() == (FAIL, "a slot is elsewhere")
    monkeypatch.setitem(config.__dict__, "calls", "auto")
    assert line() == (INFO, "by Python functions: a slot is elsewhere")


def test_doctor_says_how_to_mend_a_cache_it_cannot_write(tmp_path, monkeypatch) -> None:
    from flowvm.config import config

    (tmp_path / "file").touch()
    monkeypatch.setitem(config.__dict__, "cache_dir", tmp_path / "file" / "cache")
    (failed,) = [check for check in environment() if check.verdict == FAIL]
    assert failed.subject == "cache"
    assert "export FLOWVM_CACHE_DIR" in failed.fix


@pytest.mark.slow
def test_the_demo_learns_the_digits_and_reports_on_the_vm() -> None:
    process = flowvm("demo", "--epochs", "4")
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.count("(97% reached)") == 2, process.stdout  # eager and as a graph
    for expected in ("instructions issued", "raw", "prescheduled", "peak memory", "Plan TrainStep"):
        assert expected in process.stdout
    for screen in ("One step of the eager training", "bound by", "1 column =", "lanes 0=cpu"):
        assert screen in process.stdout
    last = process.stdout[process.stdout.index("Eager beside graph") :]
    assert "MLP (small kernels)" in last
    assert re.search(r"takes [\d,]+ us\s+instead of [\d,]+", last)
    assert "-m flowvm run" in last[last.index("What to try next") :]
    apart = re.search(r"(\S+) apart at most", process.stdout)
    assert apart
    assert float(apart.group(1)) < 1e-3, "the graph learns what eager code learns"


# a cache that has the VM's own code, which takes long to compile, and no operator's
VM_ONLY = """
import shutil, sys
import flowvm as flow
from flowvm.compiler import jit
from flowvm.config import config
read, used = jit._from_cache, []
jit._from_cache = lambda digest, folder: used.append(digest) or read(digest, folder)
flow.zeros(1).numpy()
for digest in used:
    shutil.copy(config.cache_dir / f"{digest}.o", sys.argv[1])
"""


def test_warmup_compiles_in_processes_what_a_session_then_only_loads(tmp_path) -> None:
    code = """
from flowvm.commands.warmup import in_processes
done = list(in_processes(["abs", "exp", "no such op"], 2, False))
assert sorted(d.name for d in done) == ["abs", "exp", "no such op"], done
assert [d.name for d in done if d.error] == ["no such op"], done
print(sum(d.compiled for d in done))
"""
    script = tmp_path / "script.py"
    script.write_text(f"if __name__ == '__main__':\n{textwrap.indent(code, '    ')}")
    (tmp_path / "cache").mkdir()
    subprocess.run([sys.executable, "-c", VM_ONLY, str(tmp_path / "cache")], check=True)
    environment = {**os.environ, "FLOWVM_CACHE_DIR": str(tmp_path / "cache")}
    counts = [
        int(subprocess.run(
            [sys.executable, str(script)], env=environment, check=True, capture_output=True,
            text=True,
        ).stdout)
        for _ in range(2)
    ]  # fmt: skip
    assert counts[0] > 0
    assert counts[1] == 0


def test_what_compiles_ends_with_its_parent_even_if_that_was_killed() -> None:
    program = """
import os, time
from flowvm.commands.warmup import processes
pool = processes(1)
print(pool.submit(os.getpid).result(), flush=True)
pool.submit(time.sleep, 1000)
time.sleep(1000)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdout is not None
    with parent, parent.stdout:
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    poll = select.poll()
    poll.register(child, select.POLLIN)
    assert poll.poll(200_000), "the child is still there"
    os.close(child)
