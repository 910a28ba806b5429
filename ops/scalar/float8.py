"""The floats of 8 bits as LLVM code: float32 in the place of codes, and codes in the place of it.

`widened_text` is exact; `narrowed_text` rounds once, to nearest even, and gives numbers that are
too large what `flowvm.meta.float8` says.  Both take and give values of LLVM text by `new`, which
names what a line computes, and are free of branches: a loop of them becomes vectors.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from flowvm.meta.float8 import FORMATS, QUIET, Format

New = Callable[[str], str]
STORED = dict.fromkeys(FORMATS, "i8")  # LLVM's types in memory
_SIZE, _INFINITE = 0x7FFFFFFF, 0x7F800000  # of a float32: all but the sign, the bits of infinity


def _constant(number: float) -> str:
    """A float as LLVM writes it: the bits of the double."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def widened_text(new: New, value: str, dtype: str) -> str:
    """The float32 of a code."""
    form = FORMATS[dtype]
    code = new(f"zext i8 {value} to i32")
    if not form.digits:
        bits = new(f"shl i32 {code}, 23")
        bits = new(f"select i1 {new(f'icmp eq i32 {code}, 0')}, i32 {0x400000}, i32 {bits}")
        nan = new(f"icmp eq i32 {code}, {form.nan}")
        return new(f"bitcast i32 {new(f'select i1 {nan}, i32 {QUIET}, i32 {bits}')} to float")
    size = new(f"and i32 {code}, 127")
    number = new(f"bitcast i32 {new(f'shl i32 {size}, {form.shift}')} to float")
    number = new(f"fmul float {number}, {_constant(form.scale)}")
    bits = new(f"bitcast float {number} to i32")
    if form.infinite:
        infinite = new(f"icmp eq i32 {size}, {form.beyond}")
        bits = new(f"select i1 {infinite}, i32 {_INFINITE}, i32 {bits}")
    sign = new(f"shl i32 {new(f'and i32 {code}, 128')}, 24")
    if form.signed_zero:
        nan = new(f"icmp ugt i32 {size}, {form.beyond}")
        bits = new(f"select i1 {nan}, i32 {QUIET}, i32 {bits}")
        return new(f"bitcast i32 {new(f'or i32 {bits}, {sign}')} to float")
    nan = new(f"icmp eq i32 {code}, {form.nan}")
    bits = new(f"or i32 {bits}, {sign}")
    return new(f"bitcast i32 {new(f'select i1 {nan}, i32 {QUIET}, i32 {bits}')} to float")


def narrowed_text(new: New, value: str, dtype: str) -> str:
    """The code of a float32."""
    form = FORMATS[dtype]
    bits = new(f"bitcast float {value} to i32")
    code = _power(new, bits) if not form.digits else _rounded(new, bits, form)
    return new(f"trunc i32 {code} to i8")


def _power(new: New, bits: str) -> str:
    exponent = new(f"and i32 {new(f'lshr i32 {bits}, 23')}, 255")
    normal = new(f"zext i1 {new(f'icmp ne i32 {exponent}, 0')} to i32")
    rest = new(f"add i32 {new(f'and i32 {bits}, 8388607')}, {normal}")
    up = new(f"zext i1 {new(f'icmp ugt i32 {rest}, 4194304')} to i32")
    nan = new(f"icmp eq i32 {exponent}, 255")
    return new(f"select i1 {nan}, i32 255, i32 {new(f'add i32 {exponent}, {up}')}")


def _rounded(new: New, bits: str, form: Format) -> str:
    size = new(f"and i32 {bits}, {_SIZE}")
    number = new(f"bitcast i32 {size} to float")
    step = new(f"bitcast i32 {form.step} to float")
    small = new(f"bitcast float {new(f'fadd float {number}, {step}')} to i32")
    small = new(f"sub i32 {small}, {form.step}")
    last = new(f"and i32 {new(f'lshr i32 {size}, {form.shift}')}, 1")
    large = new(f"add i32 {size}, {new(f'add i32 {last}, {form.even}')}")
    large = new(f"lshr i32 {large}, {form.shift}")
    below = new(f"icmp ult i32 {size}, {form.lowest}")
    code = new(f"select i1 {below}, i32 {small}, i32 {large}")
    above = new(f"icmp ugt i32 {code}, {form.largest}")
    code = new(f"select i1 {above}, i32 {form.beyond}, i32 {code}")
    nan = new(f"icmp {'ugt' if form.signed_zero else 'uge'} i32 {size}, {_INFINITE}")
    code = new(f"select i1 {nan}, i32 {form.nan}, i32 {code}")
    sign = new(f"and i32 {new(f'lshr i32 {bits}, 24')}, 128")
    signed = new(f"or i32 {code}, {sign}")
    if form.signed_zero:
        return signed
    zero, nan = new(f"icmp eq i32 {code}, 0"), new(f"icmp eq i32 {code}, {form.nan}")
    return new(f"select i1 {new(f'or i1 {zero}, {nan}')}, i32 {code}, i32 {signed}")
