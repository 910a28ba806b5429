"""The VM's array as it is drawn: its regions, and their writers.

`flowvm.vm.machine.words` declares the regions.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowvm.vm.machine.record import LINE, Record, fields_of
from flowvm.vm.machine.words import ARRAY, REGIONS

__all__ = ["Region", "names_of", "regions", "total_bytes"]

# region -> what it has, and who writes it
_REGIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "CTL": ("control words", ("yours", "sched", "worker")),
    "RING": ("records", ("yours",)),
    "INS": ("slots", ("sched", "worker")),
    "STR": ("streams", ("sched", "worker", "helper")),
    "QUE": ("queues", ("sched",)),
    "ERR": ("errors", ("worker",)),
    "ENT": ("entries", ("yours",)),
    "DEP": ("access lists", ("sched",)),
    "STO": ("storages", ("yours", "worker")),
    "ACC": ("accesses", ("sched",)),
    "EDG": ("edges", ("sched",)),
    "FRE": ("free storage ids", ("sched",)),
    "REC": ("recorded instructions", ("sched",)),
    "SPL": ("operands of those", ("sched",)),
    "TSK": ("streams' tasks", ("worker",)),
    "HLP": ("helpers' shares", ("helper",)),
    "ARG": ("kernel arguments", ("worker",)),
    "MBX": ("mailboxes", ("worker",)),
    "WAI": ("waits of devices", ("sched",)),
    "CHK": ("memory check", ("worker",)),
    "VEW": ("views for it", ("yours",)),
    "PRI": ("policies' keys", ("sched",)),
}


@dataclass(frozen=True)
class Region:
    """A region of the array; `writers` are keys of the drawing's threads."""

    name: str
    count: int
    words: int
    what: str
    writers: tuple[str, ...]


def regions() -> list[Region]:
    """The regions in their order in the array; KeyError for one that has no writers here."""
    rows = []
    for table in REGIONS:
        name = table.__name__.rpartition(".")[2]
        count, words = table.LENGTH, table.WORDS
        if name == "CTL":  # one record, a line for each word
            count, words = words // LINE, LINE
        rows.append(Region(name, count, words, *_REGIONS[name]))
    return rows


def total_bytes() -> int:
    """Return the bytes of the whole array."""
    return ARRAY.WORDS * 8


def names_of(table: type[Record]) -> dict[int, str]:
    """Names of a record's words, by their place."""
    return {f.at: f.name for f in fields_of(table)}
