"""Convolution row by row, its bodies as Python, against sums over every tap by NumPy."""

import itertools

import numpy as np
import pytest

from flowvm.ops.planes.cpu import conv_plain
from flowvm.ops.planes.cpu.conv_plan import Geometry

CASES = [  # groups, channels, outputs, size, kernel, step, pad, gap
    (1, 2, 3, (1, 4, 5), (1, 2, 3), (1, 1, 1), (0, 0, 0), (1, 1, 1)),
    (1, 1, 2, (1, 5, 7), (1, 3, 3), (1, 2, 3), (0, 1, 2), (1, 1, 1)),
    (2, 2, 1, (1, 4, 6), (1, 2, 2), (1, 1, 2), (0, 1, 1), (1, 2, 2)),
    (1, 1, 1, (3, 4, 3), (2, 2, 2), (2, 1, 1), (1, 0, 1), (1, 1, 1)),
    (3, 1, 1, (1, 1, 9), (1, 1, 4), (1, 1, 4), (0, 0, 0), (1, 1, 2)),
]
SAMPLES = 2


def geometry(case):
    groups, channels, outputs, size, kernel, step, pad, gap = case
    out = [
        (n + 2 * p - g * (k - 1) - 1) // s + 1
        for n, k, s, p, g in zip(size, kernel, step, pad, gap, strict=True)
    ]
    known = dict(zip("dhw", size, strict=True)) | {"od": out[0], "oh": out[1], "ow": out[2]}
    for name, values in (("k", kernel), ("s", step), ("p", pad), ("d", gap)):
        known |= {name + axis: v for axis, v in zip("dhw", values, strict=True)}
    known |= {"groups": groups, "channels": channels, "outputs": outputs, "samples": SAMPLES}
    return Geometry(**{f: known.get(f, 0) for f in Geometry._fields}), tuple(out)


def by_hand(x, w, case, out):
    """The convolution of x (n, groups, channels, ...) by w (groups, outputs, channels, ...)."""
    *_, kernel, step, pad, gap = case
    wide = np.pad(x, [(0, 0)] * 3 + [(p, p) for p in pad])
    y = np.zeros((SAMPLES, *w.shape[:2], *out))
    for tap in itertools.product(*map(range, kernel)):
        cut = tuple(
            slice(t * g, t * g + s * (o - 1) + 1, s)
            for t, g, s, o in zip(tap, gap, step, out, strict=True)
        )
        y += np.einsum(
            "ngcdhw,goc->ngodhw", wide[(slice(None),) * 3 + cut], w[(slice(None),) * 3 + tap]
        )
    return y


def played(body, out, *arrays, units):
    for lo, hi in ((units // 2, units), (0, units // 2)):
        body(out, *[a.reshape(-1) for a in arrays[:-1]], arrays[-1], lo, hi)
    return out


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("biased", [False, True])
def test_bodies_are_a_convolution_and_its_gradients(rng, case, biased):
    s, out = geometry(case)
    x = rng.standard_normal((SAMPLES, s.groups, s.channels, *case[3]))
    w = rng.standard_normal((s.groups, s.outputs, s.channels, *case[4]))
    bias = rng.standard_normal(s.groups * s.outputs if biased else 0)
    expected = by_hand(x, w, case, out)
    if biased:
        expected = expected + bias.reshape(s.groups, s.outputs, 1, 1, 1)
    y = played(conv_plain.plain_body, np.full(expected.size, np.nan), x, w, bias, s,
               units=SAMPLES * s.groups * s.outputs)  # fmt: skip
    np.testing.assert_allclose(y.reshape(expected.shape), expected, rtol=1e-12, atol=1e-12)

    g = rng.standard_normal(expected.shape)
    none = np.zeros(0)
    dx = played(conv_plain.plain_back_body, np.full(x.size, np.nan), g, w, none, s,
                units=SAMPLES * s.groups * s.channels)  # fmt: skip
    dw = played(conv_plain.plain_weight_body, np.full(w.size, np.nan), g, x, s,
                units=s.groups * s.outputs)  # fmt: skip
    # both are linear: <conv(x, w), g> = <x, dx> = <w, dw>, for the x and w of any direction
    for _ in range(3):
        v, u = rng.standard_normal(x.shape), rng.standard_normal(w.shape)
        np.testing.assert_allclose(
            (by_hand(v, w, case, out) * g).sum(), (v.reshape(-1) * dx).sum(), rtol=1e-9
        )
        np.testing.assert_allclose(
            (by_hand(x, u, case, out) * g).sum(), (u.reshape(-1) * dw).sum(), rtol=1e-9
        )


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("pad", [0, 2])
@pytest.mark.parametrize("gap", [1, 3])
def test_taps_are_inside_of_the_input(step, pad, gap):
    for size, tap in itertools.product(range(1, 8), range(4)):
        out = 6
        first, last, start = conv_plain._inside(tap, size, out, step, pad, gap)
        inside = [k for k in range(out) if 0 <= k * step + start < size]
        assert list(range(first, last)) == inside
        assert start == tap * gap - pad
