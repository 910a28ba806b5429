"""State dicts: collecting a module's tensors by path, and copying them back.

Loading first compares every name and shape and only then copies, so a state dict that does not fit
leaves the module as it was: each module's `_load_from_state_dict` notes what is to be done. Values
may be flowvm tensors, NumPy arrays, or anything NumPy can view (`__array__`), which is how weights
come over from another framework.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flowvm import ops
from flowvm.autograd import no_grad
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentTypeError, ShapeError
from flowvm.nn.parameter import Parameter


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


EXTRA = "_extra_state"  # the name of what `get_extra_state` gives


def _tables(module: Any) -> dict[str, Any]:
    """The hooks of a module by table; none for most."""
    hooks = module._hooks
    return {} if hooks is None else {name: getattr(hooks, name) for name in _TABLES}


_TABLES = ("state_pre", "state", "load_pre", "load")


def _has(module: object, name: str) -> bool:
    """Return True if a subclass has this method of its own."""
    return bool(getattr(type(module), name).__module__ != "flowvm.nn.module")


def collect(
    module: Any, destination: dict[str, Any] | None, prefix: str, keep_vars: bool
) -> dict[str, Any]:
    """Write the tensors of `module`, then of its children, into `destination`."""
    if destination is None:
        destination = OrderedDict()
        destination._metadata = OrderedDict()  # type: ignore[attr-defined]
    about = {"version": module._version}
    metadata = getattr(destination, "_metadata", None)
    if metadata is not None:
        metadata[prefix[:-1]] = about
    hooks = _tables(module)
    for hook in list(hooks.get("state_pre", {}).values()):
        hook(module, prefix, keep_vars)
    module._save_to_state_dict(destination, prefix, keep_vars)
    for name, child in module._modules.items():
        if child is not None:
            child.state_dict(
                destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars
            )
    for hook in list(hooks.get("state", {}).values()):
        replacement = hook(module, destination, prefix, about)
        destination = destination if replacement is None else replacement
    return destination


def save_own(module: Any, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
    """Write the tensors of `module` alone, and its extra state."""
    for name, tensor in _own_state(module).items():
        destination[prefix + name] = tensor if keep_vars else tensor.detach()
    if _has(module, "get_extra_state"):
        destination[prefix + EXTRA] = module.get_extra_state()


def load(
    module: Any, state_dict: Mapping[str, Any], strict: bool, assign: bool
) -> IncompatibleKeys:
    """Copy `state_dict` into `module`, all of it or, when it does not fit, nothing."""
    if not isinstance(state_dict, Mapping):
        raise ArgumentTypeError(
            f"Expected state_dict to be dict-like, got {type(state_dict).__name__}"
        )
    keys, problems = IncompatibleKeys([], []), list[str]()
    changes: list[Callable[[], None]] = []
    excusing: list[tuple[Any, Callable[..., Any]]] = []
    metadata = getattr(state_dict, "_metadata", {})

    def visit(part: Any, local: dict[str, Any], prefix: str) -> None:
        about = dict(metadata.get(prefix[:-1], {}), changes=changes)
        if assign:
            about["assign_to_params_buffers"] = True
        part._load_from_state_dict(
            local, prefix, about, True, keys.missing_keys, keys.unexpected_keys, problems
        )
        for name, child in part._modules.items():
            if child is not None:
                below = f"{prefix}{name}."
                visit(child, {k: v for k, v in local.items() if k.startswith(below)}, below)
        excusing.extend((part, hook) for hook in _tables(part).get("load", {}).values())

    visit(module, dict(state_dict), "")
    if excusing and not problems:
        _change(changes)
        for part, hook in excusing:
            if hook(part, keys) is not None:
                raise ArgumentTypeError(
                    "a hook of register_load_state_dict_post_hook returns None and changes the "
                    "lists of names in place"
                )
    problems = (_name_problems(keys) if strict else []) + problems
    if problems:
        listed = "\n\t".join(problems)
        raise ShapeError(f"Error(s) in loading state_dict for {type(module).__name__}:\n\t{listed}")
    if not excusing:
        _change(changes)
    return keys


def _change(changes: list[Callable[[], None]]) -> None:
    with no_grad():
        for change in changes:
            change()


alike = [False]  # whether a local tensor is refused for a global one, as OneFlow refuses it


def load_own(
    module: Any,
    state_dict: dict[str, Any],
    prefix: str,
    about: dict[str, Any],
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    problems: list[str],
) -> None:
    """Compare the part of `state_dict` that is of `module` alone, and note in `about["changes"]`
    what is to be done; without that list, as where a program calls it itself, it is done at once.
    """
    for hook in list(_tables(module).get("load_pre", {}).values()):
        hook(state_dict, prefix, about, strict, missing, unexpected, problems)
    changes: list[Callable[[], None]] = []
    own = _own_state(module)
    for name, target in own.items():
        key = prefix + name
        if key not in state_dict:
            if strict:
                missing.append(key)
            continue
        source, problem = _source(key, state_dict[key], target)
        if problem:
            problems.append(problem)
        else:
            assign = bool(about.get("assign_to_params_buffers"))
            changes.append(partial(_store, module, name, source, assign))
    extra = prefix + EXTRA
    if _has(module, "set_extra_state"):
        if extra in state_dict:
            changes.append(partial(module.set_extra_state, state_dict[extra]))
        elif strict:
            missing.append(extra)
    elif strict and extra in state_dict:
        unexpected.append(extra)
    if strict:
        unexpected += [k for k in state_dict if k != extra and _stray(module, own, prefix, k)]
    if "changes" in about:
        about["changes"] += changes
    else:
        _change(changes)


def _stray(module: Any, own: dict[str, Tensor], prefix: str, key: str) -> bool:
    """Return True if `key` names nothing at or below `module`."""
    if not key.startswith(prefix):
        return False
    name, dot, _ = key[len(prefix) :].partition(".")
    return name not in (module._modules if dot else own)


def _own_state(module: Any) -> dict[str, Tensor]:
    own: dict[str, Tensor] = {k: p for k, p in module._parameters.items() if p is not None}
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._transient:
            own[name] = buffer
    return own


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
    if target.ndim == 0 and tuple(value.shape) == (1,):
        value = value[0]
    if tuple(value.shape) != tuple(target.shape):
        return target, (
            f"size mismatch for {key}: copying a param with shape {tuple(value.shape)} from "
            f"checkpoint, the shape in current model is {tuple(target.shape)}."
        )
    if alike[0] and value.is_global != target.is_global:
        kinds = ["global" if t.is_global else "local" for t in (value, target)]
        return target, (
            f"local / global mismatch for {key}: the tensor of the checkpoint is {kinds[0]}, and "
            f"that of the model is {kinds[1]}; make both global, or load with global_src_rank="
        )
    return value, ""


def _store(owner: Any, name: str, source: Tensor, assign: bool) -> None:
    target: Tensor = getattr(owner, name)
    if not assign:
        target.copy_(source)
    elif isinstance(target, Parameter):
        parameter = (
            source if isinstance(source, Parameter) else Parameter(source, target.requires_grad)
        )
        owner._put("_parameters", name, parameter)
    else:
        owner._put("_buffers", name, source)
