"""Trees of Python's containers, by the names that programs know: PyTorch's `utils._pytree`.

A tuple, a named tuple, a list, a dict (ordered, with a default, or plain), a deque, and what was
registered is a node; anything else, None too, is a leaf.  Leaves come in the containers' order.
What a graph takes and returns is another matter: `graph/capture/trees.py`.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.return_types import Results

__all__ = [
    "SUPPORTED_NODES",
    "GetAttrKey",
    "LeafSpec",
    "MappingKey",
    "PyTree",
    "SequenceKey",
    "TreeSpec",
    "arg_tree_leaves",
    "keystr",
    "register_dataclass",
    "register_pytree_node",
    "tree_all",
    "tree_all_only",
    "tree_any",
    "tree_any_only",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_is_leaf",
    "tree_iter",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_map_",
    "tree_map_only",
    "tree_map_only_",
    "tree_map_with_path",
    "tree_structure",
    "tree_unflatten",
]

PyTree = Any
F = TypeVar("F", bound=Callable[..., Any])
IsLeaf = Callable[[Any], bool] | None


@dataclass(frozen=True)
class SequenceKey:
    """The step from a sequence to its element number `idx`."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"


@dataclass(frozen=True)
class MappingKey:
    """The step from a dict to its value under `key`."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@dataclass(frozen=True)
class GetAttrKey:
    """The step from an object to its attribute `name`."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


class _Kind(NamedTuple):
    """The functions for nodes of a class: taking them apart, putting them together, and the keys of
    their children.
    """

    flatten: Callable[[Any], tuple[Iterable[Any], Any]]
    unflatten: Callable[[list[Any], Any], Any]
    keys: Callable[[Any], list[Any]]

    @property
    def flatten_fn(self) -> Callable[[object], tuple[Iterable[object], object]]:
        """PyTorch's name of `flatten`."""
        return self.flatten

    @property
    def unflatten_fn(self) -> Callable[[list[object], object], object]:
        """PyTorch's name of `unflatten`."""
        return self.unflatten


def _dict_flatten(d: Any) -> tuple[list[object], object]:
    return list(d.values()), list(d)


def _dict_unflatten(values: Iterable[Any], context: Any) -> dict[object, object]:
    return dict(zip(context, values, strict=True))


def _dict_flatten_with_keys(d: Any) -> tuple[list[tuple[object, object]], object]:
    return list(zip(_mapping(d), d.values(), strict=True)), list(d)


def _sequence(tree: Any) -> list[object]:
    return [SequenceKey(k) for k in range(len(tree))]


def _mapping(tree: Any) -> list[Any]:
    return [MappingKey(key) for key in tree]


_KINDS: dict[type, _Kind] = {
    tuple: _Kind(lambda t: (t, None), lambda c, _: tuple(c), _sequence),
    list: _Kind(lambda t: (t, None), lambda c, _: list(c), _sequence),
    dict: _Kind(
        lambda t: (t.values(), list(t)), lambda c, keys: dict(zip(keys, c, strict=True)), _mapping
    ),
    OrderedDict: _Kind(
        _dict_flatten, lambda c, keys: OrderedDict(zip(keys, c, strict=True)), _mapping
    ),
    defaultdict: _Kind(
        lambda t: (t.values(), [t.default_factory, list(t)]),
        lambda c, context: defaultdict(context[0], zip(context[1], c, strict=True)),
        _mapping,
    ),
    deque: _Kind(lambda t: (t, t.maxlen), lambda c, most: deque(c, most), _sequence),
}
_NAMED = _Kind(
    lambda t: (t, type(t)),
    lambda c, kind: kind(*c),
    lambda t: [GetAttrKey(name) for name in t._fields],
)


# an op's named results, whose classes take their elements together
_RESULTS = _Kind(
    lambda t: (t, type(t)),
    lambda c, kind: kind(c),
    lambda t: [GetAttrKey(name) for name in t.__match_args__],
)
_KINDS[namedtuple] = _NAMED  # type: ignore[index]  # as PyTorch calls the type of all of them
SUPPORTED_NODES = _KINDS


def _get_node_type(tree: object) -> object:
    return namedtuple if isinstance(tree, tuple) and hasattr(tree, "_fields") else type(tree)


def _kind_of(tree: object) -> _Kind | None:
    kind = _KINDS.get(type(tree))
    if kind is None and isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return _NAMED
    if kind is None and isinstance(tree, Results):
        return _RESULTS
    return kind


@dataclass(frozen=True, eq=True)
class TreeSpec:
    """A tree without its leaves: the class of the node, its context, and its children's."""

    type: Any
    context: Any
    children_specs: list[TreeSpec]

    @property
    def num_leaves(self) -> int:
        """The number of leaves."""
        return sum(child.num_leaves for child in self.children_specs)

    @property
    def num_nodes(self) -> int:
        """The number of nodes and leaves, with the root."""
        return 1 + sum(child.num_nodes for child in self.children_specs)

    @property
    def num_children(self) -> int:
        """The number of children of the root."""
        return len(self.children_specs)

    def children(self) -> list[TreeSpec]:
        """The specs of its root's children."""
        return list(self.children_specs)

    def child(self, index: int) -> TreeSpec:
        """The spec of child number `index`."""
        return self.children_specs[index]

    def is_leaf(self) -> bool:
        """Return True if the spec is a leaf and nothing else."""
        return False

    def unflatten(self, leaves: Iterable[object]) -> Any:
        """`tree_unflatten(leaves, self)`."""
        return tree_unflatten(leaves, self)

    def flatten_up_to(self, tree: object) -> list[Any]:
        """Return the parts of `tree` at this spec's leaves.  ArgumentError if `tree` differs above
        them.
        """
        parts: list[object] = []
        self._up_to(tree, parts)
        return parts

    def _up_to(self, tree: object, parts: list[object]) -> None:
        kind = _kind_of(tree)
        if kind is None or type(tree) is not self.type:
            raise ArgumentError(
                f"trees differ: a {self.type.__name__} in one is a {type(tree).__name__} in another"
            )
        children, context = kind.flatten(tree)
        items = list(children)
        if len(items) != self.num_children:
            raise ArgumentError(
                f"trees differ: a {self.type.__name__} has {self.num_children} children in one and "
                f"{len(items)} in another"
            )
        if isinstance(tree, Mapping):  # by key: the order may be another
            if missing := [key for key in tree if key not in self._keys()]:
                raise ArgumentError(f"trees differ: a dict has {missing} in one and not in another")
            items = [tree[key] for key in self._keys()]
        elif context != self.context and self.type is not deque:
            raise ArgumentError(f"trees differ: {self.context!r} in one, {context!r} in another")
        for spec, item in zip(self.children_specs, items, strict=True):
            spec._up_to(item, parts)

    def _keys(self) -> list[object]:
        keys: list[object] = self.context[1] if self.type is defaultdict else self.context
        return keys

    def __repr__(self) -> str:
        inside = ", ".join(map(repr, self.children_specs))
        return f"TreeSpec({self.type.__name__}, {self.context!r}, [{inside}])"


class LeafSpec(TreeSpec):
    """The spec of a leaf."""

    def __init__(self) -> None:
        super().__init__(None, None, [])

    num_leaves = property(lambda self: 1)

    def is_leaf(self) -> bool:
        return True

    def _up_to(self, tree: object, parts: list[object]) -> None:
        parts.append(tree)

    def __repr__(self) -> str:
        return "*"


def register_pytree_node(
    cls: type,
    flatten_fn: Callable[[Any], tuple[Iterable[object], object]],
    unflatten_fn: Callable[[list[Any], Any], object],
    *,
    serialized_type_name: str | None = None,
    to_dumpable_context: Callable[[Any], object] | None = None,
    from_dumpable_context: Callable[[Any], object] | None = None,
    flatten_with_keys_fn: Callable[[Any], tuple[Iterable[tuple[object, object]], object]]
    | None = None,
) -> None:
    """Let objects of `cls` be nodes: flatten_fn(object) is (children, context), and
    unflatten_fn(children, context) an object again; flatten_with_keys_fn's children are pairs with
    keys, as paths have them.

    What says how specs are written down has no meaning here: they are not.  ArgumentError: `cls` is
    registered.
    """
    if cls in _KINDS:
        raise ArgumentError(f"{cls.__name__} is registered as a node already")

    def keys(tree: object) -> list[Any]:
        if flatten_with_keys_fn is None:
            return [SequenceKey(k) for k, _ in enumerate(flatten_fn(tree)[0])]
        return [key for key, _ in flatten_with_keys_fn(tree)[0]]

    _KINDS[cls] = _Kind(flatten_fn, unflatten_fn, keys)


def register_dataclass(
    cls: type,
    *,
    field_names: Sequence[str] | None = None,
    drop_field_names: Sequence[str] = (),
    serialized_type_name: str | None = None,
) -> None:
    """Let objects of a dataclass be nodes whose children are their fields."""
    if not dataclasses.is_dataclass(cls):
        raise ArgumentTypeError(f"register_dataclass: {cls!r} is not a dataclass")
    every = [f.name for f in dataclasses.fields(cls) if f.init and f.name not in drop_field_names]
    names = every if field_names is None else list(field_names)
    if cls in _KINDS:
        raise ArgumentError(f"{cls.__name__} is registered as a node already")
    _KINDS[cls] = _Kind(
        lambda t: ([getattr(t, name) for name in names], None),
        lambda c, _: cls(**dict(zip(names, c, strict=True))),
        lambda t: [GetAttrKey(name) for name in names],
    )


def _flatten(tree: object, leaves: list[object], is_leaf: IsLeaf) -> TreeSpec:
    kind = None if is_leaf is not None and is_leaf(tree) else _kind_of(tree)
    if kind is None:
        leaves.append(tree)
        return _LEAF
    children, context = kind.flatten(tree)
    return TreeSpec(type(tree), context, [_flatten(c, leaves, is_leaf) for c in children])


_LEAF = LeafSpec()


def tree_flatten(tree: object, is_leaf: IsLeaf = None) -> tuple[list[Any], TreeSpec]:
    """Return (leaves, spec).  A node for which `is_leaf` is true is a leaf, too.

    >>> leaves, spec = flow.utils._pytree.tree_flatten({"a": 1, "b": [2, None]})
    >>> leaves
    [1, 2, None]
    >>> spec.unflatten([10, 20, 30])
    {'a': 10, 'b': [20, 30]}
    """
    leaves: list[object] = []
    return leaves, _flatten(tree, leaves, is_leaf)


def tree_unflatten(leaves: Iterable[object], treespec: TreeSpec) -> Any:
    """Return the tree of a spec with these leaves.  ArgumentError for another number of leaves."""
    if not isinstance(treespec, TreeSpec):
        raise ArgumentTypeError(f"tree_unflatten needs a TreeSpec, got {type(treespec).__name__}")
    items = list(leaves)
    if len(items) != treespec.num_leaves:
        raise ArgumentError(f"{len(items)} leaves for a tree of {treespec.num_leaves}: {treespec}")
    return _unflatten(iter(items), treespec)


def _unflatten(leaves: Iterator[object], spec: TreeSpec) -> Any:
    if spec.is_leaf():
        return next(leaves)
    kind = _KINDS.get(spec.type)
    if kind is None:
        kind = _RESULTS if issubclass(spec.type, Results) else _NAMED
    return kind.unflatten(
        [_unflatten(leaves, child) for child in spec.children_specs], spec.context
    )


def tree_iter(tree: object, is_leaf: IsLeaf = None) -> Iterator[Any]:
    """Yield the leaves, one after the other."""
    return iter(tree_leaves(tree, is_leaf))


def tree_leaves(tree: object, is_leaf: IsLeaf = None) -> list[Any]:
    """The leaves."""
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: object, is_leaf: IsLeaf = None) -> TreeSpec:
    """The spec."""
    return tree_flatten(tree, is_leaf)[1]


def tree_is_leaf(tree: object, is_leaf: IsLeaf = None) -> bool:
    """Return True if the tree is a leaf."""
    return (is_leaf is not None and is_leaf(tree)) or _kind_of(tree) is None


def arg_tree_leaves(*args: object, **kwargs: object) -> list[Any]:
    """The leaves of a call's arguments."""
    return tree_leaves((args, kwargs))


def tree_map(
    func: Callable[..., object], tree: object, *rests: object, is_leaf: IsLeaf = None
) -> Any:
    """Return a tree of `func`'s results for each leaf, and for the parts of `rests` in its place.

    >>> flow.utils._pytree.tree_map(lambda x, y: x + y, [1, (2,)], [10, (20,)])
    [11, (22,)]
    """
    leaves, spec = tree_flatten(tree, is_leaf)
    columns = [leaves, *(spec.flatten_up_to(rest) for rest in rests)]
    return spec.unflatten([func(*row) for row in zip(*columns, strict=True)])


def tree_map_(
    func: Callable[..., object], tree: object, *rests: object, is_leaf: IsLeaf = None
) -> Any:
    """Call `func` as `tree_map` does.  Return the tree itself."""
    tree_map(func, tree, *rests, is_leaf=is_leaf)
    return tree


Types = type | tuple[type, ...] | Callable[[Any], bool]


def _chooses(which: Any) -> Callable[[Any], bool]:
    if isinstance(which, (type, tuple)) or hasattr(which, "__args__"):
        return lambda leaf: isinstance(leaf, which)
    chosen: Callable[[Any], bool] = which
    return chosen


def tree_map_only(
    type_or_types_or_pred: Types,
    func: Callable[[Any], object],
    tree: object,
    is_leaf: IsLeaf = None,
) -> Any:
    """tree_map of the leaves of a class, or that a function is true of; others stay."""
    chosen = _chooses(type_or_types_or_pred)
    return tree_map(lambda leaf: func(leaf) if chosen(leaf) else leaf, tree, is_leaf=is_leaf)


def tree_map_only_(
    type_or_types_or_pred: Types,
    func: Callable[[Any], object],
    tree: object,
    is_leaf: IsLeaf = None,
) -> Any:
    """Call `func` as `tree_map_only` does.  Return the tree itself."""
    tree_map_only(type_or_types_or_pred, func, tree, is_leaf)
    return tree


def tree_all(pred: Callable[[Any], bool], tree: object, is_leaf: IsLeaf = None) -> bool:
    """Return True if `pred` is true of all leaves."""
    return all(map(pred, tree_iter(tree, is_leaf)))


def tree_any(pred: Callable[[Any], bool], tree: object, is_leaf: IsLeaf = None) -> bool:
    """Return True if `pred` is true of a leaf."""
    return any(map(pred, tree_iter(tree, is_leaf)))


def tree_all_only(
    type_or_types: Types, pred: Callable[[Any], bool], tree: object, is_leaf: IsLeaf = None
) -> bool:
    """Return True if `pred` is true of all leaves of a class."""
    return all(map(pred, filter(_chooses(type_or_types), tree_iter(tree, is_leaf))))


def tree_any_only(
    type_or_types: Types, pred: Callable[[Any], bool], tree: object, is_leaf: IsLeaf = None
) -> bool:
    """Return True if `pred` is true of a leaf of a class."""
    return any(map(pred, filter(_chooses(type_or_types), tree_iter(tree, is_leaf))))


def _paths(tree: object, path: tuple[object, ...], is_leaf: IsLeaf) -> Iterator[tuple[object, ...]]:
    kind = None if is_leaf is not None and is_leaf(tree) else _kind_of(tree)
    if kind is None:
        yield path
        return
    for key, item in zip(kind.keys(tree), kind.flatten(tree)[0], strict=True):
        yield from _paths(item, (*path, key), is_leaf)


def tree_flatten_with_path(
    tree: object, is_leaf: IsLeaf = None
) -> tuple[list[tuple[tuple[Any, ...], Any]], TreeSpec]:
    """([(path, leaf)], spec); a path is a tuple of keys.

    >>> found, _ = flow.utils._pytree.tree_flatten_with_path({"a": [1, 2]})
    >>> [(flow.utils._pytree.keystr(path), leaf) for path, leaf in found]
    [("['a'][0]", 1), ("['a'][1]", 2)]
    """
    leaves, spec = tree_flatten(tree, is_leaf)
    return list(zip(_paths(tree, (), is_leaf), leaves, strict=True)), spec


def tree_leaves_with_path(
    tree: object, is_leaf: IsLeaf = None
) -> list[tuple[tuple[Any, ...], Any]]:
    """[(path, leaf)]."""
    return tree_flatten_with_path(tree, is_leaf)[0]


def tree_map_with_path(
    func: Callable[..., object], tree: object, *rests: object, is_leaf: IsLeaf = None
) -> Any:
    """tree_map whose function gets the path first."""
    paths = list(_paths(tree, (), is_leaf))
    leaves, spec = tree_flatten(tree, is_leaf)
    columns = [paths, leaves, *(spec.flatten_up_to(rest) for rest in rests)]
    return spec.unflatten([func(*row) for row in zip(*columns, strict=True)])


def keystr(kp: Iterable[object]) -> str:
    """A path as Python would write it: "['a'][0]"."""
    return "".join(map(str, kp))
