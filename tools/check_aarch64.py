"""Cross-compiles the VM's loops and the usual kernels for aarch64.

    python -m tools.check_aarch64 [PIECE ...]

A piece is one of `flowvm warmup`'s: "loops: settle nap", an op's name.  Everything is lowered as
Python on aarch64 would lower it: for that machine, with NEON's registers; so code for one processor
alone (an intrinsic of x86, assembly) is found where there is no other processor.  Nothing of it is
run: what runs is compiled a second time, for this machine.  Exit code 1 where something does not
compile.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

# before flowvm is imported, which asks: this process, and its children, lower for the other machine
platform.machine = lambda: "aarch64"
# threads would wait by a system call of the other machine
os.environ |= {"FLOWVM_ENGINE": "sequential", "FLOWVM_WORKERS": "1", "FLOWVM_WINDOW": "0"}

from flowvm.commands import warmup  # noqa: E402
from flowvm.compiler import jit  # noqa: E402
from flowvm.compiler import target as targets  # noqa: E402
from flowvm.ops.declare.cpu import vector_code  # noqa: E402

TRIPLE = "aarch64-unknown-linux-gnu"
PLAIN = targets.Target("generic", "")  # here the least processor; there NEON is always there
OPS = "add exp relu sum softmax matmul conv2d cross_entropy layer_norm cumsum index_select sort"
PROCESSES = 2
FEW = 4  # pieces that one process does sooner
AARCH64_IN_ELF = 183  # e_machine


def main() -> int:
    """Check the pieces that are named, or the usual ones."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("pieces", nargs="*", default=[*warmup.loops(), *OPS.split()])
    pieces = parser.parse_args().pieces
    began, objects, failures = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FLOWVM_CACHE_DIR"] = folder
        with warmup.processes(PROCESSES if len(pieces) > FEW else 1) as pool:
            running = {pool.submit(check, piece): piece for piece in pieces}
            for job in as_completed(running):
                try:
                    count, why = job.result()
                except BrokenProcessPool as error:
                    count, why = 0, f"LLVM ended the process ({error})"
                objects += count
                if why:
                    failures += 1
                    print(f"{running[job]}: {why}")
    seconds = time.monotonic() - began
    print(f"{objects} objects for {TRIPLE} in {seconds:.0f} s, {failures} failures")
    return 1 if failures else 0


def check(piece: str) -> tuple[int, str]:
    """Compile a piece for aarch64; return the number of its objects, and the error."""
    for module in (targets, jit, vector_code):
        vars(module)["target"] = lambda: PLAIN
    texts: list[str] = []
    compile_object = jit._object

    def both(lowered: jit.Lowered, symbol: str) -> Any:
        texts.append(crossed(lowered, symbol))
        return compile_object(lowered, symbol)

    jit._object = both
    try:
        result = warmup.warm(piece, False)
    finally:
        jit._object = compile_object
    return len(texts), result.error


def crossed(lowered: jit.Lowered, symbol: str) -> str:
    """Compile for aarch64, and answer the symbol; ValueError for code of another processor."""
    module = jit._linked(lowered, symbol)
    text = str(module)
    for foreign in ("llvm.x86.", " asm "):
        if foreign in text:
            line = next(line for line in text.splitlines() if foreign in line)
            raise ValueError(f"code for one processor alone: {line.strip()}")
    jit.llvm.initialize_all_targets()
    jit.llvm.initialize_all_asmprinters()
    machine = jit.llvm.Target.from_triple(TRIPLE).create_target_machine(opt=3)
    module.triple, module.data_layout = TRIPLE, str(machine.target_data)
    options = jit.llvm.create_pipeline_tuning_options(speed_level=3)
    builder = jit.llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    code = machine.emit_object(module)
    if int.from_bytes(code[18:20], "little") != AARCH64_IN_ELF or symbol.encode() not in code:
        raise ValueError(f"no object of aarch64 with {symbol}")
    return symbol


if __name__ == "__main__":
    sys.exit(main())
