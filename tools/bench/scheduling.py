"""The lab: makespans predicted and measured, simulations a second, what policies cost that are off.

A prediction is made of other steps than it is compared with: tasks cost what they took at the
median of the steps recorded for it, and may start when Python issued them there.  Machine.here()
has the wake-up and the hand-over.  Of both, the quickest third counts, each step as a whole: on a
busy machine the others were interrupted.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import flowvm as flow
from flowvm import lab, nn
from flowvm.commands.demo import build_mlp, build_model, train_step
from flowvm.errors import ConfigError
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine import machine, policy
from flowvm.vm.machine.lang import address_of
from flowvm.vm.machine.words import OPERAND
from flowvm.vm.workers import shell
from tools.bench.measure import Result
from tools.bench.native_issue import random_dag, run

Array = np.ndarray[Any, Any]
STEPS = 30  # recorded for a prediction, and measured; a third of them counts
REGISTERS = (1, 2, 3)
_side: list[Any] = []


def side() -> Any:
    """The second stream."""
    if not _side:
        _side.append(flow.Stream("lab"))
    return _side[0]


# --- programs -----------------------------------------------------------------------------------


def cnn() -> Callable[[], Any]:
    """The demo's CNN: a step of training."""
    return _training(build_model(), flow.randn(32, 1, 8, 8))


def mlp() -> Callable[[], Any]:
    """The demo's MLP: a step of training."""
    return _training(build_mlp(), flow.randn(32, 64))


def _training(model: Any, images: Any) -> Callable[[], Any]:
    adam = flow.optim.Adam(model.parameters(), lr=1e-3)
    labels = flow.arange(len(images)) % 10
    return lambda: train_step(model, adam, images, labels)


def transformer() -> Callable[[], Any]:
    """Tutorial 13's encoder layer: a step of training."""
    model = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    sgd = flow.optim.SGD(model.parameters(), lr=0.01)
    x = flow.randn(8, 32, 128)

    def step() -> Any:
        sgd.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        sgd.step()
        return loss

    return step


def pipeline() -> Callable[[], Any]:
    """Eight batches through two stages, each stage on a stream of its own."""
    first, second = flow.randn(384, 384) * 0.05, flow.randn(384, 384) * 0.05
    batches = [flow.randn(192, 384) for _ in range(8)]

    def step() -> Any:
        total = []
        for batch in batches:
            half = (batch @ first).tanh()
            with flow.stream(side()):
                total.append((half @ second).tanh())
        return total

    return step


PROGRAMS = {"CNN": cnn, "MLP": mlp, "transformer": transformer, "two-stream pipeline": pipeline}


# --- predicted and measured -----------------------------------------------------------------------


def recorded(step: Callable[[], Any], around: Callable[[], Any]) -> tuple[list[Any], list[Any]]:
    """Profiles of steps, each in a block of its own: those to predict by and those to compare with,
    in turn, so that both meet the same noise.  Of each the quickest third, the quickest first.
    """
    runs = []
    for _ in range(2 * STEPS):
        with around(), flow.profiler.profile() as p:
            result = step()
            flow.vm.sync()
        del result
        runs.append(p)
    known, others = (sorted(some, key=makespan)[: STEPS // 3] for some in (runs[::2], runs[1::2]))
    return known, others


@contextlib.contextmanager
def on_cores(count: int) -> Iterator[None]:
    """All threads of this process on so many cores."""
    cpus = os.sched_getaffinity(0)

    def pin(some: set[int]) -> None:
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), some)

    pin(set(sorted(cpus)[-count:]))
    try:
        yield
    finally:
        pin(cpus)


def typical(runs: list[Any]) -> lab.Dag:
    """The graph of a step: the median of what each task took, and of when it was issued."""
    dags = [lab.Dag.of(p, issued=True) for p in runs]
    dag = dags[0].with_cost(np.median([d.cost for d in dags], axis=0))
    return dag.with_release(np.median([d.release for d in dags], axis=0))


def makespan(p: Any) -> float:
    """Seconds from the beginning of the block to the end of the last task."""
    dag = lab.Dag.of(p)
    started = (p.run.time("started")[dag.rows] - p.run.begun) / 1e9
    return float((started + dag.cost).max())


def predictions() -> Iterator[tuple[str, int, float, list[float], Any]]:
    """(program, cores, predicted, measured ones, comparison with the median one)."""
    for name, make in PROGRAMS.items():
        flow.manual_seed(0)
        step = make()
        for _ in range(3):
            step()
            flow.vm.sync()
        for cores in (1, 2):
            with on_cores(cores):
                on_two = cores == 2 and name != "two-stream pipeline"
                around: Callable[[], Any] = contextlib.nullcontext
                if on_two:
                    like = typical(recorded(step, around)[0])
                    around = functools.partial(
                        flow.vm.schedule, "critical_path", streams=[None, side()], like=like
                    )
                known, runs = recorded(step, around)
                dag = typical(known)
                if on_two:
                    dag = lab.Dag(dag.cost, (dag.source, dag.target), release=dag.release,
                                  op=[dag.names[k] for k in dag.op])  # fmt: skip
                    target: Any = lab.Machine.here(2)
                else:
                    target = placed(dag, cores)
                target.near[:] = 0  # streams share memory
                by = "critical_path" if on_two else "fifo"
                predicted = lab.simulate(dag, target, by)
                spans = [makespan(p) for p in runs]
                middle = runs[len(runs) // 2]
                yield name, cores, predicted.makespan, spans, lab.compare(predicted, middle)


def placed(dag: lab.Dag, cores: int) -> lab.Machine:
    """This machine with a worker for each stream of a graph."""
    measured = lab.Machine.here(1)
    streams = np.unique(dag.stream).tolist()
    return lab.Machine(streams=dict.fromkeys(streams, 1), wake=measured.wake,
                       handover=measured.handover, cores=cores, shared=True)  # fmt: skip


def registers() -> Iterator[tuple[int, float, float]]:
    """(regst_num, seconds predicted, seconds measured) of launches of a Plan on two streams."""
    count = 24
    first, second = flow.randn(256, 256) * 0.05, flow.randn(256, 256) * 0.05
    x = flow.randn(256, 256)

    class Stages(nn.Graph):
        def build(self, x: Any) -> Any:
            for _ in range(4):
                x = (x @ first).tanh()
            with flow.stream(side()):
                for _ in range(4):
                    x = (x @ second).tanh()
            return x

    for number in REGISTERS:
        graph: Any = Stages()
        graph.config.regst_num = number
        graph(x).numpy()

        def launches(graph: Any = graph) -> float:
            flow.vm.sync()
            begun = time.perf_counter()
            launches = [graph(x) for _ in range(count)]
            flow.vm.sync()
            del launches
            return time.perf_counter() - begun

        dags = []
        for _ in range(7):
            with flow.profiler.profile(level=2) as p:
                launches()
            dags.append(lab.Dag.of(graph.plans[0], cost=p))
        dag = min(dags, key=lambda d: d.work)
        machine = placed(dag, 2)
        chain = lab.launches(dag, count, number)
        predicted = lab.simulate(chain, machine, "fifo").makespan
        yield number, predicted, min(launches() for _ in range(7))


# --- speed ----------------------------------------------------------------------------------------


def list_speed() -> float:
    """Tasks a second of a list policy, of 300,000 tasks."""
    n, rng = 300_000, np.random.default_rng(0)
    target = np.arange(1, n)
    sources = [(target - 1 - rng.integers(0, 50, n - 1)).clip(0) for _ in range(2)]
    both = sources[0] != sources[1]
    ends = np.concatenate((sources[0], sources[1][both])), np.concatenate((target, target[both]))
    dag = lab.Dag(rng.lognormal(size=n), ends)
    return n / _best(lambda: lab.simulate(dag, 8, "critical_path"), 5)


def heft_against_saga() -> tuple[float, float | None]:
    """Seconds of HEFT for 1,000 tasks on 8 workers, ours and SAGA's, where it is installed."""
    dag = lab.synthetic("layered", n=1000, seed=1, cost="lognormal", ccr=0.5)
    workers = lab.Machine(speeds=[1, 2, 0.5, 1.5, 1, 1, 3, 2], link=1.0)
    ours = _best(lambda: lab.simulate(dag, workers, "heft"), 10)
    try:
        theirs = lab.saga("HeftScheduler")
    except ConfigError:
        return ours, None
    return ours, _best(lambda: lab.simulate(dag, workers, theirs), 3)


def saga_table(path: Path) -> Iterator[tuple[str, float, float, float]]:
    """(heuristic, most that our makespans are above theirs, our seconds, theirs) of a file of
    SAGA's.
    """
    cases = json.loads(path.read_text())
    for name in cases[0]["makespan"]:
        worst, ours, theirs = -np.inf, 0.0, 0.0
        for case in cases:
            dag = lab.Dag(case["cost"], [tuple(edge) for edge in case["edges"]])
            workers = lab.Machine(speeds=case["speed"], link=case["link"])
            lab.simulate(dag, workers, name)
            begun = time.perf_counter()
            schedule = lab.simulate(dag, workers, name)
            ours += time.perf_counter() - begun
            theirs += case["seconds"][name]
            worst = max(worst, schedule.makespan / case["makespan"][name] - 1)
        yield name, worst, ours, theirs


def _best(function: Callable[[], Any], times: int) -> float:
    best = np.inf
    for _ in range(times):
        begun = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - begun)
    return float(best)


# --- policies that are off ------------------------------------------------------------------------


def without_policies(folder: str) -> Any:
    """The scheduler's loop of a VM that has no policies: the same sources, but for every look at
    the policy's words.
    """
    copies: dict[str, Any] = {}
    for module in (policy, machine, shell):
        name = module.__name__.rpartition(".")[2]
        text = Path(str(module.__file__)).read_text()
        for look in (r"m\[POL\.KIND\] != 0", r"m\[POL\.KIND\] == POL\.ASKED",
                     r"m\[POL\.GATHERED\] != 0"):  # fmt: skip
            text = re.sub(look, "False", text)
        for other in copies:
            text = text.replace(f"flowvm.vm.machine.{other} ", f"bench_{other} ")
        path = Path(folder) / f"bench_{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(f"bench_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        copies[name] = importlib.util.module_from_spec(spec)
        sys.modules[f"bench_{name}"] = copies[name]
        spec.loader.exec_module(copies[name])
    address = address_of(copies["shell"].scheduler_loop, "int64(int64, int64)")
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(address)


def off(rounds: int) -> Iterator[Result]:
    """An instruction, and `a + b`, with policies off and in a VM that has none, in turn."""
    program = random_dag(1_000_000, 1000, 0)
    access = [OPERAND.MUT, OPERAND.CONST, OPERAND.CONST]
    a = b = flow.ones(8, 8)

    def adds() -> float:
        begun = time.perf_counter()
        for _ in range(20_000):
            a + b
        flow.vm.sync()
        return (time.perf_counter() - begun) / 20_000

    plain = engine.loops.function("scheduler_loop")
    with tempfile.TemporaryDirectory() as folder:
        loops = {"off": plain, "none": without_policies(folder)}
        seconds: dict[tuple[str, str], list[float]] = {}
        for _ in range(2 * rounds):
            for name, loop in loops.items():
                _restart_with(loop)
                seconds.setdefault(("instruction", name), []).append(run(program, access))
                seconds.setdefault(("a + b", name), []).append(adds())
        _restart_with(plain)
    for what in ("instruction", "a + b"):
        mine, other = min(seconds[what, "off"]), min(seconds[what, "none"])
        yield Result(f"{what}, policies off", "ns", mine * 1e9, "no policies", other * 1e9,
                     mine / other, "at most 1.01x", mine / other <= 1.01)  # fmt: skip


def _restart_with(loop: Any) -> None:
    assert engine.threads.stop(20), "a thread of the VM hangs"
    engine.loops.native["scheduler_loop"] = loop
    engine.threads.start()


def results(rounds: int) -> Iterator[Result]:
    """All rows."""
    errors = []
    for name, cores, predicted, spans, compared in predictions():
        middle = statistics.median(spans)
        errors.append(abs(predicted / middle - 1))
        spread = (max(spans) - min(spans)) / middle
        causes = ", ".join(f"{c.name} {c.seconds * 1e3:+.2f}" for c in compared.causes)
        note = f"measured within {spread:.0%}; {causes}"
        yield Result(f"{name}, {cores} cores", "ms", predicted * 1e3, "measured", middle * 1e3,
                     predicted / middle, note=note)  # fmt: skip
    median = statistics.median(errors)
    yield Result("error of a prediction, median", "%", median * 100, reach="at most 10",
                 met=median <= 0.1)  # fmt: skip
    for number, predicted, measured in registers():
        yield Result(f"24 launches, regst_num {number}", "ms", predicted * 1e3, "measured",
                     measured * 1e3, predicted / measured)  # fmt: skip
    speed = list_speed() / 1e6
    yield Result("tasks of a list policy", "million/s", speed, reach="at least 1", met=speed >= 1)
    ours, theirs = heft_against_saga()
    ratio = None if theirs is None else ours / theirs
    yield Result("HEFT, 1,000 tasks, 8 workers", "ms", ours * 1e3, "" if theirs is None else "saga",
                 theirs and theirs * 1e3, ratio, "at most 0.01x",
                 None if ratio is None else ratio <= 0.01)  # fmt: skip
    for name, worst, mine, its in saga_table(Path("tests/lab/saga.json")):
        yield Result(f"20 graphs of SAGA, {name}", "ms", mine * 1e3, "saga, recorded", its * 1e3,
                     mine / its, note=f"makespans at most {worst:+.2%}")  # fmt: skip
    yield from off(rounds)
