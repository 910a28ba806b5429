"""OneFlow's record files, and the messages in them, read byte by byte.

A file is records one behind the other: eight bytes with the length, then the message.  A message is
a map from names to features; a feature is a list of bytes, floats or integers.  They are written in
protobuf's wire form: of each field a number and a kind, then a varint, four or eight bytes, or a
length and as many bytes.  Nothing of a file is trusted: a length beyond its end is a FileError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flowvm.errors import FileError
from flowvm.meta.arrays import Array

Feature = list[bytes] | Array
_KINDS: dict[int, np.dtype[np.generic]] = {
    2: np.dtype("<f4"),
    3: np.dtype("<f8"),
    4: np.dtype(np.int32),
    5: np.dtype(np.int64),
}
_FIXED = {1: 8, 5: 4}  # kinds of fields that have as many bytes


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise FileError("a record is damaged: a number in it has no end")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """The number and the content of each field of a message: bytes, or a number."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise FileError(f"a record is damaged: a field of kind {kind}")
        if at + size > len(data):
            raise FileError("a record is damaged: a field goes beyond its end")
        yield key >> 3, data[at : at + size]
        at += size


def _integers(data: memoryview) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value - (1 << 64) if value >> 63 else value


def _feature(data: memoryview) -> Feature:
    for kind, inner in _fields(data):
        if isinstance(inner, int) or kind not in (1, *_KINDS):
            continue
        values = [value for number, value in _fields(inner) if number == 1]
        if kind == 1:
            return [bytes(v) for v in values if not isinstance(v, int)]
        if kind in (2, 3):  # packed, or one by one
            joined = b"".join(bytes(v) for v in values if not isinstance(v, int))
            if len(joined) % _KINDS[kind].itemsize:
                raise FileError("a record is damaged: a list of floats ends within one")
            return np.frombuffer(joined, _KINDS[kind])
        whole = [n for v in values for n in ([v] if isinstance(v, int) else _integers(v))]
        return np.array(whole, np.int64).astype(_KINDS[kind])
    return []


def parsed(data: bytes) -> dict[str, Feature]:
    """The features of a record by name: lists of bytes, or arrays."""
    record: dict[str, Feature] = {}
    for number, entry in _fields(memoryview(data)):
        if number != 1 or isinstance(entry, int):
            continue
        parts = dict(_fields(entry))
        name, feature = parts.get(1, b""), parts.get(2, b"")
        if isinstance(name, int) or isinstance(feature, int):
            raise FileError("a record is damaged: an entry has no name, or no feature")
        record[bytes(name).decode("utf-8", "replace")] = _feature(memoryview(feature))
    return record


def records(path: Path) -> Iterator[bytes]:
    """The records of a file, unread."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        at = 0
        while at < size:
            head = file.read(8)
            length = struct.unpack("<q", head)[0] if len(head) == 8 else -1
            if not 0 <= length <= size - at - 8:
                raise FileError(
                    f"{str(path)!r} is no file of records, or cut short: at byte {at} a record of "
                    f"{length} bytes begins, and the file has {size}"
                )
            yield file.read(length)
            at += 8 + length
