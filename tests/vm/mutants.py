"""A machine that can be told to forget a rule: a hazard's edges, or that barriers wait.

It is a second copy of the machine, read from its own file, in which two small functions look at a
control word that nothing else has.  So the tests' checks can be asked whether they would notice,
and the machine that runs has nothing in it for tests.
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from flowvm.vm.engine.engine import engine
from flowvm.vm.machine import machine
from flowvm.vm.machine.lang import address_of
from flowvm.vm.machine.record import LINE
from flowvm.vm.machine.words import CTL
from flowvm.vm.workers import shell

MUTANT = CTL.WORDS - LINE  # the control word: 0, or a hazard to leave out
HAZARDS = {"RAW": machine.RAW, "WAR": machine.WAR, "WAW": machine.WAW}
BARRIER_ORDER = max(HAZARDS.values()) + 1  # let barriers go at once


_copies = itertools.count()


def copy_of(module: ModuleType) -> ModuleType:
    """Load the module's file once more, as another module."""
    name = f"tests.vm.forgetful_{module.__name__.rpartition('.')[2]}_{next(_copies)}"
    spec = importlib.util.spec_from_file_location(name, module.__file__)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    sys.modules[name] = copy
    spec.loader.exec_module(copy)
    return copy


forgetful = copy_of(machine)
forgetful_shell = copy_of(shell)
_add_edge, _is_oldest = forgetful.add_edge, forgetful.is_oldest


def add_edge(m, source, target, hazard):
    if m[MUTANT] != hazard:
        _add_edge(m, source, target, hazard)


def is_oldest(m, slot):
    return m[MUTANT] == BARRIER_ORDER or _is_oldest(m, slot)


forgetful.add_edge, forgetful.is_oldest = add_edge, is_oldest
for name, value in vars(machine).items():
    if getattr(forgetful_shell, name, None) is value and callable(value):
        setattr(forgetful_shell, name, getattr(forgetful, name))


@contextmanager
def forgetful_scheduler() -> Iterator[None]:
    """The VM that runs has a scheduler that can be told to forget, inside."""
    loop = address_of(forgetful_shell.scheduler_loop, "int64(int64, int64)")
    plain = engine.loops.function("scheduler_loop")
    _restart_with(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(loop))
    try:
        yield
    finally:
        engine.words[MUTANT] = 0
        _restart_with(plain)


def _restart_with(loop: object) -> None:
    assert engine.threads.stop(20), "a thread of the VM hangs"
    engine.loops.native["scheduler_loop"] = loop
    engine.threads.start()
