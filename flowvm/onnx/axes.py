"""Named sizes of a model's inputs: `dynamic_axes` and `dynamic_shapes` of `export`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.graph.capture.trees import flatten

Axes = dict[int, str]  # a dimension of a tensor -> the name of its size

_FORMS = "names of dimensions: {0: 'batch'} for a tensor, or a name or None for each dimension"


def by_name(names: Mapping[str, Any], ndims: Mapping[str, int]) -> dict[str, Axes]:
    """Return the names of `dynamic_axes`: inputs and outputs by name, {dimension: name} or a list
    of dimensions.
    """
    if not isinstance(names, Mapping):
        raise ArgumentError(f"onnx.export: dynamic_axes is a dict by name, got {names!r}")
    axes_of = {}
    for name, axes in names.items():
        if name not in ndims:
            raise ArgumentError(
                f"onnx.export: dynamic_axes names {name!r}, which is none of {', '.join(ndims)}"
            )
        if not isinstance(axes, Mapping):
            if not isinstance(axes, Sequence) or isinstance(axes, str):
                raise ArgumentError(f"onnx.export: dynamic_axes of {name} are {_FORMS}: {axes!r}")
            axes = {axis: f"{name}_dynamic_axes_{k + 1}" for k, axis in enumerate(axes)}
        axes_of[name] = _axes(axes, name, ndims[name])
    return axes_of


def by_tree(requested: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
            parameters: Sequence[str], names: Sequence[str]) -> dict[str, Axes]:  # fmt: skip
    """Return the names of `dynamic_shapes`: in the form of the arguments, or a dict by parameter.

    parameters   of the positional arguments
    names        of the inputs, in the order of the tensors among the arguments
    """
    values = {**dict(zip(parameters, args, strict=True)), **kwargs}
    if isinstance(requested, Mapping):
        unknown = [name for name in requested if name not in values]
        if unknown:
            raise ArgumentError(
                f"onnx.export: dynamic_shapes names {unknown[0]!r}, which is none of "
                f"{', '.join(values)}"
            )
        specs = [requested.get(name) for name in values]
    else:
        if not isinstance(requested, (tuple, list)) or len(requested) != len(values):
            raise ArgumentError(
                f"onnx.export: dynamic_shapes has one entry for each of the {len(values)} "
                f"arguments, or is a dict by parameter, got {requested!r}"
            )
        specs = list(requested)
    axes: list[Axes] = []
    for spec, value in zip(specs, values.values(), strict=True):
        _walk(spec, value, names, axes)
    return dict(zip(names, axes, strict=True))


def _walk(spec: Any, value: Any, names: Sequence[str], axes: list[Axes]) -> None:
    """Walk an entry beside its argument, and add the names of each tensor in it to `axes`."""
    if isinstance(value, Tensor):
        name, ndim = names[len(axes)], value.ndim
        if isinstance(spec, (tuple, list)):
            if len(spec) != ndim:
                raise ArgumentError(
                    f"onnx.export: dynamic_shapes of {name} has {len(spec)} entries, and it has "
                    f"{ndim} dimensions"
                )
            spec = dict(enumerate(spec))
        if spec is not None and not isinstance(spec, Mapping):
            raise ArgumentError(f"onnx.export: dynamic_shapes of {name} are {_FORMS}: {spec!r}")
        axes.append(_axes(spec or {}, name, ndim, tuple(value.shape)))
        return
    if spec is None or not isinstance(value, (tuple, list, dict)):
        leaves: list[Tensor] = []
        flatten(value, leaves)
        axes += [{} for _ in leaves]
        return
    pairs: list[tuple[Any, Any]] | None = None
    if isinstance(value, dict):
        if isinstance(spec, Mapping) and set(spec) <= set(value):
            pairs = [(spec.get(k), v) for k, v in value.items()]
    elif isinstance(spec, (tuple, list)) and len(spec) == len(value):
        pairs = list(zip(spec, value, strict=True))
    if pairs is None:
        raise ArgumentError(
            f"onnx.export: dynamic_shapes has the form of the arguments; {spec!r} stands beside "
            f"a {type(value).__name__} of {len(value)}"
        )
    for inner, item in pairs:
        _walk(inner, item, names, axes)


def _axes(
    axes: Mapping[object, object], name: str, ndim: int, shape: Sequence[int] | None = None
) -> Axes:
    named_axes: Axes = {}
    for axis, dim in axes.items():
        if type(axis) is not int or not -ndim <= axis < ndim:
            raise ArgumentError(
                f"onnx.export: {name} has {ndim} dimensions, and no dimension {axis!r}"
            )
        axis %= ndim
        called = _called(dim, f"{name}_dim_{axis}")
        if called is not None:
            named_axes[axis] = called
        elif type(dim) is int and shape is not None and shape[axis] != dim:
            raise ArgumentError(
                f"onnx.export: dimension {axis} of {name} is {shape[axis]}, and was to be {dim}"
            )
    return named_axes


def _called(dim: object, own: str) -> str | None:
    """Return the name of a size; None if the size is fixed to the example's.

    PyTorch's `export.Dim` has a `__name__`, and its hints AUTO, DYNAMIC and STATIC have a `type`.
    """
    if dim is None or type(dim) is int:
        return None
    hint = getattr(getattr(dim, "type", None), "name", None)
    if hint in ("AUTO", "DYNAMIC"):
        return own
    if hint == "STATIC":
        return None
    name = dim if isinstance(dim, str) else getattr(dim, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise ArgumentError(f"onnx.export: a size is named by an identifier, got {dim!r}")
    return name
