"""The kernels of merged updates: they call the members' kernels for pieces of the tensors.

On a device there is one launch for all of them (`flowvm.ops.updates.cuda.multi_tensor`).

Invariant: the layout of a merged kernel holds the layouts of its members, and nothing else is
pointed to.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from flowvm.compiler import jit
from flowvm.eager.declaration import Invocation
from flowvm.errors import ArgumentError
from flowvm.graph.passes.multi_tensor import Merged
from flowvm.loading.lazy import lazy
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.cpu.walk import OPERANDS_AT, stack_memory
from flowvm.vm.machine.lang import call_kernel, load_word, store_word
from flowvm.vm.machine.words import ARG

if TYPE_CHECKING:
    from flowvm.cuda.launch import CudaLaunch
    from flowvm.ops.declare.cuda import lowering
    from flowvm.ops.updates.cuda import multi_tensor
else:
    lowering = lazy("flowvm.ops.declare.cuda.lowering")
    multi_tensor = lazy("flowvm.ops.updates.cuda.multi_tensor")


WORDS_ONLY = True


def lower_each(
    merged: Merged, kinds: str, metas: tuple[TensorMeta, ...], attrs: Attrs
) -> Invocation:
    """The members' kernels in one.

    A unit is one chunk of a large member, or several small members whole.  Layout words: for each
    unit where its pieces begin, and behind the last; the pieces (member, lo, hi); the members
    (kernel, operands and scalars in number and where each is among the arguments, layout).
    """
    if [type(each) for each in attrs] != [tuple, tuple]:
        raise ArgumentError(
            f"{merged.name}: attributes must be two tuples, the members' attributes and their "
            f"numbers' places, got {str(attrs)[:80]}"
        )
    all_attrs, numbers_of = attrs
    if (invocation := merged.lowered.get((metas, attrs))) is not None:
        return invocation
    outs = len(merged.signature.outputs) // merged.count
    lowered = [
        merged.base.kernel.lower(tuple(own), own_attrs)
        for own, own_attrs in zip(merged.per_member(metas), all_attrs, strict=True)
    ]
    for own, places in zip(lowered, numbers_of, strict=True):
        if own.scratch or own.phases or min(own.units, *places, 0) < 0:
            raise ArgumentError(
                f"{merged.name}: {merged.base.name} cannot be merged: a member has scratch memory, "
                f"phases, or a number at a negative place"
            )
        expected = own.scalar_pack[::-1] or merged.base.signature.scalar_kinds
        if [kinds[i] for i in places] != list(expected):
            raise ArgumentError(
                f"{merged.name}: its numbers have the types {kinds!r}, not {expected!r}"
            )
    units = _units([(own.units, max(1, own.grain)) for own in lowered])
    pieces = [piece for unit in units for piece in unit]
    begins = np.cumsum([0, *map(len, units)])
    first_piece = len(begins)
    first_member = first_piece + 3 * len(pieces)
    words: list[int] = []
    place: list[int] = []
    for k, (own, places) in enumerate(zip(lowered, numbers_of, strict=True)):
        place.append(first_member + len(words))
        args = merged.operands_of(k)
        args += (len(merged.signature.outputs) + len(merged.signature.inputs) + i for i in places)
        words += [own.kernel, len(args), *args, *own.layout.tolist()]
    head = [first_piece + 3 * int(b) for b in begins]
    table = [word for m, lo, hi in pieces for word in (place[m], lo, hi)]
    layout = np.array([*head, *table, *words], np.int64)
    metas_out = tuple(meta for own in lowered for meta in own.outputs) if outs else ()
    result = Invocation(metas_out, _kernel(), layout, len(units), 1, scalar_pack=kinds[::-1])
    merged.lowered[metas, attrs] = result
    return result


def launch_each(merged: Merged, metas: tuple[TensorMeta, ...], attrs: Attrs) -> CudaLaunch:
    """The members' launches on CUDA in one."""
    all_attrs, numbers_of = attrs
    members = [
        lowering.launch_of(merged.base, tuple(own), own_attrs)
        for own, own_attrs in zip(merged.per_member(metas), all_attrs, strict=True)
    ]
    return multi_tensor.merged(
        members, [merged.operands_of(k) for k in range(merged.count)], numbers_of
    )


Piece = tuple[int, int, int]  # a member, and from where to where in its units


def _units(sizes: Sequence[tuple[int, int]]) -> list[list[Piece]]:
    """Units of about equal work: each (units, grain) cut into chunks, small ones together."""
    units: list[list[Piece]] = []
    room = 0.0
    for member, (count, grain) in enumerate(sizes):
        for lo in range(0, count, grain):
            hi = min(lo + grain, count)
            part = (hi - lo) / grain
            if part > room:
                units.append([])
                room = 1.0
            units[-1].append((member, lo, hi))
            room -= part
    return units


def run_pieces(args: int, layout: int, lo: int, hi: int, arena: int) -> int:
    """The kernel: the pieces of the units [lo, hi), each with arguments as its own kernel has them.

    A member's arguments are laid out on the stack: its details, no scratch, the stream, then its
    operands and scalars.
    """
    own = stack_memory()
    for k in range(ARG.N_DETAILS):
        store_word(own + 8 * k, 0)
    store_word(own + 8 * (ARG.HEADER - 2), 0)
    store_word(own + 8 * (ARG.HEADER - 1), load_word(args + 8 * (ARG.HEADER - 1)))
    piece = layout + 8 * load_word(layout + 8 * lo)
    end = layout + 8 * load_word(layout + 8 * hi)
    while piece < end:
        member = layout + 8 * load_word(piece)
        count = load_word(member + 8)
        for k in range(count):
            place = load_word(member + 16 + 8 * k)
            store_word(own + 8 * (OPERANDS_AT + k), load_word(args + 8 * (OPERANDS_AT + place)))
        status = call_kernel(
            load_word(member), own, member + 16 + 8 * count,
            load_word(piece + 8), load_word(piece + 16), arena,
        )  # fmt: skip
        if status != 0:
            for k in range(ARG.N_DETAILS):
                store_word(args + 8 * k, load_word(own + 8 * k))
            return status
        piece += 24
    return 0


@functools.cache
def _kernel() -> int:
    return jit.native(run_pieces, "int32(int64, int64, int64, int64, int64)")
