"""Every op against PyTorch, JAX and NumPy, over sizes: `python -m tools.bench.kernels`.

    --families order,index      some families; --only TEXT: cases whose name has this text
    --sizes 0,6,12,16,20,24     powers of two of elements
    --peers torch,jax,numpy     what to compare with
    --checkout FOLDER           compare with flowvm as it is there, in a process of its own, too
    --cpu                       seconds of CPU time, the lowest: for machines that do more than this
    --against torch             the heat map's ratios are to that peer alone
    --grid                      forward and backward of every op at three sizes against PyTorch,
                                and a list of what takes more than 1.1 times as long
    --svg FILE, --json FILE     the heat map as a picture; every figure

All run on one thread, in turn, in one process.  A figure is the time of one call among several,
with the wait for the last result: flowvm and JAX are asynchronous.  A ratio is the median of the
ratios of neighbours.  flowvm's time includes the call, so small sizes show what issuing costs.
JAX's functions are compiled (`jax.jit`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import flowvm as flow
from tools.bench.cases import OPERANDS, Case, all_cases
from tools.bench.ceilings import bytes_per_second, flops_per_second
from tools.bench.heatmap import print_over, print_table, save_svg
from tools.bench.measure import import_jax

SIZES = (0, 6, 12, 16, 20, 24)
GRID = (6, 12, 18)  # sizes of the grid
OVER = 1.1  # times a peer's time from which on the grid lists an op
SLICE = 0.02  # seconds that one measurement of a library takes, about
PATIENCE = 1.5  # seconds of one call from which on larger sizes of a case are left out
CPU = "--cpu" in sys.argv  # seconds of CPU time: the lowest of each, and their ratio


@dataclass
class Timing:
    """One case at one size: seconds a call of each library, and the ratios ours / theirs."""

    name: str
    family: str
    size: int
    seconds: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    bytes: int = 0
    share: float = 0.0  # of the machine's ceiling, for bytes or operations, whichever is larger
    bound: str = "bytes"

    @property
    def worst(self) -> float | None:
        """The ratio to the fastest peer."""
        return max(self.ratios.values(), default=None)


class Library:
    """Names looked up in one module after another; `aliases` are names that differ."""

    def __init__(self, *modules: Any, **aliases: str) -> None:
        self.modules, self.aliases = modules, aliases

    def __getattr__(self, name: str) -> Any:
        attribute, name = name, self.aliases.get(name, name)
        for module in self.modules:
            if hasattr(module, name):
                function = getattr(module, name)
                setattr(self, attribute, function)  # looked up once: small sizes are timed too
                return function
        raise AttributeError(name)


@dataclass
class Runner:
    """A library that cases run on."""

    name: str
    space: dict[str, Any]
    array: Callable[[Any], Any]
    wait: Callable[[Any], None]
    torch_like: bool
    compile: Callable[[Any], Any]


def _no_wait(result: Any) -> None:
    return None


def _as_it_is(function: Any) -> Any:
    return function


def runners(peers: list[str]) -> Iterator[Runner]:
    """flowvm, then the peers that are installed."""
    functional = Library(flow.nn.functional, flow)
    space = {"l": functional, "F": functional}
    yield Runner("flowvm", space, flow.tensor, lambda result: flow.vm.sync(), True, _as_it_is)
    for name in peers:
        try:
            yield _PEERS[name]()
        except ImportError:
            print(f"bench: {name} is not installed", file=sys.stderr)


def _torch() -> Runner:
    import torch

    torch.set_num_threads(1)
    functional = Library(torch.nn.functional, torch, torch.linalg)
    plain = Library(torch, torch.nn.functional, torch.linalg)
    space = {"l": plain, "F": functional}
    return Runner(
        "torch", space, lambda a: torch.from_numpy(np.array(a)), _no_wait, True, _as_it_is
    )


_OTHER_NAMES = {
    "clamp": "clip", "div": "divide", "sub": "subtract", "mul": "multiply",
    "neg": "negative", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2",
    "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh", "pow": "power", "eq": "equal",
    "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    "lgamma": "gammaln", "logsigmoid": "log_sigmoid", "softsign": "soft_sign",
    "sigmoid": "expit", "inverse": "inv",
}  # fmt: skip


def _jax() -> Runner:
    jax = import_jax()

    other = Library(jax.numpy, jax.nn, jax.scipy.special, jax.lax, jax.numpy.linalg, **_OTHER_NAMES)
    space = {"l": other, "F": other}
    wait, compiled = jax.block_until_ready, jax.jit
    return Runner("jax", space, jax.numpy.asarray, wait, False, compiled)


def _numpy() -> Runner:
    modules: list[Any] = [np, np.linalg]
    try:
        import scipy.special

        modules.append(scipy.special)
    except ImportError:
        pass
    other = Library(*modules, **_OTHER_NAMES)
    space = {"l": other, "F": other}
    return Runner("numpy", space, np.array, _no_wait, False, _as_it_is)


class Checkout:
    """flowvm of another folder: a process there that binds and times functions when it is told to.

    The process runs this file, whatever that folder's says, with all else from that folder.
    """

    def __init__(self, folder: str) -> None:
        own = Path(folder) / ".venv" / "bin" / "python"
        self.process = subprocess.Popen(
            [own if own.exists() else sys.executable, "-P", __file__, "--serve", *["--cpu"] * CPU],
            cwd=folder, env={**os.environ, "PYTHONPATH": folder},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def ask(self, *question: Any) -> Any:
        """Ask the process a question; return its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pickle.dump(question, self.process.stdin)
        self.process.stdin.flush()
        return pickle.load(self.process.stdout)


@dataclass
class Remote:
    """A function that was bound in another process, and is timed there."""

    checkout: Checkout

    def __call__(self) -> Any:
        return self.checkout.ask("time", 1)


def checkout(folder: str) -> Runner:
    """flowvm as it is in another folder."""
    return Runner("checkout", {"checkout": Checkout(folder)}, np.array, _no_wait, True, _as_it_is)


def serve() -> None:
    """Run as the process of a Checkout: `bind` a function, then `time` it."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is not an answer
    flow.set_num_threads(1)
    (on,) = runners([])
    function: Callable[[], Any] | None = None
    while True:
        try:
            word, *rest = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        if word == "bind":
            name, expr, other, arrays, backward = rest
            function = _bound(name, expr, other, on, arrays, backward)
            pickle.dump(function is not None, answers)
        elif word == "step":
            steps = importlib.import_module("tools.bench.targets").STEPS
            function = next((make(flow) for name, make, _ in steps if name == rest[0]), None)
            pickle.dump(function is not None, answers)
        else:
            assert function is not None
            pickle.dump(_timed(function, on, rest[0]), answers)
        answers.flush()


_PEERS: dict[str, Callable[[], Runner]] = {"torch": _torch, "jax": _jax, "numpy": _numpy}


def _bound(
    name: str, expr: str, other: str, on: Runner, arrays: list[Any], backward: bool
) -> Callable[[], Any] | None:
    """A function without arguments that runs an expression on a library, None if it cannot."""
    if "checkout" in on.space:
        checkout: Checkout = on.space["checkout"]
        return (
            Remote(checkout) if checkout.ask("bind", name, expr, other, arrays, backward) else None
        )
    expr = expr if on.torch_like else other or expr
    tensors = [on.array(a) for a in arrays]
    if backward:
        if not on.torch_like:
            return None
        floats = [t for t, a in zip(tensors, arrays, strict=True) if a.dtype.kind == "f"]
        for t in floats:
            t.requires_grad_(True)
    code = compile(f"lambda x, y=None, z=None: {expr}", name, "eval")
    try:
        function = on.compile(eval(code, dict(on.space)))
        on.wait(function(*tensors))
    except Exception:  # the peer has no such op, or another signature: no figure
        if on.name in ("flowvm", "torch"):
            print(f"bench: {name} does not run on {on.name}", file=sys.stderr)
        return None
    if not backward:
        return lambda: function(*tensors)

    def both() -> Any:
        for t in floats:
            t.grad = None
        return function(*tensors).sum().backward()

    try:
        on.wait(both())
    except Exception:  # the result has no gradient
        return None
    return both


def _timed(function: Callable[[], Any], on: Runner, count: int) -> float:
    if isinstance(function, Remote):
        return float(function.checkout.ask("time", count))
    clock = time.process_time if CPU else time.perf_counter
    start = clock()
    result = None
    for _ in range(count):
        result = function()
    on.wait(result)
    return (clock() - start) / count


def _sizes_of(result: Any) -> int:
    if isinstance(result, (list, tuple)):
        return sum(_sizes_of(r) for r in result)
    return int(result.numel()) * int(result.dtype.itemsize) if hasattr(result, "numel") else 0


def time_case(
    case: Case, size: int, libraries: list[Runner], rounds: int, backward: bool = False
) -> Timing | None:
    """Run one case at one size on all libraries, in turn."""
    rng = np.random.default_rng(0)
    arrays = [OPERANDS[kind](rng, size) for kind in case.operands]
    name = f"{case.name}, with backward" if backward else case.name
    row = Timing(name, case.family, size)
    if not time_arrays(row, case.expr, case.other, arrays, libraries, rounds, backward):
        return None
    if not backward:
        _share(row, case)
    return row


def time_arrays(
    row: Timing,
    expr: str,
    other: str,
    arrays: list[Any],
    libraries: list[Runner],
    rounds: int,
    backward: bool,
) -> bool:
    """Fill in the times and ratios of an expression on some arrays; False if ours cannot run it."""
    bound = [(on, _bound(row.name, expr, other, on, arrays, backward)) for on in libraries]
    ready = [(on, function) for on, function in bound if function is not None]
    if not ready or ready[0][0].name != "flowvm":
        return False
    row.bytes = sum(a.nbytes for a in arrays) + (0 if backward else _sizes_of(ready[0][1]()))
    time_functions(row, ready, rounds)
    return True


def time_functions(row: Timing, ready: list[tuple[Runner, Callable[[], Any]]], rounds: int) -> None:
    """Time functions of several libraries, ours first, in turn."""
    counts = {}
    for on, function in ready:
        _timed(function, on, 1)
        counts[on.name] = max(1, min(1000, int(SLICE / max(_timed(function, on, 1), 1e-7))))
    seconds: dict[str, list[float]] = {on.name: [] for on, _ in ready}
    for _ in range(rounds):
        for on, function in ready:
            seconds[on.name].append(_timed(function, on, counts[on.name]))
    usual = min if CPU else statistics.median
    row.seconds = {name: usual(values) for name, values in seconds.items()}
    for name, values in seconds.items():
        if name != "flowvm" and CPU:
            row.ratios[name] = row.seconds["flowvm"] / row.seconds[name]
        elif name != "flowvm":
            pairs = zip(seconds["flowvm"], values, strict=True)
            row.ratios[name] = statistics.median(a / b for a, b in pairs)


def _share(row: Timing, case: Case) -> None:
    """Store the share of the roofline: the machine's least time, over the measured time."""
    needed = {"bytes": row.bytes / bytes_per_second(row.bytes)}
    if case.flops is not None:
        needed["operations"] = case.flops(row.size) / flops_per_second()
    row.bound = max(needed, key=lambda k: needed[k])
    row.share = needed[row.bound] / row.seconds["flowvm"]


def results(
    cases: list[Case], powers: list[int], libraries: list[Runner], rounds: int, grid: bool = False
) -> Iterator[Timing]:
    """Every case at every size, a size at a time until one takes too long; in a `grid` with the
    backward of every op that has one.
    """
    for case in cases:
        for backward in (False, True)[: 1 + (case.grad or grid)]:
            for power in powers:
                size = 1 << power
                if not case.least <= size <= case.most:
                    continue
                row = time_case(case, size, libraries, rounds, backward)
                if row is None:
                    break
                yield row
                if max(row.seconds.values()) > PATIENCE:
                    break


def main() -> int:
    """Measure, print the heat map and the rooflines; 0 whatever the figures are."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peers", default="torch,jax,numpy")
    parser.add_argument("--against", default="", help="one of the peers; else the fastest")
    parser.add_argument("--checkout", default="", metavar="FOLDER")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--families", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--grid", action="store_true")
    parser.add_argument("--svg", default="")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    if options.grid:
        options.sizes, options.peers = ",".join(map(str, GRID)), "torch"
    if options.serve:
        serve()
        return 0
    flow.set_num_threads(1)
    families = set(filter(None, options.families.split(",")))
    cases = [
        c for c in all_cases()
        if (not families or c.family in families) and options.only in c.name
    ]  # fmt: skip
    powers = [int(p) for p in options.sizes.split(",")]
    libraries = list(runners([p for p in options.peers.split(",") if p]))
    if options.checkout:
        libraries.append(checkout(options.checkout))
    rows = []
    try:
        for row in results(cases, powers, libraries, options.rounds, options.grid):
            if options.against:
                row.ratios = {k: v for k, v in row.ratios.items() if k == options.against}
            rows.append(row)
            if sys.stderr.isatty():
                line = f"{row.family}: {row.name}, {row.size:,}"
                print(f"\r\x1b[2K  {line}", end="", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted: what follows is what was measured until then", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r\x1b[2K", end="", file=sys.stderr)
    print_table(rows, powers)
    if options.grid:
        print_over(rows, OVER)
    if options.svg:
        save_svg(rows, powers, options.svg)
    if options.json:
        with open(options.json, "w") as file:
            json.dump([asdict(row) for row in rows], file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
