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
REFUSED, LEARN = 1, 2  # in the place of a trace: there is none; there may be one the next time
MOST_SAVED = 8  # operands that a native call saves for a gradient
MOST_WRITTEN = 8  # operands that it changes
MOST_RELEASED = 24  # storages that one record releases
MOST_OUTPUTS = 6  # of an operator
MOST_ARGUMENTS = 16  # of a step of a trace; tensors or not, of a call that has traces
MOST_PARTS = 34  # of the key of such a call, but for two
MOST_SAME = 7  # the place of the last tensor of a call that may be one of those before
MOST_VALUES = 32  # tensors that a trace is given or makes
RENEWAL = MOST_VALUES + 1  # behind them and their number: that of the renewal before the key
MOST_STEPS = 18  # of a trace
MOST_SCALARS = 16  # dynamic numbers of an operator whose kinds are known
MOST_KEY = 24  # words by which a call is known again
# of SITEs
OPERATOR, FRONT, GRADIENT, BACKWARD, START, UNRECORDED = range(6)
EACH, MODULE, NOTED, READ, LACK, CONSTANT = range(6, 12)
AS_ITEM, AS_BOOL, AS_FLOAT, AS_INT, AS_LIST, AS_ARRAY, AS_EQUAL = range(7)  # what a READ gives
SIGNED, FLOATING, BOOLEAN = 16, 32, 64  # of a dtype's code, beside the bytes of an element
CALL, VIEW, ALIAS, RECORD, INTO, PIECES = range(6)  # kinds of STEPs
OWN_INTO, OWN_CHANGE = 6, 7  # INTO and a CALL that writes, of memory that the trace made
FLOAT, INT = ord("d"), ord("q")  # the kinds of numbers in a record, as `struct` calls them


@record()
class SHARED(Record):
    """Words that all operators have in common."""

    # places in objects, in bytes from their beginning
    TYPE_AT = field("an object's class")
    FILENAME_AT = field("a code object's file name")
    TENSOR_EXTRA = field("a Tensor's _extra, which few have")
    TENSOR_KIN = field("a Tensor's _kin: what it is a view of, or its views")
    TENSOR_META = field("its _meta")
    TENSOR_NODE = field("its _node")
    TENSOR_REF = field("its _ref")
    TENSOR_STORAGE = field("its _storage")
    STORAGE_ID = field("a Storage's id")
    STORAGE_VERSION = field("its version")
    LOAN_ID = field("a Loan's id")
    LOAN_STORAGE = field("its storage")
    NODE_ATTRS = field("a Node's attrs")
    NODE_EDGES = field("its edges")
    NODE_METAS = field("its metas")
    NODE_OPERATOR = field("its operator")
    NODE_OUT_METAS = field("its out_metas")
    NODE_SAVED = field("its _saved")
    NODE_SEQ = field("its seq")
    NODE_VERSIONS = field("its versions")
    LEAF_AFTER = field("an AccumulateGrad's after")
    LEAF_HOOKS = field("its hooks")
    LEAF_TENSOR = field("its tensor, a weak reference")
    META_DEVICE = field("a TensorMeta's device")
    META_DTYPE = field("its dtype")
    META_NDIM = field("its ndim")
    META_NUMEL = field("its numel")
    META_SHAPE = field("its shape")
    META_STRIDE = field("its stride")
    COUNTER_AT = field("the number that a counter hands out next")
    SLICE_START = field("a slice's start")
    SLICE_STOP = field("its stop")
    SLICE_STEP = field("its step")
    ENTRY_VALUE = field("what a with statement says, in its _Entry")
    ENTRY_OWNER = field("whose it is")
    ENTRY_KEEP = field("what it keeps")
    CALL_LARGE = field("a CallEntry's large")
    CALL_OUTPUTS = field("its outputs")
    CALL_PACK = field("its scalar_pack")
    CALL_WORD = field("its word")
    EDGE_INDEX = field("an OutputEdge's index")
    EDGE_NODE = field("its node")
    BACKWARD_CODE = field("a Backward's code")
    BACKWARD_LAST = field("its last")
    # classes and constants
    TENSOR = field("the class Tensor")
    PARAMETER = field("the class Parameter, or 0")
    STORAGE = field("the class Storage")
    LOAN = field("the class Loan")
    ARRAY = field("the class numpy.ndarray")
    NODE = field("the class Node")
    OUTPUT_EDGE = field("the class OutputEdge")
    LEAF = field("the class AccumulateGrad, or 0")
    COUNTER = field("the class itertools.count")
    SLICE = field("the class slice")
    TUPLE = field("the class tuple")
    SIZE = field("the class Size")
    TYPE = field("the class type")
    META = field("the class TensorMeta")
    STR = field("the class str")
    DTYPE = field("the class DType")
    ELLIPSIS = field("Ellipsis")
    OPEN_LIST = field("stands before the tensors of a list in the keys of traces")
    OPEN_TUPLE = field("before those of a tuple, and before what a tuple has that has slices")
    CLOSE = field("and behind them")
    SLICED = field("before start, stop and step of a slice")
    COPY = field("Tensor.copy_")
    YES = field("stands for True in the keys of traces, where 1 is another")
    NO = field("stands for False there")
    GRAD_NAME = field("'grad', what backward leaves in _extra")
    GETREFCOUNT = field("says how many hold an object")
    FITTED = field("gives a gradient its input's shape and dtype, or 0")
    ARRIVE = field("adds a gradient to what has arrived, or 0")
    NO_GRAPH = field("False: the gradients' own graph is not wanted")
    FALSE = field("False")
    CPU = field("the device that the host is")
    THROUGH = field("calls a function from a frame of flowvm's")
    STARTED = field("set: not empty while backward begins with something else than ones")
    BACKWARD = field("the class Backward")
    BACKWARD_RUN = field("the class of what hooks of a backward keep things in, or 0")
    GO_ON = field("runs what is left of a backward, or 0")
    EXPLAIN = field("says whose gradient an error came from, or 0")
    ADD = field("adds a gradient to the one that is there, or 0")
    EDGES_NAME = field("'edges'")
    FORWARD_NAME = field("'forward'")
    HOOKS_NAME = field("'_hooks'")
    NEW_TUPLE = field("makes a tuple of a class")
    PRUNE = field("takes the views that are gone out of a list of views")
    FLOAT = field("the class float")
    INT = field("the class int")
    BOOL = field("the class bool")
    LIST = field("the class list")
    DICT = field("the class dict")
    DEFAULT_DICT = field("the class defaultdict")
    ENTRY = field("the class of what with statements say")
    NONE = field("None")
    KEY_ERROR = field("the class KeyError")
    ATTRIBUTE_ERROR = field("the class AttributeError")
    TYPE_ERROR = field("the class TypeError")
    EXCEPTION = field("the class Exception")
    FLOW_ERROR = field("the class FlowError")
    # what issuing touches: see `flowvm.vm.callers.hot`
    HOT = field("the dict `hot` itself")
    COUNTER_NAME = field("'counter', which is another object during a fork")
    LIMIT_NAME = field("'limit'")
    CLEARED = field("address of how often something was dropped of what is kept of calls")
    RENEWALS = field("address of the number of the last time that a tensor got another place")
    RING = field("address of the first record")
    CONTROL = field("address of the control words")
    POP = field("takes a free storage id")
    DEAD = field("list of storage ids that nothing refers to")
    RELEASES = field("list of the entries that release so many")
    ADOPTED = field("dict: not empty while storages have memory that is not the VM's")
    STREAM_OF = field("dict: not empty while storages are of other streams")
    LENT = field("address of a word for each storage: how many have it; the first: their sum")
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
    PINNED = field("set: not empty while a thread pins the user's place")
    USER_LINES = field(
        "what each thread's with statements say of the user's place, and the dict "
        "of that of the thread that asked last",
        words=2,
        by="who has the GIL",
    )
    ENTRIES_NAME = field("'entries', in which it says so")
    PLACE = field("where a dict is gone through, and what was found", words=2, by="who has the GIL")
    RELEASES_SINCE = field("releases since the Python function made one", by="who has the GIL")
    LAST = field("the number of the record that was published last", by="who has the GIL")
    THREAD = field("the number of the thread that asked last", by="who has the GIL")
    RECORDING = field(
        "what each thread's with statements say of whether it records, and such a dict",
        words=2,
        by="who has the GIL",
    )
    FORGET = field("what they say who do not")
    RECORDED = field("the class of what they say")
    RELEASE = field("releases storages that nothing refers to: the Python function")
    FINISH = field("what is due behind a record: `flowvm.eager.calls.finish_call`")


@record()
class SITE(Record):
    """One operator."""

    SHARED = field("address of the SHARED table")
    TWIN = field("the Python function")
    CACHE = field(
        "dict from metas and attributes to entries, from keys to traces; of START, from "
        "metas to ones; of READ, from dtypes to their codes, or to NumPy's and "
        "the bytes of an element, or to what equality asks; of LACK, from names that "
        "tensors lack to what is said of it; "
        "of CONSTANT, from dtypes, or None, to dicts from layouts to metas and codes"
    )
    ARGUMENTS = field("how many there are: inputs, attributes and scalars; -1: never native")
    KIND = field(
        "OPERATOR; what follows traces: FRONT or GRADIENT; the engine's loop: BACKWARD; "
        "all of backward: START; UNRECORDED: FUNCTION in a region that records nothing; READ: "
        "gives a tensor's value, or whether two are equal; LACK: raises AttributeError; "
        "CONSTANT: makes a tensor of numbers"
    )
    FUNCTION = field(
        "of all but an OPERATOR: makes calls that have no trace; of MODULE and NOTED, is told of "
        "errors"
    )
    OUTPUTS = field("how many it makes; 0: it writes inputs")
    LIVE = field("how many of them, the first, have a place in the autograd graph")
    INPUTS = field("how many tensors come first")
    ATTRS = field("how many attributes follow")
    SCALARS = field("how many dynamic numbers come last")
    KINDS = field(
        "their struct codes, a str; 0: the entry has them, last to first; of EACH, the "
        "name of the count of calls, or 0"
    )
    CODES = field("these codes, where KINDS has them", words=MOST_SCALARS)
    CONVERTED = field("1: autocast may convert the inputs")
    OPERATOR = field("the operator, if it has a gradient, else 0")
    SAVES = field("how many operands its gradient needs")
    SAVED = field("their places among the inputs; of output k -1 - k", words=MOST_SAVED)
    OVER = field("1: its result goes over its first input, where nothing is recorded")
    WRITES = field("how many inputs it writes; the first of them is what it gives")
    WRITTEN = field("their places among the inputs", words=MOST_WRITTEN)
    INLINE_CACHE = field(
        "address of what calls were last seen to be: a CACHE and its SLOTs; 0: none"
    )
    NUMBERED = field(
        "the SITE of `op(tensor, number)`, or 0; that of gradients, of BACKWARD and "
        "START; that of the operator, of EACH; of NOTED the NOTES"
    )
    HOW = field("of READ: what it gives, AS_ITEM to AS_EQUAL")
    ELSEWHERE = field(
        "of what makes tensors: sets, not empty while a thread makes them elsewhere or globally; 0",
        words=2,
    )
    DTYPE_NAME = field("'dtype'")
    HELD_BYTES = field("of CONSTANT: made since the dead were released", by="who has the GIL")
    HITS = field("calls made natively", by="whoever has the GIL")
    MISSES = field("calls left to the twin", by="whoever has the GIL")


@record(words=4)
class CACHE(Record):
    """An inline cache, in front of a dict; see `flowvm.eager.native.inline_cache`."""

    CLEARED = field("what SHARED.CLEARED had when it was begun", by="who has the GIL")
    COUNT = field("how many SLOTs there are, a power of two")
    HELD = field("a list with a tuple for each: what its words refer to")
    TURN = field("how many were seen", by="who has the GIL")


@record(words=2 + MOST_KEY)
class SLOT(Record):
    """A call that was seen, by its key: a number, and addresses of objects, or 0; those with a 1
    added are of metas of tensors.
    """

    VALUE = field("the entry, or what traces keep; 0: none", by="who has the GIL")
    WORDS_OF = field("how many words the call key has", by="who has the GIL")
    KEY = field("they themselves", words=MOST_KEY, by="who has the GIL")


@record(words=6 + MOST_ARGUMENTS)
class TRACE(Record):
    """Steps of a call of a function with certain metas and other arguments; its STEPs lie behind.
    A value is a tensor that the call is given, or that a step makes, by its number.
    """

    STEPS = field("how many there are")
    TENSORS = field("how many values the call is given")
    APART = field("1: none of them may share memory")
    RESULT = field("the value that it gives; -1: several")
    RESULTS = field("how many")
    CLASS = field("the class of the tuple that they are in")
    GIVEN = field("their values, -1 for None", words=MOST_ARGUMENTS)


@record(words=7 + MOST_ARGUMENTS)
class STEP(Record):
    """One thing that a call comes to.  An argument is a value, or an object, by its address."""

    KIND = field(
        "CALL of an operator, VIEW, ALIAS outside of the graph, or RECORD: a Node; INTO: a call "
        "whose output is a tensor that was there; PIECES: views become one Node's outputs"
    )
    SITE = field("CALL: the operator's SITE; VIEW, RECORD: what stands for one in its Node")
    MADE = field("CALL, INTO: the entry; VIEW, ALIAS: the meta; RECORD: the output, a value")
    OFFSET = field("VIEW, ALIAS: what is added to the operand word")
    ATTRS = field("VIEW, RECORD: the attributes")
    INPUTS = field("how many arguments are inputs")
    ARGUMENTS = field("how many there are; of RECORD those behind the inputs are saved")
    GIVEN = field("they themselves", words=MOST_ARGUMENTS)
