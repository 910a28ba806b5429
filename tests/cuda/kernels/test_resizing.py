"""`interpolate` on CUDA against the CPU, for the samples of its declaration."""

import numpy as np
import pytest
from on_device import compiles, launch, like_cpu

import flowvm as flow
from flowvm.ops.declare.registry import SAMPLES
from flowvm.ops.planes import resize
from flowvm.ops.planes.cpu.resize_kernels import LINEAR

(DECLARED,) = (s for s in SAMPLES if s.name == "interpolate")
EXTRA = [  # longer than a block, and shrunk so that many places have one tap
    ((1, 2, 70), (45,), {"mode": "linear"}),
    ((1, 1, 40, 50), ((7, 90),), {"mode": "bicubic"}),
    ((1, 1, 5, 40), ((37, 3),), {"mode": "nearest"}),
    ((1, 1, 5, 4), ((5, 4),), {"mode": "bilinear"}),
]


def calls(rng, monkeypatch, dtype=None):
    """Return the op, the input and the attributes of each sample that is no pooling.

    Inputs are of `dtype`, or of their sample's.
    """
    noted = []
    forward = resize._forward

    def note(x, sizes, n):
        noted.append((sizes, n))
        return forward(x, sizes, n)

    monkeypatch.setattr(resize, "_forward", note)
    samples = [(s.args[0], s.args[1:], s.kwargs) for s in DECLARED.generate(rng)]
    samples += [(rng.standard_normal(shape), args, kwargs) for shape, args, kwargs in EXTRA]
    for x, args, kwargs in samples:
        x = x if dtype is None else x.astype(dtype)
        before = len(noted)
        resize.interpolate(flow.tensor(x), *args, **kwargs)
        if len(noted) > before:
            sizes, n = noted[-1]
            yield resize._resize if sizes.kind >= LINEAR else resize._nearest, x, sizes, n


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_samples_and_their_gradients(rng, monkeypatch, dtype):
    count = 0
    for function, x, sizes, n in calls(rng, monkeypatch):
        if x.dtype.kind == "f":
            x, sizes = x.astype(dtype), sizes._replace(single=int(dtype != "float64"))
        (out,) = like_cpu(function, [x], (sizes, n))
        if x.dtype.kind == "f":
            like_cpu(
                resize._resize_back, [rng.standard_normal(out.shape).astype(dtype)], (sizes, n)
            )
        count += 1
    assert count > 15


def test_nearest_moves_bits(rng, monkeypatch):
    for dtype in ("float16", "int8", "bool"):
        for function, x, sizes, n in calls(rng, monkeypatch, "float32"):
            if function is resize._nearest:
                like_cpu(function, [x.astype(dtype)], (sizes, n), exact=True)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_kernels_compile(ptx_of, rng, monkeypatch, dtype):
    results = {}
    sized = "float64" if dtype == "float64" else "float32"  # steps are rounded to it
    for function, x, sizes, n in calls(rng, monkeypatch, sized):
        results[sizes.kind] = launch(function, [x.astype(dtype)], (sizes, n))
        if sizes.kind >= LINEAR:
            g = np.zeros(tuple(results[sizes.kind].outputs[0].shape), dtype)
            results["back"] = launch(resize._resize_back, [g], (sizes, n))
    compiles(ptx_of, results.values(), dtype)
