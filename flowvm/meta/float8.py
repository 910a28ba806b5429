"""The floats of 8 bits: the meaning of their codes, and arrays of them in NumPy.

A code is a sign, an exponent and the digits of a significand, as in wider floats; e8m0fnu is an
exponent alone, a power of two.  Names say the bits of both; fn has no infinities, uz no negative
zero, whose code is its only NaN.  Numbers that lie between two go to the nearer, to the even one in
the middle; those beyond all others become what PyTorch makes of them, `Format.beyond`.

`Format.encoded` and `Format.decoded` are the slow twins of the LLVM code in
`flowvm.ops.scalar.float8`.
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

import numpy as np

from flowvm.meta.arrays import Array

QUIET: Final = 0x7FC00000  # a NaN of float32


class Format(NamedTuple):
    """A float of 8 bits; a float32 lies in `digits` more bits than `shift`."""

    digits: int  # bits of the significand behind the point
    bias: int  # of the exponent
    largest: int  # the code of the largest number
    beyond: int  # the result of rounding larger numbers
    nan: int
    signed_zero: bool = True  # else 0x80 is NaN, and so are infinities
    eps: float = 0.0  # if PyTorch says another than 2**-digits

    @property
    def infinite(self) -> bool:
        """True if the format has infinities."""
        return self.signed_zero and self.beyond == self.largest + 1

    @property
    def shift(self) -> int:
        """The bits of a float32's significand that are lost."""
        return 23 - self.digits

    @property
    def lowest(self) -> int:
        """The bits, as a float32, of the smallest normal number."""
        return (128 - self.bias) << 23

    @property
    def step(self) -> int:
        """The bits of the float32 that is 2**23 times the smallest number of all: sums with it are
        rounded to multiples of that.
        """
        return (128 - self.bias - self.digits + 23) << 23

    @property
    def even(self) -> int:
        """The number to add to a float32's bits for rounding to nearest (less the last bit kept)
        and for the change of the exponent.
        """
        return ((1 << (self.shift - 1)) - 1 - ((127 - self.bias) << 23)) & 0xFFFFFFFF

    @property
    def scale(self) -> float:
        """A code's bits, at the place where float32 has them, times this are the number."""
        return 2.0 ** (127 - self.bias)

    def decoded(self, codes: Array) -> Array:
        """The numbers of codes, as float32."""
        values: Array = _table(self)[codes]
        return values

    def encoded(self, values: Array) -> Array:
        """The codes of float32 numbers."""
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        if not self.digits:
            exponent = bits >> 23 & 0xFF
            up = (bits & 0x7FFFFF) + (exponent > 0) > 0x400000
            return np.where(exponent == 0xFF, 0xFF, exponent + up).astype(np.uint8)
        sign, size = bits >> 24 & 0x80, bits & 0x7FFFFFFF
        step = np.uint32(self.step)
        with np.errstate(all="ignore"):
            small = (size.view(np.float32) + step.view(np.float32)).view(np.uint32) - step
            large = (size + (size >> self.shift & 1) + np.uint32(self.even)) >> self.shift
        code = np.where(size < self.lowest, small, large)
        code = np.where(code > self.largest, self.beyond, code)
        code = np.where(size > 0x7F800000, self.nan, code)
        if self.signed_zero:
            signed: Array = (code | sign).astype(np.uint8)
            return signed
        code = np.where(size >= 0x7F800000, self.nan, code)
        return np.where((code == 0) | (code == self.nan), code, code | sign).astype(np.uint8)


@functools.cache
def _table(form: Format) -> Array:
    codes = np.arange(256, dtype=np.uint32)
    if not form.digits:
        bits = np.where(codes == 0, 0x400000, codes << 23)
        return np.where(codes == 0xFF, QUIET, bits).astype(np.uint32).view(np.float32)
    size = ((codes & 0x7F) << form.shift).astype(np.uint32).view(np.float32)
    numbers = size * np.float32(form.scale)
    if form.infinite:
        numbers[codes & 0x7F == form.beyond] = np.inf
    numbers = np.where(codes & 0x80, -numbers, numbers)
    nan = codes & 0x7F > form.beyond if form.signed_zero else codes == form.nan
    return np.where(nan, np.nan, numbers).astype(np.float32)


FORMATS: Final = {
    "float8_e4m3fn": Format(3, 7, 0x7E, 0x7E, 0x7F),
    "float8_e5m2": Format(2, 15, 0x7B, 0x7C, 0x7F),
    "float8_e4m3fnuz": Format(3, 8, 0x7F, 0x80, 0x80, signed_zero=False),
    "float8_e5m2fnuz": Format(2, 16, 0x7F, 0x80, 0x80, signed_zero=False, eps=0.125),
    "float8_e8m0fnu": Format(0, 127, 0xFE, 0xFE, 0xFF, signed_zero=False),
}
