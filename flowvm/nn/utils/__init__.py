"""Tools for models: clip gradients, make parameters one vector, compute them from others, prune
them, replace them for a call; pack sequences for layers.

A file an idea.
Not here: layers (`flowvm/nn/modules`), and what a Module is.
"""

from flowvm.loading.listing import listing
from flowvm.nn.utils import clip_grad as clip_grad
from flowvm.nn.utils import convert_parameters as convert_parameters
from flowvm.nn.utils import fusion as fusion
from flowvm.nn.utils import init as init
from flowvm.nn.utils import parametrizations as parametrizations
from flowvm.nn.utils import parametrize as parametrize
from flowvm.nn.utils import prune as prune
from flowvm.nn.utils import rnn as rnn
from flowvm.nn.utils import stateless as stateless

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.nn.utils.clip_grad import (
    clip_grad_norm, clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm,
)
from flowvm.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters
from flowvm.nn.utils.fusion import (
    fuse_conv_bn_eval, fuse_conv_bn_weights, fuse_linear_bn_eval, fuse_linear_bn_weights,
)
from flowvm.nn.utils.init import skip_init
from flowvm.nn.utils.memory_format import (
    convert_conv2d_weight_memory_format, convert_conv3d_weight_memory_format,
)
from flowvm.nn.utils.spectral_norm import remove_spectral_norm, spectral_norm
from flowvm.nn.utils.weight_norm import remove_weight_norm, weight_norm

__all__ = [
    "clip_grad", "clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_",
    "convert_conv2d_weight_memory_format", "convert_conv3d_weight_memory_format",
    "convert_parameters", "fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval",
    "fuse_linear_bn_weights", "fusion", "get_total_norm", "init", "parameters_to_vector",
    "parametrizations", "parametrize", "prune", "remove_spectral_norm", "remove_weight_norm", "rnn",
    "skip_init", "spectral_norm", "stateless", "vector_to_parameters", "weight_norm",
]
# fmt: on
# isort: on
# --- by hand


__dir__ = listing(globals())
