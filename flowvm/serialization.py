"""save and load: nested dicts and lists of tensors and plain values, as one safetensors file.

The file holds each tensor under its path ("optim.state.0.exp_avg"), so any reader of safetensors
sees the tensors of a state dict by their names. The structure, with everything that is no tensor,
is JSON in the file's metadata. Nothing is pickled, so loading a file never runs code. A tensor that
occurs twice is stored once and is one tensor again after loading. Files are written beside their
destination and moved over it, so a crash leaves either the old file or the new.

In the JSON a dict or list that JSON has is itself; what it has not is a one-entry dict:

    {"$tensor": name}  {"$tuple": [...]}  {"$dtype": name}
    {"$dict": [[key, value], ...]}  where not every key is a string, or one begins with $

    {"$array": name}  {"$bytes": base64}  {"$complex": [re, im]}  {"$set": [...]}
    {"$class": [name, {field: value}]}    a dataclass, which is built again if `add_safe_globals`
                                          named its class

safetensors has no complex128: such a tensor is stored as its real and imaginary parts, float64 with
one more dimension, and its name is in the structure's list "pairs".

What is read is not trusted: the header's sizes and offsets are those of the file or it is refused,
and the JSON has no key twice and no depth without end.  PyTorch's files are read by
`flowvm.files.pickles`, which runs nothing of them; OneFlow's folders of variables here.

Long because what is written and what is read stand together.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from flowvm.eager.reading import adopt_array, memory_of
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, FileError
from flowvm.files.pickles import read_legacy, read_zip
from flowvm.files.schema import integer, read_json, record, row, several, text
from flowvm.files.shards import is_sharded, is_shards, read, write
from flowvm.loading.listing import listing
from flowvm.meta.device import Device, as_device, cpu
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
)

__all__ = ["add_safe_globals", "clear_safe_globals", "get_safe_globals", "load", "save"]
__dir__ = listing(globals())

_KEY = "flowvm"  # where in the metadata the structure is
_VERSION = 1
DEFAULT_PROTOCOL = 2  # of pickles, as PyTorch has it: what is written here is none
_PLAIN = (str, int, float, bool, type(None))


def save(
    obj: Any,
    f: str | os.PathLike[str] | IO[bytes],
    pickle_module: Any = None,
    pickle_protocol: Any = None,
    _use_new_zipfile_serialization: bool = True,
) -> None:
    """Write tensors, arrays, plain values, and dicts, lists, tuples, sets and dataclasses of them
    to a path or a binary file.  PyTorch's arguments about pickles are taken: there is none.

    Where some tensors are global, all ranks save together, into a folder: `flowvm.files.shards`.
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
    tensors, metadata = _flatten(obj)
    if is_sharded(tensors):
        _save_shards(f, tensors, metadata[_KEY])
        return
    data = as_safetensors(tensors, metadata)
    if not isinstance(f, (str, os.PathLike)):
        f.write(data)
        return
    put(Path(f), data)


def as_safetensors(tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> bytes:
    """A safetensors file of these tensors, whose metadata are these texts."""
    from safetensors.numpy import save as to_bytes

    data = to_bytes({name: _array(t) for name, t in tensors.items()}, metadata)
    return _relabelled(data, {n: _WORDS[t.dtype] for n, t in tensors.items() if t.dtype in _WORDS})


def put(target: Path, data: bytes) -> None:
    """Write a file beside its place, and move it there."""
    try:
        handle, name = tempfile.mkstemp(dir=target.parent or ".", prefix=f".{target.name}.")
    except FileNotFoundError:
        raise FileNotFoundError(f"flow.save: there is no folder {str(target.parent)!r}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def header_of(path: Path) -> dict[str, Any]:
    """The header of a safetensors file: of each tensor its dtype and shape."""
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


def folder_of(obj: Any) -> tuple[Any, dict[str, Tensor]]:
    """What a folder of shards has of an object, whether its tensors are global or not: a structure
    and the tensors that it names.
    """
    tensors, metadata = _flatten(obj)
    return json.loads(metadata[_KEY]), tensors


def structure_of(said: Any, tensors: Mapping[str, Any], where: str) -> Any:
    """The object that such a structure describes, with whatever `tensors` has in the places of
    tensors and arrays.
    """
    if not isinstance(said, dict) or "tree" not in said:
        raise FileError(f"load: {where} is damaged: its structure has no tree")
    return _Named(dict(tensors), where).read(said["tree"])


def _save_shards(f: Any, tensors: dict[str, Tensor], structure: str) -> None:
    if not isinstance(f, (str, os.PathLike)):
        raise ArgumentTypeError("flow.save: global tensors go into a folder, so a path is needed")
    write(Path(f), json.loads(structure), tensors, save)


def load(
    f: str | os.PathLike[str] | IO[bytes],
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    placement: Any = None,
    sbp: Any = None,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    **pickle_load_args: Any,
) -> Any:
    """Read back what save wrote, or any safetensors file as a flat dict of tensors, or what
    torch.save wrote of tensors, numbers, texts and containers (.pt, .pth, both formats), or a
    folder of variables that OneFlow wrote, as a dict of tensors by name.

    map_location is the device the tensors go to, the CPU by default.  Files do not say where
    tensors were, so of a dict it is that for "cpu", and a function is taken and not called.
    Nothing of a file is run, whatever weights_only says; mmap and arguments about pickles are
    taken.  ArgumentError for what is damaged, or holds something else.

    Of a folder of global tensors, which all ranks load together, whatever number of them wrote it:
    `placement` is where they go, by default all ranks; `sbp` how they are held, one for all, a dict
    by name, or a function of the name, by default as they were.  In a world of one rank, without a
    placement, they come as local tensors.

    >>> import io
    >>> file = io.BytesIO()  # or a path
    >>> flow.save({"weight": flow.ones(2), "step": 3}, file)
    >>> _ = file.seek(0)
    >>> flow.load(file)
    {'weight': tensor([1., 1.]), 'step': 3}
    """
    if isinstance(map_location, Mapping):
        map_location = map_location.get("cpu")
    plain = map_location is None or callable(map_location)
    place = cpu if plain else as_device(map_location)
    if isinstance(f, (str, os.PathLike)):
        if is_shards(Path(f)):
            said, tensors = read(Path(f), placement, sbp, load)
            return _Reader(tensors, repr(os.fspath(f))).read(said["tree"])
        if Path(f).is_dir():
            return _moved(_read_folder(Path(f)), place)
        where, data = repr(os.fspath(f)), Path(f).read_bytes()
    else:
        where, data = "the given file", f.read()
    if not _has_header(data):
        if data[:2] == b"PK":
            return _moved(read_zip(data, where), place)
        if data[:1] == b"\x80":
            return _moved(read_legacy(data, where), place)
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
    if not isinstance(saved, dict) or saved.keys() - {"pairs"} != {"version", "tree"}:
        raise FileError(f"flow.load: {where} is damaged: its structure has no tree")
    if saved.get("version") != _VERSION:
        raise FileError(
            f"flow.load: {where} has structure version {saved.get('version')}, this flowvm reads "
            f"{_VERSION}"
        )
    _join_pairs(tensors, saved.get("pairs", []), where)
    return _Reader(tensors, where).read(saved["tree"])


def _has_header(data: bytes) -> bool:
    """Whether it begins as safetensors files do, with the length of their header, which may begin
    as a pickle or a zip file does; these say a length beyond any file.
    """
    return data[8:9] == b"{" and int.from_bytes(data[:8], "little") <= len(data) - 8


# ---- classes of the program's own

_safe: dict[str, Any] = {}


def add_safe_globals(safe_globals: Sequence[Any]) -> None:
    """Let load build dataclasses of these classes again; without calling their __init__.

    What is no dataclass is noted, as PyTorch's programs add it, and a file that has one is still
    refused.  ArgumentTypeError for what is neither a class nor a function.
    """
    for kind in safe_globals:
        found, name = kind if isinstance(kind, tuple) and len(kind) == 2 else (kind, "")
        if not callable(found):
            raise ArgumentTypeError(f"add_safe_globals takes classes, got {kind!r}")
        _safe[name or _class_name(found)] = found


def get_safe_globals() -> list[Any]:
    """The classes that add_safe_globals was given."""
    return list(_safe.values())


def clear_safe_globals() -> None:
    """Forget them."""
    _safe.clear()


def _class_name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


# ---- OneFlow's folders

_ONEFLOW = {
    "kFloat": "float32", "kDouble": "float64", "kFloat16": "float16", "kBFloat16": "bfloat16",
    "kInt8": "int8", "kInt32": "int32", "kInt64": "int64", "kUInt8": "uint8", "kBool": "bool",
}  # fmt: skip
_META = re.compile(r"\s*(?:shape\s*\{((?:\s*dim:\s*\d{1,15})*)\s*\}\s*)?data_type:\s*(\w+)\s*")


def _read_folder(folder: Path) -> dict[str, Tensor]:
    """The variables of a folder: each a folder of its own with `meta`, a text, and `out`."""
    found = {}
    for entry in sorted(folder.iterdir()):
        meta, out = entry / "meta", entry / "out"
        if not (meta.is_file() and out.is_file()):
            continue
        said = _META.fullmatch(meta.read_text(errors="replace")[:10000])
        if said is None or said[2] not in _ONEFLOW:
            raise FileError(f"flow.load: {str(meta)!r} describes no tensor")
        shape = tuple(map(int, re.findall(r"\d+", said[1] or "")))
        name, data = _ONEFLOW[said[2]], out.read_bytes()
        dtype = np.dtype("uint16" if name == "bfloat16" else name)
        if len(shape) > 64 or math.prod(shape) * dtype.itemsize != len(data):
            raise FileError(
                f"flow.load: {str(out)!r} is damaged: {len(data)} bytes of shape {shape}"
            )
        array = np.frombuffer(data, dtype).reshape(shape)
        found[entry.name] = _tensor(array, bfloat16 if name == "bfloat16" else None, cpu)
    if not found:
        raise FileError(f"flow.load: there are no variables in the folder {str(folder)!r}")
    if (folder / "pickled_data").exists():
        raise FileError(
            f"flow.load: {str(folder)!r} has its names in a pickle, which is not read: save each "
            f"tensor's numpy() with OneFlow, or an older folder of variables"
        )
    return found


def _moved(obj: Any, place: Device) -> Any:
    """What was read, with its tensors at a device."""
    if place == cpu:
        return obj
    if isinstance(obj, Tensor):
        return obj.to(place)
    if isinstance(obj, dict):
        for key, value in obj.items():
            obj[key] = _moved(value, place)
        return obj
    if type(obj) in (list, tuple):
        return type(obj)(_moved(item, place) for item in obj)
    return obj


# ---- writing


def _flatten(obj: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(name -> tensor, metadata)."""
    writer = _Writer()
    tree = writer.tree(obj, "")
    said: dict[str, Any] = {"version": _VERSION, "tree": tree}
    if pairs := [name for name, t in writer.tensors.items() if t.dtype is complex128]:
        said["pairs"] = pairs
    structure = json.dumps(said, separators=(",", ":"))
    return writer.tensors, {_KEY: structure}


def _relabelled(data: bytes, dtypes: Mapping[str, str]) -> bytes:
    """The file with other dtypes, of the same size, for these tensors: safetensors has no arrays of
    what NumPy has no dtype for, and is shown their bits.
    """
    if not dtypes:
        return data
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    for name, dtype in dtypes.items():
        header[name]["dtype"] = dtype
    found = json.dumps(header, separators=(",", ":")).encode()
    found += b" " * (-len(found) % 8)
    return len(found).to_bytes(8, "little") + found + data[8 + size :]


class _Writer:
    """Turns an object into its JSON tree and collects the tensors on the way."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        self._held: list[Tensor] = []

    def tree(self, obj: Any, path: str) -> Any:
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

    def _dict(self, obj: Mapping[Any, Any], path: str) -> Any:
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
        name, again = path or "tensor", 2
        while name in self.tensors or name == "__metadata__":
            name, again = f"{path}#{again}", again + 1
        self._names[id(tensor)] = name
        self.tensors[name] = tensor
        return name


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    # safetensors writes the buffer as it lies, so it must be dense (and 0-d arrays stay 0-d).
    array = np.array(memory_of(tensor.detach()), order="C", copy=True)
    return array[..., None].view(np.float64) if tensor.dtype is complex128 else array


def _tensor_of(array: np.ndarray[Any, Any], path: str) -> Tensor:
    try:
        made: Tensor = adopt_array(np.array(array, order="C"))
    except (TypeError, RuntimeError) as error:
        raise ArgumentTypeError(
            f"flow.save cannot store an array of {array.dtype}{f' at {path!r}' if path else ''}"
        ) from error
    return made


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


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


def _check_header(header: dict[str, Any], size: int, where: str) -> None:
    """ArgumentError unless the tensors' bytes are those of the file, one behind the other."""
    metadata = header.get("__metadata__", {})
    texts = metadata.items() if isinstance(metadata, dict) else [(metadata, metadata)]
    if not all(isinstance(key, str) and isinstance(value, str) for key, value in texts):
        raise FileError(f"flow.load: {where} is damaged: its metadata is no record of texts")
    spans = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        _ENTRY(entry, f"flow.load: {where}: tensor {name!r}")
        (begin, end), dtype = entry["data_offsets"], entry["dtype"]
        nbytes = math.prod(entry["shape"]) * _DTYPES.get(dtype, 0)
        if dtype in _DTYPES and end - begin != nbytes:
            raise FileError(
                f"flow.load: {where} is damaged: tensor {name!r} has {nbytes} bytes, at {begin} to "
                f"{end}"
            )
        spans.append((begin, end))
    at = 0
    for begin, end in sorted(spans):
        if begin != at or end < begin:
            raise FileError(f"flow.load: {where} is damaged: no tensor has its bytes from {at}")
        at = end
    if at != size:
        raise FileError(
            f"flow.load: {where} is damaged, or cut short: it has {size} bytes of tensors, and its "
            f"header says {at}"
        )


def _arrays(data: bytes, header: dict[str, Any], where: str) -> dict[str, np.ndarray[Any, Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load as from_bytes

    for name, entry in header.items():
        if name != "__metadata__" and entry.get("dtype") not in _DTYPES:
            raise ArgumentTypeError(
                f"flow.load: tensor {name!r} in {where} has dtype {entry.get('dtype')}, which "
                f"flowvm has not; it has {sorted(_DTYPES)}. Convert the file first"
            )
    found = {n: e["dtype"] for n, e in header.items() if n != "__metadata__"}
    bits = {n: f"U{8 * _DTYPES[word]}" for n, word in found.items() if word in _UNKNOWN}
    try:
        return dict(from_bytes(_relabelled(data, bits)))
    except SafetensorError as error:
        raise FileError(f"flow.load: {where} is damaged ({error})") from None


_DTYPES = {
    "BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "I32": 4, "I64": 8, "F16": 2, "BF16": 2, "F32": 4,
    "F64": 8, "C64": 8, "U16": 2, "U32": 4, "U64": 8, "F8_E4M3": 1, "F8_E5M2": 1,
    "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "F8_E8M0": 1,
}  # fmt: skip
_UNKNOWN = {  # those that NumPy has no dtype for
    "BF16": bfloat16, "F8_E4M3": float8_e4m3fn, "F8_E5M2": float8_e5m2,
    "F8_E4M3FNUZ": float8_e4m3fnuz, "F8_E5M2FNUZ": float8_e5m2fnuz, "F8_E8M0": float8_e8m0fnu,
}  # fmt: skip
_WORDS = {dtype: word for word, dtype in _UNKNOWN.items()}
_ENTRY = record(
    dtype=text(20),
    shape=several(integer(0, 1 << 48), 64),
    data_offsets=row(integer(0, 1 << 60), integer(0, 1 << 60)),
)


def _tensor(array: np.ndarray[Any, Any], dtype: DType | None, device: Device) -> Tensor:
    """A copy of what the file holds, whose bits `array` has if NumPy has no such dtype."""
    there: Tensor = adopt_array(np.array(array, order="C"), dtype=dtype).to(device)
    return there


def _join_pairs(tensors: dict[str, Tensor], names: Any, where: str) -> None:
    """Make complex numbers of the tensors that were saved as pairs of parts."""
    for name in names if isinstance(names, list) else [names]:
        pairs: Any = tensors.get(name) if isinstance(name, str) else None
        if pairs is None or pairs.dtype is not float64 or pairs.shape[-1:] != (2,):
            raise FileError(f"flow.load: {where} is damaged: {str(name)[:80]!r} is no pairs")
        tensors[name] = pairs.view_as_complex()


class _Reader:
    """Builds the object that a JSON tree describes."""

    def __init__(self, tensors: dict[str, Tensor], where: str) -> None:
        self._tensors = tensors
        self._where = where

    def read(self, tree: Any) -> Any:
        if isinstance(tree, list):
            return [self.read(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        mark = next(iter(tree), "")
        if len(tree) != 1 or not mark.startswith("$"):
            return {key: self.read(value) for key, value in tree.items()}
        return self._marked(mark, tree[mark])

    def _marked(self, mark: str, value: Any) -> Any:
        if mark == "$tensor" and isinstance(value, str) and value in self._tensors:
            return self._tensors[value]
        if mark == "$tuple" and isinstance(value, list):
            return tuple([self.read(item) for item in value])
        if mark == "$dict" and isinstance(value, list) and all(map(_is_item, value)):
            return {key: self.read(item) for key, item in value}
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
            try:
                return {self.read(item) for item in value}
            except TypeError:
                pass
        if mark == "$class" and isinstance(value, list) and len(value) == 2:
            return self._instance(*value)
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise FileError(f"flow.load: {self._where} is damaged: {mark} {shown}")

    def _instance(self, name: Any, fields: Any) -> Any:
        kind = _safe.get(name) if isinstance(name, str) else None
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            raise FileError(
                f"flow.load: {self._where} has a dataclass {str(name)[:80]!r}, and no name of a "
                f"file is looked up: flow.serialization.add_safe_globals([its class]) first"
            )
        known = {field.name for field in dataclasses.fields(kind)}
        if not isinstance(fields, dict) or set(fields) != known:
            raise FileError(
                f"flow.load: {self._where} has other fields of {name} than {sorted(known)}"
            )
        made: Any = object.__new__(kind)
        for field, value in fields.items():
            object.__setattr__(made, field, self.read(value))
        return made


class _Named(_Reader):
    """The same of what stands for tensors."""

    def _marked(self, mark: str, value: Any) -> Any:
        return super()._marked("$tensor" if mark == "$array" else mark, value)


def _is_item(item: Any) -> bool:
    return isinstance(item, list) and len(item) == 2 and type(item[0]) in _PLAIN


_NAMES = [dtype.name for dtype in ALL_DTYPES]
