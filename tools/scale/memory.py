"""The memory of a rank: its variables, and the most that is alive at once of a launch's results.

On one rank this is the lower bound of the Plan's memory: `MemoryPlan.lower_bound` and the
variables.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowvm.graph.passes.buckets import BUCKET
from tools.scale.ranks import Mix
from tools.scale.recording import Work
from tools.scale.splitting import Split, split


@dataclass(frozen=True)
class Held:
    """Bytes on one rank of a stage.

    `activations` are all results of a launch but gradients, and its inputs.  `buckets` are
    exchanged: two of gradients, one that fills and one on its way, and with ZeRO 3 two of
    parameters.
    """

    stage: int
    parameters: int
    gradients: int
    states: int
    activations: int
    buckets: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.gradients + self.states + self.activations + self.buckets


def held(work: Work, mix: Mix, bucket: int = BUCKET) -> tuple[Held, ...]:
    """Return the memory that a rank of each stage holds."""
    cut = split(work, mix.stages, mix.tensor > 1)
    return tuple(_Stage(work, mix, cut, stage).held(bucket) for stage in range(mix.stages))


class _Stage:
    def __init__(self, work: Work, mix: Mix, cut: Split, stage: int) -> None:
        self.work, self.mix, self.cut, self.stage = work, mix, cut, stage
        self.own = [p for p in cut.parts if p.stage == stage and p.task.phase != "optimizer"]
        # an update runs on every stage, for the stage's own parameters
        self.steps = [p for p in cut.parts if p.stage == stage or p.task.phase == "optimizer"]
        self.touched = {k for p in self.own for k in (*p.task.reads, *p.task.writes)}
        self.lives = {k: (work.places[k].first, work.places[k].last) for k in self.touched}
        if mix.stages > 1:  # what is sent on is needed no longer here
            self.lives = {k: self.life(k) for k in self.touched}
        # of each micro-batch in flight
        self.stored = {k for p in self.own if p.task.phase == "backward" for k in p.task.reads}

    def life(self, k: int) -> tuple[int, int]:
        """The first and the last of the stage's steps that touch a place."""
        steps = [p.number for p in self.steps if k in p.task.reads or k in p.task.writes]
        return min(steps), max(steps)

    def size(self, k: int) -> float:
        """Bytes of a place on one of the tensor-parallel ranks."""
        return self.work.places[k].nbytes / (self.mix.tensor if k in self.cut.cut else 1)

    def of(self, *roles: str) -> float:
        """Bytes of all places of a role whose home this stage is."""
        return sum(
            self.size(k)
            for k, place in enumerate(self.work.places)
            if place.role in roles and self.cut.homes[k] == self.stage
        )

    def held(self, bucket: int) -> Held:
        mix = self.mix
        parameters, buckets = self.of("parameter"), 0.0
        if mix.data > 1:
            buckets = min(2 * bucket, self.of("gradient"))
        if mix.zero == 3 and mix.data > 1:
            largest = max(
                (self.size(k) for k in self.touched if self.work.places[k].role == "parameter"),
                default=0.0,
            )
            buckets += min(2 * max(bucket, largest), parameters)
            parameters /= mix.data
        states = self.of("state") / (mix.data if mix.zero else 1)
        shared = mix.data if mix.zero >= 2 else 1
        whole = mix.share * mix.micro  # micro-batches are parts of what is there
        fixed = sum(
            self.size(k) * (1 if place.role == "constant" else whole)
            for k, place in enumerate(self.work.places)
            if place.role in ("input", "output", "constant") and k in self.touched
        )
        accumulated = self.of("gradient") / shared if mix.micro > 1 else 0.0  # from one to the next
        gradients, activations = max(
            (self.alive(part.number, shared) for part in self.steps),
            key=sum, default=(0.0, 0.0),
        )  # fmt: skip
        return Held(
            self.stage, round(parameters), round(max(accumulated, gradients)), round(states),
            round(activations + fixed), round(buckets),
        )  # fmt: skip

    def alive(self, step: int, shared: int) -> tuple[float, float]:
        """Bytes of gradients, and of the rest, that are alive at a step."""
        mix, task = self.mix, self.work.tasks[step]
        updating = task.phase == "optimizer"
        gradients, rest = 0.0, task.scratch * (1.0 if updating else mix.share)
        for k in self.touched:
            place = self.work.places[k]
            first, last = self.lives[k]
            if first <= step <= last:
                if place.role == "gradient":
                    gradients += self.size(k) / shared
                elif place.role in ("activation", "other"):
                    copies = mix.ahead(self.stage) if place.role == "activation" else 1
                    rest += self.size(k) * mix.share * (copies if k in self.stored else 1)
        return gradients, rest
