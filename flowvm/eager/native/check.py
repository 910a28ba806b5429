"""The comparison of native calls with their twins, once a process, before the first of them.

Twin and native call run apart from the VM, each with a ring, a counter and a list of storage ids of
its own, on the same operands; records, tensors, nodes, places and reference counts are compared.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import struct
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.call_entry import CallEntry
from flowvm.eager.calls import call_function
from flowvm.eager.declaration import Rules, Signature
from flowvm.eager.native.constants import MOST_DEAD, OF_BOOLS, OF_FLOATS, OF_INTS, layout_of
from flowvm.eager.native.objects import activate, new_call
from flowvm.eager.native.tables import Several, Table, shared_table, site_table
from flowvm.eager.native.words import (
    AS_ARRAY,
    AS_EQUAL,
    AS_LIST,
    BOOLEAN,
    CONSTANT,
    FLOATING,
    FRONT,
    NOTED,
    READ,
    SITE,
    STEP,
    TRACE,
    UNRECORDED,
    VIEW,
)
from flowvm.eager.nodes import Node
from flowvm.guards.regions import Mode
from flowvm.meta.meta import TensorMeta
from flowvm.private.cpython import getrefcount
from flowvm.vm.callers.hot import hot
from flowvm.vm.callers.lines import NO_ORIGIN
from flowvm.vm.callers.scopes import NEVER, NOTES, Scopes
from flowvm.vm.machine.words import ACC, ARRAY, CTL, DEP, RING, STO

if TYPE_CHECKING:
    from flowvm.eager.calls import Callee
    from flowvm.eager.native.objects import Call
    from flowvm.meta.dtype import DType


_NORESERVE = 0x4000  # of mmap's flags
_TIMES = 40  # calls by which counts of references are compared


class PlainStorage:
    """As Storage, but what it owns is nobody's."""

    __slots__ = ("id", "version")

    id: int
    version: int


class PlainLoan:
    """As Loan, but it ends nothing."""

    __slots__ = ("__weakref__", "id", "storage")

    id: int
    storage: object


class PlainTensor:
    """As Tensor, but what it owns is nobody's."""

    __slots__ = ("__weakref__", "_extra", "_kin", "_meta", "_node", "_pending", "_ref", "_storage")

    _ref: int
    _meta: object
    _node: object
    _storage: Any
    _kin: object

    def bump(self) -> None:
        """As Tensor's."""
        if self._storage is None:
            self._storage = PlainStorage()
            self._storage.id, self._storage.version = self._ref, 0
        self._storage.version += 1


class PlainParameter(PlainTensor):
    """As Parameter."""

    __slots__ = ()


class Apart:
    """The names that calls use, apart from the VM.  `words` is its ring."""

    def __init__(self) -> None:
        self.words = bytearray(8 * RING.SLOTS * RING.WORDS)
        self.finished: list[str] = []
        self.lent = np.zeros(64, np.int64)
        free = list(range(5000, 100, -1))
        self.names: dict[str, Any] = {
            **hot,
            "ring": memoryview(self.words),
            "control": memoryview(bytearray(8 * CTL.WORDS)).cast("q"),
            "counter": itertools.count(RING.SLOTS - 2),
            "limit": 1 << 60,
            "free": free,
            "pop": free.pop,
            "dead": [],
            "releases": [(9 << 40) + n for n in range(5)],
            "adopted": {},
            "stream_of": {},
            "lent": self.lent.data,
            "lent_at": self.lent.ctypes.data,
            "codes": ["nobody"] * RING.SLOTS,  # not None, which is counted
            "lasts": [0] * RING.SLOTS,
            "departed": set(),
            "autocast": set(),
            "unrecorded": set(),
            "askers": {},
            "user_files": {__file__},
            "Tensor": PlainTensor,
            "Storage": PlainStorage,
            "Loan": PlainLoan,
            "Parameter": PlainParameter,
            "Node": Node,
            "after": lambda: self.finished.append("after"),
            "make_room": lambda seq: self.finished.append(f"room {seq}"),
            "release_dead": lambda: self.finished.append("dead"),
            "publish_mark": self._publish_mark,
        }

    def _publish_mark(self, seq: int) -> None:
        """Store a record's mark.  Generated calls need this where stores may pass each other."""
        at = RING.WORDS * (seq & RING.SLOT_MASK) + RING.MARK
        struct.pack_into("q", self.words, 8 * at, seq + 1)

    def record(self, seq: int) -> list[int]:
        """The words of record `seq`, its mark first."""
        words = memoryview(self.words).cast("q")[RING.WORDS * (seq & RING.SLOT_MASK) :]
        return words[: RING.WORDS].tolist()[::-1]


def callee(
    inputs: str,
    attrs: str = "",
    scalars: str = "",
    outputs: tuple[str, ...] = ("out",),
    scalar_kinds: str = "",
    writes: str = "",
    **more: object,
) -> SimpleNamespace:
    """An operator, as far as its calls depend on it."""
    facts = {
        "name": f"check_{inputs}".replace(" ", "_"),
        "signature": Signature(
            tuple(inputs.split()),
            outputs,
            tuple(attrs.split()),
            tuple(scalars.split()),
            scalar_kinds,
            frozenset(writes),
        ),
        "saves": (),
        "grad": None,
        "rules": Rules(),
        "over": None,
        "lru": SimpleNamespace(young={}),
        "differentiable": ("out",),
        **more,
    }
    return SimpleNamespace(**facts)


def plain_tensor(
    ref: int, meta: object, node: object = None, version: int = -1, kind: Any = PlainTensor
) -> Any:
    """An operand; with a version it has a storage of its own."""
    tensor = kind()
    tensor._ref, tensor._meta, tensor._node, tensor._storage = ref, meta, node, None
    if version >= 0:
        tensor._storage = PlainStorage()
        tensor._storage.version, tensor._storage.id = version, ref
    return tensor


def like(value: object) -> object:
    """An operand as `value` is, that may be written."""
    if not isinstance(value, PlainTensor):
        return value
    version = -1 if value._storage is None else value._storage.version
    return plain_tensor(value._ref, value._meta, value._node, version, type(value))


def facts_of(value: object) -> object:
    """A call's result, as something that can be compared."""
    if isinstance(value, PlainTensor):
        return value._ref, id(value._meta), facts_of(value._node), facts_of(value._storage)
    if isinstance(value, PlainStorage):
        return value.id, value.version
    if isinstance(value, Node):
        parts = value.edges, value.metas, value.attrs, value.out_metas, value.versions
        saved = [facts_of(tensor) for tensor in value._saved]
        same = [[id(part) for part in some] for some in parts]
        return id(value.operator), same, saved, value.seq
    return id(value)


def outcome_of(call: Any, args: tuple[object, ...]) -> object:
    """Return the outcome of a call.  Both calls are made here, so their lines are equal."""
    return call(*args)


def native_for(op: Callee, twin: Callable[..., object], shared: Table, address: int) -> Call:
    """The native call of `op`."""
    call, site = new_call(twin, None), site_table(op, twin, shared)
    activate(call, site.words, address, site)
    return call


def trouble(address: int) -> str:
    """Return the difference of the native call at `address` from its twin, or ""."""
    meta: object = ("meta",)
    other: Any = ("other",)
    edge, entry_word = object(), (7 << 40) + 3
    x, y = plain_tensor(11, meta), plain_tensor(12 + (64 << 20), other, kind=PlainParameter)
    expected, changed = plain_tensor(13, meta, edge), plain_tensor(14, meta, None, version=3)
    gives = CallEntry(entry_word, (other,), False, "")
    grad = lambda c, g: (g,)  # noqa: E731
    one, two = callee("x"), callee("x y")
    three = callee("x y z", "a b", "s t", scalar_kinds="dq")
    saving = callee("x y", saves=("x", "out", "y"), grad=grad)
    number = callee("x", "kind", "s", saves=("x",), grad=grad)
    writes = callee("x y z", "", "s", scalar_kinds="d", outputs=(), writes="yz")
    over = callee("x y", "", "s", scalar_kinds="d", outputs=(), writes="x", over="another")
    over.lru.young[meta, other] = CallEntry(entry_word, (), False, "")
    makes = callee("", "a", "s", scalar_kinds="d")
    makes.lru.young["b",] = gives
    writes.lru.young[meta, meta, meta] = CallEntry(entry_word, (), False, "")
    one.lru.young[meta,] = two.lru.young[meta, other] = saving.lru.young[meta, meta] = gives
    three.lru.young[meta, other, meta, 1, "b"] = gives
    number.lru.young[meta, float] = CallEntry(entry_word, (other,), False, "d")
    cases = (
        (one, (x,)),
        (two, (x, y)),
        (saving, (x, changed)),
        (saving, (expected, changed)),
        (three, (x, y, expected, 1, "b", 2.5, -9)),
        (number, (x, float, -0.1)),
        (number, (expected, float, 7)),
        (number, (expected, float, True)),
        (makes, ("b", 0.25)),
        (over, (changed, plain_tensor(16, other), 0.5)),
        (over, (plain_tensor(17, meta), plain_tensor(16, other), 1.5)),
        (writes, (expected, changed, plain_tensor(15, meta), 0.5)),
    )
    for op, args in cases:
        difference = _difference(address, op, args)
        if difference:
            return f"{op.name}: {difference}"
    return ""


def trouble_at_pins(address: int) -> str:
    """Return the trouble with the user's place: `find_user` reads the pinned line."""
    op: SimpleNamespace = callee("x")
    meta: Any = ("meta",)
    op.lru.young[meta,] = CallEntry(7, (meta,), False, "")
    lines, misses = Mode[object](None), list[object]()
    apart = Apart()
    apart.names.update(user_files=set(), user_lines=lines.local, internal_files={})
    apart.names["pinned"] = lines.inside

    def find(frame: object) -> tuple[str, int]:
        misses.append(frame)
        return "found", 1

    apart.names["find_user"] = find
    call = native_for(op, call_function(op, apart.names), shared_table(apart.names), address)
    x, outer, inner = plain_tensor(11, meta), [object(), -1000], [object(), -2000]
    before = [getrefcount(value) for value in (*outer, *inner)]

    def places() -> list[object]:
        pairs = []
        for _ in range(_TIMES):
            apart.names["counter"] = itertools.count(RING.SLOTS)
            call(x)
            pairs.append((apart.names["codes"][0], apart.names["lasts"][0]))
        return list(set(pairs))

    observations = [places()]
    with lines.within(outer):
        observations.append(places())
        with lines.within(inner):
            observations.append(places())
            with lines.within(None):
                observations.append(places())
        observations.append(places())
    names: dict[str, Any] = {}
    exec(compile("def user(function):\n return function()", "<a user's>", "exec"), names)
    apart.names["user_files"].add("<a user's>")
    observations.append(names["user"](places))  # the frame between is not known for flowvm's
    apart.names["internal_files"][__file__] = True
    ((code, _),) = names["user"](places)
    if code is not names["user"].__code__:
        return f"the first user's place is in {code}"
    expected = [[("found", 1)], [tuple(outer)], [tuple(inner)], [("found", 1)], [tuple(outer)]]
    expected.append([("found", 1)])
    if observations != expected or len(misses) != 3 * _TIMES:
        return f"places are {observations}, {len(misses)} of them asked for, and not {expected}"
    apart.names["codes"][0] = apart.names["lasts"][0] = None
    del observations, expected
    after = [getrefcount(value) for value in (*outer, *inner)]
    return "" if before == after else f"references to places {before} become {after}"


def trouble_at_traces(address: int) -> str:
    """Return the trouble with a call that follows a trace of one view, made by `view_of`."""
    apart, meta, form, op = Apart(), ("meta",), ("seen",), object()
    edge = object.__new__(Node)
    apart.names["unrecorded"], attrs, cache = set(), ("attribute",), dict[object, object]()
    step = Table(
        STEP, None, KIND=VIEW, SITE=op, MADE=form, OFFSET=64, ATTRS=attrs, INPUTS=1, ARGUMENTS=1
    )
    trace = Table(TRACE, step, list(step.words), STEPS=1, TENSORS=1, RESULT=1)
    for key in ((0, None, meta, 1), (1, None, meta, 1)):
        cache[key] = (trace.address, trace)
    shared, misses = shared_table(apart.names), list[object]()
    facts = {"TWIN": misses.append, "FUNCTION": misses.append, "KIND": FRONT, "CACHE": cache}
    site = Table(SITE, shared, SHARED=shared.address, CONVERTED=1, **facts)
    call = new_call(misses.append, None)
    activate(call, site.words, address, site)
    x, w = plain_tensor(11, meta), plain_tensor(12, meta, edge, version=2)
    references, counts = (x, w, meta, form, edge, op, attrs, trace, None), []
    for _ in range(3):
        for tensor in (x, w) * _TIMES:
            out = call(tensor, 1)
            same = out._storage is tensor._storage and out._kin is tensor and out._meta is form
            if not same or out._ref != tensor._ref + 64 or tensor._kin[-1]() is not out:
                return "a view is not what its trace says"
            node, recorded = out._node, tensor is w
            if (node is not None) != recorded:
                return "a view's Node is there, or is not, where it should not"
            if recorded and (node.operator, node.edges, node.seq) != (op, (edge,), NO_ORIGIN):
                return f"a view's Node is one of {node.operator}, {node.edges}, {node.seq}"
        del out, node, tensor
        counts.append([getrefcount(value) for value in references])
    if counts[1] != counts[2]:
        return f"references before and after views: {counts}"
    call(x)
    return "" if misses == [x] else f"what has no trace is left to {misses}"


def trouble_at_regions(address: int) -> str:
    """Return the trouble with a function that is called where nothing is recorded: the modes inside
    of it, and behind it.
    """
    mode, value, notes = Mode[object](None), object(), list[object]()
    apart = Apart()
    apart.names.update(unrecorded=mode.inside, recording=mode.local, FORGET=value)

    def inside(fails: bool) -> object:
        notes.append((mode.now(), len(mode.inside)))
        with mode.within("inner"):
            notes.append(mode.now())
        if fails:
            raise LookupError
        return value

    shared = shared_table(apart.names)
    facts = {"TWIN": notes.append, "FUNCTION": inside, "KIND": UNRECORDED}
    site = Table(SITE, shared, SHARED=shared.address, **facts)
    call = new_call(notes.append, None)
    activate(call, site.words, address, site)
    counts = []
    for _ in range(3):
        for fails in (False, True) * _TIMES:
            try:
                if call(fails) is not value or fails:
                    return "what is called in a region gives something else"
            except LookupError:
                if not fails:
                    return "what is called in a region fails"
        if notes != [(value, 1), "inner"] * (2 * _TIMES) or mode.inside or mode.local.entries:
            return f"in and behind regions {notes[:3]}, {mode.inside}, {mode.local.entries} hold"
        notes.clear()
        counts.append([getrefcount(part) for part in (value, inside, None)])
    return "" if counts[1] == counts[2] else f"references before and after regions: {counts}"


def trouble_at_modules(address: int) -> str:
    """Return the trouble with the notes of module calls: of one in another, of one that fails, and
    of one that still runs.
    """
    apart, scopes, notes, value = Apart(), Scopes(), list[object](), object()
    apart.names["counter"] = itertools.count(1000)

    class Called:
        def __init__(self, inner: object = None) -> None:
            self.inner = inner

        def forward(self, fails: bool) -> object:
            next(apart.names["counter"])
            if self.inner is not None:
                call(self.inner, fails)
                next(apart.names["counter"])
            notes.append((scopes.native(0), scopes.outermost()))
            if fails:
                raise LookupError
            return value

    inner = Called()
    outer = Called(inner)
    known, added = {id(outer): 7}, list[object]()

    def add(module: object) -> int:
        added.append((module, scopes.outermost()))
        known[id(module)] = 8
        return 8

    scopes.names = {7: "outer", 8: "inner"}
    words, shared = scopes.take_notes(), shared_table(apart.names)
    words[NOTES.KNOWN], words[NOTES.ADD] = id(known), id(add)
    facts = {"TWIN": notes.append, "FUNCTION": notes.append, "KIND": NOTED, "CACHE": []}
    site = Table(SITE, shared, SHARED=shared.address, NUMBERED=ctypes.addressof(words), **facts)
    call = new_call(notes.append, None)
    activate(call, site.words, address, site)
    me, counts = threading.get_ident(), []
    for turn in range(3):
        for fails in (False, True) * _TIMES:
            try:
                if call(outer, fails) is not value or fails:
                    return "a module that is noted gives something else"
            except LookupError:
                if not fails:
                    return "a module that is noted fails"
        counts.append([getrefcount(x) for x in (value, inner, outer, apart.names["counter"], None)])
        if turn == 0:
            run = (1000, NEVER, me, "outer")
            first = notes[0] == ([(1001, NEVER, me, "inner"), run], outer)
            over = scopes.native(0)[:4] == [
                (1001, 1002, me, "inner"), (1000, 1003, me, "outer"),
                (1004, 1005, me, "inner"), (1003, 1005, me, "outer"),
            ]  # fmt: skip
            if not first or not over or notes[1] != ([(1001, 1002, me, "inner"), run], outer):
                return f"of calls of modules is noted {notes[:2]}, {scopes.native(0)[:4]}"
        notes.clear()
    if added != [(inner, outer)]:
        return f"paths are asked for of {added}"
    return "" if counts[1] == counts[2] else f"references before and after modules: {counts}"


def trouble_at_values(address: int, codes: dict[DType, int]) -> str:
    """Return the trouble with values that are read in place, of each dtype, unfinished ones and
    poisoned ones.
    """
    apart, misses = Apart(), list[object]()
    memory = mmap.mmap(-1, 8 * ARRAY.WORDS, mmap.MAP_PRIVATE | _NORESERVE)  # few pages are touched
    m = memoryview(memory).cast("q")
    apart.names["control"], storage = memoryview(memory), 21
    shared, at = shared_table(apart.names), STO.AT + 21 * STO.WORDS
    before = m[CTL.RECEIVED] = RING.SLOTS - 2
    calls = []
    for how in range(AS_LIST + 1):
        facts = {"TWIN": misses.append, "FUNCTION": misses.append, "KIND": READ, "CACHE": codes}
        site = Table(SITE, shared, SHARED=shared.address, HOW=how, **facts)
        calls.append(new_call(misses.append, None))
        activate(calls[-1], site.words, address, site)
    for dtype in codes:
        array = np.array([[0, 1, -3], [7, 127, -128]]).astype(dtype.numpy)
        m[at + STO.POINTER] = array.ctypes.data
        whole = plain_tensor(storage, TensorMeta.of((3, 2), dtype, stride=(1, 3)))
        for _ in range(_TIMES):
            lists = calls[AS_LIST](whole)
        if repr(lists) != repr(array.T.tolist()):
            return f"tolist of {dtype} gives {lists}"
        for k, number in enumerate(array.ravel().tolist()):
            one = plain_tensor(storage + (k * array.itemsize << 20), TensorMeta.of((), dtype))
            expected = [number, bool(number), float(number), int(number), number]
            for how, call in enumerate(calls):
                value = call(one)
                if repr(value) != repr(expected[how]) and misses != [one]:
                    return f"{dtype}, read as {how}, gives {value} and not {expected[how]}"
                misses.clear()
    first = DEP.AT + storage * DEP.WORDS + DEP.FIRST
    for place, value in (
        (CTL.RECEIVED, before - 1),
        (first, 1),
        (at + STO.POISON, 1),
        (CTL.LEVEL, 2),
    ):
        old, m[place], m[ACC.AT + ACC.WRITES] = m[place], value, 1
        calls[0](one)
        m[place] = old
    if misses != [one] * 4:
        return f"what is not done is read, and but {misses} left to the twin"
    return ""


def trouble_at_equality(address: int, known: dict[DType, tuple[int, int, int, int]]) -> str:
    """Return the trouble with tensors that are compared in place, of each dtype: equal ones, NaN,
    zeros of both signs, differences in each place, and addresses of halves of words.
    """
    apart, misses = Apart(), list[object]()
    memory = mmap.mmap(-1, 8 * ARRAY.WORDS, mmap.MAP_PRIVATE | _NORESERVE)  # few pages are touched
    m = memoryview(memory).cast("q")
    apart.names["control"] = memoryview(memory)
    shared = shared_table(apart.names)
    m[CTL.RECEIVED] = RING.SLOTS - 2
    facts = {"TWIN": misses.append, "FUNCTION": misses.append, "KIND": READ, "CACHE": known}
    site = Table(SITE, shared, SHARED=shared.address, HOW=AS_EQUAL, **facts)
    call = new_call(misses.append, None)
    activate(call, site.words, address, site)
    for dtype, (itemsize, size, signs, _) in known.items():
        arrays = [np.zeros(19, dtype.storage) for _ in range(2)]
        parts = [a.view(f"i{size}") for a in arrays]
        for k, (a, part) in enumerate(zip(arrays, parts, strict=True)):
            m[STO.AT + (21 + k) * STO.WORDS + STO.POINTER] = a.ctypes.data
            part[:] = np.arange(len(part)) % 100
            part[3:5] = (0, 1 << 8 * size - 2) if signs else (1, 5)
        for place in range(len(parts[0])):
            for other, same in ((0, True), (1, False), (-1 << 8 * size - 1, None), (-1, False)):
                before = parts[0][place], parts[1][place]
                parts[0][place] = 0
                parts[1][place] = other
                if other == -1:  # NaN, and with itself
                    parts[0][place] = -1
                    same = not signs
                expected = bool(signs) if same is None else same
                for first in (0, 1):
                    meta = TensorMeta.of((19 - first,), dtype)
                    at = first * itemsize << 20
                    x, y = (plain_tensor(21 + k + at, meta) for k in range(2))
                    answer = call(x, y)
                    if answer is not (expected or place < first * itemsize // size):
                        return f"{dtype}: {arrays} from {first} on are equal: {answer}"
                parts[0][place], parts[1][place] = before
    meta = TensorMeta.of((3,), dtype)
    pairs = [(meta, TensorMeta.of((2,), dtype)), (meta, TensorMeta.of((3,), dtype, stride=(2,)))]
    pairs.append((meta, TensorMeta.of((3,), next(d for d in known if d is not dtype))))
    for turn in range(2 * len(pairs)):
        metas = pairs[turn // 2][:: 1 - turn % 2 * 2]
        try:
            call(*(plain_tensor(21 + k, meta) for k, meta in enumerate(metas)))
        except TypeError:  # `append` takes one
            continue
        return f"{metas} are compared"
    x, y = plain_tensor(21, meta), plain_tensor(22, meta)
    counts = []
    for _ in range(3):
        for _ in range(_TIMES):
            call(x, y)
        counts.append([getrefcount(value) for value in (x, y, meta, dtype, True, False, None)])
    if counts[1] != counts[2]:
        return f"references before and after comparisons: {counts}"
    m[DEP.AT + 22 * DEP.WORDS + DEP.FIRST] = m[ACC.AT + ACC.WRITES] = 1
    try:
        call(x, y)
    except TypeError:
        return ""
    return "what is not done is compared"


def trouble_at_constants(address: int, codes: dict[DType, int]) -> str:
    """Return the trouble with tensors of numbers, of each dtype: their memory, and what they and
    what is known of them hold.
    """
    apart, misses = Apart(), list[object]()
    memory = mmap.mmap(-1, 8 * ARRAY.WORDS, mmap.MAP_PRIVATE | _NORESERVE)  # few pages are touched
    m = memoryview(memory).cast("q")
    apart.names["control"] = memoryview(memory)
    shared = shared_table(apart.names)
    layouts: dict[object, dict[int, object]] = {}
    facts = {"TWIN": misses.append, "FUNCTION": misses.append, "KIND": CONSTANT, "CACHE": layouts}
    sets: list[set[object]] = [set(), set()]
    facts.update(ELSEWHERE=Several(map(id, sets)), DTYPE_NAME=sys.intern("dtype"))
    site = Table(SITE, (shared, sets), SHARED=shared.address, **facts)
    call = new_call(lambda data, dtype=None: misses.append(data), None)
    site.words[SITE.TWIN] = site.words[SITE.FUNCTION] = id(call.twin)
    activate(call, site.words, address, site)
    adopted = apart.names["adopted"]
    for dtype, code in codes.items():
        for data, lengths in (
            (5, ()),
            ([1, 0, 77], (3,)),
            ([[1, 2, 3], (4, 5, 6)], (2, 3)),
            (([[1], [2]], [[3], [4]]), (2, 2, 1)),
        ):
            if code & BOOLEAN:
                kind, data = OF_BOOLS, (np.array(data) % 2 == 1).tolist()
            elif code & FLOATING:
                kind, data = OF_FLOATS, (np.array(data) * 1.1).tolist()
            else:
                kind = OF_INTS
            meta = TensorMeta.of(lengths, dtype)
            layouts[dtype] = {layout_of(kind, lengths): (meta, code)}
            tensor = call(data, dtype=dtype)
            if (
                type(tensor) is not PlainTensor
                or tensor._meta is not meta
                or tensor._node is not None
            ):
                return f"{data} as {dtype} gives {tensor}"
            at = STO.AT + tensor._ref * STO.WORDS
            owner, expected = adopted[tensor._ref], np.array(data, dtype.numpy).tobytes()
            where = m[at + STO.POINTER], m[at + STO.BYTES], m[at + STO.CLASS]
            if owner != expected or ctypes.string_at(where[0], where[1]) != expected or where[2]:
                return f"{data} as {dtype} gives {owner!r} at {where}"
            if tensor._storage is not None or misses:
                return f"{data} as {dtype} has a Storage, or {misses} are left to the twin"
    int_dtype = next(d for d in codes if d.name == "int8")
    meta = TensorMeta.of((2,), int_dtype)
    layouts[int_dtype] = {layout_of(OF_INTS, (2,)): (meta, codes[int_dtype])}
    good = [1, 2]
    bad: list[Any] = [[1, 200], [1, 2.0], [1, True], [1, 1 << 70], [1], [1, [2]], [], "ab", None]
    for data in bad:
        call(data, dtype=int_dtype)
    call(good)
    for some in (*sets, apart.names["departed"]):
        some.add(1)
        call(good, dtype=int_dtype)
        some.clear()
    if misses != [*bad, *[good] * 4]:
        return f"{misses} are left to the twin"
    counts, known = [], layouts[int_dtype]
    for _ in range(3):
        for _ in range(_TIMES):
            tensor = call(good, dtype=int_dtype)
            adopted.clear()
        held = (good, meta, int_dtype, known, *known.values(), None)
        counts.append([getrefcount(value) for value in held])
    if counts[1] != counts[2]:
        return f"references before and after tensors of numbers: {counts}"
    apart.names["dead"].extend(range(MOST_DEAD))
    call(good, dtype=int_dtype)
    return "" if apart.finished == ["dead"] else "what is dead is not released"


def trouble_at_arrays(address: int, dtypes: dict[DType, tuple[np.dtype[np.generic], int]]) -> str:
    """Return the trouble with arrays on tensors' memory, of each dtype, and what they hold."""
    apart, misses = Apart(), list[object]()
    memory = mmap.mmap(-1, 8 * ARRAY.WORDS, mmap.MAP_PRIVATE | _NORESERVE)  # few pages are touched
    m = memoryview(memory).cast("q")
    apart.names["control"], storage = memoryview(memory), 21
    shared, at = shared_table(apart.names), STO.AT + 21 * STO.WORDS
    m[CTL.RECEIVED] = RING.SLOTS - 2
    facts = {"TWIN": misses.append, "FUNCTION": misses.append, "KIND": READ, "CACHE": dtypes}
    site = Table(SITE, shared, SHARED=shared.address, HOW=AS_ARRAY, **facts)
    call: Any = new_call(misses.append, None)
    activate(call, site.words, address, site)
    lent = apart.lent.data
    for dtype, (kind, size) in dtypes.items():
        array = np.arange(12).astype(kind)
        m[at + STO.POINTER] = array.ctypes.data
        tensor = plain_tensor(storage + (size << 20), TensorMeta.of((3, 2), dtype, stride=(1, 4)))
        tensor._storage = plain_tensor(storage, None, version=0)._storage
        view = call(tensor)
        expected = np.lib.stride_tricks.as_strided(array[1:], (3, 2), (size, 4 * size))
        if type(view) is not np.ndarray or view.dtype is not kind or not view.flags.writeable:
            return f"a {dtype} tensor gives {view!r}"
        same = view.__array_interface__ == expected.__array_interface__
        if not same or view.flags.num != expected.flags.num or not np.array_equal(view, expected):
            return f"a {dtype} tensor gives {view.__array_interface__} {view.flags}"
        base: object = view.base
        if not isinstance(base, PlainLoan) or (base.storage, base.id) != (tensor._storage, storage):
            return f"an array is on {base!r}"
    if (lent[storage], lent[0]) != (len(dtypes), len(dtypes)) or misses:
        return f"{apart.lent.tolist()} are lent, and {misses} left to the twin"
    held, counts = (tensor, tensor._meta, kind, tensor._storage, storage, None), list[object]()
    for _ in range(3):
        for _ in range(_TIMES):
            call(tensor)
        counts.append([getrefcount(value) for value in held])
    if counts[1] != counts[2]:
        return f"references before and after arrays: {counts}"
    m[DEP.AT + storage * DEP.WORDS + DEP.FIRST] = 1  # somebody reads or writes it
    call(tensor)
    tensor._node = object()
    call(tensor)
    return "" if misses == [tensor] * 2 else f"but {misses} left to the twin"


def trouble_at_death(address: int) -> str:
    """Return the trouble with the native call at `address` that is `Tensor.__del__`."""
    apart, misses = Apart(), list[object]()
    tensors = plain_tensor(1, None), plain_tensor(2, None, version=1), PlainTensor(), object()
    owns_nothing = PlainTensor()
    owns_nothing._storage = None
    loan = PlainLoan()
    loan.id = 4
    apart.lent[[0, 4]] = _TIMES, _TIMES
    call = new_call(misses.append, None)
    site = site_table(callee("x"), call.twin, shared_table(apart.names))
    activate(call, site.words, address, site)
    before = getrefcount(None)
    for _ in range(_TIMES):
        for value in (*tensors, owns_nothing, loan):
            call(value)
    if getrefcount(None) != before:
        return "None is not given back"
    if apart.lent.any():
        return f"of loans that end, there are {apart.lent.tolist()}"
    if apart.names["dead"] != [1] * _TIMES or misses != [tensors[-1]] * _TIMES:
        return f"of six that die, dead are {apart.names['dead']}, and asked for {misses}"
    return ""


def trouble_at_release(address: int) -> str:
    """Return the trouble with dead storages, which twins leave to a function of the engine's."""
    apart, op = Apart(), callee("x")
    meta: Any = ("meta",)
    op.lru.young[meta,] = CallEntry(7, (meta,), False, "")
    call = native_for(op, call_function(op, apart.names), shared_table(apart.names), address)
    x, dead, entries = plain_tensor(11, meta), apart.names["dead"], apart.names["releases"]
    expected = {1: [70, 6, 5, 1 << 20], 2: [3]}  # here a record releases four at most
    counts = []
    for _ in range(_TIMES):
        apart.names["counter"] = itertools.count(RING.SLOTS)
        dead.extend([3, 1 << 20, 5, 6, 70])
        call(x)
        for k, ids in expected.items():
            words = [RING.SLOTS + k + 1, entries[len(ids)], *ids]
            if apart.record(k)[: len(words)] != words or apart.names["codes"][k] is not None:
                return f"{apart.record(k)[: len(words)]} releases {ids}"
        if dead or apart.finished:
            return f"{dead} are not released, or {apart.finished}"
        counts.append((getrefcount(None), *map(getrefcount, entries)))
    if len(set(counts[1:])) > 1:
        return f"references to None and entries, release by release: {counts}"
    apart.names["stream_of"][3] = 1
    dead.append(3)
    apart.names["counter"] = itertools.count(RING.SLOTS)
    call(x)
    return "" if (dead, apart.finished) == ([3], ["dead"]) else f"{dead} of a stream are released"


def _difference(address: int, op: Callee, args: tuple[object, ...]) -> str:
    places = Apart(), Apart()
    calls: list[Any] = [call_function(op, place.names) for place in places]
    calls[1] = native_for(op, calls[1], shared_table(places[1].names), address)
    each = [tuple(map(like, args)) for _ in calls]
    for turn in range(_TIMES):
        results = [outcome_of(call, own) for call, own in zip(calls, each, strict=True)]
        expected, actual = (
            (facts_of(result), *map(facts_of, own))
            for result, own in zip(results, each, strict=True)
        )
        if expected != actual:
            return f"call {turn} gives {actual}, its twin {expected}"
        if turn == 5:
            for place in places:
                place.names["control"][CTL.SCHEDULER_SLEEPS] = 1
                place.names["limit"] = RING.SLOTS + 20
                place.names["dead"].append(7)
                place.names["adopted"][7] = None  # so that the Python function releases it
    for name, ours, theirs in (
        ("record", *(place.words for place in places)),
        *((n, *(place.names[n] for place in places)) for n in ("codes", "lasts", "free")),
        ("number", *(repr(place.names["counter"]) for place in places)),
        ("order", *(place.finished for place in places)),
    ):
        if ours != theirs:
            return f"the {name} is another one"
    args = each[1]
    storages = [x._storage for x in args if isinstance(x, PlainTensor)]
    objects = [
        *args,
        *storages,
        *op.lru.young.values(),
        *(meta for key in op.lru.young for meta in key),
        *(meta for entry in op.lru.young.values() for meta in entry.outputs),
        op,
        Node,
        None,
    ]
    for call in calls[1:]:
        before = [getrefcount(value) for value in objects]
        for _ in range(_TIMES):
            outcome_of(call, args)
        after = [getrefcount(value) for value in objects]
        if before != after:
            return f"references before {_TIMES} calls {before}, after them {after}"
    hits = calls[1].words[SITE.HITS]
    return "" if hits == 2 * _TIMES else f"{hits} of {2 * _TIMES} calls were native"
