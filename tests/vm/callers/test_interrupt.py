"""Ctrl-C: it works while the VM is stuck, is raised once, and loses nothing.

Each test is a program of its own, whose second thread sends the signals.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

from flowvm.vm.callers import interrupt
from tests.vm.live import script

# `interrupted(wait)`: SIGINT once `stuck()`, while the main thread is in `wait()`
HELPERS = """
def interrupted(wait, stuck):
    def send():
        while not stuck():
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        wait()
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("no KeyboardInterrupt")
    thread.join()

def issued():
    return int(repr(hot["counter"])[6:-1])

def waiting():
    before = issued()  # the wait's own record comes next
    return lambda: engine.words[CTL.RECEIVED] > before

def asleep():
    return gate.is_reached and engine.words[CTL.ROOM_SLEEPS] != 0

def usable():
    gate.open()
    a, b = tensor([1]), tensor([2])
    update(a, b, 3)
    assert a.item() == 10
    engine.waits.sync()
    assert issued() == engine.words[CTL.RECEIVED] == engine.words[CTL.HEAD], "a record was lost"

gate, x = Gate(), tensor([0])
"""

WAITS = {
    "reading": "interrupted(x.item, waiting())",
    "waiting for everything": "interrupted(engine.waits.wait_idle, waiting())",
    "sync": "interrupted(flowvm.vm.sync, waiting())",
    "issuing when full": """
        def issue():
            while True:
                update(y, y, 1)
        interrupted(issue, asleep)
    """,
    "issuing the slow way when full": """
        def issue():
            while True:
                engine.records.issue(engine.records.hole, (), (0,))
        interrupted(issue, asleep)
    """,
    "releasing when full": """
        tensors = [empty() for _ in range(300)]
        def issue():
            while tensors:
                tensors.pop()
                update(y, y, 1)
                engine.storages.release_dead()
        engine.words[CTL.RUN_AHEAD] = 250
        update(y, y, 1)
        while engine.words[CTL.LIMIT] > engine.words[CTL.HEAD] + 250:
            os.sched_yield()  # until the scheduler has heard of it
        interrupted(issue, asleep)
    """,
    "reading when full": """
        def issue():
            while not leave.is_set():
                update(y, y, 1)
        leave, filler = threading.Event(), threading.Thread(target=issue, daemon=True)
        filler.start()
        while not asleep():
            os.sched_yield()
        interrupted(y.item, waiting())
        leave.set()
        gate.open()
        filler.join()
    """,
    "finding room for tensors": """
        engine.storages.next_id = STO.LENGTH
        hot["free"].clear()
        interrupted(lambda: [tensor([k]) for k in range(9)], waiting())
        engine.storages.next_id = 100_000
    """,
}


@pytest.mark.parametrize("how", WAITS)
def test_one_ctrl_c_ends_a_wait(how):
    stuck = "y = tensor([0])\nupdate(y, y, 0)\ny.item()\nwait_for_gate(x, x, gate.address)\n"
    script(HELPERS + stuck + textwrap.dedent(WAITS[how]) + "\nusable()\n")


AGAIN = {"reading": "x.item", "sync": "flowvm.vm.sync", "issuing when full": "fill"}


@pytest.mark.parametrize("how", AGAIN)
def test_the_wait_behind_a_caught_ctrl_c_says_what_it_waits_for(how):
    process = script(
        HELPERS
        + f"""
from flowvm.vm.engine import cancel
assert cancel.NAMED_AFTER < 0.9
cancel.NAMED_AFTER = 0.01
class Err:
    said = ""
    def write(self, text):
        Err.said += text
        gate.open()
    def flush(self):
        pass
def fill():
    for _ in range(2 * RING.SLOTS):
        update(y, y, 1)
y = tensor([0])
update(y, y, 0)
y.item()
wait_for_gate(x, x, gate.address)
interrupted(x.item, waiting())
sys.stderr, plain = Err(), sys.stderr
{AGAIN[how]}()  # until the gate is open
sys.stderr = plain
print(Err.said)
before, Err.said = Err.said, ""
gate2, z = Gate(), tensor([0])
wait_for_gate(z, z, gate2.address)
threading.Timer(0.1, gate2.open).start()
sys.stderr = Err()
z.item()
sys.stderr = plain
assert not Err.said, Err.said
usable()
"""
    )
    assert "flow.vm.cancel() takes back" in process.stdout
    assert "who waits for whom" in process.stdout
    assert "wait_for_gate" in process.stdout
    assert process.stdout.count("Ctrl-C was caught") == 1


def test_a_ctrl_c_ends_a_wait_for_a_lock_of_python():
    """A Ctrl-C is put off there, but not for ever."""
    script(
        HELPERS
        + """
lock = threading.RLock()
held, over = threading.Event(), threading.Event()
def keep():
    with lock:
        held.set()
        over.wait()
threading.Thread(target=keep, daemon=True).start()
held.wait()
here = threading.get_ident()
def inside(*names):
    def is_there():
        frame, seen = sys._current_frames()[here], []
        while frame is not None:
            seen.append(frame.f_code.co_qualname)
            frame = frame.f_back
        return seen[:len(names)] == list(names)
    return is_there
def wait():
    with threading.Condition(lock):
        pass
interrupted(wait, inside("Condition.__enter__", "wait"))
interrupted(threading.Semaphore(0).acquire, inside("Condition.wait", "Semaphore.acquire"))
over.set()
gate.open()
usable()
"""
    )


def test_a_ctrl_c_in_a_join_comes_behind_it():
    """An exception inside of `Thread.join` gives back the lock of a thread that still runs."""
    script(
        HELPERS
        + """
import signal
end, tries = threading.Event(), []
def handle(signum, frame):
    tries.append(thread.is_alive())
    if len(tries) == 3:
        end.set()
    flowvm.vm.callers.interrupt.interrupt(signum, frame)
signal.signal(signal.SIGINT, handle)
thread = threading.Thread(target=end.wait, daemon=True)
thread.start()
def send():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
threading.Timer(0.05, send).start()
try:
    thread.join()
    assert not end.wait(0) or not thread.is_alive()
    while True:
        threading.Event().wait(0.01)
except KeyboardInterrupt:
    pass
assert len(tries) >= (3 if sys.version_info < (3, 13) else 1), tries
end.set()
thread.join()
gate.open()
usable()
"""
    )


def test_one_in_a_collection_is_put_off_until_a_wait():
    """CPython ignores what a callback of the garbage collection raises."""
    script(
        HELPERS
        + """
import gc
gate.open()
engine.waits.sync()
sent = []
def callback(phase, info):
    if not sent:
        sent.append(phase)
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100):
            pass
gc.callbacks.append(callback)
came = False
try:
    gc.collect()
    threading.Event().wait(100)
except KeyboardInterrupt:
    came = True
assert came
usable()
"""
    )


# The timer's signal goes where SIGINT's does, and comes at any moment, between any two bytecodes.
STORM = (
    HELPERS
    + """
import random
from flowvm.vm.callers import interrupt
HITS, rng = 300, random.Random({seed})
one, count = tensor([1]), tensor([0])
finished = hits = 0
{step}  # compiles, which is not what is stormed here
finished += 1
open_gate(count, one, gate.address)
count.item()
signal.signal(signal.SIGALRM, interrupt.interrupt)
while hits < HITS:
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + 1e-3 * rng.random())
        while True:
            {step}
            finished += 1
    except KeyboardInterrupt:
        hits += 1
total = count.item()
print(finished, total)
"""
)


def test_a_storm_while_issuing_loses_nothing(seed):
    """Every call that returned is counted, and each interrupted one at most once."""
    step = "open_gate(count, one, gate.address)"
    process = script(STORM.replace("{seed}", str(seed)).replace("{step}", step) + "usable()\n")
    finished, total = map(int, process.stdout.split())
    assert finished + 1 <= total <= finished + 1 + 300
    assert finished > 300


def test_a_storm_while_making_dropping_and_reading_tensors(seed):
    step = "t = mix(one, one, hits); t2 = mix(t, t, 1); del t; (hits % 8 == 0) and t2.item()"
    body = STORM.replace("{seed}", str(seed)).replace("{step}", step)
    process = script(
        body
        + """
        del t2
        engine.storages.release_dead()
        usable()
        live = engine.words[CTL.LIVE_BYTES]
        assert live <= 64 * 600, live
        """.replace("\n        ", "\n")
    )
    assert int(process.stdout.split()[0]) > 100


def test_ctrl_c_in_a_callback_belongs_to_who_reads():
    """The main thread gets it, wherever callbacks run; the callback goes on."""
    script(
        HELPERS
        + """
inside, leave = threading.Event(), threading.Event()
def callback(address):
    inside.set()
    leave.wait()
engine.callbacks.issue(callback, [x._ref], [OPERAND.MUT])
inside.wait()
interrupted(x.item, waiting())
leave.set()
x.item()
usable()
"""
    )


def test_a_handler_of_the_users_is_left_alone():
    script(
        """
        hits = []
        signal.signal(signal.SIGINT, lambda *a: hits.append(a))
        x = tensor([0])
        update(x, x, 1)
        os.kill(os.getpid(), signal.SIGINT)
        assert x.item() == 1
        assert len(hits) == 1
        """
    )


def test_one_in_what_a_finalizer_calls_is_put_off_and_comes():
    """CPython ignores what a `__del__` raises, whoever's code it calls."""
    script(
        """
        import json
        ignored = []
        sys.unraisablehook = lambda said: ignored.append(said.exc_value)
        class Owner:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(50):
                    json.dumps({"a": [1, {}]}, indent=1)
        from flowvm.vm.callers import interrupt
        interrupt.install()
        came = False
        try:
            Owner()
            threading.Event().wait(100)
        except KeyboardInterrupt:
            came = True
        assert came and not ignored, ignored
        """
    )


def test_a_finalizer_that_never_ends_is_interrupted_nevertheless():
    script(
        """
        from flowvm.vm.callers import interrupt
        interrupt.LONG_S = 0.05
        ignored = []
        sys.unraisablehook = lambda said: ignored.append(said.exc_value)
        class Owner:
            def __del__(self):
                self.wait()
            def wait(self):
                os.kill(os.getpid(), signal.SIGINT)
                while True:
                    os.getpid()
        interrupt.install()
        Owner()
        assert [type(error) for error in ignored] == [KeyboardInterrupt]
        """
    )


def test_tries_that_come_late_are_of_the_same_finalizer(monkeypatch):
    """A busy machine may take any time between two tries of one Ctrl-C."""
    put_off = []

    class Owner:
        def __del__(self):
            self.wait()

        def wait(self):
            with monkeypatch.context() as patch:
                clock = SimpleNamespace(monotonic=lambda: next(moments))
                patch.setattr(interrupt, "time", clock)
                for _ in range(tries):
                    put_off.append(interrupt._puts_off(sys._getframe()))

    moments, tries = itertools.count(step=0.9), interrupt.TRIES + 1
    Owner()
    assert put_off == [True] * interrupt.TRIES + [False]
    interrupt._late.clear()
    put_off.clear()
    tries = 1
    for _ in range(interrupt.TRIES):  # each has its time, wherever its frame lies
        Owner()
    assert put_off == [True] * interrupt.TRIES
    interrupt._late.clear()


def test_a_wait_of_a_finalizer_puts_it_off():
    """CPython would ignore it there, and the wait ends by itself."""
    put_off = []

    @interrupt.waiting
    def wait():
        put_off.append(interrupt._puts_off(sys._getframe()))

    class Owner:
        def __del__(self):
            wait()

    wait()
    Owner()
    assert put_off == [False, True]
    interrupt._late.clear()


LOADING = """
import os, signal, threading
from flowvm.utils.data import DataLoader
class Waiting:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        os.kill(os.getppid(), signal.SIGINT)
        threading.Event().wait(60)
list(DataLoader(Waiting(), num_workers=1, multiprocessing_context="fork"))
"""


def test_a_ctrl_c_before_the_vm_starts_shows_the_users_lines():
    process = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True)
    assert process.returncode == -signal.SIGINT, process.stderr
    assert process.stderr.endswith("KeyboardInterrupt\n")
    assert process.stderr.count("  File ") == 1, process.stderr
