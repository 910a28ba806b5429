"""A rank is lost, and the job goes on: `flowvm launch --restarts`, checkpoints, what is swept."""

import json
import os
import subprocess
import sys

import pytest

import flowvm as flow
import flowvm.distributed.checkpoint as dcp
from flowvm.commands import launch
from flowvm.errors import ArgumentError
from flowvm.files.newest import newest, swept
from tests.distributed.test_ranks import HERE, SECONDS, needs_mpi
from tools import lost

LAUNCH = [sys.executable, "-m", "flowvm", "launch"]
STEPS, EVERY, KILLED_AT = 9, 2, 5


@needs_mpi
def test_a_job_that_loses_a_rank_goes_on_with_those_left(tmp_path):
    args = lost.options(tmp_path, "localhost:3", 1, str(STEPS), str(EVERY), str(KILLED_AT))
    process = subprocess.run(
        [*LAUNCH, *args], capture_output=True, text=True, timeout=SECONDS, cwd=HERE.parent.parent
    )
    output = process.stdout + process.stderr
    assert process.returncode == 0, output
    where = tmp_path / "checkpoints"
    assert f"restart 1 of 1 on 2 ranks, from {where}/step_4\n" in process.stderr, output
    assert "rank 2 failed first, killed by SIGKILL" in process.stderr, output
    assert not (where / "step_lost").exists()
    assert lost.furthest(tmp_path, lost.undisturbed(STEPS)) < 1e-9
    starts = {step: [run[1:] for run in runs] for step, runs in lost.losses_of(tmp_path).items()}
    assert starts[3] == [(0, 3)]
    assert starts[4] == [(0, 3), (1, 2)]
    assert starts[8] == [(1, 2)]


def test_a_job_is_started_anew_as_often_as_asked_and_told_why(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom flowvm.distributed import restart\n"
        "start = restart()\nprint(start.count, start.reason, start.checkpoint)\n"
        "sys.exit(3 + start.count)\n"
    )
    args = ["-n", "1", "--restarts", "1", str(script)]
    process = subprocess.run([*LAUNCH, *args], capture_output=True, text=True)
    assert process.returncode == 4, process.stderr
    why = "rank 0 failed first, with exit code 3"
    assert process.stdout == f"[0] 0 None None\n[0] 1 {why} None\n"
    assert "restart 1 of 1 on 1 ranks, from the beginning" in process.stderr


def test_the_newest_whole_checkpoint_and_what_is_swept(tmp_path):
    assert newest(tmp_path / "nowhere") is None
    assert swept(tmp_path / "nowhere") == []
    assert newest(tmp_path) is None
    for step in (8, 9, 10, 11):
        dcp.save({"w": flow.ones(2), "step": step}, checkpoint_id=tmp_path / f"step_{step}")
        index = tmp_path / f"step_{step}" / "index.json"
        os.utime(index, ns=(step, step))
    assert newest(tmp_path).name == "step_11"
    (part,) = (tmp_path / "step_11").glob("*.safetensors")
    part.unlink()  # its file is missing
    (tmp_path / "step_10" / "index.json").write_text("{")
    os.utime(tmp_path / "step_10" / "index.json", ns=(20, 20))
    assert newest(tmp_path).name == "step_9"
    current_part = tmp_path / "step_9" / "notes-00001.safetensors"
    dead = [
        tmp_path / "step_12" / f"{5:016x}-00001.safetensors",
        tmp_path / "step_12" / f".{5:016x}-00001.done",
        tmp_path / "step_9" / f"{6:016x}-00000.safetensors",
        tmp_path / "step_9" / ".index.json.0123456789ab",
    ]
    (tmp_path / "step_12").mkdir()
    for path in (current_part, *dead):
        path.write_bytes(b"")
    assert set(swept(tmp_path)) == {*dead, tmp_path / "step_12"}
    assert current_part.exists()
    assert len(list((tmp_path / "step_10").iterdir())) == 2  # somebody may want to look at it
    assert flow.load(newest(tmp_path))["step"] == 9
    assert swept(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("", {}),
        ("a,b:4,a:2", {"a": 3, "b": 4}),
        ("# hosts\na slots=2\n\nb:3 # the other\nc\n", {"a": 2, "b": 3, "c": 1}),
    ],
)
def test_hosts_are_named_or_in_a_file(text, slots, tmp_path):
    if "\n" in text:
        (tmp_path / "hosts").write_text(text)
        text = str(tmp_path / "hosts")
    assert launch.slots(text) == slots


def test_hosts_that_are_none():
    with pytest.raises(ArgumentError, match="names no host"):
        launch.slots(",")
    with pytest.raises(ArgumentError, match="got 'a b'"):
        launch.slots("a b")


def test_what_a_start_is_told(tmp_path):
    text = json.loads(launch.resumption(2, "why", str(tmp_path))[launch.RESTART])
    assert text == {"count": 2, "reason": "why", "checkpoint": None}
    dcp.save({"w": flow.ones(2)}, checkpoint_id=tmp_path)  # the same folder again and again
    text = json.loads(launch.resumption(0, "", str(tmp_path))[launch.RESTART])
    assert text == {"count": 0, "reason": None, "checkpoint": str(tmp_path)}
