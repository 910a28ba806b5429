"""Storage of checkpoints: a writer stores an object; a reader describes it and returns its tensors
when they are wanted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowvm import serialization
from flowvm.eager.tensor import Tensor
from flowvm.errors import FileError
from flowvm.files import background_saves, shards
from flowvm.meta.dtype import DType, dtype_named
from flowvm.meta.meta import TensorMeta

# public: distributed.checkpoint


@dataclass(frozen=True)
class TensorStorageMetadata:
    """A tensor in a checkpoint: the name by which it is read, its shape and dtype.

    >>> from flowvm.distributed.checkpoint import TensorStorageMetadata
    >>> TensorStorageMetadata("model.weight", (2, 3), flow.float32).size
    (2, 3)
    """

    name: str
    size: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True)
class Metadata:
    """The contents of a checkpoint by path, "model.weight": a tensor's metadata, or a plain value.

    >>> import tempfile
    >>> import flowvm.distributed.checkpoint as dcp
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dcp.save({"w": flow.ones(2), "step": 3}, checkpoint_id=folder)
    ...     dcp.FileSystemReader(folder).read_metadata().state_dict_metadata["step"]
    3
    """

    state_dict_metadata: dict[str, Any]


class StorageWriter:
    """The base class of the argument `save(storage_writer=)`.

    >>> from flowvm.distributed.checkpoint import FileSystemWriter, StorageWriter
    >>> issubclass(FileSystemWriter, StorageWriter)
    True
    """

    path: Path

    def write(self, state: Mapping[str, object]) -> None:
        """Write an object; all ranks together."""
        raise NotImplementedError

    def prepared(self, state: Mapping[str, object]) -> Callable[[float], None]:
        """Copy an object's values, all ranks together.  Return a function that writes them on any
        thread.
        """
        raise NotImplementedError


class StorageReader:
    """The base class of the argument `load(storage_reader=)`.

    >>> from flowvm.distributed.checkpoint import FileSystemReader, StorageReader
    >>> issubclass(FileSystemReader, StorageReader)
    True
    """

    path: Path

    def read_metadata(self) -> Metadata:
        """Return the metadata of the checkpoint."""
        raise NotImplementedError

    def read(self, metas: dict[str, TensorMeta]) -> dict[str, Tensor]:
        """Return tensors of these metas by name.  For a global tensor, return this rank's part."""
        raise NotImplementedError


class FileSystemWriter(StorageWriter):
    """A folder that `flow.load` reads as well: `flowvm.files.shards`.  Other arguments are
    PyTorch's, and taken.

    >>> from flowvm.distributed.checkpoint import FileSystemWriter
    >>> FileSystemWriter("step_100").path.name
    'step_100'
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        single_file_per_rank: bool = True,
        sync_files: bool = True,
        thread_count: int = 1,
        per_thread_copy_ahead: int = 10_000_000,
        cache_staged_state_dict: bool = False,
        overwrite: bool = True,
        **more: object,
    ) -> None:
        self.path, self.overwrite = Path(path), overwrite

    def _check(self) -> None:
        if not self.overwrite and shards.is_shards(self.path):
            raise FileError(f"save: {str(self.path)!r} is there already, and overwrite=False")

    def write(self, state: Mapping[str, object]) -> None:
        """See StorageWriter."""
        self._check()
        tree, tensors = serialization.folder_of(state)
        shards.write(self.path, tree, tensors, serialization.save, parents=True)

    def prepared(self, state: Mapping[str, object]) -> Callable[[float], None]:
        """See StorageWriter."""
        self._check()
        tree, tensors = serialization.folder_of(state)
        return background_saves.prepared(self.path, tree, tensors, serialization.save)


class FileSystemReader(StorageReader):
    """Reads what a `FileSystemWriter`, or `flow.save` of global tensors, wrote, on any number of
    ranks.

    >>> from flowvm.distributed.checkpoint import FileSystemReader
    >>> FileSystemReader("step_100").path.name
    'step_100'
    """

    def __init__(self, path: str | os.PathLike[str], **more: object) -> None:
        self.path = Path(path)
        self._index: dict[str, Any] = {}

    def read_metadata(self) -> Metadata:
        """See StorageReader; FileError if nothing was saved there."""
        if not shards.is_shards(self.path):
            raise FileError(f"load: there is no checkpoint in {str(self.path)!r}")
        tree, self._index = shards.contents(self.path)
        known = {
            name: TensorStorageMetadata(name, tuple(about["shape"]), dtype_named(about["dtype"]))
            for name, about in self._index.items()
        }
        structure = serialization.structure_of(tree, known, repr(str(self.path)))
        return Metadata(dict(leaves(structure)))

    def read(self, metas: dict[str, TensorMeta]) -> dict[str, Tensor]:
        """See StorageReader."""
        return shards.gathered(self.path, self._index, metas, serialization.load)


# not public
def leaves(value: object, path: str = "") -> list[tuple[str, Any]]:
    """Yield (path, value) of all entries in nested dicts, lists and tuples."""
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = dict(enumerate(value)).items()
    else:
        return [(path, value)]
    return [leaf for k, v in items for leaf in leaves(v, joined(path, k))]


# not public
def joined(path: str, key: object) -> str:
    """Return the path of the entry `key` below `path`."""
    return f"{path}.{key}" if path else str(key)
