"""The cause of a sample of an issuing thread, by the place of the thread."""

from __future__ import annotations

import dis
import importlib
import sys
import threading
import time
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.compiler import jit
from flowvm.private.cpython import stored_from
from flowvm.profiler.run.columns import CAUSES, SAMPLED
from flowvm.profiler.run.loss_places import Off, placed
from flowvm.profiler.run.samples import _state, _stores, add_samples, mine
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import KIND, OPERAND
from flowvm.vm.watch import cores, offcpu
from flowvm.vm.watch.flight import HostWait
from flowvm.vm.watch.sampling import PERIOD_US, Sample, Sampling
from flowvm.vm.workers import sampler
from tests.profiler.analysis.test_stalls import again
from tests.profiler.synthetic import of_rows


def sleeping() -> None:
    for _ in range(3):
        time.sleep(1)


def at(code: CodeType, name: str) -> tuple[CodeType, int]:
    """The place of the last instruction of that name."""
    return code, [i.offset for i in dis.get_instructions(code) if i.opname == name][-1]


def test_what_does_not_run_between_two_calls_is_kept_from_it() -> None:
    """A sleep is in a call; a thread without a core, or without the GIL, is anywhere."""
    code = sleeping.__code__
    for place, slept, state in (
        (at(code, "CALL"), True, "asleep"),
        (at(code, "CALL"), False, "python"),
        (at(code, "JUMP_BACKWARD"), True, "gil"),
        (at(code, "JUMP_BACKWARD"), False, "python"),
        (at(code, "RESUME"), True, "gil"),
    ):
        assert _state([], [place], False, slept) == state
    issues = at(code, "CALL")
    assert _state([], [issues], True, True) == "gil"
    assert _state([], [issues], True, False) == "flowvm"


def replaced(x: Any) -> Any:
    x = x + 1
    return -x


class Numbered:
    """Numbers of expressions: their offsets."""

    def at(self, code: CodeType, last: int) -> int:
        return 0

    def spot(self, code: CodeType, last: int) -> int:
        return last


def test_storing_what_an_op_returned_frees_a_tensor() -> None:
    """The name had another one: that is flowvm's time, not the user's."""
    code = replaced.__code__
    op, negated = at(code, "BINARY_OP")[1], at(code, "UNARY_NEGATIVE")[1]
    assert stored_from(*at(code, "STORE_FAST")) == op
    assert stored_from(*at(code, "RETURN_VALUE")) == -1
    assert stored_from(code, 1 << 20) == -1
    assert _stores(Numbered(), at(code, "STORE_FAST"), {op})
    assert not _stores(Numbered(), at(code, "STORE_FAST"), {negated})


def test_the_first_looks_are_close_together() -> None:
    """Up to 1.6 ms each 0.1 ms, then after a sixteenth more, from 16 ms on each millisecond."""
    moments = [0]
    while moments[-1] < 20_000:
        moments.append(moments[-1] + sampler.pause(moments[-1], PERIOD_US))
    assert [sum(t < end for t in moments) for end in (1_600, 16_000, 20_000)] == [16, 55, 59]


def test_flowvms_own_waits_only_in_waits_that_are_noted() -> None:
    issuing = at(type(engine.records).make_room.__code__, "RESUME")[0], 2
    saving = flow.save.__code__, 2
    mine = at(sleeping.__code__, "CALL")
    assert _state([issuing], [issuing, mine], False, True) == "gil"
    assert _state([issuing], [issuing, mine], False, False) == "flowvm"
    assert _state([saving], [saving, mine], False, True) == "flowvm"
    waiting = at(threading.Event.wait.__code__, "CALL")
    assert _state([waiting], [waiting, mine], False, True) == "asleep"


def test_a_kernel_that_is_looked_for_is_no_dispatch() -> None:
    lowering, mine = type(engine.records).make_room.__code__, at(sleeping.__code__, "CALL")
    inner = [(jit.load.__code__, 2), (lowering, 2)]
    assert _state(inner, [*inner, mine], False, False) == "jit"
    assert _state(inner[1:], [*inner[1:], mine], False, False) == "flowvm"


def test_imports_are_called_that() -> None:
    loading = importlib._bootstrap._find_and_load.__code__, 2  # type: ignore[attr-defined]
    mine = at(sleeping.__code__, "CALL")
    assert _state([loading], [loading, mine], False, False) == "import"
    assert _state([], [loading], False, True) == "import"
    inside = flow.save.__code__, 2
    assert _state([inside, loading], [inside, loading, mine], False, False) == "import"


@again
def test_a_program_s_loading_is_an_import_and_no_line() -> None:
    """`flowvm run` and `python -m` read and compile the file by frozen code, which has no line."""
    runs = compile("def _run_code(): pass", "<frozen runpy>", "exec"), 0
    command = (compile("run()", str(Path(flow.__file__).parent / "x.py"), "exec"), 0)
    assert mine([runs, command]) == -1
    assert _state([runs, command], [runs, command], False, False) == "import"
    program = at(sleeping.__code__, "CALL")
    assert mine([program, runs, command]) == 0
    assert _state([], [program, runs, command], False, False) == "python"


def test_to_look_for_what_was_lost_loses_nothing() -> None:
    """Others that want the GIL do not get it in between, which would be 5 ms each time."""
    count, leave, before = [0], list[int](), sys.getswitchinterval()

    def other() -> None:
        while not leave:
            count[0] += 1

    thread = threading.Thread(target=other)
    thread.start()
    try:
        while not count[0]:
            time.sleep(0)
        sys.setswitchinterval(0.1)
        time.sleep(0)  # from here on nobody takes it for so long
        own, began = threading.get_native_id(), count[0]
        for _ in range(50):
            assert cores.scheduled(own)[1] >= 0
        assert count[0] == began
    finally:
        leave.append(1)
        sys.setswitchinterval(before)
        thread.join()


def test_a_loss_lies_where_the_thread_was_seen_not_to_run() -> None:
    """A loss lies in the longest waits first, then in pauses of issuing; never in other threads."""
    values = {1: [Off(100, 200, 60), Off(300, 400, 90)], 2: [Off(500, 600, 100)]}
    issued = np.array([650, 700, 990])

    def of(lost: int, since: int = 50, ended: int = 1000) -> list[tuple[int, int]]:
        wait = HostWait("gil", ended - lost, ended, 1, since=since)
        return [(x.begun, x.ended) for x in placed([wait], issued, values)]

    assert of(50) == [(350, 400)]
    assert of(120) == [(310, 400), (170, 200)]
    assert of(200) == [(310, 400), (140, 200), (940, 990)]
    assert sum(e - b for b, e in of(900)) == 900
    assert of(50, since=350) == [(350, 400)]
    assert of(30, ended=380) == [(350, 380)]


def test_what_was_lost_before_a_profile_is_not_its(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread waited for the GIL while the recorder was switched on."""

    def elsewhere(clocks: Any, now: int) -> tuple[int, int, list[Any]]:
        clocks.due = now + 10**9
        return 10**12, 0, []

    flight = engine.flight
    monkeypatch.setattr(offcpu._Clocks, "elsewhere", elsewhere)
    watch = Sampling.watch.__get__(flight.sampling)

    def late() -> None:
        flight.offcpu.threads.clocks.wall -= 10**10
        watch()

    monkeypatch.setattr(flight.sampling, "watch", late)
    with flow.profiler.profile() as p:
        flow.ones(3)
        flow.vm.sync()
    lost = [w for w in flight.waits if w.since and w.ended - w.begun > 9 * 10**9][-1]
    assert lost.ended <= p.run.begun


def issuing(x: Any) -> Any:
    time.sleep(1)
    return x + 1


def test_a_thread_that_woke_just_now_slept() -> None:
    """Samples show a thread asleep, then issuing, and it has not run between: no GIL kept it."""
    code = issuing.__code__
    asleep, op = at(code, "CALL"), at(code, "BINARY_OP")
    run = of_rows([(0, KIND.OP_CALL, 0, 1, 2, 3)], [[(1, OPERAND.MUT)]], (), 4000)
    run.spot = np.array([op[1]], np.int32)  # as Numbered says

    def states(*samples: tuple[int, int, tuple[CodeType, int]]) -> list[str]:
        add_samples(run, [Sample(t, 1, used, (frame,)) for t, used, frame in samples], Numbered())
        return [SAMPLED[k] for k in run.sample_state.tolist()]

    assert states((1000, 0, op), (2000, 0, asleep), (3000, 100, op)) == [
        "flowvm", "asleep", "asleep"
    ]  # fmt: skip
    assert run.sample_spot.tolist() == [op[1], asleep[1], asleep[1]]
    assert states((1000, 0, op), (2000, 100, op), (3000, 1100, op)) == ["flowvm", "gil", "flowvm"]
    run.wait_times, run.wait_thread = np.array([[2000, 2900]]), np.array([1])
    run.wait_cause = np.array([CAUSES.index("gil")], np.int8)  # another thread's, as is known
    assert states((1000, 0, op), (2000, 0, asleep), (3000, 100, op))[1:] == ["asleep", "gil"]
