"""The choice of native calls: all operators for which `takes` is True, unless `config.calls` is
"python".

`import flowvm` makes nothing native.  Twins make a program's first calls; then what helper
processes have compiled and tested (`prepare`: `check.py`, once for an interpreter and a flowvm,
with a note of it in the cache) is loaded, and an operator's next call makes its table.  A program
never waits: where nothing was prepared yet a helper does it behind, after the VM's own loops.

With `config.calls` "native" the first call waits for all that, and where native calls differ from
their twins, or this CPython is none that they were tested on, a VMError says so: who asked for
native calls is not given others.  By default twins go on making them, and `flowvm doctor` says why.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import sysconfig
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from flowvm.compiler import cache, helpers, jit
from flowvm.compiler.dependencies import source_key
from flowvm.config import config, say
from flowvm.eager.calls import Callee
from flowvm.eager.native.check import (
    trouble,
    trouble_at_arrays,
    trouble_at_constants,
    trouble_at_death,
    trouble_at_equality,
    trouble_at_modules,
    trouble_at_pins,
    trouble_at_regions,
    trouble_at_release,
    trouble_at_traces,
    trouble_at_values,
)
from flowvm.eager.native.cpython import provide_api
from flowvm.eager.native.entry_points import SIGNATURE, around, death, entry
from flowvm.eager.native.objects import SITE_AT, Call, activate, new_call
from flowvm.eager.native.tables import (
    ARRAYS,
    CODES,
    EQUALS,
    Table,
    inline_cache_table,
    shared_table,
    site_table,
    takes,
)
from flowvm.eager.native.words import FRONT, GRADIENT, SHARED, SITE
from flowvm.eager.tensor import Storage, Tensor
from flowvm.errors import FlowError, VMError
from flowvm.guards.forks import held_at_fork
from flowvm.loading.lazy import lazy
from flowvm.private.cpython import TESTED
from flowvm.version import VERSION
from flowvm.vm.callers.hot import counted, hot, issue_globals
from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.loans import Loan

metadata = lazy("importlib.metadata")  # when calls are to be native, and not with flowvm
CACHE_SLOTS = {FRONT: 8, GRADIENT: 64}  # calls that are known again without a look into a dict
FIRST = 64  # calls of a program that twins make: one that makes no more need not load anything


class Operator(Callee, Protocol):
    """An operator, as far as native calls are made of it."""

    numbered: Callable[[], Any] | None
    site: Any  # for traces, once there is one

    @property
    def twin(self) -> Callable[..., object]:
        """The Python function that issues its calls."""


_making = held_at_fork(threading.RLock())  # tables and compiled code, by a first call


def callable_of(op: Operator) -> Callable[..., object]:
    """Return the callable of `op`: its twin, or a native call."""
    if not is_enabled():
        return op.twin
    if config.calls == "native":
        return native_call(op)
    return new_call(op.twin, functools.partial(_begin_behind, op))


Function = TypeVar("Function", bound=Callable[..., object])


def fronted(function: Function, op: Callable[[], Operator]) -> Function:
    """`function`, whose calls with just the arguments of `op()` are calls of that operator once it
    has been called with such: a native call in front of it, if calls are to be native.

    So nobody but `function` may call the operator where `function` would do something else.
    """
    if not is_enabled():
        return function
    begin = _begin_front if config.calls == "native" else _begin_front_behind
    call: Any = new_call(function, functools.partial(begin, op))
    return call  # type: ignore[no-any-return]


def native_call(op: Operator) -> Call:
    """A native call of `op`, whatever the settings say; its first call waits until it is one."""
    return new_call(op.twin, functools.partial(_begin, op))


@functools.cache
def is_enabled() -> bool:
    """Return True if the settings and the interpreter allow native calls."""
    if config.calls == "python" or config.debug_calls:
        return False
    return config.calls == "native" or not unsupported()


def unsupported() -> str:
    """Return the reason why native calls are not for this interpreter, "" if they are."""
    minors = [release.rpartition(".")[0] for release in TESTED]
    this = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
    if sys.implementation.name != "cpython" or this.split()[1] not in minors:
        return f"native calls are tested on CPython {', '.join(minors)}, and this is {this}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "native calls need CPython's global lock, and this interpreter is built without it"
    if sys.maxsize != (1 << 63) - 1:
        return "native calls need addresses of 64 bits"
    return ""


def _begin_front(op: Callable[[], Operator], call: Call) -> None:
    _begin(op(), call, True)


def _begin(op: Operator, call: Call, front: bool = False) -> None:
    _begin_with(lambda: site_of(op, call.twin if front else None), call)


def begin_with(table: Callable[[], Table], call: Call, made_by: object = entry) -> None:
    """Make a call native whose SITE `table` makes, once calls are to be: it is what `made_by` makes
    of `entry_points.py`.
    """
    if config.calls == "native" or behind.ready or _look():
        _begin_with(table, call, made_by)


def _begin_with(table: Callable[[], Table], call: Call, made_by: object = entry) -> None:
    with _making:
        if why := why_not():
            raise VMError(f"{why}; set FLOWVM_CALLS=python for calls in Python")
        site = table()
        if call.begin is None:  # a finalizer called it meanwhile: what it looks at stays
            return
        activate(call, site.words, _address(made_by), site)
        call.begin = None
        if is_enabled() and Tensor.__del__ is not native_death(Tensor):
            for kind in (Tensor, Storage, Loan):
                type.__setattr__(kind, "__del__", native_death(kind))


# --- where nobody insists ----------------------------------------------------------------------


class Behind:
    """Progress of native calls for which no caller waits."""

    calls = 0  # that twins made meanwhile; those of several threads may count as one
    is_requested = False  # it was looked for what is prepared
    ready = False  # it is there, and native calls are as their twins


behind = Behind()


def _begin_behind(op: Operator, call: Call) -> None:
    if behind.ready or _look():
        _begin(op, call)


def _begin_front_behind(op: Callable[[], Operator], call: Call) -> None:
    if behind.ready or _look():
        _begin_front(op, call)


def _look() -> bool:
    """Return True if calls are native from this one on."""
    behind.calls += 1
    if behind.calls < FIRST or behind.is_requested or engine.threads.uncompiled:
        return False
    if sys.is_finalizing():  # nothing is imported any more
        return False
    behind.is_requested = True
    if not _load_prepared():
        helpers.later(f"{__name__}:prepare", _end_preparation)
    return behind.ready


def _load_prepared() -> bool:
    """Load what was prepared; whether it was."""
    try:
        provide_api()
    except VMError:
        return True
    note = noted()
    if note is None or any(helpers.native_if_cached(f, SIGNATURE) is None for f in _functions()):
        return False
    behind.ready = not note
    return True


def _end_preparation() -> None:
    """A helper has prepared it, or has failed to: then this thread does."""
    if not _load_prepared():
        behind.ready = not why_not()
    say(1, "calls are native from now on" if behind.ready else f"calls stay Python's: {why_not()}")


def settle() -> None:
    """Wait until calls are native from the next one on, if they are to be: for who counts them."""
    behind.is_requested = True
    behind.ready = is_enabled() and not why_not()


def _after_fork_in_child() -> None:
    """Forget the request in a forked child: the helper's thread is the parent's."""
    behind.is_requested = behind.ready


os.register_at_fork(after_in_child=_after_fork_in_child)


# --- the tables --------------------------------------------------------------------------------


@functools.cache
def native_death(kind: type[Any]) -> Call:
    """The native call that is the `__del__` of Tensor, Storage or Loan where calls are native."""
    twin = kind.__del__
    call = new_call(twin, None)
    site = Table(SITE, _shared(), SHARED=_shared().address, TWIN=twin)
    activate(call, site.words, _address(death), site)
    return call


def site_of(op: Operator, front: Callable[..., object] | None = None) -> Table:
    """The SITE of an operator; of calls in front of a function, the one that this makes."""
    numbered = None if op.numbered is None else op.numbered()
    other = None if numbered is None or not takes(numbered) else site_of(numbered)
    site = site_table(op, front or op.twin, _shared(), other, front is not None)
    _sites[site] = "" if front else op.name
    return site


def own_site(op: Operator) -> Table:
    """The SITE of an operator for all traces."""
    with _making:
        if op.site is None:
            op.site = site_of(op)
    site: Table = op.site
    return site


def front_table(
    learn: Callable[..., object],
    function: Callable[..., object],
    kind: int,
    cache: object,
    name: str,
    inner: Table | None = None,
    **more: object,
) -> Table:
    """The SITE of what follows traces; see `flowvm.eager.native.trace_cache`."""
    inline = inline_cache_table(CACHE_SLOTS[kind]) if kind in CACHE_SLOTS else None
    site = Table(
        SITE,
        (_shared(), inner, inline),
        INLINE_CACHE=0 if inline is None else inline.address,
        NUMBERED=0 if inner is None else inner.address,
        SHARED=_shared().address,
        TWIN=learn,
        CACHE=cache,
        KIND=kind,
        FUNCTION=function,
        CONVERTED=1,
        **more,
    )
    _sites[site] = name
    return site


_sites: weakref.WeakKeyDictionary[Table, str] = weakref.WeakKeyDictionary()  # operators' names


def counts() -> dict[str, int]:
    """Calls so far of operators that there are: made natively, and left to the twins, in all and of
    each operator, most first.
    """
    hits, misses = 0, defaultdict[str, int](int)
    for reference in _sites.keyrefs():  # a list at once: other threads make more
        site = reference()
        if site is None:
            continue
        name = _sites[site]
        hits += site.words[SITE.HITS]
        if name:  # what is left to a function in front comes to an operator, too
            misses[f"native_misses_{name}"] += site.words[SITE.MISSES]
    named = {
        name: misses[name] for name in sorted(misses, key=lambda n: -misses[n]) if misses[name]
    }
    return {"native_hits": hits, "native_misses": sum(misses.values()), **named}


if is_enabled():
    counted.append(counts)


@functools.cache
def _shared() -> Table:
    return shared_table(issue_globals)


def take_parameters(kind: type) -> None:
    """Let native calls take operands of the class Parameter, which is above this room."""
    hot["Parameter"] = kind
    if _shared.cache_info().currsize:
        _shared().words[SHARED.PARAMETER] = id(kind)


@functools.cache
def _address(made_by: Callable[[int], Callable[[int, int, int, int], int]] = entry) -> int:
    provide_api()
    return jit.native(made_by(SITE_AT), SIGNATURE)


def _functions() -> list[Any]:
    return [made_by(SITE_AT) for made_by in (entry, around, death)]


# --- whether they are as their twins -------------------------------------------------------------


def prepare() -> None:
    """Compile, test and note what native calls need; a helper's job."""
    why_not()


@functools.cache
def why_not() -> str:
    """Return the reason why calls cannot be native, "" if they can.  The first call on a machine
    compiles and tests, and notes the result in the cache.
    """
    if why := unsupported():
        return why
    known = noted()
    if known is None:
        known = tested() and tested()  # what is noted is no accident
        _note(known)
    return known


def tested() -> str:
    """Test now; return the difference of native calls from their twins, "" if there is none."""
    try:
        calls = trouble(_address()) or trouble_at_release(_address())
        calls = calls or trouble_at_pins(_address()) or trouble_at_traces(_address())
        calls = calls or trouble_at_values(_address(), CODES)
        calls = calls or trouble_at_arrays(_address(), ARRAYS)
        calls = calls or trouble_at_equality(_address(), EQUALS)
        calls = calls or trouble_at_constants(_address(), CODES)
        calls = calls or trouble_at_regions(_address(around))
        calls = calls or trouble_at_modules(_address(around))
        return calls or trouble_at_death(_address(death))
    except FlowError as error:
        return str(error)


def noted() -> str | None:
    """Return the noted result of `tested` for this interpreter, flowvm and compiled code; None if
    there is no note.
    """
    data = helpers.cached_bytes(_note_name())
    version, _, why = (data or b"").decode(errors="replace").partition(" ")
    return why if version == _note_name() else None


def _note(why: str) -> None:
    try:
        cache.write(jit.cache_dir(), _note_name(), f"{_note_name()} {why}".encode())
    except OSError as error:
        say(1, f"what the test of native calls found is not kept: {error}")


@functools.cache
def _note_name() -> str:
    """Return the note's file name, a hash of what the test depends on: the compiled code, the twins
    and the test itself.
    """
    packages = [metadata.version(name) for name in ("numba", "llvmlite")]
    compiled = source_key(*_functions())
    digest = hashlib.sha256("\n".join([sys.version, VERSION, *packages, compiled]).encode())
    room = Path(__file__).parent
    twins = [room.parent / f"{name}.py" for name in ("calls", "nodes", "tensor")]
    for path in (*twins, *sorted(room.glob("*.py"))):
        digest.update(path.read_bytes())
    return f"calls-{digest.hexdigest()[:40]}.txt"
