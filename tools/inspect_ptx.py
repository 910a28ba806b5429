"""Is a CUDA kernel's code good enough to be bound by memory?  Told without a GPU.

    python -m tools.inspect_ptx [--arch sm_90] [--only WORD ...] [--ptx]

Each of `cases` is an op on tensors of a size that matters.  Its kernels are lowered for CUDA,
compiled and assembled, and a line for each says

    regs, spill    registers, and bytes spilled; 2048 threads of an SM have 32 registers each
    ins/B          instructions of the innermost loops for each byte that they move
    load, store    bytes of the accesses of the loop that moves most
    ahead          bytes that a thread has asked for before it waits
    f64, shm       float64 instructions and accesses of shared memory in a turn of that loop
    div            divisions of 64 and of 32 bits in the PTX
    call           calls in the loop (divisions of 64 bits)

An H100 issues BUDGET instructions in the time that its memory moves a byte; a kernel that takes
fewer is bound by memory, if enough bytes are on their way.  What is above, spills, or divides in
the loop is flagged, and what has fewer than FLYING bytes of an SM's loads on their way.  What
kernels take besides their loops is not in `ins/B`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from tools.sass import Found, inspected, missing

# 132 SMs * 4 warp instructions a clock * 32 threads * 1.7 GHz / 3.35 TB/s
BUDGET = 132 * 4 * 32 * 1.7e9 / 3.35e12
ENOUGH = 0.7 * BUDGET
FLYING = 3.35e12 / 2 * 700e-9 / 132  # bytes that an SM reads meanwhile, if half of all are reads
HEAD = (
    f"{'kernel':34} {'regs':>4} {'spill':>5} {'ins/B':>6} {'load':>5} {'store':>5} {'ahead':>5} "
    f"{'f64':>3} {'shm':>3} {'div':>7} {'call':>4}  blocks x threads"
)


class Case(NamedTuple):
    """The subject of an inspection: a name, and the call of an operator."""

    name: str
    operator: str
    metas: list[Any]
    attributes: tuple[Any, ...] = ()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--arch", default="sm_90", help="for which GPU (sm_80, sm_90)")
    parser.add_argument("--only", nargs="+", default=[""], help="cases with one of these in a name")
    parser.add_argument("--ptx", action="store_true", help="print the PTX, too")
    chosen = parser.parse_args()
    if absent := missing():
        raise SystemExit(f"{absent} is not here: pip install nvidia-cuda-nvcc nvidia-cuda-nvdisasm")
    print(HEAD)
    flagged = 0
    for case in cases():
        if any(word in case.name for word in chosen.only):
            flagged += _told(case, chosen.arch, chosen.ptx)
    print(f"{flagged} flagged; below {ENOUGH:.1f} instructions a byte memory is what takes time")
    return 0


def _told(case: Case, arch: str, everything: bool) -> int:
    from flowvm.cuda.compiler.compilation import ptx, signature_of

    flagged, visited = 0, set()
    for step in steps(case):
        key = step.kernel, signature_of(step)
        if key in visited:
            continue
        visited.add(key)
        text, _ = ptx(*key, divmod(int(arch.removeprefix("sm_")), 10))
        report = inspected(text, arch)
        wrong = flags(report)
        flagged += bool(wrong)
        where = f"{step.grid[0] * step.grid[1] * step.grid[2]} x {step.block[0] * step.block[1]}"
        print(
            f"{_line(f'{case.name}: {step.kernel.__name__}', report)}  {where}  {', '.join(wrong)}"
        )
        if everything:
            print(text)
    return flagged


def _line(name: str, kernel: Found) -> str:
    main = kernel.loops[0]
    wide, narrow = kernel.divisions
    return (
        f"{name:34.34} {kernel.registers:4} {kernel.spilled:5} {per_byte(kernel):6.2f} "
        f"{max(main.loads, default=0):5} {max(main.stores, default=0):5} {main.ahead:5} "
        f"{main.doubles:3} {main.shared:3} {f'{wide}/{narrow}':>7} {main.calls:4}"
    )


def per_byte(kernel: Found) -> float:
    """Instructions of a turn of each loop that moves much, for each byte moved."""
    most, straight = kernel.loops[0].moved, kernel.loops[0].straight
    loops = [one for one in kernel.loops if 2 * one.moved >= most and one.straight == straight]
    return sum(one.instructions for one in loops) / max(1, sum(one.moved for one in loops))


def in_flight(kernel: Found) -> int:
    """Return the bytes that an SM's threads have asked for: as many threads as have registers."""
    return min(2048, 65536 // max(1, kernel.registers)) * kernel.loops[0].ahead


def flags(kernel: Found) -> list[str]:
    """Return the faults of a kernel."""
    main = kernel.loops[0]
    wrong = {
        "spills": kernel.spilled > 0,
        "local memory": main.local > 0,
        "too many instructions": per_byte(kernel) > ENOUGH,
        "divides in the loop": main.calls > 0,
        "generic addresses": any(one.generic for one in kernel.loops),
        "little on its way": main.loads != () and in_flight(kernel) < FLYING,
    }
    return [name for name, so in wrong.items() if so]


# --- what is looked at ----------------------------------------------------------------------------


def steps(case: Case) -> list[Any]:
    """The launches of kernels that a case comes down to."""
    from flowvm.cuda.launch import KernelStep
    from flowvm.eager.interpreter import operators
    from flowvm.ops.declare.cuda.lowering import launch_of

    takes = len(case.metas) - (case.operator == "copy")  # whose output is given, too
    matches = [
        o for o in operators
        if o.name == case.operator and o.kernel.infer
        and (len(o.signature.inputs), len(o.signature.attrs)) == (takes, len(case.attributes))
    ]  # fmt: skip
    launch = launch_of(matches[0], tuple(case.metas), case.attributes)
    return [step for step in launch.steps if isinstance(step, KernelStep)]


def cases() -> Iterator[Case]:
    """Ops of every family, on tensors of some ten million elements."""
    from flowvm.meta.device import Device
    from flowvm.meta.dtype import dtype_named
    from flowvm.meta.meta import TensorMeta
    from flowvm.ops.places.cpu.index_kernels import ADD

    device = Device("cuda:0")

    def like(*shape: int, kind: str = "float32", strides: tuple[int, ...] | None = None) -> Any:
        return TensorMeta.of(shape, dtype_named(kind), device, strides)

    whole, row, n = like(1 << 24), like(4096, 1024), 1 << 22
    long, halves = like(512, 32768), like(4096, 1024, kind="float16")
    turned = like(4096, 4096, strides=(1, 4096))
    places = like(n, kind="int64")
    yield Case("copy", "copy", [whole, whole])
    yield Case("copy bytes", "copy", [like(1 << 24, kind="uint8")] * 2)
    yield Case("copy transposed", "copy", [like(4096, 4096), turned])
    small = (like(4096, 4096, kind="float16", strides=s) for s in (None, (1, 4096)))
    yield Case("copy float16 transposed", "copy", [*small])
    yield Case("copy part of rows", "copy", [like(4096, 1000), like(4096, 1000, strides=(1024, 1))])
    yield Case("cast to float16", "cast", [whole], (dtype_named("float16"),))
    yield Case("cast from int64", "cast", [like(n, kind="int64")], (dtype_named("float32"),))
    yield Case("fill", "fill", [], (whole,))
    for name in ("neg", "exp", "tanh", "gelu", "sqrt"):
        yield Case(name, name, [whole])
    yield Case("add", "add", [whole, whole])
    yield Case("add float64", "add", [like(n, kind="float64")] * 2)
    yield Case("add float16", "add", [like(1 << 24, kind="float16")] * 2)
    yield Case("add bias", "add", [row, like(1024)])
    yield Case("add column", "add", [row, like(4096, 1)])
    yield Case("add turned", "add", [like(4096, 4096), turned])
    yield Case("gt", "gt", [whole, whole])
    yield Case("where", "where", [like(1 << 24, kind="bool"), whole, whole])
    yield Case("sum all", "sum", [whole])
    yield Case("sum rows", "sum", [row], ((1,), False, 1.0, None))
    yield Case("sum columns", "sum", [row], ((0,), False, 1.0, None))
    yield Case("sum rows float16", "sum", [halves], ((1,), False, 1.0, None))
    yield Case("amax rows", "amax", [row], ((1,), False, 1.0, None))
    yield Case("max with indices", "max", [row], (1, False))
    yield Case("var", "moments", [row], ((1,), False, 1))
    for name, x in (("", row), (" long", long), (" wide", like(1 << 18, 32))):
        yield Case(f"softmax{name}", "softmax", [x], (1,))
        yield Case(f"softmax backward{name}", "softmax_backward", [x, x], (1,))
        size = x.shape[1]
        weight = like(size)
        norm = ("layer", (size,), 1e-5, True)
        yield Case(f"layer_norm{name}", "normalize", [x, weight, weight], norm)
        stats = like(2 * x.shape[0])
        yield Case(f"layer_norm backward{name}", "normalize_backward", [x, x, stats, weight], norm)
    target = like(4096, kind="int64")
    yield Case("cross_entropy", "cross_entropy", [row, target], ("mean", -100, 0.0))
    yield Case("cumsum", "cumsum", [whole], (0, False))
    yield Case("cumsum rows", "cumsum", [row], (1, False))
    yield Case("sort", "sort", [like(1, n)], (0, n, False))
    yield Case("sort rows", "sort", [row], (0, 1024, False))
    yield Case("topk", "topk", [row], (10, True))
    yield Case("topk long", "topk", [like(64, 1 << 18)], (10, True))
    yield Case("index_select", "index_select", [like(50000, 512), like(1 << 15, kind="int64")],
               (0, -50000, 0, 1 << 62, 1 << 62))  # fmt: skip
    yield Case("gather", "gather", [row, like(4096, 1024, kind="int64")], (1,))
    yield Case("scatter add", "scatter_reduce_", [like(n), places, like(n)], (0, ADD))
    yield Case("bincount", "bincount", [places, places], (False, 1000))
    yield Case("masked_select", "masked_select", [whole, like(1 << 24, kind="bool")])
    yield Case("nonzero", "true_positions", [like(1 << 24, kind="bool")])
    yield Case("rand", "rand", [], (whole, 8))
    yield Case("randn", "randn", [], (whole,))
    yield Case("dropout", "dropout", [whole])


if __name__ == "__main__":
    sys.exit(main())
