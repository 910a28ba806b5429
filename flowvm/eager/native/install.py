"""Which calls are native: with `config.calls` "native", those of all operators that `takes` says
yes of.

Nothing is compiled or loaded before an operator is called first; then native calls are compared
with their twins (`check.py`).  Where they differ, and on a CPython that native calls were never
tested on, a VMError says so: who asked for native calls is not given others.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Protocol

from flowvm.compiler import jit
from flowvm.config import config
from flowvm.eager.calls import Callee
from flowvm.eager.native.call import SIGNATURE, death, entry
from flowvm.eager.native.check import trouble, trouble_at_death, trouble_at_release
from flowvm.eager.native.cpython import provide_api
from flowvm.eager.native.objects import SITE_AT, Call, activate, new_call
from flowvm.eager.native.tables import Table, shared_table, site_table, takes
from flowvm.eager.native.words import SHARED, SITE
from flowvm.eager.tensor import Tensor
from flowvm.errors import FlowError, VMError
from flowvm.forks import held_at_fork
from flowvm.private.cpython import TESTED
from flowvm.vm.callers.hot import counted, hot


class Operator(Callee, Protocol):
    """An operator, as far as native calls are made of it."""

    numbered: Callable[[], Any] | None

    @property
    def twin(self) -> Callable[..., Any]:
        """The Python function that issues its calls."""


_making = held_at_fork(threading.RLock())  # tables and compiled code, by a first call


def callable_of(op: Operator) -> Callable[..., Any]:
    """What calls of `op` are made with: its twin, or a native call."""
    if config.calls != "native" or config.debug_calls:
        return op.twin
    return native_call(op)


def native_call(op: Operator) -> Call:
    """A native call of `op`, whatever the settings say."""
    return new_call(op.twin, functools.partial(_begin, op))


def unsupported() -> str:
    """Why native calls are not for this interpreter, "" if they are."""
    minors = [release.rpartition(".")[0] for release in TESTED]
    this = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
    if sys.implementation.name != "cpython" or this.split()[1] not in minors:
        return f"native calls are tested on CPython {', '.join(minors)}, and this is {this}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "native calls need CPython's global lock, and this interpreter is built without it"
    if sys.maxsize != (1 << 63) - 1:
        return "native calls need addresses of 64 bits"
    return ""


def _begin(op: Operator, call: Call) -> None:
    with _making:
        if why := why_not():
            raise VMError(f"{why}; unset FLOWVM_CALLS, which is native, for calls in Python")
        site = site_of(op)
        if call.begin is None:  # a finalizer called it meanwhile: what it looks at stays
            return
        activate(call, site.words, _address(), site)
        call.begin = None
        if config.calls == "native":
            setattr(Tensor, "__del__", native_death())  # noqa: B010 - mypy minds an assignment


@functools.cache
def native_death() -> Call:
    """The native call that is `Tensor.__del__` where calls are native."""
    twin = Tensor.__del__
    call = new_call(twin, None)
    site = Table(SITE, _shared(), SHARED=_shared().address, TWIN=twin)
    activate(call, site.words, _address_of_death(), site)
    return call


def site_of(op: Operator) -> Table:
    """The SITE of an operator."""
    numbered = None if op.numbered is None else op.numbered()
    other = None if numbered is None or not takes(numbered) else site_of(numbered)
    site = site_table(op, op.twin, _shared(), other)
    _sites[site] = op.name
    return site


_sites: weakref.WeakKeyDictionary[Table, str] = weakref.WeakKeyDictionary()  # operators' names


def counts() -> dict[str, int]:
    """Calls so far of operators that there are: made natively, and left to the twins, in all and of
    each operator, most first.
    """
    hits, left = 0, defaultdict[str, int](int)
    for site, name in list(_sites.items()):
        hits += site.words[SITE.HITS]
        left[f"native_misses_{name}"] += site.words[SITE.MISSES]
    named = {name: left[name] for name in sorted(left, key=lambda n: -left[n]) if left[name]}
    return {"native_hits": hits, "native_misses": sum(left.values()), **named}


if config.calls == "native":
    counted.append(counts)


@functools.cache
def _shared() -> Table:
    return shared_table(hot)


def take_parameters(kind: type) -> None:
    """Let native calls take operands of the class Parameter, which is above this room."""
    hot["Parameter"] = kind
    if _shared.cache_info().currsize:
        _shared().words[SHARED.PARAMETER] = id(kind)


@functools.cache
def _address() -> int:
    provide_api()
    return jit.native(entry(SITE_AT), SIGNATURE)


@functools.cache
def _address_of_death() -> int:
    provide_api()
    return jit.native(death(SITE_AT), SIGNATURE)


@functools.cache
def why_not() -> str:
    """Why calls cannot be native here, "" if they can; compiles and looks at the first question."""
    if why := unsupported():
        return why
    try:
        calls = trouble(_address()) or trouble_at_release(_address())
        return calls or trouble_at_death(_address_of_death())
    except FlowError as error:
        return str(error)
