"""Memory of simulated devices: host memory whose bounds are remembered.

A block has guard bytes on both sides, which are checked when it is freed.  It begins filled with
bytes of ones, which are NaN as floats.  Code that touches memory calls `Memory.check` first.  So an
access outside any block, to freed memory or past a block's end is a Fault that says so.
"""

from __future__ import annotations

import bisect
import collections
import ctypes
from dataclasses import dataclass
from typing import Final

from flowvm.cuda.driver.results import name_of

INVALID_VALUE, OUT_OF_MEMORY, ILLEGAL_ADDRESS = 1, 2, 700
HOST: Final = -1  # the "device" of page-locked host memory
ALIGNMENT: Final = 512
GUARD: Final = 512
POISON: Final = 0xFF
GUARD_BYTE: Final = 0xA7
REMEMBERED: Final = 4096  # freed blocks that an error can still name

_libc = ctypes.CDLL(None, use_errno=True)
_libc.aligned_alloc.restype = ctypes.c_void_p
_libc.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]


class Fault(Exception):  # noqa: N818 - the word for it
    """A failed call or task of a stream: the driver's result, and the reason as text."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{why} ({name_of(code)})")
        self.code = code
        self.why = why


@dataclass(frozen=True, order=True)
class Block:
    """Memory from cuMemAlloc (of a device) or cuMemHostAlloc (of HOST)."""

    address: int
    size: int
    device: int

    @property
    def end(self) -> int:
        return self.address + self.size

    def __str__(self) -> str:
        where = "host" if self.device == HOST else f"cuda:{self.device}"
        return f"{self.size} bytes at {self.address:#x} on {where}"


class Memory:
    """All memory blocks of all devices; `limit` is the bytes of one device."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.blocks: list[Block] = []  # by address
        self.freed: collections.deque[Block] = collections.deque(maxlen=REMEMBERED)
        self.used: collections.Counter[int] = collections.Counter()  # bytes by device

    def allocate(self, size: int, device: int) -> int:
        """The address of `size` bytes."""
        if size == 0:
            raise Fault(INVALID_VALUE, "0 bytes were asked for")
        free = self.limit - self.used[device]
        if device != HOST and size > free:
            raise Fault(OUT_OF_MEMORY, f"{size} bytes were asked for and {free} are free")
        whole = -(-(size + 2 * GUARD) // ALIGNMENT) * ALIGNMENT
        base = _libc.aligned_alloc(ALIGNMENT, whole)
        if not base:
            raise Fault(OUT_OF_MEMORY, f"the host has no {whole} bytes")
        ctypes.memset(base, GUARD_BYTE, whole)
        ctypes.memset(base + GUARD, POISON, size)
        block = Block(base + GUARD, size, device)
        bisect.insort(self.blocks, block)
        self.used[device] += size
        return block.address

    def free(self, address: int, on_host: bool) -> None:
        """Give a block back; its address must be the one that `allocate` gave."""
        block = self._block_of(address)
        if block is None or block.address != address:
            raise Fault(INVALID_VALUE, f"freed {address:#x}, {self._history(address)}")
        if (block.device == HOST) != on_host:
            raise Fault(INVALID_VALUE, f"freed {block} by the other memory's function")
        self.check_guards(block)
        self.blocks.remove(block)
        self.used[block.device] -= block.size
        self.freed.append(block)
        ctypes.memset(block.address, POISON, block.size)
        _libc.free(block.address - GUARD)

    def check_guards(self, block: Block) -> None:
        """Raise Fault if the guard bytes before or behind a block were overwritten."""
        want = bytes([GUARD_BYTE]) * GUARD
        for side, at in (("before", block.address - GUARD), ("behind", block.end)):
            if ctypes.string_at(at, GUARD) != want:
                raise Fault(ILLEGAL_ADDRESS, f"somebody wrote {side} the block of {block}")

    def find(self, address: int) -> Block | None:
        """The block that `address` lies in."""
        block = self._block_of(address)
        return block if block is not None and address < block.end else None

    def on_host(self, address: int) -> bool:
        """Return True if the address is in no device's memory."""
        block = self.find(address)
        return block is None or block.device == HOST

    def check(self, address: int, size: int, what: str, device: int | None = None) -> Block:
        """The block that holds `size` bytes at `address`, which `device` may touch."""
        block = self.find(address)
        if block is None:
            raise Fault(ILLEGAL_ADDRESS, f"{what} is at {address:#x}, {self._history(address)}")
        if address + size > block.end:
            past = address + size - block.end
            raise Fault(ILLEGAL_ADDRESS, f"{what} goes {past} bytes past the end of {block}")
        if device is not None and block.device not in (HOST, device):
            raise Fault(ILLEGAL_ADDRESS, f"{what} is on another device: {block}")
        return block

    def _block_of(self, address: int) -> Block | None:
        """The last block that begins at `address` or before."""
        place = bisect.bisect(self.blocks, address, key=lambda block: block.address)
        return self.blocks[place - 1] if place else None

    def _history(self, address: int) -> str:
        for block in reversed(self.freed):
            if block.address <= address < block.end:
                return f"which was freed: it was in {block}"
        return "which is in no block"
