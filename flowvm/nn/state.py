"""State dicts: collecting a module's tensors by path, and copying them back.

Loading first compares every name and shape and only then copies, so a state dict that does not fit
leaves the module as it was. Values may be flowvm tensors, NumPy arrays, or anything NumPy can view
(`__array__`), which is how weights come over from another framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from flowvm import ops
from flowvm.autograd import no_grad
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentTypeError, ShapeError
from flowvm.nn.parameter import Parameter


class Holder(Protocol):
    """A module, as far as it holds tensors and other modules."""

    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _transient: set[str]

    @property
    def _modules(self) -> Mapping[str, Holder | None]:
        """The modules in it."""

    def _put(self, table: str, name: str, value: Any) -> None:
        """Register a value."""

    def state_dict(
        self,
        *,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> dict[str, Any]:
        """Its tensors by path."""


class IncompatibleKeys(NamedTuple):
    """The names by which a state dict and a module differ."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return (
            f"IncompatibleKeys(missing_keys={self.missing_keys}, "
            f"unexpected_keys={self.unexpected_keys})"
        )


def collect(
    module: Holder, destination: dict[str, Any], prefix: str, keep_vars: bool
) -> dict[str, Any]:
    """Write the tensors of `module`, then of its children, into `destination`."""
    for name, tensor in _own_state(module).items():
        destination[prefix + name] = tensor if keep_vars else tensor.detach()
    for name, child in module._modules.items():
        if child is not None:
            child.state_dict(
                destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars
            )
    return destination


def load(
    module: Holder, state_dict: Mapping[str, Any], strict: bool, assign: bool
) -> IncompatibleKeys:
    """Copy `state_dict` into `module`, all of it or, when it does not fit, nothing."""
    if not isinstance(state_dict, Mapping):
        raise ArgumentTypeError(
            f"Expected state_dict to be dict-like, got {type(state_dict).__name__}"
        )
    targets = _targets(module, "")
    keys = IncompatibleKeys(
        [key for key in targets if key not in state_dict],
        [key for key in state_dict if key not in targets],
    )
    problems = _name_problems(keys) if strict else []
    sources: dict[str, Tensor] = {}
    for key, (owner, name) in targets.items():
        if key in state_dict:
            source, problem = _source(key, state_dict[key], getattr(owner, name))
            problems += [problem] if problem else []
            sources[key] = source
    if problems:
        listed = "\n\t".join(problems)
        raise ShapeError(f"Error(s) in loading state_dict for {type(module).__name__}:\n\t{listed}")
    with no_grad():
        for key, source in sources.items():
            owner, name = targets[key]
            _store(owner, name, source, assign)
    return keys


def _own_state(module: Holder) -> dict[str, Tensor]:
    own: dict[str, Tensor] = {k: p for k, p in module._parameters.items() if p is not None}
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._transient:
            own[name] = buffer
    return own


def _targets(module: Holder, prefix: str) -> dict[str, tuple[Holder, str]]:
    """Path -> where that tensor lives; a module reached by two paths is listed under both."""
    found = {prefix + name: (module, name) for name in _own_state(module)}
    for name, child in module._modules.items():
        if child is not None:
            found |= _targets(child, f"{prefix}{name}.")
    return found


def _name_problems(keys: IncompatibleKeys) -> list[str]:
    problems = []
    if keys.unexpected_keys:
        problems.append(f"Unexpected key(s) in state_dict: {_quoted(keys.unexpected_keys)}. ")
    if keys.missing_keys:
        problems.append(f"Missing key(s) in state_dict: {_quoted(keys.missing_keys)}. ")
    return problems[::-1]


def _quoted(keys: list[str]) -> str:
    return ", ".join(f'"{key}"' for key in keys)


def _source(key: str, value: Any, target: Tensor) -> tuple[Tensor, str]:
    """`value` as a Tensor, and what is wrong with it, if anything."""
    if not isinstance(value, Tensor):
        if not isinstance(value, (np.ndarray, np.generic)) and not hasattr(value, "__array__"):
            return target, (
                f'While copying the parameter named "{key}", expected a Tensor or an array '
                f"from checkpoint but received {type(value).__name__}. "
            )
        value = ops.tensor(np.asarray(value))
    if tuple(value.shape) != tuple(target.shape):
        return target, (
            f"size mismatch for {key}: copying a param with shape {tuple(value.shape)} from "
            f"checkpoint, the shape in current model is {tuple(target.shape)}."
        )
    return value, ""


def _store(owner: Holder, name: str, source: Tensor, assign: bool) -> None:
    target: Tensor = getattr(owner, name)
    if not assign:
        target.copy_(source)
    elif isinstance(target, Parameter):
        taken = source if isinstance(source, Parameter) else Parameter(source, target.requires_grad)
        owner._put("_parameters", name, taken)
    else:
        owner._put("_buffers", name, source)
