"""The description of a collective, whatever transport carries it out: an `Exchange`.

Each device type has a *transport*, a table with a line for each kind of exchange: MPI's for tensors
of the CPU (`cpu/mpi.py`), NCCL's for those of CUDA devices (`cuda/nccl.py`).  Groups, lanes and the
board on which ranks see each other's standing are the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from flowvm.errors import ShapeError
from flowvm.meta.dtype import DType
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.facts import Fact
from flowvm.ranks.lanes import Lane
from flowvm.ranks.words import PLACE, STEP
from flowvm.ranks.world import Group, Joined

MOST = 1 << 31  # elements that MPI's C ints count
PRIME = 0x100000001B3


class Traffic(NamedTuple):
    """Traffic of an instruction, for prices and passes: `TRAFFIC` of its declaration."""

    messages: float  # one behind the other
    share: Callable[[int], float]  # bytes received for each byte of the whole, on n ranks
    sums: bool = False  # it sums over ranks
    paired: bool = False  # between two ranks


TRAFFIC: Fact[Traffic] = Fact()


class Exchange(NamedTuple):
    """One collective or message of this rank.

    An exchange has an input and an output, in this order of operands: output, input; or one
    operand, which it changes, sends or receives (`same`).
    """

    kind: str  # line of a transport's table
    text: str  # what all ranks must agree on; behind PLACE a rank's own line
    joined: Joined
    lane: Lane
    dtype: DType
    elements: int  # of what is sent, or of the one operand
    same: bool = False
    how: str = ""  # of a reduction
    root: int = 0  # number of a rank in the group
    own: int = 0  # that of this rank
    send_sizes: tuple[int, ...] = ()  # elements of each rank's part, or of what each rank is sent
    receive_sizes: tuple[int, ...] = ()  # elements of what comes from each rank
    tag: int = 0

    @property
    def message(self) -> bool:
        """True if the exchange is between two ranks: each shows its own standing."""
        return self.kind in ("send", "recv")

    @property
    def row(self) -> int:
        """The address of this rank's row of the board."""
        return self.lane.row if self.message else self.joined.row

    @property
    def rows(self) -> tuple[int, ...]:
        """Addresses of the others' rows, 0 for a rank of another host."""
        return () if self.message else self.joined.rows

    @property
    def encoded(self) -> bytes:
        """The text as it stands on the board."""
        return self.text.encode()[: 8 * STEP.TEXT_WORDS]

    @property
    def sign(self) -> int:
        """A hash of the text without its place; it is the same in every process."""
        digest = 0x4BF29CE484222325
        for byte in self.text.partition(PLACE)[0].encode():
            digest = (digest ^ byte) * PRIME & 0x7FFFFFFFFFFFFFFF
        return digest


def exchange(
    kind: str, meta: TensorMeta, ranks: tuple[int, ...], lane: Lane, details: Sequence[object] = (),
    peer: int | None = None,
) -> Exchange:  # fmt: skip
    """Return an exchange of `meta` among `ranks`; a message has only the rank `peer`.

    `details` has the other values on which ranks must agree.
    """
    if meta.numel >= MOST:
        raise ShapeError(f"{kind}: at most {MOST - 1} elements at a time, got {meta.numel}")
    words = ", ".join([repr(meta), *filter(None, map(str, details))])
    group = Group.of(ranks)
    return Exchange(
        kind, f"{kind}({words})", lane.joined(group, kind, peer), lane, meta.dtype, meta.numel,
        own=group.rank,
    )  # fmt: skip


def places(counts: Sequence[int]) -> list[int]:
    """Return the position at which each rank's part begins."""
    return [0, *accumulate(counts)][:-1]
