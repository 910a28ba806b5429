"""flowvm: deep learning in pure Python, eager first, on a VM that schedules instructions.

    import flowvm as flow

PyTorch's names and meaning.  What is here: tensors and ops (`flow.tensor`, `flow.matmul`, ...),
`flow.nn`, `flow.optim`, `flow.autograd`, `flow.utils.data`, and `flow.vm`, where the machine can be
watched (`trace`, `stats`, `dump`, `verify`).  Importing starts no thread and compiles nothing.

Long because each public name has its line.
"""

from __future__ import annotations

import gc
import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from flowvm.guards.collection import settle as _settle
from flowvm.guards.interpreter import need_global_lock as _need_global_lock
from flowvm.guards.regions import reverting as _reverting

with _reverting(gc.enable if gc.isenabled() else gc.disable, gc.disable):
    _need_global_lock()
    from flowvm.loading import providers as _providers  # noqa: F401 - it tells lower layers who answers

    _settle()

from flowvm import autograd as autograd
from flowvm import compiler as compiler
from flowvm import ops as ops
from flowvm import version as version
from flowvm import vm as vm
from flowvm.autograd import enable_grad as enable_grad
from flowvm.autograd import inference_mode as inference_mode
from flowvm.autograd import is_grad_enabled as is_grad_enabled
from flowvm.autograd import is_inference_mode_enabled as is_inference_mode_enabled
from flowvm.autograd import no_grad as no_grad
from flowvm.autograd import set_grad_enabled as set_grad_enabled
from flowvm.config import config as config
from flowvm.eager.receivers import check_receivers as _check_receivers
from flowvm.eager.tensor import Tensor as Tensor
from flowvm.errors import FlowError as FlowError
from flowvm.errors import MissingNameError as _MissingNameError
from flowvm.interop import copying as _copying  # noqa: F401 - makes tensors pickle and copy
from flowvm.interop.printing import get_printoptions as get_printoptions
from flowvm.interop.printing import printoptions as printoptions
from flowvm.interop.printing import set_printoptions as set_printoptions
from flowvm.interop.protocols import from_dlpack as from_dlpack
from flowvm.loading.absent import instead_of as _instead_of
from flowvm.meta.device import Device, get_default_device, set_default_device
from flowvm.meta.dtype import DType
from flowvm.meta.dtype import bfloat16 as bfloat16
from flowvm.meta.dtype import bool_ as bool_
from flowvm.meta.dtype import can_cast as can_cast
from flowvm.meta.dtype import cdouble as cdouble
from flowvm.meta.dtype import cfloat as cfloat
from flowvm.meta.dtype import complex64 as complex64
from flowvm.meta.dtype import complex128 as complex128
from flowvm.meta.dtype import double as double
from flowvm.meta.dtype import finfo as finfo
from flowvm.meta.dtype import float8_e4m3fn as float8_e4m3fn
from flowvm.meta.dtype import float8_e4m3fnuz as float8_e4m3fnuz
from flowvm.meta.dtype import float8_e5m2 as float8_e5m2
from flowvm.meta.dtype import float8_e5m2fnuz as float8_e5m2fnuz
from flowvm.meta.dtype import float8_e8m0fnu as float8_e8m0fnu
from flowvm.meta.dtype import float16 as float16
from flowvm.meta.dtype import float32 as float32
from flowvm.meta.dtype import float64 as float64
from flowvm.meta.dtype import float_ as float_
from flowvm.meta.dtype import get_default_dtype as get_default_dtype
from flowvm.meta.dtype import half as half
from flowvm.meta.dtype import iinfo as iinfo
from flowvm.meta.dtype import int8 as int8
from flowvm.meta.dtype import int16 as int16
from flowvm.meta.dtype import int32 as int32
from flowvm.meta.dtype import int64 as int64
from flowvm.meta.dtype import int_ as int_
from flowvm.meta.dtype import long as long
from flowvm.meta.dtype import promote_types as promote_types
from flowvm.meta.dtype import result_type as result_type
from flowvm.meta.dtype import set_default_dtype as set_default_dtype
from flowvm.meta.dtype import short as short
from flowvm.meta.dtype import uint8 as uint8
from flowvm.meta.dtype import uint16 as uint16
from flowvm.meta.dtype import uint32 as uint32
from flowvm.meta.dtype import uint64 as uint64
from flowvm.meta.formats import Layout, MemoryFormat
from flowvm.meta.formats import channels_last as channels_last
from flowvm.meta.formats import channels_last_3d as channels_last_3d
from flowvm.meta.formats import contiguous_format as contiguous_format
from flowvm.meta.formats import preserve_format as preserve_format
from flowvm.meta.formats import sparse_bsc as sparse_bsc
from flowvm.meta.formats import sparse_bsr as sparse_bsr
from flowvm.meta.formats import sparse_coo as sparse_coo
from flowvm.meta.formats import sparse_csc as sparse_csc
from flowvm.meta.formats import sparse_csr as sparse_csr
from flowvm.meta.formats import strided as strided
from flowvm.meta.meta import Size as Size
from flowvm.meta.placements import placement as placement
from flowvm.ops import *  # noqa: F403 - the public ops are pinned by ops.__all__
from flowvm.ops.placed import tensors as _global_tensors  # noqa: F401 - attaches methods
from flowvm.ops.shapes.create import tensor as tensor  # and not the module flowvm.tensor
from flowvm.ops.shapes.inplace_views import UntypedStorage as UntypedStorage
from flowvm.streams import Stream as Stream
from flowvm.streams import current_stream as current_stream
from flowvm.streams import get_num_threads as get_num_threads
from flowvm.streams import set_num_threads as set_num_threads
from flowvm.streams import stream as stream
from flowvm.version import VERSION
from flowvm.vm import last_error as last_error
from flowvm.vm.callers.tracebacks import cut as _cut

if TYPE_CHECKING:
    from flowvm import accelerator as accelerator
    from flowvm import amp as amp
    from flowvm import array_api as array_api
    from flowvm import backends as backends
    from flowvm import comm as comm
    from flowvm import cuda as cuda
    from flowvm import datasets as datasets
    from flowvm import distributed as distributed
    from flowvm import distributions as distributions
    from flowvm import env as env
    from flowvm import fft as fft
    from flowvm import func as func
    from flowvm import futures as futures
    from flowvm import fx as fx
    from flowvm import graph as graph
    from flowvm import hub as hub
    from flowvm import jit as jit
    from flowvm import library as library
    from flowvm import linalg as linalg
    from flowvm import masked as masked
    from flowvm import memory as memory
    from flowvm import mock_torch as mock_torch
    from flowvm import mps as mps
    from flowvm import multiprocessing as multiprocessing
    from flowvm import nn as nn
    from flowvm import onnx as onnx
    from flowvm import optim as optim
    from flowvm import overrides as overrides
    from flowvm import profiler as profiler
    from flowvm import random as random
    from flowvm import return_types as return_types
    from flowvm import sbp as sbp
    from flowvm import signal as signal
    from flowvm import sparse as sparse
    from flowvm import special as special
    from flowvm import testing as testing
    from flowvm import utils as utils
    from flowvm import xpu as xpu
    from flowvm.amp import autocast as autocast
    from flowvm.cuda.options import get_float32_matmul_precision as get_float32_matmul_precision
    from flowvm.cuda.options import set_float32_matmul_precision as set_float32_matmul_precision
    from flowvm.nn.graph.function import compile as compile
    from flowvm.ops.places.suppression import nms as nms
    from flowvm.ops.planes.deform_conv import deform_conv2d as deform_conv2d
    from flowvm.ops.planes.regions import roi_align as roi_align
    from flowvm.profiler.views.explaining import explain as explain
    from flowvm.serialization import load as load
    from flowvm.serialization import save as save

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
inf = ops.inf
nan = ops.nan
pi = ops.pi
e = ops.e
newaxis = None

_LAZY_MODULES = (
    "accelerator", "amp", "array_api", "backends", "comm", "cuda", "datasets", "distributed",
    "distributions", "env", "fft", "func", "futures", "fx", "graph", "hub", "jit", "lab", "library",
    "linalg", "lowrank", "masked", "memory", "mock_torch", "mps", "multiprocessing", "nn", "onnx",
    "optim", "overrides", "profiler", "random", "return_types", "sbp", "signal", "sparse",
    "special", "testing", "utils", "xpu",
)  # fmt: skip
_LAZY_NAMES = {
    "autocast": "flowvm.amp",
    "compile": "flowvm.nn.graph.function",
    "summary": "flowvm.nn.utils.summarizing",
    "get_float32_matmul_precision": "flowvm.cuda.options",
    "set_float32_matmul_precision": "flowvm.cuda.options",
    "explain": "flowvm.profiler.views.explaining",
    "vmap": "flowvm.func",
    **dict.fromkeys(
        (
            "_assert", "_assert_async", "_check", "_check_index", "_check_not_implemented",
            "_check_type", "_check_value",
        ),
        "flowvm.testing",
    ),
    "_log_softmax_backward_data": "flowvm.ops.rows.softmax",
    "_softmax_backward_data": "flowvm.ops.rows.softmax",
    "save": "flowvm.serialization",
    "load": "flowvm.serialization",
    **dict.fromkeys(
        (
            "cast", "contiguous", "div_", "erfinv_", "expand", "global_to_global", "gt_",
            "index_add_", "lerp_", "local_to_global", "masked_fill_", "new_empty", "new_full",
            "new_ones", "new_zeros", "normal_", "repeat", "to_global", "to_local", "view",
        ),
        "flowvm.methods",
    ),
    **dict.fromkeys(
        (
            "alpha_dropout", "constant_pad_nd", "embedding_renorm_", "feature_alpha_dropout",
            "feature_dropout", "frobenius_norm", "grid_sampler", "native_group_norm",
            "native_layer_norm", "norm_except_dim", "nuclear_norm", "rrelu",
        ),
        "flowvm.natives",
    ),
    "deform_conv2d": "flowvm.ops.planes.deform_conv",
    "nms": "flowvm.ops.places.suppression",
    "roi_align": "flowvm.ops.planes.regions",
    "to_dlpack": "flowvm.utils.dlpack",
    **dict.fromkeys(("lobpcg", "pca_lowrank", "svd_lowrank"), "flowvm.lowrank"),
    "load_ipython_extension": "flowvm.profiler.front.magics",
    **dict.fromkeys(
        (
            "bilinear", "conv_tbc", "cosine_embedding_loss", "hinge_embedding_loss",
            "margin_ranking_loss", "max_pool1d_with_indices", "pairwise_distance",
            "poisson_nll_loss", "quick_gelu", "square_relu", "triplet_margin_loss",
        ),
        "flowvm.nn.functional",
    ),
    **dict.fromkeys(
        (
            "are_deterministic_algorithms_enabled", "clear_autocast_cache",
            "get_autocast_cpu_dtype", "get_autocast_dtype",
            "get_autocast_gpu_dtype", "get_deterministic_debug_mode", "get_num_interop_threads",
            "is_anomaly_enabled", "is_autocast_cache_enabled", "is_autocast_cpu_enabled",
            "is_autocast_enabled", "is_deterministic_algorithms_warn_only_enabled",
            "is_vulkan_available", "is_warn_always_enabled", "set_anomaly_enabled",
            "set_autocast_cache_enabled", "set_autocast_cpu_dtype", "set_autocast_dtype",
            "set_autocast_enabled", "set_autocast_gpu_dtype",
            "set_deterministic_debug_mode", "set_flush_denormal", "set_num_interop_threads",
            "set_warn_always", "use_deterministic_algorithms",
        ),
        "flowvm.settings",
    ),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return importlib.import_module(f"flowvm.{name}")
    home = "flowvm.foreach" if name.startswith("_foreach_") else _LAZY_NAMES.get(name)
    if home:
        return getattr(importlib.import_module(home), name)
    hint = _instead_of(name)
    try:
        raise _MissingNameError(f"flowvm has no {name!r}{hint}", name, tuple if hint else __dir__)
    except _MissingNameError as error:  # no `border`: for mypy a module's function has to be plain
        _cut(error)
        raise


def __dir__() -> list[str]:
    return sorted({*__all__, *_LAZY_MODULES, *(n for n in _LAZY_NAMES if n[0] != "_")})


__all__ = [
    "FlowError",
    "Size",
    "Stream",
    "Tensor",
    "accelerator",
    "amp",
    "array_api",
    "autocast",
    "autograd",
    "backends",
    "bfloat16",
    "bool",
    "can_cast",
    "channels_last",
    "channels_last_3d",
    "compiler",
    "config",
    "contiguous_format",
    "cuda",
    "current_stream",
    "datasets",
    "deform_conv2d",
    "device",
    "distributed",
    "distributions",
    "double",
    "dtype",
    "e",
    "enable_grad",
    "env",
    "explain",
    "finfo",
    "float",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float16",
    "float32",
    "float64",
    "from_dlpack",
    "futures",
    "fx",
    "get_default_device",
    "get_default_dtype",
    "get_float32_matmul_precision",
    "get_num_threads",
    "get_printoptions",
    "half",
    "hub",
    "iinfo",
    "inf",
    "inference_mode",
    "int",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "jit",
    "last_error",
    "layout",
    "library",
    "load",
    "long",
    "memory_format",
    "mps",
    "multiprocessing",
    "nan",
    "newaxis",
    "nms",
    "nn",
    "no_grad",
    "onnx",
    "ops",
    "optim",
    "overrides",
    "pi",
    "placement",
    "preserve_format",
    "printoptions",
    "profiler",
    "promote_types",
    "random",
    "result_type",
    "roi_align",
    "save",
    "sbp",
    "set_default_device",
    "set_default_dtype",
    "set_float32_matmul_precision",
    "set_grad_enabled",
    "set_num_threads",
    "set_printoptions",
    "short",
    "sparse",
    "stream",
    "strided",
    "testing",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "utils",
    "version",
    "vm",
    "xpu",
]
__all__ += ops.__all__
__all__.sort()
_check_receivers()
