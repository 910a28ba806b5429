"""CUDA kernels from plain Python functions, and a cache of their PTX.

    text, entry = ptx(kernel, (("float32", 1, "C"), "int64"), (8, 0))

A *signature* says how a kernel's parameters are compiled: a dtype's name for a number, (dtype name,
dimensions, "C" or "A") for an array.  `signature_of` makes one from the parameters of a launch.

What a kernel reaches (plain functions, `Overloaded`, `Guarded` and `Intrinsic` objects of
`flowvm.compiler.native`, by globals, closures or modules) is compiled along as device functions;
nothing needs a decorator.  An exception raised in a kernel ends the thread; `attempt` calls a
function and says whether it raised.

Numba's own machinery does the work, in typing and target contexts that are ours alone, so other
users of numba.cuda in the process see no change.  What differs from theirs:

- any nonzero byte of a bool array is true when it is read;
- float16 and bfloat16 are converted (`flowvm.ops.scalar.half`) and never computed in;
- products and sums are contracted (fma), and nothing else is relaxed; there are no checks.

In Numba's simulator (NUMBA_ENABLE_CUDASIM=1) nothing is compiled: `flowvm.cuda.simulator.grid` runs
kernels as they are.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import re
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowvm.compiler import cache, jit
from flowvm.compiler.dependencies import source_key
from flowvm.compiler.native import Intrinsic
from flowvm.cuda.launch import Address, Const, Details, KernelStep, Operand, Param, Scalar, Scratch
from flowvm.errors import ArgumentError, CompileError
from flowvm.files.schema import read_json, record, text
from flowvm.guards.apart import apart
from flowvm.loading.lazy import lazy
from flowvm.private.numba_cuda import NUMBA_CUDA

if TYPE_CHECKING:
    from flowvm.cuda.compiler import frontend
else:
    frontend = lazy("flowvm.cuda.compiler.frontend")

Kernel = Callable[..., object]
# a number's dtype; an array's dtype, dimensions and layout; a NamedTuple and its numbers' dtypes
Kind = str | tuple[str, int, str] | tuple[type, tuple[str, ...]]
Signature = tuple[Kind, ...]
Capability = tuple[int, int]

SIMULATED_BLOCK = 32  # threads of a block in the simulator, where each is a thread of Python's


# --- what rules ask -----------------------------------------------------------------------------


def simulated() -> bool:
    """Return True if kernels run in Numba's simulator, as Python."""
    from numba import config

    return bool(config.ENABLE_CUDASIM)


def threads(n: int) -> int:
    """Return the block size for a kernel that prefers `n` threads: n, or 32 if that is smaller, in
    the simulator.
    """
    return min(n, SIMULATED_BLOCK) if simulated() else n


def signature_of(step: KernelStep) -> Signature:
    """Return the signature for which the kernel of `step` is compiled: the types of its
    parameters.
    """
    return tuple(_kind(param) for param in step.params)


def _kind(param: Param) -> Kind:
    match param:
        case Operand(_, view):
            return view.dtype.name, len(view.shape), "C" if view.dense else "A"
        case Scratch(_, dtype, shape):
            return dtype, len(shape), "C"
        case Details():
            return "int64", 1, "C"
        case Address():
            return "int64"
        case Const(tuple() as values):
            return type(values), tuple(map(_number, values))
        case Const(value):
            return _number(value)
        case Scalar(_, kind):
            return "float64" if kind == "f" else "int64"
    raise TypeError(f"{param!r} is not a parameter of a kernel")


def _number(value: object) -> str:
    return "float64" if isinstance(value, float) else "int64"


# --- PTX and its cache --------------------------------------------------------------------------

SCHEMA = 1  # of cache entries; raise it when they change meaning
_PACKAGES = (
    "numba", "numba-cuda", "llvmlite", "numpy", "cuda-bindings", "cuda-toolkit",
    "nvidia-cuda-nvcc-cu12", "nvidia-nvvm",
)  # fmt: skip
_MAGIC = b"flowvm.p"
_DIGEST = hashlib.sha256().digest_size
_lock = threading.RLock()  # guards the caches in memory
_compiled_texts: dict[str, tuple[str, str]] = {}


def ptx(kernel: Kernel, signature: Signature, cc: Capability) -> tuple[str, str]:
    """The PTX of `kernel` for arguments of `signature` and a device of compute capability `cc`, and
    the name of its entry.

    CompileError where it cannot be compiled: says why, and for which types.
    """
    made_of = source_key(kernel, _compile, signature, tuple(cc))
    key = f"{_toolchain()}\n{made_of}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:40]
    with _lock:
        if digest not in _compiled_texts:
            entry = _from_cache(digest)
            if entry is None:
                # a capture on this thread does not watch what Numba reads, and no Ctrl-C strikes it
                entry = apart(_compile, kernel, signature, cc)
                _to_cache(digest, *entry)
            _compiled_texts[digest] = entry
        return _compiled_texts[digest]


_VERSION = re.compile(r"^\.version (\d+)\.(\d+)", re.MULTILINE)
# of PTX that drivers read, by the minor version of CUDA 12; CUDA 13.x reads 9.x
_PTX_OF_12 = (0, 1, 2, 3, 4, 5, 5, 6, 7, 8)


def readable(text: str, version: int) -> str:
    """PTX as a driver of CUDA `version` (12040 is 12.4) reads it.

    A toolkit declares the newest PTX that it knows, and a driver refuses PTX newer than itself,
    whatever it contains.  Kernels here use only PTX that is older than all supported drivers.  So
    the driver's own version is declared if the toolkit is ahead of it.  The driver's compiler names
    anything that it cannot read all the same.
    """
    declared = _VERSION.search(text)
    major, minor = version // 1000, version % 1000 // 10
    if declared is None or major > 13:
        return text
    known = (9, minor) if major == 13 else (8, _PTX_OF_12[min(minor, len(_PTX_OF_12) - 1)])
    if (int(declared[1]), int(declared[2])) <= known:
        return text
    return f"{text[: declared.start()]}.version {known[0]}.{known[1]}{text[declared.end() :]}"


def available() -> str:
    """Return the reason why nothing can be compiled here (no Numba-CUDA, no libNVVM), or ""."""
    return _toolchain_error()


@functools.cache
def _toolchain_error() -> str:
    try:
        import numba.cuda  # noqa: F401

        nvvm = NUMBA_CUDA.nvvm
        nvvm.NVVM()
        nvvm.LibDevice()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "kernels run in Numba's simulator" if simulated() else ""


@functools.cache
def _toolchain() -> str:
    """Return all facts besides the program on which its PTX depends."""
    parts = [str(SCHEMA), ".".join(map(str, sys.version_info[:2]))]
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            parts.append(f"{name} {importlib.metadata.version(name)}")
    parts += [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    return "\n".join(parts)


def _compile(kernel: Kernel, signature: Signature, cc: Capability) -> tuple[str, str]:
    if why := _toolchain_error():
        raise CompileError(
            f"CUDA kernels cannot be compiled here ({why}); install numba-cuda[cu12] or "
            f"numba-cuda[cu13], whichever the driver supports"
        )
    text, entry = frontend.frontend().compile(kernel, signature, cc)
    if outside := re.findall(r"\.extern \.func[^;]*?(\w+)\s*\(", text):
        raise CompileError(
            f"{kernel.__qualname__} calls {', '.join(sorted(set(outside)))}, which does not exist "
            f"when a kernel is loaded"
        )
    name = "flowvm_" + re.sub(r"\W", "_", getattr(kernel, "__name__", "kernel"))
    return text.replace(entry, name), name


def _name(digest: str) -> str:
    return f"ptx-{digest}.o"  # as all entries end: `jit.prune` sees to them


_HEAD = record(entry=text(1000, r"\w+"))


def _from_cache(digest: str) -> tuple[str, str] | None:
    data = cache.read(jit.cache_dir(), _name(digest))
    if data is None:
        return None
    body = data[len(_MAGIC) + _DIGEST :]
    if data[: len(_MAGIC) + _DIGEST] != _MAGIC + hashlib.sha256(body).digest():
        return None  # damaged: it is compiled again
    head, _, text = body.partition(b"\n")
    try:
        facts = read_json(head, f"cache entry {digest}")
        _HEAD(facts, f"cache entry {digest}")
        return text.decode(), facts["entry"]
    except (ArgumentError, UnicodeDecodeError):
        return None


def _to_cache(digest: str, text: str, entry: str) -> None:
    body = json.dumps({"entry": entry}).encode() + b"\n" + text.encode()
    with contextlib.suppress(OSError):  # a cache that cannot be written is none
        data = _MAGIC + hashlib.sha256(body).digest() + body
        cache.write(jit.cache_dir(), _name(digest), data)


# --- calls that may raise -----------------------------------------------------------------------


def _attempt_python(function: Any, arguments: tuple[object, ...]) -> tuple[bool, Any]:
    try:
        return True, function(*arguments)
    except (ArithmeticError, ValueError, LookupError):
        return False, 0


def _attempt_define() -> Callable[..., object]:
    return frontend.define_attempt()


def _status_python(function: object, arguments: tuple[object, ...], raised: int) -> int:
    fine, status = _attempt_python(function, arguments)
    return int(status or 0) if fine else raised


def _status_define() -> Callable[..., object]:
    return frontend.define_status()


# attempt(f, (a, b)): (True, f(a, b)), or False and something of its type where that raised
attempt = Intrinsic(_attempt_python, _attempt_define)
# status_of(f, (a, b), raised): the number that f(a, b) gives, 0 for None; `raised` where it raises
status_of = Intrinsic(_status_python, _status_define)
