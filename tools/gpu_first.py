"""`python -m tools.gpu_first`: all that a first use of a GPU touches, one thing after another.

Each line says what was done, how long it took, and what came out; what fails shows its traceback,
and the rest is tried all the same.  Where a suite of tests only shows that nothing works, this
shows what is the first thing that does not.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

import flowvm as flow

PACKAGES = (
    "numpy", "numba", "llvmlite", "numba-cuda", "cuda-bindings", "cuda-pathfinder", "cuda-core",
    "cuda-toolkit", "nvidia-nvvm", "nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12", "nvidia-cublas",
    "nvidia-cublas-cu12", "torch", "cupy-cuda13x", "cupy-cuda12x", "cupy",
)  # fmt: skip


def packages() -> str:
    """Return the versions of Python and of the installed packages that matter."""
    versions = []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return f"Python {sys.version.split()[0]}, " + ", ".join(versions)


def driver() -> str:
    from flowvm.cuda.driver import driver as drivers

    used = drivers.driver()
    return f"{used.name}, for CUDA {used.version // 1000}.{used.version % 1000 // 10}"


def device() -> str:
    properties = flow.cuda.get_device_properties(0)
    free, total = flow.cuda.mem_get_info()
    return f"{properties}; {free >> 20} of {total >> 20} MiB free"


def _doubled() -> Callable[..., None]:
    from numba import cuda

    def doubled(out: Any, x: Any, n: Any) -> None:
        i = cuda.grid(1)
        if i < n:
            out[i] = x[i] + x[i]

    return doubled


def compiler() -> str:
    """A kernel becomes PTX, and the driver loads it."""
    from flowvm.cuda.compiler import compilation
    from flowvm.cuda.driver.runtime import runtime

    library = runtime(0)
    if library.driver.fake is not None and not library.driver.fake.ptx:
        return "kernels are not compiled for this driver"
    if why := compilation.available():
        raise RuntimeError(why)
    signature = (("float32", 1, "C"), ("float32", 1, "C"), "int64")
    kernel = _doubled()
    text, entry = compilation.ptx(kernel, signature, library.properties.capability)
    head = [line for line in text.splitlines() if line.startswith((".version", ".target"))]
    handle = library.function(kernel, signature)
    return f"{' '.join(head)}, entry {entry}, handle {handle:#x}"


def copies() -> str:
    """To the device and back: small, and more than a page-locked buffer holds."""
    for count in (1, 1000, 3_000_000):
        x = np.arange(count, dtype=np.float32)
        np.testing.assert_array_equal(flow.from_numpy(x).to("cuda").cpu().numpy(), x)
    return "there and back"


def elementwise() -> str:
    x = np.linspace(-3, 3, 1001, dtype=np.float32)
    t = flow.from_numpy(x).to("cuda")
    result = ((t * 2 + 1).exp() - t.sin()).cpu().numpy()
    np.testing.assert_allclose(result, np.exp(x * 2 + 1) - np.sin(x), rtol=2e-5, atol=2e-5)
    return f"{result[:3]}"


def reductions() -> str:
    x = np.random.default_rng(0).standard_normal((37, 1003)).astype(np.float32)
    t = flow.from_numpy(x).to("cuda")
    np.testing.assert_allclose(t.sum(1).cpu().numpy(), x.sum(1, np.float64), rtol=1e-3, atol=1e-3)
    soft = t.softmax(1).sum(1).cpu().numpy()
    np.testing.assert_allclose(soft, np.ones(37), rtol=1e-5)
    few = np.ascontiguousarray(x[:3])
    result = flow.from_numpy(few).to("cuda").sort(1).values.cpu().numpy()
    np.testing.assert_array_equal(result, np.sort(few, 1))
    return "sum, softmax, sort"


def products() -> str:
    """cuBLAS is found, has a handle, and multiplies; on a stream that is made later, too."""
    x = np.random.default_rng(0).standard_normal((65, 33)).astype(np.float32)
    t = flow.from_numpy(x).to("cuda")
    want = x.astype(np.float64) @ x.T
    np.testing.assert_allclose((t @ t.t()).cpu().numpy(), want, rtol=1e-4, atol=1e-4)
    with flow.cuda.stream(flow.cuda.Stream()):
        np.testing.assert_allclose((t @ t.t()).cpu().numpy(), want, rtol=1e-4, atol=1e-4)
    half = (t.half() @ t.t().half()).float().cpu().numpy()
    np.testing.assert_allclose(half, want, rtol=2e-2, atol=5e-2)
    return f"float32 and float16, {_where('libcublas')}"


def _where(library: str) -> str:
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if f"/{library}.so" in line}
    return ", ".join(sorted(paths)) or f"no {library} in this process"


def index_errors() -> str:
    """Check that an error only a kernel sees raises an exception, and the device goes on."""
    table = flow.ones(4, 2, device="cuda")
    try:
        table[flow.tensor([9], device="cuda")].cpu().numpy()
    except IndexError as error:
        assert table.sum().item() == 8
        return str(error).splitlines()[0]
    raise AssertionError("index 9 of 4 rows raised nothing")


def streams_and_events() -> str:
    begin, end = (flow.cuda.Event(enable_timing=True) for _ in range(2))
    x = flow.ones(1 << 16, device="cuda")
    begin.record()
    with flow.cuda.stream(flow.cuda.Stream()):
        y = x * 2
    z = y + 1
    end.record()
    end.synchronize()
    assert z.cpu().numpy().max() == 3
    return f"{begin.elapsed_time(end):.3f} ms"


def graphs() -> str:
    """Captured, launched and updated; with a product, whose library must not get in the way."""
    compiled = flow.compile(lambda t: (t @ t).relu() + t)
    for k in range(5):
        x = np.random.default_rng(k).standard_normal((16, 16)).astype(np.float32)
        want = np.maximum(x.astype(np.float64) @ x, 0) + x
        result = compiled(flow.from_numpy(x).to("cuda")).cpu().numpy()
        np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-4)
    return str(compiled.explain()).split("CUDA graph")[-1].split("\n")[0].strip(" ,") or "replayed"


def training() -> str:
    flow.manual_seed(0)
    model = flow.nn.Sequential(flow.nn.Linear(8, 16), flow.nn.ReLU(), flow.nn.Linear(16, 3)).cuda()
    optimizer = flow.optim.AdamW(model.parameters(), lr=0.05)
    x, y = flow.randn(64, 8).cuda(), flow.randint(0, 3, (64,)).cuda()
    losses = []
    for _ in range(20):
        loss = flow.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    return f"loss {losses[0]:.3f} to {losses[-1]:.3f}"


def memory() -> str:
    """Check that a full device raises an error and goes on, and that cached memory is freed."""
    _, total = flow.cuda.mem_get_info()
    try:
        flow.empty(total + 1024, dtype=flow.uint8, device="cuda").sum().item()
    except MemoryError as error:
        flow.cuda.empty_cache()
        assert flow.ones(3, device="cuda").sum().item() == 3
        return str(error).splitlines()[0]
    raise AssertionError("more memory than there is was given")


def peer_torch() -> str:
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no device"
    theirs = torch.arange(6, device="cuda", dtype=torch.float32) * 2
    ours = flow.from_dlpack(theirs) + 1
    assert ours.cpu().tolist() == [1, 3, 5, 7, 9, 11]
    back = torch.from_dlpack(ours) * 2
    assert back.tolist() == [2, 6, 10, 14, 18, 22]
    assert torch.as_tensor(ours, device="cuda").sum().item() == 36
    return f"torch {torch.__version__}, both ways"


def peer_cupy() -> str:
    cupy: Any = importlib.import_module("cupy")
    theirs = cupy.arange(6, dtype="float32") * 2
    assert (flow.as_tensor(theirs) + 1).cpu().tolist() == [1, 3, 5, 7, 9, 11]
    assert float(cupy.asarray(flow.ones(4, device="cuda")).sum()) == 4
    return f"cupy {cupy.__version__}, both ways"


STEPS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("packages", packages),
    ("driver", driver),
    ("device", device),
    ("compiler", compiler),
    ("copies", copies),
    ("elementwise", elementwise),
    ("reductions", reductions),
    ("products", products),
    ("index errors", index_errors),
    ("streams and events", streams_and_events),
    ("graphs", graphs),
    ("training", training),
    ("memory", memory),
    ("peer torch", peer_torch),
    ("peer cupy", peer_cupy),
)


def main() -> int:
    """Try all steps; return exit code 1 if one failed.  A missing peer is no failure."""
    failed = 0
    for name, function in STEPS:
        begun = time.monotonic()
        try:
            outcome = function()
        except ImportError as error:
            absent = name.startswith("peer") and isinstance(error, ModuleNotFoundError)
            failed += not absent
            outcome = f"not installed ({error})" if absent else f"FAILED\n{traceback.format_exc()}"
        except Exception:
            failed += 1
            outcome = f"FAILED\n{traceback.format_exc()}"
        print(f"{name} ({time.monotonic() - begun:.2f} s): {outcome}", flush=True)
    print(f"{len(STEPS) - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
