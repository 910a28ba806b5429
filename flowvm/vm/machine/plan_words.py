"""Words of a Plan: its tasks, which `flowvm.graph.plan.words` writes and workers read, and its
actors on several streams, which those streams' workers share (see `flowvm.vm.workers.actors`).
They lie outside the VM's array, in memory whose address the LAYOUT of a LaunchPlan's entry says.
"""

from __future__ import annotations

from flowvm.vm.machine.record import LINE, Record, field, line, record

PYTHON = "Python, before the first launch"
HOME_WORKER = "the worker of the home stream"
ACTOR_WORKER = "the worker of its stream"


@record(words=8, by=PYTHON)
class PLAN(Record):
    """A Plan's first words; tasks and tables follow."""

    TASKS = field("how many")
    OPERANDS = field("operands of a launch: outputs, then inputs")
    SIZES = field("where the table of their bytes begins in these words")
    FIRST = field("where the first task begins in these words")
    MADE = field("operands that are outputs")
    INPUTS = field("operands that are inputs")
    ACTORS = field("address of the actors or 0")
    GRAPH = field("address of what is known of its graph on a device, or 0")


@record(by=PYTHON)
class TASK(Record):
    """A task of a Plan.

    An operand of it: source | written << SOURCE_BITS | byte offset above; source 0 is the chunk of
    the launch, source k its operand k - 1.  A scalar: number of the launch's live scalar or -1; its
    value, or how far the live scalar's number moves from one repetition to the next.  STEPS: by how
    many bytes an operand moves from one repetition to the next; after how many it is where it was.
    """

    LENGTH = field("its length in words")
    KERNEL = field("the kernel's address")
    LAYOUT = field("its layout words")
    UNITS = field("work units")
    GRAIN = field("units of a chunk, at least")
    PHASES = field("address of further phases")
    MORE = field("how many of them")
    SCRATCH = field("where in the chunk its scratch memory is, -1 for none")
    COUNT = field("operands")
    SCALARS = field("scalars")
    REPEAT = field("how often the task runs in a launch; if more than once:")
    SECTION = field("tasks from this one to the end of those that run together as often")
    STEPS = field("address, or 0, of two words for each operand: see below")
    ZONES = field("address of what the memory check knows of the task's part of the chunk, or 0")
    OPERANDS = field("operands, a word each, then scalars, two each")

    SOURCE_BITS = 20
    SOURCE_MASK = (1 << SOURCE_BITS) - 1


# --- actors -----------------------------------------------------------------------------------


@record(words=5 * LINE, by=PYTHON)
class RUNTIME(Record):
    """The actors of a Plan, one array: these words, then a LAUNCH for each launch in flight, then
    the actors, then their lists.
    """

    DEPTH = field("launches in flight at most: `regst_num`, how many chunks there are at one time")
    ACTORS = field("how many")
    FIRST = field("where the first actor's words begin")
    HOME = field("the stream that launches are issued on: its worker opens and closes them")
    RAN = field("for each launch in flight, how many of its tasks each actor has run: where it is")
    STARTED = line("launches opened", by=HOME_WORKER)
    CLOSED = line("no launch will follow", by="any thread, once")
    FINISHED = line("launches closed", by=HOME_WORKER)
    FAILED = line("one in flight failed", by="actors")


@record(words=2 * LINE, by=HOME_WORKER)
class LAUNCH(Record):
    """A launch in flight."""

    CHUNK = field("address of its chunk")
    SCALARS = field("address of its live scalars")
    STATUS = field("what it failed with", by="the actor that failed first")
    TASK = field("at which task", by="that actor")
    LEFT = field("actors that have not acted for it", by="actors")
    SLOT = field("of its instruction")
    ENTRY = field("of its instruction")
    CAUSE = field("what poisoned it")
    DETAILS = field("what the kernel said of the error", words=6, by="that actor")
    ALONE = field("no other launch may be in flight beside it")


@record(words=4 * LINE, by=PYTHON)
class ACTOR(Record):
    """An actor: a chain of tasks on one stream."""

    ACTED = line("how often it has acted: its message to all whom it tells", by=ACTOR_WORKER)
    QUEUED = field("a message to it lies in a mailbox", by="whoever sends or takes it")
    ENDED = field("EORD is with it, and passed on when it has looked", by=ACTOR_WORKER)
    LOOKING = field("a message to it is being answered", by=ACTOR_WORKER)
    PLAN = field("address of RUNTIME", at=2 * LINE)
    STREAM = field("its stream")
    WORDS_AT = field("address of its first task's words")
    TASK = field("number of its first task")
    TASKS = field("how many")
    IN = field("producers, a list: where it is")
    INS = field("its length")
    CREDIT = field("consumers and their credits, a list: where it is")
    CREDITS = field("its length")
    TELL = field("actors that it tells, a list: where it is")
    TELLS = field("its length")
    TIMES = field("how often it acts for a launch")
