"""The failure of an instruction: its hearers, its moment, and the work that goes on."""

from __future__ import annotations

import contextlib
import gc
import linecache
import os
import re
import struct
import subprocess
import sys
import traceback
import weakref

import pytest

import flowvm as flow
from flowvm import errors
from flowvm.compiler import jit
from flowvm.eager.modes import use_stream
from flowvm.eager.tensor import new_tensor
from flowvm.errors import KernelError, Status, VMError
from flowvm.ops.declare.composite import Recorded, record
from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.entries import no_op
from flowvm.vm.machine.words import CTL, ERR, KIND, OPERAND
from flowvm.vm.workers import allocation, execute
from tests.vm.kernels import (
    META,
    SIGNATURE,
    USER_STATUS,
    Gate,
    alone,
    empty,
    fail,
    mix,
    tensor,
    update,
    wait_for_gate,
)
from tests.vm.live import script, streams, word

STATUS = USER_STATUS + 1
NOT_A_WORD = (struct.error, OverflowError, TypeError, ValueError)


def raised_by(function):
    with pytest.raises(BaseException) as info:  # noqa: PT011
        function()
    return info.value


def test_the_error_comes_at_the_sync_point_and_poison_reaches_dependents_only():
    x, y, stranger = tensor(), tensor(), tensor()
    expected = 5 * stranger.numpy() + y.numpy() + 1
    fail(x, y, STATUS)
    z = mix(x, y, 1)
    later = mix(z, y, 1)
    update(stranger, y, 1)
    error = raised_by(later.numpy)
    assert type(error) is KernelError
    assert all(raised_by(t.numpy) is error for t in (x, z, later))
    assert (stranger.numpy() == expected).all()
    assert y.numpy().shape == (48,)  # it was only read


def test_poison_spreads_through_in_place_updates_and_other_streams():
    x, y = tensor(), tensor()
    fail(x, y, STATUS)
    with use_stream(streams(2)[1]):
        update(y, x, 1)
    assert raised_by(y.numpy) is raised_by(x.numpy)


def test_the_note_names_the_op_its_operands_and_the_users_line():
    x = tensor()
    fail(x, x, STATUS)  # this line
    (note,) = raised_by(x.numpy).__notes__
    lines = note.splitlines()
    assert re.fullmatch(r"flowvm: raised by #\d+ fail on cpu; it was submitted at", lines[0]), (
        lines[0]
    )
    number = int(lines[1].split(":")[1].split()[0])
    assert lines[1].split(":")[0].endswith(os.path.relpath(__file__))
    assert lines[1].endswith(" in test_the_note_names_the_op_its_operands_and_the_users_line")
    assert linecache.getline(__file__, number).rstrip().endswith("# this line")
    assert lines[2].strip() == "fail(x, x, STATUS)  # this line"
    assert lines[3].strip() == "^" * len("fail(x, x, STATUS)")
    assert lines[2].index("fail(") == lines[3].index("^")
    assert "const y i64[48]" in note
    assert "mut x i64[48]" in note
    assert "flow.last_error()" in lines[-1]
    raised_by(x.numpy)
    assert len(raised_by(x.numpy).__notes__) == 1  # looking again says it once


def test_the_note_names_who_made_the_operands_and_what_was_poisoned_first():
    x, y = tensor(), tensor()
    update(x, x, 1)  # makes x
    fail(y, x, STATUS)
    stranger = mix(x, x, 1)
    z = mix(y, x, 1)  # needs y
    later = mix(z, stranger, 1)
    engine.waits.wait_idle()
    (note,) = raised_by(later.numpy).__notes__
    stranger.numpy()

    def line(of):
        lines = linecache.getlines(__file__)
        return next(k for k, text in enumerate(lines, 1) if text.endswith(f"# {of}\n"))

    assert re.search(rf"const y i64\[48\] ← #\d+ update, test_errors.py:{line('makes x')}", note)
    assert re.search(
        rf"poisoned  2 later instructions \(first #\d+ mix, test_errors.py:{line('needs y')}\)",
        note,
    )


def test_what_is_said_of_poison_is_true_when_it_is_said():
    x, y = tensor(), tensor()
    fail(x, y, STATUS)
    assert "poisoned" not in raised_by(x.numpy).__notes__[0]
    z = mix(x, y, 1)
    engine.waits.wait_idle()
    (note,) = raised_by(z.numpy).__notes__
    assert "poisoned  1 later instruction (first" in note


def test_the_note_names_the_step():
    from flowvm.profiler import span

    for k in range(3):
        with span("epoch"), span("a step of mine"):
            x = tensor()
            if k == 1:
                fail(x, x, STATUS)
                inside = raised_by(x.numpy).__notes__[0]
                failed = x
    assert "fail on cpu (a step of mine 1); it" in inside
    assert "(a step of mine 1)" in raised_by(failed.numpy).__notes__[0]


# as if it were flowvm's: made of ordinary operations, of which one divides by an integer zero
FAILING = "lambda c, g: (g * (g.to(flow.int64) // (g * 0).to(flow.int64)),)"
halving = Recorded("halved", eval(compile(FAILING, "<flowvm test>", "eval")), ("x",))


def halved(x):
    return record(halving, (x,), x.detach() / 2)  # halves


HALVED = "x.detach() / 2"


class Net(flow.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = flow.nn.Identity()
        self.embed.forward = lambda x: halved(x.reshape(2)).reshape(2, 1)

    def forward(self, x):
        return self.embed(x * 3) + 1


def forward_of(note):
    """Return a note's line of the forward pass, and the text above the carets."""
    lines = note.splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("    forward   "))
    source, carets = lines[at + 1], lines[at + 2]
    first = carets.index("^")
    return source.strip(), source[first : first + carets.count("^")]


@pytest.mark.parametrize("level", [1, 2])
def test_a_gradient_that_fails_names_the_line_of_the_forward_pass(level):
    w_in, net = flow.ones(2, requires_grad=True), Net()
    with engine.flight.at_least(level):
        y = (net(w_in * 5) * 7).sum()
        y.backward()  # backward
    (note,) = raised_by(w_in.grad.numpy).__notes__
    assert "    y.backward()  # backward" in note
    assert forward_of(note) == ("return record(halving, (x,), x.detach() / 2)  # halves", HALVED)
    assert ("    module    Net.embed" in note) == (level == 2)
    z = tensor()
    fail(z, z, STATUS)
    assert "    forward   " not in raised_by(z.numpy).__notes__[0]


def test_a_gradient_that_fails_in_a_graph_names_the_line_of_the_forward_pass():
    net, x = Net(), flow.ones(2)

    class Step(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.net = net
            self.weight = flow.nn.Parameter(flow.ones(2))

        def build(self, x):
            loss = self.net(self.weight * x).square().sum()
            loss.backward()  # backward in a graph
            return loss

    step = Step()
    loss = step(x)
    (note,) = raised_by(step.weight.grad.numpy).__notes__
    assert "loss.backward()  # backward in a graph" in note
    assert forward_of(note) == ("return record(halving, (x,), x.detach() / 2)  # halves", HALVED)
    assert "    module    net.embed" in note
    del loss


def test_a_gradient_of_a_gradient_names_the_line_of_the_forward_pass():
    x = flow.ones(2, requires_grad=True)
    y = x.square()  # squared
    (g,) = flow.autograd.grad(y.sum(), x, create_graph=True)
    halved(g).sum().backward()
    (note,) = raised_by(x.grad.numpy).__notes__
    assert forward_of(note)[1] == HALVED
    with flow.profiler.profile() as p:
        y = x.square() * 2
        (g,) = flow.autograd.grad(y.sum(), x, create_graph=True)
        g.sum().backward()
    lines = {p.run.lines[k] for k in p.run.forward.tolist() if k >= 0}
    assert lines == {p.run.lines[p.run.line[0]]}, "the sums' gradients are views"


def test_operands_that_do_not_fit_a_line_have_one_each():
    x = flow.zeros(1, 1, 1, 1, 1, 1, 1, 1, 5)
    y = flow.gather(x, 8, flow.full((1, 1, 1, 1, 1, 1, 1, 1, 2), 7))
    (note,) = raised_by(y.numpy).__notes__
    lines = note.splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith("    operands  const"))
    assert lines[first + 1].startswith("              const")
    assert lines[first + 2].startswith("              mut")
    assert max(map(len, lines)) <= 100


def test_the_errors_print_a_line_each():
    x = tensor()
    fail(x, x, STATUS)
    engine.waits.wait_idle()
    line = repr(flow.vm.errors()).splitlines()[-1]
    assert re.match(r"#\d+ fail  test_errors.py:\d+  KernelError: the kernel returned", line)
    assert line.endswith("(seen by nobody so far)")
    assert flow.last_error() is raised_by(x.numpy)
    assert not repr(flow.errors()[-1]).endswith("so far)")
    assert flow.errors.KernelError is KernelError


@pytest.mark.parametrize(
    ("status", "kind", "builtin"),
    [
        (Status.INDEX_OUT_OF_RANGE, errors.OutOfRangeError, IndexError),
        (Status.DIVISION_BY_ZERO, errors.DivisionByZeroError, ZeroDivisionError),
        (Status.INVALID_VALUE, errors.InvalidValueError, ValueError),
        (Status.SINGULAR_MATRIX, errors.LinAlgError, RuntimeError),
    ],
)
def test_statuses_become_their_exceptions(status, kind, builtin):
    x = tensor()
    fail(x, x, int(status))
    error = raised_by(x.numpy)
    assert type(error) is kind
    assert isinstance(error, builtin)


def test_the_statuses_that_the_vm_itself_reports():
    assert allocation.OUT_OF_MEMORY == Status.OUT_OF_MEMORY
    assert execute.CAPTURED == Status.CAPTURED


def test_details_of_the_kernel_are_in_the_message():
    x = tensor()
    fail(x, x, int(Status.INDEX_OUT_OF_RANGE))
    assert str(raised_by(x.numpy)) == "index 7 is out of bounds for dimension 9 with size 8"


def test_sync_raises_the_first_and_names_the_others_once():
    x, y = tensor(), tensor()
    fail(x, x, STATUS)
    fail(y, y, STATUS + 1)
    error = raised_by(engine.waits.sync)
    assert f"status {STATUS} " in str(error)
    assert any(f"status {STATUS + 1} " in note for note in error.__notes__)
    engine.waits.sync()  # nothing new
    assert raised_by(x.numpy) is error


@alone()
def test_memory_of_failed_and_skipped_instructions_is_released():
    engine.waits.wait_idle()
    engine.storages.release_dead()
    engine.waits.wait_idle()
    before = word(CTL.LIVE_BYTES)
    x = empty()
    fail(x, x, STATUS)
    chain = [x]
    for k in range(50):
        chain.append(mix(chain[-1], x, k))
    raised_by(chain[-1].numpy)
    del chain, x
    engine.storages.release_dead()
    engine.waits.wait_idle()
    assert word(CTL.LIVE_BYTES) == before


def test_a_storage_used_again_is_not_poisoned():
    for _ in range(300):
        x = empty()
        fail(x, x, STATUS)
        del x
    engine.storages.release_dead()
    engine.waits.wait_idle()
    fresh = [empty() for _ in range(400)]
    assert all(t.numpy()[0] == 2 for t in fresh)


def test_a_report_that_comes_behind_its_poison_is_waited_for(monkeypatch):
    failures = engine.failures
    assert failures.awaited(-7, 0.0) is None
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            monkeypatch.setitem(failures.by_seq, -7, "the report")

    monkeypatch.setattr("flowvm.vm.engine.failures.time.sleep", sleep)
    assert failures.awaited(-7, 60.0) == "the report"
    assert len(slept) == 3


def test_more_failures_than_are_remembered():
    """The ring of errors wraps, the oldest are forgotten; a tensor poisoned by one still raises."""
    tensors = [tensor([0]) for _ in range(ERR.LENGTH + 300)]
    before = word(CTL.N_FAILED)
    for t in tensors:
        fail(t, t, STATUS)
    engine.waits.wait_idle()
    assert word(CTL.N_FAILED) - before == len(tensors)
    assert isinstance(raised_by(tensors[0].numpy), VMError)
    assert isinstance(raised_by(tensors[-1].numpy), KernelError)
    assert len(engine.failures.all()) <= ERR.LENGTH
    x = tensor()
    update(x, x, 1)
    x.numpy()


@pytest.mark.parametrize("bad", [2**70, 1.5, "one", None])
def test_a_number_that_no_record_holds_raises_at_the_call_and_leaves_no_hole(bad):
    x = tensor([1])
    with pytest.raises(NOT_A_WORD):
        update(x, x, bad)
    with pytest.raises(NOT_A_WORD):
        engine.records.issue(engine.waits.touches[0], (), (bad,))
    update(x, x, 1)
    assert x.item() == 7


def test_a_tensor_for_a_number_is_read_before_a_record_is_begun():
    x, two = tensor([1]), mix(tensor([0]), tensor([1]), 3)
    update(x, x, two)
    assert x.item() == 8


# --- memory -------------------------------------------------------------------------------------

HUGE = 1 << 47  # bytes: more than any address space


@pytest.mark.parametrize(("size", "scratch"), [(HUGE, 0), (64, HUGE), (1 << 62, 0)])
@alone()
def test_no_memory_is_an_error_of_the_instruction(size, scratch):
    kernel = jit.native(no_op, SIGNATURE)
    entry = engine.entries.new(
        KIND.OP_CALL,
        [OPERAND.MUT | OPERAND.ALLOCATE],
        kernel=kernel,
        sizes=[size],
        scratch=scratch,
        info="huge",
    )
    engine.storages.release_dead()  # of earlier tests
    engine.waits.wait_idle()
    live, x = word(CTL.LIVE_BYTES), new_tensor(engine.storages.refill(), META)
    engine.records.issue(entry, [x._ref])
    error = raised_by(x.numpy)
    assert type(error) is errors.OutOfMemoryError
    assert isinstance(error, MemoryError)
    nbytes, now, reserved, most = details(error)
    assert most == word(CTL.MOST_BYTES)
    assert nbytes == max(size, scratch)
    assert live <= now <= reserved
    assert empty().numpy()[0] == 2


def details(error):
    """The numbers of an out-of-memory message."""
    return [int(part) for part in "".join(c if c.isdigit() else " " for c in str(error)).split()]


# --- callbacks ----------------------------------------------------------------------------------


class Unusual(BaseException):
    pass


@pytest.mark.parametrize("kind", [ValueError, Unusual, KeyboardInterrupt, SystemExit])
def test_what_a_callback_raises_is_raised_as_it_is(kind):
    error, x = kind("mine"), tensor()

    def callback(address):
        raise error

    engine.callbacks.issue(callback, [x._ref], [OPERAND.MUT])
    y = mix(x, x, 1)
    assert raised_by(y.numpy) is error
    assert "callback" in error.__notes__[0]
    other = tensor()
    engine.callbacks.issue(lambda address: None, [other._ref], [OPERAND.MUT])  # its thread lives
    other.numpy()


def test_a_callback_of_a_poisoned_tensor_is_not_called():
    x, called = tensor(), []
    fail(x, x, STATUS)
    engine.callbacks.issue(lambda address: called.append(address), [x._ref], [OPERAND.CONST])
    engine.waits.wait_idle()
    assert not called
    assert not engine.callbacks.functions


def test_a_callback_is_let_go_when_it_is_done():
    class Callback:
        def __call__(self, address):
            pass

    callback, x = Callback(), tensor()
    gone = weakref.ref(callback)
    engine.callbacks.issue(callback, [x._ref], [OPERAND.MUT])
    del callback
    x.numpy()
    engine.waits.wait_idle()
    gc.collect()
    assert gone() is None


# --- at exit ------------------------------------------------------------------------------------


def test_errors_that_nobody_saw_are_reported_at_exit():
    process = script(
        """
        seen, unseen = tensor(), [tensor() for _ in range(7)]
        fail(seen, seen, 9064)
        try: seen.numpy()
        except Exception: pass
        for t in unseen:
            fail(t, t, 9077)
        """,
        check=False,
    )
    assert process.returncode == 1
    assert process.stderr.count("failed and nobody looked at its result") == 5
    assert "status 9077" in process.stderr
    assert "status 9064" not in process.stderr
    assert "and 2 more failed instructions" in process.stderr
    assert re.search(r"^    <string>:\d+\n", process.stderr, re.M)


FAILS = "import flowvm as flow, os, sys; x = flow.tensor([1]) // flow.tensor([0]); print('out')"
SEEN = """
try:
    x.numpy()
except flow.FlowError:
    {}"""


@pytest.mark.parametrize(
    ("then", "code"),
    [("", 1), ("sys.exit()", 1), ("sys.exit(3)", 3), ("raise SystemExit(4)", 4), ("os._exit(0)", 0),
     ("raise ValueError", 1), (SEEN.format("flow.vm.restore()"), 0), (SEEN.format("pass"), 0)],
)  # fmt: skip
def test_the_exit_code_of_a_program_whose_work_failed(then, code):
    process = python("-c", f"{FAILS}\n{then}")
    assert process.returncode == code, process.stderr
    assert ("nobody looked" in process.stderr) == ("os._exit" not in then and "try" not in then)
    assert process.stdout == "out\n" or "os._exit" in then  # which may not write it out


def test_the_exit_code_of_a_script_and_of_a_prompt(tmp_path):
    (path := tmp_path / "fails.py").write_text(FAILS)
    assert python(path).returncode == 1
    assert python("-i", input=f"{FAILS}\n").returncode == 0


def python(*args, **options):
    return subprocess.run(
        [sys.executable, *map(str, args)], capture_output=True, text=True, timeout=250, **options
    )


def test_a_waiter_hears_of_the_error_while_others_still_wait():
    x, stuck = tensor(), tensor()
    with Gate() as gate:
        with use_stream(streams(2)[1]):
            wait_for_gate(stuck, stuck, gate.address)
        fail(x, x, STATUS)
        assert isinstance(raised_by(x.numpy), KernelError)


def test_a_remembered_failure_keeps_no_frames_tensors():
    """Neither of the reader's nor of the callback's frames, while its words and lines stay."""
    gc.collect()
    sync_quietly()
    before = flow.vm.stats()["live_bytes"]

    def read(kind):
        mine = flow.ones(1 << 14)
        bad = flow.index_select(mine, 0, flow.tensor([1 << 20]))
        with pytest.raises(kind) as caught:
            bad.numpy()
        return str(caught.value), caught.value.__notes__

    def call_back(tensor):
        local = flow.ones(1 << 14)

        def fail(address):
            shifted = local + 0
            raise ValueError(f"{shifted.shape} of a callback")

        engine.callbacks.issue(fail, [tensor._ref], [OPERAND.MUT])
        with pytest.raises(ValueError, match="of a callback") as caught:
            tensor.numpy()
        return "".join(traceback.format_tb(caught.tb))

    words, notes = read(IndexError)
    assert 'raise ValueError(f"{shifted.shape} of a callback")' in call_back(flow.ones(3))
    sync_quietly()
    gc.collect()
    flow.vm.sync()
    assert flow.vm.stats()["live_bytes"] <= before
    assert any(str(f.exception) == words for f in flow.vm.errors())
    assert "bad = flow.index_select" in "".join(notes)


def sync_quietly():
    with contextlib.suppress(Exception):
        flow.vm.sync()
