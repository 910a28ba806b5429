"""The code that NVIDIA's assembler makes of a kernel: registers, spills, and its inner loops.

    found = inspected(ptx_text, "sm_90")

`ptxas` (nvidia-cuda-nvcc) and `nvdisasm` (nvidia-cuda-nvdisasm, or a toolkit's) are looked for in
PATH and among the packages of this Python, NVDISASM and PTXAS name others.  A *loop* here goes from
a label to the last branch back to it, and counts where no smaller one lies in it; what is in none
counts as one more.  What stands behind the kernel's last EXIT, divisions of 64 bits, is not of it.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

__all__ = ["Found", "Loop", "inspected", "missing"]

_LINE = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(@!?U?P\w+\s+)?([A-Z0-9_.]+)(.*)$")
_LABEL = re.compile(r"^(\.L_x?_?\w+|[\w$]+):")
_TARGET = re.compile(r"`\((\.L_\w+)\)")
_SIZES = {"64": 8, "128": 16, "U16": 2, "S16": 2, "U8": 1, "S8": 1}


class Loop(NamedTuple):
    """The instructions of one turn of a loop, for each thread."""

    instructions: int
    loads: tuple[int, ...]  # bytes of each load from global memory
    stores: tuple[int, ...]
    ahead: int  # bytes of loads before the first store or the end
    doubles: int  # float64 instructions, and conversions from and to it
    shared: int  # accesses of shared memory
    local: int  # accesses of local memory
    branches: int
    calls: int  # divisions of 64 bits
    generic: int  # accesses of memory that is not known to be global
    straight: bool  # no loop: what is in none

    @property
    def moved(self) -> int:
        """Bytes from and to global memory."""
        return sum(self.loads) + sum(self.stores)


class Found(NamedTuple):
    """A kernel, assembled."""

    registers: int
    spilled: int  # bytes
    stack: int
    shared: int
    instructions: int
    divisions: tuple[int, int]  # in the PTX: of 64 bits, of 32
    loops: tuple[Loop, ...]  # that touch global memory; the first moves most


def missing() -> str:
    """The program that is not to be found here, or ""."""
    return next((name for name in ("ptxas", "nvdisasm") if not _program(name)), "")


@functools.cache
def _program(name: str) -> str:
    named = os.environ.get(name.upper()) or shutil.which(name)
    if named:
        return named
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    paths = [path for root in roots for path in Path(root).glob(f"*/bin/{name}")]
    return str(paths[0]) if paths else ""


def inspected(text: str, arch: str) -> Found:
    """A kernel's PTX, assembled for `arch` and read again."""
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "k.ptx"), Path(folder, "k.cubin")
        source.write_text(text)
        report = _run("ptxas", f"-arch={arch}", "-v", str(source), "-o", str(cubin)).stderr
        listing = _run("nvdisasm", "-c", str(cubin)).stdout
    lines = _instructions(listing)
    loops = sorted((_loop(*part) for part in _parts(lines)), key=_weight, reverse=True)
    return Found(
        _number_in(r"Used (\d+) registers", report),
        _number_in(r"(\d+) bytes spill stores", report)
        + _number_in(r"(\d+) bytes spill loads", report),
        _number_in(r"(\d+) bytes stack frame", report),
        _number_in(r"(\d+) bytes smem", report),
        sum(1 for kind, _ in lines if kind != "label"),
        (len(re.findall(r"\b(?:div|rem)\.[su]64", text)),
         len(re.findall(r"\b(?:div|rem)\.[su]32", text))),
        tuple(one for one in loops if one.moved) or (_loop(lines, True),),
    )  # fmt: skip


def _weight(loop: Loop) -> float:
    """Return a loop's weight; code in no loop runs once, and counts only if it moves much more."""
    return loop.moved / 3 if loop.straight else loop.moved


def _run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    process = subprocess.run(
        [_program(name), *arguments], capture_output=True, text=True, check=False
    )
    if process.returncode:
        raise RuntimeError(f"{name} {' '.join(arguments)}: {process.stderr or process.stdout}")
    return process


def _number_in(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0


Line = tuple[str, str]  # ("label", its name) or (opcode, the rest)


def _instructions(listing: str) -> list[Line]:
    """The kernel's own instructions, and its labels."""
    instructions: list[Line] = []
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            if label[1].startswith("$"):  # a function behind the kernel
                break
            instructions.append(("label", label[1]))
        elif (instruction := _LINE.match(line)) and instruction[2] != "NOP":
            instructions.append((instruction[2], instruction[3]))
    return instructions


def _parts(lines: list[Line]) -> list[tuple[list[Line], bool]]:
    """Return the innermost loops, and the lines in no loop."""
    places = {rest: i for i, (kind, rest) in enumerate(lines) if kind == "label"}
    spans: dict[int, int] = {}
    for i, (kind, rest) in enumerate(lines):
        target = _TARGET.search(rest) if kind.startswith("BRA") else None
        begin = places.get(target[1], i) if target else i
        if begin < i - 1:  # BRA to itself ends a program
            spans[begin] = i
    inner = [
        (a, b) for a, b in spans.items()
        if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in spans.items())
    ]  # fmt: skip
    straight = [line for i, line in enumerate(lines) if not any(a <= i <= b for a, b in inner)]
    return [*((lines[a : b + 1], False) for a, b in inner), (straight, True)]


def _loop(lines: list[Line], straight: bool) -> Loop:
    codes = [kind for kind, _ in lines if kind != "label"]
    loads = [_bytes(c) for c in codes if c.startswith(("LDG", "LD."))]
    stores = [_bytes(c) for c in codes if c.startswith(("STG", "ST."))]
    first = next((i for i, c in enumerate(codes) if c.startswith(("STG", "ST."))), len(codes))
    ahead = sum(_bytes(c) for c in codes[:first] if c.startswith(("LDG", "LD.")))
    return Loop(
        len(codes), tuple(loads), tuple(stores), ahead,
        sum(c.startswith(("DADD", "DMUL", "DFMA", "DSETP", "DMNMX")) or "F64" in c or "64H" in c
            for c in codes),
        sum(c.startswith(("LDS", "STS", "ATOMS")) for c in codes),
        sum(c.startswith(("LDL", "STL")) for c in codes),
        sum(c.startswith(("BRA", "BRX")) for c in codes),
        sum(kind.startswith("CALL") and "64" in rest for kind, rest in lines),
        sum(c.startswith(("LD.", "ST.")) for c in codes),
        straight,
    )  # fmt: skip


def _bytes(opcode: str) -> int:
    return next((_SIZES[part] for part in opcode.split(".") if part in _SIZES), 4)
