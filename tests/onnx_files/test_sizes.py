"""Files for inputs of any size: onnxruntime runs them at other sizes than the examples."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import ArgumentError
from flowvm.nn import functional as F

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from flowvm.onnx import sizes as named
from tests.onnx_files.helpers import onnx, run, tensors_of

Make = Callable[..., tuple[Any, ...]]


def values(*shape: int) -> flow.Tensor:
    return flow.from_numpy(np.random.default_rng(0).standard_normal(shape, np.float32))


def at_sizes(model: Any, make: Make, sizes: Sequence[Sequence[int]], **options: Any) -> Any:
    """Export with the examples of the first sizes, and compare at all of them."""
    proto = flow.onnx.export(model, make(*sizes[0]), **options)
    onnx.checker.check_model(proto, full_check=True)
    if isinstance(model, nn.Module):
        model.eval()
    for chosen in sizes:
        args = make(*chosen)
        names = [i.name for i in proto.graph.input]
        values = dict(zip(names, [t.numpy() for t in tensors_of(args)], strict=True))
        outputs = run(proto, values)
        with flow.no_grad():
            expected = [t.numpy() for t in tensors_of([model(*args)])]
        for ours, theirs in zip(expected, outputs, strict=True):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            np.testing.assert_allclose(theirs, ours, rtol=2e-4, atol=2e-5)
    return proto


def dims(value: Any) -> list[Any]:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def test_a_perceptron_of_any_batch() -> None:
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(-1))
    axes = {"x": {0: "batch"}, "y": {0: "batch"}}
    proto = at_sizes(
        net, lambda n: (values(n, 6),), [(1,), (5,), (16,)], dynamic_axes=axes, input_names=["x"],
        output_names=["y"],
    )  # fmt: skip
    assert dims(proto.graph.input[0]) == ["batch", 6]
    assert dims(proto.graph.output[0]) == ["batch", 3]


class Looked(nn.Module):
    """Prefixes, diagonals, bags and searches."""

    def forward(self, x: Any, index: Any, starts: Any) -> Any:
        bags = F.embedding_bag(index, x, starts, mode="mean")
        place = flow.searchsorted(x[0].exp().cumsum(0), x.abs())
        return bags, place, x.logcumsumexp(1), x.cummax(0)[0], flow.diag_embed(x, 1)


def test_prefixes_bags_and_searches_of_any_size() -> None:
    def make(rows: int, width: int, count: int, bags: int) -> tuple[Any, ...]:
        order = flow.arange(count)
        return values(rows, width), order % rows, flow.arange(bags) * (count // bags)

    axes = {"x": {0: "rows", 1: "width"}, "index": {0: "count"}, "starts": {0: "bags"}}
    sizes = [(3, 4, 6, 2), (5, 2, 9, 3), (2, 7, 5, 4)]
    at_sizes(Looked(), make, sizes, input_names=["x", "index", "starts"], dynamic_axes=axes)


class Convolutions(nn.Module):
    def __init__(self, flat: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm, self.pool = nn.BatchNorm2d(8), nn.MaxPool2d(3, 2, 1)
        self.last = nn.Linear(8 * 16 if flat else 8, 10)
        self.flat = flat

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        x = self.pool(self.norm(self.first(x)).relu())
        if not self.flat:
            return self.last(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return self.last(x.view(x.size(0), -1))


def test_convolutions_and_a_flattening() -> None:
    sizes = [(2,), (1,), (16,)]
    spec = {"x": {0: "batch"}}
    at_sizes(Convolutions(True), lambda n: (values(n, 3, 16, 16),), sizes, dynamic_shapes=spec)


def test_images_of_any_size() -> None:
    proto = at_sizes(
        Convolutions(False), lambda n, h, w: (values(n, 3, h, w),),
        [(2, 16, 16), (1, 17, 20), (3, 8, 19)], dynamic_axes={"x": [0, 2, 3]},
    )  # fmt: skip
    assert dims(proto.graph.input[0])[2] == "x_dynamic_axes_2"


@pytest.mark.parametrize("mask", [False, True])
def test_an_encoder_layer_of_any_batch_and_length(mask: bool) -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)

    def model(x: flow.Tensor) -> flow.Tensor:
        n = x.shape[1]
        later = flow.triu(flow.full((n, n), float("-inf")), 1) if mask else None
        return layer.eval()(x, later)

    sizes = [(2, 7), (1, 5), (16, 4), (4, 16)]
    names = [("batch", "length", None)]
    proto = at_sizes(model, lambda n, t: (values(n, t, 16),), sizes, dynamic_shapes=names)
    assert dims(proto.graph.output[0]) == ["batch", "length", 16]


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16), nn.Embedding(32, 16)
        self.cells = nn.LSTM(16, 8, batch_first=True)

    def forward(self, words: flow.Tensor) -> Any:
        n, t = words.shape
        x = self.words(words) + self.places(flow.arange(t)) + flow.arange(t, dtype=flow.float32)[
            None, :, None
        ]  # fmt: skip
        q = x.view(n, t, 4, 4).transpose(1, 2)
        x = F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2)
        x = x.reshape(n * t, 16)
        return x, x.sum() / (n * t + 1), x.view(n, t, 16)[:, -1].roll(1, 0), x.mean(0)


def test_numbers_made_of_sizes() -> None:
    def make(n: int, t: int) -> tuple[Any, ...]:
        return (flow.from_numpy(np.random.default_rng(1).integers(0, 50, (n, t))),)

    sizes = [(2, 7), (1, 5), (16, 4), (4, 16)]
    proto = at_sizes(Language(), make, sizes, dynamic_axes={"words": {0: "n", 1: "t"}})
    assert dims(proto.graph.output[0]) == ["n*t", 16]


def test_a_recurrent_network_has_any_batch_and_its_own_length() -> None:
    net = nn.LSTM(6, 8, num_layers=2, batch_first=True)
    sizes = [(2, 5), (7, 5)]
    axes = {"input": {0: "batch"}}
    at_sizes(lambda input: net(input)[0], lambda n, t: (values(n, t, 6),), sizes, dynamic_axes=axes)


class Places(nn.Module):
    """Has a table of 12 places."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", values(1, 12, 3))

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return x + self.table[:, : x.size(1)]


def test_sizes_that_must_be_even_or_small() -> None:
    def halves(x: flow.Tensor) -> flow.Tensor:
        n, t = x.shape
        return x.view(n, t // 2, 2).sum(-1).view(n // 3, 3, t // 2)

    sizes = [(6, 4), (3, 8), (9, 12)]
    at_sizes(halves, lambda n, t: (values(n, t),), sizes, dynamic_axes={"x": {0: "n", 1: "t"}})
    at_sizes(
        Places(), lambda n, t: (values(n, t, 3),), [(2, 12), (1, 5), (3, 1)],
        dynamic_axes={"x": {0: "n", 1: "t"}},
    )  # fmt: skip


def test_one_name_for_several_inputs_in_any_nesting() -> None:
    def model(a: Any, both: Any) -> Any:
        return a @ both["x"][0], both["y"] + a.shape[0]

    def make(n: int) -> tuple[Any, ...]:
        return values(n, 4), {"x": [values(4, n)], "y": values(3)}

    spec = {"a": {0: "n"}, "both": {"x": [(None, "n")], "y": None}}
    proto = at_sizes(model, make, [(2,), (9,)], dynamic_shapes=spec)
    assert [dims(o) for o in proto.graph.output] == [["n", "n"], [3]]


def test_names_of_pytorch() -> None:
    Dim = pytest.importorskip("torch").export.Dim
    spec = ({0: Dim("batch"), 1: Dim.STATIC},)
    proto = at_sizes(F.relu, lambda n: (values(n, 2),), [(1,), (3,)], dynamic_shapes=spec)
    assert dims(proto.graph.output[0]) == ["batch", 2]
    proto = flow.onnx.export(F.relu, values(3, 2), dynamic_shapes=((Dim.DYNAMIC, 2),))
    assert dims(proto.graph.input[0]) == ["input_dim_0", 2]


def test_what_hangs_on_a_size_names_its_op_and_line() -> None:
    def patches(x: flow.Tensor) -> flow.Tensor:
        return F.interpolate(x, scale_factor=2, mode="bilinear")

    with pytest.raises(ArgumentError, match=r"interpolate at .*test_sizes\.py:\d+ is translated"):
        flow.onnx.export(patches, values(1, 1, 4, 4), dynamic_axes={"x": [2]})
    with pytest.raises(ArgumentError, match="other nodes for other sizes"):
        flow.onnx.export(lambda x: sum(x), values(4, 4), dynamic_axes={"x": [0]})
    with pytest.raises(ArgumentError, match="decides by a size"):
        flow.onnx.export(
            lambda x: x[:1] if len(x) == 4 else x, values(4, 2), dynamic_axes={"x": {0: "n"}}
        )  # fmt: skip
    with pytest.raises(ArgumentError, match="the model fails with n = "):
        flow.onnx.export(
            lambda x: x + values(2), values(4, 2), dynamic_axes={"x": {1: "n"}}
        )  # fmt: skip


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"dynamic_axes": {"input": {2: "n"}}}, "has 2 dimensions"),
        ({"dynamic_axes": {"input": 3}}, "names of dimensions"),
        ({"dynamic_axes": {"input": {0: "n", 1: "n"}}}, "n is the size 4 and"),
        ({"dynamic_axes": {"input": {0: "no name"}}}, "identifier"),
        ({"dynamic_axes": [0]}, "a dict by name"),
        ({"dynamic_shapes": {"input": ("n",)}}, "1 entries"),
        ({"dynamic_shapes": {"colour": None}}, "colour"),
        ({"dynamic_shapes": ({0: 5},)}, "was to be 5"),
        ({"dynamic_shapes": ("n",)}, "names of dimensions"),
        ({"dynamic_axes": {"input": [0]}, "dynamic_shapes": ({0: "n"},)}, "give one"),
    ],
)
def test_wrong_names_of_sizes(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        flow.onnx.export(F.relu, values(4, 6), **more)


# --- formulas -------------------------------------------------------------------------------------


def probe(parts: bool = False, **values: list[int]) -> named.Probes:
    return named.Probes(values, parts)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (lambda n, m: 7, "7"),
        (lambda n, m: 0, "0"),
        (lambda n, m: n, "n"),
        (lambda n, m: 3 * n * m - 2 * m + 1, "3*m*n - 2*m + 1"),
        (lambda n, m: (n + 4) * (m - 1), "m*n + 4*m - n - 4"),
    ],
)
def test_formulas_are_sums_of_products(size: Callable[[int, int], int], text: str) -> None:
    points = probe(n=[5, 6, 7, 9], m=[10, 11, 13, 14])
    formula = points.formula([size(**at) for at in points.at])
    assert formula is not None
    assert str(formula) == text
    assert formula.at({"n": 100, "m": 21}) == size(100, 21)


def test_other_numbers_have_no_formula() -> None:
    points = probe(n=[5, 6, 7, 9])
    assert points.formula([n["n"] ** 2 for n in points.at]) is None
    assert points.formula([n["n"] // 2 for n in points.at]) is None


def test_formulas_divide_where_points_are_multiples() -> None:
    halves = probe(True, n=[8, 12, 16, 20])
    formula = halves.formula([n["n"] // 4 + 1 for n in halves.at])
    assert formula is not None
    assert str(formula) == "(n + 4)/4"
    assert formula.at({"n": 4}) == 2
    assert probe(False, n=[8, 12, 16, 20]).formula([3, 4, 5, 6]) is None


def test_probes_are_no_sizes_of_others() -> None:
    above, below, multiples = named.probes({"n": 8, "m": 3}, {3, 8, 9})
    for points in (above, below, multiples):
        chosen = [*points.values["n"], *points.values["m"]]
        assert len(set(chosen)) == 8
        assert not {3, 8, 9} & set(chosen)
        assert min(chosen) > 2
    assert min(above.values["n"]) > 8 > max(below.values["n"])
    assert all(n % 8 == 0 for n in multiples.values["n"])
    assert all(m % 3 == 0 for m in multiples.values["m"])
    assert multiples.parts
    with pytest.raises(ArgumentError, match="5 sizes have names"):
        named.probes(dict.fromkeys("abcde", 8), set())


def test_sizes_of_one_name_are_equal() -> None:
    shapes = [(2, 5), (5, 3)]
    axes = {"x": {0: "n", 1: "m"}, "y": {0: "m"}}
    assert named.example_sizes(["x", "y"], shapes, axes) == {"n": 2, "m": 5}
    with pytest.raises(ArgumentError, match="m is the size 5 and, in dimension 1 of y, 3"):
        named.example_sizes(["x", "y"], shapes, {**axes, "y": {1: "m"}})


def test_the_first_points_that_can_be_captured_are_taken() -> None:
    tried = []

    def translate(at: named.Sizes) -> tuple[Any, named.Shapes]:
        tried.append(at["n"])
        if at["n"] > 8:
            raise ArgumentError("too long")
        return None, [(at["n"],)]

    points = named.probes({"n": 8}, set())
    probe_, writers, shapes = named.translated(points, translate)
    assert probe_ is points[1]
    assert len(writers) == 4
    assert shapes == [[(n,)] for n in tried[1:]]
    with pytest.raises(ArgumentError, match="the model fails with n = 9: too long"):
        named.translated(points[:1], translate)


def test_whole_numbers() -> None:
    arrays = [np.array([1.0, -3.0]), np.array([2], np.int32)]
    assert named._whole(arrays)
    for other in (np.array([0.5]), np.array([2.0**53]), np.array([np.nan]), np.array([True])):
        assert not named._whole([*arrays, other])
