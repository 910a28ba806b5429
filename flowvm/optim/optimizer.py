"""Optimizer: parameter groups, the state kept for each parameter, and their saved form.

Invariants:
- a parameter is in exactly one group;
- every group has every option, the constructor's defaults filling what it did not set;
- `state` is keyed by the Parameter object and is empty until the parameter's first step.

A subclass says in `_step_group` what one step does to a group of parameters. The saved form is
PyTorch's: groups name parameters by number, in order, so it loads into an optimizer over equally
shaped parameters.
"""

from __future__ import annotations

import difflib
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from operator import setitem
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, dataclass_transform

from flowvm import ops
from flowvm.autograd import enable_grad
from flowvm.eager.modes import current_recorder
from flowvm.eager.native.functions import unrecorded
from flowvm.eager.tensor import Tensor
from flowvm.errors import (
    ArgumentError,
    ArgumentTypeError,
    CaptureError,
    DTypeError,
    InvalidValueError,
    ModeError,
)
from flowvm.fields import fields_of, give_init
from flowvm.guards.exchange import exchange
from flowvm.loading.lazy import lazy
from flowvm.meta.formats import strided
from flowvm.nn.hooks import RemovableHandle
from flowvm.nn.module import clear_grads
from flowvm.vm.callers.lines import warn
from flowvm.vm.callers.tracebacks import cut, ours
from flowvm.vm.engine.persistent import HOLDERS, Holder
from flowvm.vm.watch.purposes import made_for

if TYPE_CHECKING:
    from flowvm.nn import utils
else:
    utils = lazy("flowvm.nn.utils")

required: Final = object()  # a default that says: each group must have this option
takes_none = [False]  # whether an optimizer may have no parameters, as OneFlow's may
Group = dict[str, Any]
Params = Iterable[Tensor] | Iterable[Mapping[str, Any]] | Iterable[tuple[str, Tensor]]
ParamsT = _params_t = Params  # PyTorch's names
C = TypeVar("C", bound=type)


@dataclass_transform(eq_default=False)
def options(cls: C) -> C:
    """Give an optimizer whose fields are `params` and the options its `__init__`: the options are
    what groups have where they do not say otherwise.
    """
    own = fields_of(cls)
    defaults = ", ".join(f"{name!r}: {name}" for name in own if name not in ("params", "_"))
    give_init(cls, own, [f"super(cls, self).__init__(params, {{{defaults}}})"], {})
    return cls


# public: optim
class Optimizer:
    """The base of every optimizer.

    `params` is an iterable of parameters, of (name, parameter), or of dicts, one a group, with
    "params" and the options in which the group differs; other keys are kept as they are, with a
    warning where one looks like an option that is written otherwise.

    Three options of groups are OneFlow's.  "clip_grad_max_norm" (with "clip_grad_norm_type", 2) is
    the largest norm of the group's gradients together: an nn.Graph clips them in front of its step,
    eager code calls `clip_grad()`.  "lr_scale" multiplies the rate of the group in the steps of an
    nn.Graph, also where a schedule changes that; eager code sets the group's "lr".  An eager step
    that leaves one of them out says so, once.

    A subclass defines `_step_group`, or `step` as a whole, as PyTorch's do; hooks run around both.

    `live_options` names the options whose numbers a graph reads anew for each replay, so that a
    schedule may change them without another capture; a number in a tuple counts. In a capture they
    are `flowvm.eager.live.Live`: the step may compute with them and decide by them, which is asked
    again at each replay, but cannot make plain numbers of them. Other options are fixed by the
    capture; where one has changed, the graph is captured again. `not_in_graphs` says why an
    optimizer cannot be a graph's, or is empty.

    PyTorch's flags of how a step is computed are taken and kept in the groups: `foreach` and
    `fused` choose nothing, for a step is one instruction a parameter and one task in a graph, nor
    does OneFlow's `contiguous_params`, and `capturable` nothing, for graphs find step counts anew.
    `differentiable=True` is turned down: steps are not recorded for autograd.  A learning rate may
    be a tensor of one element; each step reads it, so it waits for it, and graphs turn it down.

    >>> class Halved(flow.optim.Optimizer):
    ...     def __init__(self, params):
    ...         super().__init__(params, {"lr": 0.5})
    ...     def _step_group(self, group):
    ...         for param in group["params"]:
    ...             param.sub_(param.grad * group["lr"])
    >>> w = nn.Parameter(flow.tensor([1.0, 2.0]))
    >>> opt = Halved([w])
    >>> w.sum().backward()
    >>> opt.step()
    >>> w
    Parameter containing:
    tensor([0.5000, 1.5000], requires_grad=True)
    """

    live_options: ClassVar[tuple[str, ...]] = ("lr",)
    not_in_graphs: ClassVar[str] = ""
    _takes_sparse = False  # whether a step may be by sparse gradients
    _ranges: ClassVar[tuple[str, ...]] = ()  # options that are at least 0; "betas" are in [0, 1)
    _zeros: ClassVar[tuple[str, ...]] = ()  # what a step count and zeros are the first state of
    _in_step = False  # a step that calls another one (super().step()) is one step
    _unheeded: frozenset[str] = frozenset()  # options of groups that an eager step leaves out

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__:
            cls.step = _whole(cls.__dict__["step"])  # type: ignore[method-assign]

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise ArgumentTypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, "
                "but got a Tensor; wrap it in a list"
            )
        self.defaults = defaults
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        self.param_groups: list[Group] = []
        self._step_pre_hooks: dict[int, Callable[..., object]] = {}
        self._step_post_hooks: dict[int, Callable[..., object]] = {}
        self._state_hooks: dict[str, dict[int, Callable[..., object]]] = {}
        items = list(params)
        if not items and not takes_none[0]:
            raise ArgumentError("optimizer got an empty parameter list")
        groups = items if items and isinstance(items[0], Mapping) else [{"params": items}]
        for group in groups:
            self.add_param_group(group)  # type: ignore[arg-type]

    @staticmethod
    def _group_tensors_by_device_and_dtype(
        tensorlistlist: list[list[Tensor | None]], with_indices: bool = False
    ) -> dict[tuple[object, object], tuple[list[list[Tensor | None]], list[int]]]:
        """Return the lists, cut by device and dtype of the first one's tensors."""
        groups: dict[tuple[object, object], list[int]] = {}
        for k, tensor in enumerate(tensorlistlist[0]):
            key = (None, None) if tensor is None else (tensor.device, tensor.dtype)
            groups.setdefault(key, []).append(k)
        return {
            key: ([[row[k] for k in places] if row else [] for row in tensorlistlist], places)
            for key, places in groups.items()
        }

    def __getstate__(self) -> dict[str, Any]:
        fields = ("defaults", "state", "param_groups")
        return {name: value for name, value in vars(self).items() if name in fields}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        for name in ("_step_pre_hooks", "_step_post_hooks", "_state_hooks"):
            vars(self).setdefault(name, {})
        vars(self).update(state)

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Take on one more group: {"params": [...], options...}."""
        if not isinstance(param_group, Mapping) or "params" not in param_group:
            raise ArgumentTypeError(
                f"a parameter group must be a dict with 'params', got {param_group!r}"
            )
        params, names = _parameters(param_group["params"])
        own = {id(p) for p in params}
        if own & {id(p) for p in self._all_params()}:
            raise ArgumentError("some parameters appear in more than one parameter group")
        if len(own) < len(params):
            warn(
                f"{len(params) - len(own)} of the {len(params)} parameters of a group are in it "
                f"more than once: each step updates those as often"
            )
        group = {**self.defaults, **param_group, "params": params}
        if names:
            group["param_names"] = names
        if any(("param_names" in old) != ("param_names" in group) for old in self.param_groups):
            raise ArgumentError("all parameter groups must name their parameters, or none")
        for name, value in group.items():
            if value is required:
                raise ArgumentError(
                    f"parameter group didn't specify a value of required optimization parameter "
                    f"{name}"
                )
        _check_flags(group)
        _check_graph_options(group)
        self._check(group)
        _name_unknown(type(self).__name__, self.defaults, param_group)
        self._unheeded |= {name for name in _LEFT_OUT if name in group}
        self.param_groups.append(group)

    def step(self, closure: Callable[[], object] | None = None) -> Any:
        """Update every parameter that has a gradient; returns what closure, run first, returns."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        self._step_groups()
        return loss

    @unrecorded
    def _step_groups(self) -> None:
        for group in self.param_groups:
            self._step_group(group)

    def _run_pre_hooks(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        for hook in [*_global_pre_hooks.values(), *self._step_pre_hooks.values()]:
            changed = hook(self, args, kwargs)
            if changed is None:
                continue
            if not isinstance(changed, tuple) or len(changed) != 2:
                raise ArgumentTypeError(
                    f"a step pre-hook returns None or (args, kwargs), got {changed!r}"
                )
            args, kwargs = changed
        return args, kwargs

    def register_step_pre_hook(self, hook: Callable[..., object]) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` in front of each step; it may return new
        (args, kwargs) of the step.  The handle that is returned removes it.
        """
        return RemovableHandle(self._step_pre_hooks, hook)

    def register_step_post_hook(self, hook: Callable[..., object]) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` behind each step; the handle removes it."""
        return RemovableHandle(self._step_post_hooks, hook)

    def register_state_dict_pre_hook(
        self, hook: Callable[..., object], prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(optimizer)` in front of each state_dict()."""
        return self._state_hook("before state_dict", hook, prepend)

    def register_state_dict_post_hook(
        self, hook: Callable[..., object], prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(optimizer, state_dict)` behind each; what it returns, if not None, is given
        in place of the dict.
        """
        return self._state_hook("after state_dict", hook, prepend)

    def register_load_state_dict_pre_hook(
        self, hook: Callable[..., object], prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(optimizer, state_dict)` in front of each load_state_dict; what it returns, if
        not None, is loaded in its place.
        """
        return self._state_hook("before load", hook, prepend)

    def register_load_state_dict_post_hook(
        self, hook: Callable[..., object], prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(optimizer)` behind each load_state_dict."""
        return self._state_hook("after load", hook, prepend)

    def _state_hook(self, when: str, hook: Callable[..., object], prepend: bool) -> RemovableHandle:
        return RemovableHandle(self._state_hooks.setdefault(when, {}), hook, prepend)

    def _run_state_hooks(self, when: str, *args: object) -> Any:
        """The last of what was given, or what hooks put in its place."""
        for hook in list(self._state_hooks.get(when, {}).values()):
            changed = hook(self, *args)
            if args and changed is not None:
                args = (changed,)
        return args[-1] if args else None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget every parameter's gradient, or fill it with zeros."""
        if not set_to_none:
            clear_grads(self._all_params(), set_to_none)
            return
        for group in self.param_groups:
            for param in group["params"]:
                try:  # noqa: SIM105 - a context manager would cost more than all of it
                    param._extra["grad"] = None  # as `param.grad = None`, without a call
                except AttributeError:
                    pass  # it never had one

    def clip_grad(self, error_if_nonfinite: bool = False) -> None:
        """OneFlow's: scale down the gradients of each group that has "clip_grad_max_norm" (and
        "clip_grad_norm_type", 2), so that their norm together is at most that.
        """
        self._unheeded -= {"clip_grad_max_norm"}
        for group in self.param_groups:
            if "clip_grad_max_norm" in group:
                norm_type = group.get("clip_grad_norm_type", 2.0)
                largest = group["clip_grad_max_norm"]
                utils.clip_grad_norm_(group["params"], largest, norm_type, error_if_nonfinite)

    def _graph_step(self, step: Callable[[], object]) -> None:
        """Take a graph's step by `step()`, which calls this one's: OneFlow's options count."""
        unheeded, self._unheeded = self._unheeded, frozenset()
        scaled = [
            (group, group["lr"])
            for group in self.param_groups
            if {"lr", "lr_scale"} <= group.keys()
        ]
        try:
            if any("clip_grad_max_norm" in group for group in self.param_groups):
                self.clip_grad()
            for group, lr in scaled:
                group["lr"] = lr * group["lr_scale"]
            step()
        finally:
            for group, lr in scaled:
                group["lr"] = lr
            self._unheeded = unheeded

    def _name_unheeded(self) -> None:
        """Warn of options that an eager step leaves out, once."""
        unheeded, self._unheeded = self._unheeded, frozenset()
        for name in sorted(unheeded):
            warn(f"{type(self).__name__}: step() leaves out the option {name}: {_LEFT_OUT[name]}")

    def _with_state(
        self, params: list[Tensor], group: Group
    ) -> Iterator[tuple[Tensor, Tensor, dict[str, Any]]]:
        """Each of the group's `params` that has a gradient, with that and its state, begun at its
        first step.
        """
        for param in params:
            grad = param.grad
            if grad is not None:
                if grad.__class__ is not Tensor and not self._takes_sparse and is_sparse(grad):
                    raise ModeError(self._without_sparse())
                entry = before = self.state.get(param)
                if not entry:
                    first_state = self._first_state(param, group)
                    for name, value in first_state.items():
                        made_for(value, "optim", f"{type(self).__name__} {name}", param)
                    now = map(self.state.get, (param,))  # whole, or not there
                    exchange(now, (before,), ((setitem, (self.state, param, first_state)),))
                    entry = self.state[param]
                yield param, grad, entry

    def _without_sparse(self) -> str:
        name = type(self).__name__
        return (
            f"{name} does not support sparse gradients, please consider SparseAdam instead; or "
            f"give the embedding sparse=False"
        )

    def _first_state(self, param: Tensor, group: Group) -> dict[str, Any]:
        """The state of a parameter in front of its first step."""
        zeros = {name: zeros_of(param) for name in self._zeros}
        return {"step": 0, **zeros} if zeros else {}

    def _step_group(self, group: Group) -> None:
        """Update the parameters of one group. Runs without autograd."""
        raise NotImplementedError(f"{type(self).__name__} must define _step_group")

    def _check(self, group: Group) -> None:
        """Raise if an option of the group cannot be."""
        for name in self._ranges:
            if name == "betas":
                check_betas(group)
            else:
                at_least(name, group[name])

    def _all_params(self) -> Iterator[Tensor]:
        return chain.from_iterable(group["params"] for group in self.param_groups)

    # ---- saved form

    def state_dict(self) -> dict[str, Any]:
        """{"state": {number: state}, "param_groups": [options and parameter numbers]}."""
        self._run_state_hooks("before state_dict")
        numbers = {id(param): i for i, param in enumerate(self._all_params())}
        saved = {
            "state": {
                numbers[id(param)] if isinstance(param, Tensor) else param: dict(entry)
                for param, entry in self.state.items()
            },
            "param_groups": [
                {**group, "params": [numbers[id(param)] for param in group["params"]]}
                for group in self.param_groups
            ],
        }
        changed: dict[str, object] = self._run_state_hooks("after state_dict", saved)
        return changed

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state_dict(), copying its tensors; options that it lacks keep their value."""
        state_dict = self._run_state_hooks("before load", dict(state_dict))
        saved = state_dict["param_groups"]
        mine = [len(group["params"]) for group in self.param_groups]
        if len(saved) != len(mine):
            raise ArgumentError(
                f"loaded state dict has a different number of parameter groups: {len(saved)} "
                f"against {len(mine)}"
            )
        if [len(group["params"]) for group in saved] != mine:
            raise ArgumentError(
                "loaded state dict contains parameter groups that don't match the optimizer's: "
                f"sizes {[len(group['params']) for group in saved]} against {mine}"
            )
        numbers = chain.from_iterable(group["params"] for group in saved)
        by_number = dict(zip(numbers, self._all_params(), strict=True))
        state: defaultdict[object, dict[str, object]] = defaultdict(dict)
        for number, entry in state_dict["state"].items():
            param = by_number.get(_number(number))
            state[number if param is None else param] = (
                entry if param is None else _adopted(entry, param)
            )
        groups = []
        for group, old in zip(saved, self.param_groups, strict=True):
            known = {key: _plain(value) for key, value in group.items() if key != "params"}
            old.update(known)
            groups.append(old)
        self.__setstate__({"state": state, "param_groups": groups})
        self._run_state_hooks("after load")

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]
        return "\n".join([*lines, ")"])


def _parameters(source: Any) -> tuple[list[Tensor], list[str]]:
    """The parameters, and their names where they have some."""
    if isinstance(source, (set, frozenset)):
        raise ArgumentTypeError("parameters need an order that stays: give a list and not a set")
    items = [source] if isinstance(source, Tensor) else list(source)
    names = [item[0] for item in items if isinstance(item, tuple)]
    if names and len(names) < len(items):
        raise ArgumentError("all parameters must have names, or none: (name, parameter)")
    params = [item[1] if isinstance(item, tuple) else item for item in items]
    for param in params:
        if not isinstance(param, Tensor):
            raise ArgumentTypeError(
                f"optimizer can only optimize Tensors, got {type(param).__name__}"
            )
        if not param.is_leaf:
            raise ArgumentError("can't optimize a non-leaf Tensor")
    return params, names


def _check_flags(group: Group) -> None:
    if group.get("differentiable"):
        raise ArgumentError(
            "differentiable=True is not supported: steps are not recorded for autograd; compute "
            "the new parameters out of place, and call the module on them"
        )
    if group.get("fused") and group.get("foreach"):
        raise InvalidValueError("`fused` and `foreach` cannot be `True` together.")
    if group.get("fused"):
        for param in group["params"]:
            if not param.is_floating_point():
                raise InvalidValueError(
                    f"`fused=True` requires all the params to be floating point Tensors, got "
                    f"{param.dtype}"
                )


# options of OneFlow's that count in an nn.Graph's steps: what eager code does instead
_LEFT_OUT: Final = {
    "clip_grad_max_norm": "call clip_grad() in front of step()",
    "lr_scale": 'it counts in the steps of an nn.Graph; set the group\'s "lr"',
}


def _check_graph_options(group: Group) -> None:
    if "clip_grad_max_norm" in group:
        at_least("clip_grad_max_norm", group["clip_grad_max_norm"])
    elif "clip_grad_norm_type" in group:
        raise ArgumentError("clip_grad_norm_type of a group needs its clip_grad_max_norm")
    if "clip_grad_norm_type" in group:
        at_least("clip_grad_norm_type", float(group["clip_grad_norm_type"]), -math.inf)
    if "lr_scale" in group:
        at_least("lr_scale", group["lr_scale"])


def _name_unknown(optimizer: str, defaults: Group, options: Mapping[str, object]) -> None:
    """Warn of options that are none and look like one."""
    known = [*defaults, *_LEFT_OUT, "clip_grad_norm_type"]
    for name in options:
        unknown = name not in known and name not in ("params", "param_names", "initial_lr")
        alike = difflib.get_close_matches(str(name), known, 1, 0.75) if unknown else []
        if alike:
            warn(
                f"{optimizer} has no option {name!r}, which is ignored; did you mean {alike[0]!r}?"
            )


def _number(key: object) -> Any:
    """A parameter's number in a saved state: JSON has made a text of it."""
    return int(key) if isinstance(key, str) and key.isdecimal() else key


def _plain(value: object) -> Any:
    """An option as it is kept: JSON has no tuples, PyTorch may have put a number in a tensor."""
    if isinstance(value, list):
        return tuple(value)
    return value.item() if isinstance(value, Tensor) and value.ndim == 0 else value


def _adopted(entry: Mapping[str, object], param: Tensor) -> dict[str, object]:
    """A copy of the saved state of one parameter, with the parameter's dtype and device.

    What PyTorch keeps in tensors of one number (steps, NAdam's mu_product) is a number here.
    """
    return {key: _adopted_value(key, value, param) for key, value in entry.items()}


def _adopted_value(key: str, value: Any, param: Tensor) -> Any:
    if key == "step":
        return int(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_adopted_value("", item, param) for item in value)
    if not isinstance(value, Tensor):
        return value
    if value.ndim == 0 and key in _NUMBERS:
        return value.item()
    dtype = param.dtype if value.dtype.category == param.dtype.category else value.dtype
    return value.detach().to(device=param.device, dtype=dtype).clone()


# entries of states that are numbers here, and tensors of no dimension in PyTorch's
_NUMBERS = frozenset({"eta", "mu", "mu_product", "ro", "H_diag", "t"})


def _whole(step: Callable[..., object]) -> Callable[..., object]:
    """A class's `step` with hooks around it, known to a capture."""

    @functools.wraps(step)
    def whole(self: Optimizer, *args: object, **kwargs: object) -> object:
        if self._in_step or not hasattr(self, "_step_pre_hooks"):  # or it wraps another one
            return step(self, *args, **kwargs)
        self._in_step = True
        try:
            if self._step_pre_hooks or _global_pre_hooks:
                args, kwargs = self._run_pre_hooks(args, kwargs)
            if self._unheeded:
                self._name_unheeded()
            recorder = current_recorder()
            if recorder is None:
                result = step(self, *args, **kwargs)
            elif self.not_in_graphs:
                raise CaptureError(
                    f"{type(self).__name__}.step() cannot be captured: {self.not_in_graphs}"
                )
            else:
                with recorder.stepping(self):
                    result = step(self, *args, **kwargs)
            if self._step_post_hooks or _global_post_hooks:
                for hook in [*self._step_post_hooks.values(), *_global_post_hooks.values()]:
                    hook(self, args, kwargs)
            return result
        except BaseException as error:
            if ours(error):
                cut(error)
            raise
        finally:
            self._in_step = False

    return whole


Optimizer.step = _whole(Optimizer.step)  # type: ignore[method-assign]

# --- hooks of all optimizers ---------------------------------------------------------------------

_global_pre_hooks: dict[int, Callable[..., object]] = {}
_global_post_hooks: dict[int, Callable[..., object]] = {}


def register_optimizer_step_pre_hook(hook: Callable[..., object]) -> RemovableHandle:
    """Call `hook(optimizer, args, kwargs)` in front of each step of every optimizer."""
    return RemovableHandle(_global_pre_hooks, hook)


def register_optimizer_step_post_hook(hook: Callable[..., object]) -> RemovableHandle:
    """Call `hook(optimizer, args, kwargs)` behind each step of every optimizer."""
    return RemovableHandle(_global_post_hooks, hook)


# --- options -------------------------------------------------------------------------------------


def number(value: object) -> Any:
    """An option as a number: of a tensor of one element, its value now.

    CaptureError in a capture, which would fix it.
    """
    if not isinstance(value, Tensor):
        return value
    if value.numel() != 1:
        raise ArgumentError(f"Tensor lr must be 1-element, got shape {tuple(value.shape)}")
    if current_recorder() is not None:
        raise CaptureError(
            "an optimizer's option that is a tensor would be fixed by the capture: give a number, "
            "which is read anew for each replay"
        )
    return value.item()


def is_sparse(x: Tensor) -> bool:
    """Return True if a tensor has a sparse layout."""
    return x.layout is not strided


def at_least(name: str, value: object, minimum: float = 0.0) -> None:
    """Refuse an option below `minimum`, NaN included."""
    value = number(value)
    if not isinstance(value, (int, float)):
        raise ArgumentTypeError(f"{name} must be a number, got {value!r}")
    if not value >= minimum:
        raise ArgumentError(f"Invalid {name}: {value}, must be at least {minimum}")


def check_betas(group: Group) -> None:
    """Refuse betas outside [0, 1); those that are tensors become numbers."""
    group["betas"] = tuple(number(beta) for beta in group["betas"])
    for i, beta in enumerate(group["betas"]):
        if not 0.0 <= beta < 1.0:
            raise ArgumentError(f"Invalid beta parameter at index {i}: {beta}, not in [0, 1)")


def zeros_of(param: Tensor) -> Tensor:
    """Zeros, dense, of a parameter's shape, dtype and device."""
    return ops.zeros_like(param)


def full_of(param: Tensor, number: float) -> Tensor:
    """Return a tensor like `param` of one number; a complex one has it in both parts."""
    value = complex(number, number) if param.dtype.is_complex else number
    return ops.full_like(param, value)


def refuse_complex(name: str, param: Tensor) -> None:
    """DTypeError for a complex parameter."""
    if param.dtype.is_complex:
        raise DTypeError(
            f"{name} does not support complex parameters, such as this of shape "
            f"{tuple(param.shape)}; make it of two real ones with flow.complex(...)"
        )


def _tensors(entry: object) -> Iterator[tuple[str, Any]]:
    """The tensors of a parameter's state, each with the name that it goes by."""
    for name, value in list(entry.items()) if isinstance(entry, dict) else ():
        for one in value if isinstance(value, (list, tuple)) else (value,):
            if hasattr(one, "_ref"):
                yield name, one


def _remembered(optimizer: Optimizer) -> Iterator[tuple[int, bool]]:
    for entry in list(getattr(optimizer, "state", {}).values()):
        for _, value in _tensors(entry):
            yield value._ref, False


def _start_anew(optimizer: Optimizer, lost: Callable[[int], bool]) -> None:
    """Forget the state of parameters of which a part was never given a value."""
    state = getattr(optimizer, "state", {})
    for param, entry in list(state.items()):
        if any(lost(value._ref) for _, value in _tensors(entry)):
            del state[param]


def _states(optimizers: list[Optimizer]) -> Iterator[tuple[int, str]]:
    for optimizer in optimizers:
        for entry in list(getattr(optimizer, "state", {}).values()):
            for name, value in _tensors(entry):
                yield value._ref, f"{name} of {type(optimizer).__name__}"


HOLDERS.append(Holder(Optimizer, _remembered, _start_anew, _states))
