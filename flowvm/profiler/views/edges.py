"""Every edge of a run as columns, by the names of EDGES."""

from __future__ import annotations

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.profiler.grammar import ACCESS
from flowvm.profiler.run.run import Run
from flowvm.profiler.views.summary.facts import ProfileLike
from flowvm.vm.machine.edges import HAZARDS

# of an edge: what it is
EDGES: dict[str, str] = {
    "source": "number of the instruction that is waited for",
    "target": "number of the one that waits",
    "hazard": f"one of {', '.join(HAZARDS)}",
    "access": "of the operand that it is about: const, mut or mut2",
    "tensor": "that operand's tensor: t4 as in the other screens",
    "gating": "whether it is the one that ended last of what the target waited for",
}


def edges_of(profile: ProfileLike) -> dict[str, Array]:
    """All of EDGES, an element an edge; instructions have their numbers."""
    run: Run = profile.run
    names = np.array([ACCESS[k][2] for k in range(len(ACCESS))], object)
    return {
        "source": run.seq[run.source],
        "target": run.seq[run.target],
        "hazard": np.array(HAZARDS, object)[run.hazard],
        "access": names[run.access[run.operand] & 3],
        "tensor": np.array([f"t{t}" for t in run.tensor[run.operand].tolist()], object),
        "gating": profile.order.producer[run.target] == run.source,
    }
