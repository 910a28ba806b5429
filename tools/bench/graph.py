"""nn.Graph: replays against eager code of flowvm and PyTorch, and against `jax.jit`."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import flowvm as flow
from flowvm.compiler import jit
from flowvm.eager.declaration import Invocation, Kernel, Signature
from flowvm.eager.interpreter import Operator
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand, OpNode
from flowvm.graph.plan.plan import compile_plan
from flowvm.meta.meta import TensorMeta
from flowvm.vm.engine.entries import no_op
from tools.bench import compile as compiling
from tools.bench import pipeline
from tools.bench.kernels import Runner, Timing, runners, time_functions
from tools.bench.measure import Result, seconds_per_call
from tools.bench.memory import peak_rows
from tools.bench.targets import Training, _array, _result, cnn, mlp, stepping, transformer

ACTORS = 1000


def _ours_step(make: Callable[[Any], Training]) -> Callable[[], Any]:
    """A training step of `targets` as a graph, with its optimizer inside."""
    model, optimizer, x, y = make(flow)
    loss_of = flow.nn.CrossEntropyLoss()

    class Train(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x: Any, y: Any) -> Any:
            loss = loss_of(self.model(x), y)
            loss.backward()
            return loss

    graph = Train()
    return lambda: graph(x, y)


def _jax_step() -> Callable[[], Any]:
    """The MLP's training step in JAX: SGD with momentum 0.9."""
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    sizes = (64, 64, 64, 10)
    layers = [
        (jnp.asarray(rng.standard_normal((m, n), np.float32) / 8), jnp.zeros(n))
        for m, n in itertools.pairwise(sizes)
    ]
    x, y = jnp.asarray(_array(rng, (32, 64))), jnp.asarray(rng.integers(0, 10, 32))

    def loss_of(layers: Any) -> Any:
        h = x
        for i, (w, b) in enumerate(layers):
            h = h @ w + b
            h = jax.nn.relu(h) if i < 2 else h
        return -jnp.mean(jax.nn.log_softmax(h)[jnp.arange(32), y])

    def step(state: Any) -> Any:
        layers, speeds = state
        loss, grads = jax.value_and_grad(loss_of)(layers)
        speeds = jax.tree.map(lambda s, g: 0.9 * s + g, speeds, grads)
        return (jax.tree.map(lambda p, s: p - 0.01 * s, layers, speeds), speeds), loss

    compiled = jax.jit(step)
    state = [(layers, jax.tree.map(jnp.zeros_like, layers))]

    def run() -> Any:
        state[0], loss = compiled(state[0])
        return loss

    return run


def _jax_forward() -> Callable[[], Any]:
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    ws = [jnp.asarray(rng.standard_normal(s, np.float32)) for s in ((64, 64), (64, 64), (64, 10))]
    x = jnp.asarray(_array(rng, (32, 64)))

    def forward(x: Any) -> Any:
        h = jax.nn.relu(x @ ws[0] + 0.1)
        return jax.nn.relu(h @ ws[1] + 0.1) @ ws[2] + 0.1

    compiled = jax.jit(forward)
    return lambda: compiled(x)


def _empty_plan() -> Any:
    """A Plan of ACTORS tasks of a kernel that does nothing, a chain on one buffer."""
    meta = TensorMeta.of((1,), flow.float32)
    kernel = jit.native(no_op, "int32(int64, int64, int64, int64)")
    operator = Operator(
        "nothing",
        Signature(("x",), ("out",)),
        Kernel(lambda metas, attrs: Invocation((meta,), kernel, np.zeros(1, np.int64))),
    )
    buffers = [Buffer(k, BufferKind.TEMPORARY, 4) for k in range(ACTORS + 1)]
    buffers[0].kind = BufferKind.INPUT
    places = [Operand(buffer, 0, meta) for buffer in buffers]
    nodes = [OpNode(k, operator, (places[k],), (places[k + 1],)) for k in range(ACTORS)]
    graph = LogicalGraph("empty", nodes, [places[0]], [places[-1]])
    return compile_plan(graph)


def _gelu_rows(rounds: int) -> Iterator[Result]:
    """The tanh form of GELU written out, on 4M float32, against a copy of as much, and jax.jit."""
    x = flow.randn(1 << 22)

    def formula(x: Any, tanh: Callable[[Any], Any] = flow.tanh) -> Any:
        return 0.5 * x * (1 + tanh(0.7978845608 * (x + 0.044715 * x * x * x)))

    graph = flow.compile(formula)

    def repeat(call: Callable[[], Any]) -> Callable[[int], None]:
        def run(count: int) -> None:
            for _ in range(count):
                call()
            flow.vm.sync()

        return run

    ours, copy = repeat(lambda: graph(x)), repeat(lambda: x.clone())
    for run in (ours, copy):
        run(3)
    pairs = [(seconds_per_call(ours, 10), seconds_per_call(copy, 10)) for _ in range(rounds)]
    ratio = statistics.median(a / b for a, b in pairs)
    yield Result(
        "graph: GELU written out, 4M float32", "ms", statistics.median(a for a, _ in pairs) * 1e3,
        "a copy", statistics.median(b for _, b in pairs) * 1e3, ratio, "at most 2x", ratio <= 2,
    )  # fmt: skip


def results(names: list[str], rounds: int) -> Iterator[Result]:
    """Every row."""
    libraries = {on.name: on for on in runners(names)}
    steps: list[tuple[str, Callable[[Any], Training], str, float, str]] = [
        ("graph: MLP step", mlp, "jax", 40 / 49, "torch"),
        ("graph: CNN step", cnn, "torch", 0.9, ""),
        ("graph: transformer step", transformer, "torch", 0.7, ""),
    ]
    for name, make, peer, reach, second in steps:
        for other in filter(None, (peer, second)):
            if other not in libraries:
                continue
            row = Timing(f"{name}, against {other}", "", 0)
            ready: list[tuple[Runner, Callable[[], Any]]] = [
                (libraries["flowvm"], _ours_step(make))
            ]
            ready[0][1]()  # the first step is eager: it makes the optimizer's state
            if other == "jax":
                ready.append((libraries["jax"], _jax_step()))
            else:
                import torch

                ready.append((libraries["torch"], stepping(make)(torch)))
            time_functions(row, ready, rounds)
            yield _result(row, reach)
    row = Timing("graph: MLP forward", "", 0)
    model, _, x, _ = mlp(flow)
    graph = flow.compile(lambda x: model(x))
    ready = [(libraries["flowvm"], lambda: graph(x))]
    if "jax" in libraries:
        ready.append((libraries["jax"], _jax_forward()))
    time_functions(row, ready, rounds)
    yield _result(row, 12 / 13.7)
    plan, one = _empty_plan(), flow.zeros(1)

    def launch(count: int) -> None:
        for _ in range(count):
            plan.launch([one])
        flow.vm.sync()

    launch(10)
    best = min(seconds_per_call(launch, 200) for _ in range(rounds)) / ACTORS * 1e9
    yield Result(
        "graph: an actor of 1,000 empty ones", "ns", best, reach="at most 50", met=best <= 50
    )
    yield from _gelu_rows(rounds)
    yield from peak_rows()
    yield from compiling.results()
    yield from pipeline.results(rounds)
