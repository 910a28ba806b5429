"""Words of the sampler: what it looks at, with what, and what it has seen.  They lie outside the
VM's array, in memory that Python makes (`flowvm.vm.watch.sampling`).
"""

from __future__ import annotations

from flowvm.vm.machine.record import Record, field, record

PYTHON = "Python, before the thread starts"
SAMPLER = "the sampler's thread"


@record(by=SAMPLER)
class SEEN(Record):
    """A sample of a thread at a moment.  Behind these words lie FRAMES of three words each, from
    the innermost on.  A frame's words are a code object's address, an address in its code, and the
    code object's identity.
    """

    MARK = field("its number + 1, written last")
    TIME = field("nanoseconds of the monotonic clock")
    THREAD = field("whose, as `threading.get_ident` says")
    USED = field("nanoseconds of processor time that the thread has used")
    DEPTH = field("frames")
    FRAMES = field("the first frame's code, place and name", words=3 * 32)
    MOST = 32
    WORDS = 5 + 3 * 32
    LENGTH = 1 << 14  # samples that are remembered


@record(by=PYTHON)
class WATCHED(Record):
    """A thread that the sampler looks at."""

    STATE = field("address of its state in the interpreter, 0: nobody", by="the thread")
    THREAD = field("its number in Python", by="the thread")
    CLOCK = field("the number of its processor clock", by="the thread")
    LAST = field("place of its last sample in the ring + 1, or 0", by=SAMPLER)
    WORDS = 4
    LENGTH = 16  # threads at most


@record(by=PYTHON)
class SAMPLING(Record):
    """The inputs of the sampler's thread.  Behind them lie WATCHED.LENGTH WATCHED."""

    STOP = field("1: leave", by="Python")
    PERIOD = field("microseconds between two looks")
    COUNT = field("samples so far", by=SAMPLER)
    LOOKS = field("looks so far", by=SAMPLER)
    RING = field("address of SEEN.LENGTH SEEN")
    PID = field("this process's number")
    READ = field("address of process_vm_readv")
    CLOCK = field("address of clock_gettime")
    CALL = field("address of words for a call's arguments")
    SPANS = field("address of pairs (address, size): one to read to, those to read from")
    WINDOW = field("address of WINDOW_BYTES that memory is read to")
    # places in the interpreter: see `flowvm.private.frames.Layout`
    CURRENT = field("of a thread's state")
    THROUGH = field("of what is there, or -1")
    CODE = field("of a frame")
    BEFORE = field("of a frame")
    AT = field("of a frame")
    NAME = field("of a code object")
    TABLE = field("of a code object")
    WATCHED = field("the first thread", words=4 * 16)
    WINDOW_BYTES = 4096
    AHEAD = 512  # of these, behind the frame that is looked at
    WORDS = 18 + 4 * 16
