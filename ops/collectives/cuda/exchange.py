"""The steps of an exchange on a CUDA device: it is announced, enqueued by NCCL, and counted.

The worker *announces* it on the board when it hands it over, or each launch of a graph that it is
in: whoever comes later sees that another rank has begun something else, and nobody enqueues what
can never end.  NCCL's calls come next, on the lane's stream.  Behind them a kernel counts the
exchange as passed, and lets it fail if it ended because the watcher ended it.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda

from flowvm.compiler import jit
from flowvm.cuda.driver.driver import others
from flowvm.cuda.launch import (
    STATUS_AT,
    CudaLaunch,
    Details,
    KernelStep,
    LibraryStep,
    Operand,
    Step,
    Words,
)
from flowvm.errors import CommunicationError, FlowError, Status
from flowvm.launch import Launch, View
from flowvm.meta.dtype import int64
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.collectives.cuda.nccl import NCCL
from flowvm.ops.collectives.exchanges import Exchange
from flowvm.ops.collectives.parts.board import begin, different, text_words
from flowvm.ranks.watcher import ALERTED, DIFFERENT
from flowvm.ranks.words import ALERT, ROW, STEP, TALLY
from flowvm.ranks.world import world
from flowvm.vm.machine.lang import futex_wait, load_word, store_word, words_at

FAILED = int(Status.RANKS_FAILED)
NAP_US = 100
# words of an announcement: then follow the text and the others' rows
ROW_AT, SIGN, ALERT_AT, TALLY_AT, HANDLE_AT, MEMBERS, TEXT = range(7)
MEMBERS_AT = TEXT + STEP.TEXT_WORDS


def steps(launch: Launch, metas: tuple[TensorMeta, ...], attrs: Attrs) -> CudaLaunch:
    """The rule of all exchanges."""
    e: Exchange = launch.plan
    lane: Any = e.lane  # a CudaLane
    lane.rows.add(e.row)
    operands = len(launch.outputs) + len(metas)
    order = Operand(operands - 1, View(int64, (TALLY.WORDS,)))
    passed = KernelStep(_passed, (order, Details()), (1, 1, 1), (1, 1, 1))
    device_steps: tuple[Step, ...] = (*NCCL[e.kind](e), passed)
    return CudaLaunch(launch.outputs, device_steps, 0, e.lane.stream.number, (_announcement(e),))


def _announcement(e: Exchange) -> LibraryStep:
    lane: Any = e.lane
    words = (
        e.row, e.sign, lane.alert, lane.address, e.joined.wire.address, len(e.rows),
        *text_words(e.encoded), *e.rows,
    )  # fmt: skip
    return LibraryStep("announce", (Words(words),), address=_announcing())


@functools.cache
def _announcing() -> int:
    address = jit.native(announce, "int32(int64)")
    others[address] = _error_of
    return address


def announce(at: int) -> int:
    """Show an exchange's begin on the board, by the words at `at`; return 0, or why it must not."""
    message = words_at(at, MEMBERS_AT)
    handle = words_at(message[HANDLE_AT], 1)
    while (
        load_word(message[ALERT_AT] + 8 * ALERT.RAISED) == 0 and load_word(message[HANDLE_AT]) == 0
    ):
        futex_wait(handle, 0, 0, NAP_US)
    if load_word(message[ALERT_AT] + 8 * ALERT.RAISED) != 0:
        return ALERTED
    begun = load_word(message[TALLY_AT] + 8 * TALLY.BEGUN) + 1
    store_word(message[TALLY_AT] + 8 * TALLY.BEGUN, begun)
    store_word(message[ROW_AT] + 8 * ROW.MARK, begun)  # before the number of what is begun
    seq = begin(message[ROW_AT], message[SIGN], at + 8 * TEXT)
    if different(message[ROW_AT], at + 8 * MEMBERS_AT, message[MEMBERS], seq) != 0:
        return DIFFERENT
    return 0


def _error_of(code: int) -> FlowError:
    """Return the error of an announcement that failed with `code`."""
    place = world()
    unlike = place.watcher.difference() if code == DIFFERENT and place.watcher else None
    own = f"rank {place.rank}"
    return unlike or CommunicationError(place.fault or f"{own} exchanges nothing any more")


def _passed(order: Any, line: Any) -> None:
    order[TALLY.PASSED] += 1
    if order[TALLY.RAISED] != 0:
        line[0] = ALERTED
        cuda.threadfence_system()
        line[STATUS_AT] = FAILED
