"""Names of PyTorch or OneFlow that flowvm lacks, each with a sentence that says what to use
instead.

`import flowvm.sparse` works, and any name of it raises an AttributeError with this sentence.  So a
program fails where it uses such a name, and not where it imports it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from flowvm.errors import MissingNameError

ABSENT: Final = {
    "sparse.as_sparse_gradcheck": "gradcheck a function of the values, which makes the tensor",
    "sparse.solve": "scipy.sparse.linalg solves: flow.sparse.to_scipy(x)",
    **dict.fromkeys(
        ("sparse.SparseSemiStructuredTensor", "sparse.to_sparse_semi_structured"),
        "there are no kernels of 2:4 sparsity; x * mask, or flow.nn.utils.prune",
    ),
    "complex32": "complex numbers are complex64 and complex128 here",
    "chalf": "complex numbers are complex64 and complex128 here",
    "quantization": "there are no quantized kernels; bfloat16 and float16 there are",
    "ao": "there are no quantized kernels; bfloat16 and float16 there are",
    "classes": "there are no C++ extensions; an op of your own is a Python function (flow.ops)",
    "monitor": "see flow.profiler and flow.vm.stats()",
    "MaskedTensor": "functions of flow.masked take the mask beside the tensor",
    "masked_tensor": "functions of flow.masked take the mask beside the tensor",
    "as_masked_tensor": "functions of flow.masked take the mask beside the tensor",
    "nested_tensor": "pad, or nn.utils.rnn.pack_padded_sequence",
    "nn.quantized": "there are no quantized kernels; bfloat16 and float16 there are",
    "nn.qat": "nn.QatConv2d and the observers beside it; there are no quantized kernels",
    "nn.intrinsic": "nn.Graph and flow.compile fuse what can be fused",
    "nested": "there are no nested tensors; pad, or nn.utils.rnn.pack_padded_sequence",
    "distributed.rpc": "ranks run one program; distributed.send and recv exchange between two",
    "export": "capture with nn.Graph or flow.compile, and save that (Graph.save); flow.onnx.export",
    "package": "save a state_dict with flow.save; code is kept where code is kept",
    "_dynamo": "nothing compiles Python here; flow.compile captures what a function does",
    "_inductor": "nothing compiles Python here; flow.compile captures what a function does",
    "_C": "there is no C++ in flowvm; its ops are in flow.ops",
    "fx.passes.graph_drawer": "no drawings are made; print a graph, or its print_tabular()",
    "utils.cpp_extension": "there are no C++ extensions; an op of your own is a Python function",
    "utils.bottleneck": "see flow.profiler",
    "utils.mobile_optimizer": "graphs run where Python runs",
    "one_embedding": "a table lies in memory; nn.Embedding, or split it: weight.to_global",
    "boxing": "to_global changes placement and SBP; a Graph's are planned by its passes",
    "core": "there are no protobuf settings; a graph's are its config",
    "builtin_op": "there are no user ops of C++; an op of your own is a Python function (flow.ops)",
    "framework": "what OneFlow's programs import of it is in flowvm.compat.framework",
    "decode_onerec": "no files of records are read; a Dataset of yours does that",
    "read_onerec": "no files of records are read; a Dataset of yours does that",
    "distributed_partial_fc_sample": "all classes take part; cut the last layer: to_global(split)",
    "npu": "devices are the CPU and CUDA's",
    "cuda.nccl": "ranks exchange by flow.distributed, on CUDA by NCCL",
    "distributed.autograd": "ranks run one program; collectives of distributed.nn have gradients",
    "distributed.optim": "an optimizer of a global or fully_shard model is cut as its parameters",
    "distributed.nn.RemoteModule": "ranks run one program; distributed.send and recv exchange",
    "serialization.safe_globals": "flow.load builds no objects of a file's choice",
    "serialization.get_unsafe_globals_in_checkpoint": "flow.load builds no objects of files",
    "testing._internal": "PyTorch's own tests are not here; see flow.testing",
    "onnx.dynamo_export": "flow.onnx.export captures a call and writes it",
    "onnx.ExportOptions": "flow.onnx.export captures a call and writes it",
    "onnx.OperatorExportTypes": "flow.onnx.export writes ONNX's operators alone",
    "optim.optimizer": "Optimizer's public methods; PyTorch's helpers of its kernels are not here",
    "test": "OneFlow's own tests are run by tools/oneflow_tests.py",
    "nn.logsoftmax": "nothing has this name; nn.LogSoftmax and nn.functional.log_softmax",
    "nn.optimizer.optimizer.ParamGroup": "groups are dicts, as PyTorch's: optimizer.param_groups",
    "utils.data.items": "nothing has this name; a program's own dict has it",
    "utils.data._utils.worker": "errors of workers are raised in the loop that reads batches",
    "sysconfig": "there is nothing to build against; an op of your own is a Python function",
    "onnx._export": "flow.onnx.export captures a call and writes it",
    "distributed.checkpoint.state_dict._init_optim_state": "get_optimizer_state_dict makes it",
    "distributed.fsdp.LocalStateDictConfig": "FullStateDictConfig or ShardedStateDictConfig",
    "remat": "flow.utils.checkpoint computes a part of a model again in backward",
    **dict.fromkeys(
        ("COCOReader", "GPTIndexedBinDataReader", "RawReader"),
        "a Dataset of yours reads such files, for utils.data.DataLoader",
    ),
}


NONE: Final[Mapping[str, str]] = {}


def nothing_of(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module without names."""

    def missing(name: str) -> object:
        raise MissingNameError(f"flowvm.{module} has no {name!r}: {ABSENT[module]}", name)

    return missing


def other_names(
    module: str, known: Callable[[], Iterable[str]], late: Mapping[str, str] = NONE
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module with the names `known()`, of which those of `late` are
    imported from the modules there.  An unknown name raises an error that says what to use instead,
    or suggests a similar name.
    """

    def missing(name: str) -> object:
        if name in late:
            home = importlib.import_module(late[name])
            return home if late[name] == f"flowvm.{module}.{name}" else getattr(home, name)
        reason = ABSENT.get(f"{module}.{name}") or ABSENT.get(name)
        if reason:
            raise MissingNameError(f"flowvm.{module} has no {name!r}: {reason}", name)
        raise MissingNameError(f"flowvm.{module} has no {name!r}", name, known)

    return missing


def instead_of(name: str) -> str:
    """Return the end of a message about a name that flowvm lacks; "" if nothing is known about
    it.
    """
    return f": {ABSENT[name]}" if name in ABSENT else ""
