"""Parametrizations: a parameter that is computed of others whenever it is asked for.

A module with one is of a class of its own, below the module's, that has a property in place of the
parameter; what it is computed of lies in `module.parametrizations.<name>`, a list of modules that
are called one after the other.  What a module is saved as (`parametrizations.weight.original`)
is what PyTorch saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowvm.autograd import no_grad
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, FlowError, ShapeError
from flowvm.guards.regions import Mode, Region
from flowvm.loading.listing import listing, own_names
from flowvm.nn.module import Module
from flowvm.nn.modules.containers import ModuleDict, ModuleList
from flowvm.nn.parameter import Parameter, set_data

if TYPE_CHECKING:
    from flowvm.meta.dtype import DTypeLike


__dir__ = listing(globals())

_cache: Mode[dict[tuple[int, str], Any] | None] = Mode(None)  # what the outermost `cached` keeps


def cached() -> Region:
    """Inside, what a parametrization computes on this thread is kept and not computed again.

    >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))
    >>> with nn.utils.parametrize.cached():
    ...     print(layer.weight is layer.weight)
    True
    """
    cache = _cache.now()
    return _cache.to({} if cache is None else cache)


class ParametrizationList(ModuleList):
    """The parametrizations of one parameter, first to last, and what they start from: `original`,
    or `original0`, `original1`, ... where the first one's right_inverse answers several.

    >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))
    >>> type(layer.parametrizations["weight"]).__name__
    'ParametrizationList'
    """

    original: Tensor

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        super().__init__()
        if not modules:
            raise ArgumentError("a ParametrizationList needs one parametrization or more")
        self.unsafe = unsafe
        new: Any = original
        with no_grad():
            for module in reversed(modules):
                inverse = getattr(module, "right_inverse", None)
                if inverse is not None:
                    try:
                        new = inverse(new)
                    except NotImplementedError as error:  # it has none after all
                        if isinstance(error, FlowError):
                            raise
        self.is_tensor = isinstance(new, Tensor)
        if not self.is_tensor and not isinstance(new, (list, tuple)):
            raise ArgumentTypeError(
                f"right_inverse answers a Tensor or several, got {type(new).__name__}"
            )
        self.ntensors = 1 if self.is_tensor else len(new)
        if self.is_tensor and new.dtype is not original.dtype:
            raise ArgumentError(
                f"right_inverse makes {new.dtype} of {original.dtype}; it keeps the dtype where it "
                "answers one Tensor"
            )
        if self.is_tensor:
            if isinstance(original, Parameter):
                if new is not original:
                    set_data(original, new.detach())
                self.original = original
            else:
                self.register_buffer("original", new)
        else:
            for i, part in enumerate(new):
                if isinstance(original, Parameter):
                    part_parameter = Parameter(part.detach(), original.requires_grad)
                    self.register_parameter(f"original{i}", part_parameter)
                else:
                    self.register_buffer(f"original{i}", part)
        for module in modules:
            self.append(module)
        if not unsafe:
            self._compare(original.shape, original.dtype)

    def _originals(self) -> list[Tensor]:
        if self.is_tensor:
            return [self.original]
        return [getattr(self, f"original{i}") for i in range(self.ntensors)]

    def _compare(self, shape: Sequence[int], dtype: DTypeLike) -> None:
        with no_grad():
            weight = self()
        if not isinstance(weight, Tensor) or weight.shape != shape or weight.dtype is not dtype:
            what = getattr(weight, "shape", weight), getattr(weight, "dtype", type(weight))
            raise ShapeError(
                f"a parametrization keeps dtype and shape, {dtype} and {tuple(shape)}, but makes "
                f"{what}; unsafe=True allows it"
            )

    def right_inverse(self, value: Tensor) -> None:
        """Set what is started from so that `value` is computed, as far as the parametrizations have
        a right_inverse.
        """
        with no_grad():
            new: Tensor = value
            for module in reversed(list(self)):
                inverse = getattr(module, "right_inverse", None)
                if inverse is None:
                    raise RuntimeError(
                        f"{type(module).__name__} has no right_inverse, so the parameter cannot be "
                        "assigned"
                    )
                new = inverse(new)
            for target, part in zip(
                self._originals(), [new] if self.is_tensor else new, strict=True
            ):
                set_data(target, part.detach())

    def forward(self) -> Any:
        first, *rest = list(self)
        x = first(*self._originals())
        for module in rest:
            x = module(x)
        return x


def _property_of(name: str) -> property:
    def get(self: Any) -> Any:
        cache = _cache.now()
        if cache is None:
            return self.parametrizations[name]()
        key = id(self), name
        if key not in cache:
            cache.setdefault(key, self.parametrizations[name]())
        return cache[key]

    def put(self: Any, value: Tensor) -> None:
        self.parametrizations[name].right_inverse(value)

    return property(get, put)


def _own_class(module: Module) -> None:
    """Make `module` of a class of its own, below its class, which takes properties."""
    kind = type(module)
    module.__class__ = type(
        f"Parametrized{kind.__name__}", (kind,), {"__module__": kind.__module__}
    )
    module.parametrizations = ModuleDict()


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Have `module.<tensor_name>`, a parameter or buffer, computed by `parametrization`: its
    forward of what is kept.  Answers `module`.

    A second one is applied after the first.  right_inverse(value), if it has one, says what is kept
    so that the parameter stays what it is; unsafe=True allows another shape or dtype.

    >>> class Positive(nn.Module):
    ...     def forward(self, x):
    ...         return x.abs()
    >>> layer = nn.Linear(2, 3)
    >>> _ = nn.utils.parametrize.register_parametrization(layer, "weight", Positive())
    >>> bool((layer.weight >= 0).all())
    True
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        held: Any = module.parametrizations[tensor_name]  # type: ignore[attr-defined]
        if not (unsafe or held.unsafe):
            _same_kind(parametrization, getattr(module, tensor_name))
        held.append(parametrization)
        held.unsafe = held.unsafe or unsafe
        return module
    if tensor_name not in module._parameters and tensor_name not in module._buffers:
        raise ArgumentError(
            f"{type(module).__name__} has no parameter or buffer {tensor_name!r}; it has "
            f"{[*module._parameters, *module._buffers]}"
        )
    original: Any = getattr(module, tensor_name)
    chain = ParametrizationList([parametrization], original, unsafe)
    delattr(module, tensor_name)
    if not is_parametrized(module):
        _own_class(module)
    setattr(type(module), tensor_name, _property_of(tensor_name))
    module.parametrizations[tensor_name] = chain  # type: ignore[attr-defined]
    return module


def _same_kind(parametrization: Module, x: Tensor) -> None:
    with no_grad():
        y = parametrization(x)
    if not isinstance(y, Tensor) or y.dtype is not x.dtype or y.shape != x.shape:
        raise ShapeError(
            f"a parametrization keeps dtype and shape, {x.dtype} and {tuple(x.shape)}; "
            "unsafe=True allows others"
        )


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Return True if `module` has parametrizations: of `tensor_name`, if it is given.

    >>> layer = nn.Linear(2, 3)
    >>> nn.utils.parametrize.is_parametrized(layer)
    False
    >>> nn.utils.parametrize.is_parametrized(nn.utils.parametrizations.weight_norm(layer), "weight")
    True
    """
    held = module.__dict__.get("parametrizations")
    if not isinstance(held, ModuleDict):
        return False
    return len(held) > 0 if tensor_name is None else tensor_name in held


def remove_parametrizations(
    module: Module, tensor_name: str, leave_parametrized: bool = True
) -> Module:
    """Undo `register_parametrization`: the parameter keeps the value that it has computed, or with
    leave_parametrized=False, for which there must be one, the one that was kept.

    >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))
    >>> layer = nn.utils.parametrize.remove_parametrizations(layer, "weight")
    >>> type(layer.weight).__name__
    'Parameter'
    """
    if not is_parametrized(module, tensor_name):
        raise ArgumentError(f"{type(module).__name__} has no parametrization of {tensor_name!r}")
    held: Any = module.parametrizations[tensor_name]  # type: ignore[attr-defined]
    originals = held._originals()
    if leave_parametrized:
        with no_grad():
            value = getattr(module, tensor_name).detach()
        original: Any = originals[0] if held.is_tensor else None
        if isinstance(original, Parameter):
            set_data(original, value)
        elif isinstance(originals[0], Parameter):
            original = Parameter(value, any(part.requires_grad for part in originals))
        else:
            original = value
    elif held.is_tensor:
        original = originals[0]
    else:
        raise ArgumentError(
            "leave_parametrized=False needs one tensor that is kept, and here are several"
        )
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]  # type: ignore[attr-defined]
    if isinstance(original, Parameter):
        module.register_parameter(tensor_name, original)
    else:
        module.register_buffer(tensor_name, original)
    if not is_parametrized(module):
        delattr(module, "parametrizations")
        module.__class__ = type(module).__bases__[0]
    return module


def type_before_parametrizations(module: Module) -> type[Module]:
    """The class of a module as it was before it had parametrizations.

    >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))
    >>> nn.utils.parametrize.type_before_parametrizations(layer) is nn.Linear
    True
    """
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


def transfer_parametrizations_and_params(
    from_module: Module, to_module: Module, tensor_name: str | None = None
) -> Module:
    """Give `to_module` the parametrizations of `from_module`, and what they start from.

    >>> first, second = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)), nn.Linear(2, 3)
    >>> _ = nn.utils.parametrize.transfer_parametrizations_and_params(first, second)
    >>> nn.utils.parametrize.is_parametrized(second, "weight")
    True
    """
    if not is_parametrized(from_module, tensor_name):
        return to_module
    held: Any = from_module.parametrizations  # type: ignore[attr-defined]
    for name in list(held) if tensor_name is None else [tensor_name]:
        if not hasattr(to_module, name):
            to_module.register_parameter(name, Parameter(getattr(from_module, name).detach()))
        for part in list(held[name]):
            register_parametrization(to_module, name, part, unsafe=True)
        other: Any = to_module.parametrizations  # type: ignore[attr-defined]
        for mine, theirs in zip(other[name]._originals(), held[name]._originals(), strict=True):
            set_data(mine, theirs.detach())
    return to_module


__all__ = own_names(globals())
