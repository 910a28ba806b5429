"""`flowvm launch -n 4 train.py`: a program on several ranks, of this machine or others, by mpiexec.

Each rank gets its part of the cores, each line of output the number of its rank.  When a rank
fails, the others hear of it (`flowvm.ranks.watcher`), report their waits and end; the rest are
ended.  The exit code is the first failed rank's.

`--restarts 3` starts all ranks anew when one has failed, on the hosts that still answer.  The
program finds by `flow.distributed.restart()` how often, why, and the newest whole checkpoint.
"""

import argparse
import contextlib
import ctypes
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from flowvm.commands import rank
from flowvm.commands.reports import Reports
from flowvm.errors import ArgumentError, CommunicationError
from flowvm.files.newest import newest, swept
from flowvm.guards import processes
from flowvm.ranks.launch_env import RESTART
from flowvm.ranks.library import INSTALL, is_installed, wheel_file

PATIENCE = 10.0  # seconds that the others get to end after a rank has failed
AT_ONCE = 3.0  # and after a request to end
LOOK = 0.05
TOLD = 1.0  # seconds that the last reports may be on their way
ANSWER = 20.0  # seconds that a host may take to start a process
INTERRUPTED = 130
HERE = {"localhost", "127.0.0.1"}
# variables by which mpiexec finds hosts that its command does not name
SCHEDULERS = (
    "HYDRA_HOST_FILE", "LSB_HOSTS", "LSB_MCPU_HOSTS", "PBS_NODEFILE", "PE_HOSTFILE",
    "SLURM_JOB_NODELIST", "SLURM_NODELIST",
)  # fmt: skip
_SLOTS = re.compile(
    r"(?P<host>[^\s:,]+)(?::(?P<count>\d+)|\s+(?:slots|max_slots)=(?P<slots>\d+).*)?"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `flowvm launch`."""
    parser.add_argument("-n", "--ranks", type=int, help="how many ranks (default: all slots, or 2)")
    parser.add_argument(
        "--threads", type=int, default=0, help="threads of a rank (default: cores / ranks)"
    )
    parser.add_argument(
        "--hosts", default="", metavar="HOSTS",
        help="'a:4,b:4', or a file (default: here)",
    )  # fmt: skip
    parser.add_argument(
        "--restarts", type=int, default=0, metavar="N",
        help="restarts when a rank fails",
    )  # fmt: skip
    parser.add_argument(
        "--checkpoint", default="", metavar="DIR",
        help="where its checkpoints are",
    )  # fmt: skip
    parser.add_argument("--mpiexec", default="", metavar="ARGS", help="more for mpiexec")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT names a module")
    parser.add_argument("script", metavar="SCRIPT", help="a Python file, or with -m a module")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="ARGS", help="arguments for it")


class Ending(NamedTuple):
    """The end of all ranks: the exit code, and why it is not 0."""

    code: int
    why: str = ""


def main(args: argparse.Namespace) -> int:
    """Run the program on all ranks.  Return the exit code of the one that failed first, 0 if none
    did.
    """
    if args.ranks is not None and args.ranks < 1:
        raise ArgumentError(f"launch: -n is 1 or more, got {args.ranks}")
    if args.restarts < 0:
        raise ArgumentError(f"launch: --restarts is 0 or more, got {args.restarts}")
    if not args.module and not Path(args.script).exists():
        raise ArgumentError(f"launch: there is no file {args.script}; -m is for modules")
    hosts, ending = slots(args.hosts), Ending(0)
    for count in range(args.restarts + 1):
        if count:
            hosts = answering(slots(args.hosts), shlex.split(args.mpiexec))
        ranks = count_of_ranks(args.ranks, hosts, again=count > 0)
        known = environment(args.threads) | resumption(count, ending.why, args.checkpoint)
        if count:
            place = json.loads(known[RESTART])["checkpoint"]
            print(
                f"flowvm launch: restart {count} of {args.restarts} on {ranks} ranks, from "
                f"{place or 'the beginning'}", file=sys.stderr,
            )  # fmt: skip
        ending = run(args, ranks, hosts, known)
        if ending.code in (0, INTERRUPTED):
            break
    return ending.code


def count_of_ranks(requested: int | None, hosts: dict[str, int], again: bool) -> int:
    """Return how many ranks to start.  At a new start it is not more than hosts are left."""
    total = sum(hosts.values())
    if requested is None:
        return total or 2
    return min(requested, total) if again and hosts else requested


def resumption(count: int, why: str, folder: str) -> dict[str, str]:
    """Return the variable that tells the ranks how often they were started anew, and from where.
    Parts of unfinished checkpoints are removed.
    """
    place = None
    if folder:
        for path in swept(Path(folder)):
            print(f"flowvm launch: removed {path}, of an unfinished checkpoint", file=sys.stderr)
        place = newest(Path(folder).resolve())
    content = {"count": count, "reason": why or None, "checkpoint": place and str(place)}
    return {RESTART: json.dumps(content)}


# --- hosts ----------------------------------------------------------------------------------------


def slots(hosts: str) -> dict[str, int]:
    """Return how many ranks each host takes, from "a:4,b:4" or a file, which is read anew each
    time; nothing: this machine.

    ArgumentError for a line that names no host, or if there is none.
    """
    if not hosts:
        return {}
    lines = Path(hosts).read_text().splitlines() if Path(hosts).is_file() else hosts.split(",")
    counts: dict[str, int] = {}
    for line in lines:
        text = line.partition("#")[0].strip()
        match = _SLOTS.fullmatch(text)
        if text and not match:
            raise ArgumentError(
                f"launch: --hosts: a host is 'a', 'a:4' or 'a slots=4', got {text!r}"
            )
        if match:
            number = int(match["count"] or match["slots"] or 1)
            counts[match["host"]] = counts.get(match["host"], 0) + number
    if not sum(counts.values()):
        raise ArgumentError(f"launch: --hosts names no host: {hosts!r}")
    return counts


def answering(hosts: dict[str, int], more: Sequence[str]) -> dict[str, int]:
    """Return the hosts on which mpiexec can start a process; CommunicationError if none is left."""
    if not hosts:
        return {}
    replies = {
        host: processes.start(
            [*mpiexec(1, {host: 1}), *more, "true"], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )
        for host in hosts
    }  # fmt: skip
    until, hosts_left = time.monotonic() + ANSWER, {}
    for host, process in replies.items():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
        if process.poll() == 0:
            hosts_left[host] = hosts[host]
        else:
            print(f"flowvm launch: host {host} does not answer", file=sys.stderr)
        _end(process, 0.0)
    if not hosts_left:
        raise CommunicationError(f"launch: none of the hosts answers: {', '.join(hosts)}")
    return hosts_left


def mpiexec(ranks: int, hosts: Mapping[str, int] | None = None) -> list[str]:
    """mpiexec with its arguments; CommunicationError if there is none."""
    folders = [os.path.dirname(sys.executable)]
    if library := os.environ.get("MPI4PY_LIBMPI"):  # its own comes first
        folders.insert(0, str(Path(library).resolve().parent.parent / "bin"))
    beside = shutil.which("mpiexec", path=os.pathsep.join(folders))
    path = beside or wheel_file("mpiexec", "mpirun") or shutil.which("mpiexec")
    if path is None or not is_installed():
        missing = "mpiexec" if path is None else "mpi4py with an MPI library"
        raise CommunicationError(f"launch: several ranks need {missing}: {INSTALL}")
    version = processes.output([path, "--version"])
    where = ",".join(f"{host}:{count}" for host, count in (hosts or {}).items())
    if "HYDRA" in version:  # otherwise it ends the other ranks before they can report their waits
        return [path, "-disable-auto-cleanup", *(["-hosts", where] if where else []),
                "-n", str(ranks)]  # fmt: skip
    option = ["--host", where] if where else []
    if "Open MPI" in version:  # which passes no variables to other hosts but these
        option += ["--oversubscribe", "-x", rank.TOKEN]
    return [path, *option, "-n", str(ranks)]


def environment(threads: int) -> dict[str, str]:
    """Return variables for the ranks: output without buffers, and their numbers of threads where
    they are not to share the cores of their host.
    """
    each = {"FLOWVM_WORKERS": str(threads)} if threads else {}
    return {"PYTHONUNBUFFERED": "1", **each}


# --- one start ------------------------------------------------------------------------------------


def run(
    args: argparse.Namespace, ranks: int, hosts: dict[str, int], known: dict[str, str]
) -> Ending:
    """Start all ranks, and wait for their end."""
    command = processes.program(*(["-m"] if args.module else []), args.script, *args.rest)
    elsewhere = bool(set(hosts) - HERE or args.mpiexec)
    everywhere = elsewhere or (not hosts and any(name in os.environ for name in SCHEDULERS))
    reports = Reports(everywhere, known)
    with tempfile.TemporaryDirectory(
        prefix="flowvm-launch-", ignore_cleanup_errors=True
    ) as folder, contextlib.closing(reports):  # fmt: skip
        started = processes.isolated(str(rank.__file__), folder, reports.where, *command)
        if ranks > 1 or hosts:
            started = [*mpiexec(ranks, hosts), *shlex.split(args.mpiexec), *started]
        return follow(started, {**os.environ, rank.TOKEN: reports.token}, reports)


def follow(command: Sequence[str], known: dict[str, str], reports: Reports) -> Ending:
    """Run the launcher to its end.  End it if ranks stay after a failure or a Ctrl-C."""
    libc = ctypes.CDLL(None)
    process = processes.start(
        list(command), env=known, start_new_session=True,
        preexec_fn=lambda: libc.prctl(rank.PR_SET_PDEATHSIG, int(signal.SIGTERM)),
    )  # fmt: skip
    try:
        return _wait(process, reports)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)  # which it hands on
        _end(process, PATIENCE)
        print("flowvm launch: interrupted", file=sys.stderr)
        return Ending(INTERRUPTED, "interrupted")
    finally:
        _end(process, 0.0)


def _wait(process: subprocess.Popen[bytes], reports: Reports) -> Ending:
    deadline = 0.0
    while process.poll() is None:
        reports.look(LOOK)
        if not deadline and reports.failures():
            deadline = time.monotonic() + PATIENCE
        if deadline and reports.are_complete():  # nobody is left who could say anything
            deadline = min(deadline, time.monotonic() + AT_ONCE)
        if deadline and time.monotonic() > deadline:
            print("flowvm launch: ending ranks that are left", file=sys.stderr)
            break
    _end(process, 0.0)
    until = time.monotonic() + TOLD
    while not reports.are_complete() and time.monotonic() < until:
        reports.look(LOOK)
    failures = reports.failures()
    if not failures:
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        return Ending(code, f"the launcher of ranks ended with exit code {code}")
    first = failures[0]
    others = f", and after it {len(failures) - 1} more" if len(failures) > 1 else ""
    why = f"rank {first.rank} failed first, {first.how}"
    print(f"flowvm launch: {why}{others}", file=sys.stderr)
    return Ending(first.exit_code, why + (f": {first.text}" if first.text else ""))


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
