"""The graph in print: modules with the nodes in each, before and after the first call."""

from __future__ import annotations

import contextlib
import re

import pytest

import flowvm as flow

nn, F = flow.nn, flow.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::flowvm.errors.RecaptureWarning")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(4), nn.Linear(4, 4)
        self.register_buffer("scale", flow.ones(4))

    def forward(self, x):
        return x + F.relu(self.fc(self.norm(x))) * self.scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 2)
        self.head.bias.requires_grad_(False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


criterion = nn.CrossEntropyLoss()


class Train(nn.Graph):
    def __init__(self):
        super().__init__()
        self.model = Net()
        optimizer = flow.optim.SGD(
            [p for p in self.model.parameters() if p.requires_grad], lr=0.1, momentum=0.9
        )
        schedule = flow.optim.lr_scheduler.StepLR(optimizer, 10)
        self.add_optimizer(optimizer, lr_sch=schedule)

    def build(self, x, y):
        loss = criterion(self.model(x), y)
        loss.backward()
        return {"loss": loss}


def compiled():
    graph = Train()
    for _ in range(2):
        graph(flow.ones(3, 4), flow.tensor([0, 1, 0]))
    return graph


def depths(text):
    """(indent, line) of each line that opens a parenthesis of its own."""
    return [(len(m[1]) // 2, m[2]) for m in re.finditer(r"^( *)(\(.*)$", text, re.M)]


def test_before_the_first_call_there_are_modules_parameters_and_optimizers():
    text = repr(Train())
    assert text.splitlines()[0] == "(GRAPH:Train): not captured yet ("
    assert "\n  (CONFIG: as it comes)\n" in text
    assert "      (PARAMETER:model.head.bias f32[2], no grad)\n" in text
    assert "        (BUFFER:model.blocks.1.scale f32[4])\n" in text
    assert "OPERATOR" not in text
    assert "(OPTIMIZER:SGD(lr=0.1, momentum=0.9" in text


def test_operators_stand_under_the_module_that_they_belong_to():
    """Forward stands under the module called, a gradient under the module of its forward."""
    graph = compiled()
    captured = [node for node in graph.graphs[0].nodes if node.phase != "optimizer"]
    text, stack, lines_of = repr(graph), [], {}
    for depth, line in depths(text):
        del stack[depth:]
        stack.append(line)
        if line.startswith("(OPERATOR"):
            modules = [s for s in stack if s.startswith("(MODULE:")]
            inside = re.match(r"\(MODULE:([\w.]*)", modules[-1])[1] if modules else ""
            lines_of.setdefault(inside, []).append(line)
    del lines_of[""]  # the optimizer's
    for scope in {node.scope for node in captured}:
        assert len(lines_of[scope]) == sum(node.scope == scope for node in captured), scope
    assert set(lines_of) == {node.scope for node in captured}
    assert {"model.blocks.0.fc", "model.blocks.1.fc", "model.head", "CrossEntropyLoss"} <= set(
        lines_of
    )
    assert any("(OPERATOR backward:" in line for line in lines_of["model.head"])


def test_parentheses_close_and_lines_are_no_wider_than_a_page():
    for graph in (Train(), compiled()):
        lines = repr(graph).splitlines()
        assert max(map(len, lines)) <= 100
        text = re.sub(r"'[^']*'", "", repr(graph))
        assert text.count("(") == text.count(")")


def test_inputs_outputs_places_and_the_users_lines():
    text = repr(compiled())
    assert re.search(r"^  \(INPUT:%\d+ input 0 f32\[3,4\]\)$", text, re.M)
    assert re.search(r"^  \(INPUT:%\d+ input 1 i64\[3\]\)$", text, re.M)
    assert re.search(r"^  \(OUTPUT:%\d+ f32\[\]\)$", text, re.M)
    line = Train.build.__code__.co_firstlineno + 1
    assert f"test_repr.py:{line}" in text
    assert f"test_repr.py:{Block.forward.__code__.co_firstlineno + 1}" in text


def test_an_optimizer_shows_its_schedule_its_state_and_its_steps():
    text = repr(compiled())
    part = text[text.index("(OPTIMIZER:") :]
    assert "lr by StepLR" in " ".join(part.split())
    assert "    (BUFFER:model.blocks.0.fc.weight.momentum_buffer f32[4,4])\n" in part
    assert "model.head.weight.momentum_buffer" in part
    assert "    (OPERATOR:" in part


SHIFT = flow.ones(3)


def test_tensors_of_closures_and_globals_go_by_the_variables_names():
    free, several = flow.ones(3), [flow.ones(3, 3)]
    graph = flow.compile(lambda x: ((x * free) @ several[0]) + SHIFT)
    graph.config.disable("fusion", "epilogues")
    graph(flow.ones(3))
    text = repr(graph)
    assert re.search(r"\(OPERATOR:%\d+ f32\[3\] = mul\(%\d+ input 0, free\)  test_repr", text)
    assert re.search(r"mul\w*\(%\d+, several\)", text)
    assert ", SHIFT)" in text


def test_the_last_call_is_the_one_that_is_shown():
    graph = flow.compile(lambda x: x + 1)
    for n in (2, 3, 2):
        graph(flow.ones(n))
        assert f"input 0 f32[{n}])" in repr(graph)


def test_a_graph_without_a_call_of_super_init():
    class Wrong(nn.Graph):
        def __init__(self):
            pass

    assert "super().__init__()" in repr(Wrong())


# --- scopes of what is captured -----------------------------------------------------------------


def scopes(graph):
    """(operator, phase, scope) of each captured node, before any pass."""
    graph.config.disable(*graph.config.passes)
    graph(flow.ones(3, 4))
    nodes = graph.graphs[-1].nodes
    return [(n.operator.name, n.phase, n.scope) for n in nodes]


def test_a_shared_module_goes_by_its_first_name_and_a_list_by_its_own():
    fc = nn.Linear(4, 4)

    class Shared(nn.Graph):
        def __init__(self):
            super().__init__()
            self.first = self.second = fc
            self.rest = nn.ModuleDict({"a": nn.Linear(4, 4)})

        def build(self, x):
            return self.rest["a"](self.second(x))

    assert [s for *_, s in scopes(Shared())] == ["first", "rest.a"]


def test_views_in_place_changes_and_code_between_modules():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))

    def function(x):
        h = model[1](model[0](x))
        h = h.reshape(4, 3).t() * 2
        model[2](h).sum().backward()

    scopes_of = scopes(flow.compile(function))
    forward = [(name, s) for name, phase, s in scopes_of if phase == "forward"]
    assert ("linear", "model.0") in forward
    assert ("linear", "model.2") in forward
    assert ("mul", "") in forward
    backward = [(name, s) for name, phase, s in scopes_of if phase == "backward"]
    assert [s for name, s in backward if "relu" in name] == ["model.1"]
    products = [s for name, s in backward if "matmul" in name]
    assert products == ["model.2", "model.2", "model.0"]


def test_code_behind_backward_is_forward_again():
    w = flow.ones(4, requires_grad=True)

    def function(x):
        loss = (x * w).sum()
        loss.backward()
        return loss.detach().exp()

    nodes = scopes(flow.compile(function))
    assert [phase for name, phase, _ in nodes if name == "exp"] == ["forward"]
    assert "backward" in {phase for _, phase, _ in nodes}


def test_hooks_and_nested_calls_leave_the_scope_as_it_was():
    outer = nn.Sequential(nn.Sequential(nn.Linear(4, 4)))
    outer[0].register_forward_hook(lambda module, args, out: out * 3)
    nodes = scopes(flow.compile(lambda x: outer(x) + 1))
    assert nodes == [
        ("linear", "forward", "outer.0.0"), ("mul", "forward", "outer.0"), ("add", "forward", ""),
    ]  # fmt: skip


def test_a_module_that_raises_leaves_no_scope_behind():
    class Wrong(nn.Module):
        def forward(self, x):
            raise KeyError

    wrong = Wrong()

    def function(x):
        with contextlib.suppress(KeyError):
            wrong(x)
        return x + 1

    assert scopes(flow.compile(function)) == [("add", "forward", "")]
