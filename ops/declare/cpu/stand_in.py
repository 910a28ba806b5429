"""A short body that does for a while what a long one is there for.

Some kernels take a second to compile: they are made for large operands, and the first calls of a
session have small ones.  A launch of so few elements names a body that computes the same bits with
little code (`Launch.stand_in`).  Where the cache does not have the kernel yet a helper compiles it,
and until it is there the short one, which is called in its place, does the work itself.
"""

from __future__ import annotations

import base64
import ctypes
import functools
import hashlib
import pickle
from collections.abc import Callable

from flowvm.compiler import helpers, jit
from flowvm.config import config
from flowvm.loading.lazy import lazy
from flowvm.ops.declare.cpu.body_kernel import SCRATCH_AT, Body, kernel_of, maker
from flowvm.vm.machine.words import ARG

llvm = lazy("llvmlite.binding")

WORD = 8  # bytes at the end of scratch


def short_kernel(body: Body, stand_in: Callable[..., object]) -> int | None:
    """The address of a kernel of `stand_in`, which has the parameters of `body`'s function, for
    calls whose first phase is one chunk; None if the kernel of `body` is there already, or if no
    helper can compile it.
    """
    if not config.ahead or jit.load_if_cached(*maker(body)) is not None or not helpers.can_help():
        return None
    return _short(body, stand_in)


@functools.cache
def _short(body: Body, stand_in: Callable[..., object]) -> int:
    function = body.function
    own = f"{function.__module__}.{function.__qualname__} {body[1:]}".encode()
    symbol = f"flowvm_tuned_{hashlib.sha256(own).hexdigest()[:16]}"
    cell = _cells.setdefault(symbol, ctypes.c_int64(0))
    jit.provide(symbol, ctypes.addressof(cell))
    make, name = maker(body._replace(function=stand_in))
    address = jit.load(functools.partial(_lowered, make, symbol, body.scratch_at), name)

    def use_tuned() -> None:
        cell.value = kernel_of(body)

    text = base64.b64encode(pickle.dumps(body)).decode()
    helpers.later(f"{__name__}:{compile_body.__name__}:{text}", use_tuned, pressing=True)
    return address


# by their symbols, the addresses of kernels that are there; native code looks into them for good
_cells: dict[str, ctypes.c_int64] = {}


def compile_body(text: str) -> None:
    """The helper's part."""
    kernel_of(pickle.loads(base64.b64decode(text)))


def _lowered(make: Callable[[], jit.Lowered], symbol: str, scratch_at: int) -> jit.Lowered:
    """Return a kernel that calls the kernel of `make`, unless there is one at `symbol`.

    Which of the two does an instruction is decided once: in its first phase, which is one chunk and
    leaves the address, or 0, in the last word of scratch for the others.  So neither finds in
    scratch what the other has left there.
    """
    lowered = make()
    for module in lowered.modules:
        for function in module.functions:
            if function.name == lowered.entry:
                function.name = "short"
    text = f"""
@{symbol} = external global i64
declare i32 @short(i64, i64, i64, i64, i64)
define i32 @{lowered.entry}(i64 %args, i64 %layout, i64 %lo, i64 %hi, i64 %arena) {{
  %argp = inttoptr i64 %args to ptr
  %layp = inttoptr i64 %layout to ptr
  %at = getelementptr i64, ptr %argp, i64 {SCRATCH_AT}
  %scratch = load ptr, ptr %at
  %size_at = getelementptr i64, ptr %layp, i64 {scratch_at}
  %size = load i64, ptr %size_at
  %before = sub i64 %size, {WORD}
  %word = getelementptr i8, ptr %scratch, i64 %before
  %phase = lshr i64 %lo, {ARG.PHASE_BITS}
  %begins = icmp eq i64 %phase, 0
  br i1 %begins, label %first, label %later
first:
  %there = load atomic i64, ptr @{symbol} acquire, align 8
  store i64 %there, ptr %word, align 1
  br label %both
later:
  %left = load i64, ptr %word, align 1
  br label %both
both:
  %tuned = phi i64 [%there, %first], [%left, %later]
  %some = icmp ne i64 %tuned, 0
  br i1 %some, label %pass, label %do
pass:
  %function = inttoptr i64 %tuned to ptr
  %passed = call i32 %function(i64 %args, i64 %layout, i64 %lo, i64 %hi, i64 %arena)
  ret i32 %passed
do:
  %done = call i32 @short(i64 %args, i64 %layout, i64 %lo, i64 %hi, i64 %arena)
  ret i32 %done
}}
"""
    return lowered._replace(modules=[*lowered.modules, llvm.parse_assembly(text)])
