"""Every public op of flowvm, and what declares one: `op`, `elementwise`, `Launch`, `View`, `samples`.

One module for each family; a module's `__all__` is what it makes public, and `flowvm` re-exports all of
it.  Where a function has its module's name (`softmax`, `random`, ...), the function wins here; the
module is still found by `from flowvm.ops.softmax import ...`.
"""

import math as _math
import sys as _sys

from flowvm.ops import conversion as conversion  # attaches methods
from flowvm.ops.activation import *  # noqa: F403
from flowvm.ops.binary import *  # noqa: F403
from flowvm.ops.choices import *  # noqa: F403
from flowvm.ops.class_loss import *  # noqa: F403
from flowvm.ops.compare import *  # noqa: F403
from flowvm.ops.conv import *  # noqa: F403
from flowvm.ops.counting import *  # noqa: F403
from flowvm.ops.create import *  # noqa: F403
from flowvm.ops.einsum import *  # noqa: F403
from flowvm.ops.extremes import *  # noqa: F403
from flowvm.ops.filled import *  # noqa: F403
from flowvm.ops.gathering import *  # noqa: F403
from flowvm.ops.generator import *  # noqa: F403
from flowvm.ops.indexing import *  # noqa: F403
from flowvm.ops.joining import *  # noqa: F403
from flowvm.ops.lapack import *  # noqa: F403
from flowvm.ops.limits import *  # noqa: F403
from flowvm.ops.linalg import *  # noqa: F403
from flowvm.ops.loss import *  # noqa: F403
from flowvm.ops.masking import *  # noqa: F403
from flowvm.ops.math import *  # noqa: F403
from flowvm.ops.matrices import *  # noqa: F403
from flowvm.ops.normalization import *  # noqa: F403
from flowvm.ops.padding import *  # noqa: F403
from flowvm.ops.pooling import *  # noqa: F403
from flowvm.ops.power import *  # noqa: F403
from flowvm.ops.products import *  # noqa: F403
from flowvm.ops.random import *  # noqa: F403
from flowvm.ops.ranges import *  # noqa: F403
from flowvm.ops.reduce import *  # noqa: F403
from flowvm.ops.scan import *  # noqa: F403
from flowvm.ops.scatter_reduce import *  # noqa: F403
from flowvm.ops.scattering import *  # noqa: F403
from flowvm.ops.searching import *  # noqa: F403
from flowvm.ops.slicing import *  # noqa: F403
from flowvm.ops.softmax import *  # noqa: F403
from flowvm.ops.sorting import *  # noqa: F403
from flowvm.ops.splitting import *  # noqa: F403
from flowvm.ops.statistics import *  # noqa: F403
from flowvm.ops.tables import *  # noqa: F403
from flowvm.ops.ternary import *  # noqa: F403
from flowvm.ops.trigonometry import *  # noqa: F403
from flowvm.ops.unique import *  # noqa: F403
from flowvm.ops.views import *  # noqa: F403
from flowvm.ops.windows import *  # noqa: F403
from flowvm.ops.elementwise import Elementwise, elementwise
from flowvm.ops.optimizer import *  # noqa: F403
from flowvm.ops.registry import SAMPLES, Launch, Sample, View, op, samples

inf, nan, pi, e = _math.inf, _math.nan, _math.pi, _math.e

_FAMILIES = """
activation binary choices class_loss compare conv counting create einsum extremes filled
gathering generator indexing joining lapack limits linalg loss masking math matrices
normalization padding pooling power products random ranges reduce scan scatter_reduce scattering
searching slicing softmax sorting splitting statistics tables ternary trigonometry unique views
windows
""".split()

__all__ = sorted(
    {name for family in _FAMILIES for name in _sys.modules[f"flowvm.ops.{family}"].__all__}
    | {"SAMPLES", "Elementwise", "Launch", "Sample", "View", "elementwise", "op", "samples"}
)
