"""Whether this thread records: `no_grad` and its kin, each a context manager and a decorator.

The mode itself is `flowvm.eager.modes`'s and belongs to a thread, so a thread that is started
inside `no_grad` records as any other.  Entering is counted per object, so one `no_grad()` may be
entered again before it was left.

A decorated generator function runs in the mode only while its own code runs: between two items its
caller has its own.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from flowvm.eager import modes

F = TypeVar("F", bound=Callable[..., Any])


class _Inference(threading.local):
    on = False


_inference = _Inference()


def is_grad_enabled() -> bool:
    """Whether this thread records operations for backward."""
    return modes.grad_enabled()


def is_inference_mode_enabled() -> bool:
    """Whether this thread is inside `inference_mode`."""
    return _inference.on


class _Mode:
    """A mode of this thread, for a with block or a decorated function."""

    def __init__(self) -> None:
        self._before: list[Any] = []  # what to go back to, innermost last

    def _switch(self) -> Any:
        """Enter the mode; what to give to `_restore`."""
        raise NotImplementedError

    def _restore(self, before: Any) -> None:
        modes.set_grad_enabled(before)

    def _again(self) -> _Mode:
        """An object of the same mode for one call of a decorated function."""
        return type(self)()

    def __enter__(self) -> None:
        self._before.append(self._switch())

    def __exit__(self, *error: object) -> None:
        self._restore(self._before.pop())

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
        def in_mode(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return function(*args, **kwargs)

        return in_mode  # type: ignore[return-value]


def _around_generator(
    function: Callable[..., Generator[Any, Any, Any]], mode: Callable[[], _Mode]
) -> Callable[..., Generator[Any, Any, Any]]:
    @functools.wraps(function)
    def in_mode(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        inner = function(*args, **kwargs)
        resume: Callable[[], Any] = functools.partial(next, inner)
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


class no_grad(_Mode):  # noqa: N801 - PyTorch's name
    """Nothing inside is recorded: `with flow.no_grad():`, or `@flow.no_grad()` on a function."""

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        if function is None:
            return super().__new__(cls)
        return cls()(function)  # @flow.no_grad, without parentheses

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        super().__init__()

    def _switch(self) -> bool:
        return modes.set_grad_enabled(False)


class enable_grad(_Mode):  # noqa: N801 - PyTorch's name
    """Operations inside are recorded again, within a `no_grad`; without effect inside
    `inference_mode`.
    """

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        return super().__new__(cls) if function is None else cls()(function)

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        super().__init__()

    def _switch(self) -> bool:
        return modes.set_grad_enabled(not _inference.on)


class set_grad_enabled(_Mode):  # noqa: N801 - PyTorch's name
    """Switch recording on or off: at once, and back at the end of a with block."""

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self.mode = mode
        self._found: bool | None = self._switch()

    def _switch(self) -> bool:
        return modes.set_grad_enabled(self.mode and not _inference.on)

    def _again(self) -> set_grad_enabled:
        return set_grad_enabled(self.mode)

    def __enter__(self) -> None:
        # the first with block goes back to what there was before the object was made
        found, self._found = self._found, None
        now = self._switch()
        self._before.append(now if found is None else found)

    def __call__(self, function: F) -> F:
        if self._found is not None:
            modes.set_grad_enabled(self._found)  # as a decorator it only concerns the function
            self._found = None
        return super().__call__(function)


class inference_mode(_Mode):  # noqa: N801 - PyTorch's name
    """`no_grad` for code that will never need a gradient: `enable_grad` inside has no effect.

    inference_mode(False) is the ordinary mode inside an inference_mode.
    """

    def __new__(cls, mode: Any = True) -> Any:
        return cls()(mode) if callable(mode) else super().__new__(cls)

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        self.mode = mode

    def _again(self) -> inference_mode:
        again: inference_mode = inference_mode(self.mode)
        return again

    def _switch(self) -> tuple[bool, bool]:
        before = _inference.on
        _inference.on = self.mode
        return before, modes.set_grad_enabled(not self.mode)

    def _restore(self, before: tuple[bool, bool]) -> None:
        _inference.on, grad = before
        modes.set_grad_enabled(grad)
