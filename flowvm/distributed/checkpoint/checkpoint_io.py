"""`save`, `async_save` and `load`: checkpoints that all ranks write and read together."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from flowvm.autograd.modes import no_grad
from flowvm.config import config
from flowvm.distributed.checkpoint.default_planner import LoadPlanner, SavePlanner
from flowvm.distributed.checkpoint.stateful import Stateful
from flowvm.distributed.checkpoint.storage import (
    FileSystemReader,
    FileSystemWriter,
    StorageReader,
    StorageWriter,
    TensorStorageMetadata,
    joined,
    leaves,
)
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.files.shards import together
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import TensorMeta
from flowvm.meta.placements import partial_sum
from flowvm.ranks.world import Group, world_size

# public: distributed.checkpoint


def _state(state_dict: Mapping[str, object] | Mapping[str, object], what: str) -> dict[str, object]:
    if not isinstance(state_dict, Mapping):
        raise ArgumentTypeError(f"{what}: a dict is needed, got a {type(state_dict).__name__}")
    return {k: v.state_dict() if isinstance(v, Stateful) else v for k, v in state_dict.items()}


def _storage(
    what: str,
    storage: StorageWriter | StorageReader | None,
    path: Any,
    kind: type[StorageWriter] | type[StorageReader],
    default: type[FileSystemWriter] | type[FileSystemReader],
) -> Any:
    if storage is None:
        if path is None:
            raise ArgumentError(f"{what}: say where: checkpoint_id, or a storage of its own")
        return default(path)
    if not isinstance(storage, kind):
        raise ArgumentTypeError(f"{what}: expected a {kind.__name__}, got {type(storage).__name__}")
    if path is not None:
        storage.path = type(storage.path)(path)
    return storage


def _all_ranks(what: str, group: Group | Iterable[int] | None, no_dist: bool) -> None:
    if world_size() > 1 and (no_dist or Group.of(group).size != world_size()):
        raise ArgumentError(
            f"{what}: all {world_size()} ranks call it together; it takes no process_group of some "
            f"of them, and no no_dist"
        )


def save(
    state_dict: Mapping[str, object],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: StorageWriter | None = None,
    planner: SavePlanner | None = None,
    process_group: Group | Iterable[int] | None = None,
    no_dist: bool = False,
    use_collectives: bool = True,
) -> None:
    """Write a state dict into a folder; all ranks call it together.

    Each part of a global tensor is written once, by the first rank that has it.  Local tensors and
    all other values are the first rank's.  A `Stateful` value is saved by its state dict.  A reader
    of the folder finds either the old checkpoint or the whole new one.

    checkpoint_id    the folder, made if it is not there
    storage_writer   another form: `HuggingFaceStorageWriter`

    `planner` and `use_collectives` are taken.  An error on one rank is one on all.

    >>> import tempfile
    >>> import flowvm.distributed.checkpoint as dcp
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dcp.save({"w": flow.ones(2), "step": 3}, checkpoint_id=folder)
    ...     state = {"w": flow.zeros(2), "step": 0}
    ...     dcp.load(state, checkpoint_id=folder)
    >>> state
    {'w': tensor([1., 1.]), 'step': 3}
    """
    _all_ranks("save", process_group, no_dist)
    writer = _storage("save", storage_writer, checkpoint_id, StorageWriter, FileSystemWriter)
    writer.write(_state(state_dict, "save"))


def async_save(
    state_dict: Mapping[str, object],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: StorageWriter | None = None,
    planner: SavePlanner | None = None,
    process_group: Group | Iterable[int] | None = None,
    no_dist: bool = False,
    use_collectives: bool = True,
    **more: object,
) -> Future[None]:
    """Save the present values as `save` does.  A thread writes the files while the program goes on.

    Its `result()` waits until this rank has done its part; the first rank has done its part when
    the checkpoint is there.

    >>> import tempfile
    >>> import flowvm.distributed.checkpoint as dcp
    >>> w = flow.ones(2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = dcp.async_save({"w": w}, checkpoint_id=folder)
    ...     _ = w.zero_()
    ...     done.result()
    ...     flow.load(folder)
    {'w': tensor([1., 1.])}
    """
    _all_ranks("async_save", process_group, no_dist)
    writer = _storage("async_save", storage_writer, checkpoint_id, StorageWriter, FileSystemWriter)
    rest = writer.prepared(_state(state_dict, "async_save"))
    future: Future[None] = Future()

    def run() -> None:
        try:
            rest(config.distributed_timeout)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, name="flowvm checkpoint").start()
    return future


def save_state_dict(
    state_dict: Mapping[str, object],
    storage_writer: StorageWriter,
    process_group: Group | Iterable[int] | None = None,
    coordinator_rank: int = 0,
    no_dist: bool = False,
    planner: SavePlanner | None = None,
) -> None:
    """Write a state dict: `save`, by PyTorch's older name and order of arguments.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> writer = flow.distributed.checkpoint.FileSystemWriter(folder.name)
    >>> flow.distributed.checkpoint.save_state_dict({"x": flow.ones(2)}, writer)
    """
    save(
        state_dict, storage_writer=storage_writer, planner=planner,
        process_group=process_group, no_dist=no_dist,
    )  # fmt: skip


def load_state_dict(
    state_dict: dict[str, Any],
    storage_reader: StorageReader,
    process_group: Any = None,
    coordinator_rank: int = 0,
    no_dist: bool = False,
    planner: LoadPlanner | None = None,
) -> None:
    """Read into a state dict: `load`, by PyTorch's older name and order of arguments.

    >>> import tempfile
    >>> folder, state = tempfile.TemporaryDirectory(), {"x": flow.zeros(2)}
    >>> flow.distributed.checkpoint.save({"x": flow.ones(2)}, checkpoint_id=folder.name)
    >>> reader = flow.distributed.checkpoint.FileSystemReader(folder.name)
    >>> flow.distributed.checkpoint.load_state_dict(state, reader)
    >>> state["x"]
    tensor([1., 1.])
    """
    load(
        state_dict, storage_reader=storage_reader, planner=planner,
        process_group=process_group, no_dist=no_dist,
    )  # fmt: skip


def load(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_reader: StorageReader | None = None,
    planner: LoadPlanner | None = None,
    process_group: Group | Iterable[int] | None = None,
    no_dist: bool = False,
) -> None:
    """Read what a state dict names into it; all ranks call it together, however many had saved.

    Tensors are written in place.  Global ones keep their placement and layout, and each rank reads
    its part; dtypes stay.  Other values are replaced; a `Stateful` value loads its state dict.
    Other entries of the checkpoint are ignored.

    planner   `DefaultLoadPlanner(allow_partial_load=True)`: what the checkpoint lacks stays

    ArgumentError where it lacks something, or has a tensor of another shape; FileError where there
    is no checkpoint.

    >>> import tempfile
    >>> import flowvm.distributed.checkpoint as dcp
    >>> model = nn.Linear(1, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dcp.save({"model": nn.Linear(1, 1)}, checkpoint_id=folder)
    ...     dcp.load({"model": model}, checkpoint_id=folder)  # as the one that was saved
    """
    _all_ranks("load", process_group, no_dist)
    reader = _storage("load", storage_reader, checkpoint_id, StorageReader, FileSystemReader)
    partial = bool(getattr(planner, "allow_partial_load", False))
    state = _state(state_dict, "load")

    def read() -> tuple[Any, Any]:
        known = reader.read_metadata().state_dict_metadata
        targets = _target_metas(state, known, partial, str(reader.path))
        return known, reader.read(targets)

    known, tensors = together(f"load: {str(reader.path)!r}", read)
    with no_grad():
        for key, value in state.items():
            loaded_value = _filled(value, str(key), known, tensors)
            if isinstance(state_dict[key], Stateful):
                state_dict[key].load_state_dict(loaded_value)
            else:
                state_dict[key] = loaded_value


def _target_metas(
    state: Mapping[str, object], known: Mapping[str, object], partial: bool, where: str
) -> dict[str, TensorMeta]:
    """The metas of the tensors to be read, by their names in the checkpoint."""
    targets: dict[str, TensorMeta] = {}
    missing = []
    for path, value in leaves(state):
        if path not in known:
            missing.append(path)
            continue
        about = known[path]
        if not isinstance(about, TensorStorageMetadata):
            if isinstance(value, Tensor):
                raise ArgumentError(f"load: {path!r} is a tensor here, and none in {where!r}")
            continue
        meta: TensorMeta = TensorMeta.of(about.size, about.dtype)
        if isinstance(value, Tensor):
            if tuple(value.shape) != about.size:
                raise ArgumentError(
                    f"load: {path!r} has shape {tuple(value.shape)} here, and {about.size} in "
                    f"{where!r}"
                )
            own: TensorMeta = value._meta
            if isinstance(own, GlobalMeta):
                if partial_sum in own.sbp:
                    raise ArgumentError(f"load: {path!r} is a partial sum, which is not read into")
                meta = GlobalMeta.make(about.size, about.dtype, own.device, own.sbp)
        targets.setdefault(about.name, meta)
        if targets[about.name] != meta:  # one tensor under two names, held in two ways
            raise ArgumentError(
                f"load: {path!r} and another name were saved as one tensor, and here the two "
                "are held in different ways"
            )
    if missing and not partial:
        raise ArgumentError(
            f"load: {where!r} has no {', '.join(missing[:5])}{', ...' * (len(missing) > 5)}; "
            f"DefaultLoadPlanner(allow_partial_load=True) lets that be"
        )
    return targets


def _filled(
    value: object, path: str, known: Mapping[str, object], tensors: dict[str, Tensor]
) -> Any:
    """Return the value with loaded data.  Dicts, lists and tensors are changed in place."""
    if isinstance(value, dict):
        for key in value:
            value[key] = _filled(value[key], joined(path, key), known, tensors)
        return value
    if isinstance(value, (list, tuple)):
        items = [_filled(v, joined(path, i), known, tensors) for i, v in enumerate(value)]
        if isinstance(value, list):
            value[:] = items
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if path not in known:
        return value
    about = known[path]
    if not isinstance(about, TensorStorageMetadata):
        return about
    tensor = tensors[about.name]
    if not isinstance(value, Tensor):
        return tensor
    value.detach().copy_(tensor)
    return value
