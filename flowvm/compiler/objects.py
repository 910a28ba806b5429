"""Object files of x86-64 put into memory without LLVM, whose library takes 55 MB of a process and
0.05 s to come in.

LLVM emits kernels in the large code model: sections refer to each other and to C functions by whole
addresses, so `R_X86_64_64` is the only relocation in them (System V ABI, "AMD64 Architecture
Processor Supplement", 4.4). Constants and code share pages that nobody may write; what may be
written lies behind them.

Tables for unwinding are left out: an exception of C++ ends at compiled code, and none goes
through it.  An object file with anything else in it is not taken, and LLVM's loader is used.
Memory is never given back: addresses of functions are good as long as the process.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Callable
from typing import NamedTuple

_IDENTITY = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
_RELOCATABLE, _X86_64 = 1, 62
_SYMBOLS, _RELOCATIONS, _ZEROS, _RELOCATIONS_WITHOUT_ADDENDS = 2, 4, 8, 9  # kinds of sections
_UNWINDING = 0x70000001
_WRITTEN, _LOADED, _THREADS_OWN = 1, 2, 1 << 10  # flags of sections
_ABSOLUTE, _RESERVED = 0xFFF1, 0xFF00  # numbers of sections that are none
_WHOLE_ADDRESS = 1  # R_X86_64_64
_GLOBAL = 1  # binding of symbols
_FAILED = ctypes.c_void_p(-1).value


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int


class _Symbol(NamedTuple):
    name: int
    info: int
    other: int
    section: int
    value: int
    size: int


class UnknownForm(Exception):  # noqa: N818 - caught where the file is loaded
    """An object file has something that `place_object` does not know."""


def is_possible() -> bool:
    """Return True if object files of this machine may be read by `place_object`."""
    machine = platform.machine().lower()
    return sys.platform == "linux" and machine in ("x86_64", "amd64")


def place_object(code: bytes, address_of: Callable[[str], int]) -> dict[str, int]:
    """Put an object file into memory.  Return the addresses of its global functions, by name.

    `address_of` gives the address of a symbol that the file imports.  UnknownForm, before any
    memory is taken, if the file is of another form.
    """
    sections = _sections(code)
    names = next((s.link for s in sections if s.kind == _SYMBOLS), 0)
    symbols = [
        _Symbol(*fields)
        for table in sections
        if table.kind == _SYMBOLS
        for fields in struct.iter_unpack("<IBBHQQ", _bytes_of(code, table))
    ]
    places, whole, constant = _places(sections)
    patches = _patches(code, sections, places)

    def name_of(symbol: _Symbol) -> str:
        at = sections[names].offset + symbol.name
        return code[at : code.index(b"\0", at)].decode()

    values = []  # of symbols: addresses, or offsets from `base`
    for symbol in symbols:
        if symbol.section == 0:
            values.append((address_of(name_of(symbol)) if symbol.name else 0, False))
        elif symbol.section == _ABSOLUTE:
            values.append((symbol.value, False))
        elif symbol.section >= _RESERVED:
            raise UnknownForm(f"a symbol in section {symbol.section:#x}")
        else:
            values.append((places.get(symbol.section, 0) + symbol.value, True))
    image = bytearray(whole)
    for number, place in places.items():
        section = sections[number]
        if section.kind != _ZEROS:
            image[place : place + section.size] = _bytes_of(code, section)
    base = _mapped(whole)
    for place, symbol_number, addend in patches:
        value, inside = values[symbol_number]
        address = value + addend + (base if inside else 0)
        struct.pack_into("<Q", image, place, address & 0xFFFFFFFFFFFFFFFF)
    ctypes.memmove(base, bytes(image), whole)
    _let_run(base, constant)
    return {
        name_of(symbol): base + value
        for symbol, (value, inside) in zip(symbols, values, strict=True)
        if inside and symbol.info >> 4 == _GLOBAL
    }


def _sections(code: bytes) -> list[_Section]:
    if code[: len(_IDENTITY)] != _IDENTITY:
        raise UnknownForm("no ELF file of 64 bits")
    head = struct.unpack_from("<HHIQQQIHHHHHH", code, 16)
    kind, machine, table, size, count = head[0], head[1], head[5], head[10], head[11]
    if (kind, machine, size) != (_RELOCATABLE, _X86_64, struct.calcsize("<IIQQQQIIQQ")):
        raise UnknownForm(f"an ELF file of kind {kind} for machine {machine}")
    fields = struct.iter_unpack("<IIQQQQIIQQ", code[table : table + count * size])
    return [_Section(*section) for section in fields]


def _bytes_of(code: bytes, section: _Section) -> bytes:
    return code[section.offset : section.offset + section.size]


def _places(sections: list[_Section]) -> tuple[dict[int, int], int, int]:
    """Return the offset of each section that is loaded, the bytes of all, and of those that nobody
    writes, in whole pages.
    """
    places: dict[int, int] = {}
    end = constant = 0
    for written in (0, _WRITTEN):
        for number, section in enumerate(sections):
            if not section.flags & _LOADED or section.kind == _UNWINDING:
                continue
            if section.flags & _THREADS_OWN:
                raise UnknownForm("memory of each thread")
            if section.flags & _WRITTEN == written:
                alignment = max(1, section.alignment)
                if alignment > mmap.PAGESIZE:
                    raise UnknownForm(f"an alignment of {alignment}")
                places[number] = end = -(-end // alignment) * alignment
                end += section.size
        end = -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
        constant = constant or end
    return places, end, constant


def _patches(
    code: bytes, sections: list[_Section], places: dict[int, int]
) -> list[tuple[int, int, int]]:
    """Return where an address is to be written, the number of its symbol, and what is added."""
    patches = []
    for section in sections:
        if section.kind == _RELOCATIONS_WITHOUT_ADDENDS:
            raise UnknownForm("relocations without addends")
        if section.kind != _RELOCATIONS or section.info not in places:
            continue
        place = places[section.info]
        for offset, info, addend in struct.iter_unpack("<QQq", _bytes_of(code, section)):
            if info & 0xFFFFFFFF != _WHOLE_ADDRESS:
                raise UnknownForm(f"a relocation of kind {info & 0xFFFFFFFF}")
            patches.append((place + offset, info >> 32, addend))
    return patches


def _mapped(size: int) -> int:
    """Return the address of new memory that may be written and not run."""
    take = _libc().mmap
    take.restype = ctypes.c_void_p
    take.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = take(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if address in (None, _FAILED):
        raise MemoryError(f"the system has no {size:,} bytes for compiled code")
    return int(address)


def _let_run(address: int, size: int) -> None:
    """Let the code in these pages run, and nobody write them."""
    protect = _libc().mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(address, size, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        error = ctypes.get_errno()
        raise OSError(error, "the system lets no memory of this process be run")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
