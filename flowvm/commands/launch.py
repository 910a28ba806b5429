"""`flowvm launch -n 4 train.py`: a program on several ranks of this machine, by mpiexec.

Each rank gets its part of the cores, each line of output the number of its rank.  When a rank
fails, the others hear of it (`flowvm.ranks.watcher`), report their waits and end; the rest are
ended.  The exit code is the first failed rank's.
"""

import argparse
import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from flowvm.commands import rank
from flowvm.errors import ArgumentError, CommunicationError
from flowvm.guards import processes
from flowvm.ranks.library import INSTALL, is_installed, wheel_file
from flowvm.ranks.watcher import BROKEN, ENDED, FIRST

PATIENCE = 10.0  # seconds that the others get to end after a rank has failed
AT_ONCE = 3.0  # and after a request to end
LOOK = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `flowvm launch`."""
    parser.add_argument("-n", "--ranks", type=int, default=2, help="how many ranks (default: 2)")
    parser.add_argument(
        "--threads", type=int, default=0, help="threads of a rank (default: cores / ranks)"
    )
    parser.add_argument(
        "--mpiexec", default="", metavar="ARGS", help="more for mpiexec, such as '-hosts a,b'"
    )
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT names a module")
    parser.add_argument("script", metavar="SCRIPT", help="a Python file, or with -m a module")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="ARGS", help="arguments for it")


def main(args: argparse.Namespace) -> int:
    """Run the program on all ranks.  Return the exit code of the one that failed first, 0 if none
    did.
    """
    if args.ranks < 1:
        raise ArgumentError(f"launch: -n is 1 or more, got {args.ranks}")
    if not args.module and not Path(args.script).exists():
        raise ArgumentError(f"launch: there is no file {args.script}; -m is for modules")
    command = processes.program(*(["-m"] if args.module else []), args.script, *args.rest)
    with tempfile.TemporaryDirectory(prefix="flowvm-launch-") as folder:
        started = processes.isolated(str(rank.__file__), folder, *command)
        if args.ranks > 1:
            started = [*mpiexec(args.ranks), *shlex.split(args.mpiexec), *started]
        return follow(started, environment(args.ranks, args.threads), Path(folder))


def mpiexec(ranks: int) -> list[str]:
    """mpiexec with its arguments; CommunicationError if there is none."""
    folders = [os.path.dirname(sys.executable)]
    if library := os.environ.get("MPI4PY_LIBMPI"):  # its own comes first
        folders.insert(0, str(Path(library).resolve().parent.parent / "bin"))
    beside = shutil.which("mpiexec", path=os.pathsep.join(folders))
    path = beside or wheel_file("mpiexec", "mpirun") or shutil.which("mpiexec")
    if path is None or not is_installed():
        missing = "mpiexec" if path is None else "mpi4py with an MPI library"
        raise CommunicationError(f"launch: several ranks need {missing}: {INSTALL}")
    told = processes.output([path, "--version"])
    if "HYDRA" in told:  # otherwise it ends the other ranks before they can report their waits
        return [path, "-disable-auto-cleanup", "-n", str(ranks)]
    return [path, *(["--oversubscribe"] if "Open MPI" in told else []), "-n", str(ranks)]


def environment(ranks: int, threads: int) -> dict[str, str]:
    """Return the environment of ranks: their numbers of threads, and output without buffers."""
    cores = len(os.sched_getaffinity(0))
    each = str(threads or max(1, cores // ranks))
    known = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if threads:
        known["FLOWVM_WORKERS"] = each
    return {"FLOWVM_WORKERS": each, "OMP_NUM_THREADS": each, **known}


def follow(command: Sequence[str], known: dict[str, str], folder: Path) -> int:
    """Run the launcher to its end.  End it if ranks stay after a failure or a Ctrl-C."""
    libc = ctypes.CDLL(None)
    process = processes.start(
        list(command), env=known, start_new_session=True,
        preexec_fn=lambda: libc.prctl(rank.PR_SET_PDEATHSIG, int(signal.SIGTERM)),
    )  # fmt: skip
    try:
        return _wait(process, folder)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)  # which it hands on
        _end(process, PATIENCE)
        print("flowvm launch: interrupted", file=sys.stderr)
        return 130
    finally:
        _end(process, 0.0)


def _wait(process: subprocess.Popen[bytes], folder: Path) -> int:
    deadline = 0.0
    while process.poll() is None:
        if not deadline and failed(folder):
            deadline = time.monotonic() + PATIENCE
        if deadline and time.monotonic() > deadline:
            print("flowvm launch: ending ranks that are left", file=sys.stderr)
            break
        time.sleep(LOOK)
    _end(process, 0.0)
    first = failed(folder)
    if not first:
        return process.returncode if process.returncode >= 0 else 128 - process.returncode
    _, number, code = first[0]
    others = f", and after it {len(first) - 1} more" if len(first) > 1 else ""
    print(f"flowvm launch: rank {number} failed first, {_how(code)}{others}", file=sys.stderr)
    return code if code > 0 else 128 - code


def failed(folder: Path) -> list[tuple[float, int, int]]:
    """Return (when, rank, exit code) of the ranks that have failed, the first one first.

    A rank whose program came to its end has failed, too, if it says so: the program may not have
    read the result of a failed exchange.
    """
    ranks = []
    for path in folder.iterdir():
        if path.name.isdecimal():
            when, code = path.read_text().split()
            first, ended = path.with_suffix(FIRST), path.with_suffix(ENDED)
            if int(code) or path.with_suffix(BROKEN).exists():
                since = ended.stat().st_mtime if ended.exists() else float(when)
                ranks.append((0.0 if first.exists() else since, int(path.name), int(code) or 1))
    return sorted(ranks)


def _how(code: int) -> str:
    if code > 0:
        return f"with exit code {code}"
    known = {s.value: s.name for s in signal.Signals}
    return f"killed by {known.get(-code, f'signal {-code}')}"


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    """Wait for the launcher.  End it and its ranks after a time."""
    for seconds, number in (
        (patience, signal.SIGTERM),
        (AT_ONCE, signal.SIGKILL),
        (AT_ONCE, signal.SIGKILL),
    ):
        try:
            process.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, number)
