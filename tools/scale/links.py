"""The cost of an exchange: a latency for each message, and bytes over a bandwidth.

A collective of n ranks is as quick as the quickest of the usual algorithms:

    ring      each rank passes a part on to the next: 2(n-1) messages, 2(n-1)/n of the bytes
    halving   reduce-scatter by halves, all-gather by doubles: 2 log2(n) messages, the same bytes
    doubling  all bytes to a partner, log2(n) times: the quickest for few bytes

Nothing here knows of congestion: each rank has the bandwidth to itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowvm.errors import ArgumentError

ALGORITHMS = ("best", "ring", "halving", "doubling")
# Of two ranks on one host: half of the all-reduce of 4 MB, and the all-reduce of 64 B in a graph,
# both in docs/reference/scale.md.  A network has others.
LATENCY_US, BANDWIDTH_GBS = 3.5, 1.9


@dataclass(frozen=True)
class Link:
    """Seconds a message, and bytes a second."""

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not 0 <= self.latency < float("inf"):
            raise ArgumentError(f"a latency is 0 or more, got {self.latency}")
        if not self.bandwidth > 0:
            raise ArgumentError(f"a bandwidth is above 0, got {self.bandwidth}")


@dataclass(frozen=True)
class Network:
    """Links between ranks, numbered so that `host_ranks` in a row share a host; 0: all do."""

    between: Link
    inside: Link
    host_ranks: int = 0
    algorithm: str = "best"

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            known = ", ".join(ALGORITHMS)
            raise ArgumentError(f"an algorithm is one of {known}, got {self.algorithm!r}")
        if self.host_ranks < 0:
            raise ArgumentError(f"ranks of a host are 0 or more, got {self.host_ranks}")

    def link(self, ranks: int, stride: int = 1) -> Link:
        """Return the slowest link among `ranks` ranks, of which each `stride`-th takes part."""
        alone = self.host_ranks == 0 or ranks * stride <= self.host_ranks
        return self.inside if alone else self.between

    def all_reduce(self, nbytes: float, ranks: int, stride: int = 1) -> float:
        """Seconds in which all have the sum of `nbytes`."""
        if ranks < 2:
            return 0.0
        link, rounds = self.link(ranks, stride), _rounds(ranks)
        parts = 2 * (ranks - 1) / ranks * nbytes / link.bandwidth
        return self._least({
            "ring": 2 * (ranks - 1) * link.latency + parts,
            "halving": 2 * rounds * link.latency + parts,
            "doubling": rounds * (link.latency + nbytes / link.bandwidth),
        })  # fmt: skip

    def all_gather(self, nbytes: float, ranks: int, stride: int = 1) -> float:
        """Seconds in which all have all parts of `nbytes`; the same for a reduce-scatter."""
        if ranks < 2:
            return 0.0
        link, rounds = self.link(ranks, stride), _rounds(ranks)
        parts = (ranks - 1) / ranks * nbytes / link.bandwidth
        return self._least({
            "ring": (ranks - 1) * link.latency + parts,
            "halving": rounds * link.latency + parts,
            "doubling": rounds * link.latency + parts,
        })  # fmt: skip

    def send(self, nbytes: float, distance: int) -> float:
        """Return the seconds of a message to a rank `distance` numbers away."""
        link = self.link(2, distance)
        return link.latency + nbytes / link.bandwidth

    def _least(self, costs: dict[str, float]) -> float:
        return min(costs.values()) if self.algorithm == "best" else costs[self.algorithm]


def _rounds(ranks: int) -> int:
    """The logarithm to base 2, rounded up."""
    return (ranks - 1).bit_length()


def fitted(few: float, many: float, nbytes: int, ranks: int) -> Link:
    """Return the link on which all-reduces of no and of `nbytes` bytes take `few` and `many` s.

    ArgumentError: more bytes took no longer.
    """
    rounds = _rounds(ranks)
    latency = few / rounds
    # for many bytes the quickest sends 2(n-1)/n of them
    messages = min(2 * rounds, 2 * (ranks - 1)) * latency
    parts = 2 * (ranks - 1) / ranks * nbytes
    if many <= messages:
        raise ArgumentError(f"{nbytes} bytes took {many:.2e} s and none {few:.2e} s: no bandwidth")
    if rounds == 1:  # by doubling: one message of all
        messages = latency
    return Link(latency, parts / (many - messages))
