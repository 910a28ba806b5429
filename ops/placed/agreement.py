"""Agreement of ranks on their arguments: the shape, dtype, placement and sbp of a global tensor.

Each rank runs the same program, so a line that makes a global tensor, or changes how it is held,
gives the same on all ranks of the placement.  Where a rank gives something else nothing else
notices: each computes with its own parts, and sums come out wrong.  So the first time that a line
gives something, the ranks compare it: by a barrier that fails where their texts differ, an
instruction that Python does not wait for.  What a line has given before costs a look into a set.
"""

from __future__ import annotations

import sys
from typing import Any

from flowvm.eager.modes import find_user, recording_to, recording_trace
from flowvm.meta.placements import here
from flowvm.ops.placed.boxing import transport

# comparisons of a group; later ones are not made.  All its ranks have made as many: the count of a
# rank in all its groups would end at another place on each
MOST = 1 << 14
_compared: dict[Any, set[Any]] = {}  # by the rank, of which a process has one, and the group


def agree(where: Any, text: str) -> None:
    """Have the ranks of `where`, a placement, compare `text`, unless this line has done so before.

    The instruction that fails where they differ is the next reading's CommunicationError, on all
    of these ranks.
    """
    rank = here()[0]
    if where.size == 1 or rank not in where.flat:
        return
    ranks = tuple(sorted(where.flat))
    compared = _compared.setdefault((rank, ranks), set())
    key = (*find_user(sys._getframe(1)), text)
    if key in compared or len(compared) >= MOST:
        return
    compared.add(key)
    use = transport[-1]()
    with recording_to(None), recording_trace(None):  # a graph that is captured does not repeat it
        use.barrier(use.group(ranks), text)
