"""Every tutorial runs from its first line to its last."""

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parent.parent / "tutorials"


@functools.cache
def run(name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TUTORIALS / f"{name}.py")], capture_output=True, text=True
    )


@pytest.mark.parametrize("name", sorted(path.stem for path in TUTORIALS.glob("*.py")))
def test_a_tutorial_runs(name: str) -> None:
    done = run(name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tutorial_of_graphs_shows_what_it_says() -> None:
    done = run("05_graphs")
    for shown in (
        "(OPTIMIZER:SGD", "12 tasks on one stream", "2 plans",
        "captured again: argument 0 was f32[32,1,8,8], is f32[5,1,8,8]",
        "fused[", "CaptureError: this tensor has no value", "unfused: 0 of 100,000",
    ):  # fmt: skip
        assert shown in done.stdout
    assert "--- fusion: 3 nodes before, 1 after" in done.stderr


def test_the_tutorial_of_actors_shows_what_it_says() -> None:
    done = run("06_from_instruction_to_actor")
    for shown in (
        "2 actors, regst_num 2", "regst_num 1: 8 ticks", "regst_num 2: 5 ticks",
        "waits for the launch", "linear x4", "(+48 each)",
    ):  # fmt: skip
        assert shown in done.stdout


def test_the_tutorial_of_profiling_names_the_stalls_and_mends_them() -> None:
    shown = run("07_profiling").stdout
    for part in ("bound by", "16 steps of", "next  1.", "what-if", "at the peak", "scheduler"):
        assert part in shown
    before = shown[: shown.index("bound by", shown.index("bound by") + 1)]
    assert re.search(r"07_profiling\.py:\d+ waited for a value \d+x on the path", before)
    took = [float(ms) for ms in re.findall(r"([\d.]+) ms a step", shown)]
    assert len(took) == 3
    assert re.search(r"wait +16 → 1 ", shown), shown  # what it gains depends on who else runs


def test_the_tutorial_of_dags_shows_what_it_says() -> None:
    shown = run("08_reading_a_dag").stdout
    for part in (
        "lanes 0=cpu 1=side", " WAR", "═t", "masked_select", "◆ critical", "blocks #",
        "observed path", "what-if", "made by #", "Verified(instructions=",
    ):  # fmt: skip
        assert part in shown, part
    (free,) = re.findall(r"floor ([\d.]+) ms, without linear +([\d.]+) ms", shown)
    assert float(free[1]) <= float(free[0])
