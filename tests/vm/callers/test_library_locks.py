"""Locks of libraries that an exception of a signal's handler must not leave taken.

llvmlite's is held so that none does; what else the main thread has left taken it gives back where
it waits for a kernel; and a Ctrl-C is put off where it would leave one taken.
"""

from __future__ import annotations

import _thread
import contextlib
import dis
import gc
import importlib
import logging
import signal
import sys
import threading
import types

import pytest

from flowvm.guards import apart
from flowvm.guards.locks import held
from flowvm.private import locks
from flowvm.private.llvmlite import mend_calls
from flowvm.vm.callers import interrupt
from tests.guards.boundaries import drive
from tests.vm.live import script

llvm = pytest.importorskip("llvmlite.binding")
WATCHED = ("llvmlite", "numba", "private/llvmlite.py", "guards/locks.py", "logging", "threading.py",
           "importlib")  # fmt: skip


def llvm_lock():
    return llvm.ffi.lib._lock._lock


def free(lock):
    """Return True if another thread can take a lock."""
    actual = []
    thread = threading.Thread(
        target=lambda: actual.append(lock.acquire(timeout=5)) or lock.release()
    )
    thread.start()
    thread.join()
    return actual == [True]


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock])
def test_no_exception_leaves_a_held_lock_taken(make, seed):
    lock = make()

    def use():
        with held(lock):
            pass

    def check():
        return "" if free(lock) else "the lock is taken"

    assert drive(lambda: use, check, seed=seed) > 10


def test_a_held_lock_that_is_taken_again_stays_with_who_had_it_first():
    lock = threading.RLock()
    with held(lock):
        with held(lock):
            pass
        assert locks.owner_of(lock) == threading.get_ident()
    assert locks.owner_of(lock) == 0


def test_a_collection_inside_leaves_a_held_lock_to_its_end():
    lock = threading.Lock()
    with held(lock):
        gc.collect()
        assert lock.locked()
    assert not lock.locked()


def test_an_exception_while_a_held_lock_is_waited_for_gives_back_nothing():
    """The lock was not taken: another thread has it, and keeps it."""
    lock, now, over = threading.Lock(), threading.Event(), threading.Event()

    def keep():
        with lock:
            now.set()
            over.wait()

    def strike(number, frame):
        raise InterruptedError("injected")

    thread = threading.Thread(target=keep)
    thread.start()
    now.wait()
    before = signal.signal(signal.SIGALRM, strike)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(InterruptedError), held(lock):
            pass
        assert lock.locked()
    finally:
        signal.signal(signal.SIGALRM, before)
        over.set()
        thread.join()
    assert not lock.locked()


def test_no_exception_in_a_call_of_llvm_leaves_its_lock_taken(seed):
    assert mend_calls(), "llvmlite is not as tested"
    import numba  # noqa: F401 - it has llvmlite tell of its lock

    def call():
        llvm.ffi.lib.LLVMPY_GetVersionInfo()

    def check():
        return "" if free(llvm_lock()) else "llvmlite's lock is taken"

    assert drive(lambda: call, check, seed=seed) > 30


CHECKING = ("CALL", "JUMP_BACKWARD", "RESUME")  # behind these CPython runs handlers of signals


class Striker:
    """Takes a Ctrl-C, as flowvm takes SIGINT, behind one step of the libraries' code: at one of the
    moments at which CPython runs handlers.
    """

    def __init__(self, at=-1):
        self.at, self.count, self.where = at, 0, ""
        self.frame = None  # the frame that has called Python code: no handler runs behind that

    def call(self, frame, event, value):
        self.frame = frame.f_back
        if not any(part in frame.f_code.co_filename for part in WATCHED):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        last = [0]

        def step(frame, event, value):
            if event == "opcode":
                before, last[0] = last[0], frame.f_lasti
                if self.frame is frame:
                    self.frame = None
                elif dis.opname[frame.f_code.co_code[before]].startswith(CHECKING):
                    self.strike(frame, before)
            return step

        return step

    def strike(self, frame, last):
        if self.count == self.at:
            code = frame.f_code
            self.where = f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}"
            result = types.SimpleNamespace(f_code=code, f_lasti=last, f_back=frame.f_back)
            self.count += 1
            interrupt.interrupt(signal.SIGINT, result)
        else:
            self.count += 1

    def run(self, function, value):
        before = sys.gettrace()
        sys.settrace(self.call)
        try:
            function(value)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        return self


def nothing():
    pass


def module():
    """An object of llvmlite's that only the list has, made as flowvm makes them."""
    return [apart.apart(llvm.parse_assembly, "")]


def finalized(list_of_calls):
    list_of_calls.clear()


def logged(_):
    logging.getLogger("flowvm.tests").error("a line")


def imported(_):
    sys.modules.pop("this_is_no_module", None)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("this_is_no_module")


CONDITION = threading.Condition()


def notified(_):
    with CONDITION:
        CONDITION.notify_all()


def owned():
    """Names of the libraries' locks that this thread has, or somebody for long."""
    own = threading.get_ident()
    names = [one.name for one in locks.held_locks() if one.owner in (0, own)]
    return names + ["a condition"] * (not free(CONDITION))


WORKS = {finalized: module, logged: nothing, imported: nothing, notified: nothing}


@pytest.mark.parametrize("work", WORKS, ids=lambda f: f.__name__)
def test_a_ctrl_c_leaves_no_lock_of_a_library_taken(work, monkeypatch):
    """Nor is it swallowed, where CPython ignores what a finalizer raises."""
    ignored, put_off, wrong = [], [], []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda message: ignored.append(repr(message.exc_value))
    )
    monkeypatch.setattr(interrupt, "_interrupt_again", put_off.append)
    monkeypatch.setattr(_thread, "start_new_thread", lambda function, args: function(*args))
    mend_calls()
    handler = logging.NullHandler()
    logging.getLogger("flowvm.tests").addHandler(handler)
    make = WORKS[work]
    try:
        work(make())
        total = Striker().run(work, make()).count
        for at in range(total):
            inputs = make()
            struck = Striker(at).run(work, inputs)
            del inputs
            if names := owned():
                wrong.append(f"{struck.where}: {names}")
                locks.give_back()
            if ignored:
                wrong.append(f"{struck.where}: {ignored} was swallowed")
                ignored.clear()
    finally:
        logging.getLogger("flowvm.tests").removeHandler(handler)
    assert not wrong, "\n".join(wrong[:20])
    assert total > 5
    assert put_off


# --- what is left taken nevertheless: by handlers that are not flowvm's -----------------------

KERNEL = """
    from flowvm.compiler import jit
    from flowvm.guards import apart

    def triple(x):
        return 3 * x

    def kernel(*facts):
        return jit.native(triple, "int64(int64)", facts=(*facts, time.time_ns()))

    kernel()
    import importlib, logging
    import llvmlite.binding as llvm
    from numba.core.compiler_lock import global_compiler_lock as compiler
    """

LEFT_TAKEN = {
    "llvmlite's lock": "llvm.ffi.lib._lock._lock.acquire(); llvm.ffi.lib._lock._lock.acquire()",
    "Numba's lock": "compiler._lock.acquire()",
    "the lock of logging": "logging._lock.acquire()",
    "the lock of imports": "__import__('_imp').acquire_lock()",
    "the import lock of numba": "kept = importlib._bootstrap._get_module_lock('numba'); "
    "kept.acquire()",
}


def test_a_wait_for_a_kernel_gives_back_what_was_left_taken():
    process = script(
        KERNEL
        + f"""
    from flowvm.private.locks import held_locks
    apart.LOOK = 0.01
    def work(name):
        sys.modules.pop("numba.stencils.stencil", None)
        import numba.stencils.stencil  # asks for the locks of imports
        logging.getLogger(f"new{{time.time_ns()}}").setLevel(10)
        address = kernel()
        while name in [one.name for one in held_locks()]:  # until it is given back
            os.sched_yield()
        return address
    for name, take in {LEFT_TAKEN!r}.items():
        exec(take)
        assert name in [one.name for one in held_locks()], list(held_locks())
        assert apart.apart(work, name)
    """
    )
    for name in LEFT_TAKEN:
        assert f"an exception had left {name} taken on the main thread" in process.stderr


def test_a_lock_that_somebody_on_the_stack_works_with_is_not_given_back():
    """A handler of `logging` computes, and its lock is its own."""
    script(
        KERNEL
        + """
    apart.LOOK = 0.001
    class Handler(logging.Handler):
        def emit(self, record):
            assert self.lock._is_owned()
            apart.apart(time.sleep, 0.05)
            assert self.lock._is_owned()
    logging.getLogger("a").addHandler(Handler())
    logging.getLogger("a").error("a line")
    """
    )


def test_a_long_wait_says_who_has_what():
    process = script(
        KERNEL
        + """
    apart.LOOK, apart.PATIENCE = 0.02, 0.1
    now, over = threading.Event(), threading.Event()
    def keeper():
        with llvm.ffi.lib._lock._lock:
            now.set()
            over.wait()
    thread = threading.Thread(target=keeper, name="keeper")
    thread.start()
    now.wait()
    write, said = sys.stderr.write, []
    class Err:
        def write(self, text):
            said.append(text)
            if "llvmlite" in text:
                over.set()
        def flush(self):
            pass
    sys.stderr = Err()
    kernel()
    thread.join()
    print("".join(said))
    """
    )
    assert "the main thread has waited over 0.1 s for another thread" in process.stdout
    assert "_called" in process.stdout  # the stack of the thread that works
    assert "keeper has llvmlite's lock" in process.stdout
    assert process.stdout.count("has waited over") == 1


def test_a_storm_of_foreign_signals_where_objects_of_llvm_are_collected(seed):
    """Handlers of the program's own, which flowvm cannot put off."""
    script(
        KERNEL
        + f"""
    import gc, random
    rng, hits = random.Random({seed}), 0
    sys.unraisablehook = lambda said: None  # what comes in a finalizer is ignored by CPython
    class Struck(BaseException):
        pass
    def strike(number, frame):
        raise Struck
    signal.signal(signal.SIGALRM, strike)
    for k in range(150):
        made = [apart.apart(llvm.parse_assembly, "") for _ in range(20)]
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + 4e-4 * rng.random())
                while made:
                    made.pop()
            finally:  # the signal may also come here
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Struck:
            hits += 1
        made.clear()
        assert not llvm.ffi.lib._lock._lock._is_owned(), k
    kernel()
    """
    )


def test_a_long_wait_for_what_runs_says_nothing():
    process = script(
        KERNEL
        + """
    # a busy machine may give no core for a tenth of a second
    apart.LOOK, apart.PATIENCE, apart.IDLE = 0.02, 0.4, 0.001
    def run():
        begun = time.thread_time()
        while time.thread_time() - begun < 0.8:
            pass
        return 1
    assert apart.apart(run)
    """
    )
    assert "has waited" not in process.stderr
