"""Traces: what calls of a Python function come to, remembered.

A *steady* function is one whose calls come to the same operators' calls, views and Nodes whenever
its tensors have such metas and its other arguments are such.  `x.sum(1)`, `x[2:4]` or the gradient
of a product are many lines of Python, and what they come to is one instruction, or none.  So the
second call with a key (`flowvm.eager.native.key_twin`) is recorded (`flowvm.eager.trace_recorder`).
The record is its *trace*, which native calls replay from then on.

A trace is kept where the recorded steps explain the result: every tensor is one that the call
was given or that a step made, and every Node one of the steps'.  What no step stands for refuses
the key, wherever it is done: other instructions, values that are read, random numbers that are
drawn.  Then the function makes such calls.  The recorder does not see what
else such a function reads: it must ask for nothing but metas and arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import chain
from types import FunctionType
from typing import Any, TypeVar

from flowvm.eager.keywords import by_common_names
from flowvm.eager.modes import grad_enabled, recording_trace
from flowvm.eager.native import install
from flowvm.eager.native.key_twin import dict_key_of, is_tensor, parts_of, same_of
from flowvm.eager.native.objects import new_call
from flowvm.eager.native.tables import Several, Table, takes
from flowvm.eager.native.words import (
    ALIAS,
    CALL,
    FRONT,
    GRADIENT,
    INTO,
    LEARN,
    MOST_ARGUMENTS,
    MOST_STEPS,
    MOST_VALUES,
    OWN_CHANGE,
    OWN_INTO,
    PIECES,
    RECORD,
    REFUSED,
    STEP,
    TRACE,
    VIEW,
)
from flowvm.eager.nodes import Node, OutputEdge, askers
from flowvm.eager.tensor import Tensor
from flowvm.eager.trace_recorder import Call, Pieces, Record, TraceRecorder, View
from flowvm.guards.lru_cache import LRUCache
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import TensorMeta
from flowvm.vm.callers.hot import hot
from flowvm.vm.callers.lines import INTERNAL
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import OPERAND

Function = TypeVar("Function", bound=Callable[..., object])
_BYTES = 4000  # of a trace, with its key, about
_SEEN, _NONE = (LEARN, None), (REFUSED, None)


# --- from recorded steps to a trace ------------------------------------------------------------


def trace_of(
    recorder: TraceRecorder, tensors: list[Tensor], result: object, maker: bool = False
) -> Table | None:
    """The trace of a call on `tensors` that gave `result`; None where the recorded steps do not
    explain it.  `maker`: it may be one on no tensors.
    """
    if not tensors and not maker:
        return None  # what is made of no tensor may be elsewhere by default
    try:
        return _trace_of(recorder, tensors, result)
    except LookupError:
        return None


def _trace_of(recorder: TraceRecorder, tensors: list[Tensor], result: Any) -> Table:
    values: dict[int, int] = {}
    for k, x in enumerate(tensors):
        values.setdefault(id(x), k)
    values[_NEXT] = len(tensors)
    if recorder.refused:
        raise LookupError
    references: list[object] = []
    words: list[int] = []
    explained: dict[int, object] = {}  # by tensor made: what its Node is to be of
    called: set[int] = set()  # tensors that operators made
    own: set[int] = set()  # tensors on memory that the trace makes: it may be changed freely
    changes = 0
    for step in recorder.steps:
        if isinstance(step, Call) and not step.into:
            called.update(map(id, step.outs))
            own.update(map(id, step.outs))
        elif isinstance(step, View) and id(step.x) in own:
            own.add(id(step.out))
        # a change of what was given comes last: it is not to be changed again by a call that is
        # made from its beginning; several are copies, each of which Python can make by itself
        into_given = isinstance(step, Call) and step.into and id(step.outs[0]) not in own
        changes += into_given
        if (changes > 1 and step.op.name != "copy") or (changes and not into_given):
            raise LookupError
        words += _words(step, values, references, explained, own)
    for x in recorder.tensors:
        node = x._node.node if x._node.__class__ is OutputEdge else x._node
        if node is not None and (
            node.__class__ is not Node or node.operator is not explained[id(x)]
        ):
            raise LookupError
        if x.__class__ is not Tensor or x._meta.__class__ not in (TensorMeta, GlobalMeta):
            raise LookupError
        if x._meta.__class__ is GlobalMeta and id(x) not in called:
            raise LookupError  # a view of one knows of more than its memory
    several = isinstance(result, (tuple, list))
    results = [-1 if x is None else _value(values, x) for x in result] if several else []
    kind = type(result)
    if (
        len(results) > MOST_ARGUMENTS
        or len(recorder.steps) > MOST_STEPS
        or values[_NEXT] > MOST_VALUES
    ):
        raise LookupError
    if several and (kind is list or kind.__itemsize__ == 0 or kind.__dictoffset__ > 0):
        raise LookupError
    return Table(
        TRACE,
        references,
        words,
        STEPS=len(recorder.steps),
        TENSORS=len(tensors),
        APART=int(recorder.apart),
        RESULT=-1 if several else _value(values, result),
        RESULTS=len(results),
        CLASS=kind,
        GIVEN=Several(results),
    )


_NEXT = 0  # in the place of an id: the number of the next value


def _number(values: dict[int, int], x: Tensor) -> None:
    """A tensor that a step makes is the next value."""
    values[id(x)] = values[_NEXT]
    values[_NEXT] += 1


def _value(values: dict[int, int], x: Tensor) -> int:
    value = values.get(id(x))
    if value is None:
        raise LookupError
    return value


def _words(
    step: object,
    values: dict[int, int],
    references: list[object],
    explained: dict[int, object],
    own: set[int],
) -> Any:
    """A step's words; its outputs are values from now on."""
    facts: dict[str, object]
    if isinstance(step, Call):
        op, inputs = step.op, [_value(values, x) for x in step.inputs]
        writes = op.signature.writes
        if op.signature.unsized or not takes(op) or (writes and not _changes_own(step, own)):
            raise LookupError
        site = install.own_site(op)
        operands = [*inputs, *map(_address, (*step.attrs, *step.scalars))]
        kind = OWN_CHANGE if writes else CALL
        if step.into:
            kind = OWN_INTO if id(step.outs[0]) in own else INTO
        facts = {"KIND": kind, "SITE": site.address, "MADE": step.entry}
        references += [site, step.attrs, step.scalars]
        if step.into:
            operands.append(_value(values, step.outs[0]))
        for x in () if step.into else step.outs:
            explained[id(x)] = op if op.grad is not None else None
            _number(values, x)
    elif isinstance(step, View):
        inputs = operands = [_value(values, step.x)]
        offset = step.offset << OPERAND.STORAGE_BITS
        facts = {"KIND": ALIAS, "MADE": step.out._meta, "OFFSET": offset}
        if step.operator is not None:
            facts.update(KIND=VIEW, SITE=step.operator, ATTRS=step.attrs)
        explained[id(step.out)] = step.operator
        _number(values, step.out)
    elif isinstance(step, Pieces):
        inputs = [_value(values, step.x)]
        operands = [*inputs, *(_value(values, x) for x in step.outs)]
        facts = {"KIND": PIECES, "SITE": step.op, "ATTRS": step.attrs}
        for x in step.outs:
            explained[id(x)] = step.op
    else:
        assert isinstance(step, Record)
        inputs = [_value(values, x) for x in step.inputs]
        operands = [*inputs, *(_value(values, x) for x in step.saved)]
        out = _value(values, step.out)
        facts = {"KIND": RECORD, "SITE": step.op, "MADE": out, "ATTRS": step.attrs}
        if explained.get(id(step.out), step) is not None:  # it is no step's, or has a Node already
            raise LookupError
        explained[id(step.out)] = step.op
    if len(operands) > MOST_ARGUMENTS:
        raise LookupError
    table = Table(
        STEP, facts, INPUTS=len(inputs), ARGUMENTS=len(operands), GIVEN=Several(operands), **facts
    )
    references.append(table)
    return table.words


def _changes_own(step: Call, own: set[int]) -> bool:
    """Return True if a call writes only tensors that the trace makes, and is not recorded."""
    written = [
        id(x) in own and x._node is None
        for name, x in zip(step.op.signature.inputs, step.inputs, strict=True)
        if name in step.op.signature.writes
    ]
    return all(written) and not step.outs and step.op.grad is None


def _address(value: object) -> int:
    return id(value)


# --- functions that have traces ----------------------------------------------------------------


class TraceCache:
    """The traces of one function: `call` is called where there may be one the next time.

    `elsewhere` are sets that are not empty while a thread makes tensors elsewhere, for a function
    that makes them of none; else there are no such sets.
    """

    def __init__(
        self, function: Callable[..., object], kind: int, elsewhere: Sequence[set[object]] = ()
    ) -> None:
        self.function = function
        self.kind = kind
        self.elsewhere = elsewhere
        self.lru = LRUCache("traces")
        engine.entries.on_full.append(self.lru.forget)

    def table(self) -> Table:
        """The SITE of a call that follows them."""
        name = getattr(self.function, "__name__", "") if self.kind == FRONT else ""
        young, sets = self.lru.young, Several(map(id, self.elsewhere))
        return install.front_table(self.call, self.function, self.kind, young, name, ELSEWHERE=sets)

    def call(self, *args: Any, **kwargs: object) -> Any:
        """Call the function; the second time with a key, listen to it."""
        tensors: list[Tensor] = []
        try:
            key = self._key(args, kwargs, tensors)
        except (LookupError, AttributeError):
            return self.function(*args, **kwargs)
        if hot["departed"] or hot["autocast"] or askers or any(self.elsewhere):
            return self.function(*args, **kwargs)
        known = self.lru.find(key)
        if known is None:
            mine = self.kind == FRONT or is_flowvms(args[0].operator.grad)
            self.lru.put(key, _SEEN if mine else _NONE, _BYTES)
        if known is not _SEEN:
            return self.function(*args, **kwargs)
        recorder = TraceRecorder()
        with recording_trace(recorder):
            result = self.function(*args, **kwargs)
        trace = trace_of(recorder, tensors, result, bool(self.elsewhere))
        self.lru.replace(key, _NONE if trace is None else (trace.address, trace))
        return result

    def _key(self, args: Any, kwargs: Any, tensors: list[Tensor]) -> object:
        if self.kind == FRONT:
            return dict_key_of((*args, *kwargs.values()), tuple(kwargs), tensors)
        node, g = args
        if node.__class__ is not Node or node._saved.__class__ is not tuple or grad_enabled():
            raise LookupError
        tensors += [g, *node.saved]
        if not all(map(is_tensor, tensors)) or len(tensors) > MOST_ARGUMENTS:
            raise LookupError
        mask = sum((edge is not None) << k for k, edge in enumerate(node.edges))
        metas = [x._meta for x in tensors]
        mask |= same_of(tensors) << 32
        return (
            mask,
            node.operator,
            *metas,
            *node.metas,
            *chain.from_iterable(map(parts_of, node.attrs)),
        )


@functools.lru_cache(1 << 12)
def is_flowvms(function: object) -> bool:
    """Return True if a gradient function is flowvm's, with all functions in its closure."""
    if not isinstance(function, FunctionType) or not INTERNAL[function.__code__.co_filename]:
        return False
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return all(is_flowvms(value) for value in cells if isinstance(value, FunctionType))


def steady(function: Function, elsewhere: Sequence[set[object]] = ()) -> Function:
    """The function, which is steady: its calls follow their traces, if calls are to be native.

    `elsewhere` as TraceCache has it, of a function that makes tensors.
    """
    function = by_common_names(function)
    if not install.is_enabled():
        return function

    def table() -> Table:  # an import makes hundreds of these functions, and a program calls few
        return TraceCache(function, FRONT, elsewhere).table()

    return _begun_by(function, table)


def steady_gradient(function: Function) -> Function:
    """Make the function (node, g) steady that calls a Node's gradient function with the gradient of
    its one output.
    """
    if not install.is_enabled():
        return function
    traces = TraceCache(function, GRADIENT)
    call = _begun_by(function, traces.table)
    _of_gradients[call] = traces
    return call


def traces_of(gradients: Callable[..., object]) -> TraceCache:
    """Return the traces of a function that `steady_gradient` made, where calls are native."""
    return _of_gradients[gradients]


_of_gradients: dict[object, TraceCache] = {}


def _begun_by(function: Function, table: Callable[[], Table]) -> Function:
    call: Any = new_call(function, functools.partial(install.begin_with, table))
    return call  # type: ignore[no-any-return]
