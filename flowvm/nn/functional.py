"""The functional form of nn: ops under the names PyTorch's nn.functional gives them.

Nothing is computed here. Functions that are ops come straight from flowvm.ops; the few that only
combine ops for a layer or a loss of this package are in `composites`.
"""

from typing import TYPE_CHECKING

from flowvm.loading.listing import listing
from flowvm.loading.missing_names import other_names

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.nn.composites.activations import (
    celu_, elu_, gumbel_softmax, hardtanh_, leaky_relu_, log_softmax, quick_gelu, rrelu, rrelu_,
    selu_, softmax, softmin, square_relu, threshold_,
)
from flowvm.nn.composites.attention import multi_head_attention_forward
from flowvm.nn.composites.decoding import ctc_greedy_decoder
from flowvm.nn.composites.distances import bilinear, l2_normalize, pairwise_distance, pdist
from flowvm.nn.composites.dropouts import (
    alpha_dropout, dropout1d, dropout2d, dropout3d, feature_alpha_dropout,
)
from flowvm.nn.composites.images import (
    conv_tbc, interpolate_like, native_channel_shuffle, upsample_bilinear, upsample_nearest,
)
from flowvm.nn.composites.linear_cross_entropy import linear_cross_entropy
from flowvm.nn.composites.losses import (
    cosine_embedding_loss, gaussian_nll_loss, hinge_embedding_loss, margin_ranking_loss,
    multi_margin_loss, multilabel_margin_loss, multilabel_soft_margin_loss, poisson_nll_loss,
    soft_margin_loss, sparse_softmax_cross_entropy, triplet_margin_loss,
    triplet_margin_with_distance_loss,
)
from flowvm.nn.composites.norms import local_response_norm
from flowvm.nn.composites.pools import (
    adaptive_max_pool1d_with_indices, adaptive_max_pool2d_with_indices,
    adaptive_max_pool3d_with_indices, fractional_max_pool2d, fractional_max_pool2d_with_indices,
    fractional_max_pool3d, fractional_max_pool3d_with_indices, lp_pool1d, lp_pool2d, lp_pool3d,
    max_pool1d_with_indices, max_pool2d_with_indices, max_pool3d_with_indices, max_unpool1d,
    max_unpool2d, max_unpool3d,
)
from flowvm.ops.places.embedding import embedding, one_hot
from flowvm.ops.places.embedding_bag import embedding_bag
from flowvm.ops.planes.conv import (
    conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d,
)
from flowvm.ops.planes.deform_conv import deform_conv2d
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
    celu, elu, gelu, glu, hardshrink, hardsigmoid, hardswish, hardtanh, leaky_relu, logsigmoid,
    mish, prelu, relu, relu6, relu_, selu, silu, softplus, softshrink, softsign, tanhshrink,
    threshold,
)
from flowvm.ops.pointwise.trigonometry import sigmoid, tanh
from flowvm.ops.products.matmul import linear
from flowvm.ops.random.choices import dropout
from flowvm.ops.rows.class_loss import cross_entropy, nll_loss
from flowvm.ops.rows.ctc_loss import ctc_loss
from flowvm.ops.rows.loss import (
    binary_cross_entropy, binary_cross_entropy_with_logits, cosine_similarity, huber_loss, kl_div,
    l1_loss, mse_loss, smooth_l1_loss,
)
from flowvm.ops.rows.normalization import (
    batch_norm, group_norm, instance_norm, layer_norm, normalize, rms_norm,
)
from flowvm.ops.sequences.attention import scaled_dot_product_attention
from flowvm.ops.shapes.padding import pad

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool1d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d", "adaptive_max_pool3d_with_indices", "affine_grid", "alpha_dropout",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "batch_norm", "bilinear", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "celu", "celu_", "channel_shuffle", "conv1d", "conv2d",
    "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "cosine_embedding_loss", "cosine_similarity", "cross_entropy", "ctc_greedy_decoder", "ctc_loss",
    "deform_conv2d", "dropout", "dropout1d", "dropout2d", "dropout3d", "elu", "elu_", "embedding",
    "embedding_bag", "feature_alpha_dropout", "fold", "fractional_max_pool2d",
    "fractional_max_pool2d_with_indices", "fractional_max_pool3d",
    "fractional_max_pool3d_with_indices", "gaussian_nll_loss", "gelu", "glu", "grid_sample",
    "group_norm", "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
    "hardtanh_", "hinge_embedding_loss", "huber_loss", "instance_norm", "interpolate",
    "interpolate_like", "kl_div", "l1_loss", "l2_normalize", "layer_norm", "leaky_relu",
    "leaky_relu_", "linear", "linear_cross_entropy", "local_response_norm", "log_softmax",
    "logsigmoid", "lp_pool1d", "lp_pool2d", "lp_pool3d", "margin_ranking_loss", "max_pool1d",
    "max_pool1d_with_indices", "max_pool2d", "max_pool2d_with_indices", "max_pool3d",
    "max_pool3d_with_indices", "max_unpool1d", "max_unpool2d", "max_unpool3d", "mish", "mse_loss",
    "multi_head_attention_forward", "multi_margin_loss", "multilabel_margin_loss",
    "multilabel_soft_margin_loss", "native_channel_shuffle", "nll_loss", "normalize", "one_hot",
    "pad", "pairwise_distance", "pdist", "pixel_shuffle", "pixel_unshuffle", "poisson_nll_loss",
    "prelu", "quick_gelu", "relu", "relu6", "relu_", "rms_norm", "rrelu", "rrelu_",
    "scaled_dot_product_attention", "selu", "selu_", "sigmoid", "silu", "smooth_l1_loss",
    "soft_margin_loss", "softmax", "softmin", "softplus", "softshrink", "softsign",
    "sparse_softmax_cross_entropy", "square_relu", "tanh", "tanhshrink", "threshold", "threshold_",
    "triplet_margin_loss", "triplet_margin_with_distance_loss", "unfold", "upsample",
    "upsample_bilinear", "upsample_nearest",
]
# fmt: on
# isort: on
# --- by hand


__dir__ = listing(globals())

if not TYPE_CHECKING:  # a type checker is to know which names there are
    __getattr__ = other_names("nn.functional", lambda: __all__)
