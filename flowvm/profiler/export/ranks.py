"""Chrome trace events of several ranks: the tracks of each under its number, and arrows from the
rank that came last to a collective to the others, which had waited for it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flowvm.profiler.analysis.across import COLLECTIVES, EXCHANGES
from flowvm.profiler.export import chrome
from flowvm.profiler.views.summary.facts import ProfileLike

Event = dict[str, Any]
PIDS = 100  # of one rank
IDS = 1 << 40  # of flows of one rank


def write(profiles: Sequence[ProfileLike], shifts: Sequence[int], path: Path, edges: str) -> None:
    """Write the trace; compressed if the name ends in .gz."""
    text = ",\n".join(json.dumps(e, separators=(",", ":")) for e in events(profiles, shifts, edges))
    chrome.write_events(text, path)


def events(
    profiles: Sequence[ProfileLike], shifts: Sequence[int], edges: str = "gating"
) -> list[Event]:
    """The events of the ranks' Profiles on one clock, that begins with the first run."""
    begins = [p.run.begun + shift for p, shift in zip(profiles, shifts, strict=True)]
    listed: list[Event] = []
    rows: list[list[Event]] = []
    for rank, (profile, begin) in enumerate(zip(profiles, begins, strict=True)):
        own = chrome.events(profile, edges)
        later = (begin - min(begins)) / 1000
        for event in own:
            event["pid"] += rank * PIDS
            if "ts" in event:
                event["ts"] = round(event["ts"] + later, 3)
            if "id" in event:
                event["id"] += rank * IDS
            if event["name"] == "process_name":
                event["args"] = {"name": f"rank {rank} {event['args']['name']}"}
            if event["name"] == "process_sort_index":
                event["args"] = {"sort_index": event["pid"]}
        rows.append(_collectives(own))
        listed += own
    names = [e for e in listed if e["ph"] == "M"]
    timed = [e for e in listed if e["ph"] != "M"] + _arrows(rows)
    timed.sort(key=lambda e: (e["ts"], -e.get("dur", 0.0)))
    return names + timed


def _collectives(events: Sequence[Event]) -> list[Event]:
    """The slices of collectives, in their order."""
    lanes = {
        (e["pid"], e["tid"])
        for e in events
        if e["name"] == "thread_name"
        and e["args"]["name"] in (COLLECTIVES, f"{COLLECTIVES} graph tasks")
    }
    collectives = [
        e
        for e in events
        if e["ph"] == "X" and (e["pid"], e["tid"]) in lanes and e["name"] in EXCHANGES
    ]
    return sorted(collectives, key=lambda e: float(e["ts"]))


def _arrows(rows: Sequence[Sequence[Event]]) -> list[Event]:
    """From who came last to the others; none where ranks made different collectives."""
    names = [[e["name"] for e in own] for own in rows]
    if any(own != names[0] for own in names):
        return []
    arrows: list[Event] = []
    for number, row in enumerate(zip(*rows, strict=True)):
        last = max(row, key=lambda e: float(e["ts"]))
        for other in row:
            if other is not last:
                own = (len(rows) + 1) * IDS + number * len(rows) + other["pid"] // PIDS
                both = {"cat": "ranks", "name": last["name"], "id": own}
                arrows.append({"ph": "s", "pid": last["pid"], "tid": last["tid"],
                               "ts": last["ts"], **both})  # fmt: skip
                arrows.append({"ph": "f", "bp": "e", "pid": other["pid"], "tid": other["tid"],
                               "ts": _inside(other, last["ts"]), **both})  # fmt: skip
    return arrows


def _inside(slice_: Event, at: float) -> float:
    """The moment `at`, or the nearest inside a slice."""
    end = slice_["ts"] + slice_["dur"] - 0.001
    return float(round(min(max(at, slice_["ts"]), max(end, slice_["ts"])), 3))
