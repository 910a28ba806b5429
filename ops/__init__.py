"""Every public op, and the means to declare one: `op`, `elementwise`, `Launch`, `View`, `samples`.

A room for each family, a file for each part of it; a file's `__all__` is what it makes public, and
`flowvm` re-exports all of it. `declare` says what an op is, `scalar` has functions of numbers.
What few programs need (`places/suppression`, `planes/regions`, `planes/deform_conv`) is imported
when `flowvm` is asked for it.
Not here: layers, graphs, anything that knows of modules.

Where a function has its module's name (`softmax`, `einsum`), the function wins here; the module is
still found by `from flowvm.ops.rows.softmax import ...`.
"""

import math as _numbers

from flowvm.launch import Launch, View
from flowvm.ops.declare.elementwise import Elementwise, elementwise
from flowvm.ops.declare.registry import SAMPLES, Sample, op, samples
from flowvm.ops.fourier import frames as _frames
from flowvm.ops.fourier.frames import *  # noqa: F403
from flowvm.ops.linalg import classic as _classic
from flowvm.ops.linalg import powers as _powers
from flowvm.ops.linalg import systems as _lapack
from flowvm.ops.linalg.classic import *  # noqa: F403
from flowvm.ops.linalg.powers import *  # noqa: F403
from flowvm.ops.linalg.systems import *  # noqa: F403
from flowvm.ops.places import coordinates as _coordinates
from flowvm.ops.places import counting as _counting
from flowvm.ops.places import embedding as _tables
from flowvm.ops.places import embedding_bag as _bags
from flowvm.ops.places import gather as _gathering
from flowvm.ops.places import histograms as _histograms
from flowvm.ops.places import indexing as _indexing
from flowvm.ops.places import masks as _masking
from flowvm.ops.places import put as _put
from flowvm.ops.places import repeats as _repeats
from flowvm.ops.places import scatter as _scattering
from flowvm.ops.places import scatter_reduce as _scatter_reduce
from flowvm.ops.places import search as _searching
from flowvm.ops.places import sort as _sorting
from flowvm.ops.places import unique as _unique
from flowvm.ops.places.coordinates import *  # noqa: F403
from flowvm.ops.places.counting import *  # noqa: F403
from flowvm.ops.places.embedding import *  # noqa: F403
from flowvm.ops.places.embedding_bag import *  # noqa: F403
from flowvm.ops.places.gather import *  # noqa: F403
from flowvm.ops.places.histograms import *  # noqa: F403
from flowvm.ops.places.indexing import *  # noqa: F403
from flowvm.ops.places.masks import *  # noqa: F403
from flowvm.ops.places.put import *  # noqa: F403
from flowvm.ops.places.repeats import *  # noqa: F403
from flowvm.ops.places.scatter import *  # noqa: F403
from flowvm.ops.places.scatter_reduce import *  # noqa: F403
from flowvm.ops.places.search import *  # noqa: F403
from flowvm.ops.places.sort import *  # noqa: F403
from flowvm.ops.places.unique import *  # noqa: F403
from flowvm.ops.planes import conv as _conv
from flowvm.ops.planes import patches as _patches
from flowvm.ops.planes import pixel_shuffle as _shuffles
from flowvm.ops.planes import pooling as _pooling
from flowvm.ops.planes import pooling3d as _pooling3d
from flowvm.ops.planes import resize as _resize
from flowvm.ops.planes import sampling as _sampling
from flowvm.ops.planes.conv import *  # noqa: F403
from flowvm.ops.planes.patches import *  # noqa: F403
from flowvm.ops.planes.pixel_shuffle import *  # noqa: F403
from flowvm.ops.planes.pooling import *  # noqa: F403
from flowvm.ops.planes.pooling3d import *  # noqa: F403
from flowvm.ops.planes.resize import *  # noqa: F403
from flowvm.ops.planes.sampling import *  # noqa: F403
from flowvm.ops.pointwise import activation as _activation
from flowvm.ops.pointwise import arithmetic as _binary
from flowvm.ops.pointwise import clamp as _limits
from flowvm.ops.pointwise import compare as _compare
from flowvm.ops.pointwise import complex_numbers as _complex
from flowvm.ops.pointwise import conversion as conversion  # attaches methods
from flowvm.ops.pointwise import in_place as _in_place
from flowvm.ops.pointwise import math as _math
from flowvm.ops.pointwise import numeric as _numeric
from flowvm.ops.pointwise import polynomials as _polynomials
from flowvm.ops.pointwise import power as _power
from flowvm.ops.pointwise import special as _special
from flowvm.ops.pointwise import ternary as _ternary
from flowvm.ops.pointwise import trigonometry as _trigonometry
from flowvm.ops.pointwise.activation import *  # noqa: F403
from flowvm.ops.pointwise.arithmetic import *  # noqa: F403
from flowvm.ops.pointwise.clamp import *  # noqa: F403
from flowvm.ops.pointwise.compare import *  # noqa: F403
from flowvm.ops.pointwise.complex_numbers import *  # noqa: F403
from flowvm.ops.pointwise.in_place import *  # noqa: F403
from flowvm.ops.pointwise.math import *  # noqa: F403
from flowvm.ops.pointwise.numeric import *  # noqa: F403
from flowvm.ops.pointwise.polynomials import *  # noqa: F403
from flowvm.ops.pointwise.power import *  # noqa: F403
from flowvm.ops.pointwise.special import *  # noqa: F403
from flowvm.ops.pointwise.ternary import *  # noqa: F403
from flowvm.ops.pointwise.trigonometry import *  # noqa: F403
from flowvm.ops.products import added as _added
from flowvm.ops.products import covariance as _covariance
from flowvm.ops.products import distances as _distances
from flowvm.ops.products import einsum as _einsum
from flowvm.ops.products import matmul as _linalg
from flowvm.ops.products import products as _products
from flowvm.ops.products.added import *  # noqa: F403
from flowvm.ops.products.covariance import *  # noqa: F403
from flowvm.ops.products.distances import *  # noqa: F403
from flowvm.ops.products.einsum import *  # noqa: F403
from flowvm.ops.products.matmul import *  # noqa: F403
from flowvm.ops.products.products import *  # noqa: F403
from flowvm.ops.random import choices as _choices
from flowvm.ops.random import generator as _generator
from flowvm.ops.random import random as _random
from flowvm.ops.random.choices import *  # noqa: F403
from flowvm.ops.random.generator import *  # noqa: F403
from flowvm.ops.random.random import *  # noqa: F403
from flowvm.ops.rows import class_loss as _class_loss
from flowvm.ops.rows import ctc_loss as _ctc_loss
from flowvm.ops.rows import extremes as _extremes
from flowvm.ops.rows import integrals as _integrals
from flowvm.ops.rows import loss as _loss
from flowvm.ops.rows import moments as _moments
from flowvm.ops.rows import normalization as _normalization
from flowvm.ops.rows import quantiles as _quantiles
from flowvm.ops.rows import reduce as _reduce
from flowvm.ops.rows import scan as _scan
from flowvm.ops.rows import softmax as _softmax
from flowvm.ops.rows import statistics as _statistics
from flowvm.ops.rows.class_loss import *  # noqa: F403
from flowvm.ops.rows.ctc_loss import *  # noqa: F403
from flowvm.ops.rows.extremes import *  # noqa: F403
from flowvm.ops.rows.integrals import *  # noqa: F403
from flowvm.ops.rows.loss import *  # noqa: F403
from flowvm.ops.rows.moments import *  # noqa: F403
from flowvm.ops.rows.normalization import *  # noqa: F403
from flowvm.ops.rows.quantiles import *  # noqa: F403
from flowvm.ops.rows.reduce import *  # noqa: F403
from flowvm.ops.rows.scan import *  # noqa: F403
from flowvm.ops.rows.softmax import *  # noqa: F403
from flowvm.ops.rows.statistics import *  # noqa: F403
from flowvm.ops.sequences import attention as _attention
from flowvm.ops.sequences import recurrent as _recurrent
from flowvm.ops.sequences.attention import *  # noqa: F403
from flowvm.ops.sequences.recurrent import *  # noqa: F403
from flowvm.ops.shapes import asking as _asking
from flowvm.ops.shapes import blocks as _blocks
from flowvm.ops.shapes import closed_range as _closed_range
from flowvm.ops.shapes import complex_parts as _pairs
from flowvm.ops.shapes import create as _create
from flowvm.ops.shapes import fill as _filled
from flowvm.ops.shapes import inplace_views as inplace_views  # attaches methods
from flowvm.ops.shapes import join as _joining
from flowvm.ops.shapes import matrices as _matrices
from flowvm.ops.shapes import padding as _padding
from flowvm.ops.shapes import ranges as _ranges
from flowvm.ops.shapes import scattered as _scattered
from flowvm.ops.shapes import sharing as sharing  # attaches methods
from flowvm.ops.shapes import slices as _slicing
from flowvm.ops.shapes import split as _splitting
from flowvm.ops.shapes import tapers as _tapers
from flowvm.ops.shapes import typed as _typed
from flowvm.ops.shapes import views as _views
from flowvm.ops.shapes import windows as _windows
from flowvm.ops.shapes.asking import *  # noqa: F403
from flowvm.ops.shapes.blocks import *  # noqa: F403
from flowvm.ops.shapes.closed_range import *  # noqa: F403
from flowvm.ops.shapes.complex_parts import *  # noqa: F403
from flowvm.ops.shapes.create import *  # noqa: F403
from flowvm.ops.shapes.fill import *  # noqa: F403
from flowvm.ops.shapes.join import *  # noqa: F403
from flowvm.ops.shapes.matrices import *  # noqa: F403
from flowvm.ops.shapes.padding import *  # noqa: F403
from flowvm.ops.shapes.ranges import *  # noqa: F403
from flowvm.ops.shapes.scattered import *  # noqa: F403
from flowvm.ops.shapes.slices import *  # noqa: F403
from flowvm.ops.shapes.split import *  # noqa: F403
from flowvm.ops.shapes.tapers import *  # noqa: F403
from flowvm.ops.shapes.typed import *  # noqa: F403
from flowvm.ops.shapes.views import *  # noqa: F403
from flowvm.ops.shapes.windows import *  # noqa: F403
from flowvm.ops.updates.optimizer import *  # noqa: F403

inf, nan, pi, e = _numbers.inf, _numbers.nan, _numbers.pi, _numbers.e

__all__ = ["SAMPLES", "Elementwise", "Launch", "Sample", "View", "elementwise", "op", "samples"]
__all__ += _activation.__all__
__all__ += _added.__all__
__all__ += _asking.__all__
__all__ += _attention.__all__
__all__ += _bags.__all__
__all__ += _binary.__all__
__all__ += _complex.__all__
__all__ += _blocks.__all__
__all__ += _choices.__all__
__all__ += _class_loss.__all__
__all__ += _classic.__all__
__all__ += _closed_range.__all__
__all__ += _compare.__all__
__all__ += _conv.__all__
__all__ += _ctc_loss.__all__
__all__ += _coordinates.__all__
__all__ += _counting.__all__
__all__ += _covariance.__all__
__all__ += _create.__all__
__all__ += _distances.__all__
__all__ += _einsum.__all__
__all__ += _extremes.__all__
__all__ += _filled.__all__
__all__ += _frames.__all__
__all__ += _gathering.__all__
__all__ += _generator.__all__
__all__ += _histograms.__all__
__all__ += _in_place.__all__
__all__ += _indexing.__all__
__all__ += _integrals.__all__
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
__all__ += _numeric.__all__
__all__ += _padding.__all__
__all__ += _pairs.__all__
__all__ += _patches.__all__
__all__ += _polynomials.__all__
__all__ += _pooling.__all__
__all__ += _pooling3d.__all__
__all__ += _power.__all__
__all__ += _powers.__all__
__all__ += _products.__all__
__all__ += _put.__all__
__all__ += _quantiles.__all__
__all__ += _random.__all__
__all__ += _ranges.__all__
__all__ += _recurrent.__all__
__all__ += _reduce.__all__
__all__ += _repeats.__all__
__all__ += _resize.__all__
__all__ += _sampling.__all__
__all__ += _scan.__all__
__all__ += _scatter_reduce.__all__
__all__ += _scattered.__all__
__all__ += _scattering.__all__
__all__ += _searching.__all__
__all__ += _shuffles.__all__
__all__ += _slicing.__all__
__all__ += _softmax.__all__
__all__ += _sorting.__all__
__all__ += _special.__all__
__all__ += _splitting.__all__
__all__ += _statistics.__all__
__all__ += _tables.__all__
__all__ += _tapers.__all__
__all__ += _ternary.__all__
__all__ += _trigonometry.__all__
__all__ += _typed.__all__
__all__ += _unique.__all__
__all__ += _views.__all__
__all__ += _windows.__all__
__all__.sort()
