"""`restart`: how often `flowvm launch --restarts` has started this program anew, and why."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path

from flowvm.ranks.launch_env import RESTART

# public: distributed


@dataclass(frozen=True)
class Restart:
    """The record of how this program was started; see `restart`.

    >>> flow.distributed.Restart().count
    0
    """

    count: int = 0
    reason: str | None = None
    checkpoint: Path | None = None


@functools.cache
def restart() -> Restart:
    """Return how often the ranks were started anew, why, and the checkpoint to go on from.

    count        0 at the first start
    reason       the failure that ended the ranks before: "rank 1 failed first, killed by SIGKILL";
                 None at the first start
    checkpoint   the newest whole checkpoint in the folder of `flowvm launch --checkpoint DIR`, the
                 same on all ranks; None if there is none.  A first start has one, too, where an
                 earlier launch has left it

    >>> flow.distributed.restart()  # not by `flowvm launch`
    Restart(count=0, reason=None, checkpoint=None)
    """
    reason = json.loads(os.environ.get(RESTART, "{}"))
    place = reason.get("checkpoint")
    return Restart(reason.get("count", 0), reason.get("reason"), Path(place) if place else None)
