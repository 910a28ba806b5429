"""Several hosts, made of namespaces, with a link that is slow and loses packets: `tools.hosts`."""

import json
import subprocess
import sys

import pytest

from tests.distributed.test_ranks import SECONDS, why_not
from tools import hosts, lost

missing = hosts.why_not() or why_not()
pytestmark = pytest.mark.skipif(bool(missing), reason=missing or "all is there")
FORCED_BUFFER = (
    33  # SO_RCVBUFFORCE of asm-generic/socket.h: beyond what the system allows by itself
)
LINK = hosts.Link(delay=0.2, loss=0.1, rate=400)
CHECKS = [
    "check_ranks_know_their_hosts",
    "check_messages",
    "check_ddp_trains_as_one_rank_does",
    "check_sharded_training_is_that_of_one_rank",
    "check_tensor_parallel_modules",
    "check_a_pipeline_trains_as_one_rank_does",
    "check_training_goes_on_from_a_checkpoint",
    "check_a_folder_of_one_host_is_refused",
]


def test_ranks_of_two_hosts_agree_with_numpy(tmp_path):
    with hosts.Net(2, LINK, common=[tmp_path]) as net:
        args = ["--hosts", "a:2,b:2", "tests/distributed/checks.py", str(tmp_path), *CHECKS]
        process = subprocess.run(
            net.launch(*args), capture_output=True, text=True, timeout=SECONDS,
            env={**net.environment(), "TMPDIR": str(tmp_path)},
        )  # fmt: skip
        assert net.passed > 1000
    paths = [tmp_path / f"{rank}.json" for rank in range(4)]
    assert all(path.exists() for path in paths), process.stdout + process.stderr
    for path in paths:
        assert json.loads(path.read_text()) == dict.fromkeys(CHECKS, ""), process.stderr


def test_a_job_goes_on_without_a_host_that_is_lost(tmp_path):
    args = lost.options(tmp_path, "a:2,b:1", 1, "8", "2", "5")
    with hosts.Net(2, LINK, common=[tmp_path]) as net:
        process = subprocess.Popen(
            net.launch(*args), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=net.environment(),
        )  # fmt: skip
        assert process.stdout is not None
        message = []
        for line in process.stdout:
            message.append(line)
            if lost.GONE in line:
                net.end("b")
        assert process.wait(SECONDS) == 0, "".join(message)
    where = tmp_path / "checkpoints"
    text = "".join(message)
    assert "flowvm launch: host b does not answer\n" in text, text
    assert f"restart 1 of 1 on 2 ranks, from {where}/step_4\n" in text, text
    assert lost.furthest(tmp_path, lost.undisturbed(8)) < 1e-9


def test_a_link_is_as_slow_and_lossy_as_asked(tmp_path):
    """A program on one host sends packets to another, and each comes late or not at all."""
    sent = 400
    receive = (
        "import socket, time\n"
        "s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('b', 7)); s.settimeout(100)\n"
        f"s.setsockopt(socket.SOL_SOCKET, {FORCED_BUFFER}, 1 << 24)\n"  # a busy receiver loses none
        "print('ready', flush=True)\n"
        "got = []\n"
        "while not got or got[-1][0] != 'end':\n"
        "    name, begun = s.recv(2000).split()\n"
        "    got.append((name.decode(), time.monotonic() - float(begun)))\n"
        "print(len(got) - 1, min(late for _, late in got))\n"
    )
    send = (
        "import socket, time\n"
        "s = socket.socket(type=socket.SOCK_DGRAM)\n"
        f"for k in range({sent}):\n"
        "    s.sendto(f'{k} {time.monotonic()} '.encode().ljust(1000), ('b', 7))\n"
        "for _ in range(100): s.sendto(f'end {time.monotonic()}'.encode(), ('b', 7))\n"
    )
    with hosts.Net(2, hosts.Link(delay=30, loss=20)) as net:
        python = [sys.executable, "-c"]
        receiver = subprocess.Popen(
            net.command("b", [*python, receive]), stdout=subprocess.PIPE, text=True
        )
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        subprocess.run(net.command("a", [*python, send]), check=True)
        count, least = receiver.communicate(timeout=SECONDS)[0].split()
    assert 0.6 * sent < int(count) < 0.95 * sent
    assert float(least) >= 0.03
