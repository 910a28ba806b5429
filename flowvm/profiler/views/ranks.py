"""The screen of a run on several ranks: what each computed and exchanged, who was late, and what
it was doing meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowvm.profiler.analysis.across import (
    Tied,
    before,
    common,
    computing,
    exchanges_of,
    is_lane,
    tied,
    union,
)
from flowvm.profiler.analysis.host_time import inside
from flowvm.profiler.grammar import Column, Screen, View, flowed, ms, percent, size, table
from flowvm.profiler.run.run import Run
from flowvm.profiler.views.summary.facts import ProfileLike
from flowvm.profiler.views.summary.verdict import WORDS

WORTH = 0.01  # of the wall time: less waiting is not worth a line


@dataclass(frozen=True)
class RankRow:
    """A rank: times in ns.  `hidden` is the share of `exchanging` in which it computed as well;
    `late` how many collectives it came to last, `others` for how long others waited for it there.
    """

    rank: int
    wall: int
    computing: int
    exchanging: int
    hidden: float
    late: int
    others: int


@dataclass(frozen=True)
class ExchangeRow:
    """Collectives of one name: bytes of their operands on a rank, ns that the first rank waited for
    the last, and bytes a second from when the last was there until all were done.
    """

    name: str
    count: int
    nbytes: int
    waited: int
    bandwidth: float


@dataclass(frozen=True, repr=False)
class RanksSummary(View):
    """See the module.  `note` says why collectives could not be tied, "" where they were."""

    ranks: tuple[RankRow, ...]
    exchanges: tuple[ExchangeRow, ...]
    note: str = ""
    late: tuple[str, ...] = ()  # who was, in words

    def screen(self, width: int) -> Screen:
        out = Screen()
        share = np.mean([r.hidden for r in self.ranks if r.exchanging] or [0.0])
        out.add((f"{len(self.ranks)} ranks", "verdict"), f"   {percent(float(share))} of "
                "the time in exchanges was computed in as well")  # fmt: skip
        columns = [
            Column("rank", right=True), Column("wall ms", right=True),
            Column("computing", right=True), Column("exchanging", right=True),
            Column("hidden", right=True), Column("came last", right=True, drop=2),
            Column("others waited", right=True, drop=1),
        ]  # fmt: skip
        rows = [
            (str(r.rank), ms(r.wall), ms(r.computing), ms(r.exchanging),
             percent(r.hidden), str(r.late), ms(r.others))
            for r in self.ranks
        ]  # fmt: skip
        out.lines += table(columns, rows, width)
        if self.exchanges:
            columns = [
                Column("collective", grow=True), Column("count", right=True),
                Column("bytes", right=True), Column("waited for the last", right=True),
                Column("bytes/s then", right=True),
            ]  # fmt: skip
            listed = [
                (e.name, str(e.count), size(e.nbytes), ms(e.waited), size(int(e.bandwidth)))
                for e in self.exchanges
            ]
            out.lines += table(columns, listed, width)
        for line in self.late:
            out.lines += flowed([(word, "advice") for word in line.split()], width, " ")
        if self.note:
            out.add((f" {self.note}", "advice"))
        return out


def ranks_summary(profiles: Sequence[ProfileLike], shifts: Sequence[int]) -> RanksSummary:
    """Summarize the ranks' Profiles, whose clocks differ by `shifts` ns."""
    runs: list[Run] = [p.run for p in profiles]
    each = [exchanges_of(run) for run in runs]
    together = tied(each, shifts)
    rows = []
    for rank, (run, own) in enumerate(zip(runs, each, strict=True)):
        busy, apart = computing(run), union(own.begin, own.end)
        exchanging = int((apart[:, 1] - apart[:, 0]).sum())
        late = np.zeros(0, bool) if together is None else together.late == rank
        rows.append(
            RankRow(
                rank, run.wall, int((busy[:, 1] - busy[:, 0]).sum()), exchanging,
                common(busy, apart) / exchanging if exchanging else 0.0,
                int(late.sum()), 0 if together is None else int(together.waited[late].sum()),
            )
        )  # fmt: skip
    if together is None:
        note = (
            "ranks made different collectives, in several groups perhaps: who was late is unknown"
        )
        return RanksSummary(tuple(rows), (), note)
    sentences = []
    for name in dict.fromkeys(together.names):
        own_rows = np.array([n == name for n in together.names])
        nbytes = int(together.nbytes[own_rows].sum())
        took = int((together.end.max(1) - together.last)[own_rows].sum())
        waited = int(together.waited[own_rows].sum())
        rate = nbytes / took * 1e9 if took > 0 else 0.0
        sentences.append(ExchangeRow(name, int(own_rows.sum()), nbytes, waited, rate))
    late = [
        text
        for row in sorted(rows, key=lambda row: -row.others)
        if (text := _lateness(row, profiles[row.rank], shifts[row.rank], together))
    ]
    return RanksSummary(tuple(rows), tuple(sentences), late=tuple(late))


def _lateness(row: RankRow, profile: ProfileLike, shift: int, together: Tied) -> str:
    """Describe the lateness of a rank: its length, and the rank's work meanwhile; "" if others did
    not wait for it.
    """
    if row.others < WORTH * row.wall:
        return ""
    did: dict[str, Counter[str]] = {}  # by line, and what it did there
    run: Run = profile.run
    for k in np.flatnonzero(together.late == row.rank).tolist():
        first = int(together.last[k] - together.waited[k]) - shift
        i = int(together.instruction[k, row.rank])
        for begin, end, what, j in before(run, profile.order, i, first):
            if what == "run":
                exchanged = "the one before, " if is_lane(run.streams[run.stream[j]]) else ""
                spent = [(run.lines[run.line[j]], exchanged + run.names[run.op[j]], end - begin)]
            elif what == "host":
                spent = [
                    (run.lines[one.line] if one.line >= 0 else "", WORDS[one.state][0], one.time)
                    for one in inside(run, begin, end)
                ] or [("", what, end - begin)]
            else:
                spent = [("", what, end - begin)]
            for line, text, time in spent:
                did.setdefault(line, Counter())[text] += time
    line, some = max(did.items(), key=lambda item: item[1].total(), default=("", Counter()))
    what, time = some.most_common(1)[0] if some else ("", 0)
    meanwhile = f", {ms(time)} ms of it in {what}" if time else ""
    if line and time:
        meanwhile = f", {ms(some.total())} ms of it at {line}, {ms(time)} ms in {what}"
    return (
        f"rank {row.rank} came last to {row.late} of {len(together)} collectives: others waited "
        f"{ms(row.others)} ms for it{meanwhile}"
    )
