"""The kernels of a recurrent layer in one direction: all steps of a sequence in one instruction.

A step needs the one before, but only that of the same sample: a unit is a block of samples, which
goes through all of its steps, so no step waits for another thread.  What a step multiplies with is
packed into panels once, in phase 0, and stays in the cache from step to step.  A product of a block
is tiles as anywhere (`flowvm.ops.products.cpu.tile`), whose sums do not depend on how rows were cut
into blocks: results do not depend on threads.

Samples lie side by side for each step, as a PackedSequence has them: sample b of step t is row
`starts[t] + b`, and step t has the first `starts[t + 1] - starts[t]` samples, never more than the
step before.  Where all are equally long this is the array (steps, samples, ...) itself.

What lies in memory
- `x`, `hidden` (rows, gates): a step's input and state times their weights.  The gates of a row
  are `size` numbers each: LSTM input, forget, cell, output; GRU reset, update, new.
- `state` (samples, width): h, and for LSTM c behind it.
- `notes` (rows, kept * size), for the gradient: LSTM its gates and c; GRU its gates and the hidden
  part of the new one; else nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from flowvm.launch import PHASE_BITS
from flowvm.meta.arrays import Array
from flowvm.ops.declare.cpu.body_arrays import array_in
from flowvm.ops.products.cpu.gemm_kernels import pack_panels
from flowvm.ops.products.cpu.tile import START_NONE, START_ROWS, address, multiply_tile
from flowvm.ops.scalar.functions import sigmoid, tanh

PHASE_MASK = (1 << PHASE_BITS) - 1
TANH, RELU, LSTM, GRU = 0, 1, 2, 3


class Recurrence(NamedTuple):
    """The numbers of a kernel.

    From `nr` on they describe the product with the state's weight, under the names of
    `flowvm.ops.products.cpu.gemm_kernels.Plan`: `depth` by `columns`.
    """

    cell: int
    features: int  # of h
    gates: int  # numbers of a row of x
    width: int  # of a row of state
    note_width: int  # numbers of a row of notes
    samples: int
    block: int  # samples of a unit
    reverse: int
    depth: int
    columns: int
    mr: int
    nr: int
    lanes: int
    b_step: int
    b_column: int
    pack_b: int
    stored: int  # bytes of an element
    size: int  # the same in a panel
    tile: int  # addresses
    copy: int
    transpose: int

    @property
    def panels(self) -> int:
        return -(-self.columns // self.nr)


def _pack(p: Recurrence, weight: Array, scratch: Array, lo: int, hi: int) -> None:
    """Phase 0: panels [lo, hi)."""
    for panel in range(lo, hi):
        j = panel * p.nr
        pack_panels(
            p, address(weight) + j * p.b_column * p.stored, p.depth, min(p.nr, p.columns - j),
            address(scratch) + j * p.depth * p.stored,
        )  # fmt: skip


def _multiply(
    p: Recurrence, a: int, a_row: int, packed: int, c: int, c_row: int, start: int, rows: int
) -> None:
    """Compute `rows` rows of C = A times the packed weight; if `start`, add the contents of C."""
    for j in range(0, p.columns, p.nr):
        for i in range(0, rows, p.mr):
            to = c + (i * c_row + j) * p.stored
            multiply_tile(
                p.tile, p.depth, a + i * a_row * p.stored, a_row, 1,
                packed + j * p.depth * p.stored, p.nr, 1, to, c_row, start, to, c_row,
                min(p.mr, rows - i), min(p.nr, p.columns - j),
            )  # fmt: skip


def _step_of(p: Recurrence, starts: Array, s: int) -> int:
    """The step that is done as number s."""
    return len(starts) - 2 - s if p.reverse else s


def _samples_at(starts: Array, t: int, first: int, rows: int) -> int:
    """Return the number of samples that step t has in a block of `rows` from `first` on."""
    count: int = starts[t + 1] - starts[t] - first
    return min(rows, count)


# --- a row, gate by gate: loops so short in names that LLVM can tell their arrays apart -----------


def _sigmoid_gate(gate: Array, x: Array, hidden: Array, bias: Array) -> None:
    for j in range(len(gate)):
        gate[j] = sigmoid(x[j] + hidden[j] + bias[j])


def _tanh_gate(gate: Array, x: Array, hidden: Array, bias: Array) -> None:
    for j in range(len(gate)):
        gate[j] = tanh(x[j] + hidden[j] + bias[j])


def _relu_gate(gate: Array, x: Array, hidden: Array, bias: Array) -> None:
    zero = gate.dtype.type(0)
    for j in range(len(gate)):
        v = x[j] + hidden[j] + bias[j]
        gate[j] = zero if v < zero else v


def _copy(to: Array, source: Array) -> None:
    for j in range(len(to)):
        to[j] = source[j]


def _zero(to: Array) -> None:
    for j in range(len(to)):
        to[j] = to.dtype.type(0)


def _new_cell(cell: Array, before: Array, i: Array, f: Array, g: Array) -> None:
    for j in range(len(cell)):
        cell[j] = f[j] * before[j] + i[j] * g[j]


def _shown_cell(h: Array, o: Array, cell: Array) -> None:
    for j in range(len(h)):
        h[j] = o[j] * tanh(cell[j])


def _hidden_part(part: Array, hidden: Array, bias: Array) -> None:
    for j in range(len(part)):
        part[j] = hidden[j] + bias[j]


def _new_gate(gate: Array, x: Array, r: Array, part: Array) -> None:
    for j in range(len(gate)):
        gate[j] = tanh(x[j] + r[j] * part[j])


def _mixed(h: Array, new: Array, z: Array) -> None:
    for j in range(len(h)):
        h[j] = new[j] + z[j] * (h[j] - new[j])


def _part(x: Array, k: int, size: int) -> Array:
    """Part k of a row of parts."""
    return x[k * size : (k + 1) * size]


def _lstm_row(state: Array, notes: Array, x: Array, hidden: Array, bias: Array, n: int) -> None:
    i, f, g, o = _part(notes, 0, n), _part(notes, 1, n), _part(notes, 2, n), _part(notes, 3, n)
    _sigmoid_gate(notes[: 2 * n], x[: 2 * n], hidden[: 2 * n], bias[: 2 * n])  # i and f
    _tanh_gate(g, _part(x, 2, n), _part(hidden, 2, n), _part(bias, 2, n))
    _sigmoid_gate(o, _part(x, 3, n), _part(hidden, 3, n), _part(bias, 3, n))
    cell = _part(notes, 4, n)
    _new_cell(cell, _part(state, 1, n), i, f, g)
    _copy(_part(state, 1, n), cell)
    _shown_cell(_part(state, 0, n), o, cell)


def _gru_row(state: Array, notes: Array, x: Array, hidden: Array, bias: Array, n: int) -> None:
    r, z, new = _part(notes, 0, n), _part(notes, 1, n), _part(notes, 2, n)
    part = _part(notes, 3, n)
    _sigmoid_gate(notes[: 2 * n], x[: 2 * n], hidden[: 2 * n], bias[: 2 * n])  # r and z
    _hidden_part(part, _part(hidden, 2, n), _part(bias, 2, n))
    _new_gate(new, _part(x, 2, n), r, part)
    _mixed(state, new, z)


def scan_body(
    out: Array, last: Array, notes: Array, x: Array, weight: Array, bias: Array, state: Array,
    p: Recurrence, starts: Array, scratch: Array, arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """All steps; `last` is the state after them, of each sample after its own last one."""
    if lo >> PHASE_BITS == 0:
        _pack(p, weight, scratch, lo, hi)
        return
    first = lo & PHASE_MASK
    hidden = array_in(arena, 0, p.block * p.gates, x)
    n, width = p.features, p.width
    for unit in range(first, first + hi - lo):
        begin = unit * p.block
        rows = min(p.block, p.samples - begin)
        for b in range(begin, begin + rows):
            _copy(last[b], state[b])
        for s in range(len(starts) - 1):
            t = _step_of(p, starts, s)
            count = _samples_at(starts, t, begin, rows)
            if count <= 0:
                continue
            _multiply(
                p, address(last) + begin * width * p.stored, width, address(scratch),
                address(hidden), p.gates, START_NONE, count,
            )  # fmt: skip
            for i in range(count):
                at, own = starts[t] + begin + i, last[begin + i]
                around = hidden[i * p.gates : (i + 1) * p.gates]
                if p.cell == LSTM:
                    _lstm_row(own, notes[at], x[at], around, bias, n)
                elif p.cell == GRU:
                    _gru_row(own, notes[at], x[at], around, bias, n)
                elif p.cell == RELU:
                    _relu_gate(own, x[at], around, bias)
                else:
                    _tanh_gate(own, x[at], around, bias)
                _copy(out[at], own[:n])


# --- the gradient ---------------------------------------------------------------------------------


def _add(to: Array, g: Array) -> None:
    for j in range(len(to)):
        to[j] += g[j]


def _back_through_cell(dcell: Array, do: Array, dh: Array, o: Array, cell: Array) -> None:
    one = dh.dtype.type(1)
    for j in range(len(dh)):
        shown = tanh(cell[j])
        do[j] = dh[j] * shown * o[j] * (one - o[j])
        dcell[j] += dh[j] * o[j] * (one - shown * shown)


def _back_to_gate(dgate: Array, g: Array, gate: Array, other: Array) -> None:
    """Store the gradient of a gate: a sigmoid that is multiplied with `other`."""
    one = g.dtype.type(1)
    for j in range(len(g)):
        dgate[j] = g[j] * other[j] * gate[j] * (one - gate[j])


def _back_to_tanh(dgate: Array, g: Array, gate: Array, other: Array) -> None:
    one = g.dtype.type(1)
    for j in range(len(g)):
        dgate[j] = g[j] * other[j] * (one - gate[j] * gate[j])


def _times(to: Array, by: Array) -> None:
    for j in range(len(to)):
        to[j] *= by[j]


def _product(to: Array, x: Array, y: Array) -> None:
    for j in range(len(to)):
        to[j] = x[j] * y[j]


def _back_through_tanh(dgate: Array, g: Array, out: Array) -> None:
    one = g.dtype.type(1)
    for j in range(len(g)):
        dgate[j] = g[j] * (one - out[j] * out[j])


def _back_through_relu(dgate: Array, g: Array, out: Array) -> None:
    zero = g.dtype.type(0)
    for j in range(len(g)):
        dgate[j] = g[j] if out[j] > zero else zero


def _back_to_new(dnew: Array, dz: Array, g: Array, z: Array, new: Array, before: Array) -> None:
    one = g.dtype.type(1)
    for j in range(len(g)):
        dz[j] = g[j] * (before[j] - new[j]) * z[j] * (one - z[j])
        dnew[j] = g[j] * (one - z[j]) * (one - new[j] * new[j])


def _lstm_back(dstate: Array, dx: Array, notes: Array, cell_before: Array, n: int) -> None:
    i, f, g, o = _part(notes, 0, n), _part(notes, 1, n), _part(notes, 2, n), _part(notes, 3, n)
    dh, dcell = _part(dstate, 0, n), _part(dstate, 1, n)
    _back_through_cell(dcell, _part(dx, 3, n), dh, o, _part(notes, 4, n))
    _back_to_gate(_part(dx, 0, n), dcell, i, g)
    _back_to_gate(_part(dx, 1, n), dcell, f, cell_before)
    _back_to_tanh(_part(dx, 2, n), dcell, g, i)
    _times(dcell, f)


def _gru_back(
    dh: Array, dx: Array, dhidden: Array, notes: Array, before: Array, n: int
) -> None:  # fmt: skip
    r, z, new = _part(notes, 0, n), _part(notes, 1, n), _part(notes, 2, n)
    dr, dz, dnew = _part(dx, 0, n), _part(dx, 1, n), _part(dx, 2, n)
    _back_to_new(dnew, dz, dh, z, new, before)
    _back_to_gate(dr, dnew, r, _part(notes, 3, n))
    _copy(_part(dhidden, 0, n), dr)
    _copy(_part(dhidden, 1, n), dz)
    _product(_part(dhidden, 2, n), dnew, r)
    _times(dh, z)


def back_body(
    dx: Array, dhidden: Array, dstate: Array, before: Array, weight: Array, state: Array,
    out: Array, notes: Array, g: Array, dlast: Array, p: Recurrence, starts: Array,
    scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """Run the steps backwards: store the gradients of x, of the hidden part and of the first state.

    `dhidden` is the hidden part's where it differs from x's; `before` is the h from which each row
    was computed.
    """
    if lo >> PHASE_BITS == 0:
        _pack(p, weight, scratch, lo, hi)
        return
    first = lo & PHASE_MASK
    n, width, steps = p.features, p.width, len(starts) - 1
    start = START_ROWS if p.cell == GRU else START_NONE
    for unit in range(first, first + hi - lo):
        begin = unit * p.block
        rows = min(p.block, p.samples - begin)
        for b in range(begin, begin + rows):
            _copy(dstate[b], dlast[b])
        for s in range(steps - 1, -1, -1):
            t = _step_of(p, starts, s)
            count = _samples_at(starts, t, begin, rows)
            if count <= 0:
                continue
            earlier, samples = 0, 0  # the step before and its samples
            if s > 0:
                earlier = _step_of(p, starts, s - 1)
                samples = _samples_at(starts, earlier, begin, rows)
            for i in range(count):
                at, b = starts[t] + begin + i, begin + i
                dh, row = dstate[b][:n], before[at]
                _add(dh, g[at])
                from_step = starts[earlier] + b
                _copy(row, out[from_step] if i < samples else state[b][:n])
                if p.cell == LSTM:
                    cell = notes[from_step][4 * n :] if i < samples else state[b][n:]
                    _lstm_back(dstate[b], dx[at], notes[at], cell, n)
                elif p.cell == GRU:
                    _gru_back(dh, dx[at], dhidden[at], notes[at], row, n)
                elif p.cell == RELU:
                    _back_through_relu(dx[at], dh, out[at])
                else:
                    _back_through_tanh(dx[at], dh, out[at])
            place = starts[t] + begin
            source = address(dhidden) if p.cell == GRU else address(dx)
            _multiply(
                p, source + place * p.gates * p.stored, p.gates, address(scratch),
                address(dstate) + begin * width * p.stored, width, start, count,
            )  # fmt: skip
