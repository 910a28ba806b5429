"""`flow.futures`: PyTorch's Future, a value that a thread sets and others wait for."""

from __future__ import annotations

import concurrent.futures
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())
T = TypeVar("T")


class Future(Generic[T]):
    """A value that comes later.

    >>> from flowvm.futures import Future
    >>> future = Future()
    >>> twice = future.then(lambda f: f.value() * 2)
    >>> future.set_result(3)
    >>> future.wait(), twice.wait(), future.done()
    (3, 6, True)
    """

    def __init__(self, *, devices: object = None) -> None:
        self._own: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def done(self) -> bool:
        """Return True if the value has been set, or an error."""
        return self._own.done()

    def wait(self) -> T:
        """Wait for the value and return it; raise the error, if one was set."""
        value: T = self._own.result()
        return value

    def value(self) -> T:
        """Return the value of a future that is done."""
        return self.wait()

    def set_result(self, result: T) -> None:
        """Set the value; concurrent.futures.InvalidStateError if it is set already."""
        self._own.set_result(result)

    def set_exception(self, result: BaseException) -> None:
        """Set an error, which waiting raises."""
        self._own.set_exception(result)

    def add_done_callback(self, callback: Callable[[Future[T]], None]) -> None:
        """Call `callback(self)` when the future is done, at once if it is done already."""
        self._own.add_done_callback(lambda _: callback(self))

    def then(self, callback: Callable[[Future[T]], object]) -> Future[Any]:
        """Return a Future of the result of `callback(self)`, called when this one is done."""
        later: Future[object] = Future()

        def run(_: object) -> None:
            try:
                later.set_result(callback(self))
            except Exception as error:  # it is the later one's
                later.set_exception(error)

        self._own.add_done_callback(run)
        return later


def collect_all(futures: Sequence[Future[object]]) -> Future[list[Future[Any]]]:
    """Return a Future of the list of them, done when all are.

    >>> from flowvm.futures import Future, collect_all
    >>> futures = [Future(), Future()]
    >>> for future in futures:
    ...     future.set_result(1)
    >>> [future.wait() for future in collect_all(futures).wait()]
    [1, 1]
    """
    every: Future[list[Future[object]]] = Future()
    counted = itertools.count(1)  # one for each that is done; threads agree

    def one(_: object) -> None:
        if next(counted) == len(futures):
            every.set_result(list(futures))

    for future in futures:
        future.add_done_callback(one)
    if not futures:
        every.set_result([])
    return every


def wait_all(futures: Sequence[Future[object]]) -> list[Any]:
    """Wait for all futures.  Return their values; raise the first error.

    >>> from flowvm.futures import Future, wait_all
    >>> future = Future()
    >>> future.set_result(2)
    >>> wait_all([future])
    [2]
    """
    return [future.wait() for future in futures]


__all__ = own_names(globals())
