"""The rules of Chrome traces that viewers enforce, and `chrome` keeps, checked on any trace.

A trace whose slices overlap, or whose flows hang in the air, opens; what is wrong is dropped
without a word.  So the tests look at every trace with this, and so does `flowvm export --check`.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from typing import Any

Event = dict[str, Any]
# fields of an event, and the kinds of their values, by the document of the trace event format
TYPES: dict[str, tuple[type, ...]] = {
    "ph": (str,),
    "name": (str,),
    "cat": (str,),
    "pid": (int,),
    "tid": (int,),
    "ts": (int, float),
    "dur": (int, float),
    "id": (int, str),
    "bp": (str,),
    "s": (str,),
    "cname": (str,),
    "args": (dict,),
}


def problems(trace: object) -> list[str]:
    """List the parts of a trace that a viewer would drop or refuse; empty if there is none."""
    problems: list[str] = []
    listed = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(listed, list):
        return ["no list traceEvents"]
    tracks: dict[tuple[object, object], list[tuple[int, int, str]]] = {}
    flows: dict[object, list[Event]] = {}
    counters: dict[str, float] = {}
    named, timed = set(), False
    for k, e in enumerate(listed):
        missing = [field for field in ("ph", "pid", "tid", "name") if field not in e]
        if e.get("ph") != "M" and "ts" not in e:
            missing.append("ts")
        if missing:
            problems.append(f"event {k} has no {', '.join(missing)}")
            continue
        wrong = [name for name, kinds in TYPES.items() if name in e and type(e[name]) not in kinds]
        if wrong:
            values = ", ".join(f"{name}: {e[name]!r:.40}" for name in wrong)
            problems.append(f"event {k} has a value of no kind that its field may have: {values}")
            continue
        kind = e["ph"]
        if kind == "M":
            if timed:
                problems.append(f"event {k}: {e['name']} stands behind events with a time")
            if e["name"] == "thread_name":
                named.add(e["tid"])
            continue
        timed = True
        if e["ts"] < 0 or round(e["ts"], 3) != e["ts"]:
            problems.append(
                f"event {k} {e['name']}: ts {e['ts']} is no whole number of nanoseconds"
            )
        begin = round(e["ts"] * 1000)
        if kind == "X":
            if e.get("dur", -1) < 0:
                problems.append(f"event {k} {e['name']}: dur {e.get('dur')}")
                continue
            span = (begin, begin + round(e["dur"] * 1000), e["name"])
            tracks.setdefault((e["pid"], e["tid"]), []).append(span)
        elif kind in "sf":
            flows.setdefault((e.get("cat"), e["name"], e.get("id")), []).append(e)
        elif kind == "C":
            if e["ts"] < counters.get(e["name"], 0):
                problems.append(f"counter {e['name']} goes back in time at {e['ts']}")
            counters[e["name"]] = e["ts"]
        elif kind != "i":
            problems.append(f"event {k}: phase {kind!r} is not one of M X s f C i")
    for (_, tid), spans in tracks.items():
        if tid not in named:
            problems.append(f"track {tid} has no name")
        problems += _overlaps(tid, spans)
    covers = {track: _cover(spans) for track, spans in tracks.items()}
    for key, pair in flows.items():
        problems += _flow_problems(key, pair, covers)
    return problems


def _overlaps(tid: object, spans: list[tuple[int, int, str]]) -> Iterator[str]:
    open_: list[tuple[int, str]] = []
    for begin, end, name in sorted(spans, key=lambda s: (s[0], -s[1])):
        while open_ and open_[-1][0] <= begin:
            open_.pop()
        if open_ and end > open_[-1][0]:
            yield f"track {tid}: {name} at {begin / 1000} us overlaps {open_[-1][1]}, not nested"
        open_.append((end, name))


def _cover(spans: list[tuple[int, int, str]]) -> tuple[list[int], list[int]]:
    """Begins of the slices in order, and for each the latest end of it and those before."""
    ordered = sorted(spans)
    return [s[0] for s in ordered], list(itertools.accumulate((s[1] for s in ordered), max))


def _flow_problems(
    key: object, pair: list[Event], covers: dict[tuple[object, object], tuple[list[int], list[int]]]
) -> Iterator[str]:
    if [e["ph"] for e in pair] not in (["s", "f"], ["f", "s"]):
        yield f"flow {key} is not one s and one f"
        return
    for e in pair:
        at = round(e["ts"] * 1000)
        begins, ends = covers.get((e["pid"], e["tid"]), ([], []))
        k = bisect.bisect_right(begins, at) - 1
        if k < 0 or ends[k] < at:
            yield f"flow {key}: its {e['ph']} at {e['ts']} us is in no slice of track {e['tid']}"
        if e["ph"] == "f" and e.get("bp") != "e":
            yield f"flow {key}: its f has no bp e"
