"""Every tutorial runs from its first line to its last."""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.notebooks import cells_of, notebook_of, scripts, sources

TUTORIALS = Path(__file__).parents[2] / "tutorials"


@functools.cache
def run(name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TUTORIALS / f"{name}.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
    )


@pytest.mark.parametrize("name", sorted(path.stem for path in TUTORIALS.glob("*.py")))
def test_a_tutorial_runs(name: str) -> None:
    process = run(name)
    assert process.returncode == 0, process.stdout + process.stderr


ANSWERS = {
    "01_what_waits_for_what": ("#14 RAW!", "WAR", "Verified("),
    "02_what_is_the_critical_path": ("observed path", "what-if matmul free"),
    "03_why_does_it_not_run": ("[gating]", "gaps over"),
    "04_which_line_failed": ("picked = table[places]", "poisoned  2 later", "at once: index 99"),
    "05_whose_kernel_is_it": ("(MODULE:net.body.0", "linear[mul,add,sqrt]", "net.body.1"),
    "06_why_was_it_captured_again": ("was f32[4,8], is f32[5,8]", "argument 1 is new: True"),
    "07_is_a_replay_right": ("flow.where(condition, a, b)", "every 2. call checked"),
    "08_does_the_trace_open": ("'critical path'", "'s': "),
    "09_a_viewer_without_a_server": ("fetches nothing", "instructions, from a file"),
    "10_what_does_looking_cost": ("recorder", "level 2:"),
    "11_where_did_the_memory_go": ("list kept (20)", "a leak?", "this machine has"),
    "12_why_was_the_first_call_slow": ("'jit'", "cache_dir"),
}
IN_TURN = """
import sys
for path in sys.argv[1:]:
    print("question", path, flush=True)
    exec(compile(open(path).read(), path, "exec"), globals())
"""


def test_the_questions_are_answered() -> None:
    """Run all in one process, since a process is slow to start: they leave nothing behind."""
    paths = sorted(TUTORIALS.glob("questions/*.py"))
    command = [sys.executable, "-c", IN_TURN, *map(str, paths)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    shown = dict(zip(ANSWERS, process.stdout.split("question ")[1:], strict=True))
    for name, answer in shown.items():
        assert name in answer
        for part in ANSWERS[name]:
            assert part in answer, (part, answer)


@pytest.mark.parametrize("script", scripts(), ids=lambda script: script.stem)
def test_a_notebook_is_its_script(script: Path) -> None:
    data = json.loads(notebook_of(script).read_text())
    assert sources(data) == cells_of(script.read_text()), f"python -m tools.notebooks {script.stem}"


def test_cells_of_a_script() -> None:
    text = '"""Tutorial 1: a title.\n\nMore.\n"""\n\n# %% Said\n# twice.\nx = 1\n\n# %% Once.\n'
    assert cells_of(text) == [
        ("markdown", "# Tutorial 1: a title\n\nMore."), ("markdown", "Said\ntwice."),
        ("code", "x = 1"), ("markdown", "Once."),
    ]  # fmt: skip


def test_the_tutorial_of_graphs_shows_what_it_says() -> None:
    process = run("05_graphs")
    for shown in (
        "(OPTIMIZER:SGD", "12 tasks on one stream", "2 plans",
        "captured again: argument 0 was f32[32,1,8,8], is f32[5,1,8,8]",
        "fused[", "CaptureError: this tensor has no value", "unfused: 0 of 100,000",
    ):  # fmt: skip
        assert shown in process.stdout
    assert "--- fusion: 3 nodes before, 1 after" in process.stderr


def test_the_tutorial_of_actors_shows_what_it_says() -> None:
    process = run("06_from_instruction_to_actor")
    for shown in (
        "2 actors, regst_num 2", "regst_num 1: 8 ticks", "regst_num 2: 5 ticks",
        "waits for the launch", "linear x4", "(+48 each)",
    ):  # fmt: skip
        assert shown in process.stdout


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
