"""The virtual machine, as a user sees it: `flow.vm.sync()`, `stats()`, `dump()`, `trace()` ...

How it works is in `docs/how-it-works/vm.md`. Its rooms, each of which imports only from those in
front of it: `machine` has the state and the scheduler's logic, `workers` the loops of native
threads, `callers` what calls of ops share, `watch` what looks on, `engine` the Python side.
Not here: tensors and ops. The VM knows storages, kernels by address, and who reads what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from flowvm.errors import ArgumentError, ScheduleError
from flowvm.guards.lru_cache import group_sizes as _group_sizes
from flowvm.loading.lazy import lazy as _lazy
from flowvm.loading.listing import listing
from flowvm.vm.callers.hot import CALL_STREAM, HOST_STREAM
from flowvm.vm.callers.hot import counted as _counted
from flowvm.vm.callers.lines import user_frame
from flowvm.vm.callers.tracebacks import border
from flowvm.vm.engine import cancel as _cancelling
from flowvm.vm.engine.cancel import Cancelled
from flowvm.vm.engine.engine import engine as _engine
from flowvm.vm.engine.failures import Errors, Failure
from flowvm.vm.engine.restore import Lost, Restored
from flowvm.vm.machine.words import CTL
from flowvm.vm.watch.trace import Trace
from flowvm.vm.watch.trace import record as _record
from flowvm.vm.watch.verify import Verified, verify

if TYPE_CHECKING:
    from flowvm.vm.engine import debugger as _stepping
    from flowvm.vm.engine import prompt as _prompt
    from flowvm.vm.engine import scheduling as _scheduling
    from flowvm.vm.engine.debugger import Stepping, Stop
    from flowvm.vm.engine.scheduling import Order, Replay, Scheduling
    from flowvm.vm.watch import dump as _dumping
    from flowvm.vm.watch import in_flight as _in_flight
else:
    _prompt = _lazy("flowvm.vm.engine.prompt")
    _scheduling = _lazy("flowvm.vm.engine.scheduling")
    _stepping = _lazy("flowvm.vm.engine.debugger")
    _dumping = _lazy("flowvm.vm.watch.dump")
    _in_flight = _lazy("flowvm.vm.watch.in_flight")

__all__ = [
    "Cancelled",
    "Errors",
    "Failure",
    "Lost",
    "Restored",
    "ScheduleError",
    "Stats",
    "Trace",
    "Verified",
    "cancel",
    "dump",
    "empty_cache",
    "errors",
    "last_error",
    "pending",
    "record",
    "replay",
    "reset_peak",
    "restore",
    "schedule",
    "sequential",
    "stats",
    "step",
    "sync",
    "trace",
    "verify",
]
__dir__ = listing(globals())


class Stats(dict[str, int]):
    """The VM's counters: a dict that prints as a table.  A missing counter is 0.

    >>> "peak_bytes" in flow.vm.stats()
    True
    """

    def __missing__(self, name: str) -> int:
        if name.startswith("native_misses_"):
            return 0
        raise KeyError(name)

    def __repr__(self) -> str:
        width = max(map(len, self))
        return "\n".join(f"{name:{width}s}  {_amount(name, value)}" for name, value in self.items())


def _amount(name: str, value: int) -> str:
    if name.endswith("_bytes") and value >= 1024:
        return f"{value:,} ({value / 2**20:.1f} MiB)"
    return f"{value:,}"


def stats() -> Stats:
    """Return the counters since the process began.

    Operations that a graph captures are issued and never count as failed.

    issued, in_flight (issued, not released yet), edges by hazard (raw, war, waw), prescheduled
    (edges that stream order satisfied), dispatched, done, poisoned (skipped because an operand had
    failed), failed, cancelled, and the memory of tensors: live, peak and reserved bytes.

    And what is kept of shapes that were seen, so that the next call with them is quick: of calls,
    metas and views, how many are kept, about how many bytes they take, and how many were dropped
    because calls and metas had more than `flow.config.kept_bytes` in all.  What was not used for
    longest is dropped first.

    And, since they are native, how many calls compiled code made (native_hits), and how many it
    left to the operators' Python functions (native_misses), of each operator that has such, too
    (native_misses_sort).

    >>> before = flow.vm.stats()["peak_bytes"]
    >>> x = flow.ones(1000)
    >>> flow.vm.stats()["peak_bytes"] >= before
    True
    """
    word = _engine.words
    more = {name: count for counts in _counted for name, count in counts().items()}
    received, head = int(word[CTL.RECEIVED]), int(word[CTL.HEAD])
    return Stats(
        issued=received,
        in_flight=received - head,
        edges_raw=int(word[CTL.N_RAW]),
        edges_war=int(word[CTL.N_WAR]),
        edges_waw=int(word[CTL.N_WAW]),
        prescheduled=int(word[CTL.N_PRESCHEDULED]),
        dispatched=int(word[CTL.N_DISPATCHED]),
        done=int(word[CTL.N_DONE]),
        poisoned=int(word[CTL.N_POISONED]),
        failed=int(word[CTL.N_FAILED]),
        cancelled=int(word[CTL.N_CANCELLED]),
        live_bytes=int(word[CTL.LIVE_BYTES]),
        peak_bytes=int(word[CTL.PEAK_BYTES]),
        reserved_bytes=int(word[CTL.RESERVED_BYTES]),
        **_group_sizes(),
        **more,
    )


@border
def sync() -> None:
    """Wait until everything issued so far is done.  Raise the first error that nobody has seen.

    >>> x = flow.ones(2) + 1
    >>> flow.vm.sync()  # now it is there
    """
    _engine.storages.release_dead()
    _engine.waits.sync()


@border
def cancel() -> Cancelled:
    """Drop all issued instructions that have not started, whichever thread issued them.

    The outputs of dropped instructions are poisoned: reading them is a CancelledError that names
    this line.  Persistent tensors (with gradients, buffers of modules, states of optimizers) keep
    their values if a dropped instruction would only have updated them.  Running kernels stop
    between two chunks if they write only new memory.  Launches of graphs that have begun run to
    their end, as do instructions handed to a GPU.

    Wait at most 0.15 s for running instructions.  The result prints the instructions dropped until
    then.

    >>> x = flow.ones(2) + 1
    >>> flow.vm.sync()
    >>> bool(flow.vm.cancel())  # all was done
    False
    """
    return _cancelling.cancel(_engine, "cancel()", *user_frame(2), _cancelling.PATIENCE)


@border
def restore() -> Restored:
    """Restore the last whole value of each tensor that an error or a cancel has poisoned.

    An error poisons the outputs that it prevented.  If such an output would have been written in
    place, its bytes are unchanged, and it can be restored.  Persistent tensors (parameters,
    gradients, buffers, states of optimizers, variables of graphs) need no call: they are restored
    as soon as the error is raised.  This call restores all other tensors.  It also restores after
    errors that nobody has seen; the next `sync()` still raises these.

    Wait for everything.  A tensor without a whole value stays poisoned and is listed in `lost`: an
    instruction was writing to it as it failed, or it was never computed.

    >>> total = flow.zeros(2)
    >>> total += flow.ones(4)[flow.tensor([1, 9])]  # there is no element 9
    >>> try:
    ...     total.numpy()
    ... except IndexError:
    ...     restored = flow.vm.restore()  # print it: what is whole again, and what is lost
    >>> total
    tensor([0., 0.])
    """
    return _engine.restorer.restore()


class _Dump(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def dump() -> str:
    """Return a text of the instructions in flight, and of the waits of each.

    >>> isinstance(flow.vm.dump(), str)
    True
    """
    return _Dump(_dumping.dump_text(_engine))


def pending() -> list[_in_flight.InFlight]:
    """Return the instructions that are issued and not done, oldest first, without waiting.

    >>> x = flow.ones(2) + 1
    >>> flow.vm.sync()
    >>> len(flow.vm.pending())
    0
    """
    return _in_flight.pending(_engine)


def record() -> AbstractContextManager[Trace]:
    """Record every instruction issued inside; the trace is complete when the block is left.

    The flight recorder remembers the last 65,536 instructions; earlier ones are `dropped`.

    >>> with flow.vm.record() as trace:
    ...     x = flow.ones(2) + 1
    >>> [one.name for one in trace.instructions if one.name != "release"]
    ['fill', 'add']
    """
    return _record(_engine)


def trace(function: Callable[..., object], *args: object, **kwargs: object) -> Trace:
    """Call `function(*args, **kwargs)`.  Return a trace of the instructions that it issues, with
    the function's result as `result`.

    >>> trace = flow.vm.trace(flow.add, flow.ones(2), 1)
    >>> trace.result
    tensor([2., 2.])
    """
    with record() as trace_now:
        trace_now.result = function(*args, **kwargs)
    return trace_now


def sequential() -> AbstractContextManager[None]:
    """Run each instruction on the thread that issues it: `with flow.vm.sequential():`.

    Errors raise there at once.

    >>> with flow.vm.sequential():
    ...     x = flow.ones(2) + 1
    >>> x
    tensor([2., 2.])
    """
    return _engine.sequential.region()


def step(
    op: str | None = None,
    line: str | int | None = None,
    storage: object = None,
    nan: bool = False,
    on: Callable[[Stop], object] | None = None,
) -> Stepping:
    """Debug the instructions that a with statement issues: `with flow.vm.step(op="matmul"):`.  The
    machine stops in front of instructions and shows their operands.  They run one by one on this
    thread.

    op        stop at each of this operator
    line      at what is issued on a line: 12, or "train.py:12"
    storage   at whatever reads or writes a tensor's storage
    nan       behind what makes a NaN of operands that have none
    on        called with each `Stop`, by default a prompt: n(ext), c(ontinue), p(rint) NAME,
              w(here), q(uit); `stop["x"].value` is a copy of an operand's numbers
    Without a breakpoint it stops at every instruction.  ArgumentError: no such breakpoint.

    >>> with flow.vm.step("add", on=lambda stop: print(stop.op, stop["x"].value)):
    ...     x = flow.ones(2) + 1
    add [1. 1.]
    """
    stepping = _stepping.Stepping(_engine, op, line, storage, nan, on)
    if on is None:
        stepping.on = _prompt.Prompt(stepping).stop
    return stepping


def schedule(
    policy: object = "fifo",
    *,
    seed: int | None = None,
    streams: Sequence[object] = (),
    like: object = None,
    depth: int = 1,
    gather: bool = False,
) -> Scheduling:
    """`with flow.vm.schedule("random", seed=7) as sched:` has the scheduler take what is ready in a
    policy's order; behind the block `sched.order` is the order that it was.

    policy    a name of `flow.lab` ("fifo", "lifo", "random", "pct", "critical_path", "heft", ...),
              a class or an object of `flow.lab.Policy`; one with `ready` and `pick` of its own is
              asked in Python, for each instruction
    seed      of a policy that has one
    streams   flow.Streams that share the work issued to any of them (None is the default stream):
              an instruction goes to whichever has room, or where a static schedule has it
    like      a profile of the same work, or its Dag, for policies that look at the whole graph
    depth     instructions that a stream may have at once; 0: one in all, which makes the order one
              that `replay` gives again exactly
    gather    let nothing go until the program waits for something, so that the choice is among all
              that was issued until then
    Values are those of program order, whatever the policy.  ArgumentError: no such policy, or
    it wants `like`.  ModeError: in `sequential()`, or within another policy.

    >>> with flow.vm.schedule("random", seed=7) as sched:
    ...     x = flow.ones(2) + 1
    >>> sched.order.ops
    ['fill', 'add']
    """
    for name, value in (("depth", depth), ("seed", 0 if seed is None else seed)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ArgumentError(f"schedule: {name} is a number from 0 up, got {value!r}")
    numbers = _numbers_of(streams)
    rule = _scheduling.planners[0](policy, seed, like, numbers)
    return _scheduling.Scheduling(_engine, rule, numbers, depth, gather)


def replay(order: Order | str | Path, streams: Sequence[object] = ()) -> Replay:
    """`with flow.vm.replay(sched.order):` has instructions go in an order that was recorded, on any
    number of streams.

    order     an Order, or a file that `Order.save` wrote
    streams   as `schedule` has them
    ScheduleError, when the block is left: the program issued other instructions.

    >>> with flow.vm.schedule("random", seed=7) as sched:
    ...     x = flow.ones(2) + 1
    >>> with flow.vm.replay(sched.order) as again:
    ...     x = flow.ones(2) + 1
    >>> again.order == sched.order
    True
    """
    if isinstance(order, (str, Path)):
        order = _scheduling.Order.load(order)
    if not isinstance(order, _scheduling.Order):
        raise ArgumentError(f"replay: expected an Order or a file of one, got {order!r}")
    return _scheduling.Replay(_engine, order, _numbers_of(streams))


def _numbers_of(streams: object) -> list[int]:
    if isinstance(streams, str) or not isinstance(streams, Iterable):
        raise ArgumentError(
            f"schedule: streams is a list of flow.Streams, such as [None, flow.Stream()], "
            f"got {streams!r}"
        )
    return [_number_of(one) for one in streams]


def _number_of(stream: object) -> int:
    number = CALL_STREAM if stream is None else getattr(stream, "number", stream)
    if isinstance(number, bool) or not isinstance(number, int):
        raise ArgumentError(f"schedule: streams are flow.Streams, got {stream!r}")
    if not 0 <= number < _engine.streams.count or number == HOST_STREAM:
        raise ArgumentError(f"schedule: there is no stream {number} that computes")
    if (_engine.words[CTL.DEVICES] | _engine.words[CTL.LANES]) >> number & 1:
        raise ArgumentError("schedule: streams of devices and of ranks keep their own work")
    return number


def empty_cache() -> None:
    """Give memory that the VM keeps for reuse back to the system: unused blocks over 1 MiB.

    >>> flow.vm.empty_cache()
    """
    sync()
    _engine.streams.trim()


def reset_peak() -> None:
    """Restart `stats()["peak_bytes"]` when all issued instructions are done.

    >>> flow.vm.reset_peak()
    """
    sync()
    _engine.words[CTL.PEAK_BYTES] = _engine.words[CTL.LIVE_BYTES]


def last_error() -> BaseException | None:
    """Return the newest failed instruction's exception, or None.

    >>> x = flow.tensor([1]) // flow.tensor([0])
    >>> try:
    ...     flow.vm.sync()
    ... except flow.FlowError as error:
    ...     print(flow.last_error() is error)
    True
    """
    return _engine.failures.last()


def errors() -> Errors:
    """Return the failed instructions that are remembered, oldest first.

    >>> x = flow.tensor([1]) // flow.tensor([0])
    >>> try:
    ...     flow.vm.sync()
    ... except flow.FlowError as error:
    ...     print(type(error).__name__)
    DivisionByZeroError
    >>> type(flow.vm.errors()[-1].exception).__name__
    'DivisionByZeroError'
    """
    return _engine.failures.all()
