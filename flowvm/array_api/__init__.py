"""`flowvm.array_api`: the names and meaning of the Python array API standard, version 2024.12.

The arrays are flowvm's tensors, and every function here is a composition of flowvm's own.  What
differs from those is the standard's: `axis` and `keepdims`, corrections that begin at 0, and dtypes
that alone decide what two arrays become, also where one of them is 0-d.  A slice of any tensor may
go backwards (`x[::-1]`), which makes a copy, and which PyTorch does not have.  Operators and
methods of a tensor keep PyTorch's meaning, and so does `x.size()`, which in the standard is no
method.

Libraries come here by `x.__array_namespace__()`.  The standard, whose argument names, defaults and
special cases are followed: https://data-apis.org/array-api/2024.12.  What it leaves open is as
flowvm's function of that name has it.

Here: one file a chapter of the standard.
Not here: kernels, or anything that a function of flowvm does itself.
"""

import sys
from math import e, inf, nan, pi
from types import ModuleType

from flowvm.array_api import arithmetic as _arithmetic
from flowvm.array_api import creation as _creation
from flowvm.array_api import dtypes as _dtypes
from flowvm.array_api import fft, linalg
from flowvm.array_api import search as _searching
from flowvm.array_api import shapes as _shapes
from flowvm.array_api import statistics as _statistics
from flowvm.array_api.arithmetic import *  # noqa: F403
from flowvm.array_api.creation import *  # noqa: F403
from flowvm.array_api.dtypes import *  # noqa: F403
from flowvm.array_api.linalg import matmul, matrix_transpose, tensordot, vecdot
from flowvm.array_api.search import *  # noqa: F403
from flowvm.array_api.shapes import *  # noqa: F403
from flowvm.array_api.statistics import *  # noqa: F403
from flowvm.errors import ArgumentError
from flowvm.loading.listing import listing

__array_api_version__ = "2024.12"
newaxis = None
VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")  # each extends the ones before

__all__ = [
    "__array_api_version__",
    "e",
    "fft",
    "inf",
    "linalg",
    "matmul",
    "matrix_transpose",
    "nan",
    "newaxis",
    "pi",
    "tensordot",
    "vecdot",
]
__all__ += _arithmetic.__all__
__all__ += _creation.__all__
__all__ += _dtypes.__all__
__all__ += _searching.__all__
__all__ += _shapes.__all__
__all__ += _statistics.__all__
__all__.sort()
__dir__ = listing(globals())


def named(api_version: str | None = None) -> ModuleType:
    """This module, for `Tensor.__array_namespace__`; ArgumentError for another version."""
    if api_version not in (None, *VERSIONS):
        raise ArgumentError(
            f"__array_namespace__: api_version is one of {', '.join(VERSIONS)}, got {api_version!r}"
        )
    return sys.modules[__name__]
