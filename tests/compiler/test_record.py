"""The record of compilations, and what is drawn of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import pytest
from rich.console import Console

from flowvm.compiler import record, waterfall
from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.natives import DEVICES, RUNNING, SCHEDULING, SEQUENTIAL, THREADED

PROGRAM = """
from flowvm.compiler import jit

def doubled(x):
    return x + x

jit.native(doubled, "int64(int64)")
"""


def busy(seconds):
    """Use the processor for so many seconds."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def row(name, *, process=1, parent=0, job="", began=0.0, digest="", waited=0.0, **seconds):
    """The record of a compilation."""
    passed = waited + sum(seconds.values())
    return record.Compilation(
        name, digest or name, process, parent, job, "MainThread", began, passed, waited, seconds
    )


def drawn(rows):
    console = Console(width=140, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    for table in waterfall.tables(rows):
        console.print(table)
    return console.export_text()


def test_a_phase_inside_another_is_not_counted_twice():
    with record.phases() as seconds:
        with record.phase(record.FRONT):
            busy(0.01)
            with record.phase(record.PASSES):
                busy(0.1)
        busy(0.01)  # in no phase
    assert set(seconds) == {record.FRONT, record.PASSES}
    assert 0.01 <= seconds[record.FRONT] < 0.1 <= seconds[record.PASSES]


def test_lines_are_read_back_and_damaged_ones_left_out(tmp_path):
    rows = [row("one", Numba=0.5), row("two", waited=2.0)]
    record.append(tmp_path, rows[0])
    with open(tmp_path / record.FILE, "ab") as file:
        file.write(b'{"name": "half\n{"name": 3}\n\xff\n')
    record.append(tmp_path, rows[1])
    assert record.read(tmp_path) == rows
    assert rows[0].busy == 0.5
    assert record.read(tmp_path / "none") == []


def test_the_waterfall_is_of_one_process_and_its_helpers_and_names_what_was_made_twice():
    rows = [
        row("sum: body, float32", process=7, began=3.0, digest="s", **{record.FRONT: 1.25}),
        row("sum: body, float32", process=8, parent=7, job="ahead", began=2.0, digest="s",
            **{record.FRONT: 1.5, record.PASSES: 0.25}),
        row("exp: body, float32", process=7, began=4.0, waited=0.75),
        row("another program's", process=9, began=0.0, **{record.FRONT: 9.0}),
        row("quick", process=7, began=5.0, **{record.CODE: 0.01}),
    ]  # fmt: skip
    own = waterfall.of(7, rows)
    assert [r.name.partition(":")[0] for r in own] == ["sum", "sum", "exp", "quick"]
    assert own[0].process == 8, "in order of time"
    assert waterfall.twice(own) == {"s"}
    assert waterfall.warning(own) == "compiled more than once: sum (float32)"
    assert waterfall.warning(own[1:]) == ""
    text = drawn(own)
    assert re.search(r"0\.0\s+ahead\s+sum \(float32\)\s+twice .* 1\.75 .* 1\.50\s+0\.25", text)
    assert re.search(r"1 of less than 0\.05 s", text)
    assert re.search(r"helpers\s+1\s+1\.75", text)
    assert re.search(r"all\s+3\s+3\.01", text)


def test_a_process_says_at_its_end_what_it_compiled(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    known = {**os.environ, "FLOWVM_DEBUG": "1", "FLOWVM_CACHE_DIR": str(tmp_path / "cache")}
    process = subprocess.run(
        [sys.executable, str(script)], env=known, capture_output=True, text=True, check=True
    )
    assert "flowvm: compiled doubled in" in process.stderr
    assert re.search(r"program\s+doubled", process.stderr)
    (entry,) = record.read(tmp_path / "cache")
    assert entry.name == "doubled"
    assert entry.seconds[record.NUMBA] > 0 < entry.seconds[record.FRONT]
    again = subprocess.run(
        [sys.executable, str(script)], env=known, capture_output=True, text=True, check=True
    )
    assert "doubled" not in again.stderr, "nothing was compiled"


def test_doctor_draws_the_first_minute_of_a_script(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-m", "flowvm", "doctor", "--cold"]
    process = subprocess.run([*command, str(script)], capture_output=True, text=True, check=True)
    assert "program.py, with an empty cache:" in process.stdout
    assert "1 functions compiled" in " ".join(process.stdout.split())
    assert re.search(r"program\s+doubled", process.stdout)
    none = subprocess.run([*command, "none.py"], capture_output=True, text=True)
    assert none.returncode == 1
    assert "there is no script 'none.py' to run: give the path of a file" in none.stderr


@pytest.mark.parametrize("processors", [1, 2, 8])
def test_a_helper_makes_all_functions_of_a_group(monkeypatch, processors):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    shares = engine.loops._shares(sorted(THREADED))
    assert len(shares) == min(processors, 2)
    for group in (RUNNING, SCHEDULING):
        assert any({*group} - DEVICES <= {*share} for share in shares)
    assert sorted(name for share in shares for name in share) == sorted(THREADED | {"drain"})
    assert [{*share} for share in engine.loops._shares(sorted(SEQUENTIAL))] == [SEQUENTIAL]
