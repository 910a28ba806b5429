"""The rules of ops that read and write at positions that are data; kernels in `index_kernels`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowvm.cuda.launch import CudaLaunch, Details, Param, Scratch, Step
from flowvm.launch import Launch
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.cuda.steps import consts, flat_step, operands, row_step
from flowvm.ops.places.cpu.index_kernels import SET, Elements, Slices, Writing
from flowvm.ops.places.cuda import index_kernels as kernels
from flowvm.ops.places.cuda.index_kernels import Grouping
from flowvm.ops.places.cuda.radix import Sorting, digit_count, sorting, sorting_steps

Metas = tuple[TensorMeta, ...]
VECTOR = 16  # bytes
EACH = 4  # vectors of a row that a thread moves: it pays once for where the row lies
SHORT = 32  # indices that a thread goes through one after another
COLUMNS = 8192  # of a destination: as many threads are enough, whatever each has to do


# --- reading ------------------------------------------------------------------------------------


def take(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """`take_slices`."""
    out, x, index = operands(*launch.views)
    slices: Slices = launch.consts[0]
    rows = launch.units
    many = VECTOR // x.view.dtype.itemsize
    if slices.inner % many:
        many = 1
    params: tuple[Param, ...] = (out, x, index, Details(), *consts(slices))
    step = row_step(kernels.take(many), rows, -(-slices.inner // (many * EACH)), *params)
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


def _flat(launch: Launch, kernel: Callable[..., object], units: int, *params: Any) -> CudaLaunch:
    return CudaLaunch(launch.outputs, (flat_step(kernel, units, *params),) if units else ())


# --- writing ------------------------------------------------------------------------------------


def _is_short(length: int, columns: int, n: int) -> bool:
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
    slices: Slices
    writing: Writing
    slices, writing = launch.consts
    m, n, inner, columns = metas[1].numel, slices.n, slices.inner, slices.outer * slices.inner
    if not m or not columns:
        return CudaLaunch((), ())
    if _is_short(m, columns, n):
        numbers = consts(slices, writing.mode, writing.one)
        params: tuple[Param, ...] = (x, index, source, Details(), *numbers)
        return CudaLaunch((), (flat_step(kernels.put_walk, columns, *params),))
    rows, where = slices.outer * m, consts(slices)
    if writing.mode == SET:
        latest, scratch = _latest(m, n)
        return CudaLaunch((), (
            flat_step(kernels.unset, n, latest),
            flat_step(kernels.put_latest, m, latest, index, Details(), *where),
            row_step(kernels.put_last, rows, inner, x, index, source, latest,
                     *consts(slices, writing.one)),
        ), scratch)  # fmt: skip
    s = _sorting(m, n)
    memory = s.keys, s.places, s.varying
    keyed = flat_step(kernels.put_keys, m, *memory, index, Details(), *where)
    numbers = consts(slices, Grouping(digit_count(s.bits), writing.mode, writing.one))
    last = row_step(kernels.put_grouped, rows, inner, x, source, *memory, *numbers)
    return CudaLaunch((), (keyed, *sorting_steps(s), last), s.end)


def scatter(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """`scatter_elements` and `combine_elements`."""
    x, index, source = operands(*launch.views)
    elements: Elements
    writing: Writing
    elements, writing = launch.consts
    total, positions = metas[1].numel, metas[0].numel
    columns = elements.outer * elements.inner
    if not total:
        return CudaLaunch((), ())
    where, mode, one = consts(elements), writing.mode, writing.one
    if _is_short(elements.m, columns, elements.n):
        params: tuple[Param, ...] = (x, index, source, Details(), *where, *consts(mode, one))
        return CudaLaunch((), (flat_step(kernels.scatter_walk, columns, *params),))
    steps: tuple[Step, ...]
    if mode == SET:
        latest, scratch = _latest(total, positions)
        steps = (
            flat_step(kernels.unset, positions, latest),
            flat_step(kernels.scatter_latest, total, latest, index, Details(), *where),
            flat_step(kernels.scatter_last, total, x, index, source, latest,
                      *where, *consts(one)),
        )  # fmt: skip
        return CudaLaunch((), steps, scratch)
    s = _sorting(total, positions)
    memory = s.keys, s.places, s.varying
    keyed = flat_step(kernels.scatter_keys, total, *memory, index, Details(), *where)
    numbers = consts(Grouping(digit_count(s.bits), mode, one))
    last = flat_step(kernels.scatter_grouped, total, x, source, *memory, *numbers)
    return CudaLaunch((), (keyed, *sorting_steps(s), last), s.end)
