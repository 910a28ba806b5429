"""Checkpoints as folders of safetensors files that Hugging Face's libraries read.  They have whole
tensors with an index, or each rank's parts, whose metadata says where they begin.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flowvm import serialization
from flowvm.distributed.checkpoint.storage import (
    Metadata,
    StorageReader,
    StorageWriter,
    TensorStorageMetadata,
    leaves,
)
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, FileError
from flowvm.files import shards
from flowvm.files.printable import cropped
from flowvm.files.schema import integer, mapping, options, read_json, several
from flowvm.files.writer import put
from flowvm.loading.listing import listing
from flowvm.meta import dtype as dtypes
from flowvm.meta.dtype import DType
from flowvm.meta.meta import TensorMeta
from flowvm.ranks.world import rank

__all__ = ["HuggingFaceStorageReader", "HuggingFaceStorageWriter"]
__dir__ = listing(globals())

INDEX = "model.safetensors.index.json"
_SHARDING = "DCP_SHARDING_INFO"  # in a file's metadata: where its parts begin
_OFFSETS = "saved_offsets"
_BEGINS = mapping(options(saved_offsets=several(integer(0, 1 << 48), 64)))
_FOLDER = "sharded"  # of parts, beside consolidated files
_NAMES: dict[str, DType] = {
    "BOOL": dtypes.bool_, "U8": dtypes.uint8, "I8": dtypes.int8, "I16": dtypes.int16,
    "I32": dtypes.int32, "I64": dtypes.int64, "F16": dtypes.float16, "BF16": dtypes.bfloat16,
    "F32": dtypes.float32, "F64": dtypes.float64, "C64": dtypes.complex64, "U16": dtypes.uint16,
    "U32": dtypes.uint32, "U64": dtypes.uint64,
}  # fmt: skip


def file_name(index: int, count: int, shard: int | None = None) -> str:
    """Return the name of file `index` of `count`.  A rank's file of parts has the number `shard`,
    from 1.
    """
    name = f"model-{index:05}-of-{count:05}.safetensors"
    return name if shard is None else f"shard-{shard:05}-{name}"


def put_whole(folder: Path, tensors: Mapping[str, Tensor], places: Mapping[str, int]) -> None:
    """Write local tensors into files, by the numbers in `places`, from 1, and their index."""
    count, total = max(places.values(), default=1), 0
    weights: dict[str, str] = {}
    for index in sorted(set(places.values())):
        own = {name: t for name, t in tensors.items() if places[name] == index}
        target = folder / file_name(index, count)
        put(target, serialization.as_safetensors(own, {"format": "pt"}), "save")
        total += sum(t.nbytes for t in own.values())
        weights.update(dict.fromkeys(own, target.name))
    contents = {"metadata": {"total_size": total}, "weight_map": weights}
    put(folder / INDEX, json.dumps(contents, indent=2), "save")


# public: distributed.checkpoint
class HuggingFaceStorageWriter(StorageWriter):
    """Writes a dict of tensors as safetensors files that Hugging Face's libraries read.

    path                   the folder, made if it is not there
    fqn_to_index_mapping   in which file each tensor goes, numbers from 1; all in one by default
    save_distributed       each rank writes its parts, into files of its own; else the first rank
                           writes whole tensors
    enable_consolidation   with `save_distributed`: the parts go into the folder "sharded", and the
                           first rank makes whole tensors of them

    Numbers of threads are taken.  ArgumentTypeError for what is no tensor.

    >>> import os, tempfile
    >>> import flowvm.distributed.checkpoint as dcp
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dcp.save({"w": flow.ones(2)}, storage_writer=dcp.HuggingFaceStorageWriter(folder))
    ...     sorted(os.listdir(folder))
    ['model-00001-of-00001.safetensors', 'model.safetensors.index.json']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fqn_to_index_mapping: dict[str, int] | None = None,
        thread_count: int = 1,
        save_distributed: bool = False,
        enable_consolidation: bool = False,
        thread_count_consolidation: int = 1,
    ) -> None:
        self.path = Path(path)
        self.mapping = fqn_to_index_mapping
        self.save_distributed = save_distributed
        self.enable_consolidation = enable_consolidation

    def write(self, state: Mapping[str, object]) -> None:
        """See StorageWriter."""
        self._save_job(state)()

    def prepared(self, state: Mapping[str, object]) -> Callable[[float], None]:
        """ArgumentError: `async_save` writes flowvm's own folders."""
        raise ArgumentError("async_save: a HuggingFaceStorageWriter writes while save waits")

    def _save_job(self, state: Mapping[str, object]) -> Callable[[], None]:
        tensors = dict(leaves(state))
        for name, t in tensors.items():
            if not isinstance(t, Tensor):
                kind = type(t).__name__
                raise ArgumentTypeError(
                    f"HuggingFaceStorageWriter: {name!r} is a {kind}, no tensor"
                )
        places = dict.fromkeys(tensors, 1) if self.mapping is None else self.mapping
        if without := [name for name in tensors if name not in places]:
            raise ArgumentError(f"fqn_to_index_mapping: it has no {', '.join(without[:5])}")
        places = {name: places[name] for name in tensors}
        what = f"save: {str(self.path)!r}"
        if not self.save_distributed:
            whole = {n: shards.whole_of(t) for n, t in tensors.items()}
            return partial(shards.together, what, partial(self._whole, whole, places))
        own = partial(file_name, 1, max(places.values(), default=1))
        mine, index = shards.parts(tensors, lambda owner: own(owner + 1))
        return partial(self._parts, what, mine, index, places)

    def _whole(self, tensors: dict[str, Tensor], places: dict[str, int]) -> None:
        if rank() == 0:
            self.path.mkdir(parents=True, exist_ok=True)
            put_whole(self.path, tensors, places)

    def _parts(
        self, what: str, mine: dict[str, Tensor], described: Any, places: dict[str, int]
    ) -> None:
        folder = self.path / _FOLDER if self.enable_consolidation else self.path
        count = max(places.values(), default=1)

        def write() -> None:
            folder.mkdir(parents=True, exist_ok=True)
            name = file_name(1, count, rank() + 1)
            for index in sorted({places[n] for n in mine}):
                own = {n: t for n, t in mine.items() if places[n] == index}
                begin = {
                    n: {_OFFSETS: [low for low, _ in part["bounds"]]}
                    for n in own for part in described[n]["parts"] if part["file"] == name
                }  # fmt: skip
                metadata = {"format": "pt", _SHARDING: json.dumps(begin), "DCP_VERSION": "1.0"}
                target = folder / file_name(index, count, rank() + 1)
                put(target, serialization.as_safetensors(own, metadata), "save")

        def join() -> None:
            if self.enable_consolidation and rank() == 0:
                consolidate(folder, self.path, places)

        shards.together(what, write)
        shards.together(what, join)


# public: distributed.checkpoint
class HuggingFaceStorageReader(StorageReader):
    """Reads safetensors files of a folder, whole tensors or parts of them.  `thread_count` is
    taken.

    >>> from flowvm.distributed.checkpoint import HuggingFaceStorageReader
    >>> HuggingFaceStorageReader("bert").path.name
    'bert'
    """

    def __init__(self, path: str | os.PathLike[str], thread_count: int = 1) -> None:
        self.path = Path(path)
        self._index: dict[str, Any] = {}

    def read_metadata(self) -> Metadata:
        """See StorageReader; FileError if there are no such files, or parts are missing."""
        files = sorted(self.path.glob("*.safetensors"))
        if not files:
            raise FileError(f"load: there are no safetensors files in {str(self.path)!r}")
        index: dict[str, Any] = {}
        for path in files:
            header = serialization.header_of(path)
            metadata = header.pop("__metadata__", {})
            what = f"load: the metadata of {str(path)!r}"
            begins = read_json(metadata.get(_SHARDING, "{}"), what)
            _BEGINS(begins, what)
            for name, entry in header.items():
                if entry["dtype"] not in _NAMES:
                    raise FileError(f"load: {name!r} in {str(path)!r} has dtype {entry['dtype']}")
                begin = begins.get(name, {}).get(_OFFSETS, [0] * len(entry["shape"]))
                if len(begin) != len(entry["shape"]):
                    raise FileError(
                        f"{what} says other dimensions of {cropped(name)!r} than it has"
                    )
                bounds = [[b, b + n] for b, n in zip(begin, entry["shape"], strict=True)]
                about = index.setdefault(name, {"dtype": _NAMES[entry["dtype"]], "parts": []})
                about["parts"].append({"file": path.name, "bounds": bounds})
        sizes: dict[str, int] = {}
        for name, about in index.items():
            what = f"load: tensor {cropped(name)!r} of {str(self.path)!r}"
            if len({len(p["bounds"]) for p in about["parts"]}) != 1:
                raise FileError(f"{what} has parts of other dimensions: a file is damaged")
            about["shape"] = tuple(
                max(high for _, high in along)
                for along in zip(*(p["bounds"] for p in about["parts"]), strict=True)
            )
            shards.check_parts(self.path, what, {**about, "dtype": about["dtype"].name}, sizes)
        self._index = index
        return Metadata(
            {n: TensorStorageMetadata(n, a["shape"], a["dtype"]) for n, a in index.items()}
        )

    def read(self, metas: dict[str, TensorMeta]) -> dict[str, Tensor]:
        """See StorageReader."""
        return shards.gathered(self.path, self._index, metas, serialization.load)


def consolidate(folder: Path, output: Path, places: Mapping[str, int]) -> None:
    """Make files of whole tensors of a folder of parts."""
    reader = HuggingFaceStorageReader(folder)
    known = reader.read_metadata().state_dict_metadata
    if without := [name for name in places if name not in known]:
        raise ArgumentError(f"{str(folder)!r} has no {', '.join(without[:5])}")
    metas = {n: TensorMeta.of(known[n].size, known[n].dtype) for n in places}
    put_whole(output, reader.read(metas), places)
