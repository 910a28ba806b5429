"""An assembler of pickles, and PyTorch's files of them, opcode by opcode.

Each function gives the code that leaves one value on the stack.  No pickler writes what can be put
together so: `tests/utils/test_hostile_files.py` and the campaign of files have it read.
"""

from __future__ import annotations

import io
import itertools
import pickletools
import random
import struct
import zipfile
from collections.abc import Iterator
from typing import Any


def number(value: int) -> bytes:
    """An integer of any size."""
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def text(value: str) -> bytes:
    """A text."""
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def put(place: int) -> bytes:
    """Keep the value that is on the stack in the memo."""
    return b"r" + struct.pack("<I", place)


def get(place: int) -> bytes:
    """A value of the memo."""
    return b"j" + struct.pack("<I", place)


def row(*items: bytes) -> bytes:
    """A tuple."""
    return b"(" + b"".join(items) + b"t"


def listed(*items: bytes) -> bytes:
    """A list."""
    return b"](" + b"".join(items) + b"e"


def mapping(*items: bytes) -> bytes:
    """A dict of keys and values in turn."""
    return b"}(" + b"".join(items) + b"u"


def name(module: str, what: str) -> bytes:
    """A name of a module."""
    return b"c" + f"{module}\n{what}\n".encode()


def call(module: str, what: str, *args: bytes) -> bytes:
    """Return the pickle of a call of a name."""
    return name(module, what) + row(*args) + b"R"


def storage(size: int = 4, kind: str = "FloatStorage", key: str = "0") -> bytes:
    """A storage of PyTorch's."""
    return row(text("storage"), name("torch", kind), text(key), text("cpu"), number(size)) + b"Q"


def tensor(
    shape: Any = (4,), stride: Any = (1,), offset: int = 0, of: bytes | None = None
) -> bytes:
    """A tensor of PyTorch's, on a storage."""
    sizes = (row(*map(number, numbers)) for numbers in (shape, stride))
    of = storage() if of is None else of
    return call("torch._utils", "_rebuild_tensor_v2", of, number(offset), *sizes, b"\x89", b"N")


def zipped(value: bytes, data: bytes = bytes(16)) -> bytes:
    """A file as torch.save writes them, with one storage."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + value + b".")
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/data/0", data)
    return out.getvalue()


def legacy(value: bytes) -> bytes:
    """A file as PyTorch before 1.6 wrote them."""
    magic, system = number(0x1950A86A20F9469CFC6C), mapping(text("little_endian"), b"\x88")
    pickles = (magic, number(1001), system, value, listed(text("0")))
    return b"".join(b"\x80\x02" + p + b"." for p in pickles) + struct.pack("<q", 4) + bytes(16)


def tokens(value: bytes) -> list[bytes]:
    """The opcodes of a value, each with its argument."""
    places = [at for _, _, at in pickletools.genops(value + b".")]
    return [value[i:j] for i, j in itertools.pairwise(places)]


EXTREMES = (0, 1, -1, 5, 255, 1 << 31, 1 << 48, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 500)
# what is done to the value on the stack: nested, doubled, used as a key, called, called with
GROWTHS = {
    "tuples": b"\x85" * 20_000,
    "lists": b"q\xfb0" + b"]" * 3000 + b"h\xfb" + b"a" * 3000,
    "doubled": b"".join(b"q\xfch\xfc\x86" for _ in range(60)),
    "pairs": b"".join(b"q\xfc0](h\xfch\xfce" for _ in range(60)),
    "key": b"q\xfd0}(h\xfdNu",
    "element": b"q\xfd0\x8f(h\xfd\x90",
    "called": b"\x85R",
    "argument": b"q\xfd0ctorch\nSize\nh\xfd\x85R",
    "itself": b"q\xfdh\xfda",
    "storage": b"Q",
    "state": b"Nb",
    "ordered": b"q\xfd0ccollections\nOrderedDict\n](h\xfdN\x86e\x85R",
}  # fmt: skip


def changes(rng: random.Random, count: int, amount: int) -> Iterator[list[Any]]:
    """Changes of a value's `count` opcodes: ["drop", place], ["number", place, value], ..."""
    for _ in range(amount):
        place = rng.randrange(count)
        match rng.randrange(6):
            case 0:
                yield ["drop", place]
            case 1:
                yield ["twice", place]
            case 2:
                yield ["swap", place, rng.randrange(count)]
            case 3:
                yield ["number", place, rng.choice(EXTREMES)]
            case 4:
                yield ["grow", place, rng.choice(list(GROWTHS))]
            case _:
                yield ["code", place, rng.choice(list(range(256)))]


def changed(code: list[bytes], changes: list[list[Any]]) -> bytes:
    """Return the pickle with the changes, as far as their targets still exist."""
    code = list(code)
    for kind, place, *rest in changes:
        place %= max(1, len(code))
        if kind == "drop":
            del code[place]
        elif kind == "twice":
            code.insert(place, code[place])
        elif kind == "swap":
            other = rest[0] % len(code)
            code[place], code[other] = code[other], code[place]
        elif kind == "number":
            numbers = [k for k, one in enumerate(code) if one[:1] in b"\x8aKMJ"] or [place]
            code[numbers[place % len(numbers)]] = number(rest[0])
        elif kind == "grow":
            code.insert(place + 1, GROWTHS[rest[0]])
        else:
            code.insert(place, bytes(rest))
    return b"".join(code)
