"""`flowvm warmup`: compile ahead what a session would otherwise compile at its first use of an op.

The usual set is the kernels of the demo and the self-test, and the ops of most models, in float32,
forward and backward; or the named ops.  `--all` runs every sample that every op, or every named
one, declares for its tests.

Compiling is spread over processes that share the cache folder.  Of two that need the same kernel at
the same moment one compiles it, and the other waits.
"""

import argparse
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

import flowvm as flow
import flowvm.nn.functional as F
from flowvm.commands import demo, doctor
from flowvm.compiler import helpers, jit
from flowvm.config import config
from flowvm.eager.native import install
from flowvm.ops.declare.registry import SAMPLES, OpSamples
from flowvm.ops.products.cpu.tile import tile_functions
from flowvm.vm.engine.natives import DEVICES, JOB, RUNNING, SCHEDULING, SIGNATURES
from flowvm.vm.watch import sampling

COMMON = (
    "abs add addmm amax arange argmax avg_pool2d batch_norm bmm cat clamp clone conv1d conv2d "
    "cross_entropy cumsum div dropout embedding eq erf exp gather ge gelu group_norm gt "
    "index_select layer_norm le leaky_relu linear log log_softmax lt masked_fill matmul max "
    "max_pool2d maximum mean min minimum mm mse_loss mul ne neg nll_loss one_hot pad permute pow "
    "relu reshape rms_norm rsqrt scatter_add sigmoid silu sin cos softmax softplus sort sqrt "
    "square stack std sub sum tanh topk transpose tril triu var where"
)


NUMBERS = "numbers"  # the piece of `with_numbers`
SIZES = "sizes"  # the piece of `of_other_sizes`
CALLS = "calls"  # the piece of native calls
SAMPLER = "sampler"  # the profiler's, of issuing threads


class Done(NamedTuple):
    """The result of one piece of work in a process."""

    name: str
    compiled: int
    loaded: int
    error: str


def main(args: argparse.Namespace) -> int:
    """Compile, print the results, and return the exit code."""
    began = time.perf_counter()
    named = [*loops(), *args.ops] if args.ops else []
    work = named or (every_piece() if args.all else usual_pieces())
    jobs = max(1, min(args.jobs or len(os.sched_getaffinity(0)), len(work)))
    compiled = loaded = failed = 0
    with progress(len(work)) as advance:
        for job in in_processes(work, jobs, args.all):
            advance(job.name)
            compiled, loaded = compiled + job.compiled, loaded + job.loaded
            if job.error:
                failed += 1
                print(f"{job.name}: {job.error}")
    print(
        f"{compiled} kernels compiled, {loaded} were in the cache already, {jobs} processes, "
        f"{time.perf_counter() - began:.1f} s; they are in {config.cache_dir}"
    )
    return 1 if failed else 0


def in_processes(work: list[str], jobs: int, all_samples: bool) -> Iterator[Done]:
    """Yield the results of pieces of work as they are done, in fresh processes."""
    os.environ.setdefault("FLOWVM_WORKERS", "1")
    os.environ.setdefault("FLOWVM_AHEAD", "0")
    with processes(jobs) as pool:
        try:
            for future in as_completed([pool.submit(warm, name, all_samples) for name in work]):
                yield future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def processes(jobs: int) -> ProcessPoolExecutor:
    """Start `count` processes that die with this one, even on SIGKILL."""
    # a process must not import modules from the current folder before it has this one's path
    os.environ["PYTHONSAFEPATH"] = "1"
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with_parent)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "this process is one of a pool"

    def watch() -> None:
        parent.join()
        os._exit(1)  # its compilation is not needed any more

    threading.Thread(target=watch, name="flowvm-parent", daemon=True).start()


@contextmanager
def progress(pieces: int) -> Iterator[Callable[[str], None]]:
    """Return a function that reports a finished piece: a bar on a terminal, else a line now and
    then.
    """
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (TextColumn("compiling"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TextColumn("{task.fields[name]}"), transient=True) as bar:
            task = bar.add_task("", total=pieces, name="")
            yield lambda name: bar.update(task, advance=1, name=name)
        return
    count = 0

    def line(name: str) -> None:
        nonlocal count
        count += 1
        if count % max(1, pieces // 10) == 0:
            print(f"  {count} of {pieces}", flush=True)

    yield line


def loops() -> list[str]:
    """Return the pieces for the VM, native calls, and the profiler's sampler."""
    rest = sorted(SIGNATURES.keys() - DEVICES - {*RUNNING, *SCHEDULING})
    groups = (RUNNING, (*SCHEDULING, *rest))  # those of a group share what they call
    return [*(f"loops: {' '.join(group)}" for group in groups), CALLS, SAMPLER]


def usual_pieces() -> list[str]:
    """Return the usual pieces: the VM, the self-test of `flowvm doctor`, a step of the demo, and
    the common ops.
    """
    tests = (f"test: {name}" for name in doctor.SELF_TESTS)
    return [*loops(), NUMBERS, SIZES, *tests, "demo", *COMMON.split()]


def every_piece() -> list[str]:
    """Return the usual pieces, and every op that declares samples."""
    return list(dict.fromkeys([*usual_pieces(), *(known.name for known in SAMPLES)]))


def warm(name: str, all_samples: bool) -> Done:
    """Run one piece of work in this process.  Return the numbers of functions compiled and loaded,
    and the error.
    """

    before = jit.stats()
    error = ""
    try:
        run_piece(name, all_samples)
    except Exception as raised:  # one op that cannot be compiled must not keep the others cold
        error = f"{type(raised).__name__}: {raised}"
    after = jit.stats()
    return Done(name, after.compiled - before.compiled, after.loaded - before.loaded, error)


def run_piece(name: str, all_samples: bool) -> None:
    """Run one of the pieces that `usual_pieces` and `every_piece` name."""
    from rich.console import Console

    if name == NUMBERS:
        with_numbers()
    elif name == SIZES:
        of_other_sizes()
    elif name == CALLS:
        helpers.do(f"{install.__name__}:{install.prepare.__name__}")
    elif name == SAMPLER:
        helpers.do(f"{sampling.__name__}:{sampling.make.__name__}")
    elif name == "demo":
        demo.warm_up(Console(quiet=True), batch=32)
    elif name.startswith("loops: "):
        for loop in name.removeprefix("loops: ").split():
            helpers.do(f"{JOB}:{loop}")
    elif name.startswith("test: "):
        doctor.SELF_TESTS[name.removeprefix("test: ")]()
    else:
        matches = [known for known in SAMPLES if known.name == name]
        if not matches:
            raise ValueError(f"no op named {name!r} declares samples")
        for known in matches:
            run_samples(known, all_samples)


def with_numbers() -> None:
    """Compile the operators between a tensor and a number, which are kernels of their own."""
    x = flow.ones(2, 2)
    compared = (x.eq(1), x > 0, x >= 0, x < 0, x <= 0)
    for y in (x + 1, x - 1, 1 - x, x * 2, x / 2, 1 / x, x**2, *compared):
        str(y)


def of_other_sizes() -> None:
    """Compile kernels of the usual ops for rows longer than their samples' rows, and functions of
    matrix products that small ones do not call.
    """
    tile_functions("float32")
    x = flow.ones(2, 200, requires_grad=True)
    for y in (F.softmax(x, 1), F.log_softmax(x, 1), F.cross_entropy(x, flow.tensor([0, 1]))):
        y.sum().backward()
    str(x.detach().sort())


def run_samples(known: OpSamples, all_samples: bool) -> None:
    """Call an op as its generated tests would, with every sample or with the first."""
    for sample in known.generate(np.random.default_rng(0)):
        arguments = [as_tensors(value, known.grad) for value in sample.args]
        named = {name: as_tensors(value, known.grad) for name, value in sample.kwargs.items()}
        result = known.function(*arguments, **named)
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        for output in outputs:
            if getattr(output, "requires_grad", False):
                output.sum().backward(retain_graph=True)
        flow.vm.sync()
        if not all_samples:
            return


def as_tensors(value: object, grad: bool) -> object:
    """`value` with tensors for its NumPy arrays, floating-point ones as float32."""
    if isinstance(value, (list, tuple)):
        return type(value)(as_tensors(item, grad) for item in value)
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind != "f":
        return flow.tensor(value)
    return flow.tensor(value.astype(np.float32)).requires_grad_(grad)
