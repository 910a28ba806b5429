"""A collection inside of a replayed call may run code that drops what the call was given.

CPython 3.11 collects where a native call makes an object.  The programs run with freed memory
overwritten, so that who looks at it crashes.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from flowvm.eager.native import install

pytestmark = pytest.mark.skipif(bool(install.unsupported()), reason=install.unsupported())

PROGRAM = """
import gc
import flowvm as flow
from flowvm.eager.native import install, trace_cache
from flowvm.eager.native.words import SITE

def steady(function):
    known = trace_cache.TraceCache(function, trace_cache.FRONT)
    call = install.new_call(function, None)
    site = install.front_table(known.call, function, trace_cache.FRONT, known.lru.young, "test")
    install.activate(call, site.words, install._address(), site)
    return call

def called(call, argument, action):
    actions = [action]
    def look(phase, info):
        if phase == "start" and actions:
            actions.pop()()
    gc.collect()
    gc.callbacks.append(look)
    young = [[] for _ in range(8)]
    hits = call.words[SITE.HITS]
    gc.set_threshold(1)
    result = call(argument)
    gc.set_threshold(700)
    gc.callbacks.remove(look)
    assert not actions, "nothing was collected"
    return result, call.words[SITE.HITS] - hits
"""
LIST = """
cat = flow.cat.twin if hasattr(flow.cat, "twin") else flow.cat
call = steady(cat)
def parts(k):
    return [flow.full((2,), k), flow.full((2,), k + 1)]
for k in range(2):
    call(parts(float(k)))
given = parts(5.0)
result, hits = called(call, given, given.clear)
assert hits == 1 and not given
assert result.tolist() == [5.0, 5.0, 6.0, 6.0]
"""
VIEW = """
call = steady(lambda x: x.view(2, 1))
x, y = flow.tensor([1.0, 2.0]), flow.tensor([5.0, 6.0])
x.storage()
for _ in range(4):
    call(x)
result, hits = called(call, x, lambda: setattr(x, "data", y))
assert hits == 0  # the call begins anew
assert x.tolist() == [5.0, 6.0]
assert result.tolist() == [[5.0], [6.0]]
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", [LIST, VIEW], ids=["list", "view"])
def test_what_is_dropped_meanwhile_stays(part):
    process = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROGRAM + part],
        env={**os.environ, "PYTHONMALLOC": "debug", "FLOWVM_CALLS": "native"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr


OWNED = """
import flowvm as flow
from flowvm.eager.tensor import Storage
seen = []
x, y = flow.ones(2), flow.ones(3)
number = x.storage().id
def died(storage):
    if storage.id == number:
        seen.append((x._storage.id, x._ref & ((1 << 20) - 1), tuple(x._meta.shape)))
Storage.__del__ = died
x.data = y
assert [row for row in seen] == [(y.storage().id, y.storage().id, (3,))], seen
"""


def test_a_tensor_is_whole_when_its_old_memory_goes():
    """The finalizer may let another thread run, to which the tensor must be one or the other."""
    process = subprocess.run(
        [sys.executable, "-c", OWNED],
        env={**os.environ, "FLOWVM_CALLS": "python"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
