"""`flow.utils.tensorboard`: TensorBoard's SummaryWriter, through tensorboardX or tensorboard.

Tensors among the arguments are handed on as NumPy arrays.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flowvm.eager.tensor import Tensor
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand
from flowvm.loading.lazy import lazy
from flowvm.loading.listing import listing, own_names
from flowvm.meta.dtype import bfloat16, float32

if TYPE_CHECKING:
    from flowvm.graph.logical.logical import LogicalGraph
    from flowvm.nn.graph import function
    from flowvm.utils import event_files
else:
    event_files = lazy("flowvm.utils.event_files")
    function = lazy("flowvm.nn.graph.function")

__dir__ = listing(globals())


class SummaryWriter:
    """The SummaryWriter of tensorboardX, with its arguments and methods; with statements close it.

    Where only the package tensorboard is installed it writes by that: scalars, histograms, images,
    figures, sounds, texts, hyperparameters, precision and recall, graphs; ConfigError for the rest
    (embeddings, meshes, videos, layouts).  ConfigError where neither is installed.

    >>> writer = SummaryWriter("runs/first")
    >>> writer.add_scalar("loss", loss, step)
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        self._writer = _new_writer(args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_writer" not in vars(self):
            raise AttributeError(f"SummaryWriter has no {name!r}")
        method = getattr(self._writer, name)
        if not callable(method):
            return method

        @functools.wraps(method)
        def call(*args: object, **kwargs: object) -> Any:
            return method(*map(_plain, args), **{k: _plain(v) for k, v in kwargs.items()})

        return call

    def add_graph(
        self,
        model: Any,
        input_to_model: Any = None,
        verbose: bool = False,
        use_strict_trace: bool = True,
    ) -> None:
        """Write the graph of `model` (a module, a function or an nn.Graph) called with
        `input_to_model`, a tensor or a tuple of arguments.  TensorBoard's page of graphs shows ops
        in the boxes of their modules, with shapes and lines.

        `verbose` also prints it.  `use_strict_trace` has no meaning here.  CaptureError where code
        reads a value.
        """
        alone = isinstance(self._writer, event_files.EventWriter)
        args = input_to_model if type(input_to_model) in (tuple, list) else (input_to_model,)
        graph = function.traced(model, args, {}, "add_graph").graph
        package = event_files.PACKAGE if alone else "tensorboardX.proto"
        graph_def = _graph_def(graph, event_files.proto("graph", package))
        if verbose:
            print(graph)
        if alone:
            self._writer.add_graph_def(graph_def)
        else:
            self._writer.file_writer.add_onnx_graph(graph_def)

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _new_writer(args: Any, kwargs: Any) -> Any:
    try:
        writer = importlib.import_module("tensorboardX").SummaryWriter
    except ImportError:
        writer = event_files.EventWriter
    return writer(*args, **kwargs)


def _graph_def(graph: LogicalGraph, proto: Any) -> Any:
    """Return the graph as TensorFlow's message, which TensorBoard draws.  A node's input is the
    last writer of the buffer.  Slashes in a name separate boxes.
    """
    graph_def = proto.GraphDef()
    wrote: dict[Buffer, str] = {}

    def add(name: str, op: str, sources: Iterable[Operand], results: Iterable[Operand]) -> str:
        node = graph_def.node.add(name=name, op=op)
        node.input.extend(dict.fromkeys(wrote[o.buffer] for o in sources if o.buffer in wrote))
        for result in results:
            shape = node.attr["_output_shapes"].list.shape.add()
            for size in result.meta.shape:
                shape.dim.add(size=size)
        written: str = node.name
        return written

    def inside(name: str) -> str:
        return f"{graph.name}/{name.replace('.', '/')}"

    for k, operand in enumerate(graph.inputs):
        name = f"input/{operand.buffer.name or k}"
        wrote[operand.buffer] = add(name, "Input", (), (operand,))
    for node in graph.nodes:
        for operand in node.inputs:
            buffer = operand.buffer
            if buffer.kind is BufferKind.VARIABLE and buffer not in wrote:
                name = inside(buffer.name or f"tensor_{buffer.number}")
                wrote[buffer] = add(name, "Variable", (), (operand,))
        name = inside(f"{node.scope}.{node.operator.name}_{node.number}".lstrip("."))
        node_def = add(name, node.operator.name, node.inputs, node.outputs)
        if line := node.line:
            graph_def.node[-1].attr["line"].s = line.encode()
        wrote.update({operand.buffer: node_def for operand in node.written()})
    for k, operand in enumerate(graph.outputs):
        add(f"output/{k}", "Output", (operand,), (operand,))
    return graph_def


def _plain(value: Any) -> Any:
    """A value with arrays, or numbers, in place of tensors."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        array = (value.to(float32) if value.dtype is bfloat16 else value).numpy()
        return array.item() if array.ndim == 0 else array
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    return value


__all__ = own_names(globals())
