"""Shapes and dtypes of the operands of recorded instructions, which a run does not keep."""

from __future__ import annotations

from flowvm.profiler.run.run import Run
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import OPERAND


def shapes_of(run: Run) -> dict[int, list[list[int]]]:
    """Shapes of what each instruction of a run reads, by its number; of this process, while the VM
    remembers what it called.
    """
    snapshot = engine.flight.look(int(run.seq[0]), int(run.seq[-1]) + 1) if len(run) else None
    if snapshot is None:
        return {}
    known: dict[int, list[list[int]]] = {}
    firsts = snapshot.offsets.tolist()
    constant = (snapshot.access & 3 == OPERAND.CONST).tolist()
    for i, (seq, entry) in enumerate(
        zip(snapshot.seq.tolist(), snapshot.entry.tolist(), strict=True)
    ):
        info = engine.entries.info[entry][0] if entry < len(engine.entries.info) else None
        metas = getattr(info, "metas", ())
        reads = constant[firsts[i] : firsts[i + 1]]
        if len(reads) == len(metas):
            known[seq] = [
                list(meta.shape) for meta, is_read in zip(metas, reads, strict=True) if is_read
            ]
    return known
