"""The program that `flowvm launch` lets mpiexec start: one rank, its lines marked with its number.

    python rank.py FOLDER COMMAND...

It is run as a file, so it imports nothing of flowvm.  It starts the command as a process of its own
and passes its output on, a line at a time.  When the process ends, a file in FOLDER says how.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from typing import IO

RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
PR_SET_PDEATHSIG = 1


def number() -> int:
    """Return the number of this rank."""
    return int(next((os.environ[name] for name in RANKS if name in os.environ), "0"))


def hand_over(source: IO[bytes], target: int, mark: bytes) -> None:
    """Copy the lines of `source` to a descriptor, each marked and in one piece."""
    for line in iter(source.readline, b""):
        text = mark + (line if line.endswith(b"\n") else line + b"\n")
        while text:
            text = text[os.write(target, text) :]


def main(folder: str, command: list[str]) -> int:
    """Run the command to its end.  Return its exit code, 128 and more if a signal ended it."""
    rank = number()
    mark = f"[{rank}] ".encode()
    # mpiexec signals by this that another rank has ended; without a handler it kills the process
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # of the command, too
    # in a group of its own, or a Ctrl-C would come to it twice; but it ends with this process
    libc = ctypes.CDLL(None)
    known = {**os.environ, "_FLOWVM_LAUNCH": folder}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, close_fds=False, env=known,
        process_group=0,
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL)),
    )  # fmt: skip
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, lambda signum, frame: process.send_signal(signum))
    assert process.stdout is not None
    assert process.stderr is not None
    pumps = [
        threading.Thread(target=hand_over, args=(pipe, to, mark), daemon=True)
        for pipe, to in ((process.stdout, 1), (process.stderr, 2))
    ]
    for pump in pumps:
        pump.start()
    code = process.wait()
    for pump in pumps:
        pump.join(1.0)  # a grandchild may hold the pipe
    name = os.path.join(folder, str(rank))
    with open(name + ".new", "w") as file:
        file.write(f"{time.time()} {code}")
    os.rename(name + ".new", name)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
