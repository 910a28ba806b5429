"""Values that are done are read where they lie; who waits for one that is not does the work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.vm.callers.hot import CALL_STREAM
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine import machine
from flowvm.vm.machine.words import CTL, DEP, ENT, KIND, OPERAND
from flowvm.vm.watch.pending import issued
from tests.vm.bench import Bench, Instruction, const, feed, mut
from tests.vm.live import script

READS: dict[str, Callable[[Any], Any]] = {
    "item": lambda x: x[0, 0].item(),
    "tolist": lambda x: x.tolist(),
    "rows of a view": lambda x: x.t()[1:].tolist(),
    "numpy": lambda x: x.numpy().sum(),
    "asarray": lambda x: np.asarray(x)[0],
    "bool": lambda x: bool(x[0, 1]),
    "float": lambda x: float(x[1, 1]),
    "int": lambda x: int(x[1, 1]),
    "repr": repr,
    "dlpack": lambda x: np.from_dlpack(x)[1],
}


@pytest.mark.parametrize("read", READS)
def test_what_is_done_is_read_without_an_instruction(read: str) -> None:
    x = flow.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]) + 1
    flow.vm.sync()
    READS[read](x)  # what is made once is made
    flow.vm.sync()
    before = issued()
    READS[read](x)
    assert issued() == before


def test_numbers_are_those_of_numpy() -> None:
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32"):
        array = np.array([[0, 1, -3], [7, 127, -128]]).astype(name)
        x = flow.from_numpy(array)
        assert repr(x.tolist()) == repr(array.tolist())
        assert repr(x.t().tolist()) == repr(array.T.tolist())
        assert [x[1, k].item() for k in range(3)] == array[1].tolist()
        assert [bool(e) for e in x.view(-1)] == [bool(e) for e in array.ravel()]
        assert [int(e) for e in x[0]] == [int(e) for e in array[0]]


def test_arrays_are_those_of_the_python_function() -> None:
    base = flow.arange(24).reshape(2, 3, 4)
    names = ("bool", "uint8", "int16", "int64", "float16", "float32", "complex64")
    for x in (base, base.transpose(0, 2)[1:], base[0, 1, 2], base[:, :1]):
        for y in (x, *(x.to(getattr(flow, name)) for name in names)):
            y = y.expand(2, *y.shape)
            flow.vm.sync()
            array, expected = y.numpy(), y.numpy(force=True)  # keywords are the Python function's
            assert array.dtype is expected.dtype
            assert array.flags.num == expected.flags.num
            assert array.__array_interface__ == expected.__array_interface__
            assert type(array.base) is type(expected.base)
    x = flow.ones(3, requires_grad=True)
    assert x.numpy().base is None
    assert not x.numpy().flags.writeable
    with pytest.raises(TypeError, match="bfloat16"):
        flow.ones(2, dtype=flow.bfloat16).numpy()


def test_names_that_tensors_lack_are_refused_again() -> None:
    x = flow.ones(2)
    for _ in range(3):
        with pytest.raises(AttributeError, match="a Tensor has no attribute '__array_struct__'"):
            x.__array_struct__  # noqa: B018
        with pytest.raises(AttributeError, match=r"rellu.*relu"):
            x.rellu  # noqa: B018
        with pytest.raises(AttributeError, match="a Parameter has no attribute"):
            flow.nn.Parameter(x).__array_struct__  # noqa: B018
    x.__array_struct__ = 5
    assert x.__array_struct__ == 5


def test_a_profiler_sees_reads() -> None:
    x = flow.ones(3) + 1
    flow.vm.sync()
    with flow.profiler.profile() as p:
        x.numpy()
        x.sum().item()
    assert (p.run.kind == KIND.TOUCH).sum() == 2


def test_an_error_is_raised_where_the_value_is_read() -> None:
    x = flow.tensor([1, 2])
    bad = x // flow.tensor([0, 1])
    for read in (bad[0].item, bad.tolist, bad.numpy, lambda: bool(bad[0])):
        with pytest.raises(flow.errors.DivisionByZeroError):
            read()
    assert (x + 1)[0].item() == 2


def test_threads_read_what_they_issue_while_others_change_the_engine() -> None:
    wrong: list[Any] = []
    over = threading.Event()

    def work(k: int) -> None:
        x = flow.full((8, 8), float(k))
        for n in range(150):
            value = (x + n).sum().item()
            if value != 64.0 * (k + n) or not bool((x == k).all()):
                wrong.append((k, n, value))

    def change() -> None:
        while not over.is_set():
            with flow.vm.sequential():
                assert (flow.ones(4) + 1).sum().item() == 8

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    other = threading.Thread(target=change)
    for thread in (*threads, other):
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    other.join()
    assert not wrong


def test_who_waits_does_the_work() -> None:
    """A waiting thread does the work while the VM's threads are gone."""
    x = flow.ones(8, 8)
    assert bool(((x + 1).sum() == 128).all())  # the threads are compiled, as is what is used below
    with engine.lock:
        engine.threads.let_waiters_help(True)
        assert engine.threads.stop(60)
        engine.words[CTL.STOP] = engine.words[CTL.SCHEDULER_SLEEPS] = 0  # issued, nobody is called
        try:
            total = (x + 2).sum()
            ref = total._ref & OPERAND.STORAGE_MASK
            assert not machine.is_settled(engine.words, ref, issued(), False)
            settle = engine.loops.function("settle_soon")
            assert settle(engine.base, ref, issued(), 0, CALL_STREAM) == 1
            assert machine.is_settled(engine.words, ref, issued(), True)
            large = flow.ones(1 << 15) + 1  # is the worker's to run
            ref = large._ref & OPERAND.STORAGE_MASK
            assert settle(engine.base, ref, issued(), 0, CALL_STREAM) == 0
        finally:
            engine.words[CTL.SCHEDULER_SLEEPS] = CTL.ABSENT
            engine.threads.start()
    assert (total.item(), large.sum().item()) == (192, 1 << 16)


def test_large_operands_are_not_brief() -> None:
    sizes = [(11, 11), ((1 << 15) + 8,)]  # which no other test's entries have
    small, large = map(flow.ones, sizes)
    (small * 3, large * 3, flow.linalg.eigvalsh(small))
    brief: dict[str, set[int]] = {}
    for number, (info, _) in enumerate(engine.entries.info):
        metas = getattr(info, "metas", ())
        if metas and tuple(metas[0].shape) in sizes:
            what = f"{info.name} {max(m.nbytes for m in info.metas) > 1 << 16}"
            at = ENT.AT + number * ENT.WORDS + ENT.BRIEF
            brief.setdefault(what, set()).add(engine.words[at])
    assert brief["mul False"] == {1}
    assert brief["mul True"] == {0}


def test_a_list_with_a_writer_never_looks_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a writer takes the place of another, and of readers, other threads may look."""
    looked: list[bool] = []
    append = machine.append_access

    def watched(m: Any, slot: int, storage: int, writes: int) -> None:
        if slot:
            looked.append(machine.is_settled(m, storage, 0, False))
        append(m, slot, storage, writes)

    monkeypatch.setattr(machine, "append_access", watched)
    bench = feed([Instruction(KIND.OP_CALL, 0, mut(1)), Instruction(KIND.OP_CALL, 1, mut(1))])
    assert looked == [False]
    assert not machine.is_settled(bench.m, 1, 2, False)
    assert not machine.is_settled(bench.m, 1, 3, False)  # not received yet
    assert machine.is_settled(bench.m, 2, 2, True)


def test_readers_keep_nobody_from_reading() -> None:
    bench = Bench()
    bench = feed([Instruction(KIND.OP_CALL, 0, const(1))])
    assert bench.m[DEP.AT + DEP.WORDS + DEP.FIRST] != 0
    assert machine.is_settled(bench.m, 1, 1, False)
    assert not machine.is_settled(bench.m, 1, 1, True)


def test_memory_beyond_the_bound_is_refused() -> None:
    process = script(
        """
        kept = []
        try:
            for k in range(100):
                kept.append(flowvm.ones(1 << 20) + k)
                kept[-1][0].item()
        except MemoryError as error:
            print(len(kept), str(error).split(" (")[0], "FLOWVM_MEMORY" in str(error))
        del kept
        print((flowvm.ones(1 << 20) + 1).sum().item())
        """,
        memory="64M",
        profile="1",
    )
    first, last = process.stdout.splitlines()
    assert first.split()[0] in ("14", "15", "16")
    assert "could not get 4194304 bytes" in first
    assert first.endswith("True")
    assert last == str(float(2 << 20))
