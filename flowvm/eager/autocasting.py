"""Autocast's mechanism: operators that ask, at each call, in which dtype to compute.

A region of `flow.autocast` gives a thread a dtype, and operators named in RULES then convert their
floating-point inputs: products and convolutions to that dtype ("half"), what loses too much in it
to float32 ("full"), what mixes its inputs to the widest of them ("widest"); all others compute in
what they are given.  The lists are PyTorch's for CUDA (aten/src/ATen/autocast_mode.h), on every
device and for float16 and bfloat16 alike.  A conversion is an ordinary `cast`, which gradients flow
through and a graph captures.

Where no thread is in a region, a listed operator's call costs one test of `hot["autocast"]`, and
others nothing.  Functions that are several operators have that test and a line of their own.

Invariants:
- float64, integers and bools are never converted, nor are outputs (`out=`, in-place forms);
- backward computes outside of every region: a gradient has the dtype that its forward had;
- a converted parameter is kept until the outermost region ends, for as long as the parameter is not
  changed, and only for the capture, or eager code, that converted it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from flowvm.dtype import DType, bfloat16, float16, float32
from flowvm.vm.callers.hot import hot

Result = TypeVar("Result")

_HALF = """
    matmul _matmul_nt _matmul_tn linear addmm conv conv_input
"""
_FULL = """
    acos asin cosh erfinv exp expm1 log log10 log1p log2 pow reciprocal rsqrt sinh softplus tan
    square cumsum cumprod softmax log_softmax
    binary_cross_entropy binary_cross_entropy_with_logits cross_entropy huber_loss kl_div l1_loss
    mse_loss nll_loss smooth_l1_loss
"""
_WIDEST = """
    addcdiv addcmul atan2
"""
RULES: dict[str, str] = {
    name: rule
    for rule, names in (("half", _HALF), ("full", _FULL), ("widest", _WIDEST))
    for name in names.split()
}
"""What each operator computes in, by its name."""
_CONVERTED = (float16, bfloat16, float32)
_OTHERS = {to: frozenset(_CONVERTED) - {to} for to in _CONVERTED}  # what is converted to each


class _State(threading.local):
    dtype: DType | None = None  # of the region that this thread is in
    depth = 0  # regions around it
    owner: Any = None  # the recorder for which `kept` was made
    kept: dict[Any, Any]

    def __init__(self) -> None:
        self.kept = {}


_state = _State()
_lock = threading.Lock()


def autocast_dtype() -> DType | None:
    """The dtype of the region that this thread is in, None outside."""
    return _state.dtype


def switch_autocast(dtype: DType | None) -> DType | None:
    """Compute in `dtype` from now on, on this thread, and as given for None; what it was."""
    before = _state.dtype
    change = (dtype is not None) - (before is not None)
    if change:
        with _lock:
            hot["autocast"] += change
    _state.dtype = dtype
    return before


@contextmanager
def autocasting(dtype: DType | None) -> Iterator[None]:
    """A region of this thread in which listed operators compute in `dtype`; None: a region without.

    What was converted is forgotten where the outermost one ends.
    """
    before = switch_autocast(dtype)
    _state.depth += 1
    try:
        yield
    finally:
        _state.depth -= 1
        switch_autocast(before)
        if not _state.depth:
            _state.kept, _state.owner = {}, None


@contextmanager
def autocasting_apart(dtype: DType | None) -> Iterator[None]:
    """A region with conversions of its own: the same ones each time that code runs in it."""
    before = _state.kept, _state.owner
    _state.kept, _state.owner = {}, None
    try:
        with autocasting(dtype):
            yield
    finally:
        _state.kept, _state.owner = before


# --- conversions --------------------------------------------------------------------------------


def converted(rule: str, values: Sequence[Any]) -> tuple[Any, ...] | None:
    """`values` in the dtypes that `rule` asks for; None if they are, or outside of a region."""
    low = _state.dtype
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


def lowered(*values: Any) -> tuple[Any, ...]:
    """`values` as an operator with rule "half" takes them: for functions that look at dtypes
    themselves, or are several operators.
    """
    return converted("half", values) or values


def widened(*values: Any) -> tuple[Any, ...]:
    """The same for rule "full"."""
    return converted("full", values) or values


def widest(*values: Any) -> tuple[Any, ...]:
    """The same for rule "widest"."""
    return converted("widest", values) or values


def outside(function: Callable[..., Result], *values: Any) -> Result:
    """`function` of the values as they are, outside of every region."""
    before = switch_autocast(None)
    try:
        return function(*values)
    finally:
        switch_autocast(before)


def _dtype(value: Any) -> Any:
    return value._meta.dtype if hasattr(value, "_meta") else None


def _cast(t: Any, dtype: DType) -> Any:
    """`t` in `dtype`.  A parameter's is kept: many calls of a step convert the same ones."""
    node = t._node
    if node is None or not node.is_leaf:
        return t.to(dtype)
    recorder = hot["recorder"]()
    if _state.owner is not recorder:
        _state.kept, _state.owner = {}, recorder
    key = (id(t), dtype, hot["grad_enabled"]())
    known = _state.kept.get(key)
    if known is None or known[1] != t.version:
        known = _state.kept[key] = (t, t.version, t.to(dtype))
    return known[2]


def _convert(op: Any, tensors: Sequence[Any]) -> tuple[Any, ...] | None:
    """What a listed operator's call asks first."""
    return converted(op.amp, tensors)


hot.update(autocast=0, convert=_convert)
