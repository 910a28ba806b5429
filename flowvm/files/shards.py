"""Global tensors in a folder: each rank writes its parts, and any number of ranks reads them.

    index.json                      the saved object's structure; of each tensor its shape, dtype,
                                    and which file has which part
    <token>-00000.safetensors       the parts that rank 0 wrote, and the local tensors it had
    <token>-00001.safetensors       ...

The first rank that has a part writes it; summands are added first.  Files have unique names, and
the index is moved into place when all of them exist.  Then the old index's files are removed.  So a
reader finds the whole old object or the whole new one, whenever writing ends.  All ranks save
together, and load together; an error on one is an error on all.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.eager.values import adopt_array, memory_of
from flowvm.errors import ArgumentError, CommunicationError, FileError
from flowvm.files.bounds import check_shape
from flowvm.files.printable import cropped
from flowvm.files.schema import (
    integer,
    mapping,
    one_of,
    options,
    read_json,
    record,
    row,
    several,
    text,
)
from flowvm.files.writer import put
from flowvm.meta.dtype import ALL_DTYPES, DType, dtype_named, int64
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import TensorMeta
from flowvm.meta.placements import (
    BROADCAST,
    Sbps,
    as_sbps,
    part,
    partial_sum,
    placed_device,
    placement,
    places,
    rank_and_size,
    sbp,
    split,
)
from flowvm.meta.placements import broadcast as whole
from flowvm.ops.collectives.collectives import all_reduce, broadcast
from flowvm.ops.placed.boxing import boxed, global_of, hollow, part_of
from flowvm.ops.shapes.create import tensor

INDEX = "index.json"
FORMAT = "flowvm shards 1"
Bounds = list[list[int]]


def is_sharded(tensors: dict[str, Tensor]) -> bool:
    """Return True if some of the tensors are global."""
    return any(isinstance(t._meta, GlobalMeta) for t in tensors.values())


def is_shards(folder: Path) -> bool:
    """Return True if a folder has an index of shards."""
    return (folder / INDEX).is_file()


# --- writing --------------------------------------------------------------------------------------


def write(
    folder: Path,
    tree: object,
    tensors: dict[str, Tensor],
    save: Callable[[object, Path], None],
    parents: bool = False,
) -> None:
    """Write `tensors`, with the structure `tree` that names them; `save` writes a dict of local
    ones to a file.  With `parents`, folders around this one are made, too.
    """
    rank = rank_and_size()[0]
    token = agreed_token(folder, parents)
    mine, described = parts(tensors, partial(file_name, token))

    def own() -> None:
        if mine:
            save(mine, folder / file_name(token, rank))

    def index() -> None:
        if rank == 0:
            publish(folder, {"format": FORMAT, "tree": tree, "tensors": described})

    together(f"flow.save: {str(folder)!r}", own)
    together(f"flow.save: {str(folder)!r}", index)


def agreed_token(folder: Path, parents: bool = False) -> str:
    """Begin a save; all ranks do so together.  The first one makes the folder.  Return a name for
    this save's files, the first rank's choice.

    ArgumentError where there is a file.  FileError on a rank that does not see what the first one
    writes there: ranks of several hosts need a common file system.
    """
    rank, ranks = rank_and_size()
    what, number, error = f"flow.save: {str(folder)!r}", -1, None
    if rank == 0:
        try:
            _make_folder(folder, parents)
            number = secrets.randbits(62)
            if ranks > 1:
                (folder / mark_name(f"{number:016x}", 0)).touch()
        except Exception as raised:
            number, error = -1, raised
    number = int(broadcast(tensor(number, dtype=int64), 0).item())
    if error is not None:
        raise error
    if number < 0:
        raise CommunicationError(f"{what}: rank 0 raised an error, see there")
    token = f"{number:016x}"
    mark = folder / mark_name(token, 0)

    def look() -> None:
        if ranks > 1 and not mark.exists():
            raise FileError(
                f"{what}: rank {rank} does not see what rank 0 writes there: ranks of several "
                f"hosts save into a folder on a file system that all of them have"
            )

    try:
        together(what, look)
    finally:
        if rank == 0:
            mark.unlink(missing_ok=True)
    return token


def _make_folder(folder: Path, parents: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(
            f"flow.save: global tensors go into a folder, and {str(folder)!r} is a file"
        )
    folder.mkdir(parents=parents, exist_ok=True)


def mark_name(token: str, rank: int) -> str:
    """Return the name of a rank's mark in one save."""
    return f".{token}-{rank:05}.done"


def file_name(token: str, rank: int) -> str:
    """Return the name of a rank's file in one save."""
    return f"{token}-{rank:05}.safetensors"


def parts(
    tensors: dict[str, Tensor], file_of: Callable[[int], str]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors that this rank writes, and the index; `file_of` names a rank's file."""
    rank, mine, index = rank_and_size()[0], {}, {}
    for name, t in tensors.items():
        meta: TensorMeta = t._meta
        about: dict[str, object] = {"shape": [*meta.shape], "dtype": meta.dtype.name}
        if not isinstance(meta, GlobalMeta):
            if rank == 0:
                mine[name] = t
            bounds = [[0, d] for d in meta.shape]
            index[name] = {**about, "parts": [{"file": file_of(0), "bounds": bounds}]}
            continue
        about["sbp"] = [s.dim for s in meta.sbp]
        held = tuple(whole if s is partial_sum else s for s in meta.sbp)
        t = boxed(t.detach(), held)
        listed = []
        for place, owner in zip(places(meta.placement), meta.placement.flat, strict=True):
            copies = any(k and s is whole for k, s in zip(place, held, strict=True))
            cut = [[*pair] for pair in part(meta.shape, meta.placement, held, place)]
            if copies or any(low == high for low, high in cut):
                continue
            listed.append({"file": file_of(owner), "bounds": cut})
            if owner == rank:
                mine[name] = part_of(t)
        index[name] = {**about, "parts": listed}
    return mine, index


def publish(folder: Path, index: dict[str, Any]) -> None:
    """Put the index in its place, and remove the files that it does not name."""
    put(folder / INDEX, json.dumps(index, separators=(",", ":")), "flow.save", synced=True)
    named = _files_of(index["tensors"])
    for other in folder.glob("*-*.safetensors"):
        if other.name not in named:
            other.unlink(missing_ok=True)


def named_files(folder: Path) -> set[str]:
    """Return the names of the files that a folder's index names; FileError if it is no index."""
    return _files_of(_index(folder)[1])


def _files_of(tensors: dict[str, Any]) -> set[str]:
    return {p["file"] for about in tensors.values() for p in about.get("parts", ())}


def whole_of(t: Tensor) -> Tensor:
    """Return the whole of a global tensor as a local one, on each of its ranks; return a local one
    itself.
    """
    meta: TensorMeta = t._meta
    if not isinstance(meta, GlobalMeta):
        return t
    return part_of(boxed(t.detach(), (whole,) * len(meta.sbp)))


def together(what: str, act: Callable[[], object]) -> Any:
    """Call a function on every rank; an error on one of them is an error on all."""
    error: BaseException | None = None
    result = None
    try:
        result = act()
    except Exception as raised:
        error = raised
    failed = all_reduce(
        tensor(-1 if error is None else rank_and_size()[0], dtype=int64), "max"
    ).item()
    if error is not None:
        raise error
    if failed >= 0:
        raise CommunicationError(f"{what}: rank {failed} raised an error, see there")
    return result


# --- reading --------------------------------------------------------------------------------------

MOST_PARTS = 1 << 12  # of a tensor
_SIZE = integer(0, 1 << 48)
_PARTS = several(
    record(file=text(200, "[^/.][^/]*"), bounds=several(row(_SIZE, _SIZE), 64)), MOST_PARTS
)
_SHAPE = several(_SIZE, 64)
_DTYPE = one_of(*(d.name for d in ALL_DTYPES))
_TENSORS = mapping(
    options(dtype=_DTYPE, shape=_SHAPE, parts=_PARTS, sbp=several(integer(-2, 63), 64))
)


def read(
    folder: Path, where: placement | None, held: object, load: Callable[[Path], dict[str, Tensor]]
) -> tuple[Any, dict[str, Tensor]]:
    """The structure and the tensors of a folder.  What was saved global is global again: on
    `where`, by default all ranks, held as `held` says, by default as it was; or local, in a world
    of one rank that says no placement.
    """
    tree, index = contents(folder)
    loaded = together(
        f"flow.load: {str(folder)!r}", lambda: _read(folder, index, where, held, load)
    )
    return tree, loaded


def _read(
    folder: Path,
    index: dict[str, Any],
    where: placement | None,
    held: object,
    load: Callable[..., Any],
) -> dict[str, Tensor]:
    local = where is None and rank_and_size()[1] == 1
    metas: dict[str, TensorMeta] = {}
    for name, about in index.items():
        meta: TensorMeta = TensorMeta.of(tuple(about["shape"]), dtype_named(about["dtype"]))
        if "sbp" in about and not local:
            meta = _global_meta(name, meta, about["sbp"], where, held)
        metas[name] = meta
    return gathered(folder, index, metas, load)


def contents(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The structure of a folder, and of each tensor its "shape", "dtype", "parts" and "sbp", which
    fit each other and the files.
    """
    tree, index = _index(folder)
    sizes: dict[str, int] = {}
    for name, about in index.items():
        what = f"flow.load: {str(folder / INDEX)!r}: tensor {cropped(name)!r}"
        check_parts(folder, what, about, sizes)
    return tree, index


def _index(folder: Path) -> tuple[object, dict[str, Any]]:
    """The structure and the tensors of a folder's index, which has the form of one."""
    what = f"flow.load: {str(folder / INDEX)!r}"
    index = read_json((folder / INDEX).read_bytes(), what, finite=False)
    if not isinstance(index, dict) or index.get("format") != FORMAT or "tree" not in index:
        raise FileError(f"{what} is not an index of format {FORMAT!r}, which this flowvm reads")
    tensors = index.get("tensors")
    _TENSORS(tensors, f"{what}: tensors")
    assert tensors is not None
    return index["tree"], tensors


def check_parts(folder: Path, what: str, about: dict[str, Any], sizes: dict[str, int]) -> None:
    """FileError unless a tensor's parts fill its shape, each place once, and the folder's files,
    whose bytes `sizes` collects, can have them.
    """

    def refusal(why: str) -> FileError:
        return FileError(f"{what} {why}: a file of the folder is damaged or missing")

    if not {"dtype", "shape", "parts"} <= about.keys():
        raise refusal("has no shape, dtype or parts")
    shape, parts = about["shape"], about["parts"]
    nbytes = check_shape(shape, dtype_named(about["dtype"]).itemsize, refusal)
    for one in parts:
        bounds, name = one["bounds"], one["file"]
        if len(bounds) != len(shape) or not all(
            low <= high <= d for (low, high), d in zip(bounds, shape, strict=True)
        ):
            raise refusal("has a part that lies outside of it")
        if name not in sizes:
            path = folder / name
            if not path.is_file():
                raise refusal(f"has a part in the file {cropped(name)!r}, which is missing,")
            sizes[name] = path.stat().st_size
    boxes = np.array([one["bounds"] for one in parts], np.int64).reshape(len(parts), len(shape), 2)
    filled = sum(math.prod(high - low for low, high in one["bounds"]) for one in parts)
    if filled != math.prod(shape):
        raise refusal("has parts that leave gaps")
    low, high = boxes[:, :, 0], boxes[:, :, 1]
    for k in range(len(parts) - 1):
        if nbytes and ((low[k + 1 :] < high[k]) & (low[k] < high[k + 1 :])).all(1).any():
            raise refusal("has parts that overlap")
    if nbytes > sum(sizes[name] for name in {one["file"] for one in parts}):
        raise refusal(f"of {nbytes} bytes is larger than its files")


def gathered(
    folder: Path,
    index: dict[str, Any],
    metas: dict[str, TensorMeta],
    load: Callable[[Path], dict[str, Tensor]],
) -> dict[str, Tensor]:
    """Tensors of `metas`, by names in `index`, which has their "parts", put together of the files
    that have something of them; of global ones what this rank holds.
    """
    targets = {name: _Wanted(meta, index[name]["parts"]) for name, meta in metas.items()}
    files = sorted({p["file"] for w in targets.values() for p in w.parts if w.meets(p["bounds"])})
    for name in files:
        values = load(folder / name)
        for key, w in targets.items():
            for p in w.parts:
                if p["file"] == name and w.meets(p["bounds"]):
                    w.take(key, values, p["bounds"])
    return {name: w.tensor() for name, w in targets.items()}


def _global_meta(
    name: str, meta: TensorMeta, dims: Any, where: placement | None, held: object
) -> GlobalMeta:
    where = placement.all("cpu") if where is None else where
    chosen = held(name) if callable(held) and not isinstance(held, sbp) else held
    chosen = chosen.get(name) if isinstance(chosen, dict) else chosen
    if chosen is None:
        same = len(dims) == len(where.shape) and all(type(d) is int for d in dims)
        chosen = tuple(split(d) if d >= 0 else whole for d in dims) if same else None
    sbps: Sbps = (
        (whole,) * len(where.shape) if chosen is None else as_sbps(chosen, where, meta.ndim)
    )
    if any(s.dim < BROADCAST for s in sbps):
        raise ArgumentError(f"flow.load: {name!r} is read as split or broadcast, not {sbps}")
    return GlobalMeta.make(meta.shape, meta.dtype, placed_device(where), sbps)


class _Wanted:
    """A tensor, or this rank's part of it, while it is put together."""

    def __init__(self, meta: TensorMeta, parts: list[dict[str, Any]]) -> None:
        self.meta, self.parts = meta, parts
        self.bounds = [[0, d] for d in meta.shape]
        self.is_inside = True
        if isinstance(meta, GlobalMeta):
            self.bounds = [[*pair] for pair in meta.bounds]
            self.is_inside = meta.inside
        shape = [high - low for low, high in self.bounds]
        self.array = np.empty(shape, meta.dtype.storage) if self.is_inside else None
        self.missing = 0 if self.array is None else self.array.size

    def meets(self, bounds: Bounds) -> bool:
        """Return True if a part overlaps the wanted region."""
        return self.missing > 0 and all(
            max(a, c) < min(b, d) for (a, b), (c, d) in zip(bounds, self.bounds, strict=True)
        )

    def take(self, name: str, values: dict[str, Tensor], bounds: Bounds) -> None:
        """Copy the overlap with a part, whose values are among these."""
        source = values.get(name)
        if source is None or [*source.shape] != [high - low for low, high in bounds]:
            raise FileError(f"flow.load: no file has the part {bounds} of {cropped(name)!r}")
        if source.dtype is not self.meta.dtype:
            raise FileError(f"flow.load: a file has {source.dtype.name} for {cropped(name)!r}")
        pairs = list(zip(bounds, self.bounds, strict=True))
        to = tuple(slice(max(a, c) - c, min(b, d) - c) for (a, b), (c, d) in pairs)
        of = tuple(slice(max(a, c) - a, min(b, d) - a) for (a, b), (c, d) in pairs)
        assert self.array is not None
        part = memory_of(source)[of]
        self.array[to] = part
        self.missing -= part.size

    def tensor(self) -> Tensor:
        """Return the tensor, when all parts were copied."""
        if self.array is None:
            return hollow(self.meta)  # type: ignore[arg-type]
        if self.missing:
            raise FileError(f"flow.load: {self.missing} elements of a tensor are in no file")
        kind: DType = self.meta.dtype
        local: Tensor = adopt_array(self.array, dtype=kind)
        return global_of(local, self.meta) if isinstance(self.meta, GlobalMeta) else local
