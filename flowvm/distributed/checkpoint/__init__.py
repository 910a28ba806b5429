"""Checkpoints of programs on several ranks, by PyTorch's names.

    import flowvm.distributed.checkpoint as dcp

    dcp.save({"model": model.state_dict()}, checkpoint_id="step_100")   # on any number of ranks
    dcp.load(state, checkpoint_id="step_100")                           # on any other

Not here: what a folder of global tensors is (`flowvm.files.shards`), `flow.save` and `flow.load`.
"""

from flowvm.distributed.checkpoint import state_dict as state_dict
from flowvm.distributed.checkpoint import stateful as stateful
from flowvm.loading.listing import listing

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.distributed.checkpoint.checkpoint_io import (
    async_save, load, load_state_dict, save, save_state_dict,
)
from flowvm.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner, DefaultSavePlanner, LoadPlanner, SavePlanner,
)
from flowvm.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader, HuggingFaceStorageWriter,
)
from flowvm.distributed.checkpoint.storage import (
    FileSystemReader, FileSystemWriter, Metadata, StorageReader, StorageWriter,
    TensorStorageMetadata,
)

__all__ = [
    "DefaultLoadPlanner", "DefaultSavePlanner", "FileSystemReader", "FileSystemWriter",
    "HuggingFaceStorageReader", "HuggingFaceStorageWriter", "LoadPlanner", "Metadata",
    "SavePlanner", "StorageReader", "StorageWriter", "TensorStorageMetadata", "async_save", "load",
    "load_state_dict", "save", "save_state_dict", "state_dict", "stateful",
]
# fmt: on
# isort: on
# --- by hand


__dir__ = listing(globals())
