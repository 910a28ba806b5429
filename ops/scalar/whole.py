"""Functions of integers: the greatest common divisor and the least common multiple.

Loops, and so not vectorized: Euclid's algorithm takes as many steps as its numbers need.
"""

from __future__ import annotations

from flowvm.compiler.native import Overloaded

INLINE_ALWAYS = True  # for flowvm.compiler.native


def _gcd(x: int, y: int) -> int:
    a = -x if x < 0 else x
    b = -y if y < 0 else y
    while b != 0:
        a, b = b, a % b
    return a


def _lcm(x: int, y: int) -> int:
    divisor = _gcd(x, y)
    product = 0 if divisor == 0 else x // divisor * y
    return -product if product < 0 else product


def _gcd_uint(x: int, y: int) -> int:
    a, b = x, y
    while b != 0:
        a, b = b, a % b
    return a


def _lcm_uint(x: int, y: int) -> int:
    divisor = _gcd_uint(x, y)
    return x if divisor == 0 else x // divisor * y


gcd = Overloaded("gcd", {"int64": _gcd, "uint64": _gcd_uint})
lcm = Overloaded("lcm", {"int64": _lcm, "uint64": _lcm_uint})
