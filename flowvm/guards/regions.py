"""Switches that are always undone, whatever exceptions come.

An exception may come between any two bytecodes: KeyboardInterrupt, whatever a signal handler of the
user's raises, MemoryError, RecursionError.  Between a switch and the `try` that undoes it, in
`__enter__` behind the switch, at the first step of `__exit__` or of a `finally`, it would leave the
switch behind.  So neither the switch nor what undoes it is Python code here:

- what a with statement will do is made ready while `__enter__` and `__exit__` are looked up, which
  changes nothing; what it then calls as `__enter__` is one function written in C;
- what it keeps as `__exit__`, the *hold*, is kept by nobody else.  However the statement is left,
  its frame drops the hold, and a weak reference to that, whose callback is written in C too, is the
  undoing.  `__exit__` itself does nothing;
- no variable has the hold.  A frame may outlive its function: an exception that is kept, another
  thread that looks at this one, and a debugger keep frames with all their variables.  And before
  `__enter__` is called nothing counts.

A `Mode` is one value that a thread's with statements set; the innermost open one counts.  `inside`
says if any thread has set it: the holds keep it, without a count beside it.

`Switched` is for switches in several steps.  Its `_undo` is Python code, which runs as `__exit__`.
If an exception came in it, it runs from its beginning again when the hold is dropped.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import compress, filterfalse
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import ref

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])

# Takes whatever a with statement gives its `__exit__`, does nothing, and answers something false.
_nothing = "".format
_EXIT_IS_FIRST = sys.version_info >= (3, 14)  # to be looked up


class _Entry:
    """One with statement, or one call of `Mode.set`."""

    # the hold goes last of the three when an entry goes, and then no weak reference tells of it
    __slots__ = ("__weakref__", "counted", "gone", "hold", "keep", "owner", "value")

    value: Any
    owner: object  # the region
    keep: object  # see `Mode.within`; unset elsewhere
    hold: list[object]  # with the hold in it until that is handed to the with statement
    # the weak references to the hold that take the entry away: the first is the entry's key, and
    # stands in the mode's `inside`, the second takes it from the thread's entries
    counted: object
    gone: object


class _Within:
    """The methods of one with statement and the hold on it.  The statement looks both up as slots,
    without a step of Python.  Then it alone has the hold, because nobody else has this object.
    """

    __slots__ = ("__enter__", "__exit__")


class _Here(threading.local):
    """The values that one thread's with statements set."""

    def __init__(self) -> None:
        self.entries: dict[object, _Entry] = {}  # innermost last


class Mode(Generic[T]):
    """A value that with statements switch, for their own thread."""

    def __init__(self, default: T, inside: set[object] | None = None) -> None:
        self.default = default
        self.local = _Here()
        # one element for each statement that is open, of any thread; several modes may share one
        self.inside: set[object] = set() if inside is None else inside

    def now(self) -> T:
        """Return the present value on this thread."""
        if self.inside and (entries := self.local.entries):
            for key in reversed(entries):
                value: T = entries[key].value
                return value
        return self.default

    def set(self, value: T) -> T:
        """Set `value` until the innermost open statement ends.  Return the value before."""
        entry = next(reversed(self.local.entries.values()), None)
        if entry is None:
            if value != self.default:
                next(self._prepared(self, value)[1])
            return self.default
        before: T = entry.value
        if entry.owner is self and value == self.default:
            entry.hold.clear()
        else:
            entry.value = value
        return before

    def to(self, value: T, keep: object = None) -> Region:
        """Return a region in which `value` holds, and which keeps `keep`."""
        return _To(self, value, keep)

    def innermost_keep(self) -> object:
        """Return the object `keep` of the innermost open statement."""
        return getattr(next(reversed(self.local.entries.values()), None), "keep", None)

    def within(self, value: T, keep: object = None) -> AbstractContextManager[None]:
        """Set the mode inside one with statement, as `with mode.to(value):` does, at a third of the
        cost.  `keep` is there for callers inside, see `innermost_keep`.
        """
        statement: list[Any] = [_Within()]
        entry, entering = self._prepared(None, value)
        entry.keep = keep
        statement[0].__enter__, statement[0].__exit__ = entering.__next__, entry.hold.pop()
        return statement.pop()  # type: ignore[no-any-return]

    def _prepared(self, owner: object, value: T) -> tuple[_Entry, Iterator[_Entry]]:
        """Return an entry that has the hold, and see `_entering`."""
        entries, inside = self.local.entries, self.inside
        entry = _Entry()
        entry.value, entry.owner, entry.hold = value, owner, [partial(_nothing)]
        entry.counted = ref(entry.hold[0], inside.discard)
        hash(entry.counted)  # which it keeps: there is none when the hold is gone
        entry.gone = ref(entry.hold[0], partial(entries.pop, entry.counted))
        return entry, map(entries.setdefault, filterfalse(inside.add, (entry.counted,)), (entry,))

    def _entering(self, entry: _Entry) -> Iterator[_Entry]:
        """Return an iterator whose first step, which is C code, makes the entry count."""
        counted = filterfalse(self.inside.add, (entry.counted,))
        return map(self.local.entries.setdefault, counted, (entry,))


Switch: TypeAlias = tuple[Mode[Any], object, object]  # see `Region._switch`


# --- with statements --------------------------------------------------------------------------


class _Pending(threading.local):
    entry: Callable[[], _Entry | None] = staticmethod(lambda: None)


_pending = _Pending()


def _is_pending(entry: _Entry | None, region: object, mode: Mode[object]) -> bool:
    """Return True if `entry` was prepared by the with statement that now looks up this region's
    methods.
    """
    return entry is not None and entry.owner is region and entry.counted not in mode.local.entries


class _Enter:
    """The descriptor of `__enter__`: the look-up prepares, the call switches."""

    def __get__(self, region: Any, owner: object = None) -> Any:
        if region is None:
            return _enter
        mode, value, result = region._switch()
        entry = _pending.entry() if _EXIT_IS_FIRST else None
        if entry is not None and _is_pending(entry, region, mode):
            entry.value, entering = value, mode._entering(entry)
        else:
            entry, entering = mode._prepared(region, value)
            _pending.entry = ref(entry)
        return compress((result,), entering).__next__


class _Exit:
    """The descriptor of `__exit__`: the look-up returns the hold, which from then on only the with
    statement has.
    """

    def __get__(self, region: Any, owner: object = None) -> Any:
        if region is None:
            return _exit
        entry, mode = _pending.entry(), region._mode()
        if entry is None or not _is_pending(entry, region, mode):
            entry = next((e for e in reversed(mode.local.entries.values())
                          if e.owner is region and e.hold), None)  # fmt: skip
            if entry is None:
                if not _EXIT_IS_FIRST:
                    raise RuntimeError(f"{region!r} was not entered")
                entry, _ = mode._prepared(region, None)
                _pending.entry = ref(entry)
                entry.hold[0].__dict__["entry"] = entry  # no other object keeps it yet
        return entry.hold.pop()


def _enter(region: Any) -> object:
    """Enter a region for callers of the class's method, as `contextlib.ExitStack` is."""
    return region.__enter__()


def _exit(region: Any, *error: object) -> object:
    return region.__exit__(*error)


class Region:
    """The base class of objects that switch a mode in a with statement.

    Direct callers of `__enter__` and `__exit__` get their effect without the guarantee.
    """

    __slots__ = ()

    __enter__ = _Enter()
    __exit__ = _Exit()

    def _mode(self) -> Mode[Any]:
        raise NotImplementedError

    def _switch(self) -> Switch:
        """Return the mode, its value from now on, and the result of `as`; called at entry."""
        raise NotImplementedError


class AroundToo(Region):
    """A region that may also decorate a function."""

    __slots__ = ()

    def __call__(self, function: F) -> F:
        """Decorate `function`: its body runs in the region."""

        @functools.wraps(function)
        def inside(*args: object, **kwargs: object) -> Any:
            with self:
                return function(*args, **kwargs)

        return inside  # type: ignore[return-value]


class _To(AroundToo):
    """See `Mode.to`."""

    def __init__(self, mode: Mode[Any], value: T, keep: object) -> None:
        self.mode, self.value, self.keep = mode, value, keep

    def _mode(self) -> Mode[Any]:
        return self.mode

    def _switch(self) -> Switch:
        return self.mode, self.value, None


# --- several steps ----------------------------------------------------------------------------


class _Open:
    """The descriptor of a Switched's `__enter__`: it marks the object as open, then switches."""

    def __get__(self, region: Switched, owner: object = None) -> Any:
        return _enter if region is None else partial(_open, region)


class _Close:
    """The descriptor of a Switched's `__exit__`: it returns the hold, whose end undoes the
    switch.
    """

    def __get__(self, region: Any, owner: object = None) -> Any:
        if region is None:
            return _exit
        hold = [partial(_leave, region)]
        region._gone = ref(hold[0], partial(_dropped, region))
        return hold.pop()


class Switched:
    """The base class of objects that switch in several steps.  `_undo()` runs however the block is
    left.

    `_undo` must allow a second call from its beginning, and a call before the end of `_switch`.
    An object is for one with statement at a time.
    """

    _is_open = False
    _gone: object = None  # calls `_dropped` when the hold has no owner any more
    __enter__ = _Open()
    __exit__ = _Close()

    def _switch(self) -> object:
        """Switch.  Return the result of `as`."""
        return self

    def _on_exit(self, *error: Any) -> None:
        """Handle the end of the block, before it is switched back."""

    def _undo(self) -> None:
        raise NotImplementedError


def _open(region: Switched) -> object:
    region._is_open = True
    return region._switch()


def _leave(region: Switched, *error: object) -> None:
    try:
        region._on_exit(*error)
    finally:
        region._undo()
        region._is_open = False
        region._gone = None


def _dropped(region: Switched, gone: object) -> None:
    """Undo the switch if an exception came before `_leave` had ended.  CPython would ignore another
    exception here.
    """
    if region._is_open:
        region._undo()
        region._is_open = False


class reverting(Switched):  # noqa: N801 - read as a part of the with statement
    """A context manager: `with reverting(undo, switch):` calls `switch()` at its beginning and
    `undo()` at its end.

    Without `switch`: what the block switches.  See `Switched` of `undo`.
    """

    def __init__(
        self, undo: Callable[[], object], switch: Callable[[], object] | None = None
    ) -> None:
        self.undo, self.switch = undo, switch

    def _switch(self) -> object:
        return None if self.switch is None else self.switch()

    def _undo(self) -> None:
        self.undo()

    def __call__(self, function: F) -> F:
        """Decorate `function`: each call of it is such a block."""

        @functools.wraps(function)
        def inside(*args: object, **kwargs: object) -> Any:
            with type(self)(self.undo, self.switch):
                return function(*args, **kwargs)

        return inside  # type: ignore[return-value]
