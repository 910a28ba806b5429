"""Nodes of a graph, and values that hold nodes.

Invariants
- `users` of a node are the nodes whose `args` or `kwargs` name it: whatever sets these sees to it;
- lists and dicts in `args` and `kwargs` cannot be changed in place, or `users` would be wrong.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from flowvm.errors import ArgumentError, ArgumentTypeError, GraphError
from flowvm.loading.listing import listing

__all__ = ["Node", "map_aggregate", "map_arg"]
__dir__ = listing(globals())

OPS = ("placeholder", "get_attr", "call_function", "call_method", "call_module", "output")
_IN_PLACE = {operator.setitem, operator.delitem, setattr, delattr, print} | {
    getattr(operator, name)
    for name in (
        "iadd", "iand", "iconcat", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow",
        "irshift", "isub", "itruediv", "ixor",
    )
}  # fmt: skip


Target = Callable[..., Any] | str  # what a node calls, for annotations


def _fixed(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise ArgumentTypeError(
        f"a {type(self).__name__} in a node's arguments is not changed in place; set node.args or "
        f"node.kwargs anew"
    )


class immutable_list(list[object]):  # noqa: N801 - PyTorch's name
    """A list in a node's arguments."""

    append = extend = insert = pop = remove = reverse = sort = clear = _fixed
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _fixed

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __reduce__(self) -> tuple[type[immutable_list], tuple[list[object]]]:
        return type(self), (list(self),)


class immutable_dict(dict[Any, Any]):  # noqa: N801 - PyTorch's name
    """A dict in a node's arguments."""

    clear = pop = popitem = setdefault = update = __setitem__ = __delitem__ = __ior__ = _fixed

    def __reduce__(self) -> tuple[type[immutable_dict], tuple[dict[Any, Any]]]:
        return type(self), (dict(self),)


def map_aggregate(a: object, fn: Callable[[Any], object]) -> Any:
    """Return `a` with each leaf replaced by `fn(leaf)`.  Leaves are all values but tuples, lists,
    dicts and slices.

    >>> flow.fx.node.map_aggregate({"a": [1, (2,)]}, lambda leaf: leaf * 10)
    {'a': [10, (20,)]}
    """
    if isinstance(a, tuple):
        items = [map_aggregate(inner, fn) for inner in a]
        return type(a)(*items) if hasattr(a, "_fields") else tuple(items)
    if isinstance(a, list):
        return immutable_list([map_aggregate(inner, fn) for inner in a])
    if isinstance(a, dict):
        return immutable_dict({key: map_aggregate(inner, fn) for key, inner in a.items()})
    if isinstance(a, slice):
        return slice(*(map_aggregate(part, fn) for part in (a.start, a.stop, a.step)))
    return fn(a)


def map_arg(a: object, fn: Callable[[Node], object]) -> Any:
    """Return `a` with each node in it replaced by `fn(node)`.

    >>> graph = flow.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> flow.fx.node.map_arg([x, 3], lambda node: node.name)
    ['x', 3]
    """
    return map_aggregate(a, lambda leaf: fn(leaf) if isinstance(leaf, Node) else leaf)


# public: fx
class Node:
    """One step of a graph.

    op      "placeholder" (an input), "get_attr" (an attribute of the module), "call_function",
            "call_method" (of its first argument), "call_module", or "output"
    target  the input's, attribute's, method's or module's name, or the function that is called
    args    what it is called with: nodes, and values that are no tensors; `kwargs` likewise.  Both
            may be set
    users   nodes that name this one, in their order (a dict whose values are None)
    meta    a dict for whoever looks at the graph; of `make_fx` "shape", "dtype", "stride" and
            "tensor_meta" of its tensor, "line", "scope" (the path of the module that ran), "phase"

    >>> traced = flow.fx.symbolic_trace(lambda x: flow.relu(x) + 1)
    >>> [(node.op, node.name) for node in traced.graph.nodes][:3]
    [('placeholder', 'x'), ('call_function', 'relu'), ('call_function', 'add')]
    """

    def __init__(
        self, graph: Any, name: str, op: str, target: Any, args: tuple[object, ...],
        kwargs: Mapping[str, object], return_type: object = None,
    ) -> None:  # fmt: skip
        if op not in OPS:
            raise ArgumentError(f"fx.Node: op is one of {', '.join(OPS)}, got {op!r}")
        if op == "call_function" and not callable(target):
            raise ArgumentError(
                f"fx.Node [graph = {graph!r}, name = {name!r}]: the target of a call_function is a "
                f"function, got {target!r}"
            )
        if op != "call_function" and not isinstance(target, str):
            raise ArgumentError(f"fx.Node: the target of a {op} is a string, got {target!r}")
        self.graph, self.name, self.op, self.target, self.type = (
            graph,
            name,
            op,
            target,
            return_type,
        )
        self.users: dict[Node, None] = {}
        self.meta: dict[str, Any] = {}
        self._used: dict[Node, None] = {}
        self._prev = self._next = self
        self._erased = False
        self._args: tuple[Any, ...] = ()
        self._kwargs: Mapping[str, Any] = immutable_dict()
        self._named(args, kwargs)

    def _named(self, args: object, kwargs: Mapping[str, object]) -> None:
        """Set the arguments."""
        if not isinstance(args, (tuple, list)):
            raise ArgumentTypeError(f"args of node {self.name} is a tuple, got {args!r}")
        names: dict[Node, None] = {}

        def see(node: Node) -> Node:
            if node.graph is not self.graph:
                raise GraphError(
                    f"node {self.name} cannot name {node.name}, which is of another graph; "
                    f"Graph.node_copy brings it over"
                )
            names.setdefault(node)
            return node

        new = map_arg(tuple(args), see), map_arg(dict(kwargs), see)
        for node in self._used:
            node.users.pop(self, None)
        self._args, self._kwargs = new
        self._used = names
        for node in names:
            node.users.setdefault(self)

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments."""
        return self._args

    @args.setter
    def args(self, args: tuple[Any, ...]) -> None:
        self._named(args, self._kwargs)

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Arguments by name."""
        return self._kwargs

    @kwargs.setter
    def kwargs(self, kwargs: Mapping[str, Any]) -> None:
        self._named(self._args, kwargs)

    @property
    def all_input_nodes(self) -> list[Node]:
        """The nodes in the arguments, each once."""
        return list(self._used)

    @property
    def next(self) -> Node:
        """The node behind it."""
        return self._next

    @property
    def prev(self) -> Node:
        """The node before it."""
        return self._prev

    @property
    def stack_trace(self) -> str | None:
        """The line of code from which the node was traced, if it is known."""
        return self.meta.get("stack_trace") or self.meta.get("line") or None

    # --- edits

    def update_arg(self, idx: int, arg: object) -> None:
        """Put `arg` in the place of a positional argument."""
        args = list(self._args)
        args[idx] = arg
        self.args = tuple(args)

    def insert_arg(self, idx: int, arg: object) -> None:
        """Put `arg` in front of a positional argument."""
        if not 0 <= idx <= len(self._args):
            raise ArgumentError(
                f"insert_arg: idx is between 0 and {len(self._args)}, the number of args, got {idx}"
            )
        self.args = (*self._args[:idx], arg, *self._args[idx:])

    def update_kwarg(self, key: str, arg: object) -> None:
        """Put `arg` in the place of an argument by name."""
        self.kwargs = {**self._kwargs, key: arg}

    def replace_input_with(self, old_input: Node, new_input: object) -> None:
        """Name `new_input` wherever the arguments name `old_input`."""

        def other(node: Node) -> object:
            return new_input if node is old_input else node

        self._named(map_arg(self._args, other), map_arg(dict(self._kwargs), other))

    def replace_all_uses_with(
        self, replace_with: Node, delete_user_cb: Callable[[Node], bool] = lambda user: True,
        *, propagate_meta: bool = False,
    ) -> list[Node]:  # fmt: skip
        """Replace this node by `replace_with` in the arguments of each user with
        `delete_user_cb(user)`.  Return these users.
        """
        if propagate_meta:
            if replace_with.meta:
                raise GraphError(
                    f"propagate_meta=True, and {replace_with.name} has meta of its own already"
                )
            replace_with.meta.update(self.meta)
        changed = [user for user in self.users if delete_user_cb(user)]
        for user in changed:
            user.replace_input_with(self, replace_with)
        return changed

    def prepend(self, x: Node) -> None:
        """Move `x` to the place in front of this node."""
        if x.graph is not self.graph:
            raise GraphError(f"cannot move {x.name} before {self.name}: it is of another graph")
        if x is self:
            return
        x._unlink()
        before = self._prev
        before._next, x._prev, x._next, self._prev = x, before, self, x

    def append(self, x: Node) -> None:
        """Move `x` to the place behind this node."""
        if self._next is not x:
            self._next.prepend(x)

    def _unlink(self) -> None:
        self._prev._next, self._next._prev = self._next, self._prev

    def is_impure(self, impure_random: bool = True) -> bool:
        """Return True if the node must run even without users: an input, the output, or a node that
        changes a value in place.
        """
        if self.op in ("placeholder", "output"):
            return True
        if self.op == "call_module":
            module = self.graph.owning_module
            return bool(module is not None and module.get_submodule(self.target).training)
        impure = getattr(self.target, "is_impure", None)
        if impure is not None:
            return bool(impure) or "out" in self.kwargs
        name = _plain_name(self.target)
        return (
            self.target in _IN_PLACE
            or self.kwargs.get("out") is not None
            or bool(self.kwargs.get("inplace"))
            or (name.endswith("_") and not name.startswith("__"))
            or (impure_random and ("rand" in name or "dropout" in name))
        )

    # --- in print

    def format_node(self) -> str:
        """One line: %y : [num_users=1] = call_function[target=relu](args = (%x,), kwargs = {})."""
        if self.op == "output":
            return f"return {text(self.args[0])}"
        head = (
            f"%{self.name} : [num_users={len(self.users)}] = {self.op}[target={target_name(self)}]"
        )
        if self.op in ("placeholder", "get_attr"):
            return head
        return f"{head}(args = {text(self.args)}, kwargs = {text(self.kwargs)})"

    def __repr__(self) -> str:
        return self.name


def _plain_name(target: object) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def text(value: object) -> str:
    """A value in print, its nodes as %name."""
    if isinstance(value, Node):
        return f"%{value.name}"
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        inside = ", ".join(map(text, value))
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, list):
        return f"[{', '.join(map(text, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice({text(value.start)}, {text(value.stop)}, {text(value.step)})"
    return value.__name__ if isinstance(value, type) else repr(value)


def target_name(node: Node) -> str:
    """The target in print: of a builtin function, with its module."""
    target = node.target
    if isinstance(target, str):
        return target
    name = getattr(target, "__name__", repr(target))
    if isinstance(target, types.BuiltinFunctionType) and target.__module__:
        module = target.__module__.lstrip("_")
        return name if module == "builtins" else f"{module}.{name}"
    return str(name)
