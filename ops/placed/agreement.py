"""Agreement of ranks on what they do: arguments of global tensors, and the ops on them.

Each rank runs the same program, so a line that makes a global tensor, or changes how it is held,
gives the same on all ranks of the placement.  Where a rank gives something else nothing else
notices: each computes with its own parts, and sums come out wrong.  So the first time that a line
gives something, the ranks compare it (`agree`): by a barrier that fails where their texts differ,
an instruction that Python does not wait for.  What a line has given before costs a look into a set.

An op on the parts needs no other rank.  Its first call of each kind is noted with its numbers and
its line (`note`), and the ranks compare these before their next exchange (`settle`), one by one:
the first that differs is named.  Later calls have an entry, and cost nothing; so ranks that differ
later in a number, or in which of two known ops they call, are not told.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import CodeType
from typing import TYPE_CHECKING

from flowvm.eager.interpreter import Operator
from flowvm.eager.modes import find_user, recording_to, recording_trace
from flowvm.meta.placements import rank_and_size
from flowvm.ops.placed.transport import transport
from flowvm.ranks.words import PLACE
from flowvm.vm.callers.lines import short_position

if TYPE_CHECKING:
    from flowvm.meta.meta import Attrs, TensorMeta
    from flowvm.meta.placements import placement

# comparisons of a group; later ones are not made.  All its ranks have made as many: the count of a
# rank in all its groups would end at another place on each
MOST = 1 << 14
Ranks = tuple[int, tuple[int, ...]]  # this one, and all of its group
_compared: dict[Ranks, set[object]] = {}  # by the rank, of which a process has one, and the group
_noted: dict[Ranks, list[str]] = {}  # what the ranks will compare, by the same


def _group(where: placement) -> Ranks | None:
    """Return this rank and those of `where`, a placement; None if nobody is to compare."""
    rank = rank_and_size()[0]
    return None if where.size == 1 or rank not in where.flat else (rank, tuple(sorted(where.flat)))


def agree(where: placement, text: str) -> None:
    """Have the ranks of `where`, a placement, compare `text`, unless this line has done so before.

    The instruction that fails where they differ is the next reading's CommunicationError, on all
    of these ranks.
    """
    group = _group(where)
    if group is None:
        return
    code, at = find_user(sys._getframe(1))
    if _is_new(group, (code, at, text)):
        _noted.setdefault(group, []).append(text + _behind(code, at))
        settle(where)


def note(
    where: placement,
    op: Operator,
    metas: Sequence[TensorMeta],
    attrs: Attrs,
    scalars: tuple[object, ...],
) -> None:
    """Have the ranks of `where` compare a call on global tensors before their next exchange.

    It is the first of these metas and attributes; scalars are those of the first call.
    """
    group = _group(where)
    if group is None:
        return
    words = [*map(repr, metas), *(repr(a) for a in attrs if isinstance(a, _PLAIN))]
    if _is_new(group, (op.name, *words)):
        text = f"{op.name}({', '.join([*words, *map(repr, scalars)])})"
        _noted.setdefault(group, []).append(text + _behind(*find_user(sys._getframe(1))))


def settle(where: placement) -> None:
    """Have the ranks of `where` compare what they have noted; nothing waits for it."""
    if not _noted or (group := _group(where)) is None:
        return
    use, texts = transport[-1](), _noted.pop(group, ())
    with recording_to(None), recording_trace(None):  # a graph that is captured does not repeat it
        for text in texts:
            use.barrier(use.group(group[1]), text)


_PLAIN = (bool, int, float, complex, str)  # arguments that are the same text on all ranks


def _is_new(group: Ranks, key: object) -> bool:
    compared = _compared.setdefault(group, set())
    if key in compared or len(compared) >= MOST:
        return False
    compared.add(key)
    return True


def _behind(code: CodeType | None, at: int) -> str:
    """Return a line in few letters.  The ranks show it and do not compare it."""
    return f"{PLACE}{short_position(code, at)}"
