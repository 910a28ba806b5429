"""Methods of Tensor called on what is no tensor: `flow.Tensor.sum(5)`.

Functions that are called once an op say so where they fail, which costs nothing else
(`refused` of `flowvm.eager.tensor`).  In front of the others, whose names are here, stands a
function that looks at the first argument; native calls do without it, for they take tensors alone.
"""

from __future__ import annotations

import functools
import inspect
from types import CodeType, FunctionType
from typing import Any, Final

from flowvm.eager.native.objects import Call
from flowvm.eager.overrides import copied, exchange_code
from flowvm.eager.tensor import Tensor, refused

NAMES: Final = (
    "H", "T", "__array__", "__array_namespace__", "__complex__", "__contains__", "__copy__",
    "__cuda_array_interface__", "__deepcopy__", "__dir__", "__dlpack__", "__dlpack_device__",
    "__float__", "__format__", "__getattr__", "__getitem__", "__int__", "__ipow__", "__reduce_ex__",
    "__repr__", "__reversed__", "__setitem__", "__str__", "_base", "_coalesced_", "_dimI", "_dimV",
    "_indices", "_is_view", "_nnz", "_repr_html_", "_values", "addbmm_", "addmm_", "addmv_",
    "addr_", "apply_", "as_strided_", "backward", "baddbmm_", "bfloat16", "bitwise_not_", "bool",
    "byte", "cauchy_", "ccol_indices", "cdouble", "cfloat", "char", "coalesce", "col_indices",
    "conj_physical_", "const_data_ptr", "contiguous_", "copy_", "cpu", "crow_indices", "cuda",
    "cumprod_", "cumsum_", "data", "data_ptr", "dense_dim", "detach_", "dim_order", "double",
    "expand", "expand_as", "fill_", "float", "float_power_", "gcd_", "geometric_", "get_device",
    "half", "imag", "index_reduce_", "indices", "int", "is_coalesced", "is_complex", "is_cpu",
    "is_distributed", "is_global", "is_inference", "is_ipu", "is_local", "is_maia", "is_mkldnn",
    "is_mps", "is_mtia", "is_nested", "is_nonzero", "is_pinned", "is_quantized", "is_same_size",
    "is_shared", "is_signed", "is_sparse", "is_sparse_csr", "is_vulkan", "is_xla", "is_xpu",
    "layout", "lcm_", "ldexp_", "log_normal_", "log_softmax", "logit_", "long", "mH", "mT", "map2_",
    "map_", "mvlgamma_", "name", "ndimension", "new", "new_empty", "new_empty_strided", "new_full",
    "new_ones", "new_tensor", "new_zeros", "normal_", "output_nr", "permute", "pin_memory",
    "placement", "polygamma_", "pow_", "put_", "random_", "real", "record_stream", "register_hook",
    "register_post_accumulate_grad_hook", "renorm_", "reshape_as", "resize_", "retain_grad",
    "retains_grad", "round_", "row_indices", "sbp", "scatter", "scatter_", "set_", "share_memory_",
    "short", "softmax", "sparse_dim", "sparse_mask", "sparse_resize_", "sparse_resize_and_clear_",
    "split_with_sizes", "squeeze_", "sum_to_size", "swapaxes_", "swapdims_", "t_", "to_dense",
    "to_device", "to_sparse", "to_sparse_bsc", "to_sparse_bsr", "to_sparse_coo", "to_sparse_csc",
    "to_sparse_csr", "transpose_", "tril_", "triu_", "type", "uniform_", "unsqueeze_",
    "untyped_storage", "values", "view", "view_as", "volatile", "zero_",
)  # fmt: skip

_MARKS: Final = (200_001, 200_002, 200_003, 200_004)  # constants that objects are put in place of


def check_receivers() -> None:
    """Let all methods and properties of these names look at what they are called on."""
    functions: set[FunctionType] = set()
    for name in NAMES:
        value = vars(Tensor)[name]
        function: Any = value.fget if isinstance(value, property) else value
        while isinstance(function, Call):
            function = function.twin
        if function not in functions:
            functions.add(function)
            _check(name, function)


def _check(name: str, function: FunctionType) -> None:
    code = function.__code__
    count = code.co_argcount
    names = code.co_varnames[count : count + code.co_kwonlyargcount]
    several = bool(code.co_flags & inspect.CO_VARARGS), bool(code.co_flags & inspect.CO_VARKEYWORDS)
    checking = _checking(count, code.co_posonlyargcount, names, several, len(code.co_freevars))
    parameters = count + len(names) + sum(several)
    stands_for = dict(zip(_MARKS, (Tensor, refused, name, copied(function)), strict=True))
    variables = (*code.co_varnames[:parameters], *checking.co_varnames[parameters:])
    exchange_code(function, checking.replace(co_varnames=variables), stands_for)


@functools.cache
def _checking(
    count: int, alone: int, names: tuple[str, ...], several: tuple[bool, bool], free: int
) -> CodeType:
    """The code that looks at the first argument, and calls what was there: with so many parameters,
    the first `alone` by position alone, those that are named by keyword, and stars.
    """
    placed = [f"p{k}" for k in range(count)]
    stars, named = ["*more"] * several[0], [f"{name}={name}" for name in names]
    words = ["**others"] * several[1]
    parameters = [*placed[:alone], *(["/"] if alone else []), *placed[alone:]]
    parameters += stars or (["*"] if names else [])
    first = "p0" if count else "more[0]"
    condition = "" if count else "more and "
    tensor, refuse, name, original = _MARKS
    own = "".join(f"f{k}, " for k in range(free))
    text = f"""
def make({own}):
    def call({", ".join([*parameters, *names, *words])}):
        if {condition}not isinstance({first}, {tensor}):
            refuse = {refuse}
            raise refuse({name}, {first})
        original = {original}
        return original({", ".join([*placed, *stars, *named, *words])})
        ({own})
    return call
"""
    scope: dict[str, Any] = {}
    exec(compile(text, "<flowvm checking>", "exec"), scope)
    code: CodeType = scope["make"](*range(free)).__code__
    return code
