"""Names for stretches of time: what the user calls a step, an epoch, a phase."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from flowvm.errors import ModeError
from flowvm.guards.regions import reverting
from flowvm.vm.engine.engine import engine
from flowvm.vm.watch.flight import Mark
from flowvm.vm.watch.pending import issued


@contextmanager
def span(name: str) -> Iterator[None]:
    """`with flow.profiler.span("augment"):` names what is issued inside, and the time it takes.

    Spans may nest.  Those of one name that repeat are steps.  At level 0 nothing is noted.

    >>> with flow.profiler.profile() as p:
    ...     with flow.profiler.span("augment"):
    ...         x = flow.ones(2) + 1
    >>> len(p.part("augment")) >= 2
    True
    """
    begun, first = time.monotonic_ns(), issued()
    entry = (name, first)
    spans = engine.flight.open

    def undo() -> None:
        if any(span is entry for span in spans):
            spans.remove(entry)

    with reverting(undo):
        spans.append(entry)
        try:
            yield
        finally:
            _note(Mark(name, begun, time.monotonic_ns(), threading.get_ident(), first, issued()))


_pushed = threading.local()  # `open`: the spans of this thread that `range_push` began


def range_push(range_name: str) -> None:
    """Begin a span that `range_pop` ends, on the same thread.

    >>> with flow.profiler.profile() as p:
    ...     flow.profiler.range_push("augment")
    ...     x = flow.ones(2) + 1
    ...     flow.profiler.range_pop()
    >>> len(p.part("augment")) >= 2
    True
    """
    begun = span(range_name)
    begun.__enter__()
    vars(_pushed).setdefault("open", []).append(begun)


def range_pop() -> None:
    """End the span that this thread's last `range_push` began; ModeError without one.

    >>> flow.profiler.range_push("augment")
    >>> flow.profiler.range_pop()
    """
    begun = vars(_pushed).get("open")
    if not begun:
        raise ModeError("range_pop: no range_push of this thread is open")
    begun.pop().__exit__(None, None, None)


def mark(name: str) -> None:
    """Name this moment, such as `mark("epoch 3")`.

    >>> flow.profiler.mark("epoch 3")
    """
    now, seq = time.monotonic_ns(), issued()
    _note(Mark(name, now, now, threading.get_ident(), seq, seq))


def _note(mark: Mark) -> None:
    if engine.flight.level:
        engine.flight.marks.append(mark)
