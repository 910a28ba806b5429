"""The number and the count of launched processes, read from the launcher's environment variables.

Every `import flowvm` calls this module, so it imports nothing heavy.
"""

from __future__ import annotations

import os

LAUNCH = (
    "_FLOWVM_LAUNCH"  # of `flowvm launch`: its folder of marks, which differs from launch to launch
)
RESTART = "_FLOWVM_RESTART"  # and how often it has started the ranks anew, as JSON

# number of the rank, how many there are: of MPICH's and Intel's mpiexec, Open MPI's, PMIx
LAUNCHERS = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
)
# of `flowvm launch`, PMIx, Open MPI, Slurm: what names a launch
NAMES = (LAUNCH, "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "SLURM_STEP_ID")
# srun's come last: a batch script has them too, without being one of several
SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")


def launched_ranks() -> int:
    """Return the number of processes that the launcher started; 1: no launcher, 0: it does not
    say.
    """
    for number, count in LAUNCHERS:
        if number in os.environ:
            return _number(count, 0)
    return _number(SLURM[1], 1) if SLURM[0] in os.environ else 1


def launched_rank() -> int:
    """Return the number of this process among the launched ones; 0 without a launcher."""
    for number, _ in (*LAUNCHERS, SLURM):
        if number in os.environ:
            return _number(number, 0)
    return 0


def launch_name() -> str:
    """Return a name that all processes of this launch share and no other launch has; "" if the
    launcher gives none.
    """
    return "/".join(os.environ[name] for name in NAMES if name in os.environ)


def is_launched() -> bool:
    """Return True if this process is one of several (mpiexec, srun, flowvm launch)."""
    return launched_ranks() != 1


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default
