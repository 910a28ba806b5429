"""`flow.library`: an op of one's own, under PyTorch's name.

`custom_op` gives a function its name and lets `register_autograd` add a gradient to it.  It runs as
the Python function that it is, in captures too; shapes come from running it, so register_fake is
taken and not needed.  A kernel of one's own is declared with `flow.ops.op` (CONTRIBUTING.md).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flowvm.autograd import Function
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentTypeError
from flowvm.loading.listing import listing

__all__ = ["CustomOp", "custom_op", "register_autograd", "register_fake"]
__dir__ = listing(globals())


class CustomOp:
    """A function with a name, and perhaps a gradient.

    >>> @flow.library.custom_op("own::twice", mutates_args=())
    ... def twice(x: flow.Tensor) -> flow.Tensor:
    ...     return x * 2
    >>> twice(flow.tensor([1, 2]))
    tensor([2, 4])
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self.function = name, function
        self._backward: Callable[..., Any] | None = None
        self._setup: Callable[..., Any] | None = None
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._backward is None:
            return self.function(*args, **kwargs)
        if kwargs:
            raise ArgumentTypeError(f"{self.name}: an op with a gradient takes no keywords")
        return self._differentiable().apply(*args)

    def register_fake(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Taken: what the op gives is known from running it."""
        return function

    def register_autograd(
        self, backward: Callable[..., Any], *, setup_context: Callable[..., Any] | None = None
    ) -> None:
        """`backward(ctx, *grads)` gives a gradient for each argument; `setup_context(ctx, inputs,
        output)` keeps what it needs, in ctx.
        """
        self._backward, self._setup = backward, setup_context

    def _differentiable(self) -> type[Function]:
        op = self

        class Made(Function):
            @staticmethod
            def forward(ctx: Any, *args: Any) -> Any:
                output = op.function(*args)
                if op._setup is not None:
                    op._setup(ctx, args, output)
                return output

            @staticmethod
            def backward(ctx: Any, *grads: Tensor) -> Any:
                return op._backward(ctx, *grads) if op._backward is not None else None

        Made.__name__ = self.name.rpartition("::")[2]
        return Made


_known: dict[str, CustomOp] = {}


def custom_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: Any = (),
    device_types: Any = None,
    schema: str | None = None,
) -> Any:
    """`fn` as an op called "space::name", or a decorator.  What it changes, where it runs and its
    schema are taken: it is Python, so each call finds out.

    >>> @flow.library.custom_op("own::thrice", mutates_args=())
    ... def thrice(x: flow.Tensor) -> flow.Tensor:
    ...     return x * 3
    >>> thrice(flow.tensor([1, 2]))
    tensor([3, 6])
    """
    if fn is None:
        return lambda function: custom_op(name, function)
    op = _known[name] = CustomOp(name, fn)
    return op


def register_fake(
    op: str | CustomOp, func: Callable[..., Any] | None = None, /, **kwargs: Any
) -> Any:
    """Taken: what an op gives is known from running it.

    >>> @flow.library.custom_op("own::same", mutates_args=())
    ... def same(x: flow.Tensor) -> flow.Tensor:
    ...     return x.clone()
    >>> _ = flow.library.register_fake("own::same", lambda x: flow.empty_like(x))
    >>> same(flow.ones(2))
    tensor([1., 1.])
    """
    return func if func is not None else lambda function: function


def register_autograd(
    op: str | CustomOp,
    backward: Callable[..., Any],
    /,
    *,
    setup_context: Callable[..., Any] | None = None,
    lib: Any = None,
) -> None:
    """See CustomOp.register_autograd.  ArgumentTypeError for a name that custom_op did not make.

    >>> @flow.library.custom_op("own::tenfold", mutates_args=())
    ... def tenfold(x: flow.Tensor) -> flow.Tensor:
    ...     return x * 10
    >>> flow.library.register_autograd("own::tenfold", lambda ctx, g: g * 10)
    >>> x = flow.ones(2, requires_grad=True)
    >>> tenfold(x).sum().backward()
    >>> x.grad
    tensor([10., 10.])
    """
    found = _known.get(op) if isinstance(op, str) else op
    if found is None:
        raise ArgumentTypeError(f"there is no op {op!r}: make it with custom_op")
    found.register_autograd(backward, setup_context=setup_context)
