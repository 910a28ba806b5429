"""save and load: nested dicts and lists of tensors and plain values, as one safetensors file.

The file holds each tensor under its path ("optim.state.0.exp_avg"), so any reader of safetensors
sees the tensors of a state dict by their names. The structure, with everything that is no tensor,
is JSON in the file's metadata. Nothing is pickled, so loading a file never runs code. A tensor that
occurs twice is stored once and is one tensor again after loading. Tensors that share a storage
share one again: the storage is stored once, up to the last byte that one of them has, and the
structure says where in it each lies. A file of many such views is smaller if they are cloned first.
Files are written by `flowvm.files.writer`: a crash leaves either the old file or the new.

In the JSON a dict or list that JSON has is itself; what it has not is a one-entry dict:

    {"$tensor": name}  {"$tuple": [...]}  {"$dtype": name}
    {"$dict": [[key, value], ...]}  where not every key is a string, or one begins with $

    {"$array": name}  {"$bytes": base64}  {"$complex": [re, im]}  {"$set": [...]}
    {"$class": [name, {field: value}]}    a dataclass, which is built again if `add_safe_globals`
                                          named its class

safetensors has no complex128: such a tensor is stored as its real and imaginary parts, float64 with
one more dimension, and its name is in the structure's list "pairs".  It has no strides either:
"strides" has those of tensors whose dimensions lie in another order.  Of tensors that share a
storage, one that fills it is stored under its name, or else the storage is, as bytes; the others
are in "views": {name: [stored name, dtype, offset in bytes, shape, strides]}.  "grads" has the
names of tensors that require gradients.  With any of these a file has structure version 2, else 1.

What is read is not trusted: the header's sizes and offsets are those of the file or it is refused,
and the JSON has no key twice and no depth without end; `flowvm.files.bounds` has the bounds on
keys.  PyTorch's files are read by
`flowvm.files.pickles`, which runs nothing of them; OneFlow's folders of variables here.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.modes import recording
from flowvm.eager.tensor import Tensor, alias, new_tensor
from flowvm.eager.values import adopt_array, memory_of
from flowvm.errors import ArgumentError, ArgumentTypeError, FileError, FlowError
from flowvm.files.bounds import Bounds, check_shape, check_tree
from flowvm.files.pickles import MOST_REPEATED, MOST_TIMES, read_legacy, read_zip
from flowvm.files.printable import cropped
from flowvm.files.schema import (
    check_depth,
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
from flowvm.files.shards import is_sharded, is_shards, read, together, write
from flowvm.files.writer import put
from flowvm.guards.regions import reverting
from flowvm.loading.lazy import lazy
from flowvm.loading.listing import listing
from flowvm.meta.arrays import Array
from flowvm.meta.device import Device, as_device, cpu
from flowvm.meta.device import meta as nowhere
from flowvm.meta.dtype import (
    ALL_DTYPES,
    DType,
    bfloat16,
    complex128,
    dtype_named,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float8_e8m0fnu,
    float64,
    uint8,
)
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import TensorMeta, dense_stride
from flowvm.meta.placements import broadcast as whole
from flowvm.meta.placements import placement as placement_of
from flowvm.meta.placements import rank_and_size
from flowvm.ops.collectives.texts import broadcast_bytes
from flowvm.utils._pytree import tree_map
from flowvm.vm.machine.words import OPERAND

if TYPE_CHECKING:
    from flowvm.meta.placements import placement
    from flowvm.ops.sparse import conversion as sparse_conversion
    from flowvm.ops.sparse.tensor import SparseTensor
else:
    sparse_conversion = lazy("flowvm.ops.sparse.conversion")

__all__ = ["add_safe_globals", "clear_safe_globals", "get_safe_globals", "load", "save"]
__dir__ = listing(globals())

_KEY = "flowvm"  # where in the metadata the structure is
_VERSION, _VERSION_OF_SHARED = 1, 2
DEFAULT_PROTOCOL = 2  # of pickles, as in PyTorch; files written here are none
_PLAIN = (str, int, float, bool, type(None))
gathers_alone = [False]  # whether `save` refuses global tensors without a rank, as OneFlow's does


# public: flow (late)
def save(
    obj: Any,
    f: str | os.PathLike[str] | IO[bytes],
    pickle_module: object = None,
    pickle_protocol: object = None,
    _use_new_zipfile_serialization: bool = True,
    *,
    global_dst_rank: int | None = None,
) -> None:
    """Write tensors, arrays, plain values, and dicts, lists, tuples, sets and dataclasses of them
    to a path or a binary file.  PyTorch's arguments about pickles are taken: there is none.

    Tensors that share a storage share one when they are loaded; it is saved once, so a small view
    saved beside another one of a large tensor brings all of that: save its `.clone()`.  A file that
    is there is replaced in one step and keeps its permissions; a link stays one; a device, a pipe
    or a socket is written to.

    Where some tensors are global, all ranks save together, into a folder: `flowvm.files.shards`.
    With `global_dst_rank` all ranks call, and that one gathers global tensors and writes one file.
    Of an nn.Graph the compiled Plans are written, as `Graph.save` does; `Graph.load` takes them.

    >>> import io
    >>> model, file = nn.Linear(2, 1), io.BytesIO()  # or a path: "model.safetensors"
    >>> flow.save({"model": model.state_dict(), "epoch": 3}, file)
    >>> _ = file.seek(0)
    >>> flow.load(file)["epoch"]
    3
    """
    if hasattr(type(obj), "runtime_state_dict"):  # an nn.Graph
        obj = obj.runtime_state_dict()
    if global_dst_rank is not None:
        _save_gathered(obj, f, global_dst_rank)
        return
    tensors, metadata = _flatten(obj)
    if is_sharded(tensors):
        if gathers_alone[0]:
            raise ArgumentError("flow.save: global tensors need global_dst_rank=")
        _save_shards(f, tensors, metadata[_KEY])
        return
    put(f, as_safetensors(tensors, metadata), "flow.save")


def as_safetensors(tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> bytes:
    """Return a safetensors file of these tensors, with these texts as metadata."""
    from safetensors.numpy import save as to_bytes

    data = to_bytes({name: _array(t) for name, t in tensors.items()}, metadata)
    return _relabelled(data, {n: _WORDS[t.dtype] for n, t in tensors.items() if t.dtype in _WORDS})


def header_of(path: Path) -> dict[str, Any]:
    """Return the header of a safetensors file: the dtype and shape of each tensor."""
    size, where = path.stat().st_size, repr(os.fspath(path))
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise FileError(f"flow.load: {where} is not a safetensors file, or is cut short")
        header = read_json(file.read(length), f"flow.load: the header of {where}")
    if not isinstance(header, dict):
        raise FileError(f"flow.load: {where} is not a safetensors file")
    _check_header(header, size - 8 - length, where)
    return header


def folder_of(obj: object) -> tuple[Any, dict[str, Tensor]]:
    """Return the structure of an object and its tensors by name, for a folder of shards.  The
    tensors may be global or not.
    """
    tensors, metadata = _flatten(obj, apart=True)
    return json.loads(metadata[_KEY]), tensors


def structure_of(structure: object, tensors: Mapping[str, Any], where: str) -> Any:
    """Return the object of a structure, with the values of `tensors` in the places of tensors and
    arrays.
    """
    if not isinstance(structure, dict) or "tree" not in structure:
        raise FileError(f"load: {where} is damaged: its structure has no tree")
    return _Named(dict(tensors), where).read(structure["tree"])


def _save_shards(f: object, tensors: dict[str, Tensor], structure: str) -> None:
    if not isinstance(f, (str, os.PathLike)):
        raise ArgumentTypeError("flow.save: global tensors go into a folder, so a path is needed")
    write(Path(f), json.loads(structure), tensors, save)


def _rank(what: str, name: str, rank: object) -> int:
    size = rank_and_size()[1]
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < size:
        raise ArgumentError(f"{what}: {name} is a rank from 0 to {size - 1}, got {rank!r}")
    return rank


def _save_gathered(obj: object, f: Any, rank: int) -> None:
    """Write one file on `rank`, which gets the whole of each global tensor; all ranks call it."""
    own = rank_and_size()[0] == _rank("flow.save", "global_dst_rank", rank)

    def gathered(value: object) -> object:
        if not isinstance(value, Tensor) or not isinstance(value._meta, GlobalMeta):
            return value
        where = placement_of(value._meta.placement.type, [rank])
        with recording(False):
            return value.detach().to_global(where, whole).to_local()

    plain = tree_map(gathered, obj)
    together("flow.save", lambda: save(plain, f) if own else None)


def _on_placement(value: object, where: object) -> Any:
    """Tensors that all ranks of a placement have."""
    return tree_map(lambda v: v.to_global(where, whole) if isinstance(v, Tensor) else v, value)


def _load_from(rank: int, f: Any, device: Device) -> Any:
    """Load a file that `rank` alone reads; tensors are global ones of that rank."""
    own = rank_and_size()[0] == _rank("flow.load", "global_src_rank", rank)

    def data() -> bytes:
        if not own:
            return b""
        if isinstance(f, (str, os.PathLike)) and Path(f).is_dir():
            raise ArgumentError(
                "flow.load: global_src_rank reads a file, and this is a folder, which all ranks "
                "load together: leave global_src_rank out"
            )
        content = Path(f).read_bytes() if isinstance(f, (str, os.PathLike)) else f.read()
        return bytes(content)

    content = broadcast_bytes(together("flow.load", data), rank)
    where = placement_of(device.type, [rank])

    def placed(value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        return value.to_global(where, whole, check_meta=False)

    return tree_map(placed, load(io.BytesIO(content), device))


# public: flow (late)
def load(
    f: str | os.PathLike[str] | IO[bytes],
    map_location: Any = None,
    pickle_module: object = None,
    *,
    placement: placement | None = None,
    sbp: object = None,
    global_src_rank: int | None = None,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    **pickle_load_args: object,
) -> Any:
    """Load a file that save wrote, or any safetensors file as a flat dict of tensors.  Also load
    files of torch.save with tensors, numbers, texts and containers (.pt, .pth, both formats).  A
    folder of variables that OneFlow wrote gives a dict of tensors by name.

    map_location is the device the tensors go to, the CPU by default, or a placement, all of whose
    ranks have them then.  Files do not say where tensors were, so of a dict it is that for "cpu",
    and a function is taken and not called.
    Nothing of a file is run, whatever weights_only says; mmap and arguments about pickles are
    taken.  Tensors that shared a storage share one.  FileError, an ArgumentError, for what is
    damaged, holds something else, or is made to take for ever.

    Of a folder of global tensors, which all ranks load together, whatever number of them wrote it:
    `placement` is where they go, by default all ranks; `sbp` how they are held, one for all, a dict
    by name, or a function of the name, by default as they were.  In a world of one rank, without a
    placement, they come as local tensors.  With `global_src_rank` all ranks call, that one reads
    the file, and tensors are global ones of that rank.

    >>> import io
    >>> file = io.BytesIO()  # or a path
    >>> flow.save({"weight": flow.ones(2), "step": 3}, file)
    >>> _ = file.seek(0)
    >>> flow.load(file)
    {'weight': tensor([1., 1.]), 'step': 3}
    """
    if isinstance(map_location, Mapping):
        map_location = map_location.get("cpu")
    if isinstance(map_location, placement_of):
        return _on_placement(load(f, global_src_rank=global_src_rank), map_location)
    plain = map_location is None or callable(map_location)
    place = cpu if plain else as_device(map_location)
    if global_src_rank is not None:
        return _load_from(global_src_rank, f, place)
    if isinstance(f, (str, bytes, os.PathLike)):
        path = Path(os.fsdecode(f))
        where = repr(str(path))
        if is_shards(path):
            described, tensors = read(path, placement, sbp, load)
            _check_structure(described, where)
            _add_views(tensors, described, where)
            _require_grads(tensors, described, where)
            return _Reader(tensors, where).read(described["tree"])
        if path.is_dir():
            return {name: t.to(place) for name, t in _read_folder(path).items()}
        if path.is_char_device() or path.is_block_device():
            raise FileError(f"flow.load: {where} is a device: copy what it has into a file first")
        data = path.read_bytes()
    else:
        where, data = "the given file", f.read()
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise ArgumentTypeError(
                f"flow.load reads bytes from a path or a binary file, and read() of this "
                f"{type(f).__name__} gave a {type(data).__name__}"
            )
        data = bytes(data)
    if not _has_header(data):
        if data[:2] == b"PK":
            return read_zip(data, where, place)
        if data[:1] == b"\x80":
            return read_legacy(data, where, place)
    header = _header(data, where)
    arrays = _arrays(data, header, where)
    tensors = {
        name: _tensor(array, _UNKNOWN.get(header[name]["dtype"]), place)
        for name, array in arrays.items()
    }
    structure = header.get("__metadata__", {}).get(_KEY)
    if structure is None:
        return tensors
    saved = read_json(structure, f"flow.load: the structure of {where}", finite=False)
    _check_structure(saved, where)
    _join_pairs(tensors, saved.get("pairs", []), where)
    _add_views(tensors, saved, where)
    _require_grads(tensors, saved, where)
    return _Reader(tensors, where, len(structure)).read(saved["tree"])


def _has_header(data: bytes) -> bool:
    """Return True if the data begins with the length of a safetensors header.  A pickle or a zip
    file may begin alike, but has a length beyond any file there.
    """
    return data[8:9] == b"{" and int.from_bytes(data[:8], "little") <= len(data) - 8


# ---- classes of the program's own

_safe: dict[str, object] = {}


def add_safe_globals(safe_globals: Sequence[object]) -> None:
    """Let load build dataclasses of these classes again; without calling their __init__.

    What is no dataclass is noted, as PyTorch's programs add it, and a file that has one is still
    refused.  ArgumentTypeError for what is neither a class nor a function.
    """
    for kind in safe_globals:
        function, name = kind if isinstance(kind, tuple) and len(kind) == 2 else (kind, "")
        if not callable(function):
            raise ArgumentTypeError(f"add_safe_globals takes classes, got {kind!r}")
        _safe[name or _class_name(function)] = function


def get_safe_globals() -> list[Any]:
    """Return the classes passed to add_safe_globals."""
    return list(_safe.values())


def clear_safe_globals() -> None:
    """Forget the classes passed to add_safe_globals."""
    _safe.clear()


def safe_globals(safe_globals: Sequence[object]) -> reverting:
    """Return a with statement inside which `load` knows these classes, as by `add_safe_globals`.

    >>> from flowvm import serialization
    >>> with serialization.safe_globals([int]):
    ...     serialization.get_safe_globals()
    [<class 'int'>]
    """
    return reverting(partial(_put_safe, dict(_safe)), partial(add_safe_globals, safe_globals))


def _put_safe(kinds: Mapping[str, object]) -> None:
    _safe.clear()
    _safe.update(kinds)


def _class_name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


# ---- OneFlow's folders

_ONEFLOW = {
    "kFloat": "float32", "kDouble": "float64", "kFloat16": "float16", "kBFloat16": "bfloat16",
    "kInt8": "int8", "kInt32": "int32", "kInt64": "int64", "kUInt8": "uint8", "kBool": "bool",
}  # fmt: skip
_META = re.compile(r"\s*(?:shape\s*\{((?:\s*dim:\s*\d{1,15})*)\s*\}\s*)?data_type:\s*(\w+)\s*")


def _read_folder(folder: Path) -> dict[str, Tensor]:
    """Return the variables of a folder.  Each is a folder of its own with `meta`, a text, and
    `out`.
    """
    tensors = {}
    for entry in sorted(folder.iterdir()):
        meta, out = entry / "meta", entry / "out"
        if not (meta.is_file() and out.is_file()):
            continue
        match = _META.fullmatch(meta.read_text(errors="replace")[:10000])
        if match is None or match[2] not in _ONEFLOW:
            raise FileError(f"flow.load: {str(meta)!r} describes no tensor")
        shape = tuple(map(int, re.findall(r"\d+", match[1] or "")))
        name, data = _ONEFLOW[match[2]], out.read_bytes()
        dtype = np.dtype("uint16" if name == "bfloat16" else name)
        wrong = f"flow.load: {str(out)!r} is damaged: {len(data)} bytes of shape {shape[:64]}"
        refusal = partial(_refused, wrong)
        if len(shape) > 64 or check_shape(shape, dtype.itemsize, refusal) != len(data):
            raise FileError(wrong)
        array = np.frombuffer(data, dtype).reshape(shape)
        tensors[entry.name] = _tensor(array, bfloat16 if name == "bfloat16" else None, cpu)
    if not tensors:
        raise FileError(f"flow.load: there are no variables in the folder {str(folder)!r}")
    if (folder / "pickled_data").exists():
        raise FileError(
            f"flow.load: {str(folder)!r} has its names in a pickle, which is not read: save each "
            f"tensor's numpy() with OneFlow, or an older folder of variables"
        )
    return tensors


# ---- writing


def _flatten(obj: object, apart: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return (name -> tensor to store, metadata).  `apart`: each tensor is stored under its name,
    even if some share a storage.
    """
    check_tree(obj, lambda why: ArgumentError(f"flow.save: the object {why}"))
    writer = _Writer()
    try:
        tree = writer.tree(obj, "")
    except RecursionError:
        raise ArgumentError(
            "flow.save: the object is nested too deep, or contains itself"
        ) from None
    check_depth(tree, "flow.save: the object", kind=ArgumentError)
    described = {"version": _VERSION, "tree": tree}
    tensors, views, strides = (writer.tensors, {}, {}) if apart else _shared(writer.tensors)
    if views or strides:
        described |= {"version": _VERSION_OF_SHARED, "views": views, "strides": strides}
    if grads := [name for name, t in writer.tensors.items() if t.requires_grad]:
        described |= {"version": _VERSION_OF_SHARED, "grads": grads}
    if pairs := [name for name, t in tensors.items() if t.dtype is complex128]:
        described["pairs"] = pairs
    structure = json.dumps(described, separators=(",", ":"))
    return tensors, {_KEY: structure}


def _shared(
    tensors: dict[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, list[object]], dict[str, list[int]]]:
    """Return (stored tensors, views of them, strides): see the head of the file."""
    users: dict[object, list[str]] = {}
    for name, t in tensors.items():
        users.setdefault(_sharing_key(name, t), []).append(name)
    stored: dict[str, Tensor] = {}
    views = {}
    strides: dict[str, list[int]] = {}
    for names in users.values():
        first = tensors[names[0]]
        if len(names) == 1:
            stored[names[0]] = first
            if _is_permuted(first._meta):
                strides[names[0]] = [*first._meta.stride]
            continue
        size = max(_offset(tensors[n]) + tensors[n]._meta.span for n in names)
        full = [n for n in names if tensors[n]._meta.nbytes == size]
        full = [n for n in full if _offset(tensors[n]) == 0 and tensors[n]._meta.contiguous]
        if isinstance(first._meta, GlobalMeta):
            base = names[0]
            stored[base] = first
        elif full:
            base = full[0]
            stored[base] = tensors[base]
        else:
            base = _free_name(f"{names[0]}.storage", tensors)
            meta = TensorMeta.of((size,), uint8, first._meta.device)
            stored[base] = new_tensor(first._ref & OPERAND.STORAGE_MASK, meta, first.storage())
        for n in names:
            if n != base:
                t = tensors[n]
                shape, stride, offset = t._meta.shape, t._meta.stride, _offset(t)
                if isinstance(t._meta, GlobalMeta):  # all of the base
                    stride, offset = dense_stride(shape), 0
                views[n] = [base, t.dtype.name, offset, [*shape], [*stride]]
    return stored, views, strides


def _sharing_key(name: str, t: Tensor) -> str | tuple[int, GlobalMeta] | int:
    """Return a key that is equal for tensors to be stored together."""
    if t._meta.device is nowhere or t._meta.numel == 0:
        return name
    place = t._ref & OPERAND.STORAGE_MASK
    return (t._ref, t._meta) if isinstance(t._meta, GlobalMeta) else place


def _offset(t: Tensor) -> int:
    """Return the bytes before a tensor's first element, in its storage."""
    return t._ref >> OPERAND.STORAGE_BITS


def _is_permuted(meta: TensorMeta) -> bool:
    """Return True if the elements have no gaps, but the dimensions are in another order than
    C's.
    """
    if meta.contiguous or isinstance(meta, GlobalMeta):
        return False
    pairs = sorted(zip(meta.stride, meta.shape, strict=True), reverse=True)
    wide = [(s, d) for s, d in pairs if d != 1]
    return [s for s, _ in wide] == [*dense_stride([d for _, d in wide])]


def _free_name(name: str, tensors: Mapping[str, Tensor]) -> str:
    free, again = name, 2
    while free in tensors or free == "__metadata__":
        free, again = f"{name}#{again}", again + 1
    return free


def _relabelled(data: bytes, dtypes: Mapping[str, str]) -> bytes:
    """Return the file with other dtypes, of equal sizes, for these tensors. safetensors knows only
    NumPy's dtypes, and gets the bits of other ones.
    """
    if not dtypes:
        return data
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    for name, dtype in dtypes.items():
        header[name]["dtype"] = dtype
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


class _Writer:
    """Turns an object into its JSON tree and collects the tensors on the way."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        self._held: list[Tensor] = []

    def tree(self, obj: object, path: str) -> object:
        if isinstance(obj, Tensor) and hasattr(type(obj), "composed_of"):  # a sparse one
            (layout, shape, coalesced, block), parts = obj.composed_of()
            named = [self._name(part, _join(path, k)) for k, part in enumerate(parts)]
            return {"$sparse": [layout, [*shape], coalesced, block and [*block], named]}
        if isinstance(obj, Tensor):
            return {"$tensor": self._name(obj, path)}
        if isinstance(obj, DType):
            return {"$dtype": obj.name}
        if type(obj) in _PLAIN:
            return obj
        if isinstance(obj, Mapping):
            return self._dict(obj, path)
        if isinstance(obj, (list, tuple)):
            items = [self.tree(item, _join(path, i)) for i, item in enumerate(obj)]
            return items if isinstance(obj, list) else {"$tuple": items}
        if isinstance(obj, np.generic):
            return self.tree(obj.item(), path)
        if isinstance(obj, np.ndarray):
            return {"$array": self._name(_tensor_of(obj, path), path)}
        if isinstance(obj, complex):
            return {"$complex": [obj.real, obj.imag]}
        if isinstance(obj, (bytes, bytearray)):
            return {"$bytes": base64.b64encode(obj).decode()}
        if isinstance(obj, (set, frozenset)):
            return {"$set": [self.tree(item, _join(path, i)) for i, item in enumerate(obj)]}
        if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
            names = [field.name for field in dataclasses.fields(obj)]
            fields = {n: self.tree(getattr(obj, n), _join(path, n)) for n in names}
            return {"$class": [_class_name(type(obj)), fields]}
        raise ArgumentTypeError(
            f"flow.save cannot store a {type(obj).__name__}{f' at {path!r}' if path else ''}; "
            "it stores tensors, arrays, numbers, strings, bytes, booleans and None, and dicts, "
            "lists, tuples, sets and dataclasses of them"
        )

    def _dict(self, obj: Mapping[object, object], path: str) -> object:
        for key in obj:
            if type(key) not in _PLAIN:
                raise ArgumentTypeError(
                    f"flow.save: a dict key must be a string, number, boolean or None, got "
                    f"{key!r}{f' at {path!r}' if path else ''}"
                )
        values = {key: self.tree(value, _join(path, key)) for key, value in obj.items()}
        if all(isinstance(key, str) and not key.startswith("$") for key in obj):
            return values
        return {"$dict": [[key, value] for key, value in values.items()]}

    def _name(self, tensor: Tensor, path: str) -> str:
        self._held.append(tensor)  # an id stays its own
        known = self._names.get(id(tensor))
        if known is not None:
            return known
        name = _free_name(path or "tensor", self.tensors)
        self._names[id(tensor)] = name
        self.tensors[name] = tensor
        return name


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _array(tensor: Tensor) -> Array:
    # safetensors writes the buffer as it lies, so it must be dense (and 0-d arrays stay 0-d).
    array = np.array(memory_of(tensor.detach()), order="C", copy=True)
    return array[..., None].view(np.float64) if tensor.dtype is complex128 else array


def _tensor_of(array: Array, path: str) -> Tensor:
    try:
        tensor: Tensor = adopt_array(np.array(array, order="C"))
    except (TypeError, RuntimeError) as error:
        raise ArgumentTypeError(
            f"flow.save cannot store an array of {array.dtype}{f' at {path!r}' if path else ''}"
        ) from error
    return tensor


# ---- reading


def _header(data: bytes, where: str) -> dict[str, Any]:
    """The JSON header of a safetensors file: 8 bytes of length, then the text."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > len(data) - 8:
        raise FileError(f"flow.load: {where} is not a safetensors file, or is cut short")
    try:
        header = read_json(data[8 : 8 + size], "its header")
    except ArgumentError as error:
        raise FileError(f"flow.load: {where} is not a safetensors file ({error})") from None
    if not isinstance(header, dict):
        raise FileError(f"flow.load: {where} is not a safetensors file")
    _check_header(header, len(data) - 8 - size, where)
    return header


def _refused(what: str, why: str) -> FileError:
    """Return the error of a file, from the text of the reason."""
    return FileError(f"{what}: it {why}")


def _check_header(header: dict[str, Any], size: int, where: str) -> None:
    """Check a header: FileError unless the tensors' bytes fill the file, one after another."""
    metadata = header.get("__metadata__", {})
    texts = metadata.items() if isinstance(metadata, dict) else [(metadata, metadata)]
    if not all(isinstance(key, str) and isinstance(value, str) for key, value in texts):
        raise FileError(f"flow.load: {where} is damaged: its metadata is not a record of texts")
    spans = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        _ENTRY(entry, f"flow.load: {where}: tensor {name!r}")
        (begin, end), dtype = entry["data_offsets"], entry["dtype"]
        nbytes = check_shape(
            entry["shape"],
            _DTYPES.get(dtype, 1),
            partial(_refused, f"flow.load: {where} is damaged"),
        )
        if dtype in _DTYPES and end - begin != nbytes:
            raise FileError(
                f"flow.load: {where} is damaged: tensor {name!r} has {nbytes} bytes, at {begin} to "
                f"{end}"
            )
        spans.append((begin, end))
    at = 0
    for begin, end in sorted(spans):
        if begin != at or end < begin:
            raise FileError(f"flow.load: {where} is damaged: no tensor begins at byte {at}")
        at = end
    if at != size:
        raise FileError(
            f"flow.load: {where} is damaged, or cut short: it has {size} bytes of tensors, and its "
            f"header says {at}"
        )


def _arrays(data: bytes, header: dict[str, Any], where: str) -> dict[str, Array]:
    from safetensors import SafetensorError
    from safetensors.numpy import load as from_bytes

    for name, entry in header.items():
        if name != "__metadata__" and entry.get("dtype") not in _DTYPES:
            raise ArgumentTypeError(
                f"flow.load: tensor {name!r} in {where} has dtype {entry.get('dtype')}, which "
                f"flowvm lacks; it has {sorted(_DTYPES)}. Convert the file first"
            )
    dtypes = {n: e["dtype"] for n, e in header.items() if n != "__metadata__"}
    bits = {n: f"U{8 * _DTYPES[word]}" for n, word in dtypes.items() if word in _UNKNOWN}
    try:
        return dict(from_bytes(_relabelled(data, bits)))
    except SafetensorError as error:
        raise FileError(f"flow.load: {where} is damaged ({error})") from None


_DTYPES = {
    "BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "I32": 4, "I64": 8, "F16": 2, "BF16": 2, "F32": 4,
    "F64": 8, "C64": 8, "U16": 2, "U32": 4, "U64": 8, "F8_E4M3": 1, "F8_E5M2": 1,
    "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "F8_E8M0": 1,
}  # fmt: skip
_UNKNOWN = {  # dtypes that NumPy lacks
    "BF16": bfloat16, "F8_E4M3": float8_e4m3fn, "F8_E5M2": float8_e5m2,
    "F8_E4M3FNUZ": float8_e4m3fnuz, "F8_E5M2FNUZ": float8_e5m2fnuz, "F8_E8M0": float8_e8m0fnu,
}  # fmt: skip
_WORDS = {dtype: word for word, dtype in _UNKNOWN.items()}
_ENTRY = record(
    dtype=text(20),
    shape=several(integer(0, 1 << 48), 64),
    data_offsets=row(integer(0, 1 << 60), integer(0, 1 << 60)),
)


def _tensor(array: Array, dtype: DType | None, device: Device) -> Tensor:
    """Return a copy of a tensor in the file.  `array` has its bits if NumPy lacks its dtype."""
    tensor: Tensor = adopt_array(np.array(array, order="C"), dtype=dtype).to(device)
    return tensor


_SIZES = several(integer(0, 1 << 48), 64)
_SHARED = options(
    views=mapping(
        row(
            text(1 << 16),
            one_of(*(d.name for d in ALL_DTYPES)),
            integer(0, 1 << 48),
            _SIZES,
            _SIZES,
        )
    ),
    strides=mapping(_SIZES),
)


def _check_structure(structure: object, where: str) -> None:
    """Raise FileError unless this flowvm reads such a structure."""
    if (
        not isinstance(structure, dict)
        or not {"version", "tree"} <= structure.keys()
        or (structure.keys() - {"version", "tree", "pairs", "views", "strides", "grads"})
    ):
        raise FileError(f"flow.load: {where} is damaged: its structure has no tree")
    version = structure["version"]
    if type(version) is not int or version not in (_VERSION, _VERSION_OF_SHARED):
        raise FileError(
            f"flow.load: {where} has structure version {cropped(version)}, this flowvm reads "
            f"{_VERSION} and {_VERSION_OF_SHARED}"
        )


def _add_views(tensors: dict[str, Tensor], structure: dict[str, Any], where: str) -> None:
    """Restore the strides of tensors, and add the ones that share a storage with another."""
    shared = {key: structure[key] for key in ("views", "strides") if key in structure}
    _SHARED(shared, f"flow.load: the structure of {where}")

    def refusal(name: str, why: str) -> FileError:
        return FileError(f"flow.load: {where} is damaged: {cropped(name)!r} {why}")

    for name, stride in shared.get("strides", {}).items():
        t = tensors.get(name)
        if t is None or len(stride) != t.ndim:
            raise refusal(name, "has strides and no such tensor")
        meta = TensorMeta.of(t.shape, t.dtype, t.device, tuple(stride))
        if not _is_permuted(meta):
            raise refusal(name, "has strides of no dense tensor")
        view: Any = t.new_empty_strided(tuple(t.shape), tuple(stride))
        tensors[name] = view.copy_(t)
    bases = dict(tensors)
    for name, (base, dtype, offset, shape, stride) in shared.get("views", {}).items():
        held = bases.get(base)
        if held is None or name in tensors or len(shape) != len(stride):
            raise refusal(name, "is a view of no tensor")
        if isinstance(held._meta, GlobalMeta):
            tensors[name] = alias(held, held._meta)
            continue
        kind = dtype_named(dtype)
        check_shape(shape, kind.itemsize, partial(refusal, name))
        last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        end = offset + (last + 1) * kind.itemsize * (0 not in shape)
        if end > held._meta.nbytes or offset % kind.itemsize or not held._meta.contiguous:
            raise refusal(name, "reaches beyond its storage")
        if math.prod(shape) > max(MOST_TIMES * held._meta.nbytes, MOST_REPEATED):
            raise refusal(name, f"has more than {MOST_TIMES} times its storage's elements")
        meta = TensorMeta.of(tuple(shape), kind, held._meta.device, tuple(stride))
        tensors[name] = alias(held, meta, offset)


def _require_grads(tensors: dict[str, Tensor], structure: dict[str, Any], where: str) -> None:
    """Let the tensors require gradients that did when they were saved."""
    names = structure.get("grads", [])
    for name in names if isinstance(names, list) else [None]:
        t = tensors.get(name) if isinstance(name, str) else None
        if t is None or not t.dtype.inexact:
            raise FileError(
                f"flow.load: {where} is damaged: {cropped(name)!r} cannot require gradients"
            )
        t.requires_grad_()


def _join_pairs(tensors: dict[str, Tensor], names: Any, where: str) -> None:
    """Join pairs of parts, as which complex tensors were saved."""
    for name in names if isinstance(names, list) else [names]:
        pairs: Tensor | None = tensors.get(name) if isinstance(name, str) else None
        if pairs is None or pairs.dtype is not float64 or pairs.shape[-1:] != (2,):
            raise FileError(
                f"flow.load: {where} is damaged: {cropped(name)!r} is not an array of pairs"
            )
        tensors[name] = pairs.view_as_complex()


class _Reader:
    """Builds the object that a JSON tree describes."""

    def __init__(self, tensors: dict[str, Tensor], where: str, nbytes: int = 1 << 20) -> None:
        self._tensors = tensors
        self._where = where
        self._bounds = Bounds(lambda why: FileError(f"flow.load: {where} {why}"), nbytes)

    def read(self, tree: object) -> object:
        if isinstance(tree, list):
            return [self.read(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        mark = next(iter(tree), "")
        if len(tree) != 1 or not mark.startswith("$"):
            return {key: self.read(value) for key, value in tree.items()}
        return self._marked(mark, tree[mark])

    def _marked(self, mark: str, value: object) -> object:
        if mark == "$tensor" and isinstance(value, str) and value in self._tensors:
            return self._tensors[value]
        if mark == "$sparse" and isinstance(value, list) and len(value) == 5:
            return self._sparse(*value)
        if mark == "$tuple" and isinstance(value, list):
            return tuple([self.read(item) for item in value])
        if mark == "$dict" and isinstance(value, list) and all(map(_is_item, value)):
            mapping: dict[object, object] = {}
            for key, item in value:
                self._bounds.put(mapping, key, self.read(item))
            return mapping
        if mark == "$dtype" and value in _NAMES:
            return dtype_named(value)
        if mark == "$array" and isinstance(value, str) and value in self._tensors:
            return np.array(self._tensors[value].numpy())
        if mark == "$complex" and isinstance(value, list) and [*map(type, value)] == [float] * 2:
            return complex(*value)
        if mark == "$bytes" and isinstance(value, str):
            try:
                return base64.b64decode(value, validate=True)
            except ValueError:
                pass
        if mark == "$set" and isinstance(value, list):
            elements: set[object] = set()
            for item in value:
                self._bounds.add(elements, self.read(item))
            return elements
        if mark == "$class" and isinstance(value, list) and len(value) == 2:
            return self._instance(*value)
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise FileError(f"flow.load: {self._where} is damaged: {cropped(mark)} {shown}")

    def _sparse(
        self, layout: str, shape: Any, coalesced: object, block: object, named: Any
    ) -> SparseTensor:
        parts = [self._tensors.get(n) if isinstance(n, str) else None for n in named]
        if not isinstance(layout, str) or None in parts or type(coalesced) is not bool:
            raise FileError(
                f"flow.load: {self._where} is damaged: a sparse tensor of {named!s:.60}"
            )
        try:
            return sparse_conversion.of_parts(layout, parts, shape, coalesced)
        except (FlowError, TypeError, ValueError) as error:
            raise FileError(f"flow.load: {self._where} is damaged: {error}") from None

    def _instance(self, name: object, fields: object) -> object:
        kind = _safe.get(name) if isinstance(name, str) else None
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            raise FileError(
                f"flow.load: {self._where} has a dataclass {cropped(name)!r}, and no name of a "
                f"file is looked up: flow.serialization.add_safe_globals([its class]) first"
            )
        known = {field.name for field in dataclasses.fields(kind)}
        if not isinstance(fields, dict) or set(fields) != known:
            raise FileError(
                f"flow.load: {self._where} has other fields of {name} than {sorted(known)}"
            )
        instance: object = object.__new__(kind)
        for field, value in fields.items():
            object.__setattr__(instance, field, self.read(value))
        return instance


class _Named(_Reader):
    """A reader of structures that name tensors."""

    def _marked(self, mark: str, value: object) -> object:
        return super()._marked("$tensor" if mark == "$array" else mark, value)


def _is_item(item: object) -> bool:
    return isinstance(item, list) and len(item) == 2 and type(item[0]) in _PLAIN


_NAMES = [dtype.name for dtype in ALL_DTYPES]
