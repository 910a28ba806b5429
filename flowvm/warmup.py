"""`flowvm warmup`: compile ahead what a session would otherwise compile at its first use of an op.

The usual set is what the demo and the self-test run.  `--all` runs the samples that every op
declares for its tests.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowvm.ops.registry import OpSamples

__all__ = ["main"]


def main(args: argparse.Namespace) -> int:
    """Compile, say what was done, and return the exit code."""
    from flowvm import jit
    from flowvm.config import config

    began = time.perf_counter()
    failed = []
    for name, work in every_op() if args.all else usual():
        try:
            work()
        except Exception as error:  # one op that cannot be compiled must not keep the others cold
            failed.append(name)
            print(f"{name}: {type(error).__name__}: {error}")
    done = jit.stats()
    print(
        f"{done.compiled} kernels compiled, {done.loaded} were in the cache already, "
        f"{time.perf_counter() - began:.1f} s; they are in {config.cache_dir}"
    )
    return 1 if failed else 0


def usual() -> Iterator[tuple[str, Callable[[], object]]]:
    """The self-test of `flowvm doctor` and a step of the demo."""
    from rich.console import Console

    from flowvm import demo, doctor

    yield from doctor.SELF_TESTS.items()
    yield "demo", lambda: demo.warm_up(Console(quiet=True), batch=32)


def every_op() -> Iterator[tuple[str, Callable[[], object]]]:
    """The usual set, and each op's samples in float32, forward and backward."""
    import flowvm  # noqa: F401 - declares all ops
    from flowvm.ops.registry import SAMPLES

    yield from usual()
    for known in SAMPLES:
        yield known.name, partial(run_samples, known)


def run_samples(known: "OpSamples") -> None:
    """Call an op as its generated tests would."""
    import numpy as np

    import flowvm as flow

    for sample in known.generate(np.random.default_rng(0)):
        arguments = [as_tensors(value, known.grad) for value in sample.args]
        named = {name: as_tensors(value, known.grad) for name, value in sample.kwargs.items()}
        result = known.function(*arguments, **named)
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        for output in outputs:
            if getattr(output, "requires_grad", False):
                output.sum().backward(retain_graph=True)
        flow.vm.sync()


def as_tensors(value: Any, grad: bool) -> Any:
    """`value` with tensors for its NumPy arrays, floating-point ones as float32."""
    import numpy as np

    import flowvm as flow

    if isinstance(value, (list, tuple)):
        return type(value)(as_tensors(item, grad) for item in value)
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind != "f":
        return flow.tensor(value)
    return flow.tensor(value.astype(np.float32)).requires_grad_(grad)
