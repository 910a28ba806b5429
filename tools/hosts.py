"""`python -m tools.hosts [--delay 1] [--loss 0.1] [--rate 1000] -- COMMAND...`: hosts made of one.

A host is a set of namespaces of Linux: a network, a host name, shared memory, /tmp and /dev/shm of
its own.  Folders elsewhere are common to all, as on a file server.  Between the hosts is a link
with a delay (ms, one way), a loss (% of packets) and a rate (Mbit/s, each way): their network
devices are TUN devices, whose packets this process hands over when they are due.  So it needs
root and /dev/net/tun, and not `tc netem`, which many kernels lack.

COMMAND runs on the first host.  A program there starts others by `ssh`'s stand-in, whose path is
$FLOWVM_TEST_RSH:

    python -m tools.hosts -- python -m flowvm launch --hosts a:1,b:1 \\
        --mpiexec '-launcher ssh -launcher-exec RSH' train.py        # RSH: the stand-in's path
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import heapq
import os
import random
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MTU = 1500
QUEUED = 1 << 20  # bytes that wait for the link in one direction; more are lost
NAMES = "abcdefgh"
RSH = "FLOWVM_TEST_RSH"

# $1: the folder of this net, $2: the host's name, then folders below /tmp that stay common
_HOST = """
set -e
net=$1; hostname $2; shift 2
mount --make-rprivate /
mount --bind $net/hosts /etc/hosts
mount -t tmpfs none /mnt
for folder; do mkdir -p "/mnt$folder"; mount --bind "$folder" "/mnt$folder"; done
mount -t tmpfs none /tmp
for folder; do mkdir -p "$folder"; mount --move "/mnt$folder" "$folder"; done
umount -l /mnt
mount -t tmpfs none /dev/shm
echo ready
exec sleep infinity
"""
# as ssh is called: options, a host, a command for its shell
_SHELL = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
[ -e NET/$1 ] || { echo "no host $1" >&2; exit 255; }
host=$1; shift
exec nsenter -t $(cat NET/$host) --mount --uts --ipc --net sh -c "cd ROOT; $*"
"""


class Link(NamedTuple):
    """The link from each host to each other: ms, % of packets, Mbit/s; a rate of 0 is no limit."""

    delay: float = 0.0
    loss: float = 0.0
    rate: float = 0.0


NO_LIMITS = Link()


def why_not() -> str:
    """Say why there can be no hosts here, "" if there can."""
    if os.geteuid() != 0:
        return "hosts from namespaces need root"
    missing = [name for name in ("ip", "nsenter", "unshare", "mount") if not shutil.which(name)]
    if missing:
        return f"hosts from namespaces need {', '.join(missing)}"
    if not os.path.exists("/dev/net/tun"):
        return "hosts from namespaces need /dev/net/tun"
    process = subprocess.run(
        ["unshare", "--mount", "--uts", "--ipc", "--net", "mount", "--make-rprivate", "/"],
        capture_output=True, text=True,
    )  # fmt: skip
    return (
        f"namespaces are not allowed here: {process.stderr.strip()}" if process.returncode else ""
    )


class Net:
    """Some hosts, and what lies between them.  `with Net(2, Link(1, 0.1, 1000)) as net:`.

    seed    of the losses
    common  folders that all hosts have, beside those that are not below /tmp
    """

    def __init__(
        self, hosts: int, link: Link = NO_LIMITS, seed: int = 0, common: Sequence[Path] = ()
    ) -> None:
        self.names, self.link = NAMES[:hosts], link
        self.chance = random.Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="flowvm-net-"))
        self.holders: dict[str, subprocess.Popen[str]] = {}
        self.devices: dict[str, int] = {}  # what a host sends is read from it
        self.passed = self.lost = 0  # packets
        self.silent: set[str] = set()  # hosts of which nothing is heard
        self.ended = threading.Event()
        folders = [ROOT, self.folder, Path(sys.prefix), *common]
        below = {f.resolve() for f in folders if f.resolve().is_relative_to("/tmp")}
        self.common = {str(f) for f in below if not below & {*f.parents}}
        self.relay = threading.Thread(target=self._hand_over, name="link", daemon=True)

    @property
    def shell(self) -> Path:
        """The stand-in for ssh."""
        return self.folder / "rsh"

    def address(self, name: str) -> str:
        """The address of a host."""
        return f"10.213.0.{self.names.index(name) + 1}"

    def __enter__(self) -> Net:
        lines = [f"{self.address(name)} {name}" for name in self.names]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        text = _SHELL.replace("NET", str(self.folder)).replace("ROOT", shlex.quote(str(ROOT)))
        self.shell.write_text(text)
        self.shell.chmod(0o755)
        try:
            for name in self.names:
                self._start(name)
        except BaseException:
            self.__exit__()
            raise
        self.relay.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        for name in [*self.holders]:
            self.end(name)
        if self.relay.ident:
            self.relay.join()
        for device in self.devices.values():
            os.close(device)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, name: str) -> None:
        script = [
            "unshare", "--mount", "--uts", "--ipc", "--net", "sh", "-c", _HOST, "sh",
            str(self.folder), name, *sorted(self.common),
        ]  # fmt: skip
        holder = self.holders[name] = subprocess.Popen(
            script, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )
        assert holder.stdout is not None
        if holder.stdout.readline() != "ready\n":
            raise OSError(f"host {name} did not start")
        device = self.devices[name] = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        called = f"fv{os.getpid()}{name}"
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", called.encode(), IFF_TUN | IFF_NO_PI))
        self._ip("link", "set", called, "netns", str(holder.pid))
        for more in (
            ("link", "set", "lo", "up"), ("link", "set", called, "name", "eth0"),
            ("link", "set", "eth0", "mtu", str(MTU)),
            ("addr", "add", f"{self.address(name)}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
        ):  # fmt: skip
            self._ip(*more, inside=holder.pid)
        (self.folder / name).write_text(str(holder.pid))

    def _ip(self, *args: str, inside: int = 0) -> None:
        enter = ["nsenter", "-t", str(inside), "--net"] if inside else []
        subprocess.run([*enter, "ip", *args], check=True)

    def end(self, name: str) -> None:
        """Let a host be gone: its processes, and its address."""
        (self.folder / name).unlink(missing_ok=True)
        holder = self.holders.pop(name)
        if holder.poll() is None:
            for process in self.processes(holder.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        holder.wait()

    def cut(self, name: str) -> None:
        """Let nothing come from a host and nothing reach it: nobody is told."""
        self.silent.add(name)

    def processes(self, holder: int) -> list[int]:
        """The processes of a host, given the one that holds its namespaces."""
        inside = os.stat(f"/proc/{holder}/ns/net").st_ino
        processes = []
        for place in Path("/proc").iterdir():
            if place.name.isdecimal():
                with contextlib.suppress(OSError):
                    if (place / "ns/net").stat().st_ino == inside:
                        processes.append(int(place.name))
        return processes

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        """The command that runs another one on a host."""
        return [str(self.shell), name, shlex.join(command)]

    def environment(self) -> dict[str, str]:
        """The environment of programs on hosts."""
        return {**os.environ, RSH: str(self.shell)}

    def launch(self, *args: str) -> list[str]:
        """The command of `flowvm launch` on the first host, with these arguments."""
        started = [
            sys.executable, "-m", "flowvm", "launch", "--mpiexec",
            f"-launcher ssh -launcher-exec {self.shell}", *args,
        ]  # fmt: skip
        return self.command(self.names[0], started)

    # --- the link ---------------------------------------------------------------------------------

    def _hand_over(self) -> None:
        """Read packets of all hosts, and give each to its receiver when it is due."""
        receivers = {
            bytes(map(int, self.address(name).split("."))): device
            for name, device in self.devices.items()
        }
        due: list[tuple[float, int, int, bytes]] = []  # when, number, to whom, the packet
        free: dict[Any, float] = {}  # when the link from one to another has sent all so far
        number = 0
        while not self.ended.is_set():
            now = time.monotonic()
            while due and due[0][0] <= now:
                _, _, target, packet = heapq.heappop(due)
                with contextlib.suppress(OSError):  # the host is gone, or does not read
                    os.write(target, packet)
                    self.passed += 1
            wait = min(0.05, due[0][0] - now) if due else 0.05
            devices = [device for device in self.devices.values() if _is_there(device)]
            mute = {self.devices[name] for name in self.silent}
            for source in select.select(devices, [], [], max(0.0, wait))[0]:
                for packet in _packets(source):
                    target = receivers.get(packet[16:20], -1) if packet[0] >> 4 == 4 else -1
                    now, size = time.monotonic(), len(packet)
                    begins = max(now, free.get((source, target), 0.0))
                    seconds = 8e-6 * size / self.link.rate if self.link.rate else 0.0
                    waits = (begins - now) * self.link.rate / 8e-6
                    if target < 0:
                        continue
                    random_loss = self.chance.random() * 100 < self.link.loss
                    if random_loss or waits > QUEUED or mute & {source, target}:
                        self.lost += 1
                        continue
                    free[source, target] = begins + seconds
                    number += 1
                    sent = begins + seconds + self.link.delay / 1000
                    heapq.heappush(due, (sent, number, target, packet))


def _packets(device: int) -> Iterator[bytes]:
    """The packets that can be read at once, some at most."""
    with contextlib.suppress(OSError):  # all were read, or the host is gone
        for _ in range(64):
            yield os.read(device, MTU + 100)


def _is_there(device: int) -> bool:
    """Return True if a device's host has not ended."""
    try:
        os.write(device, b"")
    except OSError as error:
        return error.errno != errno.EBADFD
    return True


def main() -> int:
    """Run a command on the first of some hosts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--hosts", type=int, default=2)
    for name, unit in (("delay", "ms, one way"), ("loss", "%% of packets"), ("rate", "Mbit/s")):
        parser.add_argument(f"--{name}", type=float, default=0.0, help=unit)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    if why := why_not():
        print(why, file=sys.stderr)
        return 2
    with Net(args.hosts, Link(args.delay, args.loss, args.rate)) as net:
        process = subprocess.run(net.command("a", args.command), env=net.environment(), check=False)
        print(f"{net.passed} packets passed, {net.lost} were lost", file=sys.stderr)
        return process.returncode


if __name__ == "__main__":
    sys.exit(main())
