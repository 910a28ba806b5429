"""Whether native calls do what their twins do: looked at once a process, before the first of them.

Twin and native call run apart from the VM, each with a ring, a counter and a list of storage ids of
its own, on the same operands; records, tensors, nodes, places and reference counts are compared.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import struct
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from flowvm.eager.calls import call_function
from flowvm.eager.native.objects import activate, new_call
from flowvm.eager.native.tables import Table, shared_table, site_table
from flowvm.eager.native.words import (
    AS_ARRAY,
    AS_LIST,
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
    storage: Any


class PlainTensor:
    """As Tensor, but what it owns is nobody's."""

    __slots__ = ("__weakref__", "_extra", "_kin", "_meta", "_node", "_pending", "_ref", "_storage")

    _ref: int
    _meta: Any
    _node: Any
    _storage: Any
    _kin: Any

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
        """Where stores may pass each other, generated calls ask for this."""
        at = RING.WORDS * (seq & RING.SLOT_MASK) + RING.MARK
        struct.pack_into("q", self.words, 8 * at, seq + 1)

    def record(self, seq: int) -> list[int]:
        """The words of record `seq`, its mark first."""
        words = memoryview(self.words).cast("q")[RING.WORDS * (seq & RING.SLOT_MASK) :]
        return words[: RING.WORDS].tolist()[::-1]


def callee(inputs: str, attrs: str = "", scalars: str = "", **more: Any) -> Any:
    """An operator, as far as its calls depend on it."""
    facts = {
        "name": f"check_{inputs}".replace(" ", "_"),
        "inputs": tuple(inputs.split()),
        "outputs": ("out",),
        "attrs": tuple(attrs.split()),
        "scalars": tuple(scalars.split()),
        "scalar_kinds": "",
        "writes": frozenset(),
        "unsized": frozenset(),
        "saves": (),
        "grad": None,
        "amp": "",
        "over": None,
        "cache": {},
        "differentiable": ("out",),
        **more,
    }
    return SimpleNamespace(**facts)


def plain_tensor(
    ref: int, meta: Any, node: Any = None, version: int = -1, kind: Any = PlainTensor
) -> Any:
    """An operand; with a version it has a storage of its own."""
    tensor = kind()
    tensor._ref, tensor._meta, tensor._node, tensor._storage = ref, meta, node, None
    if version >= 0:
        tensor._storage = PlainStorage()
        tensor._storage.version, tensor._storage.id = version, ref
    return tensor


def like(value: Any) -> Any:
    """An operand as `value` is, that may be written."""
    if not isinstance(value, PlainTensor):
        return value
    version = -1 if value._storage is None else value._storage.version
    return plain_tensor(value._ref, value._meta, value._node, version, type(value))


def told(value: Any) -> Any:
    """A call's result, as something that can be compared."""
    if isinstance(value, PlainTensor):
        return value._ref, id(value._meta), told(value._node), told(value._storage)
    if isinstance(value, PlainStorage):
        return value.id, value.version
    if isinstance(value, Node):
        parts = value.edges, value.metas, value.attrs, value.out_metas, value.versions
        saved = [told(tensor) for tensor in value._saved]
        same = [[id(part) for part in some] for some in parts]
        return id(value.operator), same, saved, value.seq
    return id(value)


def asked(call: Any, args: tuple[Any, ...]) -> Any:
    """What a call gives: both calls are made here, so that their places are the same."""
    return call(*args)


def native_for(op: Any, twin: Callable[..., Any], shared: Table, address: int) -> Any:
    """The native call of `op`."""
    call, site = new_call(twin, None), site_table(op, twin, shared)
    activate(call, site.words, address, site)
    return call


def trouble(address: int) -> str:
    """How the native call at `address` differs from its twin, or ""."""
    meta, other = ("meta",), ("other",)
    edge, entry_word = object(), (7 << 40) + 3
    x, y = plain_tensor(11, meta), plain_tensor(12 + (64 << 20), other, kind=PlainParameter)
    wanted, changed = plain_tensor(13, meta, edge), plain_tensor(14, meta, None, version=3)
    gives = (entry_word, other, False, "")
    grad: Callable[..., Any] = lambda c, g: (g,)  # noqa: E731
    one, two = callee("x"), callee("x y")
    three = callee("x y z", "a b", "s t", scalar_kinds="dq")
    saving = callee("x y", saves=("x", "out", "y"), grad=grad)
    number = callee("x", "kind", "s", saves=("x",), grad=grad)
    writes = callee("x y z", "", "s", scalar_kinds="d", outputs=(), writes=frozenset("yz"))
    over = callee(
        "x y", "", "s", scalar_kinds="d", outputs=(), writes=frozenset("x"), over="another"
    )
    over.cache[meta, other] = (entry_word, False, "")
    makes = callee("", "a", "s", scalar_kinds="d")
    makes.cache["b",] = gives
    writes.cache[meta, meta, meta] = (entry_word, False, "")
    one.cache[meta,] = two.cache[meta, other] = saving.cache[meta, meta] = gives
    three.cache[meta, other, meta, 1, "b"] = gives
    number.cache[meta, float] = (entry_word, other, False, "d")
    cases = (
        (one, (x,)),
        (two, (x, y)),
        (saving, (x, changed)),
        (saving, (wanted, changed)),
        (three, (x, y, wanted, 1, "b", 2.5, -9)),
        (number, (x, float, -0.1)),
        (number, (wanted, float, 7)),
        (number, (wanted, float, True)),
        (makes, ("b", 0.25)),
        (over, (changed, plain_tensor(16, other), 0.5)),
        (over, (plain_tensor(17, meta), plain_tensor(16, other), 1.5)),
        (writes, (wanted, changed, plain_tensor(15, meta), 0.5)),
    )
    for op, args in cases:
        found = _difference(address, op, args)
        if found:
            return f"{op.name}: {found}"
    return ""


def trouble_at_pins(address: int) -> str:
    """The same for the user's place: what `find_user` finds, which reads what is pinned."""
    op, meta = callee("x"), ("meta",)
    op.cache[meta,] = (7, meta, False, "")
    lines, asked = Mode[Any](None), list[Any]()
    apart = Apart()
    apart.names.update(user_files=set(), user_lines=lines.here, internal_files={})
    apart.names["pinned"] = lines.inside

    def find(frame: Any) -> tuple[str, int]:
        asked.append(frame)
        return "found", 1

    apart.names["find_user"] = find
    call = native_for(op, call_function(op, apart.names), shared_table(apart.names), address)
    x, outer, inner = plain_tensor(11, meta), [object(), -1000], [object(), -2000]
    before = [getrefcount(value) for value in (*outer, *inner)]

    def places() -> list[Any]:
        found = []
        for _ in range(_TIMES):
            apart.names["counter"] = itertools.count(RING.SLOTS)
            call(x)
            found.append((apart.names["codes"][0], apart.names["lasts"][0]))
        return list(set(found))

    found = [places()]
    with lines.within(outer):
        found.append(places())
        with lines.within(inner):
            found.append(places())
            with lines.within(None):
                found.append(places())
        found.append(places())
    made: dict[str, Any] = {}
    exec(compile("def user(function):\n return function()", "<a user's>", "exec"), made)
    apart.names["user_files"].add("<a user's>")
    found.append(made["user"](places))  # the frame between is not known for flowvm's
    apart.names["internal_files"][__file__] = True
    ((code, _),) = made["user"](places)
    if code is not made["user"].__code__:
        return f"the first user's place is in {code}"
    wanted = [[("found", 1)], [tuple(outer)], [tuple(inner)], [("found", 1)], [tuple(outer)]]
    wanted.append([("found", 1)])
    if found != wanted or len(asked) != 3 * _TIMES:
        return f"places are {found}, {len(asked)} of them asked for, and not {wanted}"
    apart.names["codes"][0] = apart.names["lasts"][0] = None
    del found, wanted
    after = [getrefcount(value) for value in (*outer, *inner)]
    return "" if before == after else f"references to places {before} become {after}"


def trouble_at_traces(address: int) -> str:
    """The same for a call that follows a trace, which here is one view: what `view_of` makes."""
    apart, meta, seen, op = Apart(), ("meta",), ("seen",), object()
    edge = object.__new__(Node)
    apart.names["unrecorded"], attrs, cache = set(), ("attribute",), dict[Any, Any]()
    step = Table(
        STEP, None, KIND=VIEW, SITE=op, MADE=seen, OFFSET=64, ATTRS=attrs, INPUTS=1, ARGUMENTS=1
    )
    trace = Table(TRACE, step, list(step.words), STEPS=1, TENSORS=1, RESULT=1)
    for key in ((0, None, meta, 1), (1, None, meta, 1)):
        cache[key] = (trace.address, trace)
    shared, asked = shared_table(apart.names), list[Any]()
    facts = {"TWIN": asked.append, "FUNCTION": asked.append, "KIND": FRONT, "CACHE": cache}
    site = Table(SITE, shared, SHARED=shared.address, CONVERTED=1, **facts)
    call = new_call(asked.append, None)
    activate(call, site.words, address, site)
    x, w = plain_tensor(11, meta), plain_tensor(12, meta, edge, version=2)
    kept, counts = (x, w, meta, seen, edge, op, attrs, trace, None), []
    for _ in range(3):
        for tensor in (x, w) * _TIMES:
            out: Any = call(tensor, 1)
            same = out._storage is tensor._storage and out._kin is tensor and out._meta is seen
            if not same or out._ref != tensor._ref + 64 or tensor._kin[-1]() is not out:
                return "a view is not what its trace says"
            node, recorded = out._node, tensor is w
            if (node is not None) != recorded:
                return "a view's Node is there, or is not, where it should not"
            if recorded and (node.operator, node.edges, node.seq) != (op, (edge,), NO_ORIGIN):
                return f"a view's Node is one of {node.operator}, {node.edges}, {node.seq}"
        del out, node, tensor
        counts.append([getrefcount(value) for value in kept])
    if counts[1] != counts[2]:
        return f"references before and after views: {counts}"
    call(x)
    return "" if asked == [x] else f"what has no trace is left to {asked}"


def trouble_at_regions(address: int) -> str:
    """The same for a function that is called where nothing is recorded: what holds inside of it,
    and what is left behind.
    """
    mode, value, seen = Mode[Any](None), object(), list[Any]()
    apart = Apart()
    apart.names.update(unrecorded=mode.inside, recording=mode.here, FORGET=value)

    def inside(fails: bool) -> Any:
        seen.append((mode.now(), len(mode.inside)))
        with mode.within("inner"):
            seen.append(mode.now())
        if fails:
            raise LookupError
        return value

    shared = shared_table(apart.names)
    facts = {"TWIN": seen.append, "FUNCTION": inside, "KIND": UNRECORDED}
    site = Table(SITE, shared, SHARED=shared.address, **facts)
    call: Any = new_call(seen.append, None)
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
        if seen != [(value, 1), "inner"] * (2 * _TIMES) or mode.inside or mode.here.entries:
            return f"in and behind regions {seen[:3]}, {mode.inside}, {mode.here.entries} hold"
        seen.clear()
        counts.append([getrefcount(part) for part in (value, inside, None)])
    return "" if counts[1] == counts[2] else f"references before and after regions: {counts}"


def trouble_at_modules(address: int) -> str:
    """The same for calls of modules that are noted: what is noted of one in another, of one that
    fails, and of one that still runs.
    """
    apart, scopes, seen, value = Apart(), Scopes(), list[Any](), object()
    apart.names["counter"] = itertools.count(1000)

    class Called:
        def __init__(self, inner: Any = None) -> None:
            self.inner = inner

        def forward(self, fails: bool) -> Any:
            next(apart.names["counter"])
            if self.inner is not None:
                call(self.inner, fails)
                next(apart.names["counter"])
            seen.append((scopes.native(0), scopes.outermost()))
            if fails:
                raise LookupError
            return value

    inner = Called()
    outer = Called(inner)
    known, added = {id(outer): 7}, list[Any]()

    def add(module: Any) -> int:
        added.append((module, scopes.outermost()))
        known[id(module)] = 8
        return 8

    scopes.names = {7: "outer", 8: "inner"}
    words, shared = scopes.take_notes(), shared_table(apart.names)
    words[NOTES.KNOWN], words[NOTES.ADD] = id(known), id(add)
    facts = {"TWIN": seen.append, "FUNCTION": seen.append, "KIND": NOTED, "CACHE": []}
    site = Table(SITE, shared, SHARED=shared.address, NUMBERED=ctypes.addressof(words), **facts)
    call: Any = new_call(seen.append, None)
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
            first = seen[0] == ([(1001, NEVER, me, "inner"), run], outer)
            over = scopes.native(0)[:4] == [
                (1001, 1002, me, "inner"), (1000, 1003, me, "outer"),
                (1004, 1005, me, "inner"), (1003, 1005, me, "outer"),
            ]  # fmt: skip
            if not first or not over or seen[1] != ([(1001, 1002, me, "inner"), run], outer):
                return f"of calls of modules is noted {seen[:2]}, {scopes.native(0)[:4]}"
        seen.clear()
    if added != [(inner, outer)]:
        return f"paths are asked for of {added}"
    return "" if counts[1] == counts[2] else f"references before and after modules: {counts}"


def trouble_at_values(address: int, codes: dict[Any, int]) -> str:
    """Return the trouble with values that are read in place, of each dtype, unfinished ones and
    poisoned ones.
    """
    apart, asked = Apart(), list[Any]()
    memory = mmap.mmap(-1, 8 * ARRAY.WORDS, mmap.MAP_PRIVATE | _NORESERVE)  # few pages are touched
    m = memoryview(memory).cast("q")
    apart.names["control"], storage = memoryview(memory), 21
    shared, at = shared_table(apart.names), STO.AT + 21 * STO.WORDS
    before = m[CTL.RECEIVED] = RING.SLOTS - 2
    calls: list[Any] = []
    for how in range(AS_LIST + 1):
        facts = {"TWIN": asked.append, "FUNCTION": asked.append, "KIND": READ, "CACHE": codes}
        site = Table(SITE, shared, SHARED=shared.address, HOW=how, **facts)
        calls.append(new_call(asked.append, None))
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
            wanted = [number, bool(number), float(number), int(number), number]
            for how, call in enumerate(calls):
                value = call(one)
                if repr(value) != repr(wanted[how]) and asked != [one]:
                    return f"{dtype}, read as {how}, gives {value} and not {wanted[how]}"
                asked.clear()
    first = DEP.AT + storage * DEP.WORDS + DEP.FIRST
    for place, value in (
        (CTL.RECEIVED, before - 1),
        (first, 1),
        (at + STO.POISON, 1),
        (CTL.LEVEL, 2),
    ):
        kept, m[place], m[ACC.AT + ACC.WRITES] = m[place], value, 1
        calls[0](one)
        m[place] = kept
    if asked != [one] * 4:
        return f"what is not done is read, and but {asked} left to the twin"
    return ""


def trouble_at_arrays(address: int, dtypes: dict[Any, tuple[Any, int]]) -> str:
    """Return the trouble with arrays on tensors' memory, of each dtype, and what they hold."""
    apart, asked = Apart(), list[Any]()
    memory = mmap.mmap(-1, 8 * ARRAY.WORDS, mmap.MAP_PRIVATE | _NORESERVE)  # few pages are touched
    m = memoryview(memory).cast("q")
    apart.names["control"], storage = memoryview(memory), 21
    shared, at = shared_table(apart.names), STO.AT + 21 * STO.WORDS
    m[CTL.RECEIVED] = RING.SLOTS - 2
    facts = {"TWIN": asked.append, "FUNCTION": asked.append, "KIND": READ, "CACHE": dtypes}
    site = Table(SITE, shared, SHARED=shared.address, HOW=AS_ARRAY, **facts)
    call: Any = new_call(asked.append, None)
    activate(call, site.words, address, site)
    lent = apart.lent.data
    for dtype, (kind, size) in dtypes.items():
        array = np.arange(12).astype(kind)
        m[at + STO.POINTER] = array.ctypes.data
        tensor = plain_tensor(storage + (size << 20), TensorMeta.of((3, 2), dtype, stride=(1, 4)))
        tensor._storage = plain_tensor(storage, None, version=0)._storage
        view = call(tensor)
        wanted = np.lib.stride_tricks.as_strided(array[1:], (3, 2), (size, 4 * size))
        if type(view) is not np.ndarray or view.dtype is not kind or not view.flags.writeable:
            return f"a {dtype} tensor gives {view!r}"
        same = view.__array_interface__ == wanted.__array_interface__
        if not same or view.flags.num != wanted.flags.num or not np.array_equal(view, wanted):
            return f"a {dtype} tensor gives {view.__array_interface__} {view.flags}"
        base: Any = view.base
        if not isinstance(base, PlainLoan) or (base.storage, base.id) != (tensor._storage, storage):
            return f"an array is on {base!r}"
    if (lent[storage], lent[0]) != (len(dtypes), len(dtypes)) or asked:
        return f"{apart.lent.tolist()} are lent, and {asked} left to the twin"
    held, counts = (tensor, tensor._meta, kind, tensor._storage, storage, None), list[Any]()
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
    return "" if asked == [tensor] * 2 else f"but {asked} left to the twin"


def trouble_at_death(address: int) -> str:
    """The same for the native call at `address` that is `Tensor.__del__`."""
    apart, asked = Apart(), list[Any]()
    kept = plain_tensor(1, None), plain_tensor(2, None, version=1), PlainTensor(), object()
    owns_nothing = PlainTensor()
    owns_nothing._storage = None
    loan = PlainLoan()
    loan.id = 4
    apart.lent[[0, 4]] = _TIMES, _TIMES
    call = new_call(asked.append, None)
    site = site_table(callee("x"), call.twin, shared_table(apart.names))
    activate(call, site.words, address, site)
    before = getrefcount(None)
    for _ in range(_TIMES):
        for value in (*kept, owns_nothing, loan):
            call(value)
    if getrefcount(None) != before:
        return "None is not given back"
    if apart.lent.any():
        return f"of loans that end, there are {apart.lent.tolist()}"
    if apart.names["dead"] != [1] * _TIMES or asked != [kept[-1]] * _TIMES:
        return f"of six that die, dead are {apart.names['dead']}, and asked for {asked}"
    return ""


def trouble_at_release(address: int) -> str:
    """The same for dead storages, which twins leave to a function of the engine's."""
    apart, op, meta = Apart(), callee("x"), ("meta",)
    op.cache[meta,] = (7, meta, False, "")
    call = native_for(op, call_function(op, apart.names), shared_table(apart.names), address)
    x, dead, entries = plain_tensor(11, meta), apart.names["dead"], apart.names["releases"]
    wanted = {1: [70, 6, 5, 1 << 20], 2: [3]}  # here a record releases four at most
    counts = []
    for _ in range(_TIMES):
        apart.names["counter"] = itertools.count(RING.SLOTS)
        dead.extend([3, 1 << 20, 5, 6, 70])
        call(x)
        for k, ids in wanted.items():
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


def _difference(address: int, op: Any, args: tuple[Any, ...]) -> str:
    places = Apart(), Apart()
    calls: list[Any] = [call_function(op, place.names) for place in places]
    calls[1] = native_for(op, calls[1], shared_table(places[1].names), address)
    each = [tuple(map(like, args)) for _ in calls]
    for turn in range(_TIMES):
        results = [asked(call, own) for call, own in zip(calls, each, strict=True)]
        expected, found = (
            (told(result), *map(told, own)) for result, own in zip(results, each, strict=True)
        )
        if expected != found:
            return f"call {turn} gives {found}, its twin {expected}"
        if turn == 5:
            for place in places:
                place.names["control"][CTL.SCHEDULER_SLEEPS] = 1
                place.names["limit"] = RING.SLOTS + 20
                place.names["dead"].append(7)
                place.names["adopted"][7] = None  # so that the Python function releases it
    for name, there, here in (
        ("record", *(place.words for place in places)),
        *((n, *(place.names[n] for place in places)) for n in ("codes", "lasts", "free")),
        ("number", *(repr(place.names["counter"]) for place in places)),
        ("order", *(place.finished for place in places)),
    ):
        if there != here:
            return f"the {name} is another one"
    args = each[1]
    storages = [x._storage for x in args if isinstance(x, PlainTensor)]
    kept = [
        *args,
        *storages,
        *op.cache.values(),
        *(meta for key in op.cache for meta in key),
        op,
        Node,
        None,
    ]
    for call in calls[1:]:
        before = [getrefcount(value) for value in kept]
        for _ in range(_TIMES):
            asked(call, args)
        after = [getrefcount(value) for value in kept]
        if before != after:
            return f"references before {_TIMES} calls {before}, after them {after}"
    hits = calls[1].words[SITE.HITS]
    return "" if hits == 2 * _TIMES else f"{hits} of {2 * _TIMES} calls were native"
