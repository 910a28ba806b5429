"""Tests that come from the ops' declarations: each op, each check, by name.

pytest tests/ops/test_generated.py -k softmax          all checks of the ops called so
pytest "tests/ops/test_generated.py::test_gradcheck"   one check of all ops
"""

import op_calls
import pytest
from op_checks import Checks

from flowvm.eager.interpreter import operators

NAMED = op_calls.all_samples()

# public functions without samples, and why
NO_SAMPLES = {
    "allclose": "gives a Python bool",
    "equal": "gives a Python bool",
    **dict.fromkeys(("istft", "stft"), "of complex numbers: tests/ops/fourier"),
    **dict.fromkeys(("imag", "view_as_real"), "takes complex numbers: tests/ops/test_complex.py"),
    **dict.fromkeys(("eig", "eigvals"), "complex, in no order: tests/ops/linalg/test_complex.py"),
    **dict.fromkeys(
        ("sparse_bsc_tensor", "sparse_bsr_tensor", "sparse_compressed_tensor", "sparse_coo_tensor",
         "sparse_csc_tensor", "sparse_csr_tensor"),
        "give sparse tensors: tests/sparse",
    ),
    "from_numpy": "takes what is no tensor",
    "scalar_tensor": "takes what is no tensor",
    "tensor": "takes what is no tensor",
    **dict.fromkeys(
        ("batch_gather", "gather_nd", "in_top_k", "scatter_nd", "slice", "slice_update",
         "tensor_scatter_nd_update"),
        "of other ops, by OneFlow's names: tests/ops/places/test_coordinates.py",
    ),
    "broadcast_like": "expand, by OneFlow's name: tests/ops/places/test_coordinates.py",
    "from_file": "reads a file: tests/ops/shapes/test_create.py",
    "hash_tensor": "sums bits: tests/ops/rows",
    "empty": "its values are any",
    "empty_like": "its values are any",
    "empty_permuted": "its values are any",
    "empty_strided": "its values are any",
    **dict.fromkeys(
        ("broadcast_shapes", "get_device", "is_complex", "is_conj", "is_distributed",
         "is_floating_point", "is_inference", "is_neg", "is_nonzero", "is_same_size", "is_signed",
         "is_storage", "is_tensor", "numel", "set_default_tensor_type", "typename"),
        "asks, and gives no tensor",
    ),
    **dict.fromkeys(
        ("alias_copy", "as_strided_copy", "detach_copy", "diagonal_copy", "expand_copy",
         "permute_copy", "select_copy", "split_copy", "split_with_sizes_copy", "squeeze_copy",
         "t_copy", "transpose_copy", "unbind_copy", "unfold_copy", "unsafe_split",
         "unsafe_split_with_sizes", "unsqueeze_copy", "view_copy"),
        "a view that has samples, copied: tests/ops/shapes/test_scattered.py",
    ),
    **dict.fromkeys(("resolve_conj", "resolve_neg"), "gives back what it got"),
    **dict.fromkeys(("asarray", "frombuffer"), "takes what is no tensor"),
    **dict.fromkeys(
        ("eye", "full", "ones", "tril_indices", "triu_indices",
         "zeros"), "takes no tensor, so there is nothing to stride or differentiate",
    ),
    **dict.fromkeys(
        ("bernoulli", "binomial", "get_rng_state", "initial_seed", "manual_seed", "multinomial",
         "normal", "poisson", "rand", "randint", "randint_like", "randn", "randn_like", "randperm",
         "seed", "set_rng_state"), "random, or about random numbers",
    ),
    **dict.fromkeys(
        ("cholesky_ex", "eigh", "geqrf", "householder_product", "inv_ex", "ldl_factor",
         "ldl_factor_ex", "ldl_solve", "lstsq", "lu", "lu_factor", "lu_factor_ex", "lu_solve",
         "lu_unpack", "qr", "solve_ex", "solve_triangular", "svd", "triangular_solve", "eigvalsh"),
        "factors and their users: tests/ops/linalg multiplies them again",
    ),
    **dict.fromkeys(
        ("fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2",
         "ifftn", "ifftshift", "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn", "rfft",
         "rfft2", "rfftfreq", "rfftn"),
        "Fourier transforms: tests/ops/fourier/test_fft.py",
    ),
    **dict.fromkeys(
        ("gru", "lstm", "lstm_cell", "rnn_relu", "rnn_tanh"),
        "takes a layer's weights: tests/nn/test_rnn.py and test_module_samples.py",
    ),
}  # fmt: skip

# ops whose result depends on how the argument lies in memory
READS_MEMORY = {"as_strided", "as_strided_scatter", "view_as_complex"}


def each_op(*, where=lambda op: True):
    chosen = [(name, op) for name, op in NAMED if where(op)]
    return pytest.mark.parametrize("op", [op for _, op in chosen], ids=[name for name, _ in chosen])


def each_op_and_dtype():
    chosen = [(f"{name}-{d}", op, d) for name, op in NAMED for d in op.floats]
    return pytest.mark.parametrize(
        ("op", "dtype"), [(op, d) for _, op, d in chosen], ids=[name for name, _, _ in chosen]
    )


@each_op_and_dtype()
@pytest.mark.product(4, always=("float32",))
def test_forward(op, dtype, seed):
    Checks(op, seed).forward(dtype)


@each_op(where=lambda op: op.name not in READS_MEMORY)
@pytest.mark.product(4)
def test_strided(op, seed):
    Checks(op, seed).strided()


@each_op()
@pytest.mark.product(4)
def test_sequential(op, seed):
    Checks(op, seed).sequential()


@each_op(where=lambda op: op.grad)
@pytest.mark.product(4)
def test_gradcheck(op, seed):
    Checks(op, seed).gradcheck()


@each_op(where=lambda op: op.grad and op.grad2)
@pytest.mark.product(4)
def test_gradgradcheck(op, seed):
    Checks(op, seed).gradgradcheck()


@each_op(where=lambda op: op.name[-1] != "_")
@pytest.mark.product(4)
def test_torch(op, seed):
    Checks(op, seed).torch()


@each_op(where=lambda op: op.errors)
def test_errors(op, seed):
    Checks(op, seed).errors()


@each_op()
def test_docstring(op):
    Checks(op, 0).docstring()


def test_every_operator_says_its_letters():
    """Every operator of flowvm declares its letters, unless it is made at run time or in a test."""
    for _, op in NAMED:
        Checks(op, 0).letters()
    silent = sorted(
        op.name
        for op in tuple(operators)
        if (op.twin.__module__ or op.kernel.lower.__module__).startswith("flowvm.")
        if op.rules.letters is None and op.origin.recipe is None and op.over is None
    )
    assert not silent, f"no letters=: {', '.join(silent)}"


def test_every_public_function_has_samples():
    named = {op.name for _, op in NAMED}
    known = {id(op.function) for _, op in NAMED}
    missing = [
        f"{module}.{name}"
        for module, name, function in op_calls.public_functions()
        if module != "in_place"  # its functions are methods: tests/ops/pointwise/test_in_place.py
        if name not in NO_SAMPLES and id(function) not in known
        if name not in named and name.rstrip("_") not in named
    ]
    assert not missing, f"give these samples(...), or a reason here: {', '.join(missing)}"


def test_no_exemption_outlives_its_reason():
    public = {name for _, name, _ in op_calls.public_functions()}
    named = {op.name for _, op in NAMED}
    assert not set(NO_SAMPLES) - public, "these are no public functions"
    assert not set(NO_SAMPLES) & named, "these have samples now"
