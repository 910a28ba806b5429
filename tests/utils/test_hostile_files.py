"""Files that are made to take for ever, all memory, or the process: refused before that.

The pickles are put together opcode by opcode, as somebody who means harm would.
"""

import io
import json
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, FileError
from flowvm.files import bounds
from flowvm.files.printable import printable
from tools.pickled import (
    call,
    get,
    legacy,
    listed,
    mapping,
    name,
    number,
    put,
    row,
    storage,
    tensor,
    text,
    zipped,
)

SECONDS = 60.0  # of this thread's time: what is bounded takes a few, what is not takes years
DEEP = 100_000  # hashing a tuple nested so deep, in C, leaves the stack


FORMS = {"zip": zipped, "legacy": legacy}


def test_the_assembler_makes_files_that_are_read() -> None:
    value = mapping(text("a"), tensor(), row(number(1), text("b")), listed(tensor((2,), (2,), 1)))
    for form in FORMS.values():
        loaded = flow.load(io.BytesIO(form(value)))
        assert list(loaded) == ["a", (1, "b")]
        loaded["a"].fill_(3.0)
        assert loaded[1, "b"][0].tolist() == [3.0, 3.0]


def refused(data: bytes, why: str | None = None, kind: type[Exception] = FileError) -> str:
    """The error's text."""
    begun = time.thread_time()
    with pytest.raises(kind, match=why) as caught:
        flow.load(io.BytesIO(data))
    assert time.thread_time() - begun < SECONDS
    assert isinstance(caught.value, ArgumentError)
    assert "the given file" in str(caught.value)
    return str(caught.value)


# --- depth, sharing, keys -------------------------------------------------------------------------


def doubled(make: Callable[[bytes], bytes], times: int = 80) -> bytes:
    """A container of the last one twice, again and again: 2 ** times values to go through."""
    code = b")" + put(0)
    for k in range(times):
        code += b"0" + make(get(k)) + put(k + 1)
    return code


def nested(opening: bytes, closing: bytes) -> bytes:
    depth = 5000 if opening else DEEP
    return opening * depth + b"N" + closing * depth


TUPLES = {
    "shared": doubled(lambda last: row(last, last)),
    "shared sizes": doubled(lambda last: call("torch", "Size", row(last, last))),
    "deep": nested(b"", b"\x85"),
    "deep pairs": nested(b"", b"N\x86"),
    "long": row(*[b"N"] * 5000),
}
USES: dict[str, Callable[[bytes], bytes]] = {
    "key": lambda value: mapping(value, b"N"),
    "one key": lambda value: b"}" + value + b"Ns",
    "old key": lambda value: b"(" + value + b"Nd",
    "element": lambda value: b"\x8f(" + value + b"\x90",
    "element of a call": lambda value: call("builtins", "set", listed(value)),
    "ordered key": lambda value: call("collections", "OrderedDict", listed(row(value, b"N"))),
    "default key": lambda value: call("collections", "defaultdict", b"N", mapping(value, b"N")),
    "coded": lambda value: call("_codecs", "encode", value, text("latin1")),
    "device": lambda value: call("torch", "device", value),
    "dtype": lambda value: call("numpy", "dtype", value),
    "number": lambda value: call("numpy.core.multiarray", "scalar", value, value),
    "storage": lambda value: value + b"Q",
    "part of a storage": lambda value: row(text("storage"), value, value, value, value) + b"Q",
    "shape": lambda value: call("torch._utils", "_rebuild_tensor", storage(), b"N", value, b")"),
    "name": lambda value: value + value + b"\x93",
    "call": lambda value: value + value + b"R",
    "state": lambda value: b"]" + value + b"b",
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", TUPLES)
def test_tuples_that_cannot_be_used(kind: str, use: str) -> None:
    refused(FORMS["legacy" if use in ("key", "shape") else "zip"](USES[use](TUPLES[kind])))


VALUES = {
    "tuples": doubled(lambda last: row(last, last)),
    "lists": doubled(lambda last: listed(last, last)),
    "dicts": doubled(lambda last: mapping(number(0), last, number(1), last)),
    "wide": doubled(lambda last: listed(*[last] * 30), 10),
    "ordered": doubled(
        lambda last: call("collections", "OrderedDict", listed(row(b"N", last), row(b"\x88", last)))
    ),
    "texts": text("x" * 200_000) + put(0) + b"0" + listed(*[get(0)] * 50_000),
    "deep tuples": nested(b"", b"\x85"),
    "deep lists": nested(b"]", b"a"),
    "deep dicts": nested(b"}K\x01", b"s"),
    "deep calls": nested(name("collections", "OrderedDict") + b"(](K\x01", b"\x86etR"),
    "itself": b"]" + put(0) + get(0) + b"a",
    "itself in a dict": b"}" + put(0) + b"K\x01" + listed(get(0)) + b"s",
    "deep types": nested(name("torch._tensor", "_rebuild_from_type_v2") + put(0) + b"N", b"N\x87"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", VALUES)
def test_values_without_end(kind: str, form: str) -> None:
    refused(FORMS[form](VALUES[kind]))


MODULUS = (1 << 61) - 1  # of the hashes of numbers
KEYS: dict[str, Callable[[int], bytes]] = {
    "integers": lambda k: number(MODULUS * (k + 1)),
    "negative": lambda k: number(-MODULUS * (k + 1)),
    "tuples": lambda k: number(MODULUS * (k + 1)) + b"\x85",
    "pairs": lambda k: row(text("a"), number(MODULUS * (k + 1))),
}


@pytest.mark.parametrize("use", ["key", "element", "ordered"])
@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_one_hash(kind: str, use: str) -> None:
    keys = [KEYS[kind](k) for k in range(40_000)]
    if use == "key":
        value = mapping(*(key + b"N" for key in keys))
    elif use == "element":
        value = b"\x8f(" + b"".join(keys) + b"\x90"
    else:
        value = call("collections", "OrderedDict", listed(*(row(key, b"N") for key in keys)))
    refused(zipped(value), "keys of one hash")


def test_many_keys_are_read() -> None:
    expected = dict.fromkeys(range(-5000, 60_000))
    keys = b"".join(number(k) + b"N" for k in expected)
    assert flow.load(io.BytesIO(zipped(mapping(keys)))) == expected


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else somebody finds that takes long."""
    monkeypatch.setattr(bounds, "SECONDS", -1e9)
    refused(zipped(listed(*[b"N"] * 5000)), "takes so long")
    assert flow.load(io.BytesIO(zipped(listed(b"N")))) == [None]


COPIES = {
    "dicts": (mapping(*(number(k) + b"N" for k in range(3000))), "collections", "OrderedDict"),
    "sets": (listed(*(number(k) for k in range(3000))), "builtins", "set"),
    "texts": (text("x" * 1_000_000), "_codecs", "encode"),
}


@pytest.mark.parametrize("kind", COPIES)
def test_copies_without_end(kind: str) -> None:
    value, module, what = COPIES[kind]
    more = text("latin1") if kind == "texts" else b""
    code = value + put(0) + b"0" + name(module, what) + put(1) + b"0"
    refused(zipped(code + listed(*[get(1) + row(get(0), more) + b"R"] * 3000)), "copies")


# --- sizes ----------------------------------------------------------------------------------------

LARGE = (1 << 48, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 1000)
TENSORS = {
    **{f"size {n}": tensor(of=storage(n)) for n in (*LARGE, -1, 3, 5)},
    **{f"offset {n}": tensor(offset=n) for n in (*LARGE, -1, 1)},
    **{f"offset {n} of nothing": tensor((0,), (1,), n) for n in (*LARGE, -1, 5)},
    **{f"dimension {n}": tensor((n,), (1,)) for n in (*LARGE, -1, 5)},
    **{f"stride {n}": tensor((2,), (n,)) for n in (*LARGE, -1, 4)},
    **{f"nothing of {n}": tensor((0, n, n), (1, 1, 1)) for n in (*LARGE, -1, 1 << 47)},
    "dimensions": tensor((1,) * 100_000, (1,) * 100_000),
    "dimensions of 2": tensor((2,) * 64, (0,) * 64),
    "repeated": tensor((1 << 40,), (0,)),
    "other strides": tensor((2, 2), (1,)),
    "a storage as others": listed(tensor(), tensor(of=storage(4, "DoubleStorage"))),
    "no storage": tensor(of=b"N"),
    "texts": call("torch._utils", "_rebuild_tensor_v2", storage(), b"K\x00", text("4"), text("1")),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_sizes_that_cannot_be(kind: str) -> None:
    refused(zipped(TENSORS[kind]))


SIZED = {
    **{f"text of {n}": b"X" + struct.pack("<I", n) for n in (100, 1 << 31, (1 << 32) - 1)},
    **{f"long text of {n}": b"\x8d" + struct.pack("<Q", n) for n in (1 << 31, 1 << 62, 2**64 - 1)},
    "bytes": b"B" + struct.pack("<I", (1 << 32) - 1),
    "long bytes": b"\x8e" + struct.pack("<Q", (1 << 64) - 1),
    "an array of bytes": b"\x96" + struct.pack("<Q", (1 << 64) - 1),
    "a long integer": b"\x8b" + struct.pack("<i", (1 << 31) - 1),
    "a negative one": b"\x8b" + struct.pack("<i", -1),
    "digits": b"I" + b"9" * 5_000_000 + b"\n",
    "digits of a long": b"L" + b"9" * 4090 + b"x\n",
    "a name": b"c" + b"m" * 5_000_000 + b"\nx\n",
    "a frame": b"\x95" + struct.pack("<Q", (1 << 64) - 1),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", SIZED)
def test_lengths_that_are_not_there(kind: str, form: str) -> None:
    refused(FORMS[form](SIZED[kind]))


# --- archives -------------------------------------------------------------------------------------


def test_packed_entries_are_refused() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + b"N0" * 10_000_000 + b"N.")
    refused(out.getvalue(), "larger than the file")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02N.")
    refused(out.getvalue(), "compressed")


@pytest.mark.parametrize("size", [1, 1 << 20, (1 << 32) - 2, (1 << 32) - 1])
def test_entries_that_say_another_size(size: int) -> None:
    data = bytearray(zipped(tensor()))
    record = data.rindex(b"PK\x01\x02")
    data[record + 24 : record + 28] = struct.pack("<I", size)
    refused(bytes(data))


def test_overlapping_entries_take_no_more_than_the_file() -> None:
    """Records of one entry, a thousand times over."""
    data = zipped(tensor())
    begin, end = data.index(b"PK\x01\x02"), data.rindex(b"PK\x05\x06")
    records = data[begin:end] * 1000
    counts = struct.pack("<HHII", 3000, 3000, len(records), begin)
    changed = data[:begin] + records + b"PK\x05\x06" + bytes(4) + counts + bytes(2)
    refused(changed)


# --- flowvm's own files ---------------------------------------------------------------------------


def own(tree: Any, more: dict[str, Any] | None = None) -> bytes:
    text = json.dumps({"version": 1, "tree": tree, **(more or {})})
    return headed({"__metadata__": {"flowvm": text}})


def headed(header: Any, rest: bytes = b"") -> bytes:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(data).to_bytes(8, "little") + data + rest


def entry(shape: list[int], end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}


OWN = {
    "keys": own({"$dict": [[MODULUS * k, 0] for k in range(40_000)]}),
    "elements": own({"$set": [MODULUS * k for k in range(40_000)]}),
    "tuples": own({"$set": [{"$tuple": [MODULUS * k]} for k in range(40_000)]}),
    "a long key": own({"$set": [{"$tuple": [0] * 5000}]}),
    "no key": own({"$set": [[1]]}),
    "digits": headed(b'{"a": ' + b"9" * 1_000_000 + b"}"),
    "deep": headed(b'{"a": ' + b"[" * DEEP + b"]" * DEEP + b"}"),
    "deep records": headed(b'{"a": ' * DEEP + b"1" + b"}" * DEEP),
    "a deep tree": own(json.loads("[" * 150 + "]" * 150)),
    **{f"length {n}": n.to_bytes(8, "little") + b"{}" for n in (3, 1 << 62, (1 << 64) - 1)},
    **{f"end {n}": headed(entry([1], n)) for n in (*LARGE, -1, 3)},
    **{f"dimension {n}": headed(entry([n], 4), bytes(4)) for n in (*LARGE, -1, 2)},
    **{f"nothing of {n}": headed(entry([0, n, n], 0)) for n in (*LARGE, -1, 1 << 47)},
    "dimensions": headed(entry([1] * 1_000_000, 4), bytes(4)),
    "dimensions of 2": headed(entry([2] * 64, 4), bytes(4)),
}


@pytest.mark.parametrize("kind", OWN)
def test_flowvms_own_files(kind: str) -> None:
    refused(OWN[kind])


@pytest.mark.parametrize("shape", [[0, 1 << 47, 1 << 47], [0] * 65, [1 << 49] * 3, [3]])
def test_oneflows_folders(shape: list[int], tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    dims = "".join(f"dim: {n}\n" for n in shape)
    (tmp_path / "w" / "meta").write_text(f"shape {{ {dims} }} data_type: kFloat")
    (tmp_path / "w" / "out").write_bytes(b"")
    with pytest.raises(FileError, match="is damaged"):
        flow.load(tmp_path)


def test_what_save_cannot_write_is_said() -> None:
    around: list[Any] = []
    around.append({"a": around})
    deep: Any = 1
    for _ in range(300):
        deep = (deep,)
    wide: Any = []
    for _ in range(80):
        wide = [wide, wide]
    for value in (around, deep, wide):
        with pytest.raises(ArgumentError, match=r"flow\.save: the object"):
            flow.save(value, io.BytesIO())


# --- folders of shards ----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as ranks write them."""
    flow.save({"a": flow.ones(4)}, tmp_path / "x-00000.safetensors")
    parts = [{"file": "x-00000.safetensors", "bounds": [[0, 4]]}]
    about = {"shape": [4], "dtype": "float32", "sbp": [-1], "parts": parts}
    tree = {"version": 1, "tree": {"a": {"$tensor": "a"}}}
    index = {"format": "flowvm shards 1", "tree": tree, "tensors": {"a": about}}
    (tmp_path / "index.json").write_text(json.dumps(index))
    return tmp_path


def _part(**changes: Any) -> Callable[[Any], None]:
    return lambda index: index["tensors"]["a"]["parts"][0].update(changes)


def _about(**changes: Any) -> Callable[[Any], None]:
    return lambda index: index["tensors"]["a"].update(changes)


INDEX: dict[str, Callable[[Any], Any]] = {
    "no tensors": lambda index: index.pop("tensors"),
    "tensors of another kind": lambda index: index.update(tensors=[1]),
    "a tensor of another kind": lambda index: index.update(tensors={"a": 1}),
    "large": lambda index: (_about(shape=[1 << 48])(index), _part(bounds=[[0, 1 << 48]])(index)),
    "large without parts": _about(shape=[1 << 47], parts=[]),
    "nothing of much": _about(shape=[0, 1 << 47, 1 << 47], parts=[]),
    "dimensions": _about(shape=[1] * 100_000),
    "negative": _about(shape=[-4]),
    "more bounds": _part(bounds=[[0, 4], [0, 1]]),
    "bounds outside": _part(bounds=[[0, 5]]),
    "bounds backwards": _part(bounds=[[4, 0]]),
    "part twice": lambda index: index["tensors"]["a"]["parts"].append(
        index["tensors"]["a"]["parts"][0]
    ),
    "a file elsewhere": _part(file="../x"),
    "no file": _part(file="y"),
    "a hidden file": _part(file=".x"),
    "strange sbp": _about(sbp={"a": 1}),
    "a tree of another kind": lambda index: index.update(tree=[]),
    "a tree without a version": lambda index: index.update(tree={"tree": 1}),
}


def test_a_folder_of_shards_is_read(folder: Path) -> None:
    assert flow.load(folder)["a"].tolist() == [1.0] * 4


@pytest.mark.parametrize("kind", INDEX)
def test_folders_of_shards(kind: str, folder: Path) -> None:
    index = json.loads((folder / "index.json").read_text())
    INDEX[kind](index)
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(ArgumentError, match=r"flow\.load"):
        flow.load(folder)


# --- recorded runs --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("runs") / "run"
    with flow.profiler.profile() as profile:
        (flow.ones(3) + 1).sum().item()
    profile.save(path)
    return path.read_bytes()


def _column(run: bytes, column: str, data: bytes) -> bytes:
    """The run with other bytes for a column."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(run)) as source,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for item in source.namelist():
            archive.writestr(item, data if item == column + ".npy" else source.read(item))
    return out.getvalue()


def _npy(shape: str, descr: str = "<i8", data: bytes = b"") -> bytes:
    head = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head) + 1) + head.encode() + b"\n" + data


COLUMNS = {
    "huge": _npy(f"({1 << 60},)"),
    "large": _npy(f"({1 << 36},)"),
    "negative": _npy("(-1,)"),
    "product": _npy(f"({1 << 32}, {1 << 32})"),
    "dimensions": _npy("(" + "1, " * 60 + ")"),
    "bool": _npy("(True,)", data=bytes(8)),
    "zeros": _npy(f"({1 << 27},)", data=bytes(1 << 27)),
    "objects": _npy("(1,)", "|O", b"cos\nsystem\n(S'true'\ntR."),
    "deep": _npy("(" * 3000 + ")" * 3000),
    "digits": _npy("(" + "9" * 5000 + ",)"),
    "empty": b"",
}


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("column", ["seq", "header"])
def test_columns_of_runs(column: str, kind: str, run_file: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_bytes(_column(run_file, column, COLUMNS[kind]))
    with pytest.raises(ArgumentError, match="run"):
        flow.profiler.load(path)


# --- what errors say of files ---------------------------------------------------------------------

ESCAPE = "\x1b]0;owned\x07\x9b31m\r\u202e"


@pytest.mark.parametrize(
    "data",
    [
        zipped(name("os" + ESCAPE, "system")),
        zipped(tensor(of=storage(key=ESCAPE))),
        zipped(b"\x1b"),
        own({"$class": [ESCAPE, {}]}),
        own({"$" + ESCAPE: ESCAPE}),
        own({}, {ESCAPE: 1}),
        own({"$tensor": ESCAPE}),
        headed({ESCAPE: {"dtype": ESCAPE, "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
        headed({ESCAPE: 3}),
        headed(("{" + ESCAPE).encode()),
    ],
)
def test_errors_do_not_command_the_terminal(data: bytes) -> None:
    with pytest.raises((ArgumentError, TypeError)) as caught:
        flow.load(io.BytesIO(data))
    shown = str(caught.value)
    assert shown == printable(shown)


def test_devices_are_not_read() -> None:
    for path in ("/dev/zero", "/dev/null"):
        with pytest.raises(FileError, match="is a device"):
            flow.load(path)
