"""`make_fx`: the LogicalGraph of a call on examples as nodes.

    gm = flow.fx.make_fx(model)(x)
    for node in gm.graph.nodes:
        print(node.op, node.name, node.target, node.args, node.meta["shape"])
    gm(x)

Nodes are operators, or views of a value, with shapes and dtypes; modules are seen by
`meta["scope"]`, the path of the module that ran.  A value that a node changes in place is that node
from then on.  They run as eager calls, without gradients, on inputs of the shapes and dtypes of the
examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flowvm.autograd import no_grad
from flowvm.eager.autocast import autocasting
from flowvm.eager.interpreter import Operator, call_into
from flowvm.eager.live import Live, now
from flowvm.eager.tensor import Tensor, alias, new_tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.fx.code import Calling
from flowvm.fx.graph import Graph
from flowvm.fx.graph_module import GraphModule
from flowvm.fx.node import Node
from flowvm.graph.capture.trees import flatten, unflatten
from flowvm.graph.logical.nodes import Buffer, Operand, OpNode
from flowvm.loading.listing import listing
from flowvm.meta.dtype import DType
from flowvm.meta.meta import TensorMeta
from flowvm.nn.graph.function import Traced, traced
from flowvm.vm.callers.tracebacks import border
from flowvm.vm.machine.words import OPERAND

__all__ = ["make_fx"]
__dir__ = listing(globals())


class Call:
    """The target of a "call_function": an operator as a function of its operands, then its
    attributes, then its numbers.  `out` has the tensors to write into.
    """

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.__name__ = operator.name
        self.is_impure = bool(operator.signature.writes)

    def __call__(self, *args: Any, out: Sequence[Tensor] | None = None) -> Any:
        count = len(self.operator.signature.inputs)
        tensors, rest = args[:count], args[count:]
        split = len(rest) - len(self.operator.signature.scalars)
        attrs, numbers = rest[:split], [now(n) for n in rest[split:]]
        if out is not None:
            call_into(self.operator, tuple(out), tensors, attrs, tuple(numbers))
            for tensor in out:
                tensor.bump()
            return tuple(out) if len(out) > 1 else out[0]
        result = self.operator.call(*tensors, *attrs, *numbers)
        written = self.operator.signature.written(tensors)  # fmt: skip
        return written[0] if len(written) == 1 and not self.operator.signature.outputs else result

    def __repr__(self) -> str:
        return f"<operator {self.__name__}>"


def view(
    value: Tensor, shape: Iterable[int], stride: Iterable[int], offset: int, dtype: DType
) -> Tensor:
    """Return the elements of `value`'s memory in this shape with these strides, from `offset`
    elements behind its first one on.
    """
    meta = TensorMeta.of(tuple(shape), dtype, value._meta.device, tuple(stride))
    return alias(value, meta, offset * dtype.itemsize)


def item(values: Sequence[object], place: int) -> Any:
    """One of the results of a node that gives several."""
    return values[place]


class _Build:
    """The nodes of a capture.  `whole` has, for each buffer, the node of its present value."""

    def __init__(self, graph: Graph, trace: Traced) -> None:
        self.graph, self.own = graph, trace.whole
        self.whole: dict[Buffer, tuple[Node, Operand]] = {}
        self.views: dict[tuple[Node, int, TensorMeta], Node] = {}
        self.held: dict[str, Tensor] = {}  # the values of "get_attr"
        for name, operand in zip(trace.names, trace.graph.inputs, strict=True):
            node = self.node(name, "placeholder", name, (), {}, _meta(operand.meta))
            self.whole[operand.buffer] = node, operand
        for step in trace.graph.nodes:
            self.add(step)
        ends: list[Any] = [self.place(o, {"line": "", "scope": ""}) for o in trace.graph.outputs]
        result = unflatten(trace.results, iter(ends))
        graph.output(result).meta.update(line="", scope="")

    def node(
        self,
        name: str,
        op: str,
        target: object,
        args: tuple[object, ...] | None,
        kwargs: Mapping[str, object] | None,
        meta: Mapping[str, object],
    ) -> Node:
        created = self.graph.create_node(op, target, args, kwargs, name)
        created.meta.update(meta)
        return created

    def add(self, node: OpNode) -> None:
        operator = node.operator
        facts = {"line": node.line, "scope": node.scope, "phase": node.phase}
        inputs = [self.place(o, facts) for o in node.inputs]
        args = (*inputs, *node.attrs, *node.scalars)
        if node.into:
            into = [self.place(o, facts) for o in node.outputs]
            created = self.call(operator, args, {"out": tuple(into)}, facts, node.outputs[0].meta)
            for operand in node.outputs:
                self.changed(operand, created)
            return
        only = node.outputs[0].meta if len(node.outputs) == 1 else None
        created = self.call(operator, args, {}, facts, only)
        for access, operand in node.accesses():
            if access == "mut" and operand in node.inputs:
                self.changed(operand, created)
        for place, operand in enumerate(node.outputs):
            own = created
            if only is None:
                meta = {**_meta(operand.meta), **facts}
                own = self.node("item", "call_function", item, (created, place), {}, meta)
            self.whole[operand.buffer] = own, operand

    def call(
        self,
        operator: Operator,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        facts: Mapping[str, object],
        meta: TensorMeta | None,
    ) -> Node:
        meta_facts = _meta(meta) if meta else {}
        name = operator.name
        target = Call(operator)
        target.is_impure |= any(isinstance(value, Live) for value in args)  # it draws
        return self.node(name, "call_function", target, args, kwargs, {**meta_facts, **facts})

    def changed(self, operand: Operand, by: Node) -> None:
        """Record `by` as the node of a buffer's value if it wrote the whole buffer.  After a
        partial write the earlier node stays: its value was changed in place.
        """
        _, before = self.whole[operand.buffer]
        if (before.offset, before.meta) == (operand.offset, operand.meta):
            self.whole[operand.buffer] = by, operand

    def place(self, operand: Operand, facts: Mapping[str, object]) -> Node:
        """Return the node of an operand's value."""
        buffer = operand.buffer
        if buffer not in self.whole:
            name, own = buffer.name or "tensor", self.own.get(buffer, operand)
            path, number = name, 0
            while path in self.held:
                number += 1
                path = f"{name}_{number}"
            node = self.node(path, "get_attr", path, (), {}, _meta(own.meta))
            ref = buffer.held.id + (own.offset << OPERAND.STORAGE_BITS)
            self.held[path] = new_tensor(ref, own.meta, buffer.held)
            self.whole[buffer] = node, own
        node, whole = self.whole[buffer]
        if (whole.offset, whole.meta) == (operand.offset, operand.meta):
            return node
        key = node, operand.offset, operand.meta
        if key not in self.views:
            dtype = operand.meta.dtype
            offset = (operand.offset - whole.offset) // dtype.itemsize
            args = (node, tuple(operand.meta.shape), operand.meta.stride, offset, dtype)
            meta = {**_meta(operand.meta), **facts}
            self.views[key] = self.node("view", "call_function", view, args, {}, meta)
        return self.views[key]


def _meta(meta: TensorMeta) -> dict[str, object]:
    return {
        "shape": meta.shape, "dtype": meta.dtype, "stride": meta.stride, "tensor_meta": meta,
        "line": "", "scope": "",
    }  # fmt: skip


class _Examples(Calling):
    """Calls like that on the examples: the tensors among the arguments are the inputs."""

    by_name = False

    def __init__(self, trace: Traced) -> None:
        self._trace = trace

    def inputs(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Sequence[object]:
        """See Calling; ArgumentError for another structure, other numbers, shapes or dtypes."""
        trace = self._trace
        leaves: list[Tensor] = []
        structure = flatten((args, kwargs), leaves)
        metas = [o.meta for o in trace.graph.inputs]
        if structure != trace.arguments or [t._meta.dense() for t in leaves] != metas:
            raise ArgumentError(
                f"{trace.graph.name} was traced for tensors {metas}, and is called with "
                f"{[t._meta for t in leaves]}, or with other arguments that are not tensors"
            )
        for generator, drawn in trace.draws:
            drawn[0] = generator.draw_now()
        return [t.detach().contiguous() for t in leaves]

    @contextmanager
    def around(self) -> Iterator[None]:
        """See Calling."""
        with no_grad(), autocasting(None):
            yield


# public: fx
@border
def make_fx(f: Callable[..., object]) -> Callable[..., GraphModule]:
    """`make_fx(f)(*examples)`: what `f` (a module, a function, an nn.Graph) computes of examples,
    as a graph of operators.

    CaptureError where code reads a value of a tensor.

    >>> traced = flow.fx.make_fx(nn.Linear(2, 3))(flow.ones(4, 2))
    >>> [node.name for node in traced.graph.nodes]
    ['input_1', 'weight', 'bias', 'linear', 'output']
    >>> traced(flow.ones(4, 2)).shape
    flow.Size([4, 3])
    """
    if type(f) is type or not callable(f):
        raise ArgumentTypeError(f"fx.make_fx takes a module, a function or an nn.Graph, not {f!r}")

    @border
    def on_examples(*args: object, **kwargs: object) -> GraphModule:
        trace = traced(f, args, kwargs, "fx.make_fx")
        graph = Graph()
        held = _Build(graph, trace).held
        graph._calling = _Examples(trace)
        return GraphModule(held, graph, trace.graph.name)

    return on_examples
