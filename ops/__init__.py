"""Every public op, and what declares one: `op`, `elementwise`, `Launch`, `View`, `samples`.

One module for each family; a module's `__all__` is what it makes public, and `flowvm` re-exports
all of it.  Where a function has its module's name (`softmax`, `einsum`), the function wins here;
the module is still found by `from flowvm.ops.softmax import ...`.
"""

import math as _numbers

from flowvm.ops import activation as _activation
from flowvm.ops import bags as _bags
from flowvm.ops import binary as _binary
from flowvm.ops import choices as _choices
from flowvm.ops import class_loss as _class_loss
from flowvm.ops import compare as _compare
from flowvm.ops import conv as _conv
from flowvm.ops import conversion as conversion  # attaches methods
from flowvm.ops import counting as _counting
from flowvm.ops import create as _create
from flowvm.ops import einsum as _einsum
from flowvm.ops import extremes as _extremes
from flowvm.ops import filled as _filled
from flowvm.ops import gathering as _gathering
from flowvm.ops import generator as _generator
from flowvm.ops import indexing as _indexing
from flowvm.ops import joining as _joining
from flowvm.ops import lapack as _lapack
from flowvm.ops import limits as _limits
from flowvm.ops import linalg as _linalg
from flowvm.ops import loss as _loss
from flowvm.ops import masking as _masking
from flowvm.ops import math as _math
from flowvm.ops import matrices as _matrices
from flowvm.ops import moments as _moments
from flowvm.ops import normalization as _normalization
from flowvm.ops import padding as _padding
from flowvm.ops import patches as _patches
from flowvm.ops import pooling as _pooling
from flowvm.ops import power as _power
from flowvm.ops import products as _products
from flowvm.ops import random as _random
from flowvm.ops import ranges as _ranges
from flowvm.ops import reduce as _reduce
from flowvm.ops import resize as _resize
from flowvm.ops import scan as _scan
from flowvm.ops import scatter_reduce as _scatter_reduce
from flowvm.ops import scattering as _scattering
from flowvm.ops import searching as _searching
from flowvm.ops import shuffles as _shuffles
from flowvm.ops import slicing as _slicing
from flowvm.ops import softmax as _softmax
from flowvm.ops import sorting as _sorting
from flowvm.ops import splitting as _splitting
from flowvm.ops import statistics as _statistics
from flowvm.ops import tables as _tables
from flowvm.ops import ternary as _ternary
from flowvm.ops import trigonometry as _trigonometry
from flowvm.ops import unique as _unique
from flowvm.ops import views as _views
from flowvm.ops import windows as _windows
from flowvm.ops.activation import *  # noqa: F403
from flowvm.ops.bags import *  # noqa: F403
from flowvm.ops.binary import *  # noqa: F403
from flowvm.ops.choices import *  # noqa: F403
from flowvm.ops.class_loss import *  # noqa: F403
from flowvm.ops.compare import *  # noqa: F403
from flowvm.ops.conv import *  # noqa: F403
from flowvm.ops.counting import *  # noqa: F403
from flowvm.ops.create import *  # noqa: F403
from flowvm.ops.einsum import *  # noqa: F403
from flowvm.ops.elementwise import Elementwise, elementwise
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
from flowvm.ops.moments import *  # noqa: F403
from flowvm.ops.normalization import *  # noqa: F403
from flowvm.ops.optimizer import *  # noqa: F403
from flowvm.ops.padding import *  # noqa: F403
from flowvm.ops.patches import *  # noqa: F403
from flowvm.ops.pooling import *  # noqa: F403
from flowvm.ops.power import *  # noqa: F403
from flowvm.ops.products import *  # noqa: F403
from flowvm.ops.random import *  # noqa: F403
from flowvm.ops.ranges import *  # noqa: F403
from flowvm.ops.reduce import *  # noqa: F403
from flowvm.ops.registry import SAMPLES, Launch, Sample, View, op, samples
from flowvm.ops.resize import *  # noqa: F403
from flowvm.ops.scan import *  # noqa: F403
from flowvm.ops.scatter_reduce import *  # noqa: F403
from flowvm.ops.scattering import *  # noqa: F403
from flowvm.ops.searching import *  # noqa: F403
from flowvm.ops.shuffles import *  # noqa: F403
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

inf, nan, pi, e = _numbers.inf, _numbers.nan, _numbers.pi, _numbers.e

__all__ = ["SAMPLES", "Elementwise", "Launch", "Sample", "View", "elementwise", "op", "samples"]
__all__ += _activation.__all__
__all__ += _bags.__all__
__all__ += _binary.__all__
__all__ += _choices.__all__
__all__ += _class_loss.__all__
__all__ += _compare.__all__
__all__ += _conv.__all__
__all__ += _counting.__all__
__all__ += _create.__all__
__all__ += _einsum.__all__
__all__ += _extremes.__all__
__all__ += _filled.__all__
__all__ += _gathering.__all__
__all__ += _generator.__all__
__all__ += _indexing.__all__
__all__ += _joining.__all__
__all__ += _lapack.__all__
__all__ += _limits.__all__
__all__ += _linalg.__all__
__all__ += _loss.__all__
__all__ += _masking.__all__
__all__ += _math.__all__
__all__ += _matrices.__all__
__all__ += _moments.__all__
__all__ += _normalization.__all__
__all__ += _padding.__all__
__all__ += _patches.__all__
__all__ += _pooling.__all__
__all__ += _power.__all__
__all__ += _products.__all__
__all__ += _random.__all__
__all__ += _ranges.__all__
__all__ += _reduce.__all__
__all__ += _resize.__all__
__all__ += _scan.__all__
__all__ += _scatter_reduce.__all__
__all__ += _scattering.__all__
__all__ += _searching.__all__
__all__ += _shuffles.__all__
__all__ += _slicing.__all__
__all__ += _softmax.__all__
__all__ += _sorting.__all__
__all__ += _splitting.__all__
__all__ += _statistics.__all__
__all__ += _tables.__all__
__all__ += _ternary.__all__
__all__ += _trigonometry.__all__
__all__ += _unique.__all__
__all__ += _views.__all__
__all__ += _windows.__all__
__all__.sort()
