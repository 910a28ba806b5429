"""Translations of ops that draw random numbers.  The distributions are equal; the numbers come from
the runtime's generator, and differ in each run.

Shapes are operands, not attributes (`RandomUniformLike`), so that files of any size can have them.
"""

from __future__ import annotations

from flowvm.meta.dtype import DType, bool_, float32, float64, int64
from flowvm.onnx.call import Call
from flowvm.onnx.expressions import Untranslated
from flowvm.onnx.rows import Values

_EXACT = 1 << 53  # integers that float64 tells apart


def _drawn(c: Call, kind: str, dtype: DType, **attributes: float) -> str:
    """Numbers of the first output's shape."""
    like = c.w.expand(c.number(0, dtype), c.out.shape)
    return c.w.op(kind, like, **attributes)


def _computing(c: Call) -> DType:
    return float64 if c.out.dtype is float64 else float32


def uniform(c: Call) -> Values:
    """Translate draws from [`start`, `start + span`)."""
    start, dtype = float(c.attrs["start"]), _computing(c)
    end = start + float(c.attrs["span"])
    return [c.as_out(_drawn(c, "RandomUniformLike", dtype, low=start, high=end), dtype)]


def normal(c: Call) -> Values:
    """Translate draws from a normal distribution with a mean and a standard deviation."""
    mean, std, dtype = float(c.attrs["mean"]), float(c.attrs["std"]), _computing(c)
    return [c.as_out(_drawn(c, "RandomNormalLike", dtype, mean=mean, scale=std), dtype)]


def exponential(c: Call) -> Values:
    """-log(1 - u) / rate, where u is below 1."""
    w, dtype = c.w, _computing(c)
    u = _drawn(c, "RandomUniformLike", dtype, low=0.0, high=1.0)
    less = w.op("Neg", w.op("Log", w.op("Sub", c.number(1, dtype), u)))
    return [c.as_out(w.op("Div", less, c.number(c.attrs["rate"], dtype)), dtype)]


def integers(c: Call) -> Values:
    """`size` integers from `low` on."""
    w, low, size = c.w, c.attrs["low"], c.attrs["size"]
    if not 0 < size <= _EXACT:
        raise Untranslated(f"a range of {size} integers, more than float64 tells apart")
    u = _drawn(c, "RandomUniformLike", float64, low=0.0, high=1.0)
    place = w.cast(w.op("Floor", w.op("Mul", u, c.number(float(size), float64))), int64)
    place = w.op("Min", place, c.number(size - 1, int64))
    return [c.as_out(w.op("Add", place, c.number(low, int64)), int64)]


def permutation(c: Call) -> Values:
    """Translate a permutation: the order of random numbers."""
    numbers = _drawn(c, "RandomUniformLike", float32, low=0.0, high=1.0)
    _, places = c.w.ops("TopK", 2, numbers, c.w.ints(c.out.numel), axis=-1)
    return [c.as_out(places, int64)]


def _hits(c: Call, chances: str, dtype: DType) -> str:
    """Return a value that is true with these probabilities, drawn in a dtype.

    ONNX's Bernoulli is not used: before opset 22 its definition gives 1 with 1 - p.
    """
    return c.w.op("Less", _drawn(c, "RandomUniformLike", dtype, low=0.0, high=1.0), chances)


def bernoulli(c: Call) -> Values:
    """Translate draws of 1 with the input's probabilities, or with one that is a number."""
    if "p" in c.attrs:
        return [c.as_out(_hits(c, c.number(c.attrs["p"], float32), float32), bool_)]
    own = c.metas[0].dtype
    dtype = own if own in (float32, float64) else float32
    chances = c.x() if own is dtype else c.w.cast(c.x(), dtype)
    return [c.as_out(_hits(c, chances, dtype), bool_)]


def dropout(c: Call) -> Values:
    """Translate dropout in training.

    ONNX's Dropout is not used: runtimes that only infer leave it out, even where it is told to
    train.
    """
    keep = 1 - c.attrs["p"]
    mask = _hits(c, c.number(keep, float32), float32)
    scaled = c.w.op("Mul", c.x(), c.number(1 / keep if keep else 0.0))
    return [c.w.op("Where", mask, scaled, c.number(0))]
