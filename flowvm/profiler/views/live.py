"""The screen of `flowvm top`: what a VM did in the last seconds, and what it is doing now."""

from __future__ import annotations

from dataclasses import dataclass

from flowvm.files.printable import printable
from flowvm.profiler.grammar import (
    CAUSES,
    Column,
    Line,
    Screen,
    Span,
    View,
    bar,
    flowed,
    percent,
    size,
    table,
)
from flowvm.vm.watch.spaces import HOST, Space

_SPARKS = "▁▂▃▄▅▆▇█"
MOST_LINES = 3
BAR = 9


@dataclass(frozen=True)
class StreamNow:
    """A stream: `util` and `causes` are shares of the window, `rate` instructions a second.

    `queue` is what it was handed and has not done, `waiting` what is pending in front of that.
    `running` is what it has in hand, issued in `line`, `seconds` for how long.
    """

    name: str
    util: float
    queue: int
    waiting: int
    running: str
    line: str
    seconds: float
    causes: tuple[tuple[str, float], ...]
    rate: float


@dataclass(frozen=True, repr=False)
class Live(View):
    """See the module.  `window` is the seconds that shares and rates are of.

    `rates` are instructions a second of each look, oldest first.  `lines` are (line, share of the
    window, share of it in which Python waited there).  `step` is what was named last by
    `flow.profiler.span` or `mark`, and how often a second it is.  `sched` is the scheduler: its
    share of a processor, what it has received and not dispatched, and what it receives a second.
    """

    pid: int
    program: str
    up: float
    window: float
    level: int
    rate: float
    rates: tuple[float, ...]
    step: tuple[str, float]
    streams: tuple[StreamNow, ...]
    in_flight: int
    room: int
    syncs: float  # waits of Python a second
    compiled: float  # kernels compiled or loaded a second
    compiling: tuple[str, ...]  # those that threads wait for now
    captured_again: int
    errors: int
    memory: tuple[Space, ...]
    lines: tuple[tuple[str, float, float], ...]
    sampled: float
    idle: float  # seconds since anything was done, with something pending
    note: str = ""
    sched: StreamNow | None = None

    def screen(self, width: int) -> Screen:
        out = Screen()
        name, often = self.step
        head = [(f"{self.program}  pid {self.pid}", "verdict"), (f"up {_clock(self.up)}", "")]
        head += [(f"{name} {_count(often)}/s", "")] if name else []
        head.append((f"{_count(self.rate)} instr/s {_sparks(self.rates)}", "run"))
        shares = "" if self.level else " (no shares)"
        head.append((f"recorder {self.level}{shares}", "bad" if shares else "head"))
        out.lines += flowed(head, width)
        columns = [
            Column("stream", grow=True),
            Column(f"util {self.window:.0f} s", style="run"),
            Column("", right=True),
            Column("queue", right=True, drop=2),
            Column("waiting", right=True, drop=4),
            Column("running", grow=True),
            Column("idle because", drop=3),
            Column("instr/s", right=True, drop=1),
        ]
        rows = [
            (
                s.name,
                bar(s.util, BAR).ljust(BAR),
                percent(s.util),
                str(s.queue),
                str(s.waiting),
                (_running(s), "bad" if s.seconds >= 1 else ""),
                _causes(s),
                _count(s.rate),
            )
            for s in (*([] if self.sched is None else [self.sched]), *self.streams)
        ]
        out.lines += table(columns, rows, width)
        out.lines += flowed(self._counters(), width)
        if self.idle >= 2:
            out.add((f" nothing done for {self.idle:.0f} s: press w, or flowvm top --dump", "bad"))
        several = len(self.memory) > 1
        most = max((len(m.name) for m in self.memory), default=0)
        for m in self.memory:
            share = m.live / m.reserved if m.reserved else 0.0
            name = f"{m.name:<{most}} " if several else ""
            out.add(
                f" mem {name}[", (bar(share, BAR).ljust(BAR), "run"), "] ",
                f"{size(m.live)} of {size(m.reserved)} reserved   peak {size(m.peak)}",
            )  # fmt: skip
        hot: Line = [(" hot lines", "")]
        for line, part, waited in self.lines[:MOST_LINES]:
            glyph, style, _ = CAUSES["sync" if waited > part / 2 else "run"]
            text = f"   {line} {percent(part)} "
            if sum(len(t) for t, _ in hot) + len(text) + 1 > width:
                break
            hot += [(text, ""), (glyph, style)]
        if len(hot) > 1:
            out.lines.append(hot)
        if self.note:
            out.add((f" {self.note}", "advice"))
        return out

    def _counters(self) -> list[Span]:
        queue = f" ({self.compiling[0]})" if self.compiling else ""
        return [
            (f"in flight {self.in_flight}/{self.room}", ""),
            (f"sync {self.syncs:.1f}/s", ""),
            (f"compiled {self.compiled:.1f}/s", ""),
            (f"jit queue {len(self.compiling)}{queue}", "jit" if queue else ""),
            (f"re-captures {self.captured_again}", "credit" if self.captured_again else ""),
            (f"errors pending {self.errors}", "bad" if self.errors else ""),
        ]

    def line(self) -> str:
        """One line of it, for a log."""
        parts = [f"flowvm pid {self.pid}", f"{_count(self.rate)} instr/s"]
        name, often = self.step
        parts += [f"{name} {_count(often)}/s"] if name else []
        parts += [f"{s.name} {percent(s.util)}{' ' + _causes(s) if s.causes else ''}"
                  for s in self.streams]  # fmt: skip
        parts.append(f"in flight {self.in_flight}")
        held = [(m.name if m.name != HOST else "", m.live) for m in self.memory]
        parts += [" ".join(filter(None, ("mem", name, size(live)))) for name, live in held]
        parts += [f"{line} {percent(share)}" for line, share, _ in self.lines[:1]]
        parts += [f"NOTHING DONE for {self.idle:.0f} s"] if self.idle >= 2 else []
        return printable(" | ".join(parts))


def _running(s: StreamNow) -> str:
    if not s.running:
        return "-"
    long = f"{s.seconds:.1f} s" if s.seconds >= 0.05 else ""
    return "  ".join(filter(None, (s.running, long, s.line)))


def _causes(s: StreamNow) -> str:
    return " ".join(f"{cause} {percent(share)}" for cause, share in s.causes[:2])


def _count(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if value >= 10 or not value else f"{value:.1f}"


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _sparks(values: tuple[float, ...]) -> str:
    most = max(values, default=0.0)
    return "".join(_SPARKS[round(v / most * 7)] if most else _SPARKS[0] for v in values)
