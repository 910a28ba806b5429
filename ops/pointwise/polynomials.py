"""Orthogonal polynomials by their recurrences (DLMF 18.9): Chebyshev, Hermite, Laguerre, Legendre.

The degree is a number or a tensor that broadcasts; as many steps are computed as the highest
degree, which is at most MOST_STEPS, and none where there are no elements.  No gradient, as in
PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.keywords import spelled
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.meta.dtype import bool_, get_default_dtype, uint8
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.pointwise.compare import where
from flowvm.ops.shapes.create import tensor
from flowvm.ops.shapes.fill import zeros_like

if TYPE_CHECKING:
    from flowvm.meta.arrays import Array


# public: flow, special

# (the polynomial of degree 1, that of degree k + 1 by x, k and those of degrees k and k - 1)
_Rule = tuple[Callable[[Any], Any], Callable[[Any, int, Any, Any], Any]]


def _doubled(x: Any, k: int, p: Any, q: Any) -> object:
    return 2 * x * p - q


_RULES: dict[str, _Rule] = {
    "chebyshev_polynomial_t": (lambda x: x, _doubled),
    "chebyshev_polynomial_u": (lambda x: 2 * x, _doubled),
    "chebyshev_polynomial_v": (lambda x: 2 * x - 1, _doubled),
    "chebyshev_polynomial_w": (lambda x: 2 * x + 1, _doubled),
    "hermite_polynomial_h": (lambda x: 2 * x, lambda x, k, p, q: 2 * x * p - 2 * k * q),
    "hermite_polynomial_he": (lambda x: x, lambda x, k, p, q: x * p - k * q),
    "laguerre_polynomial_l": (
        lambda x: 1 - x,
        lambda x, k, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1),
    ),
    "legendre_polynomial_p": (
        lambda x: x,
        lambda x, k, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1),
    ),
}


MOST_STEPS = 1 << 16  # a second or two


def _highest(name: str, n: Any, degree: Tensor) -> int:
    """Return the highest degree; a nan counts as none, as it has no value.  ArgumentError where so
    many steps would take too long.
    """
    highest = n
    if isinstance(n, Tensor):
        known: Any = degree.masked_fill(degree != degree, -1)
        highest = known.max().item()
    if highest != highest:
        return -1
    if highest > MOST_STEPS:
        raise ArgumentError(
            f"{name}: the degree is at most {MOST_STEPS}, since its recurrence takes as many "
            f"steps, got {highest}"
        )
    return int(highest)


def _polynomial(name: str, value: float, shifted: bool = False) -> Callable[..., Tensor]:
    """Return a polynomial's function; the example's `value` is degree 2 at 2 (shifted: 1.5)."""
    first, following = _RULES[name.removeprefix("shifted_")]

    def call(input: Any, n: Any) -> Tensor:
        if not isinstance(input, Tensor) and not isinstance(n, Tensor):
            raise ArgumentTypeError(f"{name} needs a Tensor among its arguments")
        device = (input if isinstance(input, Tensor) else n).device
        x: Any = input if isinstance(input, Tensor) else tensor(float(input), device=device)
        degree: Any = n if isinstance(n, Tensor) else tensor(n, device=device)
        degree = degree.to(uint8) if degree.dtype is bool_ else degree
        x = x.detach()
        if not x.dtype.is_floating_point:
            wide = degree.dtype if degree.dtype.is_floating_point else get_default_dtype()
            x = x.to(wide)
        if isinstance(input, Tensor) and not isinstance(n, Tensor):
            degree = degree.to(x.dtype)
        z = 2 * x - 1 if shifted else x
        z, degree = z + zeros_like(degree).to(z.dtype), degree.detach().trunc()
        total = zeros_like(z)
        highest = _highest(name, n, degree) if z.numel() else -1
        one, p = None, z * 0 + 1
        alike = not isinstance(n, Tensor)  # all degrees are the last one
        for k in range(highest + 1):
            if not alike or k == highest:
                total = p if alike else where(degree == k, p, total)
            one, p = p, first(z) if k == 0 else following(z, k, p, one)
        return total

    call.__name__ = call.__qualname__ = name
    call = spelled(x="input")(call)
    family = name.split("_")[1 if shifted else 0].capitalize()
    moved = " at 2 x - 1" if shifted else ""
    call.__doc__ = f"""{family}'s polynomial {name[-1].upper()} of degree `n`{moved}; 0 for n < 0.

    >>> flow.special.{name}(flow.tensor({1.5 if shifted else 2.0}), 2).item()
    {value}
    """
    return with_out(call)


chebyshev_polynomial_t = _polynomial("chebyshev_polynomial_t", 7.0)
chebyshev_polynomial_u = _polynomial("chebyshev_polynomial_u", 15.0)
chebyshev_polynomial_v = _polynomial("chebyshev_polynomial_v", 11.0)
chebyshev_polynomial_w = _polynomial("chebyshev_polynomial_w", 19.0)
hermite_polynomial_h = _polynomial("hermite_polynomial_h", 14.0)
hermite_polynomial_he = _polynomial("hermite_polynomial_he", 3.0)
laguerre_polynomial_l = _polynomial("laguerre_polynomial_l", -1.0)
legendre_polynomial_p = _polynomial("legendre_polynomial_p", 5.5)
shifted_chebyshev_polynomial_t = _polynomial("shifted_chebyshev_polynomial_t", 7.0, True)
shifted_chebyshev_polynomial_u = _polynomial("shifted_chebyshev_polynomial_u", 15.0, True)
shifted_chebyshev_polynomial_v = _polynomial("shifted_chebyshev_polynomial_v", 11.0, True)
shifted_chebyshev_polynomial_w = _polynomial("shifted_chebyshev_polynomial_w", 19.0, True)


def _angle(k: Callable[..., object], moved: bool) -> Callable[..., object]:
    """Return a reference by the cosine: Chebyshev's polynomials for |x| < 1 (DLMF 18.5)."""

    def reference(x: Array, n: object) -> object:
        return k(np.arccos(2 * x - 1 if moved else x), n)

    return reference


_ANGLES: dict[str, Callable[[Any, Any], object]] = {
    "t": lambda a, n: np.cos(n * a),
    "u": lambda a, n: np.sin((n + 1) * a) / np.sin(a),
    "v": lambda a, n: np.cos((n + 0.5) * a) / np.cos(a / 2),
    "w": lambda a, n: np.sin((n + 0.5) * a) / np.sin(a / 2),
}


def _scipy(name: str) -> Callable[..., object]:
    def reference(x: Array, n: object) -> object:
        import scipy.special

        return getattr(scipy.special, name)(np.asarray(n, np.int64), x)

    return reference


for _name in [name for name in globals() if "_polynomial_" in name]:
    _letter, _moved = _name[-1], _name.startswith("shifted")
    _other = {"h": "eval_hermite", "e": "eval_hermitenorm", "l": "eval_laguerre",
              "p": "eval_legendre"}  # fmt: skip
    samples(
        globals()[_name],
        lambda rng: [
            Sample((rng.uniform(0.1, 0.9, (2, 3)), 4)),
            Sample((rng.uniform(0.1, 0.9, (2, 3)), np.array([0.0, 1.0, 5.0]))),
        ],
        _scipy(_other[_letter]) if _letter in _other else _angle(_ANGLES[_letter], _moved),
        grad=False,
        floats=("float64", "float32"),
        rtol=2e-4,
        atol=1e-5,
    )
