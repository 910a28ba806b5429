"""What calls on a thread depart from: whether gradients are recorded, which stream is issued to,
whether a graph is captured, whose line it is.

Each thread has its own; those of all are counted in `hot`, where generated calls look first.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any, Protocol

from flowvm.eager.live import Live
from flowvm.eager.tensor import Tensor
from flowvm.meta import TensorMeta
from flowvm.vm.callers.hot import CALL_STREAM, hot
from flowvm.vm.callers.lines import INTERNAL, UNKNOWN, Backward
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import ENT

# `hot["unrecorded"]` counts threads that do not record for backward, `hot["departed"]` those that
# issue to another stream or capture, so the common case is one test of each.


class _Modes(threading.local):
    grad = True
    user: list[Any] | None = None  # while a line is pinned: [a Backward, an origin], for everything
    stream = CALL_STREAM
    device_streams: Mapping[int, int] = MappingProxyType({})  # default stream of a device: another
    recorder: Recorder | None = None  # while a graph is captured


class Recorder(Protocol):
    """What is told of every operation while a thread captures instead of computing.

    `record` answers the entry to issue in the operation's place: what it would have written must
    not be taken for values.
    """

    def record(
        self,
        op: Any,  # an Operator
        made: tuple[Any, ...],
        outputs: tuple[Tensor, ...],
        inputs: tuple[Tensor, ...],
        attrs: tuple[Any, ...],
        scalars: tuple[Any, ...],
        into: bool = False,
    ) -> int:
        """Take note of one operation; `into`: its outputs are tensors that were there before."""

    def draw(self, generator: Any) -> tuple[Live, Live]:
        """A draw of a random generator, to be made anew for each replay."""

    def repeating(self, drawn: Sequence[Any] | None) -> AbstractContextManager[None]:
        """What is recorded inside was computed before; random ops draw what they drew then."""

    def forgetting(self, module: Any, path: str) -> AbstractContextManager[None]:
        """This module runs inside: what it computes is not kept, if it is one of `checkpoints`."""

    def read(self, tensor: Tensor) -> None:
        """Python code is about to look at a tensor's values: an error, or remembered."""

    def enter(self, node: Any) -> None:
        """The gradient of `node` is computed next: what follows belongs to where it was made."""

    def size_of(self, out: Tensor, most: TensorMeta) -> Callable[[], TensorMeta]:
        """What finds the meta of a mut2 output when somebody needs it."""

    def decide(self, tensor: Tensor) -> Any:
        """The value of a one-element tensor by which the framework itself must decide."""

    def reach(self, leaf: Tensor) -> None:
        """Backward is about to add to the `.grad` of `leaf`."""

    phase: str
    scope: str
    drawn: list[tuple[Live, Live]]
    checkpoints: tuple[Any, ...]  # modules, or their paths


_modes = _Modes()
hot.update(unrecorded=0, departed=0, changed=object(), grad_enabled=lambda: _modes.grad)
hot.update(recorder=lambda: _modes.recorder)
_count_lock = threading.Lock()


def _count(mode: str, change: int) -> None:
    with _count_lock:
        hot[mode] += change


def note_change() -> None:
    """Something was changed that a compiled graph watches: a module's attribute, where a tensor's
    memory is, whether it requires grad.

    `hot["changed"]` is another object then; to be called after the change.
    """
    hot["changed"] = object()


def grad_enabled() -> bool:
    """Whether this thread records operations for backward."""
    return _modes.grad


def set_grad_enabled(value: bool) -> bool:
    """Switch recording on this thread; what it was."""
    before = _modes.grad
    if before != value:
        _count("unrecorded", -1 if value else 1)
        _modes.grad = value
    return before


def current_stream() -> int:
    """The stream that this thread issues to."""
    return _modes.stream


@contextmanager
def use_stream(stream: int) -> Iterator[None]:
    """Issue this thread's operations to `stream`."""
    before = _modes.stream
    _count("departed", 1)
    _modes.stream = stream
    try:
        yield
    finally:
        _modes.stream = before
        _count("departed", -1)


@contextmanager
def use_device_stream(default: int, stream: int) -> Iterator[None]:
    """Issue this thread's operations to `stream` where they would go to `default`, a device's."""
    before = _modes.device_streams
    _modes.device_streams = {**before, default: stream}
    try:
        yield
    finally:
        _modes.device_streams = before


def current_device_stream(default: int) -> int:
    """Where this thread's operations go that go to `default`, a device's stream, by default."""
    return _modes.device_streams.get(default, default)


def admit_devices() -> None:
    """From now on every thread is asked where its instructions go: there is more than the CPU."""
    _count("departed", 1)


def placed(word: int) -> int:
    """An entry word with the stream that this thread issues it to."""
    default = word >> ENT.BITS
    stream = _modes.stream if default == 0 else current_device_stream(default)
    return word & ENT.MASK | stream << ENT.BITS


@contextmanager
def departing() -> Iterator[None]:
    """Have this thread asked, inside, whether it departs from the default."""
    _count("departed", 1)
    try:
        yield
    finally:
        _count("departed", -1)


@contextmanager
def recording_to(recorder: Recorder | None) -> Iterator[None]:
    """Tell `recorder` of this thread's operations instead of computing them; None: compute them."""
    before = _modes.recorder
    _count("departed", 1)
    _modes.recorder = recorder
    try:
        yield
    finally:
        _modes.recorder = before
        _count("departed", -1)


def current_recorder() -> Recorder | None:
    """What this thread captures to, None while it computes."""
    return _modes.recorder


def _depart(
    op: Any,
    made: tuple[Any, ...],
    outputs: tuple[Tensor, ...],
    inputs: tuple[Tensor, ...],
    attrs: tuple[Any, ...],
    scalars: tuple[Any, ...],
) -> int:
    """The entry word of a call while some thread departs from the default."""
    recorder = _modes.recorder
    if recorder is not None:
        return recorder.record(op, made, outputs, inputs, attrs, scalars)
    word = placed(made[0])
    stream = word >> ENT.BITS
    if stream != CALL_STREAM:  # remember the outputs: their ReleaseTensor must run there
        for out in outputs:
            engine.stream_of[out._ref] = stream
    return word


# --- whose line -------------------------------------------------------------------------------


def find_user(frame: Any) -> tuple[Any, int]:
    """Code and instruction offset of the first frame from `frame` up that is not flowvm's.

    While a line is pinned (`pin_user_line`): that one.
    """
    pinned = _modes.user
    if pinned is not None:
        return pinned[0].code, pinned[0].last
    return _first_user(frame)


def _issued_at(frame: Any) -> Any:
    """What issuing remembers of a place: `find_user`, and in backward the origin (`vm.lines`)."""
    return _modes.user or _first_user(frame)


def _first_user(frame: Any) -> tuple[Any, int]:
    while frame is not None:
        name = frame.f_code.co_filename
        if name in _user_files:
            return frame.f_code, frame.f_lasti
        if not INTERNAL[name]:
            _user_files.add(name)
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None, 0


def pin_user_line() -> tuple[Any, list[Any]]:
    """Attribute what this thread issues from now on to the user's present line.

    What was pinned, which `unpin_user_line` takes; and what is, whose second element is the origin
    of what is issued.  For backward, which issues a lot from far below the user's frame, where
    finding it each time would cost more than issuing.
    """
    before = _modes.user
    if before is None:
        _modes.user = [Backward(*_first_user(sys._getframe(1))), UNKNOWN]
    return before, _modes.user  # type: ignore[return-value]


def unpin_user_line(before: Any = None) -> Any:
    """Pin `before`, or nothing; what was pinned."""
    now, _modes.user = _modes.user, before
    return now


_user_files: set[str] = set()
hot.update(depart=_depart, user_files=_user_files, find_user=_issued_at)
