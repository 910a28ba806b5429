"""`flow.testing`: comparison of results with expected ones, and tensors for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.loading.listing import listing, own_names
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import DType, bfloat16, float16, float32, float64

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike


__dir__ = listing(globals())

# rtol and atol that PyTorch takes, by dtype; everything else must be equal
_TOLERANCES: Final = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}
Message = str | Callable[[str], str] | None


class _Comparison:
    """One comparison of assert_close."""

    def __init__(
        self,
        rtol: float | None,
        atol: float | None,
        equal_nan: bool,
        checks: dict[str, bool],
        msg: Message,
        allow_subclasses: bool,
    ) -> None:
        self.rtol, self.atol, self.equal_nan = rtol, atol, equal_nan
        self.checks, self.msg, self.allow_subclasses = checks, msg, allow_subclasses

    def fail(self, text: str, place: str) -> NoReturn:
        text = text + (f"\n\nThe failure occurred for item {place}" if place else "")
        if callable(self.msg):
            text = self.msg(text)
        raise AssertionError(self.msg if isinstance(self.msg, str) else text)

    def compare(self, actual: Any, expected: Any, place: str = "") -> None:
        if isinstance(actual, (Tensor, np.ndarray)) or isinstance(expected, (Tensor, np.ndarray)):
            self._compare_tensors(actual, expected, place)
        elif isinstance(actual, (bool, np.bool_)) and isinstance(expected, (bool, np.bool_)):
            if bool(actual) != bool(expected):
                self.fail(f"Booleans mismatch: {actual} is not {expected}", place)
        elif _is_number(actual) and _is_number(expected):
            self._compare_numbers(actual, expected, place)
        elif isinstance(actual, Mapping) and isinstance(expected, Mapping):
            if set(actual) != set(expected):
                lacks = sorted(map(str, set(expected) - set(actual)))
                more = sorted(map(str, set(actual) - set(expected)))
                self.fail(
                    f"The keys of the mappings do not match:\nMissing keys in the actual mapping: "
                    f"{lacks}\nAdditional keys in the actual mapping: {more}",
                    place,
                )
            for key in actual:
                self.compare(actual[key], expected[key], f"{place}[{key!r}]")
        elif _is_sequence(actual) and _is_sequence(expected):
            if len(actual) != len(expected):
                self.fail(
                    f"The length of the sequences mismatch: {len(actual)} != {len(expected)}", place
                )
            for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
                self.compare(a, b, f"{place}[{i}]")
        elif actual is None and expected is None:
            return
        elif type(actual) is type(expected) and isinstance(actual, str):
            if actual != expected:
                self.fail(f"{actual!r} is not {expected!r}", place)
        else:
            raise ArgumentTypeError(
                f"No comparison pair was able to handle inputs of type {type(actual)} and "
                f"{type(expected)}." + (f" At {place}." if place else "")
            )

    def _tolerances(self, *dtypes: str) -> tuple[float, float]:
        pairs = [_TOLERANCES.get(name, (0.0, 0.0)) for name in dtypes]
        rtol = max(p[0] for p in pairs) if self.rtol is None else self.rtol
        atol = max(p[1] for p in pairs) if self.atol is None else self.atol
        return rtol, atol

    def _compare_numbers(self, actual: Any, expected: Any, place: str) -> None:
        kinds = [_kind(v) for v in (actual, expected)]
        if self.checks["dtype"] and kinds[0] != kinds[1]:
            self.fail(f"The (d)types do not match: {type(actual)} != {type(expected)}.", place)
        rtol, atol = self._tolerances(*kinds)
        if actual == expected or (self.equal_nan and actual != actual and expected != expected):
            return
        difference = abs(actual - expected)
        if np.isfinite(difference) and difference <= atol + rtol * abs(expected):
            return
        relative = difference / abs(expected) if expected else float("inf")
        allowed = f" (up to {atol} allowed)", f" (up to {rtol} allowed)"
        equal = rtol == atol == 0
        self.fail(
            f"Scalars are not {'equal' if equal else 'close'}!\n\nExpected {expected} but got "
            f"{actual}.\nAbsolute difference: {difference}{'' if equal else allowed[0]}\n"
            f"Relative difference: {relative}{'' if equal else allowed[1]}",
            place,
        )

    def _compare_tensors(self, actual: object, expected: object, place: str) -> None:
        kinds = [type(v) for v in (actual, expected)]
        if not all(isinstance(v, (Tensor, np.ndarray)) for v in (actual, expected)) or (
            isinstance(actual, Tensor) != isinstance(expected, Tensor)
        ):
            raise ArgumentTypeError(
                f"No comparison pair was able to handle inputs of type {kinds[0]} and {kinds[1]}."
            )
        if not self.allow_subclasses and kinds[0] is not kinds[1]:
            raise ArgumentTypeError(f"Types differ: {kinds[0]} and {kinds[1]}")
        a = actual if isinstance(actual, Tensor) else ops.tensor(actual)
        b = expected if isinstance(expected, Tensor) else ops.tensor(expected)
        if tuple(a.shape) != tuple(b.shape):
            self.fail(
                f"The values for attribute 'shape' do not match: {tuple(a.shape)} != "
                f"{tuple(b.shape)}.",
                place,
            )
        for name in ("device", "dtype"):
            if self.checks[name] and getattr(a, name) != getattr(b, name):
                self.fail(
                    f"The values for attribute '{name}' do not match: {getattr(a, name)} != "
                    f"{getattr(b, name)}.",
                    place,
                )
        if self.checks["stride"] and a.stride() != b.stride():
            self.fail(
                f"The values for attribute 'stride()' do not match: {a.stride()} != {b.stride()}.",
                place,
            )
        rtol, atol = self._tolerances(a.dtype.name, b.dtype.name)
        self._compare_values(_values(a), _values(b), rtol, atol, place)

    def _compare_values(self, a: Array, b: Array, rtol: float, atol: float, place: str) -> None:
        with np.errstate(all="ignore"):
            close = np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=self.equal_nan)
            if close.all():
                return
            if a.dtype.kind in "bui":
                a, b = a.astype(object), b.astype(object)
            difference = np.where(close, 0, np.abs(a - b)).astype(np.float64)
            size = np.abs(b).astype(np.float64)
            relative = np.where(close, 0.0, difference / size)
        equal = rtol == atol == 0
        wrong = int((~close).sum())
        if a.ndim == 0:
            text = f"Scalars are not {'equal' if equal else 'close'}!\n\nExpected {b} but got {a}."
        else:
            text = (
                f"Tensor-likes are not {'equal' if equal else 'close'}!\n\nMismatched elements: "
                f"{wrong} / {a.size} ({100 * wrong / a.size:.1f}%)"
            )
        for word, values, most in (("absolute", difference, atol), ("relative", relative, rtol)):
            values = np.where(np.isnan(values), np.inf, values)
            index = tuple(int(i) for i in np.unravel_index(int(np.argmax(values)), values.shape))
            at = f" at index {index}" if a.ndim else ""
            text += f"\nGreatest {word} difference: {values[index]}{at}"
            text += "" if equal else f" (up to {most} allowed)"
        self.fail(text, place)


def _values(tensor: Tensor) -> Array:
    tensor = tensor.detach().cpu()
    wide = tensor.to(float32) if tensor.dtype is bfloat16 else tensor
    return wide.numpy()


def _is_number(value: object) -> bool:
    return isinstance(value, (bool, int, float, complex, np.number, np.bool_))


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _kind(value: object) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "bool"
    if isinstance(value, (int, np.integer)):
        return "int64"
    return "float64" if isinstance(value, (float, np.floating)) else "complex128"


def _checking(name: str, kind: type[Exception]) -> Callable[..., None]:
    def check(cond: object, message: Callable[[], str] | None = None) -> None:
        if not isinstance(cond, bool):
            raise ArgumentTypeError(f"{name}: cond must be a bool, got {type(cond).__name__}")
        if message is not None and not callable(message):
            raise ArgumentTypeError(
                f"{name}: message must be a callable, which is asked if the check fails, got "
                f"{type(message).__name__}"
            )
        if not cond:
            raise kind("what was to be true is False" if message is None else str(message()))

    check.__name__ = check.__qualname__ = name
    check.__doc__ = (
        f"{kind.__name__} with what `message()` says unless `cond`: a program's own check."
    )
    return check


_check = _checking("_check", RuntimeError)  # public: flow (late, unlisted)
_check_index = _checking("_check_index", IndexError)  # public: flow (late, unlisted)
# public: flow (late, unlisted)
_check_not_implemented = _checking("_check_not_implemented", NotImplementedError)
_check_type = _checking("_check_type", TypeError)  # public: flow (late, unlisted)
_check_value = _checking("_check_value", ValueError)  # public: flow (late, unlisted)


# public: flow (late, unlisted)
def _assert(condition: object, message: str) -> None:
    """Raise AssertionError with `message` unless `condition` is true.  Programs call it for an
    assert that tracing sees.  A tensor's value is read.
    """
    assert condition, message


# public: flow (late, unlisted)
def _assert_async(input: object, assert_msg: str = "") -> None:
    """Raise AssertionError unless a tensor is true.  Its value is read here, so the error is on
    this line.
    """
    assert bool(input), assert_msg


def assert_close(
    actual: object,
    expected: object,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg: Message = None,
) -> None:
    """Raise AssertionError unless |actual - expected| <= atol + rtol * |expected| everywhere.

    Of tensors, NumPy arrays, numbers, and sequences and mappings of them; shapes, and what the
    check_ flags name, must be the same.  Tolerances go by dtype, the larger of two (float32: 1.3e-6
    and 1e-5); both are given or none.  check_layout is taken: there is one.  `msg` replaces the
    message, or makes one of it.

    >>> flow.testing.assert_close(flow.ones(2), flow.ones(2) + 1e-7)
    """
    if (rtol is None) != (atol is None):
        raise ArgumentError(
            f"rtol and atol must both be specified or both be unspecified, got {rtol} and {atol}"
        )
    checks = {"device": check_device, "dtype": check_dtype, "stride": check_stride}
    _Comparison(rtol, atol, equal_nan, checks, msg, allow_subclasses).compare(actual, expected)


def assert_allclose(
    actual: object,
    expected: object,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
    msg: str = "",
) -> None:
    """Compare as assert_close does, but accept other objects than tensors, and compare only values.

    >>> flow.testing.assert_allclose(flow.tensor([1.0, 2.0]), [1.0, 2.0])
    """
    a, b = (v if isinstance(v, Tensor) else ops.tensor(v) for v in (actual, expected))
    if rtol is None and atol is None:
        rtol, atol = (
            max(_TOLERANCES.get(t.dtype.name, (0.0, 0.0))[k] for t in (a, b)) for k in (0, 1)
        )
    assert_close(
        a, b, rtol=rtol, atol=atol, equal_nan=equal_nan, check_device=True, check_dtype=False,
        msg=msg or None,
    )  # fmt: skip


def make_tensor(
    *shape: Any,
    dtype: DType,
    device: DeviceLike | None = None,
    low: float | None = None,
    high: float | None = None,
    requires_grad: bool = False,
    noncontiguous: bool = False,
    exclude_zero: bool = False,
    memory_format: object = None,
) -> Tensor:
    """Return a tensor of numbers drawn evenly from [low, high).  The defaults are [-9, 9) for
    floats, [-9, 10) for signed integers, [0, 10) for others, [0, 2) for bools.

    noncontiguous   its elements do not lie behind each other
    exclude_zero    zeros become the smallest number, or 1
    memory_format   taken: see noncontiguous for another stride

    >>> flow.testing.make_tensor((2, 3), dtype=flow.float32, device="cpu").shape
    flow.Size([2, 3])
    """
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    sizes = tuple(int(s) for s in sizes)
    drawn = (*sizes[:-1], 2 * sizes[-1]) if noncontiguous and sizes else sizes
    if dtype.is_floating_point:
        a, b = (-9.0 if low is None else low), (9.0 if high is None else high)
        wide = dtype if dtype in (float32, float64) else float32
        out = ops.rand(drawn, dtype=wide, device=device) * (b - a) + a
        out = out.to(dtype)
    elif dtype.name.startswith("complex"):
        raise ArgumentError(f"make_tensor does not make {dtype}: make the real and imaginary parts")
    else:
        least = 0 if dtype.name.startswith(("uint", "bool")) else -9
        most = 2 if dtype.name == "bool" else 10
        out = ops.randint(
            least if low is None else int(low), most if high is None else int(high), drawn,
            device=device,
        ).to(dtype)  # fmt: skip
    if exclude_zero:
        tiny = {float16: 6.1e-5}.get(dtype, 1.2e-38 if dtype.is_floating_point else 1)
        out = ops.where(out == 0, ops.full_like(out, tiny), out)
    if noncontiguous and sizes:
        out = out[..., ::2]
    if requires_grad:
        out.requires_grad_(True)
    tensor: Tensor = out
    return tensor


__all__ = own_names(globals())
