"""Changed files of saved graphs: nothing in them runs, and nothing is half taken over.

The checksum is made anew each time, as an attacker would.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.graph.logical.plain import plain, read_operator, read_plain
from flowvm.nn.graph.plan_file import checksum

nn, F = flow.nn, flow.nn.functional
X = flow.linspace(-2, 2, 32).reshape(4, 8)


class Forward(nn.Graph):
    def __init__(self):
        super().__init__()
        flow.manual_seed(3)
        self.model = nn.Linear(8, 8)

    def build(self, x):
        y = (x * 2 + 1).tanh() * x.sigmoid()
        return F.gelu(self.model(y)), y + flow.arange(8)


class Step(nn.Graph):
    def __init__(self):
        super().__init__()
        flow.manual_seed(3)
        self.model = nn.Linear(8, 8)
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))

    def build(self, x):
        loss = self.model(x).pow(2).mean()
        loss.backward()
        return loss


def saved(graph):
    for _ in range(2):  # the first of a step makes state
        graph(X)
    return graph.runtime_state_dict()


@pytest.fixture(scope="module")
def state():
    return saved(Forward())


def tampered(state, change):
    """The state with `change(plan)` made, or with the text that it gives."""
    (plan,) = json.loads(state["plans"])
    text = change(plan)
    text = text if isinstance(text, str) else json.dumps([plan])
    return {**state, "plans": text, "sha256": checksum(text, state["constants"])}


def refuse(state, change, match="saved|damaged|64 bits", kind=Forward):
    graph = kind()
    with pytest.raises(ArgumentError, match=match):
        graph.load_runtime_state_dict(tampered(state, change))
    assert not graph.plans, "something of it was taken over"


def fused(plan):
    return next(o for o in plan["graph"]["operators"] if o[:2] == ["recipe", "fused"])


def test_what_was_not_changed_loads(state):
    graph = Forward()
    graph.load_runtime_state_dict(tampered(state, lambda plan: None))
    assert len(graph.plans) == 1
    for ours, theirs in zip(graph(X), Forward()(X), strict=True):
        assert ours.tolist() == theirs.tolist()


# --- code -----------------------------------------------------------------------------------------


@pytest.fixture
def ran(monkeypatch):
    """Record the calls of `os.system`."""
    results = []
    monkeypatch.setattr(os, "system", results.append)
    return results


@pytest.mark.parametrize("where", ["os:system", "system", "builtins:exec", "flowvm.nn:Linear"])
def test_a_recipe_is_one_of_the_makers(state, ran, where):
    def change(plan):
        plan["graph"]["operators"][0] = ["recipe", where, {"tuple": ["touch here"]}]

    refuse(state, change, "recipe")
    assert not ran


def test_an_operator_inside_a_value_is_one_of_the_makers_too(state, ran):
    def change(plan):
        plan["result"] = {"operator": ["recipe", "os:system", {"tuple": ["touch here"]}]}

    refuse(state, change, "recipe")
    assert not ran


def test_modules_are_not_imported(state, monkeypatch):
    import importlib

    def refuse_to(name, *more):
        raise AssertionError(f"{name} was imported")

    monkeypatch.setattr(importlib, "import_module", refuse_to)

    def change(plan):
        plan["graph"]["operators"][0] = ["recipe", "flowvm.commands.demo:main", {"tuple": []}]

    refuse(state, change, "recipe")
    with pytest.raises(ArgumentError, match="namedtuple"):
        read_plain({"namedtuple": "flowvm.commands:demo:main"})
    with pytest.raises(ArgumentError, match="named tuple"):
        read_plain({"namedtuple": "flowvm:_never.there"})


INJECTIONS = [
    "__import__('os').system('touch here')",
    "().__class__",
    "x0.real",
    "x0[0]",
    "[x0 for x0 in (x0,)]",
    "(lambda: x0)()",
    "(x1 := x0)",
    "exec(x0)",
    "open(x0)",
    "float32(x0)",
    "exp(*x0)",
    "exp(x=x0)",
    "exp",
    "'text'",
    "9e999",
    "1 << 1 << 99999999999999999999",
    "x0\nimport os",
    "x0; x0",
    "(" * 300 + "x0" + ")" * 300,
    "-" * 50_000 + "x0",
    "t7",
    "",
]


@pytest.mark.parametrize("text", INJECTIONS, ids=range(len(INJECTIONS)))
def test_a_program_is_scalar_arithmetic_and_nothing_else(state, ran, text):
    def change(plan):
        arguments = fused(plan)[2]["tuple"]
        arguments[1] = "\n".join([f"t0 = {text}", *arguments[1].split("\n")[1:]])

    refuse(state, change, "program")
    assert not ran

    def alone(plan):
        fused(plan)[2]["tuple"][1] = text

    refuse(state, alone, "program")
    assert not ran


def test_the_epilogue_of_a_product_is_held_to_the_same_grammar(ran):
    for text in INJECTIONS:
        with pytest.raises(ArgumentError, match="program"):
            read_operator(["recipe", "product", {"tuple": ["p", False, True, text, False, False]}])
    assert not ran


class Pair(NamedTuple):
    first: object
    second: object


class Own(list):
    def __init__(self, *args):
        raise AssertionError("it was made")


class Sly(Pair):
    def __new__(cls, *args):
        raise AssertionError("it was made")


def test_classes_go_by_a_table_or_are_named_tuples():
    for kind in (int, float, bool, str, type(None), flow.Size, Pair):
        assert read_plain(json.loads(json.dumps(plain(kind, "it")))) is kind
    for kind in (Own, Sly, json.JSONDecoder):
        with pytest.raises(TypeError, match="no saved form"):
            plain(kind, "it")
    for name in ("subprocess:Popen", f"{__name__}:Own", f"{__name__}:Sly", "os:system", "os:_exit"):
        with pytest.raises(ArgumentError, match="named tuple"):
            read_plain({"namedtuple": name})
        with pytest.raises(ArgumentError, match="type"):
            read_plain({"type": name})


def test_the_class_of_a_result_is_not_called(state, ran):
    """Loading once called the class with the graph's results, at the first call."""

    def change(plan):
        items = plan["result"]["tuple"][1:]
        kind = {"type": "subprocess:Popen"}
        plan["result"] = {"tuple": ["sequence", kind, *items]}

    refuse(state, change, "type")


# --- places and sizes -----------------------------------------------------------------------------


def meta_of(operand, shape, stride):
    operand[2] = {"meta": [shape, "float32", "cpu", stride]}


def sets(*path, value):
    def change(plan):
        *most, last = path
        holder = plan
        for key in most:
            holder = holder[key]
        assert holder[last] != value
        holder[last] = value

    return change


NODE = ("graph", "nodes", 0)
BUFFERS = ("graph", "buffers")
CHANGES = {
    "a negative offset": sets(*NODE, "inputs", 0, 1, value=-64),
    "an offset behind": sets(*NODE, "inputs", 0, 1, value=64),
    "an offset far behind": sets(*NODE, "inputs", 0, 1, value=1 << 60),
    "an offset that is a float": sets(*NODE, "inputs", 0, 1, value=0.5),
    "a negative step": sets(*NODE, "inputs", 0, 3, value=-8),
    "a place that is not there": sets(*NODE, "inputs", 0, 0, value=999),
    "a negative place": sets(*NODE, "inputs", 0, 0, value=-1),
    "an operator that is not there": sets(*NODE, "operator", value=99),
    "a negative operator": sets(*NODE, "operator", value=-1),
    "a negative repetition": sets(*NODE, "repeat", value=-1),
    "a million repetitions": sets(*NODE, "repeat", value=1 << 40),
    "a stream": sets(*NODE, "stream", value=3),
    "a phase": sets(*NODE, "phase", value="never"),
    "a line with a zero": sets(*NODE, "line", value="a\0b:3"),
    "a line without end": sets(*NODE, "line", value="a:" + "9" * 30),
    "operands": sets(*NODE, "inputs", value=[]),
    "attributes": sets(*NODE, "attrs", value=[]),
    "scalars": sets(*NODE, "scalars", value=[1.0]),
    "a scalar that is a text": sets(*NODE, "scalars", value=["1"]),
    "a number that is not there": sets(*NODE, "scalars", value=[{"number": 5}]),
    "a negative number": sets(*NODE, "scalars", value=[{"number": -1}]),
    "an input that is smaller": sets(*BUFFERS, 0, "nbytes", value=4),
    "a negative size": sets(*BUFFERS, 0, "nbytes", value=-4),
    "a kind": sets(*BUFFERS, 0, "kind", value="stolen"),
    "a buffer's number": sets(*BUFFERS, 1, "number", value=0),
    "no inputs": sets("graph", "inputs", value=[]),
    "an output behind": sets("graph", "outputs", 0, 1, value=1 << 20),
    "regst_num": sets("graph", "regst_num", value=0),
    "a result": sets("result", value={"tuple": ["tuple"]}),
    "a result that is no tree": sets("result", value=7),
    "ends": sets("ends", value=[2]),
    "negative ends": sets("ends", value=[-1]),
    "a cycle": sets("numbers", value=[["add", [{"number": 1}, 1]], ["add", [{"number": 0}, 1]]]),
    "a number of itself": sets("numbers", value=[["add", [{"number": 0}, 1]]]),
    "a function": sets("numbers", value=[["eval", ["1"]]]),
    "a power": sets("numbers", value=[["pow", [9, 1 << 40]]]),
    "a text times a number": sets("numbers", value=[["mul", ["x", 1 << 40]]]),
    "a division": sets("numbers", value=[["truediv", [1, 0]]]),
    "arguments": sets("numbers", value=[["add", [1, 2, 3]]]),
    "a leaf": sets("numbers", value=[["leaf", {"tuple": ["option", 0, 0, "lr"]}, "lr"]]),
    "updates": sets("updates", value=[[[0, 0], "step", 1]]),
    "draws": sets("draws", value=["model"]),
    "a setting": sets("settings", 0, value={"meta": [[4, 9], "float32", "cpu", [9, 1]]}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_places_and_sizes_are_checked(state, what):
    refuse(state, CHANGES[what])


def test_expressions_that_grow_without_end_are_refused(state):
    doubled = [["add", [1, 1]]]
    doubled += [["add", [{"number": k}, {"number": k}]] for k in range(60)]
    refuse(state, sets("numbers", value=doubled), "terms")
    squared = [["add", [3, 0]]] + [["mul", [{"number": k}, {"number": k}]] for k in range(11)]
    refuse(state, sets("numbers", value=squared), "smaller")


def grown(kind):
    """Return a change that makes all buffers and operands of a kind larger than their memory."""

    def change(plan):
        graph = plan["graph"]
        chosen = {k for k, b in enumerate(graph["buffers"]) if b["kind"] == kind}
        assert chosen
        for k in chosen:
            graph["buffers"][k]["nbytes"] = 1 << 24
        operands = [*graph["inputs"], *graph["outputs"]]
        operands += [o for n in graph["nodes"] for o in (*n["inputs"], *n["outputs"])]
        for operand in operands:
            if operand[0] in chosen and kind == "input":
                meta_of(operand, [4096, 8], [8, 1])
            elif operand[0] in chosen:
                operand[1] = 1 << 20

    return change


def test_an_input_is_no_larger_than_the_key_says(state):
    refuse(state, grown("input"))


def test_a_variable_is_no_larger_than_its_memory(state):
    refuse(state, grown("variable"), "bytes")


@pytest.mark.parametrize(
    ("shape", "stride"),
    [
        ([4, 8], [-8, 1]),
        ([4, 8], [8]),
        ([-4, 8], [8, 1]),
        ([1 << 50, 8], [8, 1]),
        ([1 << 40, 1 << 40], [0, 0]),
        ([True, 8], [8, 1]),
        ([4.0, 8], [8, 1]),
        ([1] * 100, [1] * 100),
        ([4, 8], [1 << 20, 1]),
    ],
)
def test_metas_are_checked(state, shape, stride):
    refuse(state, lambda plan: meta_of(plan["graph"]["nodes"][0]["inputs"][0], shape, stride))


def test_a_fused_node_gives_what_its_inputs_are_repeated_to(state):
    """A fused node's output metas are its attributes, so no other part of the file checks them."""

    def change(plan):
        graph = plan["graph"]
        number = graph["operators"].index(fused(plan))
        node = next(n for n in graph["nodes"] if n["operator"] == number)
        for operand, meta in zip(node["outputs"], node["attrs"]["tuple"][0]["tuple"], strict=True):
            graph["buffers"][operand[0]]["nbytes"] = 4 * 999 * 8
            meta["meta"] = [[999, 8], "float32", "cpu", [8, 1]]
            operand[2] = meta

    refuse(state, change)


@pytest.mark.parametrize(
    "piece",
    [
        [1, [4], [1], 0, 0, [2]],
        [1, [4], [1], 0, -1, [1]],
        [1, [4], [1], 1, 0, [1]],
        [1, [4], [-1], 3, 0, [1]],
        [2, [4], [1], 0, 0, [1]],
        [0, [4], [1], 0, 0, [1]],
        [1, [3], [1], 0, 0, [1]],
        [1, [1 << 40], [0], 0, 0, [0]],
    ],
)
def test_pieces_lie_in_what_they_are_copied_from_and_to(piece):
    operator = read_operator(["recipe", "assemble", {"tuple": [1]}])
    four = flow.ones(4)._meta
    sound = ((1, (4,), (1,), 0, 0, (1,)),)
    assert operator.kernel.lower((four,), (four, sound)).units == 1
    wrong = tuple(tuple(v) if isinstance(v, list) else v for v in piece)
    with pytest.raises(ArgumentError, match="assemble"):
        operator.kernel.lower((four,), (four, (wrong,)))


ATTRIBUTES = {
    "gather": (lambda x: x.gather(1, (x * 0).long()), {"dim": [-1, 2, True, 1 << 40]}),
    "index_select": (
        lambda x: x.index_select(1, flow.arange(3)),
        {"low": [-9, -(1 << 40), 1], "dim": [-1, 5], "shown": [1 << 40]},
    ),
    "sort": (lambda x: x.sort(1).values, {"first": [-1, 3, 1 << 40], "count": [9, 1 << 20]}),
    "sum": (lambda x: x.sum(1), {"dims": [[-1], [1, 1], [7]], "keepdim": [3]}),
    "pad": (lambda x: F.pad(x, (1, 1), "reflect"), {"mode": ["never"]}),
    "roll": (lambda x: x.roll(3, 1), {"cuts": [[0, 8], [0, -1]]}),
    "cumsum": (lambda x: x.cumsum(1), {"dim": [-1, 2]}),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_are_those_that_a_call_can_have(name):
    """Kernels rely on the checks of the ops' functions, and a file bypasses these."""
    function, wrong = ATTRIBUTES[name]
    graph = flow.compile(function)
    graph(X)
    state = graph.runtime_state_dict()
    (node,) = (n for n in graph.graphs[0].nodes if n.operator.name == name)
    for attribute, values in wrong.items():
        place = node.operator.signature.attrs.index(attribute)
        for value in values:

            def change(plan, place=place, value=value):
                operators = plan["graph"]["operators"]
                node = next(
                    n for n in plan["graph"]["nodes"] if operators[n["operator"]][1] == name
                )
                value = {"tuple": value} if isinstance(value, list) else value
                node["attrs"]["tuple"][place] = value

            graph._plans.clear()
            with pytest.raises(ArgumentError, match=name):
                graph.load_runtime_state_dict(tampered(state, change))


# --- the text -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000 + "]" * 100_000,
        "[" * 500 + "]" * 500,
        "{}",
        "[{}]",
        "[NaN]",
        "[Infinity]",
        "[1e999]",
        '[{"graph": 1, "graph": 2}]',
        "[" + "9" * 5000 + "]",
        "nothing",
        "",
    ],
    ids=range(11),
)
def test_text_that_is_no_list_of_plans(state, text):
    refuse(state, lambda plan: text)


def test_a_key_that_stands_twice(state):
    def change(plan):
        return "[" + json.dumps(plan).replace('"ends":', '"ends": [0], "ends":', 1) + "]"

    refuse(state, change, "twice")


def test_a_step_changes_only_numbers_that_are_there():
    state = saved(Step())
    refuse(state, sets("updates", value=[[[0, 0], "step", 1]]), "state", Step)
    for key in (["option", 0, 0, "params"], ["option", -1, 0, "lr"], ["option", 0, 0, "lr", "x"],
                ["state", 0, 0, "step"], ["draw", 0, 0], ["option", 0, 9, "lr"], []):  # fmt: skip

        def change(plan, key=key):
            leaf = next(entry for entry in plan["numbers"] if entry[0] == "leaf")
            leaf[1] = {"tuple": key}

        refuse(state, change, "Step", Step)


def test_infinite_numbers_go_round(tmp_path):
    def build(x):
        return x.masked_fill(x > 0, float("-inf")), float("inf")

    graph = flow.compile(build)
    graph(X)
    state = graph.runtime_state_dict()
    assert "Infinity" not in state["plans"]
    again = flow.compile(build)
    again.load_runtime_state_dict(state)
    assert again(X)[0].tolist() == build(X)[0].tolist()
    assert again(X)[1] == float("inf")
