"""What the drawings need of `flowvm.vm.machine.words`: the one place where they name its words."""

from __future__ import annotations

from dataclasses import dataclass

from flowvm.vm.machine.record import LINE, fields_of
from flowvm.vm.machine.words import ARRAY, ENT, INS, OPERAND, REGIONS, RING

__all__ = [
    "ENTRY", "ENTRY_BITS", "ENTRY_WORDS", "INS_WORDS", "MARK", "OPERANDS", "RECORD_WORDS",
    "STORAGE_BITS", "Region", "entry_words", "ins_words", "regions", "total_bytes",
]  # fmt: skip

RECORD_WORDS, MARK, ENTRY, OPERANDS = RING.WORDS, RING.MARK, RING.ENTRY, RING.OPERANDS
ENTRY_WORDS, ENTRY_BITS, STORAGE_BITS, INS_WORDS = (
    ENT.WORDS, ENT.BITS, OPERAND.STORAGE_BITS, INS.WORDS,
)  # fmt: skip

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
    """Of the whole array."""
    return ARRAY.WORDS * 8


def entry_words() -> dict[int, str]:
    """Names of an entry's words, by their place."""
    return {f.at: f.name for f in fields_of(ENT)}


def ins_words() -> dict[int, str]:
    """Names of the words of a slot of INS, by their place."""
    return {f.at: f.name for f in fields_of(INS)}
