"""mpi4py's private names, and the classes of Numba's code: as the installed packages have them."""

import pytest

from flowvm.errors import VMError
from flowvm.private import code_types, mpi4py
from flowvm.private.table import Package, Use


def test_handles_are_of_the_sizes_of_the_library():
    mpi = pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
    assert mpi4py.MPI4PY.size_of(mpi.Request) > 0
    assert isinstance(mpi4py.MPI4PY.handle_of(mpi.COMM_SELF), int)


def test_uses_are_named_with_what_they_do():
    for use in mpi4py.MPI4PY.uses.values():
        assert isinstance(use, Use)
        assert use.where.startswith("mpi4py.MPI:_")
        assert use.needed_for
    assert issubclass(VMError, Exception)
    assert isinstance(mpi4py.MPI4PY, Package)


def test_classes_of_code_are_numbas_and_llvms():
    from llvmlite import ir
    from numba import types

    assert issubclass(code_types.Builder, ir.IRBuilder)
    assert issubclass(types.Integer, code_types.Type)
    signature = types.int64(types.float64)
    assert isinstance(signature, code_types.Signature)
    constant = ir.Constant(ir.IntType(64), 3)
    assert isinstance(constant, code_types.Value)
