"""Dual tensors, `torch.autograd.forward_ad`: values that carry a tangent through all computations.

A dual is a Tensor of a class of its own, which overrides calls (`flowvm.eager.overrides`).  Each
public function called with a dual computes `flow.func.jvp` of itself, by two backwards.  So a
function has a tangent if it can be differentiated twice, and a function with several steps is one
call.  Results of a program's own `autograd.Function` have no tangent.

    with forward_ad.dual_level():
        y = f(forward_ad.make_dual(x, t))
        derivative = forward_ad.unpack_dual(y).tangent
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flowvm.autograd import no_grad
from flowvm.eager.overrides import SUBCLASSES, begin, disabled, unasked
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, ModeError
from flowvm.func.transforms import directional
from flowvm.guards.regions import Mode, Switched
from flowvm.loading.listing import listing
from flowvm.utils._pytree import tree_flatten, tree_unflatten

__all__ = [
    "UnpackedDualTensor",
    "dual_level",
    "enter_dual_level",
    "exit_dual_level",
    "make_dual",
    "unpack_dual",
]
__dir__ = listing(globals())

_levels: Mode[Any] = Mode(None)  # the innermost level of a thread, an object of its own


class _Level:
    """A level of duals.  A tensor made in it has a tangent while the level is open."""

    open = True


class UnpackedDualTensor(NamedTuple):
    """The result of `unpack_dual`.

    >>> flow.func.forward_ad.unpack_dual(flow.ones(1)).tangent is None
    True
    """

    primal: Tensor
    tangent: Tensor | None


class DualTensor(Tensor):
    """A tensor with a tangent."""

    primal: Tensor
    tangent: Tensor
    level: Any
    __torch_function__ = disabled  # while the class is made, or functions would ask from now on

    def __repr__(self) -> str:
        with unasked.within(SUBCLASSES):
            return f"{repr(self.primal)[:-1]}, tangent={self.tangent!r})"


def _torch_function(
    cls: type[DualTensor], func: Any, types: Any, args: object = (), kwargs: object = None
) -> object:
    """Call `func` on the values, and return the result with its derivative along the tangents."""
    if not all(issubclass(cls, kind) for kind in types):
        return NotImplemented
    with unasked.within(SUBCLASSES):
        return _pushed(func, args, kwargs or {})


setattr(DualTensor, "__torch_function__", classmethod(_torch_function))  # noqa: B010


_GETTERS = ("requires_grad", "grad_fn", "is_leaf", "grad")
_OF_THE_VALUE = {vars(Tensor)[name].__get__ for name in _GETTERS}
_SETITEM = vars(Tensor)["__setitem__"]


def _changes(func: object) -> bool:
    """Return True if `func` changes its first argument."""
    name = getattr(func, "__name__", "")
    inplace = name.startswith("__i") and name not in ("__int__", "__index__", "__invert__")
    return func is _SETITEM or inplace or (name[-1:] == "_" and not name.startswith("__"))


def _mapped(result: object, function: Callable[[Tensor], object]) -> object:
    """Return a result with `function` applied to its tensors, in order."""
    if isinstance(result, Tensor):
        return function(result)
    if isinstance(result, (tuple, list)):
        parts = [_mapped(r, function) for r in result]
        kind = type(result)
        return kind._make(parts) if hasattr(kind, "_make") else kind(parts)
    if type(result) is dict:
        return {key: _mapped(value, function) for key, value in result.items()}
    return result


def _pushed(func: Callable[..., object], args: object, kwargs: object) -> object:
    flat, shape = tree_flatten((args, kwargs))
    duals = list({id(x): x for x in flat if isinstance(x, DualTensor) and x.level.open}.values())
    places = [next((k for k, d in enumerate(duals) if d is x), None) for x in flat]
    values = [x.primal if isinstance(x, DualTensor) else x for x in flat]
    if not duals or func in _OF_THE_VALUE:
        inner, names = tree_unflatten(values, shape)
        return func(*inner, **names)
    changes, results = _changes(func), list[Any]()

    def call(*primals: Tensor) -> list[Tensor]:
        args = [v if k is None else primals[k] for k, v in zip(places, values, strict=True)]
        if changes:
            args[0] = args[0].clone()  # a leaf is not changed in place
        inner, names = tree_unflatten(args, shape)
        result = func(*inner, **names)
        results[:] = [args[0] if func is _SETITEM else result]
        outs: list[Tensor] = []
        _mapped(results[0], lambda t: outs.append(t) if t.requires_grad else None)
        return outs

    primals, tangents = tuple(d.primal for d in duals), tuple(d.tangent for d in duals)
    outs, slopes = directional(call, primals, tangents, empty=True)
    level, pairs = duals[0].level, iter(zip(outs, slopes, strict=True))
    if changes:
        return _changed(flat[0], values[0], results[0], outs, slopes)
    return _mapped(
        results[0], lambda t: _dual(*next(pairs), level) if t.requires_grad else t.detach()
    )


def _changed(target: object, value: Any, result: object, outs: Any, slopes: Any) -> object:
    """Change the values and the tangent in place."""
    with no_grad():
        value.copy_(outs[0] if outs else result)
    if isinstance(target, DualTensor):
        target.tangent = slopes[0] if slopes else target.tangent.new_zeros(target.tangent.shape)
        return target
    if not slopes:
        return target
    raise ModeError(
        "a tensor without a tangent is changed in place by a dual one: make it dual first, with a "
        "tangent of zeros"
    )


def _dual(primal: Tensor, tangent: Tensor, level: object) -> DualTensor:
    dual: Any = primal.as_subclass(DualTensor)
    dual.primal, dual.tangent, dual.level = primal, tangent, level
    return dual  # type: ignore[no-any-return]


def _open_level() -> Any:
    level = _levels.now()
    return level if level is not None and level.open else None


class dual_level(Switched):  # noqa: N801 - PyTorch's name
    """A context manager: duals may be made inside, and lose their tangents at its end.  One level
    at a time, as in PyTorch.

    >>> ad = flow.func.forward_ad
    >>> with ad.dual_level():
    ...     y = ad.make_dual(flow.tensor([1.0, 2.0]), flow.tensor([1.0, 0.0])) ** 2
    ...     ad.unpack_dual(y).tangent
    tensor([2., 0.])
    """

    _level: _Level | None = None

    def _switch(self) -> object:
        self._level = _new_level()
        _levels.set(self._level)
        return self._level

    def _undo(self) -> None:
        if self._level is not None:
            _close(self._level)


def enter_dual_level() -> _Level:
    """Open a level until `exit_dual_level`, and return it.  ModeError if one is open.

    >>> level = flow.func.forward_ad.enter_dual_level()
    >>> flow.func.forward_ad.exit_dual_level(level=level)
    """
    level = _new_level()
    _levels.set(level)
    return level


def _new_level() -> _Level:
    if _open_level() is not None:
        raise ModeError("nested forward mode AD is not supported: a level is open already")
    begin()
    return _Level()


def exit_dual_level(*, level: object = None) -> None:
    """Close the level.  ModeError if none is open, or another.

    >>> flow.func.forward_ad.exit_dual_level(level=flow.func.forward_ad.enter_dual_level())
    """
    level_now = _open_level()
    if level_now is None or (level is not None and level is not level_now):
        raise ModeError("exit_dual_level: this level is not open")
    _close(level_now)


def _close(level: _Level) -> None:
    level.open = False
    if _levels.now() is level:
        _levels.set(None)


def make_dual(tensor: object, tangent: object, *, level: object = None) -> Tensor:
    """Return a tensor with these values that carries this tangent, of equal shape and dtype.

    ModeError outside of `dual_level`.

    >>> ad = flow.func.forward_ad
    >>> with ad.dual_level():
    ...     ad.make_dual(flow.ones(2), flow.zeros(2))
    tensor([1., 1.], tangent=tensor([0., 0.]))
    """
    level_now = _open_level()
    if level_now is None:
        raise ModeError("make_dual: no level is open; write `with dual_level():` around it")
    if not isinstance(tensor, Tensor) or not isinstance(tangent, Tensor):
        raise ArgumentTypeError("make_dual: a tensor and a tangent that is a tensor are needed")
    if not tensor.dtype.inexact:
        raise ArgumentError(f"make_dual: a floating point tensor is needed, got {tensor.dtype}")
    if tensor.shape != tangent.shape or tensor.dtype is not tangent.dtype:
        raise ArgumentError(
            f"make_dual: the tangent is {tangent.dtype} {tuple(tangent.shape)}, and the tensor "
            f"{tensor.dtype} {tuple(tensor.shape)}"
        )
    with unasked.within(SUBCLASSES):
        if isinstance(tensor, DualTensor):
            tensor = tensor.primal
        same = tensor
        return _dual(same, tangent, level_now)


def unpack_dual(tensor: Tensor, *, level: object = None) -> UnpackedDualTensor:
    """The values and the tangent, None if it carries none.

    >>> flow.func.forward_ad.unpack_dual(flow.ones(1)).primal
    tensor([1.])
    """
    if not isinstance(tensor, DualTensor):
        return UnpackedDualTensor(tensor, None)
    open_now = tensor.level.open and tensor.level is _open_level()
    return UnpackedDualTensor(tensor.primal, tensor.tangent if open_now else None)
