"""`flow.distributed.pipelining`: stages of a model on ranks, by PyTorch's names.

    stage = PipelineStage(layers, rank, ranks, "cpu")
    schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=loss)
    schedule.step(x) if rank == 0 else schedule.step(target=y)

Here: stages (`stages`), their order of work (`schedules`), a model cut into stages (`cutting`).
Not here: stages of graphs (`flowvm.nn.stages`).
"""

from flowvm.loading.listing import listing

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.distributed.pipelining.cutting import Pipe, SplitPoint, pipe_split, pipeline
from flowvm.distributed.pipelining.schedules import (
    Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B, ScheduleLoopedBFS, TensorChunkSpec,
)
from flowvm.distributed.pipelining.stages import PipelineStage

__all__ = [
    "Pipe", "PipelineStage", "Schedule1F1B", "ScheduleGPipe", "ScheduleInterleaved1F1B",
    "ScheduleLoopedBFS", "SplitPoint", "TensorChunkSpec", "pipe_split", "pipeline",
]
# fmt: on
# isort: on
# --- by hand


__dir__ = listing(globals())
