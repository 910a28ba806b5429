"""`flow.utils._pytree` against Python's containers, and against PyTorch's."""

from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass

import pytest

import flowvm as flow
from flowvm.utils import _pytree as trees

Point = namedtuple("Point", "x y")
TREES = [
    3,
    None,
    (),
    [1, (2, None), {"b": 3, "a": [4]}],
    Point(1, [2, 3]),
    OrderedDict(z=1, a=(2,)),
    defaultdict(list, k=[1]),
    deque([1, (2,)], 5),
    {"empty": [], "deep": [[[1]]]},
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_a_tree_is_put_together_again(tree):
    leaves, spec = trees.tree_flatten(tree)
    again = spec.unflatten(leaves)
    assert again == tree
    assert type(again) is type(tree)
    assert spec.num_leaves == len(leaves) == len(trees.tree_leaves_with_path(tree))
    assert spec == trees.tree_structure(again)
    if isinstance(tree, deque):
        assert again.maxlen == tree.maxlen
    if isinstance(tree, defaultdict):
        assert again.default_factory is tree.default_factory


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_as_in_pytorch(tree):
    theirs = pytest.importorskip("torch").utils._pytree
    leaves, spec = trees.tree_flatten(tree)
    expected, theirs_spec = theirs.tree_flatten(tree)
    assert leaves == expected
    assert (spec.num_leaves, spec.num_nodes) == (theirs_spec.num_leaves, theirs_spec.num_nodes)
    paths = [trees.keystr(path) for path, _ in trees.tree_leaves_with_path(tree)]
    assert paths == [theirs.keystr(path) for path, _ in theirs.tree_leaves_with_path(tree)]


def test_trees_are_mapped():
    double = trees.tree_map(lambda x: 2 * x, {"a": 1, "b": (2, [3])})
    assert double == {"a": 2, "b": (4, [6])}
    total = trees.tree_map(lambda x, y: x + y, {"a": 1, "b": [2]}, {"b": [20], "a": 10})
    assert total == {"a": 11, "b": [22]}
    only = trees.tree_map_only(flow.Tensor, lambda t: t.shape, [flow.ones(2), 3, "s"])
    assert only == [(2,), 3, "s"]
    named = trees.tree_map_with_path(lambda path, x: trees.keystr(path), {"a": [1, Point(2, 3)]})
    assert named == {"a": ["['a'][0]", Point("['a'][1].x", "['a'][1].y")]}
    assert trees.tree_leaves([1, (2, 3)], is_leaf=lambda x: isinstance(x, tuple)) == [1, (2, 3)]
    assert trees.tree_all(bool, [1, (2,)])
    assert not trees.tree_any_only(int, lambda x: x > 3, [1, "s"])


def test_classes_are_registered():
    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

    @dataclass
    class Batch:
        x: int
        label: str

    trees.register_pytree_node(Pair, lambda p: ((p.a, p.b), None), lambda c, _: Pair(*c))
    trees.register_dataclass(Batch)
    pair = trees.tree_map(lambda x: x + x, [Pair(1, Batch(2, "s"))])[0]
    assert (pair.a, pair.b) == (2, Batch(4, "ss"))
    paths = [trees.keystr(path) for path, _ in trees.tree_leaves_with_path(Batch(1, ""))]
    assert paths == [".x", ".label"]

    class Output(OrderedDict):
        pass

    trees.register_pytree_node(
        Output, trees._dict_flatten, lambda c, keys: Output(zip(keys, c, strict=True)),
        flatten_with_keys_fn=trees._dict_flatten_with_keys,
    )  # fmt: skip
    assert type(trees.tree_map(abs, Output(a=-1))) is Output
    assert trees.tree_leaves_with_path(Output(a=-1)) == [((trees.MappingKey("a"),), -1)]
    with pytest.raises(ValueError, match="Pair is registered"):
        trees.register_pytree_node(Pair, lambda p: ((), None), lambda c, _: None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: trees.tree_map(max, [1, 2], [1, 2, 3]), "2 children in one and 3 in another"),
        (lambda: trees.tree_map(max, [1], (1,)), "a list in one is a tuple in another"),
        (lambda: trees.tree_map(max, {"a": 1}, {"b": 1}), "dict has"),
        (lambda: trees.tree_unflatten([1], trees.tree_structure([1, 2])), "1 leaves for a tree"),
        (lambda: trees.tree_unflatten([1], [1]), "needs a TreeSpec"),
    ],
)
def test_misuse(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
