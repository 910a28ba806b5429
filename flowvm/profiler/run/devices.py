"""Times of a run's instructions on devices, in words.

`Run.clock` says of each instruction whose its times are: HOST, SEEN or DEVICE of
`flowvm.vm.watch.device_times`; `Run.opened` when it was handed over, which is also when it took
its memory, or gave it back.
"""

from __future__ import annotations

from flowvm.profiler.run.run import Run
from flowvm.vm.machine.words import KIND
from flowvm.vm.watch.device_times import DEVICE, HOST, SEEN
from flowvm.vm.watch.flight import TIMES

# what is said of one instruction's times
TIMED = {HOST: "", SEEN: "as the host saw it", DEVICE: "by the device's clock"}
_STARTED = TIMES.index("started")


def said_of(run: Run) -> str:
    """Return a note on the times of devices in this run; "" if nothing ran on one."""
    clocks = set(run.clock[run.kind != KIND.RELEASE].tolist()) - {HOST}
    if not clocks:
        return ""
    within = max((c["within_ns"] for c in run.info.get("clocks", {}).values()), default=0)
    exact = f"their own (clock known to {max(1, round(within / 1000))} µs)"
    if clocks == {DEVICE}:
        return exact
    clock = "as the host saw them"
    if DEVICE in clocks:
        return f"{exact}; what was forgotten of them {clock}"
    together = ", up to 16 at a look" if run.info.get("level", 0) < 2 else ""
    return f"{clock}{together}; level 3 has their own"


def steps_of(run: Run, i: int) -> tuple[tuple[str, int], ...]:
    """An instruction's times from the start of the run, -1 for what has not happened; of a device's
    also when it was handed over.
    """
    times = [(n, int(t) - run.begun if t else -1) for n, t in zip(TIMES, run.times[i], strict=True)]
    if run.clock[i] != HOST:
        times.insert(_STARTED, ("handed over", int(run.opened[i]) - run.begun))
    return tuple(times)
