"""Python's garbage collector: without it during work that makes many objects, and objects by it."""

from __future__ import annotations

import builtins
import gc
import os
from collections.abc import Callable
from itertools import chain
from types import FunctionType

from flowvm.guards.regions import Switched

_inside: set[Uncollected] = set()  # the blocks that run now, on any thread
_paused: list[bool] = []  # not empty if they, and not the program, have switched collection off


class Uncollected(Switched):
    """A context manager without garbage collection in its block.

    Frames of other threads (`sys._current_frames`) are looked at in one.  CPython 3.11 may collect
    where it makes the object of a frame or of its variables, and the finalizers that it runs let
    other threads go on.  Then `f_back` makes the object of a frame that has returned, in memory
    that is freed or another's: a segmentation fault, or an int in the place of a frame.

    Blocks of several threads overlap, so the last one to end switches collection on again.
    """

    def _switch(self) -> None:
        _inside.add(self)
        if gc.isenabled():
            _paused.append(True)
            gc.disable()

    def _undo(self) -> None:
        _inside.discard(self)
        if _inside or not _paused:
            return
        gc.enable()
        _paused.clear()
        if _inside:  # another thread came between; it had found collection off
            _paused.append(True)
            gc.disable()


def _after_fork_in_child() -> None:
    """Forget the blocks of threads that a child does not have."""
    _inside.clear()
    if _paused:
        gc.enable()
        _paused.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def settle() -> None:
    """Move all objects to the oldest generation without a collection, by a freeze and an unfreeze.

    Repeated collections over the objects of an import would take an eighth of its time.
    """
    if not gc.get_freeze_count():  # objects that a program has frozen stay frozen
        gc.freeze()
        gc.unfreeze()


def live_objects(chosen: Callable[[type], bool]) -> list[object]:
    """Return the tracked instances of the classes that are `chosen`, classes of Python alone.

    A list of all objects would keep what other threads drop meanwhile, such as the hold of a with
    statement (`flowvm.guards.regions`), whose switch would then be undone late and on this thread.
    The first list is made, read and dropped in one call of C, in which no other thread runs; the
    second has only objects that refer to their class.
    """
    everything = chain.from_iterable(map(gc.get_objects, (None,)))
    kinds = set(filter(chosen, set(map(type, everything))))
    return [thing for thing in gc.get_referrers(*kinds) if type(thing) in kinds]


def live_functions() -> list[FunctionType]:
    """Return the functions of Python: each refers to the names that are built in."""
    return [f for f in gc.get_referrers(vars(builtins)) if type(f) is FunctionType]
