"""The rules for attributes of flowvm's own operators that come from a file.

An op's function checks its arguments before it issues the operator.  The operator's infer function
and kernel rely on that: a dimension is one of the tensor's, an index is not below -size.  A file
bypasses that function, so the same is checked here, by the attribute's name; rules for one
operator's name come first.  A name without a rule is refused, unless the operator is the user's:
then its infer function must check.  Relations between attributes and operands that a kernel relies
on are in `flowvm.graph.logical.calls`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowvm.eager.interpreter import Operator
from flowvm.errors import ArgumentError
from flowvm.files.schema import anything, several
from flowvm.graph.logical.calls import CALLS
from flowvm.meta.device import Device
from flowvm.meta.dtype import DType
from flowvm.meta.formats import is_dense
from flowvm.meta.meta import Size, TensorMeta
from flowvm.ops.declare.elementwise import Elementwise
from flowvm.ops.planes.cpu.pool_kernels import Windows
from flowvm.ops.planes.cpu.region_kernels import Regions
from flowvm.ops.planes.cpu.resize_kernels import Sizes
from flowvm.ops.planes.parts.conv_ops import How
from flowvm.ops.rows.cpu.ctc_kernels import Labels
from flowvm.ops.sequences.parts import scans

Rule = Callable[[Any, Sequence[TensorMeta], dict[str, Any]], bool]
_NEGATIVE_DIMS = ("softmax", "softmax_backward", "log_softmax", "log_softmax_backward")


def check_attributes(operator: Operator, metas: Sequence[TensorMeta], attrs: Sequence[Any]) -> None:
    """ArgumentError unless a call of `operator` on these inputs can have these attributes."""
    if operator.recipe is not None:
        if operator.recipe[0] == "merged":
            _check_members(operator, metas, attrs)
        return  # of all others, who makes them looks
    form = operator.form
    if isinstance(form, tuple) and isinstance(form[0], Elementwise):
        if not all(kind in (bool, int, float) for kind in attrs):
            raise _wrong(operator, "kinds of numbers", attrs)
        return
    values = dict(zip(operator.attrs, attrs, strict=True))
    if not _declared_in(operator).startswith("flowvm."):
        return
    if operator.dense and not all(meta.contiguous for meta in metas):
        raise _wrong(operator, "inputs", metas)
    for name, value in values.items():
        rule = _OF.get((operator.name, name)) or _NAMED.get(name)
        if rule is None or not rule(value, metas, values):
            raise _wrong(operator, name, value)
    if "dim" in values and values["dim"] < 0 and operator.name not in _NEGATIVE_DIMS:
        raise _wrong(operator, "dim", values["dim"])
    rule_of_all = CALLS.get(operator.name)
    if rule_of_all is not None and not rule_of_all(metas, values):
        raise _wrong(operator, "inputs and attributes", (*metas, *attrs))


def names_without_rule(operator: Operator) -> list[str]:
    """The attributes of an operator of flowvm's for which a file that has it is refused."""
    form = operator.form
    elementwise = isinstance(form, tuple) and isinstance(form[0], Elementwise)
    if operator.recipe is not None or elementwise:
        return []
    if not _declared_in(operator).startswith("flowvm."):
        return []
    return [n for n in operator.attrs if n not in _NAMED and (operator.name, n) not in _OF]


def _check_members(operator: Any, metas: Sequence[TensorMeta], attrs: Sequence[Any]) -> None:
    """Check a merged node: the attributes of each member, and the numbers that are its own."""
    where, base = f"the attributes of {operator.name}", operator.base
    each = several(several(anything, kind=tuple), operator.count, operator.count, tuple)
    for of_all in attrs:
        each(of_all, where)
    for own, values in zip(operator.per_member(metas), attrs[0], strict=True):
        several(anything, len(base.attrs), len(base.attrs), tuple)(values, where)
        check_attributes(base, own[operator.ahead :], values)


def _declared_in(operator: Operator) -> str:
    return str(getattr(operator.call, "__module__", "") or "flowvm.")


def _wrong(operator: Operator, name: str, value: Any) -> ArgumentError:
    return ArgumentError(
        f"the saved graph is damaged: {operator.name} has no {name} = {str(value)[:80]} of such "
        f"operands"
    )


def _is_int(value: Any, low: int = -(1 << 62), high: int = 1 << 62) -> bool:
    return type(value) is int and low <= value <= high


def _last(metas: Sequence[TensorMeta]) -> int:
    return metas[0].shape[-1] if metas[0].ndim else 1


def _along(metas: Sequence[TensorMeta], values: dict[str, Any]) -> int:
    """The size of the first input's dimension `dim`."""
    return metas[0].shape[values["dim"]] if metas[0].ndim else 1


def _is_dim(value: Any, metas: Sequence[TensorMeta], values: dict[str, Any]) -> bool:
    rank = max(1, metas[0].ndim)
    return _is_int(value, -rank, rank - 1)


def _are_dims(value: Any, metas: Sequence[TensorMeta], values: dict[str, Any]) -> bool:
    rank = metas[0].ndim
    if type(value) is not tuple or not all(_is_int(d, 0, max(0, rank - 1)) for d in value):
        return False
    return len(set(value)) == len(value) and (rank > 0 or value in ((), (0,)))


def _is_flag(value: Any, metas: Sequence[TensorMeta], values: dict[str, Any]) -> bool:
    return type(value) is bool


def _is_number(value: Any, metas: Sequence[TensorMeta], values: dict[str, Any]) -> bool:
    return type(value) in (int, float, bool)


def _is_whole(value: Any, metas: Sequence[TensorMeta], values: dict[str, Any]) -> bool:
    return _is_int(value, -(1 << 63), (1 << 63) - 1)


def _is_count(value: Any, metas: Sequence[TensorMeta], values: dict[str, Any]) -> bool:
    return _is_int(value, 0, 1 << 48)


def _is_sides(value: Any, metas: Sequence[TensorMeta], values: dict[str, Any]) -> bool:
    most = {"reflect": -1, "circular": 0}.get(values.get("mode", ""), 1 << 40)
    return type(value) is tuple and len(value) == metas[0].ndim and all(
        type(side) is tuple and len(side) == 2
        and all(_is_int(s, 0, max(0, min(size + most, 1 << 40))) for s in side)
        and (size > 0 or side == (0, 0) or "mode" not in values)
        for side, size in zip(value, metas[0].shape, strict=True)
    )  # fmt: skip


def _is_roll(value: Any, metas: Sequence[TensorMeta], values: dict[str, Any]) -> bool:
    sizes = metas[0].shape
    return type(value) is tuple and len(value) == len(sizes) and all(
        _is_int(cut, 0, max(0, size - 1)) for cut, size in zip(value, sizes, strict=True)
    )  # fmt: skip


def _is_shape(value: Any, metas: Sequence[TensorMeta], values: dict[str, Any]) -> bool:
    return type(value) in (tuple, Size) and all(_is_int(d, 0, 1 << 48) for d in value)


def _are_sizes(value: Any, metas: Sequence[TensorMeta], values: dict[str, Any]) -> bool:
    return type(value) is tuple and all(_is_int(d, 0, 1 << 48) for d in value)


def _one_of(*names: Any) -> Rule:
    return lambda value, metas, values: type(value) is type(names[0]) and value in names


def _of_class(kind: type) -> Rule:
    return lambda value, metas, values: isinstance(value, kind)


_NAMED: dict[str, Rule] = {
    "dim": _is_dim,
    "dims": _are_dims,
    **dict.fromkeys(
        ("keepdim", "stacked", "descending", "largest", "right", "invert", "decoupled", "maximize",
         "nesterov", "reverse", "center", "mean", "scaled", "weighted", "wants_inverse",
         "wants_counts", "complete", "flip", "full", "hermitian", "is_causal", "lower", "padded",
         "strict", "unit", "upper", "vectors", "root", "wide"), _is_flag,
    ),
    **dict.fromkeys(
        ("divisor", "freedom", "eps", "alpha", "beta", "drop", "smoothing", "value", "scale",
         "rcond", "threshold"), _is_number
    ),
    **dict.fromkeys(("ignore_index", "zero", "skip", "middle", "da", "db"), _is_whole),
    **dict.fromkeys(
        ("n", "classes", "bins", "total", "least", "na", "nb", "count", "longest", "m"), _is_count
    ),
    "k": lambda value, metas, values: _is_int(value, -(1 << 31), 1 << 31),
    "low": lambda value, metas, values: _is_int(value, -_along(metas, values), 0),
    "shown": lambda value, metas, values: _is_int(value, -64, 64),
    "mode": lambda value, metas, values: _is_int(value, 0, 15),
    "reduction": _one_of("none", "mean", "sum"),
    "cell": _one_of(*scans.CELLS),
    "driver": _one_of("gels", "gelsy", "gelsd", "gelss"),
    "how": _of_class(How),
    "labels": _of_class(Labels),
    "sizes": _are_sizes,
    "way": _one_of(1, -1),
    "windows": _of_class(Windows),
    "regions": _of_class(Regions),
    "kind": _one_of("batch", "layer", "group", "instance", "rms"),
    "size": lambda v, metas, values: _is_int(v, 0, 1 << 48) or _is_shape(v, metas, values),
    "shape": _is_shape,
    "dtype": lambda value, metas, values: value is None or isinstance(value, DType),
    "device": _of_class(Device),
    "meta": _of_class(TensorMeta),
    "out": _of_class(TensorMeta),
}  # fmt: skip
_OF: dict[tuple[str, str], Rule] = {
    ("arrange", "stride"): lambda value, metas, values: (
        type(value) is tuple
        and len(value) == metas[0].ndim
        and all(_is_int(s, 0, 1 << 48) for s in value)
        and is_dense(metas[0].shape, value)
    ),
    ("topk", "k"): lambda value, metas, values: _is_int(value, 0, _last(metas)),
    ("kthvalue", "nth"): lambda value, metas, values: _is_int(value, 0, _last(metas) - 1),
    ("sort", "first"): lambda value, metas, values: _is_int(value, 0, _last(metas)),
    ("sort", "count"): lambda v, metas, values: _is_int(v, 0, _last(metas) - values["first"]),
    ("pad", "sides"): _is_sides,
    ("pad", "mode"): _one_of("reflect", "replicate", "circular"),
    ("roll", "cuts"): _is_roll,
    **{(name, "t"): _of_class(Windows) for name in ("unfold", "fold")},
    **{
        (name, "t"): _of_class(Sizes)
        for name in ("interpolate", "interpolate_nearest", "interpolate_backward")
    },
    ("histc", "low"): _is_number,
    ("histc", "high"): _is_number,
}
