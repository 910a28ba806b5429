"""The globals of generated call functions, which every issuing thread touches, and the numbers of
the streams that always exist.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from flowvm.vm.machine.words import RING

CALL_STREAM, HOST_STREAM, FIRST_USER_STREAM = 0, 1, 2
FRAMES = RING.SLOTS  # issuing frames remembered: an error is read before its slot comes round

# The globals of generated call functions (see `flowvm.eager.calls`), and all that issuing
# touches. A plain dict, because CPython reads globals fastest from one.
#
#   ring            memoryview of RING's bytes; control: memoryview of CTL's words
#   counter         hands out sequence numbers (`itertools.count`: atomic)
#   limit           records below it may be issued without looking at anything
#   free            storage ids ready for use; dead: ids of storages that nothing refers to any more
#   codes, lasts    code object and instruction offset of the frame that issued, by sequence number
#   after           called when a record was published and the scheduler sleeps, does not run, or is
#                   not wanted
hot: dict[str, Any] = {"__builtins__": builtins}

# further counters of `flow.vm.stats()`, from rooms above
counted: list[Callable[[], dict[str, int]]] = []
