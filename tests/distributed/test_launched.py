"""The facts that a process finds about its launcher, and its messages where there is no MPI."""

import os
import subprocess
import sys

import pytest

from flowvm.commands import launch
from flowvm.errors import CommunicationError
from flowvm.ranks import launch_env

VARIABLES = [name for pair in (*launch_env.LAUNCHERS, launch_env.SLURM) for name in pair]


@pytest.mark.parametrize(
    ("variables", "rank", "ranks"),
    [
        ({}, 0, 1),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, 2, 4),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, 0, 1),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "PMIX_RANK": "1"}, 1, 3),
        ({"PMIX_RANK": "1"}, 1, 0),
        ({"PMIX_RANK": "1", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, 1, 2),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8"}, 5, 8),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, 0, 1),  # a batch script, and not srun
    ],
)
def test_launchers_are_known_by_what_they_leave(variables, rank, ranks, monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launch_env.launched_rank() == rank
    assert launch_env.launched_ranks() == ranks
    assert launch_env.is_launched() is (ranks != 1)


def python(program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    known = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return subprocess.run(
        [sys.executable, "-c", program], env={**known, **environ}, capture_output=True, text=True
    )


def test_importing_flowvm_imports_nothing_of_mpi():
    process = python(
        "import sys, flowvm as flow\n"
        "flow.distributed.init_process_group()\n"
        "x = flow.ones(2)\n"
        "flow.distributed.all_reduce(x)\n"
        "flow.nn.parallel.DistributedDataParallel(flow.nn.Linear(2, 2))(x).sum().backward()\n"
        "print(x.tolist(), [name for name in sys.modules if name.startswith('mpi4py')])"
    )
    assert process.stdout == "[1.0, 1.0] []\n", process.stderr


def test_ranks_without_mpi_say_what_to_install():
    process = python(
        "import sys\n"
        "sys.modules['mpi4py'] = None\n"
        "import flowvm.distributed as dist\n"
        "assert not dist.is_available()\n"
        "dist.init_process_group()",
        PMI_RANK="0",
        PMI_SIZE="2",
    )
    assert "CommunicationError: several ranks need MPI" in process.stderr
    assert "pip install 'flowvm[mpi]'" in process.stderr


def test_launching_without_mpi_says_what_to_install(monkeypatch):
    monkeypatch.setattr(launch, "is_installed", lambda: False)
    with pytest.raises(CommunicationError, match=r"launch: several ranks need .*pip install"):
        launch.mpiexec(2)


def test_an_mpiexec_of_another_mpi_is_told():
    library = launch.wheel_file("libmpi.so.12")
    if not library or not launch.is_installed():
        pytest.skip("mpi4py and MPICH's wheel are not installed")
    # as if Open MPI's mpiexec had started two, for which MPICH's library is alone
    process = python(
        "import flowvm.distributed as dist; dist.init_process_group()",
        OMPI_COMM_WORLD_RANK="0",
        OMPI_COMM_WORLD_SIZE="2",
        MPI4PY_LIBMPI=library,
    )
    assert "it is not the launcher's MPI" in process.stderr
