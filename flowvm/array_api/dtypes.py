"""Data types: their names, promotion and limits."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError
from flowvm.loading.listing import listing
from flowvm.meta.device import Device, as_device, cpu, get_default_device
from flowvm.meta.dtype import (
    DType,
    as_dtype,
    complex64,
    complex128,
    float32,
    float64,
    get_default_dtype,
    int8,
    int16,
    int32,
    int64,
    promote_types,
    result_type_of,
    uint8,
    uint16,
    uint32,
    uint64,
)
from flowvm.meta.dtype import bool_ as bool
from flowvm.meta.dtype import complex_of as _complex_of
from flowvm.meta.dtype import finfo as _finfo
from flowvm.meta.dtype import iinfo as _iinfo

__all__ = [
    "__array_namespace_info__",
    "astype",
    "bool",
    "can_cast",
    "complex64",
    "complex128",
    "finfo",
    "float32",
    "float64",
    "iinfo",
    "int8",
    "int16",
    "int32",
    "int64",
    "isdtype",
    "result_type",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]  # fmt: skip
__dir__ = listing(globals())

KINDS: Final = {
    "bool": (bool,),
    "signed integer": (int8, int16, int32, int64),
    "unsigned integer": (uint8, uint16, uint32, uint64),
    "real floating": (float32, float64),
    "complex floating": (complex64, complex128),
}
KINDS["integral"] = KINDS["signed integer"] + KINDS["unsigned integer"]
KINDS["numeric"] = KINDS["integral"] + KINDS["real floating"] + KINDS["complex floating"]


class finfo_object(NamedTuple):  # noqa: N801 - the standard's name
    """Limits of floats; a complex dtype has the limits of its parts."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class iinfo_object(NamedTuple):  # noqa: N801 - the standard's name
    """Limits of whole numbers."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: DType | Tensor, /) -> finfo_object:
    """The limits of a floating or complex dtype, or of an array's; DTypeError for others."""
    dtype = _of(type)
    limits = _finfo(dtype)
    return finfo_object(
        limits.bits, limits.eps, limits.max, limits.min, limits.smallest_normal, dtype.real
    )


def iinfo(type: DType | Tensor, /) -> iinfo_object:
    """The limits of an integer dtype, or of an array's; DTypeError for others."""
    dtype = _of(type)
    limits = _iinfo(dtype)
    return iinfo_object(limits.bits, limits.max, limits.min, dtype)


def _of(type: DType | Tensor) -> DType:
    return type.dtype if isinstance(type, Tensor) else as_dtype(type)


def astype(
    x: Tensor, dtype: DType, /, *, copy: object = True, device: Device | str | None = None
) -> Tensor:
    """Return `x` in another dtype.  With copy=False, return `x` itself if it has that dtype
    already.

    DTypeError where complex numbers are to become real ones: take `real` or `abs`.
    """
    if x.dtype.is_complex and not dtype.is_complex:
        raise DTypeError(
            f"astype: {x.dtype.name} does not become {dtype.name}; take real(x) or abs(x)"
        )
    where = x.device if device is None else device
    converted: Tensor = x.to(device=where, dtype=dtype, copy=copy)
    return converted


def can_cast(from_: DType | Tensor, to: DType, /) -> Any:
    """Return True if `from_` becomes `to` by the promotion of two arrays."""
    try:
        return promote_types(_of(from_), to) is to
    except DTypeError:
        return False


def isdtype(dtype: DType, kind: DType | str | tuple[DType | str, ...]) -> Any:
    """Return True if `dtype` is `kind`, is of that kind, or of one of several: "bool", "signed
    integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric".
    """
    if isinstance(kind, tuple):
        return True in [isdtype(dtype, one) for one in kind]
    if isinstance(kind, DType):
        return dtype is kind
    if kind not in KINDS:
        raise ArgumentError(f"isdtype: kind is a dtype or one of {', '.join(KINDS)}, got {kind!r}")
    if kind == "real floating" or kind == "numeric":  # float16 and bfloat16 beside the standard's
        return dtype.is_floating_point or dtype in KINDS[kind]
    return dtype in KINDS[kind]


def result_type(*arrays_and_dtypes: Tensor | DType | complex) -> DType:
    """Return the common dtype of arrays, dtypes and Python's numbers.

    A 0-d array counts as any other; a number takes the dtype of the others where it is of no higher
    kind, else the default one of its kind.
    """
    result: DType | None = None
    for value in arrays_and_dtypes:
        if isinstance(value, (Tensor, DType)):
            dtype = _of(value)
            result = dtype if result is None else promote_types(result, dtype)
    if result is None:
        raise ArgumentError("result_type needs an array or a dtype, beside numbers")
    for value in arrays_and_dtypes:
        if not isinstance(value, (Tensor, DType)):
            result = result_type_of((result, False), type(value))
    return result


def paired(name: str, x1: Any, x2: Any) -> tuple[Tensor, Tensor]:
    """Two arrays, or an array and a number, in the dtype that they meet in."""
    if not isinstance(x1, Tensor) and not isinstance(x2, Tensor):
        raise ArgumentTypeError(
            f"{name}: one of x1 and x2 is an array, got {type(x1).__name__} and {type(x2).__name__}"
        )
    device = (x1 if isinstance(x1, Tensor) else x2).device
    dtype = result_type(x1, x2)
    first, second = (
        x.to(dtype) if isinstance(x, Tensor) else ops.full((), x, dtype=dtype, device=device)
        for x in (x1, x2)
    )
    return first, second


class Info:
    """The result of `__array_namespace_info__`: devices, dtypes and capabilities."""

    __module__ = "flowvm.array_api"

    def capabilities(self) -> dict[str, Any]:
        """Return the capabilities: masks index, shapes may depend on data, dimensions are not
        bounded.
        """
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        """Return the device on which arrays are made."""
        return get_default_device()

    def devices(self) -> list[Device]:
        """Return the devices on which arrays can be."""
        return [cpu]

    def default_dtypes(self, *, device: Device | str | None = None) -> dict[str, DType]:
        """Return the default dtypes of arrays."""
        as_device(device)
        real = get_default_dtype()
        return {
            "real floating": real,
            "complex floating": _complex_of(real),
            "integral": int64,
            "indexing": int64,
        }

    def dtypes(
        self, *, device: Device | str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """Return the standard's dtypes of a kind (see `isdtype`), or all."""
        as_device(device)
        every = (*KINDS["bool"], *KINDS["numeric"])
        return {d.name: d for d in every if kind is None or isdtype(d, kind)}


def __array_namespace_info__() -> Info:  # noqa: N807 - the standard's name
    """Return the namespace's information:
    https://data-apis.org/array-api/2024.12/API_specification/inspection.html.
    """
    return Info()
