"""NumPy's C functions by address.

`NUMPY` is the table.  NumPy promises the places of functions in its table to compiled extensions;
the name of the capsule with that table is what their headers say, and so no public one.
"""

from __future__ import annotations

import ctypes

from flowvm.private.cpython import capsule_pointer
from flowvm.private.table import Package, Use

TESTED = ("1.26.4", "2.4.6")
PLACES = {"PyArray_NewFromDescr": 94, "PyArray_SetBaseObject": 282}  # the same in every release


def array_function(name: str) -> int:
    """Return the address of a function of NumPy's C API, one of PLACES."""
    table = capsule_pointer(NUMPY.array_api)[1]
    return ctypes.c_ssize_t.from_address(table + 8 * PLACES[name]).value


NUMPY = Package(
    "numpy",
    TESTED,
    (
        Use(
            "array_api",
            "numpy.core.multiarray:_ARRAY_API",
            "holds the addresses of NumPy's C functions",
        ),
    ),
)
