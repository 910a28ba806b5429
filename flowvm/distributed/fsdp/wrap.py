"""Policies for `FullyShardedDataParallel`, by PyTorch's names: they choose the inner modules to
wrap on their own.

A policy is a function of (module, recurse, nonwrapped_numel): whether to look below, with
`recurse`, else whether to wrap; or an object of `ModuleWrapPolicy` or `CustomPolicy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flowvm.errors import ArgumentError
from flowvm.guards.regions import Mode
from flowvm.loading.listing import listing
from flowvm.nn.module import Module
from flowvm.nn.modules.attention import MultiheadAttention
from flowvm.nn.modules.containers import ModuleDict, ModuleList

__all__ = [
    "CustomPolicy",
    "ModuleWrapPolicy",
    "always_wrap_policy",
    "enable_wrap",
    "lambda_auto_wrap_policy",
    "size_based_auto_wrap_policy",
    "transformer_auto_wrap_policy",
    "wrap",
]
__dir__ = listing(globals())
Wrapper = Callable[..., Module]


def always_wrap_policy(*args: object, **kwargs: object) -> bool:
    """Wrap every module.

    >>> from flowvm.distributed.fsdp.wrap import always_wrap_policy
    >>> always_wrap_policy(nn.Linear(1, 1), recurse=False, nonwrapped_numel=2)
    True
    """
    return True


class ModuleWrapPolicy:
    """Wrap modules of these classes.

    >>> from flowvm.distributed.fsdp.wrap import ModuleWrapPolicy
    >>> ModuleWrapPolicy({nn.Linear})(nn.Linear(1, 1), False)
    True
    """

    def __init__(self, module_classes: Iterable[type[Module]]) -> None:
        self.classes = tuple(module_classes)

    def __call__(self, module: Module, recurse: bool, *args: object, **kwargs: object) -> bool:
        return recurse or isinstance(module, self.classes)


class CustomPolicy:
    """Wrap modules for which a function returns True, or arguments to wrap them with.

    >>> from flowvm.distributed.fsdp.wrap import CustomPolicy
    >>> CustomPolicy(lambda module: {"forward_prefetch": True}).arguments(nn.Linear(1, 1))
    {'forward_prefetch': True}
    """

    def __init__(self, lambda_fn: Callable[[Module], bool | dict[str, Any]]) -> None:
        self.function = lambda_fn

    def arguments(self, module: Module) -> dict[str, Any] | None:
        """Return the arguments to wrap a module with, or None."""
        answer = self.function(module)
        if not isinstance(answer, (bool, dict)):
            raise ArgumentError(
                f"CustomPolicy: the function gives a bool or a dict, got {answer!r}"
            )
        return (answer if isinstance(answer, dict) else {}) if answer else None

    def __call__(self, module: Module, recurse: bool, *args: object, **kwargs: object) -> bool:
        return recurse or self.arguments(module) is not None


def lambda_auto_wrap_policy(
    module: Module, recurse: bool, nonwrapped_numel: int, lambda_fn: Callable[[Module], bool]
) -> bool:
    """Wrap modules for which a function returns True; bind the function with functools.partial.

    >>> from flowvm.distributed.fsdp.wrap import lambda_auto_wrap_policy
    >>> lambda_auto_wrap_policy(nn.Linear(1, 1), False, 2, lambda m: isinstance(m, nn.Conv2d))
    False
    """
    return recurse or bool(lambda_fn(module))


def transformer_auto_wrap_policy(
    module: Module,
    recurse: bool,
    nonwrapped_numel: int,
    transformer_layer_cls: Iterable[type[Module]],
) -> bool:
    """Wrap modules of these classes; bind the classes with functools.partial.

    >>> from flowvm.distributed.fsdp.wrap import transformer_auto_wrap_policy
    >>> transformer_auto_wrap_policy(nn.Linear(1, 1), False, 2, {nn.Linear})
    True
    """
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def _or_policy(
    module: Module, recurse: bool, nonwrapped_numel: int, policies: Sequence[Callable[..., bool]]
) -> bool:
    return any(
        policy(module=module, recurse=recurse, nonwrapped_numel=nonwrapped_numel)
        for policy in policies
    )


def size_based_auto_wrap_policy(
    module: Module,
    recurse: bool,
    nonwrapped_numel: int,
    min_num_params: int = int(1e8),
    force_leaf_modules: Iterable[type[Module]] | None = None,
    exclude_wrap_modules: Iterable[type[Module]] | None = None,
) -> bool:
    """Wrap modules with at least so many parameters outside of inner wrapped modules; bind
    arguments with functools.partial.

    force_leaf_modules     whose modules below are not wrapped, MultiheadAttention by default
    exclude_wrap_modules   that are not wrapped themselves, ModuleList and ModuleDict by default

    >>> from flowvm.distributed.fsdp.wrap import size_based_auto_wrap_policy
    >>> size_based_auto_wrap_policy(nn.Linear(9, 9), False, 90, min_num_params=50)
    True
    """
    leaves = (MultiheadAttention,) if force_leaf_modules is None else tuple(force_leaf_modules)
    never = (
        (ModuleList, ModuleDict) if exclude_wrap_modules is None else tuple(exclude_wrap_modules)
    )
    return nonwrapped_numel >= min_num_params and not isinstance(
        module, leaves if recurse else never
    )


def wrapped_below(
    module: Module, policy: Callable[..., bool], ignored: set[int], wrapper: Wrapper
) -> int:
    """Wrap the inner modules that a policy chooses.  Return the number of elements of their
    parameters.
    """
    total = 0
    for name, child in list(module._modules.items()):
        if child is None or id(child) in ignored:
            continue
        size = sum(p.numel() for p in child.parameters())
        inside = 0
        if policy(module=child, recurse=True, nonwrapped_numel=size):
            inside = wrapped_below(child, policy, ignored, wrapper)
        if policy(module=child, recurse=False, nonwrapped_numel=size - inside):
            more = policy.arguments(child) if isinstance(policy, CustomPolicy) else None
            setattr(module, name, wrapper(child, **(more or {})))
            inside = size
        total += inside
    return total


_wrapping: Mode[tuple[Wrapper, dict[str, object]] | None] = Mode(None)


@contextmanager
def enable_wrap(*, wrapper_cls: Wrapper, **wrapper_kwargs: object) -> Iterator[None]:
    """Let `wrap` use this class with these arguments inside the with statement.

    >>> from flowvm.distributed.fsdp import FullyShardedDataParallel
    >>> from flowvm.distributed.fsdp.wrap import enable_wrap, wrap
    >>> with enable_wrap(wrapper_cls=FullyShardedDataParallel):
    ...     type(wrap(nn.Linear(1, 1))).__name__
    'FullyShardedDataParallel'
    """
    with _wrapping.within((wrapper_cls, wrapper_kwargs)):
        yield


def wrap(module: Module, **wrap_overrides: object) -> Module:
    """The module, wrapped inside of `enable_wrap`.

    >>> from flowvm.distributed.fsdp.wrap import wrap
    >>> wrap(nn.Identity())
    Identity()
    """
    inside = _wrapping.now()
    if inside is None:
        return module
    wrapper, arguments = inside
    return wrapper(module, **{**arguments, **wrap_overrides})
