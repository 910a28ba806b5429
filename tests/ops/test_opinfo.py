"""PyTorch's own samples of its functions: flowvm gives the same values, dtypes and gradients.

Some of an op's samples, in float32 and complex128 with gradients and in int64: of the ops that have
no samples of their own (test_generated.py), and of one in eight of the others; of all of them where
FLOWVM_TEST_OPINFO is set, which takes minutes.  Skipped where PyTorch, or what its tests need, is
not installed.
"""

import os
import zlib

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")
invocations = pytest.importorskip("torch.testing._internal.common_methods_invocations")

import torch  # noqa: E402
from torch_samples import function_of, run  # noqa: E402

from flowvm.ops import SAMPLES  # noqa: E402

COUNT = {torch.float32: 3, torch.int64: 2, torch.complex128: 2}
ALL = "FLOWVM_TEST_OPINFO" in os.environ
KNOWN = {op.name for op in SAMPLES}

# names that mean another function here than in the table of samples, and what is compared elsewhere
ELSEWHERE = {
    "unfold": "the table has the method", "where": "the table has the method",
    "zero_": "the table changes a leaf", "norm": "nuclear norms are not here",
    "einsum": "the table has the operands in front", "polygamma": "the table has n behind",
    "special.polygamma": "the table has n behind",
    "nn.functional.embedding": "the table has the weight in front",
    "nn.functional.embedding_bag": "the table has the weight in front",
    "as_strided": "the table has views of larger tensors, which the twin is not",
    "nn.functional.layer_norm": "the table normalizes one element, whose gradient is rounding",
    "as_strided_scatter": "PyTorch's gradient has what was replaced, too",
    "logcumsumexp": "PyTorch's gradient loses digits in float32",
    "kthvalue": "of equal elements another may be named", "mode": "of equal elements, likewise",
    "topk": "of equal elements, likewise", "sort": "of equal elements, likewise",
    "argsort": "of equal elements, likewise", "empty": "any values", "empty_like": "any values",
    "empty_strided": "any values", "empty_permuted": "any values",
    "matrix_exp": "exponentials of large matrices cancel in float32",
    "nn.functional.triplet_margin_with_distance_loss": "the table has a function of PyTorch's",
    "to_sparse": "there are no sparse tensors",
}  # fmt: skip
RANDOM = {
    "bernoulli", "binomial", "multinomial", "normal", "rand_like", "randint", "randint_like",
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
    ("nn.functional.pad", "float32"), ("nn.functional.pad", "int64"),
    ("nn.functional.local_response_norm", "int64"),
    ("cholesky", "complex128"),  # PyTorch's gradient is not Hermitian
}  # fmt: skip


def each():
    for op in invocations.op_db:
        skipped = op.name in ELSEWHERE or op.name in RANDOM or op.name in CONVERSIONS
        if skipped or op.name.startswith(("linalg.", "fft.", "_", "sparse.")):
            continue
        if not callable(function_of(op.name)):
            continue
        last = op.name.rpartition(".")[2]
        if not ALL and last in KNOWN and zlib.crc32(op.name.encode()) % 8:
            continue
        for dtype in COUNT:
            name = str(dtype)[6:]
            if dtype in op.supported_dtypes("cpu") and (op.name, name) not in NOT_YET:
                full = f"{op.name}{op.variant_test_name and '-' + op.variant_test_name}-{name}"
                yield pytest.param(op, dtype, id=full)


@pytest.mark.parametrize(("op", "dtype"), list(each()))
def test_it_is_pytorchs(op, dtype):
    run(op, dtype, COUNT[dtype])


def test_there_are_enough_of_them():
    assert len(list(each())) > 100
