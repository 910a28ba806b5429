"""Functions of complex numbers whose parts are 0, tiny, huge, infinite or NaN, as C11 has them."""

import itertools
import math

import numpy as np
import pytest

import flowvm as flow

PARTS = [0.0, -0.0, 1.0, -1.0, 2.5, -0.3, math.inf, -math.inf, math.nan, 1e200, -1e-200]
NUMBERS = [complex(a, b) for a, b in itertools.product(PARTS, PARTS)]
NAMES = [
    "abs", "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "log",
    "log10", "log2", "sgn", "sin", "sinh", "sqrt", "tan", "tanh",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_as_pytorch_has_them(name: str) -> None:
    """The signs of an infinity beside a NaN are open in C."""
    torch = pytest.importorskip("torch")
    theirs = getattr(torch, name)(torch.tensor(NUMBERS, dtype=torch.complex128)).numpy()
    mine = getattr(flow, name)(flow.tensor(np.array(NUMBERS))).numpy()
    for number, expected, actual in zip(
        NUMBERS, theirs.astype(complex), mine.astype(complex), strict=True
    ):
        nan = math.isnan(expected.real) or math.isnan(expected.imag)
        for a, b in ((expected.real, actual.real), (expected.imag, actual.imag)):
            if nan and math.isinf(a):
                assert math.isinf(b), (number, expected, actual)
            else:
                np.testing.assert_allclose(
                    b, a, 1e-12, 1e-12, err_msg=f"{number}: {expected} {actual}"
                )


@pytest.mark.parametrize("dtype", [flow.complex64, flow.complex128], ids=str)
def test_where_pytorch_has_none(dtype: flow.DType) -> None:
    """expm1 and log1p have the infinities of exp and log."""
    x = flow.tensor(
        [complex(math.inf, 0), complex(-math.inf, math.inf), complex(-math.inf, 1)], dtype=dtype
    )
    assert flow.expm1(x).tolist() == [math.inf, -1, -1]
    limits = flow.log1p(flow.tensor([complex(math.inf, 1), complex(-0.3, math.inf)], dtype=dtype))
    np.testing.assert_allclose(limits.imag.numpy(), [0, math.pi / 2], 1e-6)
    assert limits.real.tolist() == [math.inf, math.inf]


def test_near_a_pole() -> None:
    """atanh(1 + i e) is log(2 / e) / 2, also where 1 / e ** 2 is too large."""
    for e in (1e-10, 1e-200, 5e-324):
        actual = complex(flow.atanh(flow.tensor(complex(1, e), dtype=flow.complex128)).item())
        assert actual.real == pytest.approx((math.log(2) - math.log(e)) / 2, rel=1e-12)
        assert actual.imag == pytest.approx(math.pi / 4)
