"""Hooks of all modules, under PyTorch's name for their file; what a Module is: `flowvm.nn.module`.

A hook of all modules runs in front of a module's own of its kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowvm.nn.hooks import EVERYWHERE, REGISTRATION, Hooks, RemovableHandle
from flowvm.nn.module import Module as Module

Hook = Callable[..., Any]


def _everywhere(table: dict[int, Hook], hook: Hook) -> RemovableHandle:
    if Module._hooks is None:
        Module._hooks = Hooks()  # of the modules that have no hooks of their own
    return RemovableHandle(table, hook)


def register_module_forward_pre_hook(hook: Hook) -> RemovableHandle:
    """hook(module, args) before each module's forward; may return new args."""
    return _everywhere(EVERYWHERE.forward_pre, hook)


def register_module_forward_hook(
    hook: Hook, *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """hook(module, args, output) after each module's forward; may return a new output.

    with_kwargs, always_call: as for Module.register_forward_hook.
    """
    handle = _everywhere(EVERYWHERE.forward, hook)
    if with_kwargs:
        EVERYWHERE.with_kwargs.add(handle.id)
    if always_call:
        EVERYWHERE.always.add(handle.id)
    return handle


def register_module_full_backward_pre_hook(hook: Hook) -> RemovableHandle:
    """hook(module, grad_output) before each module's backward; may return a new grad_output."""
    return _everywhere(EVERYWHERE.backward_pre, hook)


def register_module_full_backward_hook(hook: Hook) -> RemovableHandle:
    """hook(module, grad_input, grad_output) after each module's backward; may return a new
    grad_input.
    """
    return _everywhere(EVERYWHERE.backward, hook)


register_module_backward_hook = register_module_full_backward_hook


def register_module_parameter_registration_hook(hook: Hook) -> RemovableHandle:
    """hook(module, name, parameter) where a module is given one; may return another."""
    return RemovableHandle(REGISTRATION["_parameters"], hook)


def register_module_buffer_registration_hook(hook: Hook) -> RemovableHandle:
    """hook(module, name, buffer) where a module is given one; may return another."""
    return RemovableHandle(REGISTRATION["_buffers"], hook)


def register_module_module_registration_hook(hook: Hook) -> RemovableHandle:
    """hook(module, name, child) where a module is given one; may return another."""
    return RemovableHandle(REGISTRATION["_modules"], hook)
