"""The actors of a rank of each stage, and the result of playing them: a `Prediction`.

A launch is a micro-batch.  Ranks of a stage do the same at the same times, so one of each is
played; its exchanges cost what they do among all that take part.  A rank has a stream that
computes, one for its collectives, and one for the messages to each neighbour, as in flowvm.

- Forward of stage k may be `stages - k` micro-batches ahead of its backward: that many registers
  hold its activations, so that many credits it has.  1F1B is what comes of that.
- Backward is cut where a bucket of gradients is there (`flowvm.graph.passes.buckets`), and where
  tensor-parallel ranks add up.  The bucket goes out while the rest computes.
- The update of a bucket acts once a step, behind backward, and forward of the next step waits for
  it by a credit of one.
- ZeRO 1 and 2 reduce-scatter gradients and gather parameters behind the update, 2 with each
  micro-batch; 3 gathers parameters a bucket at a time, while what is in front computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flowvm.errors import ArgumentError
from flowvm.graph.passes.buckets import BUCKET
from flowvm.graph.plan.actors import ActorDesc
from tools.scale.links import Network
from tools.scale.playing import Acting, play
from tools.scale.recording import Work
from tools.scale.splitting import Part, Split, split

STEPS = 3  # that are played: the last ones are what a step takes
COMPUTE, COLLECTIVES, ON, BACK, STREAMS = range(5)  # streams of a rank


@dataclass(frozen=True)
class Mix:
    """The division of a step among `data` x `tensor` x `stages` ranks; `micro` batches a step.

    weak: each data-parallel rank has the recorded batch; else it is cut among them
    """

    data: int = 1
    tensor: int = 1
    stages: int = 1
    zero: int = 0
    micro: int = 1
    weak: bool = True

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "stages", "micro"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} is 1 or more, got {getattr(self, name)}")
        if self.zero not in (0, 1, 2, 3):
            raise ArgumentError(f"zero is 0, 1, 2 or 3, got {self.zero}")

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.data * self.tensor * self.stages

    @property
    def share(self) -> float:
        """A rank's share of the recorded batch in one micro-batch."""
        return 1 / self.micro / (1 if self.weak else self.data)

    def ahead(self, stage: int) -> int:
        """Micro-batches in flight on a stage."""
        return min(self.micro, self.stages - stage)

    def __str__(self) -> str:
        words = [f"data {self.data}"] if self.data > 1 or self.ranks == 1 else []
        words += [f"tensor {self.tensor}"] if self.tensor > 1 else []
        words += [f"stages {self.stages} x {self.micro}"] if self.stages * self.micro > 1 else []
        words += [f"ZeRO {self.zero}"] if self.zero else []
        return ", ".join(words)


@dataclass(frozen=True)
class Prediction:
    """The seconds of a step, and of computing and exchanging on the busiest rank of each.

    `idle` is the share in which ranks do not compute.  `efficiency` is a rank's part of the batch,
    divided by the part that one rank alone would do in that time.  It is above 1 where the update
    is divided.
    """

    mix: Mix
    seconds: float
    compute: float
    exchange: float
    idle: float
    efficiency: float
    actors: int


@dataclass
class _Built:
    """The actors so far, and the facts that later actors need."""

    actors: list[Acting] = field(default_factory=list)

    def add(
        self, stream: int, seconds: float, inputs: Sequence[int], every: int = 1, ahead: int = 1
    ) -> int:
        """A further actor; its producers get a credit from it."""
        number = len(self.actors)
        inputs = [k for k in dict.fromkeys(inputs) if k >= 0]
        self.actors.append(Acting(ActorDesc(number, stream, 0, 0, inputs), seconds, every))
        for k in inputs:
            self.actors[k].desc.credits.append((number, ahead))
        return number


def predict(
    work: Work, mix: Mix, network: Network, bucket: int = BUCKET, handover: float = 0.0
) -> Prediction:
    """Play some steps of the mix; `handover`: seconds in which a worker wakes.

    ArgumentError: more stages than the work can be cut into, or a number that cannot be.
    """
    if not 0 <= handover < float("inf"):
        raise ArgumentError(f"a hand-over takes 0 seconds or more, got {handover}")
    if bucket < 1:
        raise ArgumentError(f"a bucket has 1 byte or more, got {bucket}")
    builder = _Builder(work, mix, network, bucket)
    actors = builder.build()
    played = play(actors, STEPS * mix.micro, handover)
    ends = [max(played.ends[k][step] for k in builder.updates) for step in range(STEPS)]
    seconds = ends[-1] - ends[-2] if STEPS > 1 else ends[-1]
    computing = [played.busy[s * STREAMS + COMPUTE] / STEPS for s in range(mix.stages)]
    exchanging = [
        sum(played.busy.get(s * STREAMS + k, 0.0) for k in (COLLECTIVES, ON, BACK)) / STEPS
        for s in range(mix.stages)
    ]
    idle = 1 - sum(computing) / mix.stages / seconds if seconds > 0 else 0.0
    work_seconds = work.seconds * (mix.data if mix.weak else 1)
    return Prediction(
        mix, seconds, max(computing), max(exchanging), max(0.0, idle),
        work_seconds / (mix.ranks * seconds) if seconds > 0 else 0.0, len(actors),
    )  # fmt: skip


class _Builder:
    def __init__(self, work: Work, mix: Mix, network: Network, bucket: int) -> None:
        self.work, self.mix, self.network, self.bucket = work, mix, network, bucket
        self.split: Split = split(work, mix.stages, mix.tensor > 1)
        self.table = _Built()
        self.updates: list[int] = []
        self.sources: list[list[int]] = [[] for _ in range(mix.stages)]  # who reads parameters
        self.final = {  # of each gradient: the task that writes it last
            k: number
            for number, task in enumerate(work.tasks)
            for k in task.writes
            if task.phase == "backward" and work.places[k].role == "gradient"
        }
        self.exchanged: list[tuple[int, float]] = []  # buckets of the stage at hand, their bytes

    def build(self) -> list[Acting]:
        mix, last = self.mix, [-1] * self.mix.stages
        before = -1
        for stage in range(mix.stages):
            last[stage] = self.chain(stage, "forward", before)
            if stage + 1 < mix.stages:
                before = self.send(stage, ON, last[stage])
        behind = -1
        for stage in reversed(range(mix.stages)):
            end = self.chain(stage, "backward", last[stage], behind)
            if stage:
                behind = self.send(stage, BACK, end)
            self.flight(stage, end)
            self.update(stage, end)
        return self.table.actors

    def send(self, stage: int, stream: int, producer: int) -> int:
        """The activations behind a stage to the next, or their gradients from it to the one in
        front.
        """
        mix = self.mix
        place = stage if stream == ON else stage - 1
        nbytes = sum(map(self.held, self.split.crossing[place])) * mix.share
        seconds = self.network.send(nbytes, mix.data * mix.tensor)
        return self.table.add(stage * STREAMS + stream, seconds, [producer], ahead=mix.ahead(place))

    def chain(self, stage: int, phase: str, *waits: int) -> int:
        """The actors of a phase: the number of the last that computes."""
        at, ahead = stage * STREAMS, self.mix.ahead(stage)
        parts = [p for p in self.split.parts if p.stage == stage and p.task.phase == phase]
        inputs, seconds, nbytes = list(waits), 0.0, 0.0
        if phase == "forward" and stage == 0:
            seconds = self.work.rest
        computing: list[int] = []
        gathered: set[int] = set()

        def cut() -> int:
            nonlocal inputs, seconds
            number = self.table.add(at + COMPUTE, seconds, inputs, ahead=ahead)
            if not computing and phase == "forward":
                self.sources[stage].append(number)
            computing.append(number)
            inputs, seconds = [number], 0.0
            return number

        for number, part in enumerate(parts):
            if self.mix.zero == 3 and self.mix.data > 1 and self.parameters(part) - gathered:
                if seconds or not computing:
                    cut()
                new = self.next_bucket(parts[number:], gathered)
                gathered |= new
                inputs = [*inputs, self.gather(stage, new, computing)]
            seconds += self.seconds(part)
            if part.summed and self.mix.tensor > 1:
                cost = self.network.all_reduce(part.summed * self.mix.share, self.mix.tensor)
                inputs = [self.table.add(at + COLLECTIVES, cost, [cut()], ahead=ahead)]
            nbytes += self.gradients(part)
            if nbytes >= self.bucket:
                self.reduce(stage, nbytes, cut())
                nbytes = 0.0
        if seconds or not computing or (inputs and inputs != [computing[-1]]):
            cut()
        if nbytes:
            self.reduce(stage, nbytes, computing[-1])
        return computing[-1]

    def parameters(self, part: Part) -> set[int]:
        return {k for k in part.task.reads if self.work.places[k].role == "parameter"}

    def next_bucket(self, parts: Sequence[Part], known: set[int]) -> set[int]:
        """Return the next parameters that tasks need: enough for a bucket, and one at least."""
        buckets: dict[int, None] = {}
        for part in parts:
            buckets.update(dict.fromkeys(sorted(self.parameters(part) - known)))
            if sum(map(self.held, buckets)) >= self.bucket:
                break
        return set(buckets)

    def gradients(self, part: Part) -> float:
        """Bytes of gradients that a rank has for others behind a task."""
        if self.mix.data == 1 or part.task.phase != "backward":
            return 0.0
        return sum(self.held(k) for k in part.task.writes if self.final.get(k) == part.number)

    def held(self, k: int) -> float:
        """Bytes of a place on one of the tensor-parallel ranks."""
        place = self.work.places[k]
        return place.nbytes / (self.mix.tensor if k in self.split.cut else 1)

    def seconds(self, part: Part) -> float:
        whole = part.task.seconds * self.mix.share
        return whole / (self.mix.tensor if part.divided else 1)

    def gather(self, stage: int, places: set[int], computing: list[int]) -> int:
        """Add ZeRO 3's all-gather: whole parameters for a task, while the task in front
        computes.
        """
        nbytes = sum(self.held(k) for k in places)
        cost = self.network.all_gather(nbytes, self.mix.data, self.mix.tensor)
        ready = computing[-2:-1] or computing[:1]
        return self.table.add(stage * STREAMS + COLLECTIVES, cost, ready)

    def reduce(self, stage: int, nbytes: float, ready: int) -> None:
        """A bucket of gradients, once a step unless each rank keeps its part alone."""
        mix, network = self.mix, self.network
        whole = network.all_gather if mix.zero else network.all_reduce
        every = 1 if mix.zero >= 2 else mix.micro
        cost = whole(nbytes, mix.data, mix.tensor)
        number = self.table.add(stage * STREAMS + COLLECTIVES, cost, [ready], every)
        self.exchanged.append((number, nbytes))

    def flight(self, stage: int, end: int) -> None:
        """Let forward be ahead of backward by as many micro-batches as there are stages behind."""
        for source in self.sources[stage]:
            self.table.actors[source].desc.credits.append((end, self.mix.stages - stage))

    def update(self, stage: int, end: int) -> None:
        """The optimizer's step behind backward, for each bucket when its gradients are there."""
        mix, work, at = self.mix, self.work, stage * STREAMS
        own = sum(
            self.held(k)
            for k, place in enumerate(work.places)
            if place.role == "parameter" and self.split.homes[k] == stage
        )
        whole = sum(t.seconds for t in work.tasks if t.phase == "optimizer")
        each = whole / max(1, work.nbytes("parameter")) / (mix.data if mix.zero else 1)
        alone = max(0.0, own - sum(nbytes for _, nbytes in self.exchanged))
        for exchange, nbytes in (*self.exchanged, (-1, alone)):
            number = self.table.add(at + COMPUTE, each * nbytes, [end, exchange], mix.micro)
            self.updates.append(number)
            if mix.zero in (1, 2) and mix.data > 1 and nbytes:
                cost = self.network.all_gather(nbytes, mix.data, mix.tensor)
                number = self.table.add(at + COLLECTIVES, cost, [number], mix.micro)
            for source in self.sources[stage]:
                self.table.actors[source].desc.credits.append((number, 1))
        self.exchanged = []
