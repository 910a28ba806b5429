"""The VM's array with the threads that write it, and the words of a record."""

from __future__ import annotations

import math

from flowvm.vm.machine.words import ENT, INS, OPERAND, RING
from tools.drawings import array
from tools.drawings.canvas import Canvas

__all__ = ["record", "threads"]

# thread -> (lines, colour, side)
THREADS = {
    "yours": (("your threads", "Python: issue records"), "blue", "left"),
    "worker": (("flowvm-w:<stream>", "native: run kernels"), "green", "left"),
    "sched": (("flowvm-sched", "native: order instructions"), "orange", "right"),
    "helper": (("flowvm-h:cpu.<i>", "native: share large kernels"), "purple", "right"),
}
ROW = 26


def _bytes(count: int) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024  # type: ignore[assignment]
    raise AssertionError("an array of terabytes")


def threads() -> Canvas:
    """Draw the regions of the array in their order, and the writers of each."""
    rows = array.regions()
    top, left, right = 72, 300, 760
    canvas = Canvas(
        1060, top + ROW * len(rows) + 84, "The VM's array and the threads that write it"
    )
    canvas.text(20, 32, "One int64 array, and who writes what", size="title", bold=True)
    canvas.text(20, 52, f"{_bytes(array.total_bytes())} of address space, reserved and not used "
                "until it is touched; everybody may read", size="small", colour="dim")  # fmt: skip
    middles = {row.name: top + ROW * (k + 0.5) for k, row in enumerate(rows)}
    for side in ("left", "right"):
        names = [name for name, thread in THREADS.items() if thread[2] == side]
        heights = {n: [middles[row.name] for row in rows if n in row.writers] for n in names}
        low = 0.0
        for name in sorted(names, key=lambda n: math.fsum(heights[n]) / len(heights[n])):
            lines, colour, _ = THREADS[name]
            y = max(low, math.fsum(heights[name]) / len(heights[name]))
            low = y + 90  # the next one's box is below
            x, start, edge, bend = 20, 210, left, left - 28
            if side == "right":
                x, start, edge, bend = 850, 850, right, right + 28
            for row in rows:
                beside = [n for n in names if n in row.writers]
                if name in beside:
                    at = middles[row.name] + 7 * (beside.index(name) - (len(beside) - 1) / 2)
                    canvas.arrow([(start, y), (bend, at), (edge, at)], colour=colour)
            canvas.labelled(x, y - 24, 190, 48, lines, rim=colour, colour=colour)
    for k, row in enumerate(rows):
        y = top + ROW * k
        canvas.box(left, y, right - left, ROW, radius=0)
        canvas.text(left + 12, y + 18, row.name, bold=True, room=60)
        canvas.text(left + 74, y + 18, row.what, room=170)
        size = f"{row.count:,} × {row.words:,} words" if row.words > 1 else f"{row.count:,} words"
        canvas.text(right - 92, y + 18, size, size="small", colour="dim", anchor="end", room=160)
        canvas.text(right - 12, y + 18, _bytes(row.count * row.words * 8), size="small",
                    colour="dim", anchor="end", room=74)  # fmt: skip
    y = top + ROW * len(rows) + 22
    canvas.labelled(left, y, right - left, 42, (
        "flowvm-watch and flowvm-host",
        "Python: the watchdog reads; callbacks issue as your threads do",
    ))  # fmt: skip
    return canvas


def record() -> Canvas:
    """A record of the ring for `a + b`, two of its words bit by bit, an entry, a slot."""
    cell, edge = 30, 20
    canvas = Canvas(1000, 640, "The words of a record, of an entry and of a slot")
    canvas.text(edge, 32, "A record: what the call a + b writes", size="title", bold=True)
    canvas.text(edge, 52, f"one of the slots of RING: {RING.WORDS} words of 8 bytes",
                size="small", colour="dim")  # fmt: skip
    last = RING.OPERANDS
    words = {RING.MARK: ("MARK", "red"), RING.ENTRY: ("ENTRY", "orange"),
             last: ("out", "green"), last - 1: ("a", "blue"), last - 2: ("b", "blue")}  # fmt: skip
    y = 66.0
    for k in range(RING.WORDS):
        at = edge + cell * k
        known = words.get(k)
        canvas.box(at, y, cell, cell, radius=0, fill="box" if known else "empty",
                   rim=known[1] if known else "rim")  # fmt: skip
        canvas.text(at + cell / 2, y + 20, str(k), size="small", anchor="middle",
                    colour=known[1] if known else "dim")  # fmt: skip
    for step, (k, (name, colour)) in enumerate(sorted(words.items())):
        x = edge + cell * (k + 0.5)
        depth = y + cell + 20 + 17 * step
        canvas.arrow([(x, depth - 4), (x, y + cell + 1)], colour=colour)
        canvas.text(x - 4, depth + 7, name, size="small", colour=colour, anchor="end", bold=True)
    first = edge + cell * (last - 2)
    canvas.arrow([(edge + 480, y + 56), (first - 46, y + 56)], colour="dim")
    canvas.text(edge, y + 60, "written upwards; the last store, MARK, publishes it", colour="dim")
    canvas.text(edge, y + 80, "scalars follow the operands, downwards", colour="dim")

    y = 232
    half = 470
    low = OPERAND.STORAGE_BITS
    for x, name, parts in (
        (edge, "an operand", ((64 - low, "byte offset"), (low, "storage id"))),
        (edge + half + 20, "ENTRY",
         ((64 - ENT.BITS, "stream"), (ENT.BITS, "number of the entry"))),
    ):  # fmt: skip
        canvas.text(x, y - 8, name, bold=True)
        place = float(x)
        for bits, label in parts:
            wide = half * bits / 64
            canvas.box(place, y, wide, 30, radius=0)
            canvas.text(place + wide / 2, y + 20, f"{label}: {bits} bits", size="small",
                        anchor="middle", room=wide)  # fmt: skip
            place += wide
    note = "MARK is the sequence number + 1: a slot with an older record is told from a new one."
    canvas.text(edge, y + 52, note, size="small", colour="dim")

    y = _grid(canvas, 330, "Its entry: what all calls of a kind share", "one of ENT",
              array.names_of(ENT), ENT.WORDS)  # fmt: skip
    y = _grid(canvas, y + 34, "Its slot: what the scheduler knows of it", "one of INS",
              array.names_of(INS), INS.WORDS)  # fmt: skip
    canvas.height = y + 14
    return canvas


def _grid(
    canvas: Canvas, y: float, title: str, of: str, names: dict[int, str], words: int
) -> float:
    """Draw named words in rows of eight; a longer one has a row of its own.  Return the end."""
    canvas.text(20, y, title, bold=True)
    canvas.text(20 + 420, y, f"{of}: {words} words", size="small", colour="dim")
    y += 10
    ends = [*list(names)[1:], words]
    for (first, name), end in zip(names.items(), ends, strict=True):
        x, wide = 20 + 120 * (first % 8), 120 * min(end - first, 8 - first % 8)
        if first and first % 8 == 0:
            y += 26
        where = str(first) if end == first + 1 else f"{first} to {end - 1}"
        canvas.box(x, y, wide, 26, radius=0)
        canvas.text(x + 6, y + 17, where, size="small", colour="dim")
        canvas.text(x + 12 + 6.5 * len(where), y + 17, name.lower().replace("_", " "),
                    size="small", room=wide - 12 - 6.5 * len(where))  # fmt: skip
    return y + 26
