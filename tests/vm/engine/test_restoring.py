"""An error in a step loses nothing: what was not written is as it was when the error is heard.

`Step` issues a training step while the scheduler is held, and has one of its instructions fail:
before it writes anything, as for want of memory, or while it writes.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.compiler import jit
from flowvm.errors import FlowError, OutOfMemoryError, OutOfRangeError
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.plan_words import PLAN, TASK
from flowvm.vm.machine.words import CTL, ENT, KIND, OPERAND, RING, STO
from flowvm.vm.watch.pending import issued
from tests.vm.kernels import Gate, alone, tensor, update, wait_for_gate
from tests.vm.live import until

STATUS = 9100  # of what fails while it writes
flow.errors.declare_status(STATUS, flow.errors.InvalidValueError, "planted")


def failing(args: int, layout: int, lo: int, hi: int) -> int:
    """A kernel that fails where another would compute."""
    return STATUS


KERNEL = jit.native(failing, "int32(int64, int64, int64, int64)")


@contextmanager
def planted(number: int, late: bool) -> Iterator[list[int]]:
    """Instruction `number` of those issued inside that compute fails; the scheduler takes them
    afterwards.  In the list are the numbers of all of them.
    """
    calls: list[int] = []
    with alone():
        engine.words[CTL.HOLD] = 1
        first = issued()
        try:
            yield calls
            for seq in range(first, issued()):
                at = RING.AT + (seq & RING.SLOT_MASK) * RING.WORDS
                word = engine.words[at + RING.ENTRY]
                entry = ENT.AT + (word & ENT.MASK) * ENT.WORDS
                if engine.words[entry + ENT.KIND] in (KIND.OP_CALL, KIND.LAUNCH):
                    if len(calls) == number:
                        engine.words[at + RING.ENTRY] = _twin(word, late)
                    calls.append(seq)
        finally:
            engine.words[CTL.HOLD] = 0


_twins: list[Any] = []


def _twin(word: int, late: bool) -> int:
    """An entry like that of a record, which fails."""
    number = word & ENT.MASK
    info = engine.entries.info[number][0]
    _twins.append(engine.entries.new(KIND.OP_CALL, [], info=info))
    at, to = ENT.AT + number * ENT.WORDS, ENT.AT + (_twins[-1] & ENT.MASK) * ENT.WORDS
    engine.m[to : to + ENT.WORDS] = engine.m[at : at + ENT.WORDS]
    if late:
        engine.m[to + ENT.KERNEL], engine.m[to + ENT.PREPARE] = KERNEL, 0
    else:
        engine.m[to + ENT.SCRATCH] = 1 << 50
    return int(_twins[-1] & ENT.MASK) | (word >> ENT.BITS) << ENT.BITS


class Step:
    """A model that trains, what it consists of, and values of that."""

    def __init__(self, optimizer: Callable[[Any], Any], graph: bool = False) -> None:
        flow.manual_seed(1)
        self.model = nn.Sequential(
            nn.Embedding(5, 3), nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        )
        self.optimizer = optimizer(self.model.parameters())
        self.function: Any = flow.compile(self.step) if graph else self.step
        self.places = flow.tensor([0, 3, 4, 3])
        for _ in range(3):
            self.function(self.places).item()
        self.start = self.values()
        self.counts = self._counts()

    def step(self, places: flow.Tensor) -> flow.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(places).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def tensors(self) -> list[flow.Tensor]:
        """All that persists."""
        state = [v for s in self.optimizer.state.values() for v in s.values()]
        values = [*self.model.state_dict().values(), *state]
        return [t.detach() for t in values if isinstance(t, flow.Tensor)]

    def values(self) -> list[np.ndarray]:
        return [t.numpy().copy() for t in self.tensors()]

    def _counts(self) -> list[dict[str, int]]:
        return [
            {k: v for k, v in s.items() if isinstance(v, int)}
            for s in self.optimizer.state.values()
        ]

    def put_back(self) -> None:
        """To where it was at the start."""
        with flow.no_grad():
            for t, value in zip(self.tensors(), self.start, strict=True):
                t.copy_(flow.tensor(value))
        for entry, counts in zip(self.optimizer.state.values(), self.counts, strict=True):
            entry.update(counts)

    def check(self, after: list[np.ndarray], torn: set[int] = frozenset()) -> int:
        """Each value is as before the step or as behind it: how many are as before."""
        unchanged = 0
        for t, was, now in zip(self.tensors(), self.start, after, strict=True):
            if t._ref & OPERAND.STORAGE_MASK not in torn:
                value = t.numpy()
                assert np.array_equal(value, was) or np.array_equal(value, now)
                unchanged += np.array_equal(value, was) and not np.array_equal(was, now)
        return unchanged


OPTIMIZERS = {
    "sgd": lambda params: flow.optim.SGD(params, lr=0.1, momentum=0.9),
    "adam": lambda params: flow.optim.Adam(params, lr=0.1, foreach=False),
}


def written_in_place(seq: int) -> set[int]:
    """The storages that an instruction, which has not been followed by many, writes in place."""
    record = RING.AT + (seq & RING.SLOT_MASK) * RING.WORDS
    assert engine.words[record + RING.MARK] == seq + 1
    from flowvm.vm.machine.machine import access_of, count_of, entry_of, operand_of

    slot = seq & RING.SLOT_MASK
    entry = entry_of(engine.words, slot)
    return {
        operand_of(engine.words, slot, entry, k) & OPERAND.STORAGE_MASK
        for k in range(count_of(engine.words, slot, entry))
        if access_of(engine.words, slot, entry, k) & (3 | OPERAND.ALLOCATE) == OPERAND.MUT
    }


@pytest.mark.parametrize("late", [False, True], ids=["memory", "kernel"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_instruction_of_a_step(optimizer: str, late: bool) -> None:
    case = Step(OPTIMIZERS[optimizer])
    case.function(case.places)
    after = case.values()
    number, survivors, tears = 0, 0, 0
    while True:
        case.put_back()
        flow.vm.sync()
        with planted(number, late) as result:
            loss = case.function(case.places)
        if number >= len(result):
            break
        persist = {t._ref & OPERAND.STORAGE_MASK for t in case.tensors()}
        torn = persist & written_in_place(result[number]) if late else set()
        with pytest.raises(flow.errors.InvalidValueError if late else OutOfMemoryError):
            flow.vm.sync()
        survivors += case.check(after, torn)
        if torn:
            tears += 1
            paths = {one.name for one in lost(flow.vm.restore()) if one.begun}
            assert len(paths) == len(torn)
            assert all(paths), "it has a name"
            case = Step(OPTIMIZERS[optimizer])
        else:
            value = case.function(case.places).item()  # training goes on
            assert np.isfinite(value)
        del loss
        number += 1
    flow.vm.sync()
    case.check(after)
    assert number > 20
    assert survivors > 3 * number  # most failures come in front of most updates
    assert (tears > 0) == late


@pytest.mark.parametrize("parted", [False, True], ids=["chain", "actors"])
def test_every_task_of_a_graph(parted: bool) -> None:
    side = flow.Stream("side of a graph that fails")

    class Parted(Step):
        def step(self, places: flow.Tensor) -> flow.Tensor:
            self.optimizer.zero_grad()
            y = self.model(places)
            if parted:
                with flow.stream(side):
                    y = y * 2
            loss = y.square().mean()
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    case = Parted(OPTIMIZERS["sgd"], graph=True)
    case.function(case.places).item()
    after = case.values()
    plan = plan_of(case.function)
    assert bool(plan.actors) == parted
    survivors = 0
    for task in range(len(plan.tasks)):
        case.put_back()
        flow.vm.sync()
        with task_fails(plan, task):
            loss = case.function(case.places)
            with pytest.raises(flow.errors.InvalidValueError):
                loss.item()
            with pytest.raises(FlowError) if task_tears(plan, task) else nothing():
                flow.vm.sync()
                case.values()
        restored = flow.vm.restore()
        torn = {t._ref & OPERAND.STORAGE_MASK for t in case.tensors() if is_torn(t)}
        assert bool(torn) == task_tears(plan, task)
        survivors += case.check(after, torn)
        if torn:
            assert all(one.name for one in lost(restored) if one.begun)
            case = Parted(OPTIMIZERS["sgd"], graph=True)
            plan = plan_of(case.function)
        else:
            assert np.isfinite(case.function(case.places).item())
    assert survivors > len(plan.tasks)


@contextmanager
def nothing() -> Iterator[None]:
    yield


def is_torn(t: flow.Tensor) -> bool:
    return engine.words[STO.AT + (t._ref & OPERAND.STORAGE_MASK) * STO.WORDS + STO.TORN] != 0


def plan_of(function: Any) -> Any:
    """The only Plan that is."""
    from flowvm.graph.plan.plan import Plan

    gc.collect()
    (plan,) = [p for p in gc.get_objects() if type(p) is Plan and p.name.endswith("step")][-1:]
    return plan


def task_tears(plan: Any, task: int) -> bool:
    """Tell whether a task writes a variable."""
    variables = set(plan.variables)
    return any(
        access != "const" and operand.buffer in variables
        for access, operand, _ in plan.tasks[task].registers
    )


@contextmanager
def task_fails(plan: Any, task: int) -> Iterator[None]:
    at = int(plan.words[PLAN.FIRST])
    for _ in range(task):
        at += int(plan.words[at + TASK.LENGTH])
    before = int(plan.words[at + TASK.KERNEL])
    plan.words[at + TASK.KERNEL] = KERNEL
    try:
        yield
    finally:
        plan.words[at + TASK.KERNEL] = before


# --- the rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", [False, True])
def test_until_the_error_is_heard_nothing_looks_fine(graph: bool) -> None:
    case = Step(OPTIMIZERS["sgd"], graph)
    with planted(0, False):
        first = case.function(case.places)
    second = case.function(case.places)  # of parameters that are a step behind
    for t in (second, first, second):
        with pytest.raises(OutOfMemoryError):
            t.item()
    third = case.function(case.places)
    assert np.isfinite(third.item())
    flow.vm.sync()  # it was heard of


@pytest.mark.parametrize("graph", [False, True])
def test_a_program_that_reads_nothing_hears_of_it_at_sync(graph: bool) -> None:
    case = Step(OPTIMIZERS["sgd"], graph)
    with planted(0, False):
        case.function(case.places)
    case.function(case.places)
    with pytest.raises(OutOfMemoryError) as info:
        flow.vm.sync()
    (note,) = info.value.__notes__
    assert "flow.vm.restore()" in note
    flow.vm.sync()
    for t, was in zip(case.tensors(), case.start, strict=True):
        if t.dtype.is_floating_point:  # counts of batches depend on nothing that failed
            np.testing.assert_array_equal(t.numpy(), was)


@pytest.fixture(autouse=True)
def begun() -> None:
    """Leave what earlier tests have lost, and still have, to them."""
    Begun.seq = issued()


class Begun:
    seq = 0


def lost(restored: flow.vm.Restored) -> list[flow.vm.Lost]:
    """Return what it says of this test's own."""
    return [one for one in restored.lost if one.seq >= Begun.seq]


OUT_OF_MEMORY = """
import resource
import flowvm as flow
from flowvm import nn
model = nn.Linear(64, 64)
adam = flow.optim.Adam(model.parameters())
def step(n):
    adam.zero_grad()
    loss = model(flow.ones(n, 64)).square().mean()
    loss.backward()
    adam.step()
    return loss.item()
step(8)
before = model.weight.tolist()
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (256 << 20), -1))
try:
    step(4_000_000)
except MemoryError as error:
    assert "flow.vm.restore()" in error.__notes__[0]
    assert model.weight.tolist() == before
    step(8)
    flow.vm.sync()
    print("goes on", model.weight.tolist() != before)
"""


def test_a_smaller_batch_trains_when_one_was_too_large() -> None:
    process = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY], capture_output=True, text=True, timeout=200
    )
    assert process.stdout == "goes on True\n", process.stderr


def bad() -> flow.Tensor:
    return flow.index_select(flow.ones(4), 0, flow.tensor([9]))


def test_other_tensors_are_restored_when_they_are_asked_for() -> None:
    total, view = flow.ones(4), flow.zeros(2, 3)
    total.add_(bad())
    view[1].add_(bad()[0])
    for t in (total, view, total):
        with pytest.raises(OutOfRangeError):
            t.numpy()
    product = total * 2
    restored = flow.vm.restore()
    assert restored.tensors == 2
    assert total.tolist() == [1.0] * 4
    assert view.tolist() == [[0.0] * 3] * 2
    assert [one.tensor for one in lost(restored)] == ["f32[4]"]
    assert "was never computed" in repr(restored)
    with pytest.raises(OutOfRangeError):
        product.numpy()


def test_an_error_that_nobody_heard_is_still_told_behind_a_restore() -> None:
    total = flow.ones(4)
    total.add_(bad())
    assert flow.vm.restore().tensors == 1
    assert total.tolist() == [1.0] * 4
    with pytest.raises(OutOfRangeError):
        flow.vm.sync()


def test_what_another_error_has_poisoned_stays_poisoned() -> None:
    p, q = nn.Parameter(flow.ones(2)), nn.Parameter(flow.ones(2))
    first, second = bad(), flow.index_select(flow.ones(4), 0, flow.tensor([7]))
    with flow.no_grad():
        p.add_(first)
        q.add_(second)
    with pytest.raises(OutOfRangeError, match="9"):
        first.item()
    assert p.tolist() == [1.0, 1.0]
    with pytest.raises(OutOfRangeError, match="7"):
        q.tolist()
    assert q.tolist() == [1.0, 1.0]


def test_what_was_issued_before_is_skipped_and_what_comes_behind_is_not() -> None:
    """Though the error is raised while what it poisons still waits."""
    gate = Gate()
    p = nn.Parameter(flow.ones(1))
    waits = tensor([0])
    wrong = bad()
    with flow.stream(flow.Stream("held, of a parameter")):
        wait_for_gate(waits, tensor([1]), gate.address)
        with flow.no_grad():
            p.mul_(2 + 0 * waits.to(flow.float32))
            p.add_(wrong)
    until(lambda: gate.is_reached, "a kernel waits")
    with pytest.raises(OutOfRangeError):
        wrong.item()
    after = p * 3
    gate.open()
    assert p.tolist() == [2.0]
    assert after.tolist() == [6.0]


def test_a_gradient_that_was_never_made_is_none_again() -> None:
    w = flow.ones(3, requires_grad=True)

    def fail() -> None:
        loss = (w * bad()).sum()
        loss.backward()
        loss.item()

    with pytest.raises(OutOfRangeError):
        fail()
    assert w.grad is None
    (w * 2).sum().backward()
    assert w.grad.tolist() == [2.0] * 3
    with pytest.raises(OutOfRangeError):
        fail()
    assert w.grad.tolist() == [2.0] * 3  # what was accumulated before
    (w * 2).sum().backward()
    assert w.grad.tolist() == [4.0] * 3


def test_state_that_never_had_a_value_is_made_anew() -> None:
    w = nn.Parameter(flow.ones(3))

    class Remembering(flow.optim.Optimizer):
        def __init__(self) -> None:
            super().__init__([w], {})

        def step(self, closure: Any = None) -> None:
            before = self.state[w].get("before")
            self.state[w]["before"] = w.grad * 1 if before is None else before + w.grad
            with flow.no_grad():
                w.sub_(self.state[w]["before"])

    opt = Remembering()
    for factor in (bad()[0], flow.tensor(2.0)):
        opt.zero_grad()
        loss = (w * factor).sum()
        loss.backward()
        opt.step()
        try:
            loss.item()
        except OutOfRangeError:
            assert w not in opt.state
    assert w.tolist() == [-1.0] * 3


def test_a_scaler_goes_on() -> None:
    w = nn.Parameter(flow.ones(3))
    opt, scaler = flow.optim.SGD([w], lr=0.5), flow.amp.GradScaler(init_scale=64.0)
    for factor in (flow.tensor(1.0), bad()[0], flow.tensor(1.0)):
        opt.zero_grad()
        try:
            scaler.scale((w * factor).sum()).backward()
            scaler.step(opt)
            scaler.update()
        except OutOfRangeError:
            assert w.tolist() == [0.5] * 3
    assert w.tolist() == [0.0] * 3
    assert scaler.get_scale() == 64.0


def test_a_scaler_whose_scale_was_to_change() -> None:
    scaler = flow.amp.GradScaler(init_scale=64.0)
    scaler.update(bad()[0])
    with pytest.raises(OutOfRangeError):
        flow.vm.sync()
    assert scaler.get_scale() == 64.0


def test_a_launch_that_is_skipped_leaves_its_variables_as_they_were() -> None:
    mine, others = flow.zeros(2), flow.zeros(2)

    @flow.compile
    def function(x: flow.Tensor) -> flow.Tensor:
        others.add_(1)  # which does not depend on x
        mine.add_(x)
        return x * 2

    function(flow.ones(2)).tolist()
    mine.zero_()
    others.zero_()
    out = function(bad().expand(2) + 0)
    behind = function(flow.ones(2))
    for t in (behind, out):
        with pytest.raises(OutOfRangeError):
            t.tolist()
    assert (mine.tolist(), others.tolist()) == ([0.0] * 2, [0.0] * 2)
    assert function(flow.ones(2)).tolist() == [2.0] * 2
    assert (mine.tolist(), others.tolist()) == ([1.0] * 2, [1.0] * 2)


@pytest.mark.parametrize("sequential", [False, True])
def test_what_was_half_written_is_named_and_stays_poisoned(sequential: bool) -> None:
    layer = nn.Linear(2, 2)
    flow.vm.sync()

    def add() -> None:
        with flow.no_grad():
            layer.weight.index_add_(0, flow.tensor([0, 9]), flow.ones(2, 2))
        flow.vm.sync()

    with flow.vm.sequential() if sequential else nothing(), pytest.raises(OutOfRangeError):
        add()
    restored = flow.vm.restore()
    assert (restored.tensors, len(lost(restored))) == (0, 1)
    (one,) = lost(restored)
    assert (one.name, one.tensor, one.begun) == ("weight", "f32[2,2]", True)
    assert f"#{one.seq} failed while it wrote to it" in repr(restored)
    for _ in range(2):
        with pytest.raises(OutOfRangeError):
            layer.weight.tolist()
    layer.weight = nn.Parameter(flow.ones(2, 2))  # what else it is to be
    assert layer.weight.tolist() == [[1.0, 1.0]] * 2
    assert not lost(flow.vm.restore())


def test_what_a_cancel_dropped_is_restored_as_well() -> None:
    gate = Gate()
    waits, t, fresh = tensor([0]), flow.ones(2), None
    flow.vm.sync()
    wait_for_gate(waits, tensor([1]), gate.address)
    until(lambda: gate.is_reached, "a kernel waits")
    t.add_(1)
    fresh = t * 2
    flow.vm.cancel()
    gate.open()
    restored = flow.vm.restore()
    assert t.tolist() == [1.0, 1.0]
    assert [one.tensor for one in lost(restored)] == ["f32[2]"]
    with pytest.raises(flow.errors.CancelledError):
        fresh.tolist()


def test_memory_is_right_for_a_tensor_that_takes_over_a_number() -> None:
    """Neither poison nor wholeness is inherited."""
    for _ in range(20):
        wrong = bad()
        with pytest.raises(OutOfRangeError):
            wrong.item()
        del wrong
        t = flow.ones(2)
        t.add_(1)
        assert t.tolist() == [2.0, 2.0]
        del t
    assert not lost(flow.vm.restore())


def test_engines_and_traces() -> None:
    """The recorder knows a Restore, and the schedule is right."""
    p = nn.Parameter(flow.ones(2))
    with flow.vm.record() as trace:
        with flow.no_grad():
            p.add_(bad())
        with pytest.raises(OutOfRangeError):
            p.tolist()
        assert p.tolist() == [1.0, 1.0]
        assert update(tensor(), tensor(), 1) is not None
    assert "restore" in [one.name for one in trace.instructions]
    flow.vm.verify(trace)
