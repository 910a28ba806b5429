"""`oneflow.framework` and `oneflow.nn.graph.util`: what OneFlow's programs import from inside it.

ArgsTree is a structure of arguments (tuples, lists, dicts, and what is in them), walked and mapped;
BalancedRanges are how a dimension is cut among ranks.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flowvm.eager.tensor import Tensor as Tensor
from flowvm.errors import ArgumentError
from flowvm.meta.dtype import DType, as_dtype
from flowvm.ops.collectives.texts import broadcast_bytes
from flowvm.ranks.world import rank

TensorTuple = list


def BalancedPartNums(total: int, part_size: int) -> list[int]:  # noqa: N802 - OneFlow's name
    """The lengths of `part_size` parts of `total` that differ by one at most, longer ones first."""
    if part_size < 1:
        raise ArgumentError(f"BalancedPartNums: there is at least one part, got {part_size}")
    each, more = divmod(total, part_size)
    return [each + (k < more) for k in range(part_size)]


def BalancedRanges(total: int, part_size: int) -> list[tuple[int, int]]:  # noqa: N802
    """The begin and the end of each of these parts."""
    ends = np.cumsum([0, *BalancedPartNums(total, part_size)]).tolist()
    return list(itertools.pairwise(ends))


def convert_oneflow_dtype_to_numpy_dtype(oneflow_dtype: DType) -> Any:
    """NumPy's type of a dtype; ArgumentError for one that NumPy has not."""
    if oneflow_dtype.name in ("bfloat16",):
        raise ArgumentError(f"NumPy has no {oneflow_dtype.name}")
    return np.dtype(oneflow_dtype.storage).type


def convert_numpy_dtype_to_oneflow_dtype(numpy_dtype: Any) -> DType:
    """The dtype of one of NumPy's types."""
    return as_dtype(np.dtype(numpy_dtype))


def _broadcast_py_object(obj: object, src: int = 0) -> object:
    """Return the object of rank `src`, on every rank."""
    return pickle.loads(broadcast_bytes(pickle.dumps(obj) if rank() == src else b"", src))


class NamedArg:
    """A node of an ArgsTree: a value, and its place in the arguments."""

    def __init__(self, prefix: str, name: str, global_index: int, value: object) -> None:
        self._prefix, self._name, self._global_index = prefix, name, global_index
        self._value = value

    def prefix(self) -> str:
        """The names of the nodes that it is in."""
        return self._prefix

    def name(self) -> str:
        """The name of this value."""
        return self._name

    def global_index(self) -> int:
        """The number of this value, in the order of the walk."""
        return self._global_index

    def value(self) -> Any:
        """The argument, or for a tuple, list or dict one with nodes."""
        return self._value

    def is_leaf(self) -> bool:
        """True unless it holds nodes."""
        return type(self._value) not in (tuple, list, dict)

    def __repr__(self) -> str:
        return f"(name: {self._prefix}{self._name}, idx: {self._global_index}, {self._value!r})"


class ArgsTree:
    """A structure of arguments: `iter_nodes`, `map_leaf`, `map_tuple_leaf`.

    gen_name    nodes get names: `root_prefix`, `root_name`, and their places
    """

    def __init__(
        self,
        io_args: Any,
        gen_name: bool = False,
        root_prefix: str = "",
        root_name: str | None = None,
        tensor_type: object = Tensor,
    ) -> None:
        self._io_args = io_args
        self._nodes: list[NamedArg] = []
        self._root: NamedArg | None = None
        if gen_name:
            self._root = self._named(io_args, root_prefix, root_name)

    def _named(self, value: Any, prefix: str, name: str | None) -> NamedArg:
        number = len(self._nodes)
        node = NamedArg(prefix, str(number) if name is None else name, number, value)
        self._nodes.append(node)
        below = f"{prefix}{node.name()}-"
        if type(value) in (tuple, list):
            node._value = type(value)(self._named(v, below, None) for v in value)
        elif type(value) is dict:
            node._value = {k: self._named(v, below, str(k)) for k, v in value.items()}
        return node

    def iter_named_nodes(self) -> Iterator[tuple[str, NamedArg]]:
        """The nodes with their full names; ArgumentError without `gen_name`."""
        if self._root is None:
            raise ArgumentError("ArgsTree: nodes have names if it is made with gen_name=True")
        for node in self._nodes:
            yield node.prefix() + node.name(), node

    def gen_name_func(self) -> NamedArg | None:
        """The root node."""
        return self._root

    def iter_nodes(self) -> Iterator[Any]:
        """All values, containers before what is in them."""
        return self._walk(self._io_args)

    def _walk(self, value: Any) -> Iterator[object]:
        yield value
        if type(value) in (tuple, list):
            for inner in value:
                yield from self._walk(inner)
        elif type(value) is dict:
            for inner in value.values():
                yield from self._walk(inner)

    def map_leaf(self, leaf_fn: Callable[[object], object]) -> Any:
        """The structure with `leaf_fn(value)` in the place of each value that is no container."""
        return self._mapped(self._io_args, leaf_fn)

    def _mapped(self, value: Any, leaf_fn: Callable[[object], object]) -> Any:
        if type(value) in (tuple, list):
            return type(value)(self._mapped(v, leaf_fn) for v in value)
        if type(value) is dict:
            return {k: self._mapped(v, leaf_fn) for k, v in value.items()}
        return leaf_fn(value)

    def map_tuple_leaf(self, leaf_fn: Callable[[object], object]) -> tuple[Any, ...]:
        """Map arguments that are a tuple: `leaf_fn(value)` replaces each value that is no
        container.
        """
        return tuple(self._mapped(v, leaf_fn) for v in self._io_args)
