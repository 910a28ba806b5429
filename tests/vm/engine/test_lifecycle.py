"""Exit, fork and the two engines: how the VM begins, changes and ends."""

from __future__ import annotations

import os
import signal

import pytest

import flowvm as flow
from flowvm.errors import KernelError
from flowvm.vm import sequential
from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.forks import Forking
from flowvm.vm.machine.words import CTL, OPERAND
from tests.vm.kernels import USER_STATUS, fail, mix, tensor, update
from tests.vm.live import Background, script

STATUS = USER_STATUS + 2


# --- exit ---------------------------------------------------------------------------------------


def test_exit_finishes_what_was_issued():
    process = script(
        """
        values = np.zeros(1, np.int64)
        import flowvm.eager.values as reading, atexit
        x, one = reading.adopt_array(values), tensor([1])
        stop = engine.threads.stop
        def then_look(seconds):
            print(values[0])
            return stop(seconds)
        engine.threads.stop = then_look
        gate = Gate()
        for k in range(3000):
            open_gate(x, one, gate.address)
        """
    )
    assert process.stdout == "3000\n"
    assert process.stderr == ""


def test_exit_does_not_wait_for_a_stuck_kernel():
    process = script(
        """
        engine_module.EXIT_SECONDS = 0.3
        gate, x = Gate(), tensor([0])
        wait_for_gate(x, x, gate.address)
        update(x, x, 1)
        """
    )
    assert "exit did not wait for 3 unfinished instructions" in process.stderr


def test_exit_does_not_wait_for_room_either():
    """A ring that is full of what a stuck kernel holds up."""
    process = script(
        """
        engine_module.EXIT_SECONDS = 0.3
        gate, x = Gate(), tensor([0])
        wait_for_gate(x, x, gate.address)
        def fill():
            while True:
                update(x, x, 1)
        threading.Thread(target=fill, daemon=True).start()
        while not engine.words[CTL.ROOM_SLEEPS]:
            os.sched_yield()
        """,
        run_ahead="20",
    )
    assert "exit did not wait" in process.stderr


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("raise ValueError", 1), ("", 0)])
def test_the_exit_code_is_the_programs(end, code):
    assert script(f"x = tensor()\nupdate(x, x, 1)\n{end}", check=False).returncode == code


def test_ops_at_exit_run_after_the_threads_have_left():
    process = script(
        """
        import atexit
        def late():
            update(x, x, 1)
            print(x.item())
        x = tensor([1])
        update(x, x, 1)
        engine.exit()
        late()
        """
    )
    assert process.stdout == "43\n"


# --- a process that computes nothing --------------------------------------------------------------


def test_arrays_come_and_go_without_the_vm():
    script(
        """
        import weakref
        from flowvm.vm.engine import storages

        class Owner:
            pass

        owners = []
        def read(k):
            array, owner = np.full(1 << 20, k, np.int64), Owner()
            owners.append(weakref.ref(owner))
            x = flowvm.eager.values.adopt_array(array, owner)
            assert x.numpy()[0] == k
        for k in range(40):
            read(k)
        alive = sum(owner() is not None for owner in owners)
        assert alive <= storages.ADOPTED_BYTES // (8 << 20) + 1, alive
        assert not engine.threads.running and engine.threads.untouched
        x = tensor([3])
        read(7)
        engine.storages.release_dead()
        assert owners[-1]() is None and x.tolist() == [3] and not engine.threads.running
        pid = os.fork()
        if pid == 0:  # of the child the same is true
            read(8)
            engine.storages.release_dead()
            os._exit(owners[-1]() is not None or engine.threads.running or x.tolist() != [3])
        assert os.waitpid(pid, 0)[1] == 0
        update(x, x, 1)
        read(9)
        assert engine.threads.running and x.item() != 3
        """
    )


# --- fork ---------------------------------------------------------------------------------------

FORK = """
def forked(child):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, repr(child()).encode())
        except BaseException as error:
            os.write(writer, repr(error).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said

x, one = tensor([1]), tensor([1])
"""


def test_a_child_reads_and_computes_and_the_parent_goes_on():
    script(
        FORK
        + """
for k in range(2000):
    update(x, one, 0)  # in flight when the process forks
y = mix(one, one, 5)

def child():
    z = mix(y, y, 1)
    for k in range(5000):
        update(one, y, k)
    engine.waits.sync()
    return int(x.item() == expected), y.item(), z.item(), len(engine.threads.members) > 3

value = 1
for k in range(2000):
    value = (5 * value + 1 + 2**63) % 2**64 - 2**63
expected = value
assert forked(child) == "(1, 7, 15, True)", forked(child)
assert one.item() == 1, "the child's memory is its own"
update(x, one, 0)
assert x.item() == (5 * expected + 1 + 2**63) % 2**64 - 2**63
assert forked(lambda: forked(lambda: mix(one, one, 0).item())) == "'2'"
"""
    )


def test_a_fork_before_anything_ran():
    script(FORK + "assert forked(lambda: mix(one, one, 5).item()) == '7'\nassert one.item() == 1")


def test_a_child_of_a_busy_parent_gets_a_clear_error():
    script(
        FORK
        + """
from flowvm.vm.engine import forks
forks.PATIENCE_S = 0.2
go_on = threading.Event()
engine.callbacks.issue(lambda address: go_on.wait(), [x._ref], [OPERAND.MUT])
said = forked(lambda: x.item())
go_on.set()
assert "VMError" in said and "forked while its parent's VM was busy" in said, said
assert x.item() == 1
assert forked(lambda: x.item()) == "1", "the next child is well again"
"""
    )


def test_a_fork_takes_logging_s_lock_when_nobody_compiles():
    # who compiles imports Numba, which asks for loggers, with the compiler's lock taken
    script(
        FORK
        + """
import logging
from flowvm.compiler import jit
from flowvm.vm.engine import engine as module, forks
forks.PATIENCE_S = 40.0
begun = threading.Event()
def compiles():
    with jit._lock:
        begun.set()
        while not module._forking.held.locks:
            os.sched_yield()
        logging.getLogger("one")
thread = threading.Thread(target=compiles, daemon=True)
thread.start()
begun.wait()
at = time.monotonic()
said = forked(lambda: (x.item(), logging.getLogger("another").name))
assert said == "(1, 'another')", said
assert time.monotonic() - at < forks.PATIENCE_S - forks.TRY_S, "the fork waited in vain"
thread.join(20)
assert not thread.is_alive() and x.item() == 1
"""
    )


def test_a_child_of_a_callback_gets_a_clear_error():
    script(
        FORK
        + """
said = []
tell = lambda address: said.append(forked(lambda: x.item()))
engine.callbacks.issue(tell, [one._ref], [OPERAND.MUT])
assert one.item() == 1
assert "VMError" in said[0] and "forked by a callback" in said[0], said
assert forked(lambda: x.item()) == "1"
"""
    )


def test_a_pool_of_forked_workers():
    process = script(
        """
        import multiprocessing
        x = tensor([3])
        update(x, x, 1)
        def work(k):
            return (mix(x, x, k)).item()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(work, range(6)))
        print(x.item())
        """
    )
    assert process.stdout == "[38, 39, 40, 41, 42, 43]\n19\n"


# --- the sequential engine ----------------------------------------------------------------------


def test_errors_are_raised_at_the_call():
    x = tensor()
    with sequential():
        with pytest.raises(KernelError, match=f"status {STATUS}"):
            fail(x, x, STATUS)
        y = tensor([1])
        update(y, y, 1)  # and the engine goes on
        assert y.item() == 7
        with pytest.raises(KernelError):
            x.numpy()


def test_instructions_run_at_once_on_the_calling_thread():
    values = tensor([1])
    with sequential():
        assert not engine.threads.running
        for k in range(600):
            update(values, values, k)
            assert engine.words[CTL.HEAD] == engine.words[CTL.RECEIVED]
        called = []
        import threading

        engine.callbacks.issue(
            lambda a: called.append(threading.current_thread()), [values._ref], [OPERAND.CONST]
        )
        assert called == [threading.current_thread()]
        assert engine.waits.wait_idle()


def test_nested_and_left_by_an_exception():
    x = tensor([1])
    with pytest.raises(ZeroDivisionError), sequential():  # noqa: PT012
        with sequential():
            update(x, x, 0)
        assert len(engine.threads.vetoes) == 1
        update(x, x, 0)
        assert not engine.threads.running
        raise ZeroDivisionError
    assert not engine.threads.vetoes
    update(x, x, 0)
    assert engine.threads.running
    assert x.item() == 216


def test_back_and_forth_with_tensors_alive():
    x = tensor([1])
    for _ in range(5):
        update(x, x, 0)
        with sequential():
            y = mix(x, x, 0)
            update(x, y, 0)
        update(x, y, 0)
        del y
        x.numpy()[0] %= 97
    value = 1
    for _ in range(5):
        value *= 6
        y = 2 * value
        value = (5 * (5 * value + y) + y) % 97
    assert x.item() == value


def test_a_callbacks_exception_is_raised_at_its_call():
    x, error = tensor(), LookupError("mine")

    def callback(address):
        raise error

    with sequential():
        with pytest.raises(LookupError) as info:
            engine.callbacks.issue(callback, [x._ref], [OPERAND.MUT])
        assert info.value is error
        with pytest.raises(LookupError):
            x.numpy()


def test_other_threads_issue_while_the_engine_is_sequential():
    def work(k):
        x = tensor([k])
        for _ in range(200):
            update(x, x, 0)
        return x.item()

    with sequential():
        results = [t.result() for t in [Background(work, k) for k in range(4)]]
    assert results == [work(k) for k in range(4)]


@pytest.mark.parametrize("how", [{"engine": "sequential"}, {"sync": "1"}], ids=["engine", "sync"])
def test_a_process_that_is_sequential_from_the_start(how):
    process = script(
        """
        x = tensor([1])
        try:
            fail(x, x, 9001)
        except flowvm.errors.KernelError as error:
            print("at the call", len(error.__notes__))
        y = mix(tensor([1]), tensor([2]), 3)
        print(y.item(), engine.threads.running, len(engine.threads.members))
        """,
        **how,
    )
    assert process.stdout == "at the call 1\n4 False 0\n"


def test_a_ctrl_c_in_front_of_a_fork_comes_behind_it(monkeypatch):
    """Python would ignore it in the hook that waits for the VM, and the child would not compute."""
    ones, quiet, calls, interrupts = flow.ones(3), Forking._quiet, [], [KeyboardInterrupt]

    def interrupted(self):
        if interrupts:
            raise interrupts.pop()
        return quiet(self)

    monkeypatch.setattr(Forking, "_quiet", interrupted)
    before = signal.signal(signal.SIGINT, lambda *_: calls.append(True))
    try:
        if not (child := os.fork()):
            os._exit(int((ones + 1).sum().item()))
    finally:
        signal.signal(signal.SIGINT, before)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
    assert calls == [True]
