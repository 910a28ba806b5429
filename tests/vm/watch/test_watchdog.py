"""The thread that watches: the chain when nothing moves, SIGUSR1, and the viewers of each."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import flowvm as flow
from flowvm.eager.modes import use_stream
from flowvm.errors import VMError
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import ARRAY, CTL, STR
from flowvm.vm.watch import window
from flowvm.vm.watch.in_flight import InFlight, Waited, chain, chain_text, pending
from flowvm.vm.watch.watchdog import Watch
from tests.vm.kernels import Gate, mix, tensor, update, wait_for_gate
from tests.vm.live import script, streams, until


def test_pending_says_which_operand_of_which_instruction_is_waited_for():
    x, y = tensor([1]), tensor([2])
    side = streams(2)[1]
    with Gate() as gate:
        with use_stream(side):
            wait_for_gate(x, x, gate.address)
        update(y, x, 1)  # writes y, reads x
        mix(y, y, 1)
        update(x, y, 1)  # writes x, which #1 reads and the gate's kernel writes
        until(lambda: gate.is_reached and len(pending(engine)) >= 4, "all are received")
        first, second, third, fourth = flow.vm.pending()[:4]
    assert first.state == "running"
    assert first.stream == engine.streams.name(side)
    assert "test_watchdog.py:" in first.line
    assert second.waits == (Waited(first.seq, 1, "const", "RAW"),)
    assert third.waits == (Waited(second.seq, 1, "const", "RAW"),)
    assert Waited(first.seq, 0, "mut", "WAW") in fourth.waits
    assert Waited(second.seq, 0, "mut", "WAR") in fourth.waits
    assert "operand 1, const, RAW" in repr(second)
    engine.waits.wait_idle()
    assert flow.vm.pending() == []


def test_what_is_queued_is_behind_what_runs():
    x, y = tensor([1]), tensor([2])
    with Gate() as gate:
        wait_for_gate(x, x, gate.address)
        update(y, y, 1)  # has nothing to do with it but the stream
        until(lambda: gate.is_reached and len(pending(engine)) == 2, "both are received")
        until(lambda: pending(engine)[1].state == "dispatched", "it is in the queue")
        first, second = pending(engine)
        until(lambda: pending(engine)[0].seconds > 0, "its start is known")
    assert second.behind == first.seq
    assert second.reason() == f"in the queue of cpu behind #{first.seq}"
    assert not second.waits


def row(seq, name="add", waits=(), behind=-1, state="pending"):
    waited = tuple(Waited(s, 0, "const", "RAW") for s in waits)
    return InFlight(seq, name, state, "cpu", "a.py:1", waited, behind)


def test_a_chain_goes_from_the_reader_to_what_runs():
    rows = [row(1, state="running"), row(2, behind=1), row(3), row(4, waits=(2, 3)),
             row(5, waits=(4,)), row(6, "wait", waits=(4,)), row(7)]  # fmt: skip
    assert [x.seq for x in chain(rows)] == [6, 4, 3]
    rows[2] = row(3, waits=(1,))
    assert [x.seq for x in chain(rows)] == [6, 4, 3, 1]
    assert [x.seq for x in chain(rows[:5])] == [5, 4, 3, 1]
    assert chain([]) == []
    assert chain_text([]) == ""
    # what a busy VM shows may be torn: a circle ends, and so does a long chain
    assert [x.seq for x in chain([row(1, waits=(2,)), row(2, waits=(1,))])] == [2, 1]
    long = [row(k, waits=(k - 1,)) for k in range(1, 100)]
    assert len(chain(long)) == 32
    assert "99 instructions are in flight" in chain_text(long)


def test_the_watchdog_speaks_although_python_waits_for_nothing_of_the_vm():
    process = script(
        """
        said = threading.Event()
        class Err:
            def write(self, text):
                sys.__stderr__.write(text)
                if "no progress" in text:
                    said.set()
            def flush(self):
                pass
        sys.stderr = Err()
        gate, x, y = Gate(), tensor([1]), tensor([2])
        wait_for_gate(x, x, gate.address)
        update(y, x, 1)
        said.wait()                     # the main thread is in no wait of the VM's
        gate.open()
        print(y.item())
        """,
        watchdog="0.3",
    )
    assert process.stdout == "13\n"
    assert process.stderr.count("no progress for 0.3 s") == 1
    assert "in the queue of cpu behind #0" in process.stderr
    assert "running on cpu for" in process.stderr


def test_a_stuck_callback_is_named_with_its_line():
    process = script(
        """
        stuck, x = threading.Event(), tensor([1])
        class Err:
            def write(self, text):
                sys.__stderr__.write(text)
                if "no progress" in text:
                    stuck.set()
            def flush(self):
                pass
        sys.stderr = Err()
        def reads_a_file(address):
            stuck.wait()
        engine.callbacks.issue(reads_a_file, [x._ref], [OPERAND.MUT])
        print(x.item())
        """,
        watchdog="0.3",
    )
    assert process.stdout == "1\n"
    assert "running on host for" in process.stderr
    assert "reads_a_file()" in process.stderr


def test_it_is_silent_when_idle_when_off_and_after_the_process_was_stopped():
    text = []
    watch = Watch(engine)
    watch._print = text.append  # type: ignore[method-assign]
    engine.waits.wait_idle()
    x = tensor([1])
    with flow.config(watchdog=5000):
        watch.look(1000.0)
        watch.since -= 100_000
        watch.look(1000.0)
        assert text == []  # idle
        with Gate() as gate:
            wait_for_gate(x, x, gate.address)
            until(lambda: gate.is_reached, "it runs")
            watch.look(1000.0)  # sees that something is new
            watch.since -= 100_000
            watch.looked -= 100_000  # and then nobody looked for long
            watch.look(1000.0)
            assert text == []
            watch.since -= 4000
            watch.look(1000.0)
            assert text == []
            watch.since -= 2000
            watch.look(1000.0)
            watch.look(1000.0)
            assert text == ["no progress for 5000 s"]


def test_sigusr1_prints_the_dump_and_the_program_goes_on():
    process = script(
        """
        gate, x = Gate(), tensor([1])
        wait_for_gate(x, x, gate.address)
        while not gate.is_reached:
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGUSR1)
        gate.open()
        print(x.item())
        """
    )
    assert process.stdout == "2\n"
    assert "running on cpu" in process.stderr
    assert "instructions in flight" in process.stderr


def test_a_handler_of_the_program_is_left_alone():
    process = script(
        """
        signal.signal(signal.SIGUSR1, lambda *_: print("mine"))
        tensor([1]).item()
        os.kill(os.getpid(), signal.SIGUSR1)
        """
    )
    assert process.stdout == "mine\n"
    assert process.stderr == ""


# --- the window ---------------------------------------------------------------------------------


def test_a_process_is_shown_to_others_of_its_user_and_only_what_was_asked_for():
    mix(tensor(), tensor(), 1).numpy()
    child = f"from flowvm.vm.watch import window; h, p = window.ask({os.getpid()}, {{'most': 3}}); "
    child += "print(h['pid'], h['received'] - h['first'], len(h['line_of']), any(h['names']))"
    process = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
    assert process.stdout.split() == [str(os.getpid()), "3", "3", "True"], process.stderr
    assert os.getpid() in window.shown()


def test_parts_are_the_words_themselves():
    mix(tensor(), tensor(), 1).numpy()
    header, parts = window.ask(os.getpid(), {})
    assert [[first, len(raw) // 8] for first, raw in parts] == header["parts"]
    words = dict(parts)
    streams_at = np.frombuffer(words[STR.AT], np.int64)
    shown = streams_at.reshape(-1, STR.WORDS)[0]
    assert shown[STR.ARENA] == engine.m[STR.AT + STR.ARENA] != 0
    assert 0 < shown[STR.DONE] <= engine.m[STR.AT + STR.DONE]  # its worker goes on
    for first, raw in parts:
        assert CTL.AT <= first
        assert first + len(raw) // 8 <= ARRAY.WORDS


def test_a_ring_is_shown_in_at_most_two_parts():
    for first, last in ((0, 0), (0, 5), (6, 10), (3, 40), (8, 16)):
        parts = window._ring(100, 2, 7, first, last)
        places = [(100 + 2 * (k & 7)) for k in range(max(first, last - 8), last)]
        shown = [at for start, words in parts for at in range(start, start + words, 2)]
        assert shown == places
        assert len(parts) <= 2


def test_nonsense_and_silence_do_not_stop_the_window():
    tensor([1]).item()
    for question in (
        b"what\n", b"[]\n", b'{"most": "many"}\n', b'{"entries": -5}\n', b'{"since": -1}\n',
        b'{"most": 1, "most": 2}\n', b'{"waits": 1.5}\n', b"[" * 4000 + b"\n", b"\n", b"",
    ):  # fmt: skip
        with socket.socket(socket.AF_UNIX) as asker:
            asker.connect(window._name(os.getpid()))
            asker.sendall(question)
            asker.shutdown(socket.SHUT_WR)
            assert asker.recv(1) == b""
    assert window.ask(os.getpid(), {})[0]["pid"] == os.getpid()


@pytest.mark.parametrize(
    "message",
    [
        struct.pack("<q", 1 << 40),
        struct.pack("<q", -1),
        struct.pack("<q", 2) + b"[]",
        struct.pack("<q", 14) + b'{"parts": [3]}',
        struct.pack("<q", 21) + b'{"parts": [[-1, 10]]}',
        struct.pack("<q", 35) + b'{"parts": [[0, 99999999999999999]]}',
        struct.pack("<q", 18) + b'{"parts": [[0,2]]}' + bytes(9),
    ],
    ids=range(7),
)
def test_an_answer_that_is_none_is_not_believed(message, monkeypatch):
    monkeypatch.setattr(window, "_name", lambda pid: f"\0flowvm-liar-{os.getpid()}")
    with socket.socket(socket.AF_UNIX) as liar, ThreadPoolExecutor(1) as other:
        liar.bind(window._name(0))
        liar.listen()

        def lie():
            connection, _ = liar.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(message)

        lying = other.submit(lie)
        with pytest.raises(VMError, match="went away"):
            window.ask(os.getpid(), {})
        lying.result()


def test_several_ask_at_once():
    with ThreadPoolExecutor(4) as askers:
        pids = list(askers.map(lambda _: window.ask(os.getpid(), {})[0]["pid"], range(20)))
    assert pids == [os.getpid()] * 20


def test_reasons_for_showing_nothing():
    with pytest.raises(VMError, match="there is no process"):
        window.ask(1 << 22, {})
    quiet = "import os, sys, flowvm; print(os.getpid(), flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", quiet], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        pid = int(other.stdout.readline())
        with pytest.raises(VMError, match="has run no flowvm operation yet"):
            window.ask(pid, {})
        other.stdin.close()
    process = script(
        """
        from flowvm.vm.watch import window
        tensor([1]).item()
        print(os.getpid() in window.shown())
        """,
        window="0",
    )
    assert process.stdout == "False\n"


def test_a_fork_has_a_window_of_its_own_and_the_parent_keeps_his():
    process = script(
        """
        from flowvm.vm.watch import window
        x = tensor([1])
        update(x, x, 1); x.item()
        child = os.fork()
        if child == 0:
            try:
                hidden = os.getpid() not in window.shown()
                engine.waits.sync()  # x, which is ready, can be read without a VM
                shown = window.ask(os.getpid(), {})[0]["pid"] == os.getpid()
                os._exit(0 if hidden and shown else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print(window.ask(os.getpid(), {})[0]["pid"] == os.getpid(), child in window.shown())
        """
    )
    assert process.stdout == "True False\n"


def test_sigstop_of_the_asked_is_said(monkeypatch):
    monkeypatch.setattr(window, "PATIENCE_S", 0.1)
    body = "import os, sys, flowvm as f; f.ones(1).item(); print(os.getpid(), flush=True); "
    body += "sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", body], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        pid = int(other.stdout.readline())
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)  # until all of its threads have stopped
        try:
            with pytest.raises(VMError, match="does not answer"):
                window.ask(pid, {})
        finally:
            os.kill(pid, signal.SIGCONT)
        other.stdin.close()
