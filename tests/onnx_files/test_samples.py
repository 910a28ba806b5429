"""Every public op with samples: onnxruntime gives flowvm's result, or no translation is known."""

from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.commands.warmup import as_tensors
from flowvm.errors import ArgumentError, CaptureError
from flowvm.ops.declare.registry import SAMPLES

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from flowvm.eager.interpreter import operators
from flowvm.onnx.translations import ABSENT, TRANSLATION
from tests.onnx_files.helpers import onnx, run, tensors_of

# operators that ONNX has not, or whose nodes nobody has written
WITHOUT = frozenset(
    (
        "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "bitwise_left_shift",
        "bitwise_right_shift", "cholesky", "ctc_loss", "deform_columns", "digamma", "erfcx",
        "erfinv", "frexp", "gcd", "histc", "householder_product", "i0", "i0e", "i1", "i1e",
        "igamma", "igammac", "inverse", "lcm", "lgamma", "mode", "modified_bessel_k0",
        "modified_bessel_k1", "ndtri", "nextafter", "polygamma",
        "scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "solve", "solve_ex",
        "sparse_grouped", "sparse_product", "sparse_row_numbers", "sparse_samples", "svd",
        "svdvals", "triangular_solve", "zeta",
    )
)  # fmt: skip
MOST = 4  # samples of an op


@pytest.mark.parametrize("known", SAMPLES, ids=lambda known: known.name)
@pytest.mark.product(4)
def test_a_sample(known: Any) -> None:
    for sample in list(known.generate(np.random.default_rng(0)))[:MOST]:
        args = as_tensors(sample.args, False)
        kwargs = {k: as_tensors(v, False) for k, v in sample.kwargs.items()}
        inputs = [t.numpy().copy() for t in [*tensors_of(args), *tensors_of(kwargs)]]
        refused = ""
        try:
            proto = flow.onnx.export(known.function, tuple(args), kwargs=kwargs)
        except CaptureError:
            return  # the shape of its result, or its code, hangs on values
        except ArgumentError as error:
            refused = str(error)
        if refused:
            assert refused.startswith("onnx.export: ")
            if "complex" in refused:
                return
            name = refused.split()[1].rstrip(":")
            assert name in WITHOUT, refused
            reasons = {ABSENT.of(o) for o in tuple(operators) if o.name == name}
            assert all(reason is None or reason in refused for reason in reasons)
            return
        onnx.checker.check_model(proto, full_check=True)
        names = [i.name for i in proto.graph.input]
        outputs = run(proto, dict(zip(names, inputs, strict=True)))
        with flow.no_grad():
            expected = [t.numpy() for t in tensors_of(known.function(*args, **kwargs))]
        for ours, theirs in zip(expected, outputs, strict=True):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-4)


def test_what_has_a_translation_is_not_among_those_without() -> None:
    text = {o.name for o in tuple(operators) if TRANSLATION.of(o)}
    assert len(text) > 70
    assert WITHOUT.isdisjoint(text)
    assert text.isdisjoint({o.name for o in tuple(operators) if ABSENT.of(o)})
