"""The memory check finds every planted fault, names it, and finds nothing where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import flowvm as flow
from flowvm.errors import ConfigError, Status
from flowvm.vm.workers import zones

ROOT = Path(__file__).resolve().parents[3]
EXPECTED = {
    "nothing": "",
    "nothing at last": "",
    "past the end": "outside of operand out: at byte 80 of memory of 80",
    "past the end of floats": "outside of operand out: at byte 12 of memory of 12",
    "past the end of bytes": "outside of operand out: at byte 3 of memory of 3",
    "before the begin": "outside of operand out: at byte -1 of memory of 80",
    "past a row": "between the elements of operand x, a view: byte 14 of the 80",
    "past a row of a NumPy array": "between the elements of operand x, a view: byte 30 of the 160",
    "past a row of its own": "outside of operand x: at byte 80 of memory of 80",
    "an input": "wrote operand x, which it only reads: byte 24 of the 80",
    "an input of Python's": "wrote operand x, which it only reads: byte 24 of the 80",
    "scratch": "outside of its scratch memory: at byte 40 of 40",
    "arena": "outside of its thread's arena: at byte 2097152 of 2097152",
    "arena of helpers": "outside of its thread's arena: at byte 2097152 of 2097152",
    "released": "after it was released: byte 0 of 80",
    "of others": "outside of the memory that this instruction was given: at byte 80 of 80",
    "in a graph": "outside of a register of its launch's chunk, its block 0: at byte 80 of 80",
    "before the begin in a graph": "launch's chunk, its block 0: at byte -1 of 80",
    "scratch in a graph": "launch's chunk, its block 2: at byte 40 of 40",
    "output of a graph": "outside of operand 0: at byte 80 of memory of 80",
    "read released": "a wrong value",
    "read past the end": "a wrong value: [nan]",
    "not written": "a wrong value: [nan",
}
BLAMED = {  # what the note says: the instruction, and its line
    "past the end": "past on cpu",
    "past a row": "row_ on cpu",
    "in a graph": "past (node 1) of <lambda>",
    "of others": "add on cpu",
}


@pytest.fixture(scope="module")
def messages():
    """Run `planted` with the check; return its messages by name."""
    return run("memory")


def run(check):
    env = {**os.environ, "FLOWVM_CHECK": check, "FLOWVM_WORKERS": "2"}
    process = subprocess.run(
        [sys.executable, "-m", "tests.vm.workers.planted"],
        cwd=ROOT, env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(process.stdout)


def test_every_fault_is_in_the_table(messages):
    assert messages.keys() == EXPECTED.keys()


@pytest.mark.parametrize("fault", EXPECTED)
def test_a_planted_fault_is_named(messages, fault):
    if EXPECTED[fault]:
        assert EXPECTED[fault] in messages[fault]
    else:
        assert messages[fault] == ""


@pytest.mark.parametrize("fault", BLAMED)
def test_the_instruction_and_its_line_are_named(messages, fault):
    assert BLAMED[fault] in messages[fault]
    assert "planted.py:" in messages[fault]


def test_statuses_are_those_of_the_table_of_errors():
    for name in (
        "OUTSIDE_OPERAND", "BETWEEN_ELEMENTS", "WROTE_INPUT", "OUTSIDE_SCRATCH", "OUTSIDE_ARENA",
        "OUTSIDE_REGISTER", "ZONE_BROKEN", "WRITTEN_RELEASED",
    ):  # fmt: skip
        assert getattr(zones, name) == getattr(Status, name)


@pytest.mark.skipif(zones.CHECKED, reason="the check is on")
def test_the_check_is_taken_from_the_environment_alone():
    with pytest.raises(ConfigError, match="FLOWVM_CHECK in the environment"):
        flow.config.check = "memory"
    assert zones.CHUNK_ZONE == zones.ARENA_ZONE == 0
