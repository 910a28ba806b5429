"""The recording modes of a thread: `no_grad` and its kin, each a context manager and a decorator.

The mode itself is in `flowvm.eager.modes` and belongs to a thread, so a thread that is started
inside `no_grad` records as any other.  One `no_grad()` may be entered again before it was left.

A decorated generator function runs in the mode only while its own code runs: between two items its
caller has its own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from flowvm.eager import modes
from flowvm.eager.modes import Recording
from flowvm.guards.regions import Mode, Region, Switch

# public: flow, autograd

F = TypeVar("F", bound=Callable[..., object])


def is_grad_enabled() -> bool:
    """Return True if this thread records operations for backward.

    >>> with flow.no_grad():
    ...     print(flow.is_grad_enabled())
    False
    """
    return modes.grad_enabled()


def is_inference_mode_enabled() -> bool:
    """Return True if this thread is inside `inference_mode`.

    >>> with flow.inference_mode():
    ...     print(flow.is_inference_mode_enabled())
    True
    """
    return modes.inference_enabled()


class _Recording(Region):
    """A mode of this thread, for a with block or a decorated function."""

    def _mode(self) -> Mode[Recording]:
        return modes.recording_mode()

    def _switch(self) -> Switch:
        return modes.recording_mode(), self._target(), None

    def _target(self) -> Recording:
        """The mode."""
        raise NotImplementedError

    def _again(self) -> _Recording:
        """An object of the same mode for one call of a decorated function."""
        return type(self)()

    def __call__(self, function: F) -> F:
        """Decorate `function`: its body runs in the mode."""
        if inspect.isclass(function):
            raise TypeError(
                f"{type(self).__name__} decorates functions, not the class {function.__name__}; "
                f"decorate its methods"
            )
        if inspect.isgeneratorfunction(function):
            return _around_generator(function, self._again)  # type: ignore[return-value]

        @functools.wraps(function)
        def in_mode(*args: object, **kwargs: object) -> object:
            with self._again():
                return function(*args, **kwargs)

        return in_mode  # type: ignore[return-value]


def _around_generator(
    function: Callable[..., Generator[object, object, object]], mode: Callable[[], _Recording]
) -> Callable[..., Generator[object, object, object]]:
    @functools.wraps(function)
    def in_mode(*args: object, **kwargs: object) -> Generator[object, object, object]:
        inner = function(*args, **kwargs)
        resume = functools.partial(next, inner)
        while True:
            try:
                with mode():
                    item = resume()
            except StopIteration as end:
                return end.value
            try:
                sent = yield item
            except GeneratorExit:
                with mode():
                    inner.close()
                raise
            except BaseException as error:
                resume = functools.partial(inner.throw, error)
            else:
                resume = functools.partial(inner.send, sent)

    return in_mode


class no_grad(_Recording):  # noqa: N801 - PyTorch's name
    """Stop recording inside: `with flow.no_grad():`, or `@flow.no_grad()` on a function.

    >>> x = flow.ones(2, requires_grad=True)
    >>> with flow.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    def __new__(cls, function: Callable[..., object] | None = None) -> Any:
        if function is None:
            return super().__new__(cls)
        return cls()(function)  # @flow.no_grad, without parentheses

    def _target(self) -> Recording:
        return Recording(False, modes.inference_enabled())


class enable_grad(_Recording):  # noqa: N801 - PyTorch's name
    """Operations inside are recorded again, within a `no_grad`; without effect inside
    `inference_mode`.

    >>> x = flow.ones(2, requires_grad=True)
    >>> with flow.no_grad(), flow.enable_grad():
    ...     y = x * 2
    >>> y.requires_grad
    True
    """

    def __new__(cls, function: Callable[..., object] | None = None) -> Any:
        return super().__new__(cls) if function is None else cls()(function)

    def _target(self) -> Recording:
        inference = modes.inference_enabled()
        return Recording(not inference, inference)


class set_grad_enabled(_Recording):  # noqa: N801 - PyTorch's name
    """Switch recording on or off: at once, and back at the end of a with block.

    >>> x = flow.ones(2, requires_grad=True)
    >>> with flow.set_grad_enabled(False):
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    def __init__(self, mode: bool) -> None:
        self.mode = mode
        self._before: Recording | None = modes.set_recording(self._target())

    def _target(self) -> Recording:
        inference = modes.inference_enabled()
        return Recording(bool(self.mode) and not inference, inference)

    def _again(self) -> set_grad_enabled:
        return set_grad_enabled(self.mode)

    def _switch(self) -> Switch:
        self._undo()  # the first with block goes back to what there was before the object was made
        return super()._switch()

    def __call__(self, function: F) -> F:
        self._undo()  # as a decorator it only concerns the function
        return super().__call__(function)

    def _undo(self) -> None:
        if self._before is not None:
            modes.set_recording(self._before)
            self._before = None


class inference_mode(_Recording):  # noqa: N801 - PyTorch's name
    """`no_grad` for code that will never need a gradient: `enable_grad` inside has no effect.

    inference_mode(False) is the ordinary mode inside an inference_mode.

    >>> x = flow.ones(2, requires_grad=True)
    >>> with flow.inference_mode():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    def __new__(cls, mode: object = True) -> Any:
        return cls()(mode) if callable(mode) else super().__new__(cls)

    def __init__(self, mode: bool = True) -> None:
        self.mode = mode

    def _again(self) -> inference_mode:
        again: inference_mode = inference_mode(self.mode)
        return again

    def _target(self) -> Recording:
        return Recording(not self.mode, bool(self.mode))
