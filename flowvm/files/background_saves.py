"""Folders of global tensors that are written in the background.

The ranks' common work comes first; afterwards nothing is exchanged.  A rank that has written its
file leaves a mark in the folder.  The first rank waits for the marks before it puts the index in
its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from flowvm.eager.tensor import Tensor
from flowvm.errors import CommunicationError
from flowvm.files.shards import FORMAT, agreed_token, file_name, mark_name, parts, publish
from flowvm.files.writer import put
from flowvm.meta.placements import rank_and_size
from flowvm.ranks.world import world


def prepared(
    folder: Path, tree: object, tensors: dict[str, Tensor], save: Callable[[object, Path], None]
) -> Callable[[float], None]:
    """Prepare a write.  Now the ranks do their common work and values are copied.  Return a
    function that does the rest, on any thread, and at any time.  Its argument is the seconds for
    which the first rank waits for the others' files.
    """
    rank, ranks = rank_and_size()
    token = agreed_token(folder, parents=True)
    mine, index = parts(tensors, partial(file_name, token))
    mine = {name: t.detach().clone() for name, t in mine.items()}

    def rest(seconds: float) -> None:
        # the first rank may look at any moment: it sees all of the mark or none
        mark = partial(put, folder / mark_name(token, rank), what="flow.save")
        try:
            if mine:
                save(mine, folder / file_name(token, rank))
        except BaseException:
            mark(data="failed")
            raise
        if rank:
            mark(data="")
            return
        others = {folder / mark_name(token, other) for other in range(1, ranks)}
        try:
            _wait_for(folder, others, seconds)
            publish(folder, {"format": FORMAT, "tree": tree, "tensors": index})
        finally:
            for path in others:
                path.unlink(missing_ok=True)

    return rest


def _wait_for(folder: Path, others: set[Path], seconds: float) -> None:
    end, waiting = time.monotonic() + seconds, set(others)
    while waiting:
        present = {path for path in waiting if path.exists()}
        failed = [path for path in present if path.read_text()]
        waiting -= present
        if failed or (waiting and time.monotonic() > end):
            names = sorted(p.name for p in failed or waiting)
            why = "could not write its file" if failed else f"has not within {seconds:g} s"
            raise CommunicationError(f"save: {str(folder)!r}: rank {int(names[0][-10:-5])} {why}")
        if waiting:
            world().raise_fault()  # a rank that is lost writes nothing any more
            time.sleep(0.005)
