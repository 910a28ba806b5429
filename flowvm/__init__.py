"""flowvm: deep learning in pure Python, eager first, on a VM that schedules instructions.

    import flowvm as flow

PyTorch's names and meaning.  What is here: tensors and ops (`flow.tensor`, `flow.matmul`, ...),
`flow.nn`, `flow.optim`, `flow.autograd`, `flow.utils.data`, and `flow.vm`, where the machine can be
watched (`trace`, `stats`, `dump`, `verify`).  Importing starts no thread and compiles nothing.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from flowvm.guards.collection import Uncollected as _Uncollected
from flowvm.guards.collection import settle as _settle
from flowvm.guards.interpreter import need_global_lock as _need_global_lock

with _Uncollected():
    _need_global_lock()
    __path__.append(f"{__path__[0]}/torch_names")  # `flowvm.mps` and the like are files there
    from flowvm.loading import providers as _providers  # noqa: F401 - it tells lower layers who answers

    _settle()

from flowvm import autograd as autograd
from flowvm import compiler as compiler
from flowvm import ops as ops
from flowvm import version as version
from flowvm import vm as vm
from flowvm.eager.receivers import check_receivers as _check_receivers
from flowvm.eager.tensor import Tensor as Tensor
from flowvm.errors import MissingNameError as _MissingNameError
from flowvm.interop import pickles as _pickles  # noqa: F401 - makes tensors pickle and copy
from flowvm.loading.missing_names import instead_of as _instead_of
from flowvm.meta.device import Device
from flowvm.meta.dtype import DType
from flowvm.meta.formats import Layout, MemoryFormat
from flowvm.ops import *  # noqa: F403 - the public ops are pinned by ops.__all__
from flowvm.ops.placed import tensors as _global_tensors  # noqa: F401 - attaches methods
from flowvm.ops.sparse import methods as _sparse_methods  # noqa: F401 - attaches methods
from flowvm.version import VERSION
from flowvm.vm import last_error as last_error
from flowvm.vm.callers.tracebacks import cut as _cut

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.autograd.modes import (
    enable_grad, inference_mode, is_grad_enabled, is_inference_mode_enabled, no_grad,
    set_grad_enabled,
)
from flowvm.config import config
from flowvm.errors import FlowError
from flowvm.interop.printing import get_printoptions, printoptions, set_printoptions
from flowvm.interop.protocols import from_dlpack
from flowvm.meta.device import get_default_device, set_default_device
from flowvm.meta.dtype import (
    bfloat16, bool_, can_cast, cdouble, cfloat, complex64, complex128, double, finfo, float8_e4m3fn,
    float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz, float8_e8m0fnu, float16, float32, float64,
    float_, get_default_dtype, half, iinfo, int8, int16, int32, int64, int_, long, promote_types,
    result_type, set_default_dtype, short, uint8, uint16, uint32, uint64,
)
from flowvm.meta.formats import (
    channels_last, channels_last_3d, contiguous_format, preserve_format, sparse_bsc, sparse_bsr,
    sparse_coo, sparse_csc, sparse_csr, strided,
)
from flowvm.meta.meta import Size
from flowvm.meta.placements import placement
from flowvm.streams import Stream, current_stream, get_num_threads, set_num_threads, stream

if TYPE_CHECKING:
    from flowvm import (
        amp as amp, array_api as array_api, asyncs as asyncs, backends as backends, cuda as cuda,
        datasets as datasets, distributed as distributed, distributions as distributions, fft as
        fft, func as func, fx as fx, graph as graph, lab as lab, linalg as linalg, memory as memory,
        nn as nn, onnx as onnx, optim as optim, overrides as overrides, profiler as profiler, random
        as random, signal as signal, sparse as sparse, special as special, testing as testing, utils
        as utils,
    )
    from flowvm.torch_names import (
        accelerator as accelerator, comm as comm, env as env, futures as futures, hub as hub, jit as
        jit, library as library, lowrank as lowrank, masked as masked, mock_torch as mock_torch, mps
        as mps, multiprocessing as multiprocessing, return_types as return_types, sbp as sbp, xpu as
        xpu,
    )
    from flowvm.amp.autocast_mode import autocast
    from flowvm.autograd.anomaly import is_anomaly_enabled as is_anomaly_enabled
    from flowvm.cuda.options import get_float32_matmul_precision, set_float32_matmul_precision
    from flowvm.func.batching import vmap as vmap
    from flowvm.torch_names.lowrank import (
        lobpcg as lobpcg, pca_lowrank as pca_lowrank, svd_lowrank as svd_lowrank,
    )
    from flowvm.methods import (
        cast as cast, global_to_global as global_to_global, local_to_global as local_to_global,
    )
    from flowvm.torch_names.natives import (
        alpha_dropout as alpha_dropout, batch_norm as batch_norm, constant_pad_nd as
        constant_pad_nd, dropout as dropout, embedding as embedding, embedding_bag as embedding_bag,
        embedding_renorm_ as embedding_renorm_, feature_alpha_dropout as feature_alpha_dropout,
        feature_dropout as feature_dropout, frobenius_norm as frobenius_norm, grid_sampler as
        grid_sampler, group_norm as group_norm, instance_norm as instance_norm, layer_norm as
        layer_norm, native_group_norm as native_group_norm, native_layer_norm as native_layer_norm,
        norm_except_dim as norm_except_dim, nuclear_norm as nuclear_norm, rrelu as rrelu,
    )
    from flowvm.nn.composites.activations import (
        quick_gelu as quick_gelu, square_relu as square_relu,
    )
    from flowvm.nn.composites.distances import (
        bilinear as bilinear, pairwise_distance as pairwise_distance,
    )
    from flowvm.nn.composites.images import conv_tbc as conv_tbc
    from flowvm.nn.composites.losses import (
        cosine_embedding_loss as cosine_embedding_loss, hinge_embedding_loss as
        hinge_embedding_loss, margin_ranking_loss as margin_ranking_loss, poisson_nll_loss as
        poisson_nll_loss, triplet_margin_loss as triplet_margin_loss,
    )
    from flowvm.nn.composites.pools import max_pool1d_with_indices as max_pool1d_with_indices
    from flowvm.nn.graph.function import compile as compile
    from flowvm.nn.utils.model_summary import summary as summary
    from flowvm.ops.places.suppression import nms
    from flowvm.ops.planes.deform_conv import deform_conv2d
    from flowvm.ops.planes.regions import roi_align
    from flowvm.ops.rows.softmax import (
        _log_softmax_backward_data as _log_softmax_backward_data, _softmax_backward_data as
        _softmax_backward_data,
    )
    from flowvm.ops.sparse.conversion import (
        sparse_bsc_tensor, sparse_bsr_tensor, sparse_compressed_tensor, sparse_coo_tensor,
        sparse_csc_tensor, sparse_csr_tensor,
    )
    from flowvm.profiler.front.magics import load_ipython_extension as load_ipython_extension
    from flowvm.profiler.views.explanation import explain
    from flowvm.serialization import load, save
    from flowvm.torch_names.settings import (
        are_deterministic_algorithms_enabled as are_deterministic_algorithms_enabled,
        clear_autocast_cache as clear_autocast_cache, get_autocast_cpu_dtype as
        get_autocast_cpu_dtype, get_autocast_dtype as get_autocast_dtype, get_autocast_gpu_dtype as
        get_autocast_gpu_dtype, get_deterministic_debug_mode as get_deterministic_debug_mode,
        get_num_interop_threads as get_num_interop_threads, is_autocast_cache_enabled as
        is_autocast_cache_enabled, is_autocast_cpu_enabled as is_autocast_cpu_enabled,
        is_autocast_enabled as is_autocast_enabled, is_deterministic_algorithms_warn_only_enabled as
        is_deterministic_algorithms_warn_only_enabled, is_vulkan_available as is_vulkan_available,
        is_warn_always_enabled as is_warn_always_enabled, set_anomaly_enabled as
        set_anomaly_enabled, set_autocast_cache_enabled as set_autocast_cache_enabled,
        set_autocast_cpu_dtype as set_autocast_cpu_dtype, set_autocast_dtype as set_autocast_dtype,
        set_autocast_enabled as set_autocast_enabled, set_autocast_gpu_dtype as
        set_autocast_gpu_dtype, set_deterministic_debug_mode as set_deterministic_debug_mode,
        set_flush_denormal as set_flush_denormal, set_num_interop_threads as
        set_num_interop_threads, set_warn_always as set_warn_always, use_deterministic_algorithms as
        use_deterministic_algorithms,
    )
    from flowvm.testing import (
        _assert as _assert, _assert_async as _assert_async, _check as _check, _check_index as
        _check_index, _check_not_implemented as _check_not_implemented, _check_type as _check_type,
        _check_value as _check_value,
    )
    from flowvm.utils.dlpack import to_dlpack as to_dlpack

_LATE: dict[str, str] = {
    "autocast": "flowvm.amp.autocast_mode",
    "is_anomaly_enabled": "flowvm.autograd.anomaly",
    **dict.fromkeys((
        "get_float32_matmul_precision", "set_float32_matmul_precision",
    ), "flowvm.cuda.options"),
    "vmap": "flowvm.func.batching",
    **dict.fromkeys(("lobpcg", "pca_lowrank", "svd_lowrank"), "flowvm.lowrank"),
    **dict.fromkeys((
        "cast", "contiguous", "div_", "erfinv_", "expand", "global_to_global", "gt_", "index_add_",
        "lerp_", "local_to_global", "masked_fill_", "new_empty", "new_full", "new_ones",
        "new_zeros", "normal_", "repeat", "to_global", "to_local", "view",
    ), "flowvm.methods"),
    **dict.fromkeys((
        "alpha_dropout", "batch_norm", "constant_pad_nd", "dropout", "embedding", "embedding_bag",
        "embedding_renorm_", "feature_alpha_dropout", "feature_dropout", "frobenius_norm",
        "grid_sampler", "group_norm", "instance_norm", "layer_norm", "native_group_norm",
        "native_layer_norm", "norm_except_dim", "nuclear_norm", "rrelu",
    ), "flowvm.natives"),
    **dict.fromkeys(("quick_gelu", "square_relu"), "flowvm.nn.composites.activations"),
    **dict.fromkeys(("bilinear", "pairwise_distance"), "flowvm.nn.composites.distances"),
    "conv_tbc": "flowvm.nn.composites.images",
    **dict.fromkeys((
        "cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss", "poisson_nll_loss",
        "triplet_margin_loss",
    ), "flowvm.nn.composites.losses"),
    "max_pool1d_with_indices": "flowvm.nn.composites.pools",
    "compile": "flowvm.nn.graph.function",
    "summary": "flowvm.nn.utils.model_summary",
    "nms": "flowvm.ops.places.suppression",
    "deform_conv2d": "flowvm.ops.planes.deform_conv",
    "roi_align": "flowvm.ops.planes.regions",
    **dict.fromkeys((
        "_log_softmax_backward_data", "_softmax_backward_data",
    ), "flowvm.ops.rows.softmax"),
    **dict.fromkeys((
        "sparse_bsc_tensor", "sparse_bsr_tensor", "sparse_compressed_tensor", "sparse_coo_tensor",
        "sparse_csc_tensor", "sparse_csr_tensor",
    ), "flowvm.ops.sparse.conversion"),
    "load_ipython_extension": "flowvm.profiler.front.magics",
    "explain": "flowvm.profiler.views.explanation",
    **dict.fromkeys(("load", "save"), "flowvm.serialization"),
    **dict.fromkeys((
        "are_deterministic_algorithms_enabled", "clear_autocast_cache", "get_autocast_cpu_dtype",
        "get_autocast_dtype", "get_autocast_gpu_dtype", "get_deterministic_debug_mode",
        "get_num_interop_threads", "is_autocast_cache_enabled", "is_autocast_cpu_enabled",
        "is_autocast_enabled", "is_deterministic_algorithms_warn_only_enabled",
        "is_vulkan_available", "is_warn_always_enabled", "set_anomaly_enabled",
        "set_autocast_cache_enabled", "set_autocast_cpu_dtype", "set_autocast_dtype",
        "set_autocast_enabled", "set_autocast_gpu_dtype", "set_deterministic_debug_mode",
        "set_flush_denormal", "set_num_interop_threads", "set_warn_always",
        "use_deterministic_algorithms",
    ), "flowvm.settings"),
    **dict.fromkeys((
        "_assert", "_assert_async", "_check", "_check_index", "_check_not_implemented",
        "_check_type", "_check_value",
    ), "flowvm.testing"),
    "to_dlpack": "flowvm.utils.dlpack",
}

__all__ = [
    "FlowError", "Size", "Stream", "Tensor", "accelerator", "amp", "array_api", "autocast",
    "autograd", "backends", "bfloat16", "bool", "bool_", "can_cast", "cdouble", "cfloat",
    "channels_last", "channels_last_3d", "compiler", "complex64", "complex128", "config",
    "contiguous_format", "cuda", "current_stream", "datasets", "deform_conv2d", "device",
    "distributed", "distributions", "double", "dtype", "enable_grad", "env", "explain", "finfo",
    "float", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float16", "float32", "float64", "float_", "from_dlpack", "futures", "fx", "get_default_device",
    "get_default_dtype", "get_float32_matmul_precision", "get_num_threads", "get_printoptions",
    "half", "hub", "iinfo", "inference_mode", "int", "int8", "int16", "int32", "int64", "int_",
    "is_grad_enabled", "is_inference_mode_enabled", "jit", "lab", "last_error", "layout", "library",
    "load", "long", "memory_format", "mps", "multiprocessing", "newaxis", "nms", "nn", "no_grad",
    "onnx", "ops", "optim", "overrides", "placement", "preserve_format", "printoptions", "profiler",
    "promote_types", "random", "result_type", "roi_align", "save", "sbp", "set_default_device",
    "set_default_dtype", "set_float32_matmul_precision", "set_grad_enabled", "set_num_threads",
    "set_printoptions", "short", "sparse", "sparse_bsc", "sparse_bsc_tensor", "sparse_bsr",
    "sparse_bsr_tensor", "sparse_compressed_tensor", "sparse_coo", "sparse_coo_tensor",
    "sparse_csc", "sparse_csc_tensor", "sparse_csr", "sparse_csr_tensor", "stream", "strided",
    "testing", "uint8", "uint16", "uint32", "uint64", "utils", "version", "vm", "xpu",
]
# fmt: on
# isort: on
# --- by hand

# modules that are imported when they are named; `from flowvm import *` leaves the second ones out
_LATE_MODULES = (
    "accelerator", "amp", "array_api", "backends", "cuda", "datasets", "distributed",
    "distributions", "env", "futures", "fx", "hub", "jit", "lab", "library", "mps",
    "multiprocessing", "nn", "onnx", "optim", "overrides", "profiler", "random", "sbp", "sparse",
    "testing", "utils", "xpu",
)  # fmt: skip
_UNLISTED_MODULES = (
    "asyncs", "comm", "fft", "func", "graph", "linalg", "lowrank", "masked", "memory", "mock_torch",
    "return_types", "signal", "special",
)  # fmt: skip

__version__ = VERSION


class _Errors(types.ModuleType):
    """The module `flow.errors`, which holds the exceptions; called, it lists the failed
    instructions.
    """

    def __call__(self) -> vm.Errors:
        return vm.errors()


sys.modules["flowvm.errors"].__class__ = _Errors


device = Device
dtype = DType
layout = Layout
memory_format = MemoryFormat
# PyTorch's names for dtypes that are builtins' names too
bool = bool_
int = int_
float = float_
newaxis = None


def __getattr__(name: str) -> Any:
    if name in _LATE_MODULES or name in _UNLISTED_MODULES:
        return importlib.import_module(f"flowvm.{name}")
    home = "flowvm.foreach" if name.startswith("_foreach_") else _LATE.get(name)
    if home:
        return getattr(importlib.import_module(home), name)
    hint = _instead_of(name)
    try:
        raise _MissingNameError(f"flowvm has no {name!r}{hint}", name, tuple if hint else __dir__)
    except _MissingNameError as error:  # no `border`: for mypy a module's function has to be plain
        _cut(error)
        raise


def __dir__() -> list[str]:
    late = {*_LATE_MODULES, *_UNLISTED_MODULES, *(n for n in _LATE if n[0] != "_")}
    return sorted({*__all__, *late})


__all__ += ops.__all__
__all__.sort()
_check_receivers()
