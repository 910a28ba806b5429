"""Streams of devices: whatever the workers and the devices do when, conflicting accesses keep their
order, though no edge between two devices' streams waits for a host.

The test plays the workers, which open and close, and the devices, which run what was opened: of one
stream in order, else whenever the events that were recorded for them have happened.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from flowvm.vm.machine import machine
from flowvm.vm.machine.words import CTL, EDG, KIND, STR, WAI
from flowvm.vm.workers.device import launched_before
from tests.vm.bench import Bench, Instruction, const, mut, op, random_program
from tests.vm.mutants import HAZARDS
from tests.vm.player import POLICIES, Move, Player, check_run

DEVICES = 0b1110  # stream 0 is the host's


@dataclass
class DevicePlayer(Player):
    """Plays the streams of `devices` as their workers and devices do."""

    devices: int = DEVICES
    waits: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # by instruction

    def __post_init__(self) -> None:
        super().__post_init__()
        self.opened = [0] * STR.LENGTH
        self.ran = [0] * STR.LENGTH
        self.bench.m[CTL.DEVICES] = self.devices

    def moves(self, more: bool) -> list[Move]:
        ours = [s for s in range(STR.LENGTH) if self.devices >> s & 1]
        steps = [m for m in super().moves(more) if m[1] not in ours or m[0] == "collect"]
        for s in ours:
            tail = self.bench.m[STR.AT + s * STR.WORDS + STR.TAIL]
            if self.opened[s] < tail and launched_before(
                self.bench.m, self._slot(s, self.opened[s])
            ):
                steps.append(("open", s, self._at(s, self.opened[s])))
            if self.begun[s] < self.opened[s] and self.begun[s] == self.ran[s] and self._may_run(s):
                steps.append(("start", s, self._at(s, self.begun[s])))
            if self.ran[s] < self.begun[s]:
                steps.append(("finish", s, self._at(s, self.ran[s])))
            if self.over[s] < self.ran[s] and self._may_close(s):
                steps.append(("close", s, self._at(s, self.over[s])))
        return steps

    def _notes(self, slot: int) -> list[tuple[int, int]]:
        pairs, index = [], self.bench.m[WAI.AT + slot] - 1
        while index >= 0:
            word = self.bench.m[EDG.AT + index * EDG.WORDS + EDG.TARGET]
            pairs.append((word >> WAI.PLACE_BITS, word & WAI.PLACE_MASK))
            index = self.bench.m[EDG.AT + index * EDG.WORDS + EDG.NEXT]
        return pairs

    def _may_run(self, s: int) -> bool:
        return all(self.ran[other] >= n for other, n in self.waits[self._at(s, self.begun[s])])

    def _may_close(self, s: int) -> bool:
        slot = self._slot(s, self.over[s])
        return all(self.over[other] >= place for other, place in self._notes(slot))

    def _open(self, s: int) -> None:
        index = self._at(s, self.opened[s])
        # an event stands behind all that its stream was handed
        notes = self._notes(self._slot(s, self.opened[s]))
        self.waits[index] = [(other, self.opened[other]) for other, _ in notes]
        self.opened[s] += 1
        self.bench.m[STR.AT + s * STR.WORDS + STR.LAUNCHED] = self.opened[s]

    def _finish(self, s: int) -> None:
        self.ended[self._at(s, self.ran[s])] = self.clock
        self.ran[s] += 1

    def _close(self, s: int) -> None:
        self.over[s] += 1


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.__name__)
@pytest.mark.parametrize("storages", [1, 3, 12])
def test_random_programs_in_any_order(policy, storages, seed):
    rng = random.Random(seed)
    for _ in range(15):
        player = DevicePlayer(Bench())
        check_run(player.run(random_program(rng, 60, storages, 4), rng, policy))


def test_no_host_waits_between_devices():
    """The whole chain is handed over before any of it has run; the host's end of it waits."""
    bench = Bench()
    bench.m[CTL.DEVICES] = DEVICES
    for stream in (1, 2, 3, 1, 2):
        bench.issue(op(*mut(5), stream=stream))
    bench.issue(op(*const(5), stream=0))
    while bench.receive():
        pass
    handed = 0
    while bench.dispatch() >= 0:
        handed += 1
    assert handed == 5


def test_a_release_waits_until_the_devices_are_done():
    """A released block may go to the next allocation, on its own stream without any event."""
    bench = Bench()
    bench.m[CTL.DEVICES] = DEVICES
    bench.issue(op(*mut(5), stream=1))
    bench.issue(op(*const(5), stream=2))
    bench.issue(Instruction(KIND.RELEASE, 1, mut(5)))
    while bench.receive():
        pass
    handed = []
    while (slot := bench.dispatch()) >= 0:
        handed.append(bench.index(slot))
    assert handed == [0, 1]
    machine.complete(bench.m, bench.slot(0))
    machine.complete(bench.m, bench.slot(1))
    assert bench.index(bench.dispatch()) == 2


@pytest.mark.parametrize("hazard", HAZARDS)
def test_a_missing_edge_is_found(hazard, seed):
    rng = random.Random(seed)
    for _ in range(200):
        player = DevicePlayer(Bench(mutant=HAZARDS[hazard]))
        try:
            check_run(player.run(random_program(rng, 30, 3, 4, barriers=0), rng, POLICIES[0]))
        except AssertionError:
            return
    pytest.fail(f"200 programs ran right without the edges of hazard {hazard}")
