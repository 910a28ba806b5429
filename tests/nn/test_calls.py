"""The issuing modules of instructions: paths of modules, joined by instruction numbers."""

from __future__ import annotations

import ctypes
import gc
import json
import random
import threading
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.eager.native import install
from flowvm.nn import module_calls
from flowvm.nn.module_calls import Paths
from flowvm.profiler import profile
from flowvm.vm.callers.lines import NO_ORIGIN, UNKNOWN, behind
from flowvm.vm.callers.scopes import CALLS, NESTED, NEVER, NOTES, OPEN, OVER, Scopes
from flowvm.vm.engine.engine import engine


@pytest.fixture(params=["native", "python"], autouse=True)
def calls(request: Any, monkeypatch: Any) -> str:
    """Have calls noted by compiled code, or by the function that defines them."""
    kind: str = request.param
    if kind == "native":
        if not install.is_enabled():
            pytest.skip("calls are Python's")
        install.settle()
    else:
        monkeypatch.setattr(module_calls, "_call", module_calls._noted)
    return kind


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return x + self.fc(self.norm(x)).relu()


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def modules_of(p: Any) -> dict[str, set[str]]:
    """For each module the operators that it issued."""
    results: dict[str, set[str]] = {}
    for row in p.query("kind == 'op'", limit=None):
        results.setdefault(row.module, set()).add(row.op)
    return results


def test_forward_and_backward_belong_to_the_module() -> None:
    net, x = Stack(), flow.ones(4, 8)
    with profile() as p:
        (net(x).square().sum() * 2).backward()
    modules = modules_of(p)
    root = next(name for name in modules if name.startswith("Stack")).partition(".")[0]
    for k in range(2):
        block = f"{root}.layers.{k}"
        assert modules[f"{block}.fc"] >= {"linear", "_matmul_tn"}
        assert modules[f"{block}.norm"] >= {"normalize", "normalize_backward"}
        assert modules[block] >= {"relu", "add", "relu_backward"}
    assert modules[""] >= {"square", "mul"}
    assert not modules[""] & {"linear", "relu", "relu_backward", "normalize_backward"}
    rows = {row.name for row in p.table("module")}
    assert any(row.startswith(f"{root}.layers.") for row in rows)
    assert all(p.instr[r.seq].origin.module == r.module for r in p.query("run >= 0", limit=None))


def test_backward_names_the_line_of_the_forward_call() -> None:
    net, x = Stack(), flow.ones(4, 8)
    with profile() as p:
        net(x).sum().backward()
    row = next(iter(p.query("op == 'relu_backward'")))
    text = str(p.why(row.seq))
    assert "return x + self.fc(self.norm(x)).relu()" in text
    assert "forward  test_calls.py:" in text
    assert f"module   {row.module}" in text
    assert "forward" not in str(p.why("linear"))


def test_level_1_knows_none_and_leaves_calls_as_they_were() -> None:
    plain, net = nn.Module.__call__, Stack()
    with engine.flight.at_least(2):
        assert nn.Module.__call__ is not plain
        with engine.flight.at_least(3):
            net(flow.ones(4, 8))
        assert nn.Module.__call__ is not plain
    assert nn.Module.__call__ is plain
    with profile(level=1) as p:
        net(flow.ones(4, 8))
    assert set(modules_of(p)) == {""}


def test_a_saved_run_keeps_them(tmp_path: Any) -> None:
    net = Stack()
    with profile() as p:
        net(flow.ones(4, 8)).sum().backward()
    p.save(tmp_path / "a.flowtrace")
    q = flow.profiler.load(tmp_path / "a.flowtrace")
    assert modules_of(q) == modules_of(p)
    assert np.array_equal(q.run.forward, p.run.forward)
    assert (q.run.forward >= 0).any()


def test_a_module_that_raises_is_left() -> None:
    class Bad(nn.Module):
        def forward(self, x: Any) -> Any:
            raise KeyError("mine")

    outer = nn.Sequential(nn.Linear(8, 8), Bad())
    with profile() as p:
        with pytest.raises(KeyError):
            outer(flow.ones(4, 8))
        flow.ones(3).exp()
    assert "exp" in modules_of(p)[""]


def test_modules_of_two_threads_are_told_apart_or_nobodys() -> None:
    """While both run, an instruction may be either's."""
    one, two, x = Stack(), Block(), flow.ones(4, 8)
    entered, go = threading.Event(), threading.Event()

    class Holding(nn.Module):
        def forward(self) -> None:
            entered.set()
            go.wait(200)

    with profile() as p:
        thread = threading.Thread(target=Holding())
        thread.start()
        entered.wait(200)
        one(x)
        go.set()
        thread.join()
        two(x)
    modules = modules_of(p)
    assert "linear" in modules[""]
    assert not any(name.startswith("Stack") for name in modules)
    assert any(name.startswith("Block") for name in modules)


def test_paths_come_and_go() -> None:
    paths, a, b = Paths(), Stack(), Stack()
    assert paths.add(a, None) == "Stack"
    assert paths.add(b, None) == "Stack(2)"
    assert paths.known[id(b.layers[1].fc)] == "Stack(2).layers.1.fc"
    late = nn.Linear(2, 2)
    assert paths.add(late, a) == "Linear", "nobody's attribute"
    a.late = nn.Linear(2, 2)
    assert paths.add(a.late, a) == "Stack.late"
    del a
    gc.collect()
    c = Stack()
    assert paths.add(c, None) == "Stack"
    del b, c, late
    gc.collect()
    assert not paths.known
    assert not paths._dying


def test_a_module_that_was_called_alone_goes_by_the_larger_tree_later() -> None:
    paths, block = Paths(), Block()
    assert paths.add(block, None) == "Block"
    paths.add(nn.Sequential(nn.Linear(8, 8), outer := nn.Sequential(block)), None)
    assert paths.known[id(block)] == "Sequential.1.0"
    del outer


def test_calls_against_a_plain_search(seed: int) -> None:
    rng = random.Random(seed)
    scopes, seq = Scopes(), 0
    within: dict[int, list[tuple[int, str]]] = {1: [], 2: []}  # what each thread runs, since when
    spans: list[tuple[int, str, str]] = []  # from this number on: the innermost of each
    for _ in range(300):
        seq += rng.choice((0, 0, 1, 3))
        thread = rng.choice((1, 1, 1, 2))
        if within[thread] and rng.random() < 0.5:
            first, path = within[thread].pop()
            scopes.calls.append((first, seq, thread, path))
        else:
            within[thread].append((seq, rng.choice(("a", "a.b", "c"))))
        one, two = (calls[-1][1] if calls else "" for calls in within.values())
        spans.append((seq, one, two))
    scopes.running = lambda: [
        (first, NEVER, thread, path)
        for thread, calls in within.items() for first, path in reversed(calls)
    ]  # fmt: skip
    seqs = np.arange(-1, seq + 3)
    numbers, names = scopes.paths_of(seqs, np.full(len(seqs), NO_ORIGIN))
    for k, n in zip(seqs.tolist(), numbers.tolist(), strict=True):
        _, one, two = ([(0, "", "")] + [s for s in spans if s[0] <= k])[-1]
        expected = "" if one and two else one or two
        assert names[n] == expected, f"instruction {k}"
    origins = np.where(seqs % 2 == 0, 5, behind(5))
    unknown, _ = scopes.paths_of(seqs, np.full(len(seqs), UNKNOWN))
    assert not unknown.any()
    again, _ = scopes.paths_of(seqs, origins)
    assert set(again.tolist()) == {int(numbers[6])}


def test_a_call_that_is_not_over_is_known() -> None:
    results: list[dict[str, set[str]]] = []

    class Asking(nn.Module):
        def forward(self, x: Any) -> Any:
            y = x.exp()
            results.append(modules_of(flow.profiler.last(5)))
            return y

    inner = Asking()
    outer = nn.Sequential(nn.Linear(8, 8), inner)
    with engine.flight.at_least(2):
        outer(flow.ones(4, 8))
    path = next(path for path, ops in results[0].items() if "exp" in ops)
    assert path.startswith("Sequential")
    assert path.endswith(".1")
    assert "linear" in results[0][path.removesuffix("1") + "0"]


def test_every_call_is_noted_where_it_is_said_to_be(calls: str) -> None:
    """Once paths are known, and hooks or not: the other way costs six times as much a call."""
    net, x = Stack(), flow.ones(4, 8)
    hooked = nn.Sequential(nn.ReLU())
    hooked[0].register_forward_hook(lambda *_: None)
    with engine.flight.at_least(2):
        hooked(net(x))
        scopes = engine.flight.scopes
        before = scopes.native(0), list(scopes.calls)
        hooked(net(x))
        added = [scopes.native(0)[len(before[0]) :], list(scopes.calls)[len(before[1]) :]]
    if calls == "python":
        added.reverse()
    assert added[1] == []
    names = [path.partition(".")[2] for *_, path in added[0]]
    block = "norm", "fc", ""
    assert names[:6] == [f"layers.{k}.{n}".rstrip(".") for k in (0, 1) for n in block]
    assert len(names) == 9


def test_calls_deeper_than_there_is_room_for_are_noted_too(calls: str) -> None:
    net, x, scopes = Stack(), flow.ones(4, 8), engine.flight.scopes
    if calls == "python":
        return
    with profile() as p:
        net(x)
        free, scopes.notes[NOTES.FREE] = scopes.notes[NOTES.FREE], 0
        try:
            net(x)
        finally:
            scopes.notes[NOTES.FREE] = free
    modules = [row.module.partition(".")[2] for row in p.query("op == 'linear'", limit=None)]
    assert sorted(modules) == ["layers.0.fc"] * 2 + ["layers.1.fc"] * 2


def test_a_call_in_flight_when_the_level_falls_is_as_any_other() -> None:
    class Falling(nn.Module):
        def forward(self, x: Any) -> Any:
            flow.profiler.level = 1
            return x.exp()

    before = flow.profiler.level
    net = nn.Sequential(nn.ReLU(), Falling())
    try:
        flow.profiler.level = 2
        net(flow.ones(3))
    finally:
        flow.profiler.level = before
    scopes = engine.flight.scopes
    assert scopes.notes is None or not scopes._open()[:, OPEN.TICKET].any()


def test_what_native_calls_note() -> None:
    """Notes hold more calls than are remembered: nested, empty and running ones, and a fork."""
    scopes, me = Scopes(), threading.get_ident()
    scopes.names = {0: "outer", 1: "inner"}
    words = scopes.take_notes()
    for k in range(2):
        at = NOTES.OVER + OVER.WORDS * ((CALLS + k) % CALLS)
        words[at : at + OVER.WORDS] = [50, 60, me, 1 - k]
    words[NOTES.COUNT] = CALLS + 2
    rows = [NOTES.RUNNING + OPEN.WORDS * k for k in range(3)]
    for at, thread, path in zip(rows, (me, me + 1, me), (0, 0, 1), strict=True):
        words[at : at + OPEN.WORDS - 1] = [at, 70, thread, path, id(scopes)]
    over = [(50, 60, me, "inner"), (50, 60, me, "outer")]
    assert scopes.native(0) == [*over, (70, NEVER, me, "inner"), (70, NEVER, me, "outer")]
    assert scopes.native(60) == scopes.native(0)[2:]
    assert scopes.outermost() is scopes
    scopes.after_fork_in_child()
    assert len(scopes.native(60)) == 2
    free, address = 0, words[NOTES.FREE]
    begin = ctypes.addressof(words)
    while address:
        assert words[(address - begin) // 8 + OPEN.TICKET] == 0
        free, address = free + 1, words[(address - begin) // 8 + OPEN.NEXT]
    assert free == NESTED - 2


class Step(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.net = Stack()

    def build(self, x: Any) -> Any:
        loss = self.net(x).square().sum()
        loss.backward()
        return loss


@pytest.mark.filterwarnings("ignore::flowvm.errors.RecaptureWarning")
def test_tasks_of_graphs_have_the_same() -> None:
    step, x = Step(), flow.ones(4, 8)
    for _ in range(2):  # .grad is None before the first
        step(x).item()
    with profile() as p:
        step(x).item()
    rows = list(p.query("task >= 0 and 'layers.0.fc' in module", limit=None))
    line = "test_calls.py:"
    assert any(r.module == "net.layers.0.fc" for r in rows)
    calls = list(p.query(f"task >= 0 and '{line}' in forward", limit=None))
    ops = {r.op.partition("[")[0] for r in calls}
    assert ops >= {"_matmul_tn", "normalize_backward"}, "they are backward's"
    assert not ops & {"linear", "normalize"}
    (hottest,) = (r.hottest for r in p.table("module") if r.name == "net.layers.1.norm")
    assert "self.fc(self.norm(x))" in p.run.info["sources"][hottest]


def test_exports_have_them(tmp_path: Any) -> None:
    net = Stack()
    with profile() as p:
        net(flow.ones(4, 8)).sum().backward()
    row = next(iter(p.query("op == 'relu_backward'")))
    events = json.loads(p.export(tmp_path / "a.json").read_text())["traceEvents"]
    (args,) = (
        e["args"] for e in events if e.get("args", {}).get("id") == row.seq and "bytes" in e["args"]
    )
    assert args["module"] == row.module
    assert args["forward"].startswith("test_calls.py:")
    html = p.export(tmp_path / "a.html").read_text()
    assert f'"{row.module}"' in html
    assert '"module": [{"name": "' in html or '"module":[{"name":"' in html
