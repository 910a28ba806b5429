"""Several ranks on this machine: their common results, and their end when one fails.

Each launch checks much, for starting processes is what takes the time.
"""

import functools
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from flowvm.commands.launch import mpiexec
from flowvm.errors import CommunicationError
from tests.distributed import checks_of

HERE = Path(__file__).parent
SECONDS = 270  # a hang, not a target: ranks compile on a machine that may be busy


def why_not() -> str:
    """Return the reason why several ranks cannot be started here, or ""."""
    try:
        mpiexec(2)
    except CommunicationError as error:
        return str(error)
    return ""


needs_mpi = pytest.mark.skipif(bool(why_not()), reason=why_not() or "MPI is there")


def launch(
    ranks: int, program: str, *args: str, driver: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a program of this folder on `ranks` ranks, with a CUDA driver that needs no GPU."""
    simulated = {"FLOWVM_CUDA_DRIVER": driver, "NUMBA_ENABLE_CUDASIM": "1"} if driver else {}
    return subprocess.run(
        [sys.executable, "-m", "flowvm", "launch", "-n", str(ranks), str(HERE / program), *args],
        capture_output=True, text=True, timeout=SECONDS, cwd=HERE.parent.parent,
        env={**os.environ, **simulated},
    )  # fmt: skip


@functools.cache
def outcomes(ranks: int) -> list[dict[str, str]]:
    """Return each rank's outcome of each check."""
    with TemporaryDirectory() as folder:
        process = launch(ranks, "checks.py", folder)
        paths = [Path(folder, f"{rank}.json") for rank in range(ranks)]
        assert all(path.exists() for path in paths), process.stdout + process.stderr
        return [json.loads(path.read_text()) for path in paths]


@pytest.mark.parametrize("name", checks_of.names())
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=needs_mpi),
                                   pytest.param(4, marks=needs_mpi)])  # fmt: skip
def test_ranks_agree_with_numpy(ranks, name):
    for rank, outcome in enumerate(outcomes(ranks)):
        text = outcome.get(name, "not reached: a check before it failed")
        assert not text, f"rank {rank}: {text}"


@functools.cache
def on_devices(ranks: int) -> list[dict[str, str]]:
    """Return each rank's outcome of each check of CUDA tensors."""
    pytest.importorskip("numba_cuda")
    with TemporaryDirectory() as folder:
        process = launch(ranks, "on_devices.py", folder, driver=f"simulator:late,seed={ranks}")
        devices = [Path(folder, f"{rank}.json") for rank in range(ranks)]
        assert all(path.exists() for path in devices), process.stdout + process.stderr
        return [json.loads(path.read_text()) for path in devices]


@needs_mpi
@pytest.mark.parametrize("name", checks_of.names("on_devices.py"))
@pytest.mark.parametrize("ranks", [2, 4])
def test_devices_of_ranks_agree_with_numpy(ranks, name):
    for rank, outcome in enumerate(on_devices(ranks)):
        text = outcome.get(name, "not reached: a check before it failed")
        assert not text, f"rank {rank}: {text}"


@needs_mpi
@pytest.mark.parametrize("ranks", [2, 4])
def test_nccl_is_called_in_order_on_the_lanes_stream(ranks, tmp_path):
    process = launch(ranks, "nccl_calls.py", str(tmp_path), driver="recorder:late")
    assert process.returncode == 0, process.stdout + process.stderr
    assert len([*tmp_path.glob("*.done")]) == ranks


@needs_mpi
def test_ddp_gives_the_numbers_of_pytorchs(tmp_path):
    pytest.importorskip("torch")
    process = launch(2, "peers.py", str(tmp_path))
    assert process.returncode == 0, process.stdout + process.stderr
    assert sorted(path.name for path in tmp_path.glob("*.done")) == ["0.done", "1.done"]


# what ranks do, the exit code, and for each of two ranks a part of what it must say
FAILURES = {
    "other_op": (1, ["rank 1 all_reduce(f32[3], max)", "rank 0 all_reduce(f32[3], sum)"]),
    "other_shape": (1, ["rank 1 all_reduce(f32[4], sum)", "rank 0 all_reduce(f32[3], sum)"]),
    "other_collective": (1, ["rank 1 broadcast(f32[3], 0)", "rank 0 all_gather(f32[6])"]),
    "one_less": (1, ["rank 1 has left the program, and rank 0 waits for it in all_reduce", ""]),
    "raises": (1, ["rank 1 failed: ValueError: a sum that is none", "ValueError: a sum"]),
    "bad_index": (1, ["rank 1 failed: OutOfRangeError: index 5", "OutOfRangeError: index 5"]),
    "stage_fails": (1, ["rank 1 failed: OutOfRangeError", "OutOfRangeError"]),
    "stage_dies": (137, ["rank 1 has died", ""]),
    "killed": (137, ["rank 1 has died", ""]),
    "exits": (3, ["rank 1 has left the program", ""]),
    "nobody_reads": (1, ["nobody looked at its result: CommunicationError: rank 1 has left", ""]),
    "stopped": (1, ["for rank 1, whose process", ""]),
    "other_global_shape": (1, ["rank 1 ones(f32[8,9] S(0)@[0, 1])", "ones(f32[8,8] S(0)@[0, 1])"]),
    "other_global_sbp": (1, ["rank 1 ones(f32[8,8] B@[0, 1])", "ones(f32[8,8] S(0)@[0, 1])"]),
    "other_placement": (1, ["rank 1 ones(f32[8,8] S(0)@[1, 0])", "ones(f32[8,8] S(0)@[0, 1])"]),
    "other_global_op": (1, ["rank 1 add(f32[8,8] S(0)@[0, 1], 3)", "mul(f32[8,8] S(0)@[0, 1], 2)"]),
    "other_number": (1, ["rank 1 sgd_step_(f32[8] B@[0, 1], f32[8] B@[0, 1], False, 1.1",
                         "rank 0 sgd_step_(f32[8] B@[0, 1], f32[8] B@[0, 1], False, 0.1"]),
    "other_draws": (1, ["rank 1 randn(f32[8] S(0)@[0, 1]", "rank 0 randn(f32[8] S(0)@[0, 1]"]),
    "interrupted": (130, ["rank 1 failed: KeyboardInterrupt", "KeyboardInterrupt"]),
    "late": (1, ["waited 1 s in all_reduce(f32[3], sum) for rank 1, which began all_reduce",
                 "rank 0 "]),
    "cancelled": (1, ["rank 1 failed: CancelledError", "CancelledError"]),
    "not_joined": (1, ["rank 1 has left", ""]),
    "nccl_fails": (1, ["",  # its device is a recorder's, which notes kernels and does not run them
                       "rank 1: NCCL failed at ncclAllReduce: the system refused something"]),
    "network_fails": (1, ["rank 1 failed: rank 1: NCCL failed at an exchange: another rank has",
                          "CommunicationError: rank 1 failed: rank 1: NCCL failed"]),
}  # fmt: skip


ON_DEVICES = {
    "other_op": "simulator", "bad_index": "simulator", "killed": "simulator",
    "network_fails": "simulator", "nccl_fails": "recorder",
}  # fmt: skip


@needs_mpi
@pytest.mark.parametrize(
    ("how", "driver"),
    [
        *((how, "") for how in FAILURES if "_fails" not in how or how == "stage_fails"),
        *ON_DEVICES.items(),
    ],
)
@pytest.mark.product(3)
def test_all_ranks_end_with_the_cause(how, driver, tmp_path):
    if driver:
        pytest.importorskip("numba_cuda")
    code, says = FAILURES[how]
    process = launch(2, "failing.py", how, str(tmp_path / "process"), driver=driver)
    lines = (process.stdout + process.stderr).splitlines()
    for rank, part in enumerate(says):
        own = "\n".join(line for line in lines if line.startswith(f"[{rank}] "))
        # whoever compares first says what it began itself
        either = own + "\n" + own.replace(" began ", " ")
        assert part in either, f"rank {rank} does not say {part!r}:\n" + "\n".join(lines)
    assert process.returncode == code, "\n".join(lines)
    where = "failing.py" if how not in ("killed", "stage_dies", "exits") else ""
    assert where in "\n".join(lines)
    if how in ("raises", "bad_index", "other_op", "other_shape"):
        assert "[0] nothing is exchanged any more" in lines
    assert any(f"failed first, {'killed by' if code > 128 else 'with'}" in one for one in lines)


@needs_mpi
def test_each_rank_says_for_whom_it_waits_and_in_what_that_one_is(tmp_path):
    process = launch(2, "failing.py", "in_a_circle", str(tmp_path))
    assert process.returncode == 0, process.stdout + process.stderr
    for rank, part in enumerate(
        (
            "in recv(f32[2,3], 1) for rank 1, which is in all_reduce(f32[3], sum)",
            "in all_reduce(f32[3], sum) for rank 0, which began all_reduce(f32[3], sum) last and "
            "is in recv(f32[2,3], 1)",
        )
    ):
        own = f"[{rank}]   rank {rank} waits "
        lines = [
            line for line in process.stdout.splitlines() if line.startswith(own) and part in line
        ]
        output = [
            line for line in process.stderr.splitlines() if line.startswith(own) and part in line
        ]
        assert lines, process.stdout  # by `flowvm top`
        assert output, process.stderr  # by the watchdog
    assert "flowvm: no progress for 0.1 s" in process.stderr


@needs_mpi
def test_a_step_that_fails_on_one_rank_leaves_all_ranks_their_parameters():
    process = launch(2, "restoring.py")
    for rank in (0, 1):
        for part in ("exchanges nothing any more", "trains on"):
            assert f"[{rank}] {part}" in process.stdout.splitlines(), (
                process.stdout + process.stderr
            )


@needs_mpi
def test_a_ctrl_c_ends_all_ranks():
    command = [
        sys.executable,
        "-m",
        "flowvm",
        "launch",
        "-n",
        "2",
        str(HERE / "failing.py"),
        "runs",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=HERE.parent.parent
    )
    assert process.stdout is not None
    output = b""
    try:
        while output.count(b"running") < 2:
            assert select.select([process.stdout], [], [], SECONDS)[0], output
            more = os.read(process.stdout.fileno(), 4096)
            assert more, output
            output += more
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=SECONDS)[0]
    finally:
        process.terminate()  # its ranks end with it
    assert process.returncode == 130, rest
    assert b"flowvm launch: interrupted" in rest


def test_launch_passes_arguments_and_the_exit_code_on(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nprint(sys.argv[1:], os.environ['FLOWVM_WORKERS'])\nsys.exit(7)\n"
    )
    command = [sys.executable, "-m", "flowvm", "launch", "-n", "1", "--threads", "3", str(script)]
    process = subprocess.run([*command, "--lr", "-n"], capture_output=True, text=True)
    assert process.stdout == "[0] ['--lr', '-n'] 3\n"
    assert process.returncode == 7
    assert "rank 0 failed first, with exit code 7" in process.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [(("-n", "0", "x.py"), "-n is 1 or more"), (("nowhere.py",), "no file nowhere.py")],
)
def test_launch_says_what_is_wrong(args, message):
    process = subprocess.run(
        [sys.executable, "-m", "flowvm", "launch", *args], capture_output=True, text=True
    )
    assert process.returncode == 1
    assert message in process.stderr


@needs_mpi
def test_what_ranks_recorded_is_one_run(tmp_path):
    process = launch(2, "recorded.py", str(tmp_path))
    assert process.returncode == 0, process.stdout + process.stderr
    assert "[0] said so" in process.stdout
    assert "came last" in process.stdout
