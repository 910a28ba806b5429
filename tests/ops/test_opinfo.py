"""PyTorch's own samples of its functions: flowvm gives the same values, dtypes and gradients.

Some of an op's samples, in float32 and complex128 with gradients and in int64: of the ops that have
no samples of their own (test_generated.py), and of one in eight of the others; of all of them where
FLOWVM_TEST_OPINFO is set, which takes minutes.  In float64, complex64 and the narrow dtypes, of one
in twenty-four of all ops, `linalg` and `fft` among them.  Of sparse tensors a few samples are here,
and all in `python -m tools.sparse_operators`.  Skipped where PyTorch, or what its tests
need, is not installed.
"""

import os
import zlib

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")
invocations = pytest.importorskip("torch.testing._internal.common_methods_invocations")

import torch  # noqa: E402
from torch_samples import called, run  # noqa: E402

from flowvm.ops import SAMPLES  # noqa: E402
from tools import sparse_operators  # noqa: E402

COUNT = {torch.float32: 3, torch.int64: 2, torch.complex128: 2}
OTHERS = {
    torch.float64: 2, torch.complex64: 2, torch.bfloat16: 1, torch.bool: 1, torch.uint8: 1,
    torch.int32: 1,
}  # fmt: skip
ALL = "FLOWVM_TEST_OPINFO" in os.environ
KNOWN = {op.name for op in SAMPLES}

# names that mean another function here than in the table of samples, and what is compared elsewhere
ELSEWHERE = {
    "zero_": "the table changes a leaf", "new_empty": "any values",
    "new_empty_strided": "any values",
    "slice": "OneFlow's, of several dimensions",
    "max_pool2d_with_indices_backward": "an op that PyTorch has inside",
    "svd_lowrank": "of random signs", "pca_lowrank": "of random signs",
    "as_strided": "the table has views of larger tensors, which the twin is not",
    "nn.functional.layer_norm": "the table normalizes one element, whose gradient is rounding",
    "as_strided_scatter": "PyTorch's gradient has what was replaced, too",
    "logcumsumexp": "PyTorch's gradient loses digits in float32",
    "kthvalue": "of equal elements another may be named", "mode": "of equal elements, likewise",
    "topk": "of equal elements, likewise", "sort": "of equal elements, likewise",
    "argsort": "of equal elements, likewise", "empty": "any values", "empty_like": "any values",
    "empty_strided": "any values", "empty_permuted": "any values",
    "to_sparse": "its results are sparse: tests/sparse",
    "matrix_exp": "exponentials of large matrices cancel in float32",
    "nn.functional.triplet_margin_with_distance_loss": "the table has a function of PyTorch's",
}  # fmt: skip
RANDOM = {
    "bernoulli", "binomial", "cauchy", "exponential", "geometric", "log_normal", "multinomial",
    "normal", "uniform", "rand_like", "randint", "randint_like",
    "randn", "randn_like", "nn.functional.dropout", "nn.functional.dropout2d",
    "nn.functional.dropout3d",
    "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout", "nn.functional.rrelu",
    "nn.functional.gumbel_softmax", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "nn.functional.multi_head_attention_forward",
}  # fmt: skip
CONVERSIONS = {"bfloat16", "bool", "byte", "char", "double", "float", "half", "int", "long",
               "short", "cfloat", "cdouble", "chalf"}  # fmt: skip
# (op, dtype), or some samples of it, that PyTorch has and flowvm has not
NOT_YET = {
    ("nn.functional.local_response_norm", "int64"),
    ("cholesky", "complex128"),  # PyTorch's gradient is not Hermitian
}  # fmt: skip


# where the narrow dtypes and the second of each kind differ, and why
APART = {
    ("cholesky", "complex64"), ("linalg.cholesky", "complex64"),
    ("linalg.cholesky_ex", "complex64"),  # PyTorch's gradient is not Hermitian
    ("scalar_tensor", "uint8"),  # -5 is no uint8
    # of one number PyTorch makes an int64
    ("sum_to_size", "int32"), ("sum_to_size", "bool"), ("sum_to_size", "uint8"),
    ("nn.functional.cosine_embedding_loss", "uint8"),  # nor is a target of -1
    ("msort", "bfloat16"), ("nn.functional.grid_sample", "bfloat16"),  # ties, and few digits
}  # fmt: skip
LESS_PRECISE = {  # PyTorch's: constants in float32, or 1e-7 off
    "nn.functional.hardsigmoid", "special.bessel_j0", "special.bessel_j1", "special.bessel_y0",
    "special.bessel_y1",
}  # fmt: skip
# what is unique up to a phase, and what the table calls through functions of its own
WITH_A_PHASE = {"linalg.eig", "linalg.eigh", "linalg.lstsq", "linalg.pinv",
                "nn.functional.scaled_dot_product_attention", "nn.functional.batch_norm",
                "nextafter", "addbmm"}  # fmt: skip


def candidates():
    """The ops of the table that are compared, and their full names."""
    for op in invocations.op_db:
        skipped = op.name in ELSEWHERE or op.name in RANDOM or op.name in CONVERSIONS
        if skipped or op.name.startswith(("_", "sparse.")) or not callable(called(op)):
            continue
        yield op, f"{op.name}{op.variant_test_name and '-' + op.variant_test_name}"


def each():
    for op, full in candidates():
        if op.name.startswith(("linalg.", "fft.")):
            continue
        last = op.name.rpartition(".")[2]
        if not ALL and last in KNOWN and zlib.crc32(op.name.encode()) % 8:
            continue
        for dtype in COUNT:
            name = str(dtype)[6:]
            if dtype in op.supported_dtypes("cpu") and (op.name, name) not in NOT_YET:
                yield pytest.param(op, dtype, id=f"{full}-{name}")


def others():
    for op, full in candidates():
        if op.name in LESS_PRECISE or op.name in WITH_A_PHASE:
            continue
        for dtype in OTHERS:
            name = str(dtype)[6:]
            chosen = ALL or zlib.crc32(f"{full} {name}".encode()) % 24 == 0
            if chosen and dtype in op.supported_dtypes("cpu") and (op.name, name) not in APART:
                yield pytest.param(op, dtype, id=f"{full}-{name}")


@pytest.mark.parametrize(("op", "dtype"), list(each()))
@pytest.mark.product(4)
def test_it_is_pytorchs(op, dtype):
    run(op, dtype, COUNT[dtype])


@pytest.mark.parametrize(("op", "dtype"), list(others()))
@pytest.mark.product(4)
def test_other_dtypes_are_pytorchs(op, dtype):
    run(op, dtype, OTHERS[dtype])


SPARSE = (("mul", "sparse_coo"), ("sum", "sparse_csr"), ("masked.amax", "sparse_coo"),
          ("sparse.mm", "sparse_csr"), ("nn.functional.relu", "sparse_bsr"))  # fmt: skip


@pytest.mark.parametrize(("name", "layout"), SPARSE)
def test_samples_of_sparse_tensors_are_pytorchs(name, layout):
    (op,) = sparse_operators.ops_of(layout, f"^{name}$")
    message = sparse_operators.outcomes_of(op, layout, torch.float32, 6)
    assert [text for kind, text in message if kind == "fail"] == []
    assert sum(kind == "pass" for kind, _ in message) > 2


def test_there_are_enough_of_them():
    assert len(list(each())) > 100
