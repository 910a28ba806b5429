"""The programs of CONTRIBUTING.md run, section by section, and their additions really work."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTIONS = {
    title: re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    for title, text in re.findall(
        r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S
    )
}
CHECKED = """
import sys
sys.path.insert(0, {helpers!r})
from op_checks import Checks
from flowvm.ops.declare.registry import SAMPLES
(added,) = [one for one in SAMPLES if one.name == {name!r}]
checks = Checks(added, 0)
for dtype in added.floats:
    checks.forward(dtype)
checks.strided()
checks.sequential()
checks.docstring()
"""
HELPERS = str(ROOT / "tests" / "ops" / "helpers")
# section -> what must hold behind it
BEHIND = {
    "Add an op": CHECKED.format(helpers=HELPERS, name="squareplus")
    + "checks.gradcheck()\nchecks.gradgradcheck()\n",
    "Add a kernel": CHECKED.format(helpers=HELPERS, name="spread")
    + """
try:
    spread(flow.rand(3))
except ShapeError:
    pass
else:
    raise AssertionError("no matrix")
flow.set_num_threads(1)
alone = spread(x).numpy()
flow.set_num_threads(3)
assert np.array_equal(alone, spread(x).numpy())

# what else follows of the declaration: global tensors by rows, saved graphs, what ONNX says
import ranks
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.placed.signatures import signatures

checks.letters()
legal = signatures(operator_of(spread), (x._meta,), (), (spread(x)._meta,), 2)
assert "S(0) -> S(0)" in map(repr, legal), legal


def rank(number):
    where = flow.placement("cpu", [0, 1])
    parts = spread(ranks.held(x.numpy(), where, (flow.sbp.split(0),)))
    assert parts.sbp == (flow.sbp.split(0),)
    return parts.numpy()


assert all(np.array_equal(values, alone) for values in ranks.run(2, rank))
first, second = flow.compile(spread), flow.compile(spread)
first(x)
second.load_runtime_state_dict(first.runtime_state_dict())
assert np.array_equal(second(x).numpy(), alone)
assert len(second.plans) == 1
try:
    flow.onnx.export(spread, (x,))
except flow.errors.ArgumentError as error:
    assert "spread" in str(error)
else:
    raise AssertionError("there is no translation")
""",
    "Add a layer": """
import inspect
assert repr(Powered()) == "Powered(exponent=2.0)"
assert repr(Powered(inplace=True)) == "Powered(exponent=2.0, inplace=True)"
assert list(inspect.signature(Powered).parameters) == ["exponent", "inplace"]
assert Powered(3.0)(flow.tensor([-1.0, 2.0])).tolist() == [0.0, 8.0]
""",
    "Add a row op": """
for shape, dim in [((3, 40), 1), ((5, 7, 4), 1), ((2, 3000), 1)]:
    x = flow.rand(shape)
    there = centered(x.to("cuda"), dim)
    assert there.device.type == "cuda"
    assert np.allclose(there.cpu().numpy(), centered(x, dim).numpy(), atol=1e-6)
"""
    + CHECKED.format(helpers=HELPERS, name="centered")
    + "checks.gradcheck()\nchecks.gradgradcheck()\n",
    "Add an optimizer step": """
import numpy as np


class Step(flow.nn.Graph):
    def __init__(self, layer, optimizer):
        super().__init__()
        self.layer = layer
        self.add_optimizer(optimizer)

    def build(self, x):
        loss = (self.layer(x) ** 2).sum()
        loss.backward()
        return loss


def trained(device, graph):
    flow.manual_seed(0)
    layer = flow.nn.Linear(3, 2)
    x = flow.rand(4, 3).to(device)
    layer.to(device)
    lion = Lion(layer.parameters(), lr=0.25)
    step = Step(layer, lion) if graph else None
    for k in range(4):
        lion.param_groups[0]["lr"] = 0.25 / (k + 1)
        if step is None:
            lion.zero_grad()
            (layer(x) ** 2).sum().backward()
            lion.step()
        else:
            step(x)
    if step is not None:  # one task for both parameters
        tasks = [task.node.operator.name for task in step.plans[-1].tasks]
        assert sum("lion" in name or "update" in name for name in tasks) == 1, tasks
    return layer.weight.detach().cpu().numpy()


w, m, g = np.ones(3), np.zeros(3), np.array([1.0, -2.0, 0.5])
p = flow.nn.Parameter(flow.tensor(w.tolist()))
p.grad = flow.tensor(g.tolist())
lion = Lion([p], lr=0.5)
for _ in range(2):
    lion.step()
    w, m = w - 0.5 * np.sign(0.9 * m + 0.1 * g), 0.99 * m + 0.01 * g
assert np.allclose(p.detach().numpy(), w)
assert np.allclose(lion.state[p]["momentum"].numpy(), m)
eager = trained("cpu", False)
assert np.array_equal(trained("cpu", True), eager)
assert np.allclose(trained("cuda", False), eager, atol=1e-6)
""",
    "Add a CUDA kernel": "assert last(x.to('cuda')).device.type == 'cuda'\n",
    "Add a pass": """
(plan,) = step.plans
assert [task.node.operator.name for task in plan.tasks] == ["relu", "matmul"]
assert "2 tasks" in step.explain()
assert "relu_once" in repr(step.compare())
without = Step()
without.config.disable("relu_once")
assert without(x).tolist() == step(x).tolist()


class Shown(flow.nn.Graph):
    def build(self, x):
        return flow.relu(flow.relu(x))


assert Shown()(x).tolist() == x.tolist()
""",
    "Add a screen to the profiler": """
import json
shown = busy(p)
lines = shown.screen(80).plain(False).splitlines()
assert "cpu" in lines[2] and "%" in lines[2], lines
assert all(len(line) <= 80 for line in lines)
assert shown.screen(80).plain(True).isascii()
assert json.dumps(shown.to_dict())
assert shown.streams[0][1] >= 10
""",
}


def test_each_section_with_a_program_is_run() -> None:
    assert {title for title, programs in SECTIONS.items() if programs} == set(BEHIND)


@pytest.mark.parametrize("title", BEHIND)
def test_a_section_works(title: str, tmp_path: Path) -> None:
    program = "\n".join([*SECTIONS[title], BEHIND[title]])
    path = tmp_path / "section.py"  # a file, so that the line of what fails is told
    path.write_text(program)
    process = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "FLOWVM_CUDA_DRIVER": "simulator", "NUMBA_ENABLE_CUDASIM": "1"},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr


def test_a_kernel_is_said_in_three_places() -> None:
    """Body, declaration, samples: the program of the page defines nothing else."""
    (program,) = SECTIONS["Add a kernel"]
    checked = ast.Import, ast.ImportFrom, ast.Assign, ast.Assert
    places = [n for n in ast.parse(program).body if not isinstance(n, checked)]
    names = [n.name if isinstance(n, ast.FunctionDef) else ast.unparse(n)[:14] for n in places]
    assert names == ["spread_body", "spread", "samples(spread"]


@pytest.mark.parametrize("title", [title for title in SECTIONS if title.startswith("Add ")])
def test_a_section_has_at_most_a_page(title: str) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert section is not None
    assert len(section.group(1).splitlines()) <= 70
