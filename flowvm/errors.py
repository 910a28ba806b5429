"""All exceptions of flowvm, and the status codes with which kernels report errors.

A wrong shape, dtype or device is known when an op is issued and raises there.  What only a kernel
can see (an index in the data, a zero divisor) comes back as a status code with up to six integers;
`exception_for` turns that into the exception which the issuing program meets at the next sync
point.

Each class also inherits from the builtin that a PyTorch user would write after `except`.  PyTorch
raises another one for the same mistake in compiled code (RuntimeError) than in Python; a class that
stands for both inherits from both:

    Exception
      FlowError
        ArgumentError        ValueError and RuntimeError   a value that no tensor could make right
          AssertedError      and AssertionError            the same, where PyTorch asserts
          ModeError          and NotImplementedError       a way of computing that there is not
          FileError          and pickle.UnpicklingError    a file that cannot be read
        ArgumentTypeError    TypeError                     an object of the wrong Python type
          IndexTypeError     and IndexError                one that is no index
        ShapeError           RuntimeError and ValueError   shapes that do not fit each other
        DTypeError           NotImplementedError (a RuntimeError) and TypeError
                                                           dtypes that do not fit
        DeviceError          RuntimeError                  an unknown, unavailable or mixed device
        OutOfRangeError      IndexError and RuntimeError   an index or dimension outside its tensor
        MissingNameError     AttributeError            a name that flowvm or an object has not
        DivisionByZeroError  RuntimeError and ZeroDivisionError   an integer divided by zero
        InvalidValueError    RuntimeError and ValueError          data the op has no meaning for
        OutOfMemoryError     RuntimeError and MemoryError         no block of that size could be had
        LinAlgError          RuntimeError              a singular matrix, or no convergence
        AutogradError        RuntimeError              backward twice, a saved tensor changed, ...
          GradcheckError                               a gradient that differs from the numeric one
        CaptureError         RuntimeError              a graph's build that cannot be replayed
        GraphError           RuntimeError              a graph of flow.fx that cannot be so
        TraceError           ValueError                code that flow.fx cannot trace
        ConfigError          ValueError                a setting that cannot be
        CaptureWarning       UserWarning               a graph may not do what its author expects
        RecaptureWarning     UserWarning               a graph is captured again; about speed alone
        PolicyWarning        UserWarning               a policy asked in Python; about speed alone
        LoaderError          RuntimeError              a DataLoader's workers died, or were late
        CommunicationError   RuntimeError              ranks that do not do the same, or are gone
        VMError              RuntimeError              the virtual machine itself
          CompileError                                 a kernel that cannot become native code
          CallbackError                                a Python callback raised, see its cause
          KernelError                                  a kernel returned a status of its own
          BoundsError                                  a kernel touched what is not its operands'
          PoisonedError                                an instruction the tensor needs has failed
          CancelledError                               a cancel came before it was computed
          FreedError                                   the tensor's storage has been released
          ScheduleError                                a recorded run broke the order of accesses
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from pickle import UnpicklingError
from typing import TYPE_CHECKING

from flowvm.files.printable import printable
from flowvm.loading.lazy import lazy
from flowvm.loading.listing import listing

if TYPE_CHECKING:
    import difflib
else:
    difflib = lazy("difflib")

__all__ = [
    "DETAILS",
    "ArgumentError",
    "ArgumentTypeError",
    "AssertedError",
    "AutogradError",
    "BoundsError",
    "CallbackError",
    "CancelledError",
    "CaptureError",
    "CaptureWarning",
    "CommunicationError",
    "CompileError",
    "ConfigError",
    "DTypeError",
    "DeviceError",
    "DivisionByZeroError",
    "FileError",
    "FlowError",
    "FreedError",
    "GradcheckError",
    "GraphError",
    "IndexTypeError",
    "InvalidValueError",
    "KernelError",
    "LinAlgError",
    "LoaderError",
    "MissingNameError",
    "ModeError",
    "OutOfMemoryError",
    "OutOfRangeError",
    "PoisonedError",
    "PolicyWarning",
    "RecaptureWarning",
    "ScheduleError",
    "ShapeError",
    "Status",
    "TraceError",
    "VMError",
    "declare_status",
    "did_you_mean",
    "exception_for",
    "on_device_failed",
    "on_made",
    "on_ranks_failed",
]
__dir__ = listing(globals())


on_made: list[Callable[[], None]] = []  # called, where it will be raised, when one is made
# a device's exception for the details of DEVICE_FAILED, if a driver is loaded
on_device_failed: list[Callable[[Sequence[int]], FlowError]] = []
# the ranks' exception for the details of RANKS_FAILED
on_ranks_failed: list[Callable[[Sequence[int]], FlowError]] = []


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about a name that is not in `known`: a similar name, if there is
    one.

    >>> flow.errors.did_you_mean("rleu", ["relu", "gelu"])
    "; did you mean 'relu'?"
    """
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


# public: flow
class FlowError(Exception):
    """The base of every exception that flowvm raises on purpose.

    >>> try:
    ...     flow.ones(2) + flow.ones(3)
    ... except flow.FlowError as error:
    ...     print(type(error).__name__)
    ShapeError
    """

    # for `flowvm.nn.module`: class and path of the layer that raised it, the last module it left,
    # its note
    layer: tuple[str, str, object, str] | None = None

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        for function in on_made:
            function()

    def __str__(self) -> str:
        return printable(super().__str__(), lines=True)  # names of files and programs are in it


class ArgumentError(FlowError, ValueError, RuntimeError):
    """A value that the call cannot use, whatever the tensors are.

    >>> F.dropout(flow.ones(2), p=2.0)
    Traceback (most recent call last):
        ...
    flowvm.errors.ArgumentError: dropout: p is a probability, from 0 to 1, got 2.0
    """


class AssertedError(ArgumentError, AssertionError):
    """A value that the call cannot use, where PyTorch has an assert.

    >>> nn.Embedding(3, 2, padding_idx=5)
    Traceback (most recent call last):
        ...
    flowvm.errors.AssertedError: Embedding: padding_idx=5 is not a row of 3
    """


class ModeError(ArgumentError, NotImplementedError):
    """A mode of computation that does not exist, or not for such a shape.

    >>> F.pad(flow.ones(1, 2), (1, 1), mode="mirror")
    Traceback (most recent call last):
        ...
    flowvm.errors.ModeError: pad: mode is 'constant', 'reflect', 'replicate' or 'circular', not ...
    """


class UnbatchableError(ModeError):
    """A step that cannot be computed for all examples of `vmap` at once; `vmap` then runs the
    function for each one, so it reaches nobody.

    >>> flow.errors.UnbatchableError("max: one example at a time")
    UnbatchableError('max: one example at a time')
    """


class FileError(ArgumentError, UnpicklingError):
    """A file that cannot be read: it has another format, is damaged, or has objects that are not
    loaded from files.

    >>> issubclass(flow.errors.FileError, ValueError)
    True
    """


class ArgumentTypeError(FlowError, TypeError):
    """An argument of the wrong Python type.

    >>> flow.relu("a")
    Traceback (most recent call last):
        ...
    flowvm.errors.ArgumentTypeError: relu needs a Tensor among its arguments, got str
    """


class ShapeError(FlowError, RuntimeError, ValueError):
    """Shapes that do not fit each other.

    >>> flow.ones(2) + flow.ones(3)
    Traceback (most recent call last):
        ...
    flowvm.errors.ShapeError: shapes (2,) and (3,) do not broadcast: dimension 0 is 2 and 3
    """


class DTypeError(FlowError, NotImplementedError, TypeError):
    """Dtypes that do not fit each other, or the op.

    >>> flow.neg(flow.tensor(True))
    Traceback (most recent call last):
        ...
    flowvm.errors.DTypeError: neg of a bool, or of a bool tensor, is not defined; ...
    """


class DeviceError(FlowError, RuntimeError):
    """An unknown or unavailable device, or tensors on different devices.

    >>> flow.device("nowhere")
    Traceback (most recent call last):
        ...
    flowvm.errors.DeviceError: no device is called 'nowhere'; write 'cpu', 'cuda', ...
    """


class ValuelessError(DeviceError, NotImplementedError):
    """Values of a tensor on the meta device, which has none.

    >>> flow.ones(2, device="meta").tolist()
    Traceback (most recent call last):
        ...
    flowvm.errors.ValuelessError: a tensor on the meta device has no values...
    """


class IndexTypeError(ArgumentTypeError, IndexError):
    """An index that is not of an index's type.

    >>> flow.ones(2)[0.5]
    Traceback (most recent call last):
        ...
    flowvm.errors.IndexTypeError: an index is made of ints, slices, None, ..., tensors, arrays ...
    """


class OutOfRangeError(FlowError, IndexError, RuntimeError):
    """An index or a dimension outside its tensor.

    >>> flow.ones(2)[5]
    Traceback (most recent call last):
        ...
    flowvm.errors.OutOfRangeError: index 5 is out of bounds for dimension 0 with size 2
    """


class MissingNameError(FlowError, AttributeError):
    """Unknown attribute of flowvm or of one of its objects.

    `known` are the names that there are.  Which of them is close is looked for when the message is
    read: `hasattr` does not read it.

    >>> flow.rleu
    Traceback (most recent call last):
        ...
    flowvm.errors.MissingNameError: flowvm has no 'rleu'; did you mean 'relu'?
    """

    def __init__(
        self, message: str = "", name: str = "", known: Callable[[], Iterable[str]] = tuple
    ) -> None:
        super().__init__(message)
        self.name: str = name  # and no `obj`, or Python would add a guess of its own
        self._known = known

    def __str__(self) -> str:
        text = f"{self.args[0]}{did_you_mean(self.name, self._known())}"
        return printable(text, lines=True)

    def __reduce__(self) -> tuple[type[MissingNameError], tuple[str, str]]:
        return type(self), (str(self), self.name)


class CaptureError(FlowError, RuntimeError):
    """An operation in a graph's `build` that cannot be replayed, such as reading a value.

    >>> @flow.compile
    ... def scaled(x):
    ...     return x * x.sum().item()
    >>> scaled(flow.ones(2))
    Traceback (most recent call last):
        ...
    flowvm.errors.CaptureError: this tensor has no value: it was made while a graph ...
    """


class GraphError(FlowError, RuntimeError):
    """An impossible edit of a `flow.fx` graph, or a graph with nodes that do not fit.

    >>> graph = flow.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> _ = graph.output(x)
    >>> graph.erase_node(x)
    Traceback (most recent call last):
        ...
    flowvm.errors.GraphError: Tried to erase Node x but it still had 1 users in the ...
    """


class TraceError(FlowError, ValueError):
    """Code that `flow.fx.symbolic_trace` cannot trace, because it needs a value.

    >>> try:
    ...     flow.fx.symbolic_trace(lambda x: x if x else -x)
    ... except flow.errors.TraceError as error:
    ...     print(type(error).__name__)
    TraceError
    """


class CheckError(FlowError, AssertionError):
    """A graph's call with another result than eager code (`graph.config.check`)."""


class DivisionByZeroError(FlowError, RuntimeError, ZeroDivisionError):
    """An integer divided by zero; floats give inf or nan instead.

    >>> (flow.tensor([1]) // flow.tensor([0])).item()
    Traceback (most recent call last):
        ...
    flowvm.errors.DivisionByZeroError: integer division or remainder by zero; ...
    """


class InvalidValueError(FlowError, RuntimeError, ValueError):
    """Data for which the op has no meaning, such as a NaN where an integer is needed.

    >>> flow.bincount(flow.tensor([-1])).tolist()
    Traceback (most recent call last):
        ...
    flowvm.errors.InvalidValueError: element 0 is -1; counts and repeats cannot ...
    """


class OutOfMemoryError(FlowError, RuntimeError, MemoryError):
    """The allocator could not get a block of the size asked for.

    >>> issubclass(flow.errors.OutOfMemoryError, MemoryError)
    True
    """


# public: linalg
class LinAlgError(FlowError, RuntimeError):
    """A factorization or iteration that cannot finish, such as the inverse of a singular matrix.

    >>> try:
    ...     flow.linalg.cholesky(flow.tensor([[-1.0]])).item()
    ... except flow.linalg.LinAlgError as error:
    ...     print(type(error).__name__)
    LinAlgError
    """


class AutogradError(FlowError, RuntimeError):
    """A backward pass that cannot be right.

    >>> flow.ones(2).sum().backward()
    Traceback (most recent call last):
        ...
    flowvm.errors.AutogradError: element 0 of tensors does not require grad and ...
    """


# public: autograd
class GradcheckError(AutogradError):
    """A gradient that differs from the one found by finite differences.

    >>> x = flow.ones(2, dtype=flow.float64, requires_grad=True)
    >>> try:
    ...     flow.autograd.gradcheck(lambda x: x * x.detach(), (x,))
    ... except flow.autograd.GradcheckError as error:
    ...     print("the gradient is 1, and not 2")
    the gradient is 1, and not 2
    """


class ConfigError(FlowError, ValueError):
    """A FLOWVM_* variable or a `flow.config` value that cannot be used.

    >>> flow.config.debug = "much"
    Traceback (most recent call last):
        ...
    flowvm.errors.ConfigError: flow.config.debug = 'much' cannot be used: expected ...
    """


class InterpreterError(FlowError, ImportError):
    """A Python that flowvm does not run on.

    >>> issubclass(flow.errors.InterpreterError, ImportError)
    True
    """


class LoaderError(FlowError, RuntimeError):
    """The workers of a DataLoader have died, gave no batch in time, or failed in what cannot be
    handed over as it was.

    >>> issubclass(flow.errors.LoaderError, RuntimeError)
    True
    """


class CommunicationError(FlowError, RuntimeError):
    """An error between ranks: different exchanges, a rank that is gone or failed, or MPI itself.

    >>> issubclass(flow.errors.CommunicationError, RuntimeError)
    True
    """


class VMError(FlowError, RuntimeError):
    """A failed operation of the virtual machine.

    >>> issubclass(flow.errors.VMError, flow.FlowError)
    True
    """


class CompileError(VMError):
    """A kernel whose Python cannot become native code; the message says which part of it.

    >>> issubclass(flow.errors.CompileError, flow.FlowError)
    True
    """


class CallbackError(VMError):
    """A Python callback on a host stream raised an exception, which is the `__cause__`.

    >>> issubclass(flow.errors.CallbackError, RuntimeError)
    True
    """


class KernelError(VMError):
    """A kernel returned a status that flowvm has no exception for.

    >>> issubclass(flow.errors.KernelError, flow.FlowError)
    True
    """


class BoundsError(VMError):
    """A kernel touched memory that is not its operands', as FLOWVM_CHECK=memory finds.

    >>> issubclass(flow.errors.BoundsError, flow.FlowError)
    True
    """


class PoisonedError(VMError):
    """The tensor was never computed, because an instruction it depends on failed.

    >>> issubclass(flow.errors.PoisonedError, flow.FlowError)
    True
    """


class CancelledError(VMError):
    """`flow.vm.cancel()`, or a Ctrl-C, came before the tensor was computed.

    >>> issubclass(flow.errors.CancelledError, flow.FlowError)
    True
    """


class FreedError(VMError):
    """The tensor's storage has been released.

    >>> issubclass(flow.errors.FreedError, flow.FlowError)
    True
    """


class ScheduleError(VMError):
    """A recorded run in which two conflicting accesses overlapped or swapped.

    >>> issubclass(flow.vm.ScheduleError, flow.FlowError)
    True
    """


class CaptureWarning(FlowError, UserWarning):  # noqa: N818 - a warning
    """A graph's results may differ from its author's expectation; the text names the place.

    >>> issubclass(flow.errors.CaptureWarning, UserWarning)
    True
    """


class RecaptureWarning(FlowError, UserWarning):  # noqa: N818 - a warning
    """A graph was captured again, because a call differs from all before it; the text says how.

    It is about speed alone.  `warnings.simplefilter("ignore", flow.errors.RecaptureWarning)` turns
    it off, "error" makes it an exception.

    >>> issubclass(flow.errors.RecaptureWarning, UserWarning)
    True
    """


class PolicyWarning(FlowError, UserWarning):  # noqa: N818 - a warning
    """A policy with `ready` and `pick` could not be compiled, so it is asked in Python.

    It is about speed alone; the text says what is not compiled.

    >>> issubclass(flow.errors.PolicyWarning, UserWarning)
    True
    """


class Status(IntEnum):
    """A kernel's result: OK, or the reason why it stopped.  Numbers from USER_STATUS up are for
    user kernels.
    """

    OK = 0
    INDEX_OUT_OF_RANGE = 1
    DIVISION_BY_ZERO = 2
    OUT_OF_MEMORY = 3
    INVALID_VALUE = 5
    CALLBACK_FAILED = 6
    SINGULAR_MATRIX = 7
    NOT_CONVERGED = 8
    POISONED = 9
    FREED = 10
    NOT_POSITIVE_DEFINITE = 11
    CAPTURED = 12
    DEVICE_FAILED = 13
    OUTSIDE_OPERAND = 14  # this and the ones below: the memory check
    BETWEEN_ELEMENTS = 15
    WROTE_INPUT = 16
    OUTSIDE_SCRATCH = 17
    OUTSIDE_ARENA = 18
    OUTSIDE_REGISTER = 19
    ZONE_BROKEN = 20
    WRITTEN_RELEASED = 21
    RANKS_FAILED = 22
    NO_PROBABILITY = 23
    USER_STATUS = 64


DETAILS = 6  # integers a kernel may write next to its status: args[0..5]

# status -> (class, message); {0} to {5} are the kernel's details.
_TABLE: dict[int, tuple[type[FlowError], str]] = {
    Status.INDEX_OUT_OF_RANGE: (
        OutOfRangeError,
        "index {0} is out of bounds for dimension {2} with size {1}",
    ),
    Status.DIVISION_BY_ZERO: (
        DivisionByZeroError,
        "integer division or remainder by zero; divide floats if inf or nan is wanted",
    ),
    Status.OUT_OF_MEMORY: (
        OutOfMemoryError,
        "out of memory: could not get {0} bytes ({1} live, {2} reserved{most}); free or use less",
    ),
    Status.INVALID_VALUE: (
        InvalidValueError,
        "element {0} has a value that this op has no meaning for",
    ),
    Status.CALLBACK_FAILED: (CallbackError, "a Python callback raised"),
    Status.NO_PROBABILITY: (
        InvalidValueError,
        "an element of input or target is not between 0 and 1, as probabilities are; of other "
        "numbers take binary_cross_entropy_with_logits",
    ),
    Status.SINGULAR_MATRIX: (
        LinAlgError,
        "matrix {0} of the batch is singular: the diagonal element {1} of its factor is zero",
    ),
    Status.NOT_CONVERGED: (
        LinAlgError,
        "the iteration did not converge for matrix {0} of the batch (LAPACK info {1}), which may "
        "have infinities or NaN",
    ),
    Status.POISONED: (
        PoisonedError,
        "this tensor was never computed: an instruction it depends on failed",
    ),
    Status.NOT_POSITIVE_DEFINITE: (
        LinAlgError,
        "matrix {0} of the batch is not positive definite: its leading minor of order {1} is not "
        "positive",
    ),
    Status.CAPTURED: (
        CaptureError,
        "this tensor has no value: it was made while a graph was captured, and only the graph's "
        "outputs have values, after a call; return it from build() to see it.  For a branch or a "
        "loop that it decides, compute both sides and take flow.where(condition, a, b), or end the "
        "graph where the value is read and decide between two graphs' calls",
    ),
    Status.DEVICE_FAILED: (DeviceError, "the device failed with error {0}"),
    Status.RANKS_FAILED: (CommunicationError, "ranks could not exchange: error {1}"),
    Status.FREED: (FreedError, "this tensor's storage has been released"),
    Status.OUTSIDE_OPERAND: (
        BoundsError,
        "the kernel wrote outside of operand {name}: at byte {1} of memory of {2} bytes",
    ),
    Status.BETWEEN_ELEMENTS: (
        BoundsError,
        "the kernel wrote between the elements of operand {name}, a view: byte {1} of the {2} of "
        "its storage",
    ),
    Status.WROTE_INPUT: (
        BoundsError,
        "the kernel wrote operand {name}, which it only reads: byte {1} of the {2} of its storage",
    ),
    Status.OUTSIDE_SCRATCH: (
        BoundsError,
        "the kernel wrote outside of its scratch memory: at byte {1} of {2} bytes",
    ),
    Status.OUTSIDE_ARENA: (
        BoundsError,
        "the kernel wrote outside of its thread's arena: at byte {1} of {2} bytes",
    ),
    Status.OUTSIDE_REGISTER: (
        BoundsError,
        "the kernel wrote outside of a register of its launch's chunk, its block {0}: at byte {1} "
        "of {2} bytes",
    ),
    Status.ZONE_BROKEN: (
        BoundsError,
        "something wrote outside of the memory that this instruction was given: at byte {1} of {2} "
        "bytes, as was seen when it was released; nobody knows which instruction did",
    ),
    Status.WRITTEN_RELEASED: (
        BoundsError,
        "something wrote to the memory that this instruction was given after it was released: byte "
        "{1} of {2} bytes; nobody knows which instruction did",
    ),
}


def declare_status(code: int, exception: type[FlowError], message: str) -> int:
    """Declare the meaning of a user kernel's own status: `code` >= Status.USER_STATUS, `message`
    with {0} to {5}.

    Returns `code`, so that a kernel's constant and its meaning are one line:

        NEGATIVE = declare_status(70, InvalidValueError, "sqrt of a negative number at element {0}")

    >>> code = int(flow.errors.Status.USER_STATUS) + 900
    >>> flow.errors.declare_status(code, flow.errors.InvalidValueError, "row {0} is empty")
    964
    """
    if code < Status.USER_STATUS:
        raise ArgumentError(
            f"status codes below {int(Status.USER_STATUS)} are flowvm's own, got {code}"
        )
    if _TABLE.get(code, (exception, message)) != (exception, message):
        raise ArgumentError(f"status {code} is declared already: {_TABLE[code][1]!r}")
    message.format(
        *range(DETAILS)
    )  # a template that does not format must fail here, not in an error path
    _TABLE[code] = (exception, message)
    return code


def exception_for(status: int, details: Sequence[int] = (), names: Sequence[str] = ()) -> FlowError:
    """Return the exception for a kernel's status and details; `names` are its operands'.

    >>> code = int(flow.errors.Status.USER_STATUS) + 901
    >>> _ = flow.errors.declare_status(code, flow.errors.InvalidValueError, "row {0} is empty")
    >>> flow.errors.exception_for(code, (3,))
    InvalidValueError('row 3 is empty')
    """
    values = [*details, *([0] * (DETAILS - len(details)))]
    for function in on_device_failed if status == Status.DEVICE_FAILED else ():
        return function(values)
    for function in on_ranks_failed if status == Status.RANKS_FAILED else ():
        return function(values)
    if status in _TABLE:
        kind, message = _TABLE[status]
        number = values[0]
        name = names[number] if 0 <= number < len(names) else number
        most = f", and at most {values[3]} by FLOWVM_MEMORY" if values[3] else ""
        return kind(message.format(*values, name=name, most=most))
    if status == Status.OK:
        raise ArgumentError("status 0 means success: there is no exception for it")
    return KernelError(f"the kernel returned status {int(status)} with details {values}")
