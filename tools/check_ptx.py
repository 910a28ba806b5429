"""Compiles every CUDA kernel that samples of ops and steps of training need, for several GPUs.

    python -m tools.check_ptx [--cc 7.0 9.0] [--op NAME] [--list]

The samples run on the CPU, in float32, float64 and float16 (`--dtypes bfloat16` for that one, whose
kernels are float16's); every call of an operator that they make is lowered for CUDA, and each
kernel is compiled for each types of arguments that it is called with.  No GPU is needed, but
libNVVM is (numba-cuda[cu12]).  Exit code 1 where a kernel does not compile; ops without a CUDA
kernel are listed.
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib
import multiprocessing
import pkgutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

CAPABILITIES = ("7.0", "8.0", "9.0", "10.0")
DTYPES = ("float32", "float64", "float16")
PROCESSES = 2


class Found(NamedTuple):
    """The results of one process."""

    kernels: dict[str, int]  # by module: compiled
    failures: dict[str, str]  # kernel and types, or op: why
    missing: dict[str, str]  # op: why it has no kernel


class Unavailable(Exception):  # noqa: N818 - what is missing is no fault
    """No compiler for PTX is installed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--cc", nargs="+", default=CAPABILITIES, help="compute capabilities")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, help="of floating point arguments")
    parser.add_argument("--op", default="", help="only samples whose name has this in it")
    parser.add_argument("--list", action="store_true", help="name the ops without a kernel")
    chosen = parser.parse_args()
    capabilities = tuple(tuple(map(int, text.split("."))) for text in chosen.cc)
    begun = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        parts = [(k, PROCESSES, capabilities, chosen) for k in range(PROCESSES)]
        try:
            parts_found = pool.starmap(_part, parts)
        except Unavailable as error:
            raise SystemExit(str(error)) from None
    return _told(parts_found, time.monotonic() - begun, chosen.list)


def _told(parts: list[Found], seconds: float, everything: bool) -> int:
    kernels: collections.Counter[str] = collections.Counter()
    failures: dict[str, str] = {}
    missing: dict[str, str] = {}
    for part in parts:
        kernels.update(part.kernels)
        failures.update(part.failures)
        missing.update(part.missing)
    for family, number in sorted(kernels.items()):
        print(f"{number:6} {family}")
    print(f"{kernels.total():6} kernels in {seconds:.0f} s, {len(failures)} failures")
    if missing:
        print(f"{len(missing)} ops without a CUDA kernel" + ("" if everything else " (--list)"))
    for name, why in sorted(missing.items()) if everything else ():
        print(f"    {name}: {why}")
    for name, why in sorted(failures.items()):
        print(f"\n{name}\n    {why}")
    return 1 if failures else 0


# --- one process ----------------------------------------------------------------------------------


def _part(number: int, of: int, capabilities: Any, options: argparse.Namespace) -> Found:
    from flowvm.cuda.compiler.compilation import available
    from flowvm.ops.declare.registry import SAMPLES

    if why := available():
        raise Unavailable(f"kernels cannot be compiled here: {why}")  # an exit would hang the pool
    counts = Found(collections.Counter(), {}, {})
    declared = _declared(SAMPLES)
    chosen = [s for s in declared if options.op in s.name][number::of]
    visited: set[Any] = set()
    calls = 0
    with _calls_noted() as noted:
        runs: list[Callable[[], None]] = [
            functools.partial(_run, s, options.dtypes) for s in chosen
        ]
        for run in [*runs, *([] if options.op else list(_steps())[number::of])]:
            run()
            for call in noted[calls:]:
                _check(call, capabilities, counts, visited)
            calls = len(noted)
    return counts


def _declared(declared: list[Any]) -> list[Any]:
    import flowvm.ops

    for module in pkgutil.walk_packages(flowvm.ops.__path__, "flowvm.ops."):
        if not {"cpu", "cuda"}.intersection(module.name.split(".")):  # some ops are declared late
            importlib.import_module(module.name)
    return sorted(declared, key=lambda s: s.name)


class _calls_noted:  # noqa: N801 - a context manager
    """Notes each operator's calls with metas and attributes that were not there before."""

    def __enter__(self) -> list[Any]:
        from flowvm.eager import interpreter

        self.before: Callable[..., Any] = interpreter._entry
        noted: list[Any] = []

        def entry(op: Any, metas: Any, attrs: Any, into: Any, *more: Any, **named: Any) -> Any:
            noted.append((op, metas if into is None else (*into, *metas), attrs))
            return self.before(op, metas, attrs, into, *more, **named)

        interpreter._entry = entry
        return noted

    def __exit__(self, *error: object) -> None:
        from flowvm.eager import interpreter

        interpreter._entry = self.before


def _run(samples: Any, dtypes: list[str]) -> None:
    """Run every sample in every dtype, with its gradient; a refused call has no kernel."""
    import flowvm as flow
    from flowvm.errors import FlowError

    for dtype in dtypes:
        like = "float16" if dtype == "bfloat16" else dtype
        if like not in samples.floats and dtype != "float32":
            continue
        for sample in samples.generate(np.random.default_rng(0)):
            args = [_tensor(a, dtype) for a in sample.args]
            kwargs = {k: _tensor(v, dtype) for k, v in sample.kwargs.items()}
            try:
                for result in _leaves(samples.function(*args, **kwargs)):
                    if samples.grad and like != "float16" and result.requires_grad:
                        _backward(result, [a for a in _leaves(args) if a.requires_grad])
            except FlowError:
                continue
    flow.vm.sync()


def _backward(result: Any, leaves: list[Any]) -> None:
    """Issue the gradients of `result`; in float32 second derivatives, too, if the op has them."""
    import flowvm as flow

    result.sum().backward(retain_graph=True)
    if result.dtype is not flow.float32:
        return
    grads = flow.autograd.grad(result.sum(), leaves, create_graph=True, allow_unused=True)
    twice = [g.sum() for g in grads if g is not None and g.requires_grad]
    if twice:
        flow.autograd.grad(sum(twice[1:], twice[0]), leaves, allow_unused=True)


# options with which an optimizer has kernels of its own
_OPTIMIZERS: dict[str, tuple[dict[str, Any], ...]] = {
    "SGD": ({}, {"momentum": 0.9}),
    "Adam": ({}, {"amsgrad": True}),
    "RMSprop": ({}, {"centered": True}, {"momentum": 0.9}, {"centered": True, "momentum": 0.9}),
    **dict.fromkeys(
        ("Adadelta", "Adagrad", "AdamW", "Adamax", "ASGD", "LAMB", "NAdam", "RAdam", "Rprop"), ({},)
    ),
}


def _steps() -> Iterator[Callable[[], None]]:
    """Yield steps of training, each with kernels that no op's sample has."""
    for name, choices in _OPTIMIZERS.items():
        for options in choices:
            yield functools.partial(_step, name, options)


def _step(name: str, options: dict[str, Any]) -> None:
    """Take a step of a small model with dropout and batch norm, whose gradients are scaled."""
    import flowvm as flow

    layers = (flow.nn.Linear(4, 3), flow.nn.BatchNorm1d(3), flow.nn.Dropout(0.5))
    model = flow.nn.Sequential(*layers)
    optimizer = getattr(flow.optim, name)(model.parameters(), lr=0.1, **options)
    scaler = flow.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(model(flow.randn(5, 4)).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    flow.nn.init.normal_(model[0].weight)
    flow.nn.init.uniform_(model[0].weight)
    flow.rand(3).bernoulli().exponential_()
    flow.vm.sync()


def _tensor(value: Any, dtype: str) -> Any:
    import flowvm as flow

    if isinstance(value, list | tuple):
        return type(value)(_tensor(v, dtype) for v in value)
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind != "f":
        return flow.tensor(value)
    return flow.tensor(value, dtype=getattr(flow, dtype), requires_grad=True)


def _leaves(value: Any) -> Iterator[Any]:
    import flowvm as flow

    if isinstance(value, flow.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)


def _check(call: Any, capabilities: Any, part: Found, visited: set[Any]) -> None:
    from flowvm.cuda.compiler.compilation import signature_of
    from flowvm.cuda.launch import KernelStep
    from flowvm.errors import DeviceError
    from flowvm.ops.declare.cuda.lowering import launch_of

    op, metas, attrs = call
    if any(getattr(getattr(v, "dtype", v), "is_complex", False) for v in (*metas, *attrs)):
        return  # the CPU alone has complex numbers
    try:
        launch = launch_of(op, tuple(map(_moved, metas)), tuple(map(_moved, attrs)))
    except DeviceError as error:
        part.missing[op.name] = str(error)
        return
    except Exception as error:
        part.failures[f"rule of {op.name} for {metas} {attrs}"] = f"{type(error).__name__}: {error}"
        return
    for step in launch.steps:
        if isinstance(step, KernelStep):
            signature = signature_of(step)
            key = _compiled_as(step.kernel, signature)
            if key not in visited:
                visited.add(key)
                _compile(op.name, step.kernel, signature, capabilities, part)


def _compiled_as(kernel: Any, signature: Any) -> Any:
    """Return a key that is equal for kernels of one expression, which differ in strides alone."""
    from flowvm.ops.declare.cuda.elementwise import is_generated

    if not is_generated(kernel):
        return kernel, signature
    maker, arguments = kernel.recipe
    return maker, arguments[0]


def _compile(name: str, kernel: Any, signature: Any, capabilities: Any, part: Found) -> None:
    from flowvm.cuda.compiler.compilation import ptx
    from flowvm.errors import CompileError
    from flowvm.ops.declare.cuda.bodies import is_body

    try:
        for cc in capabilities:
            ptx(kernel, signature, cc)
            part.kernels[_family(kernel)] += 1
    except CompileError as error:
        if is_body(kernel):
            part.missing[name] = str(error)
            return
        kinds = ", ".join(k if isinstance(k, str) else f"{k[0]}[{k[1]}{k[2]}]" for k in signature)
        key = f"{_family(kernel)}.{kernel.__qualname__} of {name}({kinds})"
        part.failures[key] = f"{type(error).__name__}: {error}"


def _family(kernel: Any) -> str:
    """Return the module of a kernel; for a generated one, of its recipe."""
    path = getattr(kernel, "recipe", (kernel.__module__ or "generated",))[0]
    return str(path.partition(":")[0]).removeprefix("flowvm.ops.cuda.")


def _moved(value: Any) -> Any:
    """A meta or a device as it would be on CUDA."""
    from flowvm.meta.device import Device
    from flowvm.meta.meta import TensorMeta

    if isinstance(value, TensorMeta):
        return TensorMeta.of(value.shape, value.dtype, Device("cuda"), _own_stride(value))
    if isinstance(value, tuple):
        return type(value)(*map(_moved, value)) if hasattr(value, "_fields") else tuple(
            map(_moved, value)
        )  # fmt: skip
    return Device("cuda") if isinstance(value, Device) else value


def _own_stride(meta: Any) -> Any:
    return None if meta.contiguous else meta.stride


if __name__ == "__main__":
    sys.exit(main())
