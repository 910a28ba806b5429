"""Files of saved graphs in which somebody has changed the sizes that an operator's kernel goes by:
windows, steps, shapes.  All that no function of flowvm gives is refused when the file is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, get_type_hints

import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.graph.logical.plain import RECORDS, plain, read_plain
from flowvm.nn.graph.plan_file import checksum

F = flow.nn.functional
IMAGE = flow.linspace(-2, 2, 2 * 4 * 7 * 6).reshape(2, 4, 7, 6)
ROWS = flow.linspace(-2, 2, 24).reshape(2, 2, 6)


def with_gradient(function: Any) -> Any:
    def both(x: Any) -> Any:
        with flow.enable_grad():
            leaf = x.detach().requires_grad_()
            out = function(leaf)
            return out, flow.autograd.grad(out.pow(2).sum(), leaf)

    return both


def lstm(x: Any) -> Any:
    weights = [flow.ones(8, n) * 0.1 for n in (6, 2)] + [flow.zeros(8)] * 2
    state = flow.zeros(1, 2, 2), flow.zeros(1, 2, 2)
    return flow.lstm(x, state, weights, True, 1, 0.0, False, False, False)[0]


CALLS: dict[str, tuple[Any, Any]] = {
    "conv": (lambda x: F.conv2d(x, flow.ones(6, 2, 3, 2), flow.ones(6), 2, 1, 1, 2), IMAGE),
    "conv_transpose": (
        lambda x: F.conv_transpose2d(x, flow.ones(4, 3, 3, 3), None, 2, 1, 1, 2, 3), IMAGE
    ),
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
    "avg_pool": (lambda x: F.avg_pool2d(x, (3, 2), 2, 1), IMAGE),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), IMAGE),
    "fold": (lambda x: F.fold(F.unfold(x, 3, 1, 1, 2), (7, 6), 3, 1, 1, 2), IMAGE),
    "nearest": (lambda x: F.interpolate(x, (3, 9)), IMAGE),
    "bilinear": (lambda x: F.interpolate(x, (3, 9), mode="bilinear"), IMAGE),
    "bicubic": (lambda x: F.interpolate(x, (3, 9), mode="bicubic"), IMAGE),
    "ctc_loss": (lambda x: F.ctc_loss(x, flow.tensor([[1, 2], [2, 1]]), (2, 2), (1, 1)), ROWS),
    "deform_conv": (
        lambda x: F.deform_conv2d(
            x, x.repeat(1, 6, 1, 1)[..., :3], flow.ones(2, 2, 3, 2), None, 1, (1, 0),
            (1, 3),
        ),
        IMAGE,
    ),
    "lstm": (lstm, ROWS),
}  # fmt: skip


MORE = {  # without sizes
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), ROWS[None])
}


class Saved:
    """A graph of a call and its gradient, its saved state, and the Plan in it."""

    def __init__(self, function: Any, x: Any) -> None:
        self.graph, self.x = flow.compile(with_gradient(function)), x
        self.graph(x)
        self.nodes = self.graph.graphs[0].nodes
        self.state = self.graph.runtime_state_dict()
        (self.plan,) = json.loads(self.state["plans"])

    def load(self) -> None:
        """Load the Plan as it is now, in place of all others."""
        text, constants = json.dumps([self.plan]), self.state["constants"]
        self.graph._plans.clear()
        self.graph.load_runtime_state_dict(
            {**self.state, "plans": text, "sha256": checksum(text, constants)}
        )

    def refuses(self, match: str | None = None) -> None:
        """The Plan as it is now is refused."""
        with pytest.raises(ArgumentError, match=match):
            self.load()
        assert not self.graph.plans

    def node(self, name: str) -> Any:
        """The saved node of an operator."""
        names = [node.operator.name for node in self.nodes]
        return self.plan["graph"]["nodes"][names.index(name)]

    def sizes(self) -> list[tuple[Any, int]]:
        """Return (list, place in it) of every attribute, except the ones of FREE."""
        sizes = []
        for node, saved in zip(self.nodes, self.plan["graph"]["nodes"], strict=True):
            attrs = saved["attrs"]["tuple"]
            for k, name in enumerate(node.operator.signature.attrs):
                if name not in FREE and node.operator.origin.recipe is None:
                    own_sizes = [(attrs, k)] if is_plain(attrs[k]) else [*places(attrs[k])]
                    if (node.operator.name, name) == ("arrange", "stride"):
                        shape = node.inputs[0].meta.shape  # a step along one element is any
                        own_sizes = [(holder, d) for holder, d in own_sizes if shape[d] > 1]
                    sizes += own_sizes
        return sizes


FREE = ("alpha", "divisor", "scale")  # numbers that a result is multiplied or divided by
WRONG = (-1, 1 << 20, 1 << 40, 1.5, "x", None, [], {"float": "inf"}, {"float": "nan"})


def is_plain(value: Any) -> bool:
    return isinstance(value, (int, float, str)) and not isinstance(value, bool)


def places(value: Any) -> Iterator[tuple[Any, int]]:
    """(list, place in it) of every number, and of every text, in an attribute."""
    if isinstance(value, dict):
        ((kind, value),) = value.items()
        value = value[1] if kind == "record" else [] if kind == "meta" else value
    for k, item in enumerate(value if isinstance(value, list) else []):
        if is_plain(item):
            yield value, k
        else:
            yield from places(item)


@pytest.fixture(params=CALLS)
def saved(request: Any) -> Saved:
    return Saved(*CALLS[request.param])


def test_no_size_is_another(saved: Saved) -> None:
    sizes = saved.sizes()
    assert sizes
    for holder, k in sizes:
        old = holder[k]
        for value in WRONG:
            holder[k] = value
            saved.refuses()
        holder[k] = old
    saved.load()
    assert len(saved.graph.plans) == 1


def test_what_another_call_could_have_stays_in_its_memory(saved: Saved) -> None:
    """A size next to the right one is refused, or a function of flowvm gives it, too."""
    for holder, k in saved.sizes():
        old = holder[k]
        for value in (0, old + 1, old - 1) if not isinstance(old, str) else ():
            holder[k] = value
            try:
                saved.load()
            except ArgumentError:
                continue
            out, (gradient,) = saved.graph(saved.x)
            assert out.numpy().shape == tuple(out.shape)
            assert gradient.numpy().shape == tuple(saved.x.shape)
        holder[k] = old


def test_a_record_is_one_of_the_table_with_its_fields() -> None:
    for name, kind in RECORDS.items():
        examples = {int: 1, float: 0.5, tuple[int, int, int]: (1, 2, 3)}
        fields = [examples[hint] for hint in get_type_hints(kind).values()]
        record = kind(*fields)
        form = plain(record, "it")
        read = read_plain(json.loads(json.dumps(form)))
        assert (type(read), read) == (kind, record)
        _, values = form["record"]
        for wrong in (values[1:], [*values, 1], [None, *values[1:]], [True, *values[1:]], {}):
            with pytest.raises(ArgumentError, match="damaged"):
                read_plain({"record": [name, wrong]})
    for wrong in ("Rows", "flowvm:Windows", "os:system", 3):
        with pytest.raises(ArgumentError, match="record"):
            read_plain({"record": [wrong, []]})


def test_a_named_tuple_of_nobody_has_no_form() -> None:
    class Windows(NamedTuple):
        h: int

    with pytest.raises(TypeError, match="no saved form"):
        plain(Windows(3), "it")


OPERANDS = {  # call, input of its first node, meta
    "another shape": ("conv", 0, [[2, 4, 6, 7], "float32", "cpu", [168, 42, 7, 1]]),
    "another rank": ("conv", 0, [[8, 7, 6], "float32", "cpu", [42, 6, 1]]),
    "strides": ("conv", 0, [[2, 4, 7, 6], "float32", "cpu", [168, 42, 1, 7]]),
    "an element for all": ("conv", 0, [[2, 4, 7, 6], "float32", "cpu", [0, 0, 0, 0]]),
    "another dtype": ("conv", 0, [[2, 4, 7, 6], "int32", "cpu", [168, 42, 6, 1]]),
    "a smaller dtype": ("conv", 0, [[2, 4, 7, 6], "bfloat16", "cpu", [168, 42, 6, 1]]),
    "a larger weight": ("conv", 1, [[12, 1, 3, 2], "float32", "cpu", [6, 6, 2, 1]]),
    "a weight of other channels": ("conv", 1, [[4, 3, 3, 2], "float32", "cpu", [18, 6, 2, 1]]),
    "a smaller bias": ("conv", 2, [[3], "float32", "cpu", [1]]),
    "more keys than values": ("attention", 1, [[1, 2, 1, 6], "float32", "cpu", [12, 6, 6, 1]]),
    "other features": ("attention", 1, [[1, 2, 2, 3], "float32", "cpu", [12, 6, 3, 1]]),
    "features apart": ("attention", 0, [[1, 2, 2, 6], "float32", "cpu", [12, 6, 1, 2]]),
    "heads": ("attention", 2, [[1, 1, 2, 6], "float32", "cpu", [12, 12, 6, 1]]),
    "a class for all": ("ctc_loss", 0, [[2, 2, 6], "float32", "cpu", [12, 6, 0]]),
    "lengths for others": ("ctc_loss", 2, [[1], "int64", "cpu", [1]]),
    "short lengths": ("ctc_loss", 2, [[2], "int32", "cpu", [1]]),
}


@pytest.mark.parametrize("what", OPERANDS)
def test_operands_are_those_that_a_kernel_goes_by(what: str) -> None:
    call, number, meta = OPERANDS[what]
    function, x = MORE[call] if call in MORE else CALLS[call]
    saved = Saved(function, x)
    operand = saved.node(call)["inputs"][number]
    assert operand[2]["meta"] != meta
    operand[2]["meta"] = meta
    saved.refuses()


def test_only_copies_read_backwards_and_inside_their_buffer() -> None:
    saved = Saved(lambda x: x.flip(0).cumsum(0), flow.ones(5, 4))
    _, offset, meta, _ = saved.node("cast")["inputs"][0]
    shape, *_, stride = meta["meta"]
    assert (offset, shape, stride) == (64, [5, 4], [-4, 1])
    saved.load()
    for changed in (60, 0, 68, 80):
        saved.node("cast")["inputs"][0][1] = changed
        saved.refuses()
    saved.node("cast")["inputs"][0][1] = offset
    for changed in ([-5, 1], [-4, 2], [-4, -1], [-(1 << 40), 1]):
        meta["meta"][3] = changed
        saved.refuses()
    meta["meta"][3] = stride
    saved.load()
    for operand in (saved.node("cumsum")["inputs"][0], saved.node("cast")["outputs"][0]):
        then = operand[1], operand[2]["meta"][3]
        operand[1], operand[2]["meta"][3] = 64, [-4, 1]
        saved.refuses("negative")
        operand[1], operand[2]["meta"][3] = then
