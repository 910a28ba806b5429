"""The modes of a thread: whether gradients are recorded, to which stream it issues, whether a graph
is captured, and whose line it is.

Each thread has its own, which with statements switch (`flowvm.guards.regions`); `hot` has whether
any thread departs, and generated calls look there first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import CodeType, FrameType, MappingProxyType
from typing import Any, NamedTuple, Protocol

from flowvm.eager.call_entry import CallEntry
from flowvm.eager.live import Live
from flowvm.eager.tensor import Tensor
from flowvm.guards.regions import Mode, Region
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.vm.callers.hot import CALL_STREAM, hot
from flowvm.vm.callers.lines import INTERNAL, UNKNOWN, Backward
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import ENT


class Recording(NamedTuple):
    """A thread's mode: does it record for backward, will nothing ever need a gradient?"""

    grad: bool
    inference: bool = False


RECORD, FORGET = Recording(True), Recording(False)


class Recorder(Protocol):
    """The receiver of every operation of a thread that captures instead of computing.

    `record` answers the entry to issue in the operation's place: what it would have written must
    not be taken for values.
    """

    def record(
        self,
        op: Any,  # an Operator
        entry: CallEntry,
        outputs: tuple[Tensor, ...],
        inputs: tuple[Tensor, ...],
        attrs: Attrs,
        scalars: tuple[Any, ...],
        into: bool = False,
    ) -> int:
        """Take note of one operation; `into`: its outputs are tensors that were there before."""

    def draw(self, generator: object) -> tuple[Live, Live]:
        """A draw of a random generator, to be made anew for each replay."""

    def redo(self, move: object) -> Any:
        """Something else that is done to a generator, again in each replay: what it answers."""

    def keep_state(self, seed_state: Any) -> Tensor:
        """Return a stand-in for the state of a generator, which is `seed_state` in each replay."""

    def kept_state(self, state: Tensor) -> object:
        """Return the argument of the `keep_state` that returned this tensor; None for another
        one.
        """

    def seed_of(self, generator: object) -> int:
        """The seed that a generator has where the code is."""

    def repeating(self, drawn: Sequence[Any] | None) -> AbstractContextManager[None]:
        """Record a block as a repetition: random ops draw the numbers of the first time."""

    def forgetting(self, module: Any, path: str) -> AbstractContextManager[None]:
        """This module runs inside: what it computes is not kept, if it is one of `checkpoints`."""

    def constant(self, tensor: Tensor) -> None:
        """The values of a tensor come from Python: whoever keeps what is recorded keeps them."""

    def read(self, tensor: Tensor) -> None:
        """Python code is about to look at a tensor's values: an error, or remembered."""

    def enter(self, node: Any) -> None:
        """The gradient of `node` is computed next: what follows belongs to where it was made."""

    def size_of(self, out: Tensor, most: TensorMeta) -> Callable[[], TensorMeta]:
        """Return a function for the meta of a mut2 output, to be called when it is needed."""

    def decide(self, tensor: Tensor) -> object:
        """The value of a one-element tensor by which the framework itself must decide."""

    def reach(self, leaf: Tensor) -> None:
        """Backward is about to add to the `.grad` of `leaf`."""

    def stepping(self, optimizer: object) -> AbstractContextManager[None]:
        """One step of an optimizer is recorded inside; an error if the graph may not take it."""

    phase: str
    scope: str
    drawn: list[tuple[Live, Live]]
    checkpoints: tuple[object, ...]  # modules, or their paths


# A generated call looks at `hot["unrecorded"]` before it asks whether to record, and at
# `hot["departed"]` before it asks where to: true while any thread is in such a region.
_recording = Mode(RECORD)
_departed: set[object] = set()
_recorder: Mode[Recorder | None] = Mode(None, _departed)  # while a graph is captured
_trace_recorder = Mode[Any](None, _departed)  # a `flowvm.eager.trace_recorder.TraceRecorder`
_stream = Mode(CALL_STREAM, _departed)
_no_streams: Mapping[int, int] = MappingProxyType({})
_device_streams = Mode(_no_streams)  # default stream of a device: another
# while a line is pinned: [a Backward, an origin], for everything
_user: Mode[list[Any] | None] = Mode(None)

hot.update({"unrecorded": _recording.inside, "departed": _departed, "changed": object()})


def _records() -> bool:
    """`grad_enabled`, asked once a call while a thread is in a region: with one call less."""
    entries = _recording.local.entries
    for key in reversed(entries):
        grad: bool = entries[key].value.grad
        return grad
    return True


hot.update(
    {"grad_enabled": _records, "recorder": _recorder.now, "trace_recorder": _trace_recorder.now}
)
hot.update({"recording": _recording.local, "Recording": Recording, "FORGET": FORGET})


def note_change() -> None:
    """Something was changed that a compiled graph watches: a module's attribute, where a tensor's
    memory is, whether it requires grad.

    `hot["changed"]` is another object then; to be called after the change.
    """
    hot["changed"] = object()


def grad_enabled() -> bool:
    """Return True if this thread records operations for backward."""
    return _recording.now().grad


def inference_enabled() -> bool:
    """Return True if this thread is in a region where nothing will ever need a gradient."""
    return _recording.now().inference


def recording(grad: bool) -> AbstractContextManager[None]:
    """For one with statement: this thread records inside, or does not."""
    return _recording.within(RECORD if grad else FORGET)


def set_recording(now: Recording) -> Recording:
    """Switch recording on this thread, until the region that it is in ends; what it was."""
    return _recording.set(now)


def recording_mode() -> Mode[Recording]:
    """The mode itself, for regions of other modules."""
    return _recording


def current_stream() -> int:
    """The stream that this thread issues to."""
    return _stream.now()


def use_stream(stream: int, keep: object = None) -> Region:
    """Issue this thread's operations to `stream`, in a region, which keeps `keep`."""
    return _stream.to(stream, keep)


def use_device_stream(default: int, stream: int) -> Region:
    """Issue this thread's operations to `stream` where they would go to `default`, a device's."""
    return _device_streams.to({**_device_streams.now(), default: stream})


def current_device_stream(default: int) -> int:
    """Return this thread's stream for operations of `default`, a device's default stream."""
    return _device_streams.now().get(default, default)


def admit_devices() -> None:
    """From now on every thread is asked where its instructions go: there is more than the CPU."""
    _departed.add("devices")


def placed(word: int) -> int:
    """An entry word with the stream that this thread issues it to."""
    default = word >> ENT.BITS
    stream = _stream.now() if default == 0 else current_device_stream(default)
    return word & ENT.MASK | stream << ENT.BITS


def departing() -> set[object]:
    """Return the set that is not empty while a thread may depart from the default modes."""
    return _departed


def recording_to(recorder: Recorder | None) -> AbstractContextManager[None]:
    """For one with statement: tell `recorder` of this thread's operations instead of computing
    them; None: compute them.
    """
    return _recorder.within(recorder)


def recorder_mode() -> Mode[Recorder | None]:
    """The mode itself, for a region that captures."""
    return _recorder


def recording_trace(recorder: object) -> AbstractContextManager[None]:
    """For one with statement: tell `recorder`, a
    `flowvm.eager.trace_recorder.TraceRecorder`, of what this thread's calls come to.
    """
    return _trace_recorder.within(recorder)


def current_trace_recorder() -> Any:
    """Return the recorder of this thread's calls for a trace, None if there is none."""
    return _trace_recorder.now() if _departed else None


def current_recorder() -> Recorder | None:
    """Return the recorder of this thread's capture, None while it computes."""
    return _recorder.now()


def _depart(
    op: object,
    entry: CallEntry,
    outputs: tuple[Tensor, ...],
    inputs: tuple[Tensor, ...],
    attrs: Attrs,
    scalars: tuple[object, ...],
) -> int:
    """The entry word of a call while some thread departs from the default."""
    recorder, trace = _recorder.now(), _trace_recorder.now()
    if trace is not None:
        trace.record(op, entry, outputs, inputs, attrs, scalars)
    if recorder is not None:
        return recorder.record(op, entry, outputs, inputs, attrs, scalars)
    word = placed(entry.word)
    stream = word >> ENT.BITS
    if stream != CALL_STREAM:  # remember the outputs: their ReleaseTensor must run there
        for out in outputs:
            engine.storages.stream_of[out._ref] = stream
    return word


def _may_repeat() -> bool:
    """Return whether a call may begin anew that has not published its record.

    A capture has recorded it, and the record that is published in its place touches no memory.
    """
    trace = _trace_recorder.now()
    if trace is not None:
        trace.refuse()  # it has recorded the call
    return _recorder.now() is None


# --- whose line -------------------------------------------------------------------------------


def find_user(frame: FrameType) -> tuple[CodeType | None, int]:
    """Code and instruction offset of the first frame from `frame` up that is not flowvm's.

    While a line is pinned (`pinned`): that one.
    """
    pinned = _user.now()
    if pinned is not None:
        return pinned[0].code, pinned[0].last
    return _first_user(frame)


def _issued_at(frame: FrameType | None) -> object:
    """Return the place that issuing remembers: `find_user`, and in backward the origin
    (`vm.lines`).
    """
    entries = _user.local.entries  # `now`, without the call: backward asks once an instruction
    for key in reversed(entries):
        return entries[key].value or _first_user(frame)
    return _first_user(frame)


def _first_user(frame: FrameType | None) -> tuple[CodeType | None, int]:
    while frame is not None:
        name = frame.f_code.co_filename
        if name in _user_files:
            return frame.f_code, frame.f_lasti
        if not INTERNAL[name]:
            _user_files.add(name)
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None, 0


def pinned(
    origin: list[object] | None, backward_run: object = None
) -> AbstractContextManager[None]:
    """Attribute what this thread issues inside one with statement to `origin`, see `user_line`.

    None: to the lines that issue it.  `backward_run` is the backward that pins the line.
    """
    return _user.within(origin, backward_run)


def current_backward() -> Any:
    """Return the `flowvm.autograd.engine.BackwardRun` of this thread, None if there is none."""
    return _user.innermost_keep()


def user_line() -> list[object]:
    """The line that is pinned, or the user's present one, and as a second element the origin of
    what is issued.

    For backward, which issues a lot from far below the user's frame, where finding it each time
    would cost more than issuing.
    """
    known = _user.now()
    return [Backward(*_first_user(sys._getframe(1))), UNKNOWN] if known is None else [*known]


_user_files: set[str] = set()
hot.update(
    {
        "depart": _depart,
        "may_repeat": _may_repeat,
        "user_files": _user_files,
        "find_user": _issued_at,
        "user_lines": _user.local,
    }
)
hot["pinned"] = _user.inside
hot["internal_files"] = INTERNAL
