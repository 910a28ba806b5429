"""Every tutorial runs from its first line to its last."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parent.parent / "tutorials"


@functools.cache
def run(name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TUTORIALS / f"{name}.py")], capture_output=True, text=True, timeout=110
    )


@pytest.mark.parametrize("name", sorted(path.stem for path in TUTORIALS.glob("*.py")))
def test_a_tutorial_runs(name: str) -> None:
    done = run(name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tutorial_of_graphs_shows_what_it_says() -> None:
    done = run("05_graphs")
    for shown in (
        "(live)", "15 tasks on one stream", "2 plans", "captured again: f32[32,1,8,8] before",
        "fused_9", "CaptureError: this tensor has no value", "unfused: 0 of 100,000",
    ):  # fmt: skip
        assert shown in done.stdout
    assert "--- fusion: 3 nodes before, 1 after" in done.stderr
