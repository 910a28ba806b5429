"""Every public op, and the means to declare one: `op`, `elementwise`, `Launch`, `View`, `samples`.

A room for each family, a file for each part of it; what is public says so where it is defined, and
`flowvm` re-exports all of it. `declare` says what an op is, `scalar` has functions of numbers.
What few programs need (`places/suppression`, `planes/regions`, `planes/deform_conv`) is imported
when `flowvm` is asked for it.
Not here: layers, graphs, anything that knows of modules.

Where a function has its module's name (`softmax`, `einsum`), the function wins here; the module is
still found by `from flowvm.ops.rows.softmax import ...`.
"""

import math as _numbers

from flowvm.launch import Launch as Launch
from flowvm.launch import View as View
from flowvm.ops.declare.elementwise import Elementwise as Elementwise
from flowvm.ops.declare.elementwise import elementwise as elementwise
from flowvm.ops.declare.registry import SAMPLES as SAMPLES
from flowvm.ops.declare.registry import Sample as Sample
from flowvm.ops.declare.registry import op as op
from flowvm.ops.declare.registry import samples as samples
from flowvm.ops.pointwise import conversion as _conversion  # noqa: F401 - attaches methods
from flowvm.ops.shapes import inplace_views as _inplace_views  # noqa: F401 - attaches methods
from flowvm.ops.shapes import shared_memory as _shared_memory  # noqa: F401 - attaches methods

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.ops.fourier.frames import istft, stft
from flowvm.ops.linalg.classic import (
    cholesky_inverse, cholesky_solve, geqrf, lu, lu_solve, lu_unpack, norm, orgqr, ormqr, pinverse,
    qr, svd, triangular_solve,
)
from flowvm.ops.linalg.powers import chain_matmul, matrix_exp, matrix_power, multi_dot
from flowvm.ops.linalg.systems import cholesky, det, inv, inverse, logdet, slogdet, solve
from flowvm.ops.places.coordinates import (
    batch_gather, gather_nd, in_top_k, scatter_nd, slice, slice_update, tensor_scatter_nd_update,
)
from flowvm.ops.places.counts import argwhere, bincount, nonzero
from flowvm.ops.places.embedding import one_hot
from flowvm.ops.places.gather import gather, index_select, take, take_along_dim
from flowvm.ops.places.histograms import histogram, histogramdd
from flowvm.ops.places.indexing import index_put
from flowvm.ops.places.masks import masked_fill, masked_scatter, masked_select
from flowvm.ops.places.put import (
    index_reduce, nonzero_static, put, renorm, segment_reduce, unravel_index,
)
from flowvm.ops.places.repeats import repeat_interleave
from flowvm.ops.places.scatter import index_add, index_copy, index_fill, scatter, scatter_add
from flowvm.ops.places.scatter_reduce import scatter_reduce
from flowvm.ops.places.search import bucketize, histc, isin, searchsorted
from flowvm.ops.places.sort import argsort, kthvalue, mode, msort, sort, topk
from flowvm.ops.places.unique import unique, unique_consecutive
from flowvm.ops.planes.conv import (
    conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d,
)
from flowvm.ops.planes.patches import fold, unfold
from flowvm.ops.planes.pixel_shuffle import channel_shuffle, pixel_shuffle, pixel_unshuffle
from flowvm.ops.planes.pooling import (
    adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_max_pool1d, adaptive_max_pool2d, avg_pool1d,
    avg_pool2d, max_pool1d, max_pool2d,
)
from flowvm.ops.planes.pooling3d import (
    adaptive_avg_pool3d, adaptive_max_pool3d, avg_pool3d, max_pool3d,
)
from flowvm.ops.planes.resize import interpolate, upsample
from flowvm.ops.planes.sampling import affine_grid, grid_sample
from flowvm.ops.pointwise.activation import (
    celu, celu_, elu, gelu, glu, hardshrink, hardsigmoid, hardswish, hardtanh, leaky_relu,
    logsigmoid, mish, prelu, relu, relu6, relu_, selu, selu_, silu, softplus, softshrink, softsign,
    tanhshrink, threshold, threshold_,
)
from flowvm.ops.pointwise.arithmetic import (
    add, div, divide, floor_divide, fmod, mul, multiply, remainder, rsub, sub, subtract,
    true_divide,
)
from flowvm.ops.pointwise.clamp import (
    clamp, clamp_max, clamp_min, clip, fmax, fmin, maximum, minimum,
)
from flowvm.ops.pointwise.compare import (
    allclose, bitwise_and, bitwise_left_shift, bitwise_not, bitwise_or, bitwise_right_shift,
    bitwise_xor, eq, equal, ge, greater, greater_equal, gt, isclose, isfinite, isinf, isnan,
    isneginf, isposinf, le, less, less_equal, logical_and, logical_not, logical_or, logical_xor, lt,
    ne, not_equal, signbit, where,
)
from flowvm.ops.pointwise.complex_numbers import adjoint, angle, conj, conj_physical, polar
from flowvm.ops.pointwise.in_place import (  # type: ignore[attr-defined]
    abs_, acos_, acosh_, addmv_, arccos_, arccosh_, arcsin_, arcsinh_, arctan_, arctanh_,
    as_strided_, asin_, asinh_, atan_, atanh_, ceil_, clamp_, clamp_max_, clamp_min_, clip_, cos_,
    cosh_, deg2rad_, detach_, erf_, erfc_, exp2_, exp_, expm1_, fill_, fix_, floor_, frac_, gcd_,
    i0_, index_put_, lcm_, ldexp_, log1p_, log2_, log10_, log_, logit_, nan_to_num_, neg_,
    negative_, rad2deg_, reciprocal_, resize_as_, round_, rsqrt_, sigmoid_, sin_, sinc_, sinh_,
    sqrt_, square_, tan_, tanh_, trunc_, xlogy_, zero_,
)
from flowvm.ops.pointwise.math import (
    abs, absolute, ceil, exp, exp2, expm1, fix, floor, frac, log, log1p, log2, log10, neg, negative,
    positive, reciprocal, round, rsqrt, sgn, sign, sqrt, square, trunc,
)
from flowvm.ops.pointwise.numeric import (
    fill, float_power, frexp, gcd, isreal, lcm, ldexp, logaddexp2, logit, nextafter, sinc,
)
from flowvm.ops.pointwise.polynomials import (
    chebyshev_polynomial_t, chebyshev_polynomial_u, chebyshev_polynomial_v, chebyshev_polynomial_w,
    hermite_polynomial_h, hermite_polynomial_he, laguerre_polynomial_l, legendre_polynomial_p,
    shifted_chebyshev_polynomial_t, shifted_chebyshev_polynomial_u, shifted_chebyshev_polynomial_v,
    shifted_chebyshev_polynomial_w,
)
from flowvm.ops.pointwise.power import pow
from flowvm.ops.pointwise.special import (
    bessel_j0, bessel_j1, bessel_y0, bessel_y1, entr, erfcx, i0, i0e, i1, i1e, igamma, igammac,
    log_ndtr, modified_bessel_k0, modified_bessel_k1, mvlgamma, ndtr, ndtri,
    scaled_modified_bessel_k0, scaled_modified_bessel_k1, spherical_bessel_j0, xlog1py, zeta,
)
from flowvm.ops.pointwise.ternary import (
    addcdiv, addcmul, arctan2, atan2, copysign, heaviside, hypot, lerp, logaddexp, nan_to_num,
    xlogy,
)
from flowvm.ops.pointwise.trigonometry import (
    acos, acosh, arccos, arccosh, arcsin, arcsinh, arctan, arctanh, asin, asinh, atan, atanh, cos,
    cosh, deg2rad, digamma, erf, erfc, erfinv, lgamma, polygamma, rad2deg, sigmoid, sin, sinh, tan,
    tanh,
)
from flowvm.ops.products.covariance import corrcoef, cov
from flowvm.ops.products.distances import cdist, cross, dist, pdist
from flowvm.ops.products.einsum import einsum
from flowvm.ops.products.matmul import linear, matmul
from flowvm.ops.products.product_sums import addbmm, addmv, addr, vdot
from flowvm.ops.products.products import (
    addmm, baddbmm, bmm, dot, ger, inner, kron, mm, mv, outer, tensordot,
)
from flowvm.ops.random.choices import bernoulli, binomial, multinomial, poisson
from flowvm.ops.random.generator import (
    Generator, default_generator, get_rng_state, initial_seed, manual_seed, seed, set_rng_state,
)
from flowvm.ops.random.random import (
    normal, rand, rand_like, randint, randint_like, randn, randn_like, randperm,
)
from flowvm.ops.rows.class_loss import cross_entropy, nll_loss
from flowvm.ops.rows.ctc_loss import ctc_loss
from flowvm.ops.rows.extremes import aminmax, argmax, argmin, max, median, min
from flowvm.ops.rows.integrals import cumulative_trapezoid, gradient, trapezoid, trapz
from flowvm.ops.rows.loss import (
    binary_cross_entropy, binary_cross_entropy_with_logits, cosine_similarity, huber_loss, kl_div,
    l1_loss, mse_loss, smooth_l1_loss,
)
from flowvm.ops.rows.moments import std, std_mean, var, var_mean
from flowvm.ops.rows.normalization import normalize, rms_norm
from flowvm.ops.rows.quantiles import nanmean, nanmedian, nanquantile, quantile
from flowvm.ops.rows.reduce import all, amax, amin, any, count_nonzero, mean, nansum, prod, sum
from flowvm.ops.rows.scan import cummax, cummin, cumprod, cumsum, diff, logcumsumexp
from flowvm.ops.rows.softmax import log_softmax, softmax, softmin
from flowvm.ops.rows.statistics import hash_tensor, logsumexp, trace, vector_norm
from flowvm.ops.sequences.attention import scaled_dot_product_attention
from flowvm.ops.sequences.recurrent import (
    gru, gru_cell, lstm, lstm_cell, rnn_relu, rnn_relu_cell, rnn_tanh, rnn_tanh_cell,
)
from flowvm.ops.shapes.blocks import block_diag, combinations, diagflat
from flowvm.ops.shapes.closed_range import range
from flowvm.ops.shapes.complex_parts import complex, imag, real, view_as_complex, view_as_real
from flowvm.ops.shapes.create import as_tensor, asarray, from_file, from_numpy, frombuffer, tensor
from flowvm.ops.shapes.fill import (
    empty, empty_like, empty_permuted, empty_strided, full, full_like, ones, ones_like,
    scalar_tensor, zeros, zeros_like,
)
from flowvm.ops.shapes.inplace_views import UntypedStorage
from flowvm.ops.shapes.join import (
    atleast_1d, atleast_2d, atleast_3d, cat, column_stack, concat, concatenate, dstack, hstack,
    row_stack, stack, tile, vstack,
)
from flowvm.ops.shapes.matrices import (
    cartesian_prod, diag, diag_embed, eye, meshgrid, tril, tril_indices, triu, triu_indices, vander,
)
from flowvm.ops.shapes.padding import flip, fliplr, flipud, pad, roll, rot90
from flowvm.ops.shapes.queries import (
    broadcast_shapes, clone, detach, get_device, is_complex, is_conj, is_distributed,
    is_floating_point, is_inference, is_neg, is_nonzero, is_same_size, is_signed, is_storage,
    is_tensor, numel, resolve_conj, resolve_neg,
)
from flowvm.ops.shapes.ranges import arange, linspace, logspace
from flowvm.ops.shapes.scatter_views import (
    alias_copy, as_strided_copy, as_strided_scatter, detach_copy, diagonal_copy, diagonal_scatter,
    expand_copy, narrow_copy, permute_copy, select_copy, select_scatter, slice_copy, slice_scatter,
    split_copy, split_with_sizes_copy, squeeze_copy, t_copy, transpose_copy, unbind_copy,
    unfold_copy, unsafe_chunk, unsafe_split, unsafe_split_with_sizes, unsqueeze_copy, view_copy,
)
from flowvm.ops.shapes.slices import diagonal, narrow, select
from flowvm.ops.shapes.split import (
    chunk, dsplit, hsplit, split, split_with_sizes, tensor_split, unbind, vsplit,
)
from flowvm.ops.shapes.tapers import (
    bartlett_window, blackman_window, hamming_window, hann_window, kaiser_window,
)
from flowvm.ops.shapes.tensor_classes import (
    BFloat16Tensor, BoolTensor, ByteTensor, CharTensor, DoubleTensor, FloatTensor, HalfTensor,
    IntTensor, LongTensor, ShortTensor, set_default_tensor_type, typename,
)
from flowvm.ops.shapes.views import (
    broadcast_like, broadcast_tensors, broadcast_to, flatten, moveaxis, movedim, permute, ravel,
    reshape, squeeze, swapaxes, swapdims, t, transpose, unflatten, unsqueeze,
)
from flowvm.ops.shapes.windows import as_strided
from flowvm.ops.updates.optimizer import (
    adadelta_step_ as adadelta_step_, adagrad_step_ as adagrad_step_, adam_step_ as adam_step_,
    adamax_step_ as adamax_step_, amsgrad_step_ as amsgrad_step_, asgd_step_ as asgd_step_,
    lamb_direction_ as lamb_direction_, nadam_step_ as nadam_step_, radam_step_ as radam_step_,
    rmsprop_centered_momentum_step_ as rmsprop_centered_momentum_step_, rmsprop_centered_step_ as
    rmsprop_centered_step_, rmsprop_momentum_step_ as rmsprop_momentum_step_, rmsprop_step_ as
    rmsprop_step_, rprop_step_ as rprop_step_, sgd_momentum_step_ as sgd_momentum_step_, sgd_step_
    as sgd_step_,
)

__all__ = [
    "SAMPLES", "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor",
    "Elementwise", "FloatTensor", "Generator", "HalfTensor", "IntTensor", "Launch", "LongTensor",
    "Sample", "ShortTensor", "UntypedStorage", "View", "abs", "abs_", "absolute", "acos", "acos_",
    "acosh", "acosh_", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
    "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "add", "addbmm", "addcdiv",
    "addcmul", "addmm", "addmv", "addmv_", "addr", "adjoint", "affine_grid", "alias_copy", "all",
    "allclose", "amax", "amin", "aminmax", "angle", "any", "arange", "arccos", "arccos_", "arccosh",
    "arccosh_", "arcsin", "arcsin_", "arcsinh", "arcsinh_", "arctan", "arctan2", "arctan_",
    "arctanh", "arctanh_", "argmax", "argmin", "argsort", "argwhere", "as_strided", "as_strided_",
    "as_strided_copy", "as_strided_scatter", "as_tensor", "asarray", "asin", "asin_", "asinh",
    "asinh_", "atan", "atan2", "atan_", "atanh", "atanh_", "atleast_1d", "atleast_2d", "atleast_3d",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "baddbmm", "bartlett_window", "batch_gather",
    "bernoulli", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "bincount", "binomial", "bitwise_and", "bitwise_left_shift",
    "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "blackman_window",
    "block_diag", "bmm", "broadcast_like", "broadcast_shapes", "broadcast_tensors", "broadcast_to",
    "bucketize", "cartesian_prod", "cat", "cdist", "ceil", "ceil_", "celu", "celu_", "chain_matmul",
    "channel_shuffle", "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v",
    "chebyshev_polynomial_w", "cholesky", "cholesky_inverse", "cholesky_solve", "chunk", "clamp",
    "clamp_", "clamp_max", "clamp_max_", "clamp_min", "clamp_min_", "clip", "clip_", "clone",
    "column_stack", "combinations", "complex", "concat", "concatenate", "conj", "conj_physical",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "copysign", "corrcoef", "cos", "cos_", "cosh", "cosh_", "cosine_similarity", "count_nonzero",
    "cov", "cross", "cross_entropy", "ctc_loss", "cummax", "cummin", "cumprod", "cumsum",
    "cumulative_trapezoid", "default_generator", "deg2rad", "deg2rad_", "det", "detach", "detach_",
    "detach_copy", "diag", "diag_embed", "diagflat", "diagonal", "diagonal_copy",
    "diagonal_scatter", "diff", "digamma", "dist", "div", "divide", "dot", "dsplit", "dstack", "e",
    "einsum", "elementwise", "elu", "empty", "empty_like", "empty_permuted", "empty_strided",
    "entr", "eq", "equal", "erf", "erf_", "erfc", "erfc_", "erfcx", "erfinv", "exp", "exp2",
    "exp2_", "exp_", "expand_copy", "expm1", "expm1_", "eye", "fill", "fill_", "fix", "fix_",
    "flatten", "flip", "fliplr", "flipud", "float_power", "floor", "floor_", "floor_divide", "fmax",
    "fmin", "fmod", "fold", "frac", "frac_", "frexp", "from_file", "from_numpy", "frombuffer",
    "full", "full_like", "gather", "gather_nd", "gcd", "gcd_", "ge", "gelu", "geqrf", "ger",
    "get_device", "get_rng_state", "glu", "gradient", "greater", "greater_equal", "grid_sample",
    "gru", "gru_cell", "gt", "hamming_window", "hann_window", "hardshrink", "hardsigmoid",
    "hardswish", "hardtanh", "hash_tensor", "heaviside", "hermite_polynomial_h",
    "hermite_polynomial_he", "histc", "histogram", "histogramdd", "hsplit", "hstack", "huber_loss",
    "hypot", "i0", "i0_", "i0e", "i1", "i1e", "igamma", "igammac", "imag", "in_top_k", "index_add",
    "index_copy", "index_fill", "index_put", "index_put_", "index_reduce", "index_select", "inf",
    "initial_seed", "inner", "interpolate", "inv", "inverse", "is_complex", "is_conj",
    "is_distributed", "is_floating_point", "is_inference", "is_neg", "is_nonzero", "is_same_size",
    "is_signed", "is_storage", "is_tensor", "isclose", "isfinite", "isin", "isinf", "isnan",
    "isneginf", "isposinf", "isreal", "istft", "kaiser_window", "kl_div", "kron", "kthvalue",
    "l1_loss", "laguerre_polynomial_l", "lcm", "lcm_", "ldexp", "ldexp_", "le", "leaky_relu",
    "legendre_polynomial_p", "lerp", "less", "less_equal", "lgamma", "linear", "linspace", "log",
    "log1p", "log1p_", "log2", "log2_", "log10", "log10_", "log_", "log_ndtr", "log_softmax",
    "logaddexp", "logaddexp2", "logcumsumexp", "logdet", "logical_and", "logical_not", "logical_or",
    "logical_xor", "logit", "logit_", "logsigmoid", "logspace", "logsumexp", "lstm", "lstm_cell",
    "lt", "lu", "lu_solve", "lu_unpack", "manual_seed", "masked_fill", "masked_scatter",
    "masked_select", "matmul", "matrix_exp", "matrix_power", "max", "max_pool1d", "max_pool2d",
    "max_pool3d", "maximum", "mean", "median", "meshgrid", "min", "minimum", "mish", "mm", "mode",
    "modified_bessel_k0", "modified_bessel_k1", "moveaxis", "movedim", "mse_loss", "msort", "mul",
    "multi_dot", "multinomial", "multiply", "mv", "mvlgamma", "nan", "nan_to_num", "nan_to_num_",
    "nanmean", "nanmedian", "nanquantile", "nansum", "narrow", "narrow_copy", "ndtr", "ndtri", "ne",
    "neg", "neg_", "negative", "negative_", "nextafter", "nll_loss", "nonzero", "nonzero_static",
    "norm", "normal", "normalize", "not_equal", "numel", "one_hot", "ones", "ones_like", "op",
    "orgqr", "ormqr", "outer", "pad", "pdist", "permute", "permute_copy", "pi", "pinverse",
    "pixel_shuffle", "pixel_unshuffle", "poisson", "polar", "polygamma", "positive", "pow", "prelu",
    "prod", "put", "qr", "quantile", "rad2deg", "rad2deg_", "rand", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "randperm", "range", "ravel", "real", "reciprocal",
    "reciprocal_", "relu", "relu6", "relu_", "remainder", "renorm", "repeat_interleave", "reshape",
    "resize_as_", "resolve_conj", "resolve_neg", "rms_norm", "rnn_relu", "rnn_relu_cell",
    "rnn_tanh", "rnn_tanh_cell", "roll", "rot90", "round", "round_", "row_stack", "rsqrt", "rsqrt_",
    "rsub", "samples", "scalar_tensor", "scaled_dot_product_attention", "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1", "scatter", "scatter_add", "scatter_nd", "scatter_reduce",
    "searchsorted", "seed", "segment_reduce", "select", "select_copy", "select_scatter", "selu",
    "selu_", "set_default_tensor_type", "set_rng_state", "sgn", "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w", "sigmoid", "sigmoid_", "sign", "signbit", "silu", "sin",
    "sin_", "sinc", "sinc_", "sinh", "sinh_", "slice", "slice_copy", "slice_scatter",
    "slice_update", "slogdet", "smooth_l1_loss", "softmax", "softmin", "softplus", "softshrink",
    "softsign", "solve", "sort", "spherical_bessel_j0", "split", "split_copy", "split_with_sizes",
    "split_with_sizes_copy", "sqrt", "sqrt_", "square", "square_", "squeeze", "squeeze_copy",
    "stack", "std", "std_mean", "stft", "sub", "subtract", "sum", "svd", "swapaxes", "swapdims",
    "t", "t_copy", "take", "take_along_dim", "tan", "tan_", "tanh", "tanh_", "tanhshrink", "tensor",
    "tensor_scatter_nd_update", "tensor_split", "tensordot", "threshold", "threshold_", "tile",
    "topk", "trace", "transpose", "transpose_copy", "trapezoid", "trapz", "triangular_solve",
    "tril", "tril_indices", "triu", "triu_indices", "true_divide", "trunc", "trunc_", "typename",
    "unbind", "unbind_copy", "unflatten", "unfold", "unfold_copy", "unique", "unique_consecutive",
    "unravel_index", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "unsqueeze",
    "unsqueeze_copy", "upsample", "vander", "var", "var_mean", "vdot", "vector_norm",
    "view_as_complex", "view_as_real", "view_copy", "vsplit", "vstack", "where", "xlog1py", "xlogy",
    "xlogy_", "zero_", "zeros", "zeros_like", "zeta",
]
# fmt: on
# isort: on
# --- by hand

inf, nan, pi, e = _numbers.inf, _numbers.nan, _numbers.pi, _numbers.e
