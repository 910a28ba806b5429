"""The screen of a run on several ranks: what each computed and exchanged, and who was late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowvm.profiler.analysis.across import common, computing, exchanges_of, tied, union
from flowvm.profiler.grammar import Column, Screen, View, ms, percent, size, table
from flowvm.profiler.run.run import Run


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
        if self.note:
            out.add((f" {self.note}", "advice"))
        return out


def ranks_summary(runs: Sequence[Run], shifts: Sequence[int]) -> RanksSummary:
    """Of the ranks' runs, whose clocks differ by `shifts` ns."""
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
    found = []
    for name in dict.fromkeys(together.names):
        own_rows = np.array([n == name for n in together.names])
        nbytes = int(together.nbytes[own_rows].sum())
        took = int((together.end.max(1) - together.last)[own_rows].sum())
        waited = int(together.waited[own_rows].sum())
        rate = nbytes / took * 1e9 if took > 0 else 0.0
        found.append(ExchangeRow(name, int(own_rows.sum()), nbytes, waited, rate))
    return RanksSummary(tuple(rows), tuple(found))
