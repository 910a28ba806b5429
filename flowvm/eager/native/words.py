"""The words that native calls look at: addresses of objects, and places in them.

Compiled code is kept from one process to the next, so it names no address itself: they are in a
SITE for each operator and in one SHARED table for all.  Words that hold addresses of objects are
borrowed references; who makes a table keeps the objects.

MISS and FAILED are what steps answer where a reference is expected: the twin is to make the call;
a Python exception is set.  No address of an object is so low.
"""

from __future__ import annotations

from flowvm.vm.machine.record import Record, field, record

MISS, FAILED = -1, 0
MOST_SAVED = 8  # operands that a native call saves for a gradient
MOST_WRITTEN = 8  # operands that it changes
MOST_RELEASED = 24  # storages that one record releases
FLOAT, INT = ord("d"), ord("q")  # the kinds of numbers in a record, as `struct` calls them


@record()
class SHARED(Record):
    """What all operators have in common."""

    # places in objects, in bytes from their beginning
    TYPE_AT = field("an object's class")
    FILENAME_AT = field("a code object's file name")
    TENSOR_EXTRA = field("a Tensor's _extra, which few have")
    TENSOR_META = field("its _meta")
    TENSOR_NODE = field("its _node")
    TENSOR_REF = field("its _ref")
    TENSOR_STORAGE = field("its _storage")
    STORAGE_ID = field("a Storage's id")
    STORAGE_VERSION = field("its version")
    NODE_ATTRS = field("a Node's attrs")
    NODE_EDGES = field("its edges")
    NODE_METAS = field("its metas")
    NODE_OPERATOR = field("its operator")
    NODE_OUT_METAS = field("its out_metas")
    NODE_SAVED = field("its _saved")
    NODE_SEQ = field("its seq")
    NODE_VERSIONS = field("its versions")
    ENTRY_VALUE = field("what a with statement says, in its _Entry")
    # classes and constants
    TENSOR = field("the class Tensor")
    PARAMETER = field("the class Parameter, or 0")
    BASE_NAME = field("'base', what a view is of, in its _extra")
    STORAGE = field("the class Storage")
    NODE = field("the class Node")
    FLOAT = field("the class float")
    INT = field("the class int")
    BOOL = field("the class bool")
    LIST = field("the class list")
    ENTRY = field("the class of what with statements say")
    NONE = field("None")
    KEY_ERROR = field("the class KeyError")
    ATTRIBUTE_ERROR = field("the class AttributeError")
    TYPE_ERROR = field("the class TypeError")
    # what issuing touches: see `flowvm.vm.callers.hot`
    HOT = field("the dict `hot` itself")
    COUNTER_NAME = field("'counter', which is another object during a fork")
    LIMIT_NAME = field("'limit'")
    RING = field("address of the first record")
    CONTROL = field("address of the control words")
    POP = field("takes a free storage id")
    DEAD = field("list of storage ids that nothing refers to")
    RELEASES = field("list of the entries that release so many")
    ADOPTED = field("dict: not empty while storages have memory that is not the VM's")
    STREAM_OF = field("dict: not empty while storages are of other streams")
    RELEASED = field("the ids that are being released", words=MOST_RELEASED, by="who has the GIL")
    CODES = field("list of the code objects that issued")
    LASTS = field("list of the offsets in them")
    DEPARTED = field("set: not empty while a thread departs")
    AUTOCAST = field("set: not empty while a thread is in a region of autocast")
    UNRECORDED = field("set: not empty while a thread says whether it records")
    ASKERS = field("dict: not empty while somebody is to be told of nodes")
    GRAD_ENABLED = field("says whether this thread records")
    USER_FILES = field("set of the names of users' files")
    INTERNAL = field("dict: whether a file is flowvm's, by names that were asked for")
    TRUE = field("True")
    FIND_USER = field("finds the user's place from a frame up")
    USER_LINES = field("what each thread's with statements say of the user's place")
    ENTRIES_NAME = field("'entries', in which it says so")
    PLACE = field("where a dict is gone through, and what was found", words=2, by="who has the GIL")
    FINISH = field("what is due behind a record: `flowvm.eager.calls.finish_call`")


@record()
class SITE(Record):
    """One operator."""

    SHARED = field("address of the SHARED table")
    TWIN = field("the Python function")
    CACHE = field("dict from metas and attributes to entries")
    ARGUMENTS = field("how many there are: inputs, attributes and scalars; -1: never native")
    OUTPUTS = field("1, or 0: it writes inputs")
    INPUTS = field("how many tensors come first")
    ATTRS = field("how many attributes follow")
    SCALARS = field("how many dynamic numbers come last")
    KINDS = field("their struct codes, a str; 0: the entry has them, last to first")
    CONVERTED = field("1: autocast may convert the inputs")
    OPERATOR = field("the operator, if it has a gradient, else 0")
    SAVES = field("how many operands its gradient needs")
    SAVED = field("their places among the inputs, -1 for the output", words=MOST_SAVED)
    OVER = field("1: its result goes over its first input, where nothing is recorded")
    WRITES = field("how many inputs it writes; the first of them is what it gives")
    WRITTEN = field("their places among the inputs", words=MOST_WRITTEN)
    NUMBERED = field("address of the SITE of `op(tensor, number)`, 0 where there is none")
    HITS = field("calls made natively", by="whoever has the GIL")
    MISSES = field("calls left to the twin", by="whoever has the GIL")
