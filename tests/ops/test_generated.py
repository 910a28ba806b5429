"""Tests that come from the ops' declarations: each op, each check, by name.

    pytest tests/ops/test_generated.py -k softmax          all checks of the ops called so
    pytest "tests/ops/test_generated.py::test_gradcheck"   one check of all ops
"""

import op_calls
import pytest
from op_checks import Checks

NAMED = op_calls.all_samples()

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
