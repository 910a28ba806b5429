"""The page's time machine agrees with `p.at` and `p.step`: its program runs in node here."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.profiler import Profile, profile
from flowvm.profiler.export.html import _Page
from flowvm.profiler.run.run import Run
from flowvm.profiler.views.moment import moment
from flowvm.vm.machine.words import KIND
from flowvm.vm.watch.flight import TIMES
from tests.profiler.synthetic import synthetic, three_ranks

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no node is installed")


def text(p: Profile, questions: list[dict[str, Any]], folder: Path) -> list[Any]:
    """Return the answers of the page's program."""
    assert NODE
    data, questions_file = folder / "data.json", folder / "questions.json"
    data.write_text(json.dumps((page := _Page(p)).data() | page.packed()), "utf-8")
    questions_file.write_text(json.dumps(questions), "utf-8")
    assets = resources.files("flowvm.profiler.export") / "assets"
    script = Path(__file__).parent / "moments_in_node.js"
    scripts = [str(assets / f"{name}.js") for name in ("columns", "holders", "moments")]
    process = subprocess.run(
        [NODE, script, data, questions_file, *scripts],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-3000:]
    answers: list[Any] = json.loads(process.stdout)
    return answers


def compare(p: Profile, folder: Path, seed: int) -> None:
    """Hold some moments, by number, by time and by instruction, and steps against each other."""
    rng = np.random.default_rng(seed)
    events, run = p.moments, p.run
    questions: list[dict[str, Any]] = [{"number": 0}, {"number": len(events)}, {"t": -1.0}]
    questions += [{"number": n} for n in rng.integers(0, len(events) + 1, 25).tolist()]
    wall = max(1, run.wall) / 1e6
    questions += [{"t": t} for t in (rng.random(25) * wall * 1.05).tolist()]
    questions += [{"t": (n + 0.5) / 1e6} for n in rng.integers(0, run.wall + 1, 8).tolist()]
    where = rng.integers(0, len(run), 10).tolist() if len(run) else []
    questions += [{"seq": int(run.seq[i]), "stage": k} for i in where for k in (0, 1, 4, 6)]
    for n in rng.integers(0, len(events) + 1, 10).tolist():
        questions += [{"next": [n, stage, by]} for stage in (-1, 1, 4) for by in (-1, 1)]
    answers = text(p, questions, folder)
    for question, actual in zip(questions, answers, strict=True):
        expected: Any
        if "next" in question:
            expected = events.next(*question["next"])
        elif "seq" in question:
            expected = events.number_of(run.index(question["seq"]), question["stage"])
        elif "t" in question:
            expected = p.at(question["t"]).to_dict()
        else:
            expected = moment(p, question["number"]).to_dict()
        assert actual == expected, (seed, question)


@pytest.mark.parametrize("k", range(2))
def test_made_up_runs(k: int, seed: int, tmp_path: Path) -> None:
    compare(Profile(synthetic(seed + k, 150)), tmp_path, seed + k)


def test_what_never_happened(seed: int, tmp_path: Path) -> None:
    run = synthetic(seed, 90)
    rng = np.random.default_rng(seed)
    for i in rng.integers(1, 90, 12).tolist():
        run.times[i, rng.integers(0, len(TIMES)) :] = 0
    run.begun = int(run.times[5, 0])  # some were issued before the run began
    compare(Profile(run), tmp_path, seed)


def test_a_real_run_with_a_graph(seed: int, tmp_path: Path) -> None:
    side = flow.Stream("moments side")
    x = flow.randn(64, 64)

    def work(t):
        with flow.stream(side):
            y = t * 2
        return (y @ t).tanh().sum()

    graph = flow.compile(work)
    graph(x)
    with profile() as p:
        for _ in range(5):
            with flow.stream(side):
                y = x * 2
            z = (y @ x).tanh()
            graph(z).item()
    compare(p, tmp_path, seed)
    run = p.run
    launches = np.flatnonzero(run.kind == KIND.LAUNCH)
    assert len(launches) == 5
    (at,) = text(p, [{"t": (run.time("ended")[launches[2]] - run.begun - 1) / 1e6}], tmp_path)
    assert at["actors"]


def test_ranks_in_one_run(seed: int, tmp_path: Path) -> None:
    p = three_ranks(seed).joined
    compare(p, tmp_path, seed)
    assert p.tied is not None
    times = [(int(t) - p.run.begun + 1) / 1e6 for t in p.tied.begin[:, 0]]
    answers = text(p, [{"t": t} for t in times], tmp_path)
    assert answers == [p.at(t).to_dict() for t in times]
    assert all(one["meetings"] for one in answers)


def test_who_holds_memory(seed: int, tmp_path: Path) -> None:
    model = flow.nn.Sequential(flow.nn.Linear(16, 32), flow.nn.ReLU(), flow.nn.Linear(32, 2))
    optimizer = flow.optim.Adam(model.parameters())
    with profile() as p:
        for _ in range(3):
            loss = model(flow.rand(8, 16)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert p.run.info["held"]
    compare(p, tmp_path, seed)


def test_an_empty_run(tmp_path: Path) -> None:
    (at,) = text(Profile(Run()), [{"number": 0}], tmp_path)
    assert at == Profile(Run()).at(0).to_dict()
