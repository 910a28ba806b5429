"""`flow.profiler.gather(p)`: what all ranks recorded, on one clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.files.writer import put
from flowvm.loading.lazy import lazy
from flowvm.profiler.front.profiles import Profile
from flowvm.profiler.front.rank_profile import Joined

if TYPE_CHECKING:
    from flowvm.profiler.export import html as pages
    from flowvm.profiler.export import ranks as exporting
    from flowvm.profiler.views import ranks as views
    from flowvm.profiler.views.moment import Moment
    from flowvm.profiler.views.ranks import RanksSummary
else:
    pages = lazy("flowvm.profiler.export.html")
    exporting = lazy("flowvm.profiler.export.ranks")
    views = lazy("flowvm.profiler.views.ranks")

# value -> (every rank's value, what is added to every rank's clock); the last one is asked: ranks
# that were launched together enter themselves (`flowvm.ranks.world`)
gathering: list[Callable[[object], tuple[list[Any], list[int]]]] = [lambda value: ([value], [0])]


class Ranks:
    """The Profiles of several ranks: `ranks[k]` is that of rank k.

    `shifts` are the nanoseconds that are added to each rank's times to have all on one clock.

    >>> with flow.profiler.profile() as p:
    ...     x = flow.ones(2) + 1
    >>> len(flow.profiler.gather(p))
    1
    """

    def __init__(self, profiles: list[Profile], shifts: list[int]) -> None:
        self.profiles, self.shifts = profiles, shifts

    def summary(self) -> RanksSummary:
        """Return for each rank its computation and exchanges, the hidden part of those, its
        lateness, and the speed of collectives once all ranks had come.
        """
        return views.ranks_summary(self.profiles, self.shifts)

    @cached_property
    def joined(self) -> Joined:
        """All ranks in one run, on one clock: instruction 311 of rank 2 is 2000311 there, and its
        stream `cpu` is `rank 2 cpu`.
        """
        return Joined([p.run for p in self.profiles], self.shifts)

    def at(
        self, t: float | None = None, *, instr: int | None = None, when: str = "waits"
    ) -> Moment:
        """All ranks at a moment, and the collectives that are under way: who waits for whom.

        The arguments are those of `Profile.at`; an instruction's number is that of `joined`.
        """
        return self.joined.at(t, instr=instr, when=when)

    def step(self, steps: int = 1, to: str = "") -> Moment:
        """The moment so many events of any rank behind the one shown last; see `Profile.step`."""
        return self.joined.step(steps, to)

    def export(self, path: str | Path, edges: str = "gating") -> Path:
        """Write the page of all ranks (.html), or a Chrome trace (.json, .json.gz; Perfetto shows
        it).  Both have tracks of all ranks, and arrows from who came last to a collective to those
        that had waited.  ArgumentError for another name.

        edges   of a trace, inside a rank: "gating", "all" or "none"
        """
        path = Path(path)
        if path.name.endswith(".html"):
            put(path, pages.html(self.joined), "export")
            return path
        if not path.name.endswith((".json", ".json.gz")):
            raise ArgumentError(
                f"export: runs of ranks are written as .html, .json or .json.gz, not {path}"
            )
        exporting.write(self.profiles, self.shifts, path, edges)
        return path

    def __len__(self) -> int:
        return len(self.profiles)

    def __getitem__(self, rank: int) -> Profile:
        return self.profiles[rank]

    def __iter__(self) -> Iterator[Profile]:
        return iter(self.profiles)

    def __repr__(self) -> str:
        return repr(self.summary())

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


def gather(profile: Profile) -> Ranks:
    """All ranks' profiles, on all of them.  Every rank calls it, and waits for the others; in a
    world of one rank it is that one's.  ArgumentTypeError for what is no Profile.

    >>> with flow.profiler.profile() as p:
    ...     x = flow.ones(2) + 1
    >>> flow.profiler.gather(p).summary().ranks[0].rank
    0
    """
    if not isinstance(profile, Profile):
        raise ArgumentTypeError(
            f"gather: profile is a Profile, as `with profile() as p` and last() give, "
            f"got {type(profile).__name__}"
        )
    runs, shifts = gathering[-1](profile.run)
    return Ranks([Profile(run) for run in runs], shifts)
