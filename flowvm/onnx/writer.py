"""Writer: ONNX nodes and constants in the making, and the model built from them.

Values go by names.  A constant that is there already is used again; nodes that nothing needs are
left out of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.loading.lazy import lazy
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import DType, int64
from flowvm.meta.meta import TensorMeta
from flowvm.version import VERSION

if TYPE_CHECKING:
    import onnx
else:
    onnx = lazy("onnx")

# flowvm's name of a dtype -> ONNX's
_TYPES = {
    "bool": "BOOL", "uint8": "UINT8", "int8": "INT8", "int16": "INT16", "int32": "INT32",
    "int64": "INT64", "float16": "FLOAT16", "bfloat16": "BFLOAT16", "float32": "FLOAT",
    "float64": "DOUBLE",
}  # fmt: skip


def type_number(dtype: DType) -> int:
    """Return ONNX's number of a dtype.  ArgumentError for complex dtypes, which few of ONNX's ops
    accept.
    """
    if dtype.name not in _TYPES:
        raise ArgumentError(f"{dtype.name} has no translation to ONNX; compute with its parts")
    number: int = getattr(onnx.TensorProto, _TYPES[dtype.name])
    return number


# an input or output: its name, its dtype, and its sizes, which may be names
Place = tuple[str, DType, Sequence[int | str]]


class Writer:
    """The nodes and initializers written so far.

    opset   the version of ONNX's operators
    scope   of the nodes that come: the path of the user's module; `line`: the user's line
    origin  of the nodes that come, in words; `origins` has it for each node by its name
    values  what tensors from outside hold, by identity and meta: several writers of a model have
            one table, so that each is read once
    """

    def __init__(self, opset: int, values: dict[Any, tuple[Any, Any]] | None = None) -> None:
        self.opset = opset
        self.values = {} if values is None else values
        self.scope, self.line, self.origin = "", "", ""
        self.origins: dict[str, str] = {}
        self.nodes: list[Any] = []
        self.initializers: dict[str, Any] = {}
        self.parameters: dict[str, TensorMeta] = {}  # initializers that are the model's own
        self._constants: dict[Any, str] = {}
        self._names: set[str] = set()

    def name(self, base: str) -> str:
        """`base`, or with a number behind it if that name is taken."""
        name, number = base, 0
        while name in self._names:
            number += 1
            name = f"{base}_{number}"
        self._names.add(name)
        return name

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Add a node of one output.  Return the output's name."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, count: int, *inputs: str, **attributes: object) -> list[str]:
        """Add a node of `count` outputs.  Return their names."""
        place = "/".join(["", *self.scope.split(".")]) if self.scope else ""
        name = self.name(f"{place}/{kind}")
        outputs = [self.name(f"{name}_output_{k}") for k in range(count)]
        node = onnx.helper.make_node(kind, inputs, outputs, name=name, **attributes)
        node.doc_string = self.line
        self.origins[name] = self.origin
        self.nodes.append(node)
        return outputs

    def constant(self, values: Any, dtype: DType) -> str:
        """Return the name of a constant with these numbers."""
        stored = dtype.stored(np.asarray(values))
        key = (dtype.name, stored.shape, stored.tobytes())
        name = self._constants.get(key)
        if name is None:
            name = self._constants[key] = self.initializer("constant", stored, dtype)
        return name

    def ints(self, *values: int) -> str:
        """A vector of int64."""
        return self.constant(np.array(values, np.int64), int64)

    def initializer(self, name: str, stored: Array, dtype: DType) -> str:
        """Values that are in the file, from an array as `DType.stored` gives it."""
        name = self.name(name)
        self.initializers[name] = onnx.helper.make_tensor(
            name, type_number(dtype), stored.shape, stored.tobytes(), raw=True
        )
        return name

    def variable(self, name: str, held: Any, meta: TensorMeta, read: Callable[[], Array]) -> str:
        """Return the name of a value from outside: the tensor `held`, as the array that `read`
        returns.
        """
        name = self.name(name)
        key = id(held), meta
        if key not in self.values:
            stored = read()
            self.values[key] = (
                held,
                onnx.helper.make_tensor(
                    name, type_number(meta.dtype), stored.shape, stored.tobytes(), raw=True
                ),
            )
        self.initializers[name] = self.values[key][1]
        self.parameters[name] = meta
        return name

    # --- what is asked often --------------------------------------------------------------------

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """`x` in another shape; a size of 0 is one."""
        return self.op("Reshape", x, self.ints(*shape), allowzero=1)

    def transpose(self, x: str, order: Sequence[int]) -> str:
        """`x` with its dimensions in this order."""
        if list(order) == list(range(len(order))):
            return x
        return self.op("Transpose", x, perm=list(order))

    def cast(self, x: str, dtype: DType) -> str:
        """`x` as `dtype`."""
        return self.op("Cast", x, to=type_number(dtype))

    def expand(self, x: str, shape: Sequence[int]) -> str:
        """`x` repeated to `shape`."""
        return self.op("Expand", x, self.ints(*shape))

    # --- the model ------------------------------------------------------------------------------

    def model(
        self,
        name: str,
        inputs: Sequence[Place],
        outputs: Sequence[Place],
        as_inputs: bool,
        with_values: bool,
    ) -> Any:
        """The onnx.ModelProto.  Parameters are inputs too with `as_inputs`, and inputs alone
        without `with_values`.
        """
        needed = {n for n, *_ in outputs}
        nodes = []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                nodes.append(node)
                needed.update(node.input)
        values = {n: v for n, v in self.initializers.items() if n in needed}
        entries = list(inputs)
        if as_inputs or not with_values:
            entries += [(n, m.dtype, m.shape) for n, m in self.parameters.items() if n in needed]
        if not with_values:
            values = {n: v for n, v in values.items() if n not in self.parameters}
        graph = onnx.helper.make_graph(
            nodes[::-1], name, [_info(*one) for one in entries], [_info(*one) for one in outputs],
            list(values.values()),
        )  # fmt: skip
        opsets = [onnx.helper.make_opsetid("", self.opset)]
        version = onnx.helper.find_min_ir_version_for(opsets)
        return onnx.helper.make_model(
            graph, opset_imports=opsets, ir_version=max(8, version), producer_name="flowvm",
            producer_version=VERSION,
        )  # fmt: skip


def _info(name: str, dtype: DType, shape: Sequence[int | str]) -> Any:
    return onnx.helper.make_tensor_value_info(name, type_number(dtype), list(shape))


def need_onnx(asker: str) -> None:
    """Raise ArgumentError unless the package `onnx` can be imported."""
    try:
        _ = onnx.__version__
    except ImportError as error:
        raise ArgumentError(
            f"{asker} needs the package onnx, which is not installed here ({error}): "
            f"pip install onnx"
        ) from None
