"""Actors in simulated time, by the rules of `flowvm.vm.workers.actors`.

An actor acts for a launch when its inputs have acted for it and its credits have come back; a
message says "look", an actor has one waiting at most, and a stream's worker takes them in the order
in which they came and lets the actor act while it may.  What differs is that an act takes simulated
seconds, and that an actor may act once for each `every` launches: a step's update, where a launch
is a micro-batch.  With `every` 1 for all, the rule is word for word that of `may_act`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from flowvm.errors import CaptureError
from flowvm.graph.plan.actors import ActorDesc


@dataclass(eq=False)
class Acting:
    """An actor, how long an act takes, and for how many launches one act is."""

    desc: ActorDesc
    seconds: float
    every: int = 1


@dataclass
class Played:
    """`ends[k]`: when actor k ended each of its acts; `busy`: seconds that each stream worked."""

    ends: list[list[float]]
    busy: dict[int, float]

    @property
    def wall(self) -> float:
        """Return the time at which the last act was over."""
        return max((ends[-1] for ends in self.ends if ends), default=0.0)


def play(actors: Sequence[Acting], launches: int, handover: float = 0.0) -> Played:
    """Play `launches` launches to their end.

    An idle worker sleeps, and wakes `handover` seconds after another one's message. CaptureError if
    actors wait for each other for ever.
    """
    return _Play(actors, launches, handover).run()


class _Play:
    def __init__(self, actors: Sequence[Acting], launches: int, handover: float) -> None:
        self.actors, self.launches, self.handover = actors, launches, handover
        self.ends: list[list[float]] = [[] for _ in actors]
        self.tells: list[dict[int, None]] = [{} for _ in actors]  # as ActorDesc.tells
        for actor in actors:
            for other in (*actor.desc.inputs, *(k for k, _ in actor.desc.credits)):
                self.tells[other][actor.desc.number] = None
        self.queued = [False] * len(actors)
        streams = dict.fromkeys(actor.desc.stream for actor in actors)
        self.mail: dict[int, deque[int]] = {stream: deque() for stream in streams}
        self.looking: dict[int, int] = {}  # the actor whose message a worker has taken
        self.working: set[int] = set()
        self.busy = dict.fromkeys(streams, 0.0)
        self.waking: set[int] = set()
        self.events: list[tuple[float, int, int, bool]] = []  # an act ends, or a worker wakes
        self.now, self.begun = 0.0, 0

    def run(self) -> Played:
        for actor in self.actors:
            if not actor.desc.inputs:
                self.post(actor.desc.number)
        for stream in self.mail:
            self.serve(stream)
        while self.events:
            self.now, _, k, acted = heapq.heappop(self.events)
            if not acted:
                self.waking.discard(k)
                self.serve(k)
                continue
            stream = self.actors[k].desc.stream
            self.ends[k].append(self.now)
            self.working.discard(stream)
            for j in self.tells[k]:
                self.post(j)
            self.serve(stream)
            for other in dict.fromkeys(self.actors[j].desc.stream for j in self.tells[k]):
                if not self.handover:
                    self.serve(other)
                elif self.mail[other] and not {other} & (self.working | self.waking):
                    self.waking.add(other)
                    self.happens(self.handover, other, False)
        self.check_end()
        return Played(self.ends, self.busy)

    def happens(self, later: float, number: int, acted: bool) -> None:
        self.begun += 1
        heapq.heappush(self.events, (self.now + later, self.begun, number, acted))

    def post(self, k: int) -> None:
        if not self.queued[k]:
            self.queued[k] = True
            self.mail[self.actors[k].desc.stream].append(k)

    def serve(self, stream: int) -> None:
        """A worker that is free: let the actor at hand act, or take the next message."""
        while stream not in self.working and stream not in self.waking:
            k = self.looking.get(stream, -1)
            if k >= 0 and self.may_act(k):
                seconds = self.actors[k].seconds
                self.working.add(stream)
                self.busy[stream] += seconds
                self.happens(seconds, k, True)
            elif self.mail[stream]:
                self.looking[stream] = k = self.mail[stream].popleft()
                self.queued[k] = False
            else:
                self.looking.pop(stream, None)
                break

    def may_act(self, k: int) -> bool:
        return len(self.ends[k]) < self.launches // self.actors[k].every and not self.missing(k)

    def missing(self, k: int) -> list[int]:
        """Return the actors for which the actor's next act must wait."""
        actor, number = self.actors[k], len(self.ends[k])
        first, behind = number * actor.every, (number + 1) * actor.every  # its launches
        return [
            *(j for j in actor.desc.inputs
              if len(self.ends[j]) < -(-behind // self.actors[j].every)),
            *(j for j, n in actor.desc.credits
              if len(self.ends[j]) < first // self.actors[j].every - n + 1),
        ]  # fmt: skip

    def check_end(self) -> None:
        for k, actor in enumerate(self.actors):
            if len(self.ends[k]) < self.launches // actor.every:
                raise CaptureError(
                    f"actor {k} has acted {len(self.ends[k])} times and waits for ever, for "
                    f"actors {', '.join(map(str, self.missing(k)))}"
                )
