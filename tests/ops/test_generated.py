"""Tests that come from the ops' declarations: each op, each check, by name.

pytest tests/ops/test_generated.py -k softmax          all checks of the ops called so
pytest "tests/ops/test_generated.py::test_gradcheck"   one check of all ops
"""

import op_calls
import pytest
from op_checks import Checks

NAMED = op_calls.all_samples()

# modules of flowvm.ops that other modules are written with: they offer a user nothing
INTERNAL = {
    "accumulate", "assembly", "blas", "blocks", "class_loss_kernels", "class_loss_ops", "codegen",
    "conv_code", "conv_ops", "conv_plain", "conv_plan", "conv_rows", "conv_strips", "conv_tile",
    "conv_walk", "conv_weight", "core", "cuda", "decay", "elementwise", "fold_kernels",
    "fold_rules", "fold_walk", "folds", "gemm", "gemm_epilogue", "gemm_kernels", "gemm_plan",
    "gemm_whole", "index_kernels",
    "intrinsics", "loss_scaling",
    "moment_kernels", "moves", "norm_checks", "norm_columns", "norm_launch",
    "norm_ops", "norm_planes", "norm_programs", "nth", "optimizer", "order", "philox", "plan",
    "poisson", "pool_kernels",
    "pool_ops", "rebase", "recording", "recurrence", "reduced", "registry", "resize_kernels",
    "rows", "scalar",
    "scalar_area", "scalar_bits", "scalar_division", "scalar_erf", "scalar_exp", "scalar_launch",
    "scalar_log",
    "scalar_power", "scalar_special", "scalar_trig",
    "row_bodies", "row_launch", "row_program", "row_stripes", "scan_blocks", "scan_kernels",
    "search_kernels", "shuffle", "softmax_programs", "tile",
    "tile_code", "tile_emit", "tile_packing", "tile_thin", "transfers", "unary", "walk",
}  # fmt: skip

# public functions without samples, and why
NO_SAMPLES = {
    "allclose": "gives a Python bool",
    "equal": "gives a Python bool",
    "from_numpy": "takes what is no tensor",
    "scalar_tensor": "takes what is no tensor",
    "tensor": "takes what is no tensor",
    "empty": "its values are any",
    "empty_like": "its values are any",
    **dict.fromkeys(
        ("eye", "full", "ones", "tril_indices", "triu_indices",
         "zeros"), "takes no tensor, so there is nothing to stride or differentiate",
    ),
    **dict.fromkeys(
        ("bernoulli", "get_rng_state", "initial_seed", "manual_seed", "multinomial", "normal",
         "poisson", "rand", "randint", "randint_like", "randn", "randn_like", "randperm", "seed",
         "set_rng_state"), "random, or about random numbers",
    ),
}  # fmt: skip

# ops whose result depends on how the argument lies in memory
READS_MEMORY = {"as_strided"}


def each_op(*, where=lambda op: True):
    chosen = [(name, op) for name, op in NAMED if where(op)]
    return pytest.mark.parametrize("op", [op for _, op in chosen], ids=[name for name, _ in chosen])


def each_op_and_dtype():
    chosen = [(f"{name}-{d}", op, d) for name, op in NAMED for d in op.floats]
    return pytest.mark.parametrize(
        ("op", "dtype"), [(op, d) for _, op, d in chosen], ids=[name for name, _, _ in chosen]
    )


@each_op_and_dtype()
def test_forward(op, dtype, seed):
    Checks(op, seed).forward(dtype)


@each_op(where=lambda op: op.name not in READS_MEMORY)
def test_strided(op, seed):
    Checks(op, seed).strided()


@each_op()
def test_sequential(op, seed):
    Checks(op, seed).sequential()


@each_op(where=lambda op: op.grad)
def test_gradcheck(op, seed):
    Checks(op, seed).gradcheck()


@each_op(where=lambda op: op.grad and op.grad2)
def test_gradgradcheck(op, seed):
    Checks(op, seed).gradgradcheck()


@each_op(where=lambda op: op.name[-1] != "_")
def test_torch(op, seed):
    Checks(op, seed).torch()


@each_op(where=lambda op: op.errors)
def test_errors(op, seed):
    Checks(op, seed).errors()


@each_op()
def test_docstring(op):
    Checks(op, 0).docstring()


def test_every_public_function_has_samples():
    named = {op.name for _, op in NAMED}
    known = {id(op.function) for _, op in NAMED}
    missing = [
        f"{module}.{name}"
        for module, name, function in op_calls.public_functions()
        if module not in INTERNAL and name not in NO_SAMPLES and id(function) not in known
        if name not in named and name.rstrip("_") not in named
    ]
    assert not missing, f"give these samples(...), or a reason here: {', '.join(missing)}"


def test_no_exemption_outlives_its_reason():
    public = {name for _, name, _ in op_calls.public_functions()}
    named = {op.name for _, op in NAMED}
    assert not set(NO_SAMPLES) - public, "these are no public functions"
    assert not set(NO_SAMPLES) & named, "these have samples now"
