"""Hooks of a Module, and the call that runs them.

A Module without hooks holds `_hooks = None` and its __call__ goes straight to forward; the first
hook gives it a Hooks record and `call_with_hooks` takes over. A hook that raises stops the call, as
any other line of the user's program would.

Hooks of all modules are in `EVERYWHERE`, in front of a module's own; the first of them makes an
empty record the `_hooks` of every module that has none (`Module._hooks`), so a call where there are
no hooks costs nothing more.

Backward hooks stand between the graph and the module: an identity node on its outputs sees
grad_output, one on its inputs sees grad_input. Both are ordinary autograd Functions, so second
derivatives and views of what the module computes are none the wiser.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from flowvm.autograd import Function
from flowvm.eager.modes import note_change
from flowvm.eager.tensor import Tensor
from flowvm.guards.regions import Switched

Hook = Callable[..., Any]
Grads = tuple[Tensor | None, ...]
_ids = count()


class Called(Protocol):
    """A module, as far as a call goes."""

    forward: Callable[..., Any]


class RemovableHandle(Switched):
    """The handle of a registered hook: remove(), or the end of a with block, takes the hook out."""

    def __init__(self, table: dict[int, Any], value: Any, prepend: bool = False) -> None:
        self._table = table
        self.id = next(_ids)
        others = list(table.items()) if prepend else []
        table[self.id] = value
        for key, other in others:
            del table[key]
            table[key] = other
        note_change()

    def remove(self) -> None:
        self._table.pop(self.id, None)
        note_change()

    def _undo(self) -> None:
        self.remove()


@dataclass(slots=True)
class Hooks:
    """The hooks of one module, each table in the order in which they run.

    `with_kwargs` and `always` are the ids of hooks that were registered so.
    """

    forward_pre: dict[int, Hook] = field(default_factory=dict)
    forward: dict[int, Hook] = field(default_factory=dict)
    backward_pre: dict[int, Hook] = field(default_factory=dict)
    backward: dict[int, Hook] = field(default_factory=dict)
    with_kwargs: set[int] = field(default_factory=set)
    always: set[int] = field(default_factory=set)
    state_pre: dict[int, Hook] = field(default_factory=dict)
    state: dict[int, Hook] = field(default_factory=dict)
    load_pre: dict[int, Hook] = field(default_factory=dict)
    load: dict[int, Hook] = field(default_factory=dict)

    def __new__(cls, *args: object) -> Hooks:  # also of a copy, or what was pickled
        hooked.append(True)
        del hooked[1:]
        return object.__new__(cls)


hooked: list[bool] = []  # not empty from the first record of a module on: until then none has hooks
EVERYWHERE = Hooks()
hooked.clear()

# what runs when a module is given a parameter, a buffer or a child: by the name of its table
REGISTRATION: dict[str, dict[int, Hook]] = {"_parameters": {}, "_buffers": {}, "_modules": {}}


def registered(module: object, table: str, name: str, value: object) -> Any:
    """`value`, or what the registration hooks make of it."""
    for hook in list(REGISTRATION[table].values()):
        replacement = hook(module, name, value)
        value = value if replacement is None else replacement
    return value


def call_with_hooks(
    module: Called, hooks: Hooks, args: tuple[object, ...], kwargs: dict[str, object]
) -> Any:
    """Call a module that has hooks; `Module.__call__` comes here."""
    for own in (EVERYWHERE, hooks):
        for key, hook in list(own.forward_pre.items()):
            args, kwargs = _run_pre_hook(module, hook, key in own.with_kwargs, args, kwargs)
    watched = any(own.backward or own.backward_pre for own in (EVERYWHERE, hooks))
    tap = _BackwardTap(module, hooks) if watched else None
    ran: set[int] = set()
    result = None
    try:
        if tap is not None:
            args = tap.watch_inputs(args)
        result = module.forward(*args, **kwargs)
        for own in (EVERYWHERE, hooks):
            for key, hook in list(own.forward.items()):
                ran.add(key)
                result = _run_hook(module, hook, key in own.with_kwargs, args, kwargs, result)
    except Exception:
        for own in (EVERYWHERE, hooks):
            for key, hook in list(own.forward.items()):
                if key in own.always and key not in ran:
                    try:
                        result = _run_hook(
                            module, hook, key in own.with_kwargs, args, kwargs, result
                        )
                    except Exception as error:
                        warnings.warn(
                            f"a forward hook with always_call=True raised {error!r}, after forward "
                            "itself had raised",
                            stacklevel=3,
                        )
        raise
    return result if tap is None else tap.watch_outputs(result)


def _run_hook(
    module: Called, hook: Hook, with_kwargs: bool, args: object, kwargs: object, result: object
) -> Any:
    replacement = hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
    return result if replacement is None else replacement


def _run_pre_hook(
    module: Called,
    hook: Hook,
    with_kwargs: bool,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> tuple[tuple[object, ...], dict[str, object]]:
    if not with_kwargs:
        changed = hook(module, args)
        if changed is None:
            return args, kwargs
        return (changed if isinstance(changed, tuple) else (changed,)), kwargs
    changed = hook(module, args, kwargs)
    if changed is None:
        return args, kwargs
    if not (isinstance(changed, tuple) and len(changed) == 2):
        raise RuntimeError(
            "a forward pre-hook registered with with_kwargs=True must return None or "
            f"(args, kwargs), got {type(changed).__name__}"
        )
    return changed


class _BackwardTap:
    """One call of a module that has backward hooks.

    grad_output arrives first, and is kept until grad_input is known too. When no input requires
    grad there is nothing to wait for: the hooks run with grad_input all None, as in PyTorch.
    """

    def __init__(self, module: Called, hooks: Hooks) -> None:
        self.module = module
        self.hooks = hooks
        self.grad_output: Grads = ()
        self.slots: list[int] = []
        self.arguments = 0

    def watch_inputs(self, args: tuple[object, ...]) -> tuple[Any, ...]:
        self.arguments = len(args)
        self.slots = [
            i for i, arg in enumerate(args) if isinstance(arg, Tensor) and arg.requires_grad
        ]
        if not self.slots:
            return args
        watched = list(args)
        for slot, tensor in zip(
            self.slots, _tap(self.on_grad_input, self._pick(args)), strict=True
        ):
            watched[slot] = tensor
        return tuple(watched)

    def watch_outputs(self, result: object) -> Any:
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        slots = [
            i for i, out in enumerate(outputs) if isinstance(out, Tensor) and out.requires_grad
        ]
        if not slots:
            return result
        watched = list(outputs)
        tapped = _tap(self.on_grad_output, tuple(outputs[i] for i in slots))
        for slot, tensor in zip(slots, tapped, strict=True):
            watched[slot] = tensor
        if isinstance(result, tuple) and hasattr(result, "_fields"):
            return type(result)(*watched)
        return type(result)(watched) if isinstance(result, (tuple, list)) else watched[0]

    def on_grad_output(self, grads: Grads) -> Grads:
        for hook in [*EVERYWHERE.backward_pre.values(), *self.hooks.backward_pre.values()]:
            grads = _replaced(hook(self.module, grads), grads, "backward pre-hook")
        self.grad_output = grads
        if not self.slots:
            self._run_hooks((None,) * self.arguments)
        return grads

    def on_grad_input(self, grads: Grads) -> Grads:
        whole: list[Tensor | None] = [None] * self.arguments
        for slot, grad in zip(self.slots, grads, strict=True):
            whole[slot] = grad
        return self._pick(self._run_hooks(tuple(whole)))

    def _run_hooks(self, grad_input: Grads) -> Grads:
        for hook in [*EVERYWHERE.backward.values(), *self.hooks.backward.values()]:
            replacement = hook(self.module, grad_input, self.grad_output)
            grad_input = _replaced(replacement, grad_input, "backward hook")
        return grad_input

    def _pick(self, items: tuple[object, ...]) -> tuple[Any, ...]:
        return tuple(items[slot] for slot in self.slots)


def _replaced(replacement: object, grads: Grads, what: str) -> Grads:
    if replacement is None:
        return grads
    new = tuple(replacement) if isinstance(replacement, (tuple, list)) else (replacement,)
    if len(new) != len(grads):
        raise RuntimeError(f"a {what} returned {len(new)} gradients where there are {len(grads)}")
    return new


def _tap(on_grad: Callable[[Grads], Grads], tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    out = _Tap.apply(on_grad, *tensors)
    return out if isinstance(out, tuple) else (out,)


class _Tap(Function):
    """The identity, whose backward passes on what `on_grad` makes of the gradients."""

    @staticmethod
    def forward(
        ctx: Any, on_grad: Callable[[Grads], Grads], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.on_grad = on_grad
        return tensors

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        return (None, *ctx.on_grad(grads))
