"""Words of a device's stream: the functions that its worker calls, their arguments, its events and
their times, its instructions' steps, and a Plan's graph.  They lie outside the VM's array, in
memory that Python makes.  STR.BLOCK, or an instruction's layout, has its address.

Python writes them before the stream's first instruction, and the stream's worker after that, if
nothing else is said.
"""

from __future__ import annotations

from flowvm.vm.machine.record import Record, field, record

PYTHON = "Python, before the first instruction"
WORKER = "the stream's worker"
DEVICE = "the device"


@record()
class CALL(Record):
    """A call by address; DEV.CALL has the address of its words."""

    WORDS = 24  # arguments of a C function
    PARAM_WORDS = 512  # parameters of a kernel: 4 KiB


@record(words=47, by=PYTHON)
class DEV(Record):
    """A device stream's block: what its worker calls, by address, and its handles (see
    `flowvm.vm.workers.device`).
    """

    STREAM = field("the driver's stream")
    CONTEXT = field("its context")
    CUBLAS = field("handle of cuBLAS")
    LINES = field("address of a LINES for each slot of the queue")
    EVENTS = field("address of EVENT.LENGTH places for events, a ring")
    CALL = field("address of words for a call's arguments")
    RECORDED = field("events recorded", by=WORKER)
    PASSED = field("events that have passed", by=WORKER)
    SINCE = field("instructions launched behind the last event", by=WORKER)
    WAIT_EVENT = field("an event for other streams to wait for")
    FAILED = field("the driver's code, once a call has failed for good", by=WORKER)
    LINE = field("address of the line of the instruction that is launched", by=WORKER)
    STAGES = field("address of STAGE_COUNT pairs: a pinned buffer, the event behind its last use")
    STAGE_BYTES = field("bytes of such a buffer")
    STAGED = field("buffers used so far", by=WORKER)
    TWIN = field("address of the block of the stream that graphs are captured on")
    # functions of the driver, by their names: their addresses
    F_LAUNCH = field("cuLaunchKernel")
    F_SET_CONTEXT = field("cuCtxSetCurrent")
    F_RECORD = field("cuEventRecord")
    F_QUERY = field("cuEventQuery")
    F_WAIT_EVENT = field("cuStreamWaitEvent")
    F_SYNCHRONIZE = field("cuStreamSynchronize")
    F_ALLOCATE = field("cuMemAlloc_v2")
    F_FREE = field("cuMemFree_v2")
    F_ALLOCATE_HOST = field("cuMemHostAlloc")
    F_FREE_HOST = field("cuMemFreeHost")
    F_COPY_IN = field("cuMemcpyHtoDAsync_v2")
    F_COPY_OUT = field("cuMemcpyDtoHAsync_v2")
    F_COPY_PEER = field("cuMemcpyPeerAsync")
    F_SYNCHRONIZE_EVENT = field("cuEventSynchronize")
    F_MEMCPY = field("memcpy, of the C library")
    F_BEGIN_CAPTURE = field("cuStreamBeginCapture_v2")
    F_END_CAPTURE = field("cuStreamEndCapture")
    F_INSTANTIATE = field("cuGraphInstantiateWithFlags")
    F_UPDATE = field("cuGraphExecUpdate_v2")
    F_LAUNCH_GRAPH = field("cuGraphLaunch")
    F_DESTROY_GRAPH = field("cuGraphDestroy")
    F_DESTROY_EXEC = field("cuGraphExecDestroy")
    F_CLEAR = field("cuMemsetD8Async")
    F_COPY = field("cuMemcpyDtoDAsync_v2")
    F_ELAPSED = field("cuEventElapsedTime")
    TIMES = field("from level 3 on: address of a ring of TIME, one for each record of REC")
    BASE = field("the timed event that times count from", by=WORKER)
    BASE_NS = field("its own time", by=WORKER)
    REFUSED = field("what the driver last answered to the allocator's wish", by=WORKER)
    F_CAPTURE_MODE = field("cuThreadExchangeStreamCaptureMode")
    EACH = field("1: an event behind each instruction, for each waits for other ranks")

    STAGE_COUNT = 4


@record(words=8, by=DEVICE)
class LINES(Record):
    """Reports of kernels about an instruction: a line for each slot of the queue."""

    DETAILS = field("of an error", words=6)
    STATUS = field("0, or what it failed with")


@record(words=5, by=WORKER)
class EVENT(Record):
    """A place in DEV.EVENTS."""

    EVENT = field("the driver's event", by=PYTHON)
    PLACE = field("how many instructions were launched before it")
    BEGIN = field("an event with timing in front of the one that has an event of its own")
    END = field("another behind it")
    TIMED = field("whether these two were recorded, and END stands for EVENT")

    LENGTH = 64


@record(words=3, by=WORKER)
class TIME(Record):
    """The times at which a device ran an instruction: ns of its clock."""

    MARK = field("sequence number + 1")
    BEGAN = field("when it began")
    ENDED = field("when it ended")


# --- steps -----------------------------------------------------------------------------------


@record(by=PYTHON)
class STEP(Record):
    """A step of a device's instruction, in its layout words (see `flowvm.vm.workers.steps`)."""

    LENGTH = field("words to the next one")
    KIND = field("KERNEL or FUNCTION_CALL")
    COUNTS = field("whether the call that counts rows takes it")
    FUNCTION = field("what is launched or called")
    TEMPLATE_WORDS = field("how many")
    PATCHES = field("how many")
    GRID = field("x, y, z", words=3)
    BLOCK = field("x, y, z", words=3)
    SHARED = field("bytes")
    TEMPLATE = field("its words, then patches: position, source, what is added")

    KERNEL, FUNCTION_CALL = 0, 1


@record()
class SOURCE(Record):
    """Sources of patches, with a number k above."""

    ARG = 0  # an operand's address or a scalar (in the order of words.ARG)
    SCRATCH = 1  # scratch memory
    LINE = 2  # the instruction's line
    BLOCK = 3  # word k of the stream's block
    HERE = 4  # the address of word k of the steps
    HELD = 5  # the word at the address that the patch adds
    SHIFT = 8


# --- a Plan's graph on a device (see `flowvm.vm.workers.device_graph`) -----------------------


@record(words=24, by=PYTHON)
class GRAPH(Record):
    """The words of a graph's worker.  From LISTS on follow: for each operand its offset in the
    graph's memory (-1: it stays in place) and its bytes; the table with which the graph was
    captured; the lists that the places (..._AT) name.
    """

    MODE = field("SETTLING, READY or DIRECT", by=WORKER)
    EXEC = field("the driver's graph that can be launched", by=WORKER)
    CHANGES = field("launches in a row that differ from the one before", by=WORKER)
    CODE = field("why DIRECT", by=WORKER)
    LAUNCHES = field("how many there were", by=WORKER)
    OPERANDS = field("operands of a launch")
    MADE = field("those that it makes")
    INPUTS = field("inputs")
    SCALARS = field("live scalars")
    STORAGE = field("the storage of the graph's own memory")
    CHUNK = field("where in that the chunk is")
    STREAM = field("the stream whose order that goes by")
    LINES = field("lines of tasks")
    LINES_AT = field("where in the chunk they are")
    NUMBERS_AT = field("where in it the live scalars are")
    PUT = field("address of steps that write those, and begin tasks; 0: none")
    COLLECT = field("address of steps that look through the lines")
    REPORTERS_AT = field("place in these words of a REPORTER for each line")
    BRANCHES_AT = field("place of the places of the branches")
    BRANCHES = field("how many there are")
    LANES_AT = field("place of the other lanes' blocks")
    LANES = field("how many there are")

    LISTS = 24
    SETTLING, READY, DIRECT = 0, 1, 2  # MODE


@record(words=3, by=PYTHON)
class REPORTER(Record):
    """The task behind a line of reports."""

    TASK = field("its task")
    FIRST = field("place in GRAPH's words of the operands that depend on it")
    COUNT = field("how many these are")


@record(words=6, by=PYTHON)
class BRANCH(Record):
    """A branch of a graph; then follow the events that it waits for."""

    BLOCK = field("its lane's block")
    WORDS_AT = field("address of its first task's words")
    FIRST = field("that task's number")
    COUNT = field("how many tasks")
    EVENT = field("the event recorded behind it or 0")
    WAITS = field("how many events it waits for")
