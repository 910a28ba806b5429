"""Bounds on what a file may make a reader build: keys, depth, sharing, time.

A file of a few hundred bytes can describe a value that takes years to hash, to print or to copy: a
tuple of one tuple twice, eighty times; keys that all have one hash.  Another one ends the process:
a key nested so deep that hashing it, in C, leaves the stack.  Readers put keys into dicts and sets
by `Bounds.put` and `Bounds.add`, and hold what they have built against `check_tree`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, MutableMapping, Sequence
from typing import Any, Final

MOST_DEPTH: Final = 100  # containers in each other
MOST_IN_KEY: Final = 1000  # values of a tuple that is a key
MOST_ALIKE: Final = 64  # keys of one hash in a dict
MOST_EXPANDED: Final = 1 << 20  # values, each counted as often as it is shared
MOST_SHARED: Final = 4  # the same, as a multiple of the values that there are
SECONDS: Final = 10.0  # of this thread's time, for a small file
SECONDS_A_BYTE: Final = 1e-5
_ADVICE: Final = "; no program saves such files: take it from somebody whom you trust"
_PLAIN: Final = frozenset({str, bytes, bool, type(None)})
_NEAR: Final = 1 << 60  # integers below it have hashes of their own
_LOOK: Final = 1 << 10  # keys between two looks at the clock

Refusal = Callable[[str], Exception]


class Bounds:
    """The bounds of one reading; `refusal` makes an exception from an error's text."""

    def __init__(self, refusal: Refusal, nbytes: int) -> None:
        self.refusal = refusal
        self._hashes: Counter[tuple[int, int]] = Counter()
        self._room = (1 << 20) + 8 * nbytes  # values that are copied from containers
        self._end = time.thread_time() + SECONDS + nbytes * SECONDS_A_BYTE
        self._steps = 0

    def step(self) -> None:
        """Count a step; raise if the reading takes too long."""
        self._steps += 1
        if not self._steps % _LOOK and time.thread_time() > self._end:
            raise self.refusal(f"takes so long to read that it must be meant to{_ADVICE}")

    def copies(self, values: Any) -> Any:
        """Return values that will be copied; raise if all copies are more than a file needs."""
        self._room -= len(values)
        if self._room < 0:
            raise self.refusal(f"copies its own values without end{_ADVICE}")
        return values

    def put(self, target: MutableMapping[Any, Any], key: object, value: object) -> None:
        """Set an item of a dict, if the key can be hashed in bounds."""
        if key.__class__ is not str:
            self._check(target, key)
        self.step()
        target[key] = value

    def add(self, target: set[Any], key: object) -> None:
        """Add an element to a set, if it can be hashed in bounds."""
        if key.__class__ is not str:
            self._check(target, key)
        self.step()
        target.add(key)

    def _check(self, target: MutableMapping[object, object] | set[object], key: Any) -> None:
        kind = key.__class__
        if kind in _PLAIN or (kind is int and -_NEAR < key < _NEAR):
            return
        if isinstance(key, (tuple, frozenset)):
            self._check_shape(key)
        try:
            place = id(target), hash(key)
        except TypeError:
            raise self.refusal(
                f"is damaged: a {kind.__name__} cannot be a key, or an element of a set"
            ) from None
        self._hashes[place] += 1
        if self._hashes[place] > MOST_ALIKE:
            raise self.refusal(f"has over {MOST_ALIKE} keys of one hash in a dict or set{_ADVICE}")

    def _check_shape(self, key: object) -> None:
        layer, count, depth = [key], 0, 0
        while layer:
            inner: list[object] = []
            for item in layer:
                if isinstance(item, (tuple, frozenset)):
                    count += len(item)
                    if count > MOST_IN_KEY:
                        raise self.refusal(f"has a key of more than {MOST_IN_KEY} values{_ADVICE}")
                    inner += item
            layer, depth = inner, depth + 1
            if depth > MOST_DEPTH:
                raise self.refusal(f"has a key nested more than {MOST_DEPTH} deep{_ADVICE}")


def check_tree(value: object, refusal: Refusal) -> None:
    """Raise the exception of `refusal` for containers that contain themselves or are nested too
    deep.  Also raise it if sharing makes a walk over them much longer than they are large.
    """
    known: dict[int, int] = {}  # container -> the values in it, each as often as it is shared
    begun: set[int] = set()
    texts: set[int] = set()
    own = 0  # values that there are
    todo = [value]
    while todo:
        item = todo[-1]
        place = id(item)
        children = _children(item)
        if children is None or place in known:
            todo.pop()
            continue
        if place not in begun:
            begun.add(place)
            if len(begun) - len(known) > MOST_DEPTH:
                raise refusal(f"has containers nested more than {MOST_DEPTH} deep; flatten them")
            for child in children:
                if _children(child) is not None:
                    if id(child) in begun and id(child) not in known:
                        raise refusal("has a container that contains itself; take it out")
                    todo.append(child)
                weight = _weight(child)
                if weight == 1 or id(child) not in texts:
                    own += weight
                    if weight > 1:
                        texts.add(id(child))
            continue
        todo.pop()
        below = 1 + sum(known.get(id(child)) or _weight(child) for child in children)
        known[place] = below
        if below > MOST_EXPANDED and below > MOST_SHARED * own:
            raise refusal(
                "has values shared so often that going through them has no end; save each once"
            )


def _children(value: object) -> Collection[object] | None:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, (list, tuple, set, frozenset)) else None


def _weight(value: object) -> int:
    return 1 + (len(value) >> 4) if isinstance(value, (str, bytes)) else 1


def check_shape(shape: Sequence[int], itemsize: int, refusal: Refusal) -> int:
    """Return the bytes of a dense tensor; raise if some of its dimensions are more than an address
    can count, also where another one is 0.
    """
    if math.prod(max(1, d) for d in shape) * itemsize >= 1 << 63:
        raise refusal(f"has a tensor of shape {list(shape)}, which is more than memory can be")
    return math.prod(shape) * itemsize
