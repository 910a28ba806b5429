"""Element types and PyTorch's rules for mixing them.

A `DType` is one of twenty singletons, so `is` compares, a dict keyed by it hashes an identity, and
pickle and deepcopy give back the same object.  The promotion rule is a function on plain (dtype, is
it 0-d) facts: it knows no tensors, so the tables of every op can be built, and tested, without one.

float16 and bfloat16 are *reduced*: kernels read them as float32, compute in that, and round once,
to nearest even, where they store.  NumPy has no bfloat16, so arrays hold its bits, as uint16:
`stored` and `loaded` go between such arrays and numbers, for every dtype alike.

The floats of 8 bits (`flowvm.meta.float8`) are reduced, too, and *minifloats*: dtypes to store
numbers in, which are moved and converted, and computed in by next to no op.

A complex number is two floats of `real`, one behind the other.  Only the CPU has them.

Python's names are kept out of this module's way by an underscore: `flowvm/__init__.py` exports
`bool_` as `flow.bool`, `int_` as `flow.int` and `float_` as `flow.float`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Final, NoReturn, SupportsIndex, TypeAlias

import numpy as np

from flowvm.errors import ArgumentTypeError, DTypeError
from flowvm.meta.float8 import FORMATS

# public: flow

BOOL, INT, FLOAT, COMPLEX = 0, 1, 2, 3  # DType.category, in promotion order


# not public
class DType:
    """An element type.  `flow.float32` and its kin are the only instances there are.

    >>> flow.float32.is_floating_point, flow.int8.itemsize
    (True, 1)
    """

    __slots__ = (
        "category",
        "compute",
        "digits",
        "inexact",
        "is_bool",
        "is_complex",
        "is_floating_point",
        "is_signed",
        "itemsize",
        "minifloat",
        "name",
        "real",
        "reduced",
        "storage",
    )

    name: str
    itemsize: int
    category: int
    is_bool: bool
    is_floating_point: bool
    is_complex: bool
    inexact: bool  # a float or complex: it has gradients
    is_signed: bool
    digits: int  # of a float's significand, in bits, with the one that is not stored; else 0
    reduced: bool  # a float of 16 bits, or of 8
    minifloat: bool  # a float of 8 bits
    real: "DType"  # of a complex number's parts; else itself
    compute: "DType"  # the dtype of kernels: float32 for reduced ones, else itself
    storage: "np.dtype[Any]"  # NumPy's dtype of the elements in memory

    def __init__(
        self,
        name: str,
        scalar: type[np.generic],
        compute: "DType | None" = None,
        real: "DType | None" = None,
    ) -> None:
        dtype = np.dtype(scalar)
        bits = dtype.kind == "u" and compute is not None  # bits of a float unknown to NumPy
        form = FORMATS.get(name)
        kinds = {"b": BOOL, "i": INT, "u": INT, "f": FLOAT, "c": COMPLEX}
        category = FLOAT if bits else kinds[dtype.kind]
        digits = 8 if bits else int(np.finfo(dtype).nmant) + 1 if category == FLOAT else 0
        digits = form.digits + 1 if form else digits
        values: dict[str, object] = {
            "name": name,
            "itemsize": dtype.itemsize,
            "category": category,
            "is_bool": category == BOOL,
            "is_floating_point": category == FLOAT,
            "is_complex": category == COMPLEX,
            "inexact": category >= FLOAT,
            "is_signed": name != "float8_e8m0fnu" and (bits or dtype.kind in "ifc"),
            "digits": digits,
            "reduced": compute is not None,
            "minifloat": form is not None,
            "real": real or self,
            "compute": compute or self,
            "storage": dtype,
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{self!r} cannot be changed")

    def __repr__(self) -> str:
        return f"flow.{self.name}"

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        return dtype_named, (self.name,)

    @property
    def numpy(self) -> "np.dtype[Any]":
        """NumPy's dtype of the same numbers; ArgumentTypeError if it has none."""
        if self is bfloat16 or self.minifloat:
            raise ArgumentTypeError(f"NumPy has no {self.name}; convert with .float() first")
        return self.storage

    def to_real(self) -> "DType":
        """Return the dtype of a complex number's parts; a dtype that is not complex returns
        itself.
        """
        return self.real

    def to_complex(self) -> "DType":
        """The complex dtype with parts of this one: complex64 for floats of 16 bits, too.

        DTypeError for integers and bools.
        """
        if not self.inexact:
            raise DTypeError(f"{self!r} has no complex dtype; only floats are parts of one")
        return complex_of(self)

    def stored(self, values: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        """Return a fresh C-contiguous array of `storage` with these numbers."""
        if self is bfloat16:
            return _rounded(np.asarray(values).astype(np.float32))
        if self.minifloat:
            return FORMATS[self.name].encoded(np.asarray(values).astype(np.float32))
        return np.array(values, self.storage, order="C", copy=True)

    def loaded(self, stored: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        """The numbers in an array of `storage`: itself, or float32 where that has bits."""
        if self is bfloat16:
            return (stored.astype(np.uint32) << 16).view(np.float32)
        if self.minifloat:
            return FORMATS[self.name].decoded(stored)
        return stored


def _rounded(single: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """The bits of the nearest bfloat16 of each float32: even of two, NaN quiet."""
    bits = single.view(np.uint32)
    high = bits >> 16
    with np.errstate(over="ignore"):  # of NaN alone
        nearest = (bits + (0x7FFF + (high & 1))) >> 16
    return np.where(np.isnan(single), high | 0x40, nearest).astype(np.uint16, order="C")


bool_ = DType("bool", np.bool_)
uint8 = DType("uint8", np.uint8)
int8 = DType("int8", np.int8)
int16 = short = DType("int16", np.int16)
int32 = int_ = DType("int32", np.int32)
int64 = long = DType("int64", np.int64)
uint16 = DType("uint16", np.uint16)
uint32 = DType("uint32", np.uint32)
uint64 = DType("uint64", np.uint64)
float32 = float_ = DType("float32", np.float32)
float64 = double = DType("float64", np.float64)
float16 = half = DType("float16", np.float16, float32)
bfloat16 = DType("bfloat16", np.uint16, float32)
float8_e4m3fn = DType("float8_e4m3fn", np.uint8, float32)
float8_e5m2 = DType("float8_e5m2", np.uint8, float32)
float8_e4m3fnuz = DType("float8_e4m3fnuz", np.uint8, float32)
float8_e5m2fnuz = DType("float8_e5m2fnuz", np.uint8, float32)
float8_e8m0fnu = DType("float8_e8m0fnu", np.uint8, float32)
complex64 = cfloat = DType("complex64", np.complex64, real=float32)
complex128 = cdouble = DType("complex128", np.complex128, real=float64)

REAL_DTYPES: Final = (
    bool_, uint8, int8, int16, int32, int64, uint16, uint32, uint64,
    float16, bfloat16, float32, float64,
)  # fmt: skip
ALL_DTYPES: Final = (*REAL_DTYPES, complex64, complex128)  # the dtypes in which ops compute
MINIFLOATS: Final = (
    float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz, float8_e8m0fnu,
)  # fmt: skip

_BY_NAME = {dtype.name: dtype for dtype in (*ALL_DTYPES, *MINIFLOATS)}
_BY_NUMPY = {dtype.storage: dtype for dtype in ALL_DTYPES if dtype is not bfloat16}
_BY_PYTHON: dict[type, DType] = {
    bool: bool_, int: int64, float: float64, complex: complex128
}  # fmt: skip


# not public
def dtype_named(name: str) -> DType:
    """The dtype called `name`, such as "float32"."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise ArgumentTypeError(
            f"no dtype is called {name!r}; there are {', '.join(_BY_NAME)}"
        ) from None


# not public
def from_numpy(dtype: "np.dtype[Any] | type[np.generic]") -> DType:
    """The dtype whose elements are stored like NumPy's `dtype`, in this machine's byte order."""
    entry = _BY_NUMPY.get(np.dtype(dtype))
    if entry is None:
        raise ArgumentTypeError(
            f"flowvm has no dtype for NumPy's {np.dtype(dtype)}; convert with .astype() to one of "
            f"{', '.join(known.name for known in _BY_NUMPY.values())}"
        )
    return entry


DTypeLike: TypeAlias = "DType | type | np.dtype[Any]"  # what names a dtype in a call


# not public
def as_dtype(value: object) -> DType:
    """`value` as a DType: itself, or NumPy's or Python's word for it (int and float: 64 bits)."""
    if isinstance(value, DType):
        return value
    if isinstance(value, type) and value in _BY_PYTHON:
        return _BY_PYTHON[value]
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return from_numpy(value)
    raise ArgumentTypeError(f"expected a dtype such as flow.float32, got {value!r}")


_SIGNED = {1: int8, 2: int16, 4: int32, 8: int64}


def promote_types(type1: DType, type2: DType) -> DType:
    """The dtype of both: of the higher category, within one the wider.

    But a signed integer with an unsigned one is the smallest signed one that holds both, float16
    with bfloat16 float32, and a float64 makes complex numbers complex128.  PyTorch has no rule for
    uint16, uint32 and uint64 with other integers: here it is the array API standard's, which has
    none for uint64 with a signed one: DTypeError.

    >>> flow.promote_types(flow.int64, flow.float16), flow.promote_types(flow.uint8, flow.int8)
    (flow.float16, flow.int16)
    """
    if not isinstance(type1, DType) or not isinstance(type2, DType):
        raise ArgumentTypeError(f"expected two dtypes, got {type1!r} and {type2!r}")
    return _promoted(type1, type2)


@functools.cache
def _promoted(a: DType, b: DType) -> DType:
    if (a.minifloat or b.minifloat) and a is not b:
        raise DTypeError(
            f"{a.name} and {b.name} have no common dtype: floats of 8 bits are to store numbers; "
            f"convert with .to() first"
        )
    if float64 in (a, b) and (a.is_complex or b.is_complex):
        return complex128
    if a.category != b.category:
        return a if a.category > b.category else b
    if a.category == INT and a.is_signed != b.is_signed:
        signed, unsigned = (a, b) if a.is_signed else (b, a)
        width = max(signed.itemsize, 2 * unsigned.itemsize)
        if width > 8:
            raise DTypeError(
                f"{a.name} and {b.name} have no common dtype: no integer holds the numbers of "
                f"both; convert one of them with .to()"
            )
        return _SIGNED[width]
    if {a, b} == {float16, bfloat16}:
        return float32
    return a if a.itemsize >= b.itemsize else b


# not public
def result_type_of(*operands: tuple[DType, bool] | type) -> DType:
    """Return the dtype in which an op computes.  An operand is a pair (dtype, is it 0-d), or the
    Python type of a number.

    Tensors with dimensions go before 0-d tensors, and these before Python numbers: a later group
    has a say only where it raises the category (bool, int, float, complex).  Python floats count as
    the default dtype, complex numbers as the complex one of that, ints as int64; a float that
    becomes complex keeps its width (16 bits: complex64, there is no narrower one).
    """
    groups: list[DType | None] = [None, None, None]  # with dimensions, 0-d, Python number
    for operand in operands:
        if isinstance(operand, tuple):
            dtype, group = operand[0], int(operand[1])
        else:
            dtype, group = _number_dtype(operand), 2
        before = groups[group]
        groups[group] = dtype if before is None else _promoted(before, dtype)
    result: DType | None = None
    for lower in groups:
        if result is None or (lower is not None and lower.category > result.category):
            floats = result is not None and result.is_floating_point
            result = complex_of(result) if result is not None and floats else lower
    if result is None:
        raise ArgumentTypeError("the result type of no operands is not defined")
    return result


# not public
def complex_of(dtype: DType) -> DType:
    """Return the complex dtype whose parts hold these floats; complex64 for floats of 16 bits."""
    return dtype if dtype.is_complex else complex128 if dtype is float64 else complex64


def _number_dtype(kind: type) -> DType:
    if issubclass(kind, (bool, np.bool_)):
        return bool_
    if issubclass(kind, (int, np.integer)):
        return int64
    if issubclass(kind, (float, np.floating)):
        return _default
    if issubclass(kind, (complex, np.complexfloating)):
        return complex_of(_default)
    raise ArgumentTypeError(
        f"expected a tensor or a bool, int, float or complex, got {kind.__name__}"
    )


_OPERANDS: Final = frozenset({
    "tensor", "other", "scalar", "tensor1", "tensor2", "scalar1", "scalar2",
})  # fmt: skip


def result_type(*operands: object, **named: object) -> DType:
    """Return the dtype of arithmetic on these tensors and Python numbers, which may have PyTorch's
    names: tensor, other, scalar, tensor1 and so on.

    >>> flow.result_type(flow.tensor([1, 2], dtype=flow.uint8), 1.5)
    flow.float32
    """
    if not _OPERANDS.issuperset(named):
        raise ArgumentTypeError(
            f"result_type: the names of operands are {', '.join(sorted(_OPERANDS))}, got "
            f"{', '.join(named)}"
        )
    return result_type_of(*[_facts(operand) for operand in (*operands, *named.values())])


def _facts(operand: Any) -> tuple[DType, bool] | type:
    dtype = getattr(operand, "dtype", None)
    return (dtype, operand.ndim == 0) if isinstance(dtype, DType) else operand.__class__


def can_cast(from_: DType, to: DType) -> bool:
    """Return True if in-place ops and `out=` may store `from_` in `to`: the category must not fall.

    >>> flow.can_cast(flow.int64, flow.float32), flow.can_cast(flow.float32, flow.int64)
    (True, False)
    """
    return from_.category <= to.category


_default: DType = float32


def get_default_dtype() -> DType:
    """The dtype of tensors made from Python floats, float32 unless set.

    >>> flow.get_default_dtype()
    flow.float32
    """
    return _default


on_default_dtype: list[Callable[[], None]] = []  # called when it is another


def set_default_dtype(d: DType) -> None:
    """Set the dtype of tensors made from Python floats.  Only floating-point dtypes will do.

    >>> flow.set_default_dtype(flow.float64)
    >>> flow.tensor(1.0).dtype
    flow.float64
    >>> flow.set_default_dtype(flow.float32)
    """
    global _default
    dtype = as_dtype(d)
    if not dtype.is_floating_point or dtype.minifloat:
        raise ArgumentTypeError(
            f"the default dtype must be a floating-point one that ops compute in, got {dtype!r}"
        )
    _default = dtype
    for forget in on_default_dtype:
        forget()


class finfo:  # noqa: N801 - PyTorch's name
    """Machine limits of a floating-point dtype, the default one if none is given.

    >>> flow.finfo(flow.float32).eps, flow.finfo(flow.float16).max
    (1.1920928955078125e-07, 65504.0)
    """

    def __init__(self, type: DType | None = None) -> None:
        dtype = get_default_dtype() if type is None else as_dtype(type)
        dtype = dtype.real
        if not dtype.is_floating_point:
            raise DTypeError(f"finfo needs a floating-point dtype, got {dtype!r}; use iinfo")
        digits = dtype.digits
        self.dtype = dtype.name
        self.bits = 8 * dtype.itemsize
        if dtype.minifloat:
            form = FORMATS[dtype.name]
            numbers = dtype.loaded(np.array([form.largest, 0, 1 << form.digits]))
            self.eps = form.eps or 2.0**-form.digits
            self.max = float(numbers[0])
            self.min = -self.max if dtype.is_signed else float(numbers[1])
            self.resolution = 1.0
            self.smallest_normal = self.tiny = float(numbers[2 if form.digits else 1])
            return
        limits = np.finfo(np.float32 if dtype is bfloat16 else dtype.numpy)  # of one exponent
        self.eps = 2.0 ** (1 - digits)
        self.max = (2.0 - self.eps) * 2.0 ** (int(limits.maxexp) - 1)
        self.min = -self.max
        self.resolution = 10.0 ** -int((digits - 1) * math.log10(2))
        self.smallest_normal = self.tiny = float(limits.smallest_normal)

    def __repr__(self) -> str:
        return (
            f"finfo(resolution={self.resolution:g}, min={self.min:g}, max={self.max:g}, "
            f"eps={self.eps:g}, smallest_normal={self.smallest_normal:g}, tiny={self.tiny:g}, "
            f"dtype={self.dtype})"
        )


class iinfo:  # noqa: N801 - PyTorch's name
    """Machine limits of an integer dtype.

    >>> flow.iinfo(flow.int8).min, flow.iinfo(flow.int8).max
    (-128, 127)
    """

    def __init__(self, type: DType) -> None:
        dtype = as_dtype(type)
        if dtype.category != INT:
            raise DTypeError(f"iinfo needs an integer dtype, got {dtype!r}")
        limits = np.iinfo(dtype.numpy)
        self.dtype = dtype.name
        self.bits = int(limits.bits)
        self.max = int(limits.max)
        self.min = int(limits.min)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"
