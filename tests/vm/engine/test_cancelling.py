"""Issued work can be taken back: `flow.vm.cancel()`, and Ctrl-C at a prompt."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import CancelledError, OutOfRangeError
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL
from tests.vm.kernels import Gate, mix, tensor, update, wait_for_gate
from tests.vm.live import streams, until


class Held:
    """The stream does nothing while `gate` is closed; `t` is of the instruction that waits."""

    def __init__(self) -> None:
        self.gate, self.t = Gate(), tensor([0])
        wait_for_gate(self.t, tensor([1]), self.gate.address)
        until(lambda: self.gate.is_reached, "a kernel waits")

    def cancel(self) -> flow.vm.Cancelled:
        """Take back the instructions issued behind the kernel; return the Cancelled."""
        before = flow.vm.stats()["cancelled"], int(engine.words[CTL.N_KEPT])
        flow.vm.cancel()
        self.gate.open()
        assert engine.waits.wait_idle(200)
        after = flow.vm.stats()["cancelled"], int(engine.words[CTL.N_KEPT])
        return flow.vm.Cancelled(after[0] - before[0], after[1] - before[1])


def test_what_has_not_started_is_dropped_and_what_comes_later_is_computed() -> None:
    x = tensor()
    expected = x.numpy().copy()
    held = Held()
    y = mix(x, x, 1)
    z = mix(y, x, 1)
    update(z, y, 2)
    assert held.cancel() == flow.vm.Cancelled(3, 0)
    assert held.t.item() == 1  # it had started
    for t in (y, z):
        with pytest.raises(CancelledError, match="before it had started") as info:
            t.numpy()
    (note,) = info.value.__notes__
    assert "flow.vm.cancel()" in note
    assert "test_cancelling.py" in note
    later = mix(x, x, 1)
    np.testing.assert_array_equal(x.numpy(), expected)
    np.testing.assert_array_equal(later.numpy(), 3 * expected - expected[::-1] + 1)
    with pytest.raises(CancelledError):
        mix(z, x, 1).numpy()  # what is made of it
    assert flow.vm.cancel() == flow.vm.Cancelled(0, 0)
    flow.vm.sync()  # nobody is told of it who does not ask


def test_two_streams_and_several_cancels() -> None:
    stream = flow.Stream("cancelled")
    x = flow.ones(4)
    for _ in range(3):
        held = Held()
        y = x + 1
        with flow.stream(stream):
            z = y * 2
        back = z + x
        assert held.cancel().instructions == 3
        for t in (y, z, back):
            with pytest.raises(CancelledError):
                t.tolist()
        assert (x + 1).tolist() == [2.0] * 4


def test_an_error_that_was_there_before_is_still_told() -> None:
    held = Held()
    bad = flow.index_select(flow.ones(4), 0, flow.tensor([9]))
    held.gate.open()
    engine.waits.wait_idle()
    held = Held()
    after = bad + 1
    held.cancel()
    with pytest.raises(OutOfRangeError):
        bad.tolist()
    with pytest.raises(CancelledError):
        after.tolist()


def test_what_persists_keeps_its_value_where_it_would_have_been_updated() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    adam = flow.optim.Adam(model.parameters(), lr=0.1)
    leaf = flow.ones(3, requires_grad=True)
    x = flow.randn(5, 3)

    def step() -> None:
        adam.zero_grad()
        model(x * leaf).sum().backward()
        adam.step()
        with flow.no_grad():
            leaf.add_(1)

    def values() -> list[np.ndarray]:
        state = [v for s in adam.state.values() for v in s.values() if isinstance(v, flow.Tensor)]
        return [t.detach().numpy().copy() for t in (*model.state_dict().values(), *state, leaf)]

    step()
    step()
    before = values()
    held = Held()
    step()
    other = flow.zeros(3)
    held.gate.open()
    engine.waits.wait_idle()
    changed = values()
    assert not all(map(np.array_equal, before, changed))
    held = Held()
    step()
    other.add_(leaf.detach())
    dropped = held.cancel()
    assert dropped.kept > len(before) - 4
    for was, t in zip(changed, values(), strict=True):
        np.testing.assert_array_equal(was, t)
    with pytest.raises(CancelledError):
        other.tolist()  # it would have been half a result
    step()
    assert all(np.isfinite(v).all() for v in values())


def test_a_parameter_whose_first_values_are_dropped_has_none() -> None:
    held = Held()
    layer = nn.Linear(3, 3)
    held.cancel()
    for t in layer.parameters():
        with pytest.raises(CancelledError):
            t.tolist()
    initialized = nn.Linear(3, 3)
    flow.vm.sync()
    held = Held()
    nn.init.ones_(initialized.weight)  # depends on nothing that was there
    held.cancel()
    with pytest.raises(CancelledError):
        initialized.weight.tolist()


@pytest.mark.parametrize("parted", [False, True])
def test_launches_of_graphs(parted: bool) -> None:
    model = nn.Linear(3, 3)
    sgd = flow.optim.SGD(model.parameters(), lr=0.1)
    side = flow.Stream("side of a cancelled graph")

    def function(x: flow.Tensor) -> flow.Tensor:
        sgd.zero_grad()
        y = model(x)
        if parted:
            with flow.stream(side):
                y = y * 2
        loss = y.sum()
        loss.backward()
        sgd.step()
        return loss.detach()

    graph = flow.compile(function)
    x = flow.ones(2, 3)
    for _ in range(3):
        graph(x).item()
    before = [p.numpy().copy() for p in model.parameters()]
    held = Held()
    waits = x + held.t  # so that no launch begins
    out = [graph(waits) for _ in range(3)]
    dropped = held.cancel()
    assert dropped.instructions >= 4
    for t in out:
        with pytest.raises(CancelledError):
            t.item()
    for was, p in zip(before, model.parameters(), strict=True):
        np.testing.assert_array_equal(was, p.numpy())
    assert np.isfinite(graph(x).item())
    assert not np.array_equal(before[0], model.weight.numpy())


def test_a_kernel_that_writes_new_memory_stops_between_two_chunks() -> None:
    a = flow.randn(64, 64)
    big = flow.randn(1200, 1200)
    (big @ big).sum().item()
    out = [big @ big for _ in range(100)]  # seconds
    begun = int(engine.words[CTL.N_DONE])
    until(lambda: engine.words[CTL.N_DONE] > begun + 2, "products are computed")
    dropped = flow.vm.cancel()
    assert dropped.instructions > 25
    assert (a @ a).sum().item() == pytest.approx(float((a.numpy() @ a.numpy()).sum()), rel=1e-3)
    with pytest.raises(CancelledError):
        out[-1].sum().item()
    finished = [t for t in out if not _is_cancelled(t)]
    expected = big.numpy().astype(np.float64) @ big.numpy()
    for t in finished[-2:]:  # the last ones before it: whole
        np.testing.assert_allclose(t.numpy(), expected, rtol=1e-3, atol=1e-2)
    assert len(finished) + dropped.instructions == len(out)


def _is_cancelled(t: flow.Tensor) -> bool:
    try:
        t[0, 0].item()
    except CancelledError:
        return True
    return False


def test_waits_and_callbacks_of_others_go_on() -> None:
    calls: list[int] = []
    t = tensor([3])
    held = Held()
    engine.callbacks.issue(lambda place: calls.append(place), [t._ref], [0])
    u = t + 1
    assert held.cancel().instructions == 1
    assert len(calls) == 1
    assert t.item() == 3
    with pytest.raises(CancelledError):
        u.item()


def test_the_sequential_engine_has_nothing_to_cancel() -> None:
    with flow.vm.sequential():
        x = flow.ones(2) + 1
        assert not flow.vm.cancel()
        assert x.tolist() == [2.0, 2.0]
    assert repr(flow.vm.Cancelled(0, 0)) == "nothing was to cancel"
    text = repr(flow.vm.Cancelled(1200, 2))
    assert text.startswith("cancelled 1,200 instructions not started; among them 2 updates of")
    assert "among them an update of" in repr(flow.vm.Cancelled(2, 1))


SESSION = """\
import os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
import flowvm as flow
x = flow.randn(2400, 2400)  # long enough on many cores, too
(x @ x).sum().item() != 0
def run():
    while len(flow.vm.pending()) < 40:
        y = x @ x
    os.kill(os.getpid(), signal.SIGINT)

run()
print("answer", (flow.ones(2) + 1).tolist())
print("dropped", flow.vm.stats()["cancelled"] > 0)
"""


def test_ctrl_c_at_pythons_prompt_takes_back_what_the_line_issued() -> None:
    process = subprocess.run(
        [sys.executable, "-i", "-q"], input=SESSION, capture_output=True, text=True, timeout=250
    )
    assert "answer [2.0, 2.0]" in process.stdout, process.stderr
    assert "dropped True" in process.stdout
    assert "flowvm: cancelled " in process.stderr
    assert process.stderr.count("KeyboardInterrupt") == 1


def test_ctrl_c_in_a_cell_of_ipython() -> None:
    pytest.importorskip("IPython")
    program = f"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
text = {SESSION!r}
first, rest = text.split("def run")
shell.run_cell(first)
body, after = ("def run" + rest).split("\\n\\nrun()\\n")
shell.run_cell(body)
shell.run_cell("run()")
shell.run_cell(after)
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "answer [2.0, 2.0]" in process.stdout, process.stderr
    assert "dropped True" in process.stdout


def test_a_program_that_ctrl_c_ends_computes_nothing_more() -> None:
    looks = "lambda: print('left', flow.vm.stats()['cancelled'] > 20)"  # last of all
    program = SESSION.split("\nrun()")[0] + "\nrun()\n"
    program = f"import atexit\natexit.register({looks})\n{program}"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert process.returncode != 0
    assert "left True" in process.stdout
    assert "unfinished" not in process.stderr
    assert len(streams(1)) == 1
