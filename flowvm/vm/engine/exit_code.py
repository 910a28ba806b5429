"""The exit code of a process whose issued work has failed unseen: 1, where it would be 0.

Python has settled the code before it calls exit functions, and has no way to change it then.  So
the C library is told to call a function of its own exit (`on_exit`), with the code, when Python has
ended.  Codes that a program chooses, such as `sys.exit(3)`, and a death by a signal stay.
"""

from __future__ import annotations

import ctypes

from flowvm.private.cpython import never_freed
from flowvm.vm.machine.device_words import CALL
from flowvm.vm.machine.lang import address_of, call_address, load_word

WORDS_ONLY = True
_SIGNATURE = "int64(int64, int64)"  # a code has 32 bits of its word


def ended(code: int, leave: int) -> int:
    """Call the function at the first of the words at `leave`, with those behind it, if the code of
    a process that is about to end is 0.
    """
    if code & 0xFFFFFFFF:
        return 0
    return call_address(load_word(leave), leave + 8)


def fail() -> None:
    """Let this process end with 1 if it would end with 0."""
    libc = ctypes.CDLL(None)
    libc.on_exit.argtypes = ctypes.c_void_p, ctypes.c_void_p
    address = ctypes.cast(libc.exit, ctypes.c_void_p).value or 0
    leave = (ctypes.c_int64 * (1 + CALL.WORDS))(address, 1)
    never_freed(leave)  # it is read when Python has ended
    libc.on_exit(address_of(ended, _SIGNATURE), ctypes.addressof(leave))
