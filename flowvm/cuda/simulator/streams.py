"""Simulated streams, events and captured graphs: they decide which work may run, and in which
order.

A stream is a queue of `Work`.  Its head may run if it waits for no event, or for one that has
happened.  At once: what may run runs while it is enqueued.  Late: it stays in its queue until
somebody asks (query, synchronize), and a seed chooses whose turn it is, in bursts, so that whatever
the events allow will happen some day; a wait that is missing gives wrong numbers.

Work that waits for other processes has a `poll`.  A thread that waits for such work lets others
call in the meantime.

Nothing here touches memory; `Work.run` does.
"""

from __future__ import annotations

import collections
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flowvm.cuda.simulator.memory import Fault

INVALID_VALUE, LAUNCH_TIMEOUT = 1, 702
UNSUPPORTED, UNMATCHED, UNJOINED, ISOLATION = 900, 903, 904, 905
BURST = 0.6  # how probably the stream that ran last runs again
STEPS = 3  # the most tasks that run during a query


@dataclass
class Event:
    """An event: its `requested`-th recording was asked for, its `happened`-th is done."""

    handle: int
    device: int
    timing: bool
    requested: int = 0
    happened: int = 0
    seconds: float = 0.0
    # recorded in a capture: the graph, the stream, the stream's progress, and the numbers in front
    captured: tuple[Graph, int, int, frozenset[int]] | None = None


@dataclass
class Work:
    """One task of a stream: it calls `run`, then `event` has happened for the `number`-th time.

    It may begin when `after` has happened for the `count`-th time, and `poll` says so; in a graph,
    when the works of the numbers `needs` are done.
    """

    what: str
    run: Callable[[], None] | None = None
    event: Event | None = None
    number: int = 0
    after: Event | None = None
    count: int = 0
    needs: frozenset[int] = frozenset()
    poll: Callable[[], bool] | None = None

    @property
    def ready(self) -> bool:
        if self.after is not None and self.after.happened < self.count:
            return False
        return self.poll is None or self.poll()


@dataclass
class Graph:
    """Captured work in the order of the calls, one of the orders in which it may run.

    `last` has, by stream, the numbers of the work for which its next work waits.

    `last` has, by stream, the numbers of what its next work is to wait for.
    """

    handle: int
    origin: int = 0
    work: list[Work] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)  # by stream: its progress,
    joined: dict[int, int] = field(default_factory=dict)  # and how much of that others waited for
    last: dict[int, frozenset[int]] = field(default_factory=dict)

    def did(self, stream: int) -> None:
        self.counts[stream] = self.counts.get(stream, 0) + 1

    def add(self, stream: int, work: Work) -> None:
        """Record one more action of `stream`."""
        work.needs = self.last.get(stream, frozenset())
        self.last[stream] = frozenset([len(self.work)])
        self.work.append(work)
        self.did(stream)


@dataclass
class Stream:
    """A queue of work; during a capture, `capture` is the graph that takes new work."""

    handle: int
    device: int
    blocking: bool = True  # waits for the default stream, and the default stream for it
    queue: collections.deque[Work] = field(default_factory=collections.deque)
    capture: Graph | None = None


class Replay:
    """A launch of a graph with work that waits for other processes.  Work that may run is run
    meanwhile.
    """

    def __init__(self, graph: list[Work]) -> None:
        self.graph = graph
        self.waiting = list(range(len(graph)))
        self.error: Exception | None = None

    def poll(self) -> bool:
        """Run the captured work that may run.  Return True if all of it is done or some has
        failed.
        """
        went = True
        while went and self.error is None:
            went = False
            for k in self.waiting[:]:
                work = self.graph[k]
                if work.needs.isdisjoint(self.waiting) and work.ready:
                    self._run(work)
                    self.waiting.remove(k)
                    went = True
        return not self.waiting or self.error is not None

    def _run(self, work: Work) -> None:
        try:
            if work.run is not None:
                work.run()
        except Exception as error:
            self.error = error

    def run(self) -> None:
        """Raise the replay's error, if it failed."""
        if self.error is not None:
            raise self.error


class Scheduler:
    """Runs the work of streams.  It reports an error by `failed(device, error)`.  `lives(device)`
    says if work of a device may still run.
    """

    def __init__(
        self,
        late: bool,
        seed: int,
        failed: Callable[[int, Exception], None],
        lives: Callable[[int], bool],
        pause: Callable[[], None],
    ) -> None:
        self.late = late
        self.random = random.Random(seed)
        self.failed = failed
        self.lives = lives
        self.pause = pause  # lets other threads call for a moment
        self.streams: dict[int, Stream] = {}
        self.last: Stream | None = None

    def enqueue(self, stream: Stream, work: Work) -> None:
        """Put work into a stream's queue."""
        if stream.capture is not None:
            stream.capture.add(stream.handle, work)
            return
        if stream.handle == 0:  # it runs alone among those that are blocking
            for other in list(self.streams.values()):
                if other.blocking and other.device == stream.device:
                    self.drain(other)
        stream.queue.append(work)
        if stream.handle == 0:
            self.drain(stream)
        while not self.late and stream.queue and self._stepped():
            pass

    # --- events -----------------------------------------------------------------------------------

    def record(self, stream: Stream, event: Event) -> None:
        """cuEventRecord."""
        if stream.capture is not None:
            graph, handle = stream.capture, stream.handle
            event.captured = graph, handle, graph.counts[handle], graph.last[handle]
            return
        event.captured = None
        event.requested += 1
        self.enqueue(stream, Work("record", event=event, number=event.requested))

    def wait(self, stream: Stream, event: Event) -> None:
        """cuStreamWaitEvent."""
        if event.captured is not None:
            self._join(stream, *event.captured)
        elif stream.capture is not None:
            raise Fault(ISOLATION, "a captured stream waits for an event outside of the capture")
        elif event.requested:
            self.enqueue(stream, Work("wait", after=event, count=event.requested))

    def _join(
        self, stream: Stream, graph: Graph, source: int, position: int, last: frozenset[int]
    ) -> None:
        """Let the next captured work of `stream` wait for the work of `source` so far."""
        if stream.capture is None:
            stream.capture = graph
        graph.joined[source] = max(graph.joined.get(source, 0), position)
        graph.last[stream.handle] = graph.last.get(stream.handle, frozenset()) | last
        graph.did(stream.handle)

    # --- captures ---------------------------------------------------------------------------------

    def begin_capture(self, stream: Stream, graph: Graph) -> None:
        """cuStreamBeginCapture."""
        if stream.capture is not None or stream.handle == 0:
            raise Fault(UNSUPPORTED, "this stream cannot be captured, or is already")
        graph.origin = stream.handle
        graph.counts[stream.handle] = 0
        graph.last[stream.handle] = frozenset()
        stream.capture = graph

    def end_capture(self, stream: Stream) -> Graph:
        """cuStreamEndCapture."""
        graph = stream.capture
        if graph is None or graph.origin != stream.handle:
            raise Fault(UNMATCHED, "this stream did not begin a capture")
        for other in self.streams.values():
            if other.capture is graph:
                other.capture = None
        for source, count in graph.counts.items():
            if source != graph.origin and graph.joined.get(source, 0) < count:
                raise Fault(UNJOINED, f"stream {source:#x} was not joined again")
        return graph

    # --- running ----------------------------------------------------------------------------------

    def in_order(self, graph: list[Work]) -> list[Work]:
        """Return captured work in an order that its waits allow: a random one if work is late."""
        if not self.late:
            return graph
        pending, finished, order = set(range(len(graph))), set[int](), []
        while pending:
            chosen = self.random.choice(sorted(k for k in pending if graph[k].needs <= finished))
            pending.remove(chosen)
            finished.add(chosen)
            order.append(graph[chosen])
        return order

    def step(self) -> bool:
        """Run one task of some stream.  Return False if no task may run."""
        ready = [s for s in self.streams.values() if s.queue and s.queue[0].ready]
        if not ready:
            return False
        if self.last not in ready or self.random.random() > BURST:
            self.last = self.random.choice(ready)
        self._run(self.last)
        return True

    def some(self) -> None:
        """Run a few steps while a query is answered, if work is late; else all of them."""
        steps = self.random.randint(1, STEPS) if self.late else 0
        while (self.late or self._any()) and self.step():
            steps -= 1
            if steps == 0:
                return

    def _stepped(self) -> bool:
        """Run one task.  Return False if all tasks that may run next wait for other processes."""
        if self.step():
            return True
        if any(s.queue and s.queue[0].poll is not None for s in self.streams.values()):
            return False
        raise Fault(LAUNCH_TIMEOUT, "streams wait for each other: nothing can run")

    def drain(self, stream: Stream | None = None) -> None:
        """Run until a stream's queue, or all queues, are empty."""
        self._until(lambda: not (stream.queue if stream is not None else self._any()))

    def happen(self, event: Event) -> None:
        """Run until the last recording of `event` has happened."""
        number = event.requested
        self._until(lambda: event.happened >= number)

    def _any(self) -> bool:
        return any(s.queue for s in self.streams.values())

    def _until(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            if not self._stepped():
                self.pause()

    def _run(self, stream: Stream) -> None:
        work = stream.queue[0]
        if work.run is not None and self.lives(stream.device):
            try:
                work.run()
            except Exception as error:
                self.failed(stream.device, error)
        stream.queue.popleft()
        if work.event is not None:
            work.event.happened = work.number
            work.event.seconds = time.perf_counter()
