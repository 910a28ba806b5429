"""`python -m tools.bench.call`: the path of one op in nanoseconds, step by step.

    whole calls   issue to issue, 8x8 operands: by the operator's Python function (its twin), by
                  compiled code, and the peers'; ours and theirs in turn, best of rounds
    usual calls   as they stand in a program: by Python functions, in a process of their own; by
                  compiled code where there is such and the peers', in turn in another
    backward      matmul, relu, sum and backward of 8x8, likewise
    mlp step      a training step of 64-64-64-10, batches of 32, SGD with momentum, likewise
    steps         what each step of a native call adds, apart from the VM: native functions that go
                  so far and no further, called in turn; the first row is an empty one

Absolute times are this machine's at this moment.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import flowvm as flow
from flowvm.compiler import jit
from flowvm.eager.call_entry import CallEntry
from flowvm.eager.interpreter import operators
from flowvm.eager.native import entry_points, install
from flowvm.eager.native.arguments import all_whole, departs, entry_of
from flowvm.eager.native.check import Apart, callee, plain_tensor
from flowvm.eager.native.cpython import decref, incref, provide_api, word
from flowvm.eager.native.objects import SITE_AT, activate, new_call
from flowvm.eager.native.origin import place
from flowvm.eager.native.tables import shared_table, site_table
from flowvm.eager.native.tensor import new_output
from flowvm.eager.native.words import SHARED, SITE
from flowvm.eager.tensor import Tensor
from flowvm.ops.declare.registry import operator_of
from flowvm.vm.machine.lang import load_word

WORDS_ONLY = True
COUNT = 200
USUAL = (
    "x.add_(y)", "x.mul_(1.0)", "x[3]", "x[2:4]", "x[1, 2:4]", "x.view(-1)", "x.t()",
    "x.transpose(0, 1)", "x.permute(1, 0)", "x.unsqueeze(0)", "x.flatten()", "x.expand(2, 8, 8)",
    "x.narrow(0, 1, 2)", "w[3]", "w.t()", "x.sum()", "x.sum(1)", "x.sum(dim=1, keepdim=True)",
    "x.mean()", "w.mean()", "x.max()", "x.max(1)", "x == y", "F.relu(x)", "F.linear(x, y)",
    "F.softmax(x, 1)", "F.layer_norm(x, (8,))", "x.sort()", "x.topk(3)", "m.cat([x, y])",
    "m.stack([x, y])", "x.chunk(2, 1)", "w.chunk(2, 1)", "x.unbind()", "m.add(x, y, out=o)",
    "m.matmul(x, y, out=o)", "same(x)",
)  # fmt: skip
STEPS_A_ROUND = 50


# --- native functions that go so far -------------------------------------------------------------


def nothing(self: int, args: int, count: int, names: int) -> int:
    """Do nothing."""
    none = word(word(load_word(self + SITE_AT), SITE.SHARED), SHARED.NONE)
    incref(none)
    return none


def reads(self: int, args: int, count: int, names: int) -> int:
    """And looks at the arguments."""
    site = load_word(self + SITE_AT)
    shared = word(site, SITE.SHARED)
    if not departs(shared, site):
        all_whole(shared, site, args)
    return nothing(self, args, count, names)


def finds(self: int, args: int, count: int, names: int) -> int:
    """And finds the entry."""
    site = load_word(self + SITE_AT)
    decref(entry_of(word(site, SITE.SHARED), site, args, 0))
    return reads(self, args, count, names)


def makes(self: int, args: int, count: int, names: int) -> int:
    """And makes the output, which Python then drops."""
    site = load_word(self + SITE_AT)
    entry = entry_of(word(site, SITE.SHARED), site, args, 0)
    out = new_output(word(site, SITE.SHARED), entry, 0)
    decref(entry)
    decref(reads(self, args, count, names))
    return out


def places(self: int, args: int, count: int, names: int) -> int:
    """And finds the caller's line."""
    code, last = place(word(load_word(self + SITE_AT), SITE.SHARED))
    decref(code)
    decref(last)
    return makes(self, args, count, names)


STEPS: tuple[tuple[str, Callable[..., int]], ...] = (
    ("nothing", nothing),
    ("look at the arguments", reads),
    ("find the entry", finds),
    ("make the output, and drop it", makes),
    ("find the caller's line", places),
    ("publish the record", entry_points.entry(SITE_AT)),
)


# --- timing --------------------------------------------------------------------------------------


def best(runs: list[tuple[Callable[[], None], Callable[[], None]]], rounds: int) -> list[float]:
    """Nanoseconds a call, of (before each round, COUNT calls) each; in turn, the least of all."""
    least = [float("inf")] * len(runs)
    for _ in range(rounds):
        for k, (ready, run) in enumerate(runs):
            ready()
            begun = time.perf_counter()
            run()
            least[k] = min(least[k], (time.perf_counter() - begun) / COUNT * 1e9)
    return least


def repeated(call: Callable[..., Any], *args: Any) -> Callable[[], None]:
    """COUNT calls."""

    def run() -> None:
        for _ in range(COUNT):
            call(*args)

    return run


def step_rows(rounds: int) -> list[tuple[str, float]]:
    """Return the nanoseconds that each step adds."""
    provide_api()
    apart, op = Apart(), callee("x y")
    meta: Any = ("meta",)
    x, y = plain_tensor(11, meta), plain_tensor(12, meta)
    op.lru.young[meta, meta] = CallEntry(7, (meta,), False, "")
    apart.names["user_files"].add(__file__)
    shared, free = shared_table(apart.names), apart.names["free"]
    calls = []
    for _, function in STEPS:
        call, site = new_call(lambda *args: None, None), site_table(op, print, shared)
        activate(call, site.words, jit.native(function, entry_points.SIGNATURE), site)
        calls.append(call)

    def ready() -> None:
        free[:] = range(COUNT + 100, 100, -1)

    times = best([(ready, repeated(call, x, y)) for call in calls], rounds)
    added = [times[0], *(b - a for a, b in itertools.pairwise(times))]
    return [*zip([name for name, _ in STEPS], added, strict=True), ("together", times[-1])]


def whole_rows(peers: list[str], rounds: int) -> list[tuple[str, list[float | None]]]:
    """Whole calls: twin, native, and each peer."""
    a, b = flow.ones(8, 8), flow.ones(8, 8)
    w, c = flow.ones(8, 8, requires_grad=True), flow.ones(8)
    theirs = [importlib.import_module(name) for name in peers]
    rows: list[tuple[str, list[float | None]]] = []
    deaths = Tensor.__del__, install.native_death(Tensor)

    def ready(death: Any) -> None:
        setattr(Tensor, "__del__", death)  # noqa: B010 - mypy minds an assignment
        flow.vm.sync()

    plainly, natively = (functools.partial(ready, death) for death in deaths)
    for name, method, args, grad in (
        ("a + b", "__add__", (a, b), False),
        ("a * 2.0", "__mul__", (a, 2.0), False),
        ("relu(a)", "relu", (a,), False),
        ("linear(a, b, c)", "linear", (a, b, c), False),
        ("a @ b", "__matmul__", (a, b), False),
        ("w + b, recorded", "__add__", (w, b), True),
        ("relu(w), recorded", "relu", (w,), True),
    ):
        op = _operator(method)
        runs = [repeated(call, *args) for call in (op.twin, install.native_call(op))]
        for module in theirs:
            runs.append(_peers(module, name, len(args), grad))
        known = best(
            [(natively if run is runs[1] else plainly, run) for run in runs if run is not None],
            rounds,
        )
        times = iter(known)
        rows.append((name, [next(times) if run is not None else None for run in runs]))
    return rows


def _operator(method: str) -> Any:
    if hasattr(Tensor, method):
        return operator_of(getattr(Tensor, method))
    return next(op for op in list(operators) if op.name == method)


def _peers(module: Any, name: str, count: int, grad: bool) -> Any:
    """A peer's run, None where it has none."""
    if module.__name__ != "torch" and (grad or "relu" in name or "linear" in name):
        return None
    x = module.ones((8, 8), dtype=module.float32)
    more = {"requires_grad": True} if grad else {}
    first = module.ones((8, 8), dtype=module.float32, **more)
    if count == 1:
        return repeated(module.relu, first)
    if count == 3:
        return repeated(module.nn.functional.linear, first, x, x[0].clone())
    method = {"+": "__add__", "*": "__mul__", "@": "__matmul__"}[name.split()[1]]
    kind: Any = type(x)
    return repeated(getattr(kind, method), first, 2.0 if "2.0" in name else x)


Run = tuple[str, Callable[[], None], Callable[[], None]]  # a name, what comes before it, and it


def usual_runs(name: str) -> list[Run]:
    """Each of USUAL by the package `name`, flowvm or torch: x, y, o and w, which requires grad, are
    8x8, `m` is the package and `same` a module that gives its argument.
    """
    module: Any = importlib.import_module(name)
    kind = type("Same", (module.nn.Module,), {"forward": lambda self, x: x})
    variables = {"x": module.ones(8, 8), "y": module.ones(8, 8), "F": module.nn.functional}
    variables.update(w=module.ones(8, 8, requires_grad=True), m=module, o=module.ones(8, 8))
    runs = []
    for text in USUAL:
        names: dict[str, Any] = {**variables, "same": kind()}
        exec(f"def run():\n    for _ in range({COUNT}):\n        {text}", names)
        runs.append((text, flow.vm.sync, names["run"]))
    return runs


def step_runs(name: str) -> list[Run]:
    """STEPS_A_ROUND times going back over a small graph, and a training step of a small MLP."""
    module: Any = importlib.import_module(name)
    nn = module.nn
    linear, act = nn.Linear, nn.ReLU
    model = nn.Sequential(linear(64, 64), act(), linear(64, 64), act(), linear(64, 10))
    optimizer = module.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = module.randn(32, 64), module.tensor([k % 10 for k in range(32)])
    a, b = (module.ones(8, 8, requires_grad=True) for _ in range(2))

    def back() -> None:
        for _ in range(STEPS_A_ROUND):
            a.grad = b.grad = None
            (a @ b).relu().sum().backward()
        flow.vm.sync()

    def step() -> None:
        for _ in range(STEPS_A_ROUND):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        flow.vm.sync()

    return [("matmul, relu, sum, backward", flow.vm.sync, back), ("mlp step", flow.vm.sync, step)]


def times_in_turn(
    runs_of: Callable[[str], list[Run]], packages: list[str], calls: int, rounds: int
) -> list[dict[str, float]]:
    """Return the nanoseconds of each run of each package; the packages take turns at a run.

    A run makes `calls` calls.
    """
    for name in packages:
        module: Any = importlib.import_module(name)
        module.set_num_threads(1)
    install.settle()
    each = [runs_of(name) for name in packages]
    columns: list[dict[str, float]] = [{} for _ in packages]
    for same in zip(*each, strict=True):
        for _, _, run in same:
            run()
        times = best([(ready, run) for _, ready, run in same], rounds)
        for column, (name, _, _), t in zip(columns, same, times, strict=True):
            column[name] = t * COUNT / calls
    return columns


def rows_apart(what: str, peers: list[str], rounds: int) -> list[tuple[str, list[float | None]]]:
    """Measure `what` by the Python functions, and by compiled code and the peers that have it.

    Each measurement runs in a process of its own.
    """
    theirs = [name for name in peers if name == "torch"]
    columns = [*apart(what, "python", [], rounds), *apart(what, "native", theirs, rounds)]
    empty: dict[str, float] = {}
    for name in peers:
        if name not in theirs:
            columns.append(empty)
    return [(name, [column.get(name) for column in columns]) for name in columns[0]]


def apart(what: str, calls: str, peers: list[str], rounds: int) -> list[dict[str, float]]:
    """Measure `what` with this program in a process of its own."""
    packages = ",".join(["flowvm", *peers])
    process = subprocess.run(
        [sys.executable, "-m", "tools.bench.call", what, packages, "--rounds", str(rounds)],
        env={**os.environ, "FLOWVM_CALLS": calls},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    columns: list[dict[str, float]] = json.loads(process.stdout)
    return columns


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.call", description=__doc__)
    parser.add_argument("--peers", default="torch,numpy", help="comma-separated; '' for none")
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument(
        "--step", metavar="PACKAGES", help="their backward and MLP step alone, as JSON"
    )
    parser.add_argument("--usual", metavar="PACKAGES", help="their usual calls alone, as JSON")
    options = parser.parse_args()
    if options.step:
        packages = options.step.split(",")
        print(json.dumps(times_in_turn(step_runs, packages, STEPS_A_ROUND, options.rounds)))
        return 0
    if options.usual:
        print(
            json.dumps(times_in_turn(usual_runs, options.usual.split(","), COUNT, options.rounds))
        )
        return 0
    peers = [name for name in options.peers.split(",") if name]
    if why := install.why_not():
        print(f"no native calls here: {why}")
        return 1
    flow.set_num_threads(1)
    print(f"{'nanoseconds':30}" + "".join(f"{n:>9}" for n in ("python", "native", *peers)))
    step = rows_apart("--step", peers, options.rounds)
    usual = rows_apart("--usual", peers, options.rounds)
    for name, times in (*whole_rows(peers, options.rounds), *usual, *step):
        print(f"{name:30}" + "".join(f"{'' if t is None else round(t):>9}" for t in times))
    print(f"\n{'a native call, step by step':30}{'adds':>9}")
    for name, added in step_rows(options.rounds):
        print(f"{name:30}{round(added):>9}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
