"""The rules of ops that read and write at positions that are data; kernels in `index_kernels`."""

from __future__ import annotations

from typing import Any

from flowvm.cuda.launch import CudaLaunch, Details, Param, Scratch, Step
from flowvm.launch import Launch
from flowvm.meta import TensorMeta
from flowvm.ops.declare.cuda.steps import consts, flat_step, operands, row_step
from flowvm.ops.places.cpu.index_kernels import SET
from flowvm.ops.places.cuda import index_kernels as kernels
from flowvm.ops.places.cuda.radix import Sorting, digit_count, sorting, sorting_steps
from flowvm.ops.places.gather import split_at

Metas = tuple[TensorMeta, ...]
Attrs = tuple[Any, ...]
VECTOR = 16  # bytes
EACH = 4  # vectors of a row that a thread moves: it pays once for where the row lies
SHORT = 32  # indices that a thread goes through one after another
COLUMNS = 8192  # of a destination: as many threads are enough, whatever each has to do


# --- reading ------------------------------------------------------------------------------------


def take(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """`take_slices`."""
    out, x, index = operands(*launch.views)
    n, inner, low, shown, zero = launch.consts
    rows = launch.units
    numbers = consts(rows, n, inner, low, shown, zero)
    many = VECTOR // x.view.dtype.itemsize
    if inner % many:
        many = 1
    params: tuple[Param, ...] = (out, x, index, Details(), *numbers)
    step = row_step(kernels.take(many), rows, int(-(-inner // (many * EACH))), *params)
    return CudaLaunch(launch.outputs, (step,) if rows else ())


def gather(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """`gather_elements`."""
    total = launch.outputs[0].numel
    params = (*operands(*launch.views), Details(), *consts(*launch.consts))
    return _flat(launch, kernels.gather, total, *params)


def join(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """`join_positions`."""
    params = (*operands(*launch.views), Details(), *consts(*launch.consts))
    return _flat(launch, kernels.join, launch.units, *params)


def _flat(launch: Launch, kernel: Any, units: int, *params: Any) -> CudaLaunch:
    return CudaLaunch(launch.outputs, (flat_step(kernel, units, *params),) if units else ())


# --- writing ------------------------------------------------------------------------------------


def _is_short(launch: Launch, length: int, columns: int, n: int) -> bool:
    return length <= SHORT or columns >= COLUMNS or n == 0


def _latest(m: int, positions: int) -> tuple[Scratch, int]:
    """Room for a position for each destination, and its bytes."""
    kind, size = ("int32", 4) if m < 1 << 31 else ("int64", 8)
    return Scratch(0, kind, (positions,)), size * positions


def _sorting(m: int, most: int) -> Sorting:
    """The sort of m keys from 0 to `most`."""
    bits = most.bit_length()
    return sorting(1, m, 33 if bits == 32 else bits, False)


def put(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """`put_slices` and `combine_slices`."""
    x, index, source = operands(*launch.views)
    n, inner, low, shown, skip, mode, one = map(int, launch.consts[:7])
    outer, m = split_at(metas[0], attrs[0])[0], metas[1].numel
    if not m or not outer * inner:
        return CudaLaunch((), ())
    if _is_short(launch, m, outer * inner, n):
        numbers = consts(outer * inner, n, inner, low, shown, skip, mode, one)
        params: tuple[Param, ...] = (x, index, source, Details(), *numbers)
        return CudaLaunch((), (flat_step(kernels.put_walk, outer * inner, *params),))
    if mode == SET:
        latest, scratch = _latest(m, n)
        numbers = consts(n, low, shown, skip)
        return CudaLaunch((), (
            flat_step(kernels.unset, n, latest),
            flat_step(kernels.put_latest, m, latest, index, Details(), *numbers),
            row_step(kernels.put_last, outer * m, inner, x, index, source, latest,
                     *consts(outer * m, n, inner, one)),
        ), scratch)  # fmt: skip
    s = _sorting(m, n)
    memory = s.keys, s.places, s.varying
    keyed = flat_step(kernels.put_keys, m, *memory, index, Details(), *consts(n, low, shown, skip))
    rows, numbers = outer * m, consts(digit_count(s.bits), outer * m, n, inner, mode, one)
    last = row_step(kernels.put_grouped, rows, inner, x, source, *memory, *numbers)
    return CudaLaunch((), (keyed, *sorting_steps(s), last), s.end)


def scatter(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """`scatter_elements` and `combine_elements`."""
    x, index, source = operands(*launch.views)
    n, m, inner, dim, mode, one = map(int, launch.consts[:6])
    total, positions = metas[1].numel, metas[0].numel
    outer = split_at(metas[0], attrs[0])[0]
    if not total:
        return CudaLaunch((), ())
    where = consts(n, m, inner, dim)
    if _is_short(launch, m, outer * inner, n):
        numbers = *consts(outer * inner), *where, *consts(mode, one)
        params: tuple[Param, ...] = (x, index, source, Details(), *numbers)
        return CudaLaunch((), (flat_step(kernels.scatter_walk, outer * inner, *params),))
    steps: tuple[Step, ...]
    if mode == SET:
        latest, scratch = _latest(total, positions)
        steps = (
            flat_step(kernels.unset, positions, latest),
            flat_step(kernels.scatter_latest, total, latest, index, Details(), *where),
            flat_step(kernels.scatter_last, total, x, index, source, latest,
                      *consts(n, m, inner, one)),
        )  # fmt: skip
        return CudaLaunch((), steps, scratch)
    s = _sorting(total, positions)
    memory = s.keys, s.places, s.varying
    keyed = flat_step(
        kernels.scatter_keys, total, *memory, index, Details(), *where, *consts(positions)
    )
    numbers = consts(digit_count(s.bits), mode, one)
    last = flat_step(kernels.scatter_grouped, total, x, source, *memory, *numbers)
    return CudaLaunch((), (keyed, *sorting_steps(s), last), s.end)
