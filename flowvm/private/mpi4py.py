"""mpi4py's private things: the handles of its objects, as the C functions take them.

`MPI4PY` is the table.  That `mpi4py.MPI` links the library whose functions are called is what it is
for; the two functions below are how its own tests hand objects to C code.
"""

from __future__ import annotations

from flowvm.errors import VMError
from flowvm.private.table import Package, Use

TESTED = ("4.1.2",)

MPI4PY = Package(
    "mpi4py",
    TESTED,
    (
        Use(
            "handle_of", "mpi4py.MPI:_handleof", "gives the handle of a communicator or a datatype"
        ),
        Use("size_of", "mpi4py.MPI:_sizeof", "says how large a request and a status are"),
    ),
    error=VMError,
)
