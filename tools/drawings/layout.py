"""What the drawings need of `flowvm.vm.machine.layout`: the one place where they name its words."""

from __future__ import annotations

from dataclasses import dataclass

from flowvm.vm.machine import layout as w

__all__ = [
    "ENTRY", "ENTRY_BITS", "ENTRY_WORDS", "INS_WORDS", "MARK", "OPERANDS", "RECORD_WORDS",
    "STORAGE_BITS", "Region", "entry_words", "ins_words", "regions", "total_bytes",
]  # fmt: skip

RECORD_WORDS, MARK, ENTRY, OPERANDS = w.RECORD_WORDS, w.MARK, w.ENTRY, w.OPERANDS
ENTRY_WORDS, ENTRY_BITS, STORAGE_BITS, INS_WORDS = (
    w.ENTRY_WORDS, w.ENTRY_BITS, w.STORAGE_BITS, w.INS_WORDS,
)  # fmt: skip

# region -> how many of what it has, of how many words each, and who writes it
_REGIONS: dict[str, tuple[int, int, str, tuple[str, ...]]] = {
    "CTL": (w.CTL_WORDS // w.LINE, w.LINE, "control words", ("yours", "sched", "worker")),
    "RING": (w.CAPACITY, w.RECORD_WORDS, "records", ("yours",)),
    "INS": (w.CAPACITY, w.INS_WORDS, "slots", ("sched", "worker")),
    "STR": (w.STREAMS, w.STR_WORDS, "streams", ("sched", "worker", "helper")),
    "QUE": (w.STREAMS, w.CAPACITY, "queues", ("sched",)),
    "ERR": (w.ERRORS, w.ERR_WORDS, "errors", ("worker",)),
    "ENT": (w.ENTRIES, w.ENTRY_WORDS, "entries", ("yours",)),
    "DEP": (w.STORAGES, w.DEP_WORDS, "access lists", ("sched",)),
    "STO": (w.STORAGES, w.STO_WORDS, "storages", ("yours", "worker")),
    "ACC": (w.ACCESSES, w.ACC_WORDS, "accesses", ("sched",)),
    "EDG": (w.EDGES, w.EDG_WORDS, "edges", ("sched",)),
    "FRE": (w.STORAGES, 1, "free storage ids", ("sched",)),
    "REC": (w.RECORDS, w.REC_WORDS, "recorded instructions", ("sched",)),
    "SPL": (w.SPILLS, 1, "operands of those", ("sched",)),
    "TSK": (w.STREAMS, w.TSK_SIZE, "streams' tasks", ("worker",)),
    "HLP": (w.MAX_TEAM, w.HLP_SIZE, "helpers' shares", ("helper",)),
    "ARG": (w.STREAMS, w.ARG_WORDS, "kernel arguments", ("worker",)),
    "MBX": (w.STREAMS, w.MBX_WORDS, "mailboxes", ("worker",)),
    "WAI": (w.CAPACITY, 1, "waits of devices", ("sched",)),
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
    """The regions in their order in the array; ValueError if a size here is not the layout's."""
    starts = {name: int(getattr(w, name)) for name in _REGIONS}
    order = sorted(starts, key=starts.__getitem__)
    ends = [*(starts[name] for name in order[1:]), total_bytes() // 8]
    for name, end in zip(order, ends, strict=True):
        count, words, *_ = _REGIONS[name]
        if not 0 <= end - starts[name] - count * words < 512:
            raise ValueError(f"{name} has {end - starts[name]} words, not {count} of {words}")
    return [Region(name, *_REGIONS[name]) for name in order]


def total_bytes() -> int:
    """Of the whole array."""
    return w.WORDS * 8


def entry_words() -> dict[int, str]:
    """Names of an entry's words, by their place."""
    return _named("E_")


def ins_words() -> dict[int, str]:
    """Names of the words of a slot of INS, by their place."""
    return _named("I_")


def _named(prefix: str) -> dict[int, str]:
    found = {v: k.removeprefix(prefix) for k, v in vars(w).items() if k.startswith(prefix)}
    return dict(sorted(found.items()))
