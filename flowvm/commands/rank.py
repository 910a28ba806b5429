"""The program that `flowvm launch` lets mpiexec start: one rank, its lines marked with its number.

    python rank.py FOLDER PORT,ADDRESS... COMMAND...

It is run as a file, so it imports nothing of flowvm.  It starts the command as a process of its own
and passes its output on, a line at a time.  It has a connection to the launcher, which may be on
another host (`flowvm.commands.reports`).  A *mark* is a small file in FOLDER, which each host has
for itself: those that the process leaves are told to the launcher, and what the launcher tells is
left for the process.  `flowvm.ranks.watcher` has their names.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from typing import IO

RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
LOCAL = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
BESIDE = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_TASKS_PER_NODE")
TOKEN = "_FLOWVM_TOKEN"  # the environment variable of the word that the launcher knows its ranks by
PR_SET_PDEATHSIG = 1
LOOK = 100  # milliseconds between two looks at the marks
CONNECTED = 10.0  # seconds that an address of the launcher may take to answer
# a host that is gone is given up after 3 + 4 * 3 seconds; one whose process is stopped answers
KEPT_ALIVE = (("TCP_KEEPIDLE", 3), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 4))
ANSWERED = 15_000  # milliseconds until what was sent is acknowledged


def number() -> int:
    """Return the number of this rank."""
    return int(next((os.environ[name] for name in RANKS if name in os.environ), "0"))


def threads() -> int:
    """Return the number of threads that a rank of this host has cores for."""
    texts = (os.environ.get(name, "") for name in BESIDE)
    ranks = next((int(text) for text in texts if text.isdecimal()), 1)
    return max(1, len(os.sched_getaffinity(0)) // max(1, ranks))


def torchrun(rank: int, places: str) -> dict[str, str]:
    """Return the variables by which programs of torchrun know a rank."""

    def number_of(names: tuple[str, ...], default: str) -> str:
        texts = (os.environ.get(name, "") for name in names)
        return next((text for text in texts if text.isdecimal()), default)

    return {
        "RANK": str(rank),
        "WORLD_SIZE": number_of(SIZES, "1"),
        "LOCAL_RANK": number_of(LOCAL, "0"),
        "LOCAL_WORLD_SIZE": number_of(BESIDE, "1"),
        "MASTER_ADDR": os.environ.get("MASTER_ADDR") or places.split(",")[1],
        "MASTER_PORT": os.environ.get("MASTER_PORT") or "29500",
    }


def hand_over(source: IO[bytes], target: int, mark: bytes) -> None:
    """Copy the lines of `source` to a descriptor, each marked and in one piece."""
    for line in iter(source.readline, b""):
        text = mark + (line if line.endswith(b"\n") else line + b"\n")
        while text:
            text = text[os.write(target, text) :]


def keep_alive(link: socket.socket) -> None:
    """Let a connection end soon where the other host is gone."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEPT_ALIVE:
        link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, ANSWERED)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def connection(places: str) -> socket.socket:
    """Return a connection to the launcher, by the first of its addresses that answers."""
    port, *addresses = places.split(",")
    why = []
    for address in addresses:
        try:
            link = socket.create_connection((address, int(port)), CONNECTED)
        except OSError as error:
            why.append(f"{address}: {error.strerror or error}")
            continue
        keep_alive(link)
        return link
    raise OSError(f"cannot reach the launcher at port {port} of {'; '.join(why)}")


class Rank:
    """One rank: its process, its marks, its connection."""

    def __init__(self, folder: str, link: socket.socket) -> None:
        self.number, self.folder, self.link = number(), folder, link
        self.read, self.marks = b"", set[str]()
        self.say(rank=self.number, token=os.environ.get(TOKEN, ""), host=socket.gethostname())
        self.environment: dict[str, str] = {}
        while not self.environment:  # the environment comes first
            self.hear()
        link.setblocking(False)

    def path(self, ending: str) -> str:
        """Return the path of a mark."""
        return os.path.join(self.folder, f"{self.number}{ending}")

    def say(self, **what: object) -> None:
        """Tell the launcher something; a launcher that is gone is found by `hear`."""
        with contextlib.suppress(OSError):
            self.link.sendall(json.dumps(what).encode() + b"\n")

    def hear(self) -> None:
        """Take what the launcher says; OSError when it is gone."""
        try:
            data = self.link.recv(1 << 16)
        except BlockingIOError:
            return
        if not data:
            raise OSError("the launcher of this rank has ended")
        *lines, self.read = (self.read + data).split(b"\n")
        for line in lines:
            what = json.loads(line)
            self.environment = what.get("environment", self.environment)
            if "mark" in what:
                self.marks.add(what["mark"])
                new = os.path.join(self.folder, f".{self.number}{what['mark']}")
                with open(new, "w") as file:
                    file.write(what["text"])
                os.rename(new, self.path(what["mark"]))

    def make_folder(self) -> None:
        """Make the folder of marks, which other ranks of this host make and remove as well."""
        while True:
            with contextlib.suppress(FileNotFoundError):
                os.makedirs(self.folder, 0o700, exist_ok=True)
                open(self.path(""), "w").close()
                return

    def remove_folder(self) -> None:
        """Remove this rank's marks, and the folder if they were the last."""
        for ending in (*self.marks, ""):
            with contextlib.suppress(OSError):
                os.unlink(self.path(ending))
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)

    def look(self) -> None:
        """Tell the launcher of new marks."""
        own = str(self.number)
        for name in os.listdir(self.folder):
            front, dot, end = name.partition(".")
            if front == own and dot and dot + end not in self.marks:
                self.marks.add(dot + end)
                with open(os.path.join(self.folder, name), errors="replace") as file:
                    self.say(mark=dot + end, text=file.read())

    def follow(self, process: "subprocess.Popen[bytes]") -> int:
        """Wait for the process, which is ended if the launcher is gone.  Return its exit code."""
        poll = select.poll()
        ending = os.pidfd_open(process.pid)
        poll.register(ending, select.POLLIN)
        poll.register(self.link, select.POLLIN)
        while process.poll() is None:
            ready = [descriptor for descriptor, _ in poll.poll(LOOK)]
            if self.link.fileno() in ready:
                try:
                    self.hear()
                except OSError as error:
                    print(f"flowvm launch: rank {self.number} is ended: {error}", file=sys.stderr)
                    poll.unregister(self.link)
                    process.kill()
            self.look()
        os.close(ending)
        return process.wait()


def main(folder: str, places: str, command: list[str]) -> int:
    """Run the command to its end.  Return its exit code, 128 and more if a signal ended it."""
    # mpiexec signals by this that another rank has ended; without a handler it kills the process
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # of the command, too
    try:
        rank = Rank(folder, connection(places))
    except OSError as error:
        print(f"flowvm launch: rank {number()} on {socket.gethostname()}: {error}", file=sys.stderr)
        return 1
    rank.make_folder()
    mark = f"[{rank.number}] ".encode()
    # in a group of its own, or a Ctrl-C would come to it twice; but it ends with this process
    libc = ctypes.CDLL(None)
    each = str(threads())
    known = {"FLOWVM_WORKERS": each, "OMP_NUM_THREADS": each, **os.environ, **rank.environment}
    known |= {"_FLOWVM_LAUNCH": folder} | torchrun(rank.number, places)
    known.pop(TOKEN, None)
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
    code = rank.follow(process)
    for pump in pumps:
        pump.join(1.0)  # a grandchild may hold the pipe
    rank.look()
    rank.link.setblocking(True)
    rank.say(code=code)
    rank.link.close()
    rank.remove_folder()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
