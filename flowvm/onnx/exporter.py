"""`export`: a model as an ONNX file, by one call of it with examples."""

from __future__ import annotations

import enum
import io
import os
from collections.abc import Collection, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.files.writer import put
from flowvm.graph.capture.trees import flatten, unflatten
from flowvm.graph.logical.nodes import Operand
from flowvm.guards.regions import reverting
from flowvm.loading.lazy import lazy
from flowvm.nn.graph.function import Traced, parameter_names, traced
from flowvm.nn.module import Module
from flowvm.onnx import sizes
from flowvm.onnx.axes import Axes, by_name, by_tree
from flowvm.onnx.nodes import translated
from flowvm.onnx.writer import Place, Writer, need_onnx
from flowvm.vm.callers.tracebacks import border

if TYPE_CHECKING:
    import onnx
else:
    onnx = lazy("onnx")

OPSET, OLDEST = 18, 18  # the default opset, and the oldest
MOST = (1 << 31) - (1 << 20)  # bytes of a file in one piece, which protobuf limits


class TrainingMode(enum.Enum):
    """The mode in which `export` runs a module."""

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
    dynamic_axes: Mapping[str, object] | None = None,
    training: TrainingMode = TrainingMode.EVAL,
    operator_export_type: object = None,
    do_constant_folding: bool = True,
    custom_opsets: Mapping[str, int] | None = None,
    export_modules_as_functions: bool | Collection[object] = False,
    autograd_inlining: bool = True,
    fallback: bool = False,
) -> Any:
    """Write the graph of `model` for `args` and `kwargs` to `f`, as ONNX.  Return the
    onnx.ModelProto.

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

    dynamic_axes    sizes that the file leaves open: {"x": {0: "batch"}} by input or output name,
                    or {"x": [0]}, which makes names up
    dynamic_shapes  the same in the form of the arguments, or as a dict by parameter:
                    ({0: "batch"}, ("batch", None)); a name, a `torch.export.Dim`, its AUTO,
                    DYNAMIC or STATIC, None, or a number.  At most four names

    A model with open sizes is captured several times, with sizes of our own in their place: code
    that decides by a size decides as for those.  Random ops draw from the runtime's generator, from
    the same distributions.  Parameters have their names.
    `custom_translation_table`, `custom_opsets`, `verify` and `export_modules_as_functions` are
    errors where they ask for something.  The rest is taken, and changes nothing: verbose, dynamo,
    report, optimize, profile, dump_exported_program, artifacts_dir, operator_export_type,
    do_constant_folding, autograd_inlining, fallback.

    ArgumentError without the package `onnx`; for an op that has no translation, or none for every
    size, with the line that issued it.  CaptureError where code reads a value of a tensor.

    >>> proto = flow.onnx.export(flow.nn.Linear(4, 2), flow.ones(3, 4),
    ...                          dynamic_axes={"input": {0: "batch"}})
    >>> [d.dim_param or d.dim_value for d in proto.graph.output[0].type.tensor_type.shape.dim]
    ['batch', 2]
    """
    options = {
        "custom_translation_table": custom_translation_table,
        "custom_opsets": custom_opsets,
        "verify": verify,
        "export_modules_as_functions": export_modules_as_functions,
    }
    for name, value in options.items():
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
    inputs = _named("input_names", input_names, trace.names)
    ends = len(trace.graph.outputs)
    single = ["output"] if ends == 1 else [f"output_{k}" for k in range(ends)]
    outputs = _named("output_names", output_names, single)
    axes: dict[str, Axes] = {}
    if dynamic_axes and dynamic_shapes:
        raise ArgumentError("onnx.export: dynamic_axes and dynamic_shapes are given; give one")
    if dynamic_axes:
        places = zip(
            (*inputs, *outputs), (*trace.graph.inputs, *trace.graph.outputs), strict=True
        )  # an input's name comes first where an output has the same
        axes = by_name(dynamic_axes, {n: o.meta.ndim for n, o in reversed([*places])})
    elif dynamic_shapes:
        names = parameter_names(model, len(args))
        axes = by_tree(dynamic_shapes, args, kwargs or {}, names, inputs)
    if any(axes.get(n) for n in inputs):
        w, input_infos, results = _of_any_size(
            (model, training, args, kwargs or {}), opset, trace, inputs, outputs, axes
        )
    else:
        w = translated(trace, Writer(opset), inputs, outputs)
        input_infos, results = (
            _as_traced(inputs, trace.graph.inputs),
            _as_traced(outputs, trace.graph.outputs),
        )
    proto = w.model(
        trace.graph.name, input_infos, results, keep_initializers_as_inputs, export_params
    )
    if f is not None:
        _save(proto, f, external_data)
    return proto


_INSTEAD = {
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


def _named(what: str, first_names: Sequence[str] | None, own: list[str]) -> list[str]:
    """Return names, the given ones first."""
    if first_names is None:
        return own
    names = [*first_names, *own[len(first_names) :]]
    strings = all(isinstance(n, str) and n for n in names)
    if len(first_names) > len(own) or not strings or len(set(names)) != len(names):
        raise ArgumentError(
            f"onnx.export: {what} are at most {len(own)} different names, got {list(first_names)}"
        )
    return names


def _mode(model: object, training: TrainingMode) -> reverting:
    """Set modules of `model` to this mode, and restore theirs afterwards."""
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


# --- sizes ----------------------------------------------------------------------------------------


def _as_traced(names: Sequence[str], operands: Sequence[Operand]) -> list[Place]:
    return [(n, o.meta.dtype, o.meta.shape) for n, o in zip(names, operands, strict=True)]


def _of_any_size(
    call: tuple[Any, Any, Any, Mapping[str, Any]], opset: int, trace: Traced,
    inputs: Sequence[str], outputs: Sequence[str], axes: Mapping[str, Axes],
) -> tuple[Writer, list[Place], list[Place]]:  # fmt: skip
    """Return the model with named sizes, and its inputs and outputs.

    call    the model, its mode and its examples, which `trace` was made of
    """
    model, training, args, kwargs = call
    leaves: list[Tensor] = []
    tree = flatten((tuple(args), dict(kwargs)), leaves)
    examples = sizes.example_sizes(inputs, [tuple(t.shape) for t in leaves], axes)
    values: dict[Any, Any] = {}

    def translate(chosen: sizes.Sizes) -> tuple[Writer, sizes.Shapes]:
        others = []
        for name, t in zip(inputs, leaves, strict=True):
            shape = list(t.shape)
            for axis, dim in axes.get(name, {}).items():
                shape[axis] = chosen[dim]
            others.append(t if shape == list(t.shape) else t.new_empty(shape))
        positional, named = unflatten(tree, iter(others))
        with _mode(model, training):
            again = traced(model, positional, named, "onnx.export")
        shapes = [tuple(o.meta.shape) for o in again.graph.outputs]
        return translated(again, Writer(opset, values), inputs, outputs), shapes

    sizes_in_use = {n for node in trace.graph.nodes for o in node.inputs for n in o.meta.shape}
    probe, writers, shapes = sizes.translated(sizes.probes(examples, sizes_in_use), translate)
    where = {dim: (n, axis) for n in reversed(inputs) for axis, dim in axes.get(n, {}).items()}
    merged = sizes.Merged(probe, writers, where, examples)
    input_infos: list[Place] = []
    for n, t in zip(inputs, leaves, strict=True):
        own = axes.get(n, {})
        input_infos.append((n, t.dtype, [own.get(d, size) for d, size in enumerate(t.shape)]))
    results: list[Place] = [
        (n, o.meta.dtype, merged.dims(n, [s[k] for s in shapes], o.meta.shape, axes.get(n, {})))
        for k, (n, o) in enumerate(zip(outputs, trace.graph.outputs, strict=True))
    ]
    return merged.w, input_infos, results


# --- the file -------------------------------------------------------------------------------------


def _save(proto: Any, f: Any, external_data: bool) -> None:
    if proto.ByteSize() <= MOST:
        data, named = io.BytesIO(), isinstance(f, (str, os.PathLike))
        ending = os.path.splitext(os.fspath(f))[1] if named else ""
        form = onnx.serialization.registry.get_format_from_file_extension(ending)
        onnx.save_model(proto, data, format=form)
        put(f, data.getvalue(), "onnx.export")
        return
    if not external_data or not isinstance(f, (str, os.PathLike)):
        raise ArgumentError(
            "onnx.export: a model of more than 2 GiB needs a path for f and external_data=True"
        )
    beside = os.path.basename(os.fspath(f)) + ".data"
    onnx.save_model(proto, f, save_as_external_data=True, location=beside)
