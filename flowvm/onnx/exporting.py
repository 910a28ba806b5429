"""`export`: a model as an ONNX file, by one call of it with examples.

Long because the names of `torch.onnx.export` are written out, with what each means here.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from flowvm.eager.interpreter import Operator
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, FlowError
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import OpNode
from flowvm.guards.regions import reverting
from flowvm.loading.lazy import lazy
from flowvm.nn.graph.tracing import Traced, traced
from flowvm.nn.module import Module
from flowvm.onnx.call import Call
from flowvm.onnx.expressions import Untranslated, elementwise
from flowvm.onnx.memory import Memory
from flowvm.onnx.rows import Values
from flowvm.onnx.translations import TRANSLATIONS
from flowvm.onnx.writer import Writer, need_onnx
from flowvm.ops.declare.elementwise import Elementwise
from flowvm.vm.callers.tracebacks import border

if TYPE_CHECKING:
    import onnx
else:
    onnx = lazy("onnx")

OPSET, OLDEST = 18, 18  # what is written where nothing is asked for, and what can be
MOST = (1 << 31) - (1 << 20)  # bytes of a file in one piece, which protobuf limits


class TrainingMode(enum.Enum):
    """In which mode `export` runs a module."""

    EVAL = 0
    PRESERVE = 1
    TRAINING = 2


@border
def export(
    model: Any,
    args: Any = (),
    f: str | os.PathLike[str] | IO[bytes] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    verbose: bool | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    dynamo: bool = True,
    external_data: bool = True,
    dynamic_shapes: Any = None,
    custom_translation_table: Mapping[Any, Any] | None = None,
    report: bool = False,
    optimize: bool = True,
    verify: bool = False,
    profile: bool = False,
    dump_exported_program: bool = False,
    artifacts_dir: str | os.PathLike[str] = ".",
    export_params: bool = True,
    keep_initializers_as_inputs: bool = False,
    dynamic_axes: Any = None,
    training: TrainingMode = TrainingMode.EVAL,
    operator_export_type: Any = None,
    do_constant_folding: bool = True,
    custom_opsets: Mapping[str, int] | None = None,
    export_modules_as_functions: bool | Collection[Any] = False,
    autograd_inlining: bool = True,
    fallback: bool = False,
) -> Any:
    """Write what `model` computes of `args` and `kwargs` to `f`, as ONNX; the onnx.ModelProto.

    model           a Module (run in `training` mode, EVAL unless said), a function, an nn.Graph
    args            the examples: a tensor, or a tuple of arguments.  Their shapes and dtypes, and
                    values that are no tensors, are the file's
    f               a path or an open file; None only returns the model
    input_names     of the tensors among args and kwargs in their order; else the parameters' names
    output_names    of the tensors of the result in their order; else "output", "output_0", ...
    opset_version   18, unless a newer one is given
    export_params   False: parameters are inputs, and their values are not in the file
    keep_initializers_as_inputs   parameters are inputs too, that have a value
    external_data   a model of more than 2 GiB has its values in a file beside `f`

    Parameters have their names.  `dynamic_axes`, `dynamic_shapes`, `custom_translation_table`,
    `custom_opsets`, `verify` and `export_modules_as_functions` are errors where they ask for
    something: shapes are those of the examples.  The rest is taken, and changes nothing: verbose,
    dynamo, report, optimize, profile, dump_exported_program, artifacts_dir, operator_export_type,
    do_constant_folding, autograd_inlining, fallback.

    ArgumentError without the package `onnx`, and for an op that has no translation, with the line
    that issued it; CaptureError where code reads a value of a tensor.
    """
    asked = {
        "dynamic_axes": dynamic_axes,
        "dynamic_shapes": dynamic_shapes,
        "custom_translation_table": custom_translation_table,
        "custom_opsets": custom_opsets,
        "verify": verify,
        "export_modules_as_functions": export_modules_as_functions,
    }
    for name, value in asked.items():
        if value:
            raise ArgumentError(f"onnx.export: {name} {_INSTEAD[name]}")
    need_onnx("onnx.export")
    opset = _opset(opset_version)
    if isinstance(args, Tensor):
        args = (args,)
    if type(args) not in (tuple, list):
        raise ArgumentTypeError(
            f"onnx.export: args is a tensor or a tuple of arguments, not {type(args).__name__}"
        )
    with _mode(model, training):
        trace = traced(model, args, kwargs or {}, "onnx.export")
    w = Writer(opset)
    inputs = _named("input_names", input_names, trace.names)
    ends = len(trace.graph.outputs)
    single = ["output"] if ends == 1 else [f"output_{k}" for k in range(ends)]
    outputs = _named("output_names", output_names, single)
    for name in (*inputs, *outputs):
        w.name(name)
    _translate(trace, w, inputs, outputs)
    proto = w.model(
        trace.graph.name,
        [(n, o.meta) for n, o in zip(inputs, trace.graph.inputs, strict=True)],
        [(n, o.meta) for n, o in zip(outputs, trace.graph.outputs, strict=True)],
        keep_initializers_as_inputs,
        export_params,
    )
    if f is not None:
        _save(proto, f, external_data)
    return proto


_INSTEAD = {
    "dynamic_axes": "cannot be given: sizes of a file are those of the examples; export once for "
    "each size",
    "dynamic_shapes": "cannot be given: sizes of a file are those of the examples; export once for "
    "each size",
    "custom_translation_table": "cannot be given: an op has the translation of "
    "flowvm.onnx.translations",
    "custom_opsets": "cannot be given: nodes are ONNX's own",
    "verify": "is not there: run the file with onnxruntime, and compare",
    "export_modules_as_functions": "cannot be given: nodes stand in one graph, named by module",
}


def _opset(version: int | None) -> int:
    newest = onnx.defs.onnx_opset_version()
    if version is None:
        return OPSET
    if type(version) is not int or not OLDEST <= version <= newest:
        raise ArgumentError(
            f"onnx.export: opset_version is {OLDEST} to {newest} with this onnx, got {version!r}"
        )
    return version


def _named(what: str, given: Sequence[str] | None, own: list[str]) -> list[str]:
    """Names, the given ones first."""
    if given is None:
        return own
    names = [*given, *own[len(given) :]]
    strings = all(isinstance(n, str) and n for n in names)
    if len(given) > len(own) or not strings or len(set(names)) != len(names):
        raise ArgumentError(
            f"onnx.export: {what} are at most {len(own)} different names, got {list(given)}"
        )
    return names


def _mode(model: Any, training: Any) -> reverting:
    """Modules of `model` in this mode, and then as they were."""
    name = getattr(training, "name", "")  # torch.onnx's enumeration has the same names
    if name not in TrainingMode.__members__:
        raise ArgumentTypeError(f"onnx.export: training is a TrainingMode, got {training!r}")
    training = TrainingMode[name]
    modules: list[Module] = []
    if isinstance(model, Module):
        modules = list(model.modules())
    elif hasattr(model, "_modules") and callable(model._modules):  # a graph, which has some
        modules = [module for _, module in model._modules()]
    before = [(m, m.training) for m in modules]

    def switch() -> None:
        for m in modules:
            if training is not TrainingMode.PRESERVE:
                m.training = training is TrainingMode.TRAINING

    def undo() -> None:
        for m, was in before:
            m.training = was

    return reverting(undo, switch)


# --- nodes ----------------------------------------------------------------------------------------


def _translate(trace: Traced, w: Writer, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    graph = trace.graph
    memory = Memory(graph, w)
    for name, operand in zip(inputs, graph.inputs, strict=True):
        if operand.meta.dtype.is_complex:
            raise ArgumentError(
                f"onnx.export: {name} is {operand.meta.dtype.name}, and few ops of ONNX know "
                f"complex numbers; give its real and imaginary parts"
            )
        memory.define(operand, name)
    for node in needed(graph):
        w.scope, w.line = node.scope, node.line
        try:
            values = _values(node, memory, w)
            _put(node, values, memory)
        except Untranslated as why:
            raise ArgumentError(
                f"onnx.export: {node.operator.name}{_where(node)} has no translation to ONNX "
                f"({why}).  {_ADVICE.get(node.phase, _advice(node))}"
            ) from None
        except FlowError as error:
            raise ArgumentError(
                f"onnx.export: {node.operator.name}{_where(node)}: {error}"
            ) from None
    w.scope = w.line = ""
    for name, operand in zip(outputs, graph.outputs, strict=True):
        try:
            w.nodes.append(onnx.helper.make_node("Identity", [memory.read(operand)], [name]))
        except ArgumentError as error:
            raise ArgumentError(f"onnx.export: {name}: {error}") from None


def needed(graph: LogicalGraph) -> list[OpNode]:
    """The nodes of which outputs, or variables, hang: all others are left out."""
    wanted = {o.buffer for o in graph.outputs}
    found = []
    for node in reversed(graph.nodes):
        written = {o.buffer for o in node.written()}
        if written & wanted or any(b.held is not None for b in written):
            found.append(node)
            wanted.update(o.buffer for o in node.inputs)
    return found[::-1]


def _values(node: OpNode, memory: Memory, w: Writer) -> Values:
    call, form = Call(node, memory, w), node.operator.form
    if isinstance(form, tuple) and isinstance(form[0], Elementwise):
        names, metas = [call.x(k) for k in range(call.count)], call.metas
        numbers = [call.attrs[n] for n in node.operator.scalars]
        op, pattern = form
        return [elementwise(w, op, pattern, names, metas, node.attrs, numbers, call.out)]
    translation: Callable[[Call], Values] | None = TRANSLATIONS.get(node.operator.name)
    if translation is None or node.operator.unsized:
        raise Untranslated("ONNX's nodes for it are not in flowvm.onnx.translations")
    return translation(call)


def _put(node: OpNode, values: Values, memory: Memory) -> None:
    """Where a node writes, the values that it gives."""
    if node.into:
        for operand, value in zip(node.outputs, values, strict=True):
            memory.write(operand, value or "")
        return
    if node.operator.writes:
        written = [o for access, o in node.accesses() if access == "mut"]
        for operand, value in zip(written, values, strict=True):
            memory.write(operand, value or "")
        return
    for operand, value in zip(node.outputs, values, strict=True):
        if value is not None:
            memory.define(operand, value)


def _where(node: OpNode) -> str:
    scope = f" in {node.scope}" if node.scope else ""
    return f"{scope} at {node.line}" if node.line else scope


_ADVICE = {
    "backward": "Export the forward computation alone.",
    "optimizer": "Export the forward computation alone.",
}


def _advice(node: OpNode) -> str:
    operator: Operator = node.operator
    if operator.name in ("batch_norm", "update_running_statistics"):
        return "It keeps statistics of batches, as modules do that train: call eval() on them."
    if "seed" in operator.scalars:
        return (
            "It draws random numbers, which differ from run to run: call eval() on modules, or "
            "make them outside and give them as an input."
        )
    return "Compute it outside of what is exported, or of other ops."


# --- the file -------------------------------------------------------------------------------------


def _save(proto: Any, f: Any, external_data: bool) -> None:
    if proto.ByteSize() <= MOST:
        onnx.save_model(proto, f)
        return
    if not external_data or not isinstance(f, (str, os.PathLike)):
        raise ArgumentError(
            "onnx.export: a model of more than 2 GiB needs a path for f and external_data=True"
        )
    beside = os.path.basename(os.fspath(f)) + ".data"
    onnx.save_model(proto, f, save_as_external_data=True, location=beside)
