"""Autocast's mechanism: operators that ask, at each call, in which dtype to compute.

A region of `flow.autocast` gives a thread a dtype, and operators with a rule (`amp=` of their
declaration) then convert their floating-point inputs: products and convolutions to that dtype
("half"), what loses too much in it to float32 ("full"), what mixes its inputs to the widest of them
("widest"); all others compute in what they are given.  The rules are PyTorch's for CUDA
(aten/src/ATen/autocast_mode.h), on every device and for float16 and bfloat16 alike.  A conversion
is an ordinary `cast`, which gradients flow through and a graph captures.

Where no thread is in a region, a call of an operator with a rule costs one test of
`hot["autocast"]`, and others nothing.  Functions that are several operators have that test and a
line of their own.

Invariants:
- float64, integers and bools are never converted, nor are outputs (`out=`, in-place forms);
- backward computes outside of every region: a gradient has the dtype that its forward had;
- a converted parameter is kept until the outermost region ends, for as long as the parameter is not
  changed, and only for the capture, or eager code, that converted it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from flowvm.guards.regions import Mode, Region
from flowvm.meta.dtype import DType, bfloat16, float16, float32
from flowvm.vm.callers.hot import hot

Result = TypeVar("Result")

AMP = ("half", "full", "widest")  # the rules; "": inputs stay as they are
_CONVERTED = (float16, bfloat16, float32)
_OTHERS = {to: frozenset(_CONVERTED) - {to} for to in _CONVERTED}  # what is converted to each


class _Kept:
    """Parameters converted in a region and those inside it, by the parameter's id; for `owner`."""

    def __init__(self) -> None:
        self.now: tuple[object, dict[object, object]] = (
            None,
            {},
        )  # a recorder or None, whose values

    def of(self, recorder: object) -> dict[object, Any]:
        """Return what was converted by `recorder`; what another did is forgotten."""
        owner, values = self.now
        if owner is not recorder:
            values = {}
            self.now = recorder, values
        return values


class Autocasting(NamedTuple):
    """A region: what is computed in, None for as given."""

    dtype: DType | None
    casts: _Kept


_mode: Mode[Autocasting | None] = Mode(None)
# what a region that is told no dtype computes in, by device type: PyTorch's, or what is set
defaults: dict[str, DType] = {"cpu": bfloat16, "cuda": float16}


def autocast_dtype() -> DType | None:
    """The dtype of the region that this thread is in, None outside."""
    region = _mode.now()
    return None if region is None else region.dtype


def forget() -> None:
    """Let go of what was converted in the region that this thread is in."""
    region = _mode.now()
    if region is not None:
        region.casts.now = None, {}


def autocast_mode() -> Mode[Autocasting | None]:
    """The mode itself, for regions of other modules."""
    return _mode


def inside(dtype: DType | None) -> Autocasting:
    """A region inside the one that this thread is in."""
    around = _mode.now()
    return Autocasting(dtype, _Kept() if around is None else around.casts)


def autocasting(dtype: DType | None) -> Region:
    """A region of this thread in which operators with a rule compute in `dtype`; None: as given.

    What was converted is forgotten where the outermost one ends.
    """
    return _mode.to(inside(dtype))


def autocasting_apart(dtype: DType | None) -> Region:
    """A region with conversions of its own: the same ones each time that code runs in it."""
    return _mode.to(Autocasting(dtype, _Kept()))


# --- conversions --------------------------------------------------------------------------------


def converted(rule: str, values: Sequence[object]) -> tuple[object, ...] | None:
    """`values` in the dtypes that `rule` asks for; None if they are, or outside of a region."""
    low = autocast_dtype()
    if low is None:
        return None
    if rule == "half":
        to = low
    elif rule == "full" or any(_dtype(v) is float32 for v in values):
        to = float32
    else:
        return None
    others = _OTHERS[to]
    if not any(_dtype(v) in others for v in values):
        return None
    return tuple([_cast(v, to) if _dtype(v) in others else v for v in values])


def lowered(*values: object) -> tuple[Any, ...]:
    """`values` as an operator with rule "half" takes them: for functions that look at dtypes
    themselves, or are several operators.
    """
    return converted("half", values) or values


def widened(*values: object) -> tuple[Any, ...]:
    """Convert `values` as an operator with rule "full" takes them."""
    return converted("full", values) or values


def widest(*values: object) -> tuple[Any, ...]:
    """Convert `values` as an operator with rule "widest" takes them."""
    return converted("widest", values) or values


def outside(function: Callable[..., Result], *values: object) -> Result:
    """`function` of the values as they are, outside of every region."""
    with autocasting(None):
        return function(*values)


def _dtype(value: object) -> object:
    return value._meta.dtype if hasattr(value, "_meta") else None


def _cast(t: Any, dtype: DType) -> object:
    """`t` in `dtype`.  A parameter's is kept: many calls of a step convert the same ones."""
    node = t._node
    if node is None or not node.is_leaf:
        return t.to(dtype)
    recorder, region = hot["recorder"](), _mode.now()
    assert region is not None
    values = region.casts.of(recorder)
    key = (id(t), dtype, hot["grad_enabled"]())
    known = values.get(key)
    if known is None or known[1] != t.version:
        known = values[key] = (t, t.version, t.to(dtype))
    return known[2]


def _convert(op: Any, tensors: Sequence[object]) -> tuple[object, ...] | None:
    """Convert the tensors of a call of an operator with a rule; None where they stay."""
    return converted(op.rules.amp, tensors)


hot.update({"autocast": _mode.inside, "convert": _convert})
