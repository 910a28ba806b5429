"""More than the ring holds: what it has is taken out before it is overwritten.

An issuing thread calls `look` now and then (`Flight.note`); once a quarter of the ring is new, what
is complete is copied, so that nothing is lost however long a profile lasts.  That takes some ten
milliseconds each time, of the thread that issues.  What was taken out may lie in a file, so that
a long record takes little memory until it is asked for.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flowvm.vm.machine.words import CTL, REC
from flowvm.vm.watch.flight import Flight, Snapshot

OFTEN = REC.LENGTH // 4  # instructions between two copies
_ROWS = ("seq", "entry", "stream", "status", "times", "storage", "access", "bare")
_FILED = (*_ROWS, "tasks", "shares", "module")
_EVENTS = ("waits", "marks", "anchors", "ran")


class Keeping:
    """Record of a profile that asked for at most `most` instructions since `since`; in a file
    without a name in `folder`, if that is given.
    """

    def __init__(self, flight: Flight, since: int, most: int, folder: Path | None = None) -> None:
        self.file = None if folder is None else tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self.flight, self.next, self.most = flight, since, most
        self.parts: list[Snapshot] = []
        self.lost = 0  # instructions that were kept and let go again

    def look(self, seq: int) -> None:
        """Keep what is complete, if enough is new; `seq` is about to be issued."""
        if seq - self.next >= OFTEN:
            self.take(int(self.flight.vm.words[CTL.HEAD]))

    def take(self, until: int) -> None:
        """Keep what is below `until`."""
        if until > self.next:
            first, self.next = self.next, until
            part = self.flight.look(first, until)
            self.parts.append(part if self.file is None else _filed(part, self.file))
        while len(self.parts) > 1 and self._count() - len(self.parts[0].seq) >= self.most:
            self.lost += len(self.parts.pop(0).seq)

    def close(self) -> None:
        """Let what was kept go, with its file."""
        self.parts.clear()
        if self.file is not None:
            self.file.close()

    def _count(self) -> int:
        return sum(len(part.seq) for part in self.parts)

    def whole(self) -> Snapshot:
        """All that was kept, with what the ring has, as one.  What was recorded before an entry got
        another meaning is not told any more: it counts as overwritten.
        """
        last = self.flight.look(self.next)
        parts = [
            part for part in self.parts if not len(part.seq) or part.seq[0] >= self.flight.first
        ]
        gone = self.lost + sum(len(p.seq) for p in self.parts) - sum(len(p.seq) for p in parts)
        joined_run = joined([*parts, last])
        joined_run.overwritten += gone
        return joined_run


def _filed(part: Snapshot, file: Any) -> Snapshot:
    """Return the snapshot with its arrays at the end of a file."""
    arrays: dict[str, Any] = {}
    for name in _FILED:
        array = np.ascontiguousarray(getattr(part, name))
        if not array.size:  # nothing is mapped
            continue
        at = file.seek(0, 2)
        file.write(array.tobytes())
        file.flush()
        arrays[name] = np.memmap(file, array.dtype, "r", at, array.shape)
    return replace(part, **arrays)


def joined(parts: list[Snapshot]) -> Snapshot:
    """Snapshots of what follows each other as one."""
    last = parts[-1]
    firsts = np.cumsum([0, *(len(part.seq) for part in parts)]).tolist()
    flat = np.cumsum([0, *(len(part.storage) for part in parts)]).tolist()
    modules: dict[str, int] = {}
    numbers = [
        np.array([modules.setdefault(name, len(modules)) for name in part.modules], np.int64)
        for part in parts
    ]
    fields: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in _ROWS
    }
    for name in ("tasks", "shares"):  # by the numbers of instructions, of which each has its own
        own = [getattr(part, name) for part in parts]
        columns = [
            rows[np.isin(rows[:, 0], part.seq)] for rows, part in zip(own, parts, strict=True)
        ]
        fields[name] = np.concatenate(columns)
    for name in _EVENTS:
        fields[name] = list(dict.fromkeys(one for part in parts for one in getattr(part, name)))
    forward = {
        i + first: where
        for part, first in zip(parts, firsts, strict=False)
        for i, where in part.forward.items()
    }
    return replace(
        last,
        offsets=np.concatenate(
            [[0], *(part.offsets[1:] + at for part, at in zip(parts, flat, strict=False))]
        ).astype(np.int64),
        codes=[code for part in parts for code in part.codes],
        lasts=[at for part in parts for at in part.lasts],
        forward=forward,
        module=np.concatenate(
            [own[part.module] for own, part in zip(numbers, parts, strict=True) if len(part.seq)]
            or [np.zeros(0, np.int64)]
        ),
        modules=list(modules),
        stacks={seq: stack for part in parts for seq, stack in part.stacks.items()},
        overwritten=sum(part.overwritten for part in parts),
        devices=last.devices._replace(times=np.concatenate([part.devices.times for part in parts])),
        **fields,
    )
