"""Words of a waiting thread's cell, which the end of its wait is written into.  They lie outside
the VM's array, in memory that Python makes.
"""

from __future__ import annotations

from flowvm.vm.machine.record import Record, field, record

SCHEDULER = "the scheduler"
PYTHON = "Python, before the first wait"


@record(words=16, by="the waiting thread")
class WAIT(Record):
    """A waiting thread's cell, used again by its next wait."""

    OUTCOME = field("0 while it waits, 1, or -cause of the poison", by=SCHEDULER)
    SLEEPERS = field("the threads that sleep until OUTCOME is written")
    OVER = field("when the wait was over, from the recorder's level 2 on")
    TEXT_BYTES = 64
    TEXT = field("of then, a file of the system: how long it had no core", words=TEXT_BYTES // 8)
    FILE = field("address of that file's name", by=PYTHON)
    OPEN = field("address of C's `open`", by=PYTHON)
    READ = field("address of C's `read`", by=PYTHON)
    CLOSE = field("address of C's `close`", by=PYTHON)
    FLAGS = field("how it is opened", by=PYTHON)
