"""`flowvm doctor`: a report of installed and missing packages, with advice, and of the VM's health.

A verdict a line, with the fix on the same line, so that the output can be pasted into a bug
report.  Environment checks read metadata and touch no device; then the private names that flowvm
uses of other packages are looked for, and the self-test runs ops through the VM and compares them
with NumPy.  The exit code is 1 if a line says FAIL, else 0.
"""

import argparse
import itertools
import json
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

import flowvm as flow
from flowvm.compiler import cache, target
from flowvm.config import config
from flowvm.eager.native import install
from flowvm.errors import FlowError
from flowvm.loading.lazy import lazy
from flowvm.private import frames
from flowvm.private.cpython import CPYTHON
from flowvm.private.llvmlite import LLVMLITE
from flowvm.private.mpi4py import MPI4PY
from flowvm.private.numba import NUMBA
from flowvm.private.numba_cuda import NUMBA_CUDA, SIMULATOR
from flowvm.private.numpy import NUMPY
from flowvm.private.scipy import SCIPY
from flowvm.ranks.library import INSTALL, is_installed
from flowvm.vm.watch.sampling import how

if TYPE_CHECKING:
    from flowvm.cuda.driver import driver, runtime
else:
    driver = lazy("flowvm.cuda.driver.driver")
    runtime = lazy("flowvm.cuda.driver.runtime")

OK, INFO, WARN, FAIL = "ok", "info", "warn", "FAIL"


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    verdict: str
    subject: str
    text: str
    fix: str = ""

    def __str__(self) -> str:
        fix = f"   fix: {self.fix}" if self.fix else ""
        return f" {self.verdict:5} {self.subject:12} {self.text}{fix}"


def main(args: argparse.Namespace) -> int:
    """Print the report and return the exit code."""
    began = time.perf_counter()
    checks: list[Check] = []
    for check in itertools.chain(environment(), private_names(args.private), self_test()):
        checks.append(check)
        if not args.json:
            print(check, flush=True)
    failed = sum(check.verdict == FAIL for check in checks)
    if args.json:
        print(
            json.dumps({"failed": failed, "checks": [asdict(check) for check in checks]}, indent=2)
        )
    else:
        verdict = "all is well" if not failed else f"{failed} of {len(checks)} checks failed"
        print(f"{verdict}, in {time.perf_counter() - began:.1f} s")
    return 1 if failed else 0


def environment() -> Iterator[Check]:
    """The checks that run nothing on the VM."""
    yield _python()
    yield _package("flowvm", required=False, fix="pip install . (a folder on the path does, too)")
    yield _numpy()
    for name in ("numba", "llvmlite", "scipy", "rich", "safetensors"):
        yield _package(name, required=True)
    yield _package("ipython", required=False, fix="pip install ipython, for a better prompt")
    yield _mpi()
    yield _cpu()
    yield _cuda()
    yield _cache()
    yield _terminal()
    yield _overrides()
    yield _calls()
    yield _sampling()


def _python() -> Check:
    threads = "no GIL" if sysconfig.get_config_var("Py_GIL_DISABLED") else "GIL"
    text = (
        f"{platform.python_version()} ({threads}) {platform.system().lower()} {platform.machine()}"
    )
    if platform.system() != "Linux":
        return Check(WARN, "python", text, "flowvm is tested on Linux only")
    return Check(OK, "python", text)


def _package(name: str, required: bool, fix: str = "") -> Check:
    try:
        return Check(OK, name, metadata.version(name))
    except metadata.PackageNotFoundError:
        verdict = FAIL if required else INFO
        return Check(verdict, name, "not installed", fix or f"pip install {name}")


def _mpi() -> Check:
    check = _package("mpi4py", required=False, fix=f"for several processes: {INSTALL}")
    if check.verdict == OK and not is_installed():
        return Check(INFO, "mpi4py", f"{check.text}, which finds no MPI library", INSTALL)
    return check


def _numpy() -> Check:
    check = _package("numpy", required=True)
    if check.verdict != OK:
        return check
    built: Any = np.show_config(mode="dicts")
    blas = built.get("Build Dependencies", {}).get("blas", {})
    return Check(
        OK, "numpy", f"{check.text}, BLAS {blas.get('name', '?')} {blas.get('version', '')}"
    )


def _cpu() -> Check:
    cpu = target.host()
    simd = next((label for feature, label in _SIMD if cpu.has(feature)), "")
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    text = f"{cpu.cpu}, {usable} of {os.cpu_count()} CPUs usable{_memory()}"
    if not simd:
        return Check(WARN, "cpu", f"{text}, no wide SIMD", "kernels run, but several times slower")
    return Check(OK, "cpu", f"{text}, {simd}")


_SIMD = (
    ("avx512f", "AVX-512 (16 floats)"),
    ("avx2", "AVX2 (8 floats)"),
    ("sve", "SVE"),
    ("neon", "NEON (4 floats)"),
)


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return ""
    return f", {size / 2**30:.0f} GiB"


def _cuda() -> Check:
    """Check the driver through its library; no context is made."""
    packages = f"{_version('numba-cuda')}, {_version('cupy')}"

    try:
        version, count = driver.driver().version, runtime.count()
        names = [runtime.properties(i).name for i in range(count)]
    except FlowError as error:
        return Check(INFO, "cuda", f"{error}; {packages}")
    shown = f"driver {driver.driver().name} for CUDA {version // 1000}.{version % 1000 // 10}"
    text = f"{shown}, {', '.join(names)}; {packages}"
    if "not installed" in _version("numba-cuda"):
        return Check(WARN, "cuda", text, f"pip install 'numba-cuda[cu{version // 1000}]'")
    return Check(OK, "cuda", text)


def _version(package: str) -> str:
    """Return a package and its version; CuPy's name contains a CUDA version."""
    for distribution in metadata.distributions():
        name = (distribution.name or "").lower()
        if name == package or name.startswith(f"{package}-cuda"):
            return f"{name} {distribution.version}"
    return f"{package} not installed"


def _cache() -> Check:
    folder = config.cache_dir
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if why := cache.trouble(folder):
            fix = f"chmod go-w {folder}, or export FLOWVM_CACHE_DIR=<a folder of yours>"
            return Check(FAIL, "cache", f"{folder} is not used: {why}", fix)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        fix = "export FLOWVM_CACHE_DIR=<a folder of yours>, or every start compiles anew"
        return Check(FAIL, "cache", f"{folder}: {error.strerror}", fix)
    sizes = [status.st_size for _, status in cache.files(folder)]
    return Check(OK, "cache", f"{folder}, {len(sizes)} files, {sum(sizes) / 2**20:.1f} MiB")


def _terminal() -> Check:
    if not sys.stdout.isatty():
        return Check(INFO, "terminal", f"not a terminal, {sys.stdout.encoding}: plain output")
    width, height = shutil.get_terminal_size()
    colour = (
        "no colour"
        if os.environ.get("NO_COLOR")
        else os.environ.get("COLORTERM") or os.environ.get("TERM", "?")
    )
    return Check(OK, "terminal", f"{width}x{height} {colour} {sys.stdout.encoding}")


def _overrides() -> Check:
    set_ = [f"{name}={value}" for name, value in config.overrides().items()]
    return Check(INFO, "overrides", " ".join(set_) if set_ else "no FLOWVM_* variable is set")


def _calls() -> Check:
    """Check if operators' calls are made by compiled code, and if not, say why."""
    if config.calls == "python" or config.debug_calls:
        return Check(
            INFO, "calls", "by Python functions, because a FLOWVM_* variable asks for them"
        )
    why = install.why_not()
    if why and config.calls == "native":
        return Check(FAIL, "calls", why, "unset FLOWVM_CALLS, and Python functions make the calls")
    if why:
        return Check(INFO, "calls", f"by Python functions: {why}")
    return Check(OK, "calls", "by compiled code, tested against the Python functions")


def _sampling() -> Check:
    """Describe the way in which the profiler samples a program between two calls."""
    return Check(INFO if frames.why_not() else OK, "sampling", f"of issuing threads {how()}")


def private_names(every: bool = False) -> Iterator[Check]:
    """Check the private names that flowvm uses of other packages.  Yield a line a package, and a
    line for each changed name, or for every name.
    """
    for package in _packages():
        if package.version == "not installed":
            continue  # said above
        standings = list(package.report())
        well = sum(standing.verdict == OK for standing in standings)
        text = f"{well} of {len(standings)} private names of {package.distribution} as tested"
        if package.version in package.tested:
            yield Check(OK, "private", f"{text}: {package.version}")
        else:
            yield Check(INFO, "private", f"{text}: {package.version}; tested: {package.versions}")
        reasons = {why for *_, why in standings}
        if len(reasons) == 1 and "" not in reasons:  # it cannot be imported
            yield Check(
                INFO, "private", f"{package.distribution}: {reasons.pop()}", _whole(package)
            )
            continue
        for use, verdict, why in standings:
            if every or verdict != OK:
                yield _private(package, use, verdict, why)


def _whole(package: Any) -> str:
    """Return advice about a package that lacks all of its private names."""
    if package.distribution == "numba-cuda":
        return "for CUDA, pip install 'numba-cuda[cu12]' or 'numba-cuda[cu13]', with its libraries"
    return f"pip install --force-reinstall {package.distribution}"


def _private(package: Any, use: Any, verdict: str, why: str) -> Check:
    name = use.where or use.name
    text = f"{package.distribution}: {name}, which {use.needed_for}"
    if verdict == OK:
        return Check(OK, "private", text)
    fix = f"pip install '{package.distribution}=={package.tested[-1]}'"
    if verdict == "skipped":
        return Check(INFO, "private", f"{text}: skipped, {why}", f"{fix}; flowvm works without it")
    return Check(FAIL, "private", f"{text}: missing, {why}", fix)


def _packages() -> Iterator[Any]:
    yield from (CPYTHON, NUMBA, LLVMLITE, NUMPY, SCIPY)
    if is_installed():
        yield MPI4PY
    if NUMBA.version == "not installed":
        return
    from numba import config

    yield SIMULATOR if config.ENABLE_CUDASIM else NUMBA_CUDA


def self_test() -> Iterator[Check]:
    """Run ops through the VM and compare with NumPy, each with its first-call and its usual
    time.
    """
    for name, test in SELF_TESTS.items():
        try:
            began = time.perf_counter()
            test()
            first = time.perf_counter() - began
            test()
            again = time.perf_counter() - began - first
        except Exception as error:  # this report must show any error
            yield Check(FAIL, "self-test", f"{name}: {type(error).__name__}: {error}")
            continue
        yield Check(
            OK, "self-test", f"{name:28} {again * 1e3:8.2f} ms   first {first * 1e3:8.1f} ms"
        )
    try:
        yield Check(OK, "speed", _speed())
    except Exception as error:
        yield Check(FAIL, "speed", f"{type(error).__name__}: {error}")


def _elementwise() -> None:
    x = np.linspace(-4, 4, 10_000, dtype=np.float32)
    t = flow.from_numpy(x)
    _same((t.exp() + t * 2).relu(), np.maximum(np.exp(x) + x * 2, 0))


def _reduction() -> None:
    x = np.arange(12_000, dtype=np.float64).reshape(30, 400)
    _same(flow.from_numpy(x).sum(1), x.sum(1))


def _matmul() -> None:
    a = np.random.default_rng(0).standard_normal((130, 70)).astype(np.float32)
    t = flow.from_numpy(a)
    _same(t @ t.t(), a @ a.T, 1e-4)


def _convolution() -> None:
    x = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
    kernel = flow.ones(1, 1, 3, 3)
    expected = np.lib.stride_tricks.sliding_window_view(x[0, 0], (3, 3)).sum((2, 3))
    _same(flow.nn.functional.conv2d(flow.from_numpy(x), kernel)[0, 0], expected)


def _gradient() -> None:
    x = flow.arange(5, dtype=flow.float64).requires_grad_()
    (x * x * x).sum().backward()
    _same(x.grad, 3 * np.arange(5.0) ** 2)


def _error() -> None:
    """Check that a failing kernel raises here and leaves the VM usable."""
    table, bad = flow.ones(4, 2), flow.tensor([7])
    try:
        table.index_select(0, bad).numpy()
    except IndexError:
        _same(table + 1, table.numpy() + 1)
        return
    raise AssertionError("an index of 7 into 4 rows raised nothing")


def _sequential() -> None:
    x = flow.arange(1000).float()
    threaded = (x * 3).cumsum(0)
    with flow.vm.sequential():
        inline = (x * 3).cumsum(0)
    _same(threaded, inline.numpy(), 0.0)


SELF_TESTS: dict[str, Callable[[], None]] = {
    "elementwise": _elementwise,
    "sum": _reduction,
    "matmul": _matmul,
    "conv2d": _convolution,
    "gradient": _gradient,
    "error and recovery": _error,
    "sequential engine agrees": _sequential,
}


def _same(tensor: Any, expected: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=tolerance, atol=tolerance)


def _speed() -> str:
    """Measure the time to issue `a + b` on 8x8, and to issue one and wait for it."""
    a = flow.ones(8, 8)
    issues, waits = 2000, 200
    best_issue = min(_seconds(lambda: a + a, issues, flow.vm.sync) for _ in range(3))
    best_wait = min(_seconds(lambda: (a + a).numpy(), waits, flow.vm.sync) for _ in range(3))
    return (
        f"a + b on 8x8: {best_issue * 1e6:.2f} us to issue, "
        f"{best_wait * 1e6:.1f} us to issue and read"
    )


def _seconds(work: Callable[[], object], times: int, finish: Callable[[], object]) -> float:
    work()
    finish()
    began = time.perf_counter()
    for _ in range(times):
        work()
    elapsed = time.perf_counter() - began
    finish()
    return elapsed / times
