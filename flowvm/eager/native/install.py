"""Which calls are native: with `config.calls` "native", those of all operators that `takes` says
yes of.

Nothing is compiled or loaded before an operator is called first; then native calls are compared
with their twins (`check.py`), and where they differ all calls are their twins'.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from flowvm.compiler import jit
from flowvm.config import config
from flowvm.eager.calls import Callee
from flowvm.eager.native.call import SIGNATURE, death, entry
from flowvm.eager.native.check import trouble, trouble_at_death
from flowvm.eager.native.cpython import provide_api
from flowvm.eager.native.objects import SITE_AT, Call, activate, new_call
from flowvm.eager.native.tables import Table, shared_table, site_table, takes
from flowvm.eager.native.words import SHARED, SITE
from flowvm.eager.tensor import Tensor
from flowvm.errors import FlowError
from flowvm.vm.callers.hot import counted, hot


class Operator(Callee, Protocol):
    """An operator, as far as native calls are made of it."""

    numbered: Callable[[], Any] | None

    @property
    def twin(self) -> Callable[..., Any]:
        """The Python function that issues its calls."""


def callable_of(op: Operator) -> Callable[..., Any]:
    """What calls of `op` are made with: its twin, or a native call."""
    if config.calls != "native" or config.debug_calls or not takes(op) or not supported():
        return op.twin
    return native_call(op)


def native_call(op: Operator) -> Call:
    """A native call of `op`, whatever the settings say."""
    return new_call(op.twin, functools.partial(_begin, op))


def supported() -> bool:
    """Whether this is an interpreter whose calls may be native: CPython with its lock."""
    free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    return sys.implementation.name == "cpython" and not free and sys.maxsize == (1 << 63) - 1


def _begin(op: Operator, call: Call) -> None:
    if not why_not():
        site = site_of(op)
        activate(call, site.words, _address(), site)
        if config.calls == "native":
            _let_tensors_die()


@functools.cache
def _let_tensors_die() -> None:
    """From now on tensors die natively, too."""
    twin = Tensor.__del__
    call = new_call(twin, None)
    site = Table(SITE, _shared(), SHARED=_shared().address, TWIN=twin)
    activate(call, site.words, _address_of_death(), site)
    setattr(Tensor, "__del__", call)  # noqa: B010 - mypy minds an assignment


def site_of(op: Operator) -> Table:
    """The SITE of an operator."""
    numbered = None if op.numbered is None else op.numbered()
    other = None if numbered is None or not takes(numbered) else site_of(numbered)
    site = site_table(op, op.twin, _shared(), other)
    _sites.add(site)
    return site


_sites: weakref.WeakSet[Table] = weakref.WeakSet()


def counts() -> dict[str, int]:
    """Calls so far of operators that there are: made natively, and left to the twins."""
    sites = list(_sites)
    return {
        "native_hits": sum(site.words[SITE.HITS] for site in sites),
        "native_misses": sum(site.words[SITE.MISSES] for site in sites),
    }


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
    if not supported():
        return "this interpreter is not CPython with its global lock, on 64 bits"
    try:
        return trouble(_address()) or trouble_at_death(_address_of_death())
    except FlowError as error:
        return str(error)
