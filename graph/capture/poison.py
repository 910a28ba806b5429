"""The instructions issued in place of captured operations: they poison their outputs.

A reader of such a value gets a CaptureError by the VM's one mechanism for failed instructions.
"""

from __future__ import annotations

import functools

from flowvm.compiler import jit
from flowvm.errors import Status
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import KIND, OPERAND

WORDS_ONLY = True


def no_value(args: int, layout: int, lo: int, hi: int) -> int:
    """Run as the kernel of an instruction in a captured operation's place."""
    return CAPTURED


CAPTURED = int(Status.CAPTURED)


@functools.cache
def _instead(outputs: int, name: str) -> list[int]:
    """Return the entry of instructions that poison `outputs` outputs, in a list.

    The list is emptied when the VM forgets its entries.
    """
    return []


def entry_instead(outputs: int, name: str) -> int:
    """An entry that looks at an operation's outputs alone: each fails by itself, so that the error
    of one names its own line.
    """
    known = _instead(outputs, name)
    if not known:
        kernel = jit.native(no_value, "int32(int64, int64, int64, int64)")
        known.append(
            engine.entries.new(KIND.OP_CALL, [OPERAND.MUT] * outputs, kernel=kernel, info=name)
        )
    return known[0]


engine.entries.on_full.append(_instead.cache_clear)
