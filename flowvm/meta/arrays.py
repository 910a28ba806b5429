"""The types of NumPy's arrays of any shape and dtype, which memory and kernels' operands are seen
as, and of their elements.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Number: TypeAlias = Any  # an element that a kernel reckons with: Python's, NumPy's or Numba's
