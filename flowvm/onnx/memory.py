"""Memory: the contents of each buffer of a LogicalGraph, as values of ONNX, which has no memory.

A buffer's contents are one value in the order of the storage.  An operand is a view of it:
reshaped, cut, transposed, expanded; or gathered, if these steps cannot make it.  A write in place
makes a new value, from which later views are taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowvm.eager.tensor import new_tensor
from flowvm.errors import ArgumentError
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import DType, int64
from flowvm.meta.meta import TensorMeta
from flowvm.onnx.writer import Writer


class Contents:
    """The present contents of a buffer: a value in the storage's order, its shape, and known
    views.
    """

    def __init__(self, value: str, shape: Sequence[int], dtype: DType) -> None:
        self.value, self.shape, self.dtype = value, tuple(shape), dtype
        self.views: dict[tuple[int, TensorMeta], str] = {}


class Memory:
    """The contents of every buffer, as nodes are translated one after the other."""

    def __init__(self, graph: LogicalGraph, writer: Writer) -> None:
        self.writer = writer
        self._contents: dict[Buffer, Contents] = {}
        self._reads: dict[Buffer, list[Operand]] = {}
        for operand in (*(o for n in graph.nodes for o in n.inputs), *graph.outputs):
            self._reads.setdefault(operand.buffer, []).append(operand)

    def is_read(self, operand: Operand) -> bool:
        """Return True if any node reads this operand's buffer."""
        return operand.buffer in self._reads

    def define(self, operand: Operand, value: str) -> None:
        """Set the whole contents of the operand's buffer to `value`, of its shape."""
        order = _dense_order(operand.meta)
        if order is None:
            raise ArgumentError(f"{operand!r} has gaps: {operand.meta!r}")
        stored = self.writer.transpose(value, order)
        sizes = [operand.meta.shape[d] for d in order]
        contents = Contents(stored, sizes, operand.meta.dtype)
        contents.views[operand.offset, operand.meta] = value
        self._contents[operand.buffer] = contents

    def read(self, operand: Operand) -> str:
        """The value of the operand, in its shape."""
        contents = self._contents.get(operand.buffer)
        if contents is None:
            contents = self._contents[operand.buffer] = self._variable(operand.buffer)
        if contents.dtype is not operand.meta.dtype:
            raise ArgumentError(
                f"bytes of {contents.dtype.name} are looked at as {operand.meta.dtype.name} "
                f"(view(dtype)), which ONNX cannot say; convert with to(dtype)"
            )
        key = operand.offset, operand.meta
        if key not in contents.views:
            contents.views[key] = self._view(contents, operand)
        return contents.views[key]

    def write(self, operand: Operand, value: str) -> None:
        """Write `value`, of the operand's shape, into its place in a buffer that exists."""
        buffer, meta = operand.buffer, operand.meta
        if buffer.kind is not BufferKind.TEMPORARY:
            raise ArgumentError(
                f"{buffer.name or repr(buffer)}, a tensor from outside, is changed in place, and "
                f"an ONNX model keeps nothing from one run to the next; change a clone() of it, "
                f"or call eval() where a module does so while it trains"
            )
        if meta.nbytes == buffer.nbytes and _dense_order(meta) is not None:
            self.define(operand, value)
            return
        w, contents = self.writer, self._contents[buffer]
        flat = w.reshape(contents.value, [-1])
        where = w.constant(places(operand).reshape(-1), int64)
        new = w.op("ScatterElements", flat, where, w.reshape(value, [-1]), axis=0)
        count = buffer.nbytes // meta.dtype.itemsize
        self._contents[buffer] = Contents(new, (count,), meta.dtype)

    # --- variables ------------------------------------------------------------------------------

    def _variable(self, buffer: Buffer) -> Contents:
        """Return the contents of a parameter, or of any tensor from outside."""
        read = self._reads[buffer]
        whole = [o for o in read if not o.offset and o.meta.nbytes == buffer.nbytes]
        whole = [o for o in whole if _dense_order(o.meta) is not None]
        whole.sort(key=lambda o: not o.meta.contiguous)
        dtype = read[0].meta.dtype
        if whole:
            order = _dense_order(whole[0].meta) or []
            meta = whole[0].meta.with_shape([whole[0].meta.shape[d] for d in order])
        else:
            meta = read[0].meta.with_shape((buffer.nbytes // dtype.itemsize,))

        def values() -> Array:
            tensor = new_tensor(buffer.held.id, meta, buffer.held).cpu()
            array = tensor.float().numpy() if dtype.name == "bfloat16" else tensor.numpy()
            return meta.dtype.stored(array)

        name = self.writer.variable(buffer.name or "tensor", buffer.held, meta, values)
        return Contents(name, meta.shape, meta.dtype)

    # --- views ----------------------------------------------------------------------------------

    def _view(self, contents: Contents, operand: Operand) -> str:
        w, meta = self.writer, operand.meta
        shape = tuple(meta.shape)
        if not meta.numel:
            return w.constant(np.zeros(shape), meta.dtype)
        steps = _way(contents.shape, operand)
        if steps is None:
            flat = w.reshape(contents.value, [-1])
            return w.op("Gather", flat, w.constant(places(operand), int64), axis=0)
        value, now = contents.value, contents.shape
        if steps.radix != now:
            value, now = w.reshape(value, steps.radix), steps.radix
        cut = [d for d, (start, size) in enumerate(steps.cuts) if (start, size) != (0, now[d])]
        if cut:
            starts = [steps.cuts[d][0] for d in cut]
            ends = [sum(steps.cuts[d]) for d in cut]
            value = w.op("Slice", value, w.ints(*starts), w.ints(*ends), w.ints(*cut))
        now = tuple(size for _, size in steps.cuts)
        value = w.transpose(value, steps.order)
        now = tuple(now[d] for d in steps.order)
        narrow = tuple(
            1 if s == 0 else n for n, s in zip(shape, meta.stride, strict=True)
        )  # before it is expanded
        if narrow != now:
            value = w.reshape(value, narrow)
        if steps.flipped:
            ends = [-(1 << 62)] * len(steps.flipped)
            starts = [-1] * len(steps.flipped)
            value = w.op(
                "Slice", value, w.ints(*starts), w.ints(*ends), w.ints(*steps.flipped),
                w.ints(*starts),
            )  # fmt: skip
        return value if narrow == shape else w.expand(value, shape)


class _Way:
    """The steps from a storage to a view: reshape to `radix`, cut (start, size) of each dimension,
    permute, flip the dimensions `flipped`.
    """

    def __init__(
        self, radix: tuple[int, ...], cuts: list[tuple[int, int]], order: list[int],
        flipped: list[int],
    ) -> None:  # fmt: skip
        self.radix, self.cuts, self.order, self.flipped = radix, cuts, order, flipped


def _way(stored: tuple[int, ...], operand: Operand) -> _Way | None:
    """Return the steps from a storage of this shape to a view.  None if the view's dimensions
    overlap, or its strides do not divide each other.
    """
    meta = operand.meta
    total = int(np.prod(stored, dtype=np.int64))
    start = operand.offset // meta.dtype.itemsize
    moving = [
        (abs(s), n, d)
        for d, (n, s) in enumerate(zip(meta.shape, meta.stride, strict=True))
        if n > 1 and s
    ]
    flipped = [d for _, _, d in moving if meta.stride[d] < 0]
    for d in flipped:
        start += meta.stride[d] * (meta.shape[d] - 1)
    moving.sort(key=lambda one: -one[0])
    steps = [s for s, _, _ in moving]
    if len(set(steps)) != len(steps):
        return None
    steps = sorted({*steps, 1}, reverse=True)
    if any(a % b for a, b in zip([total, *steps], steps, strict=False)):
        return None
    radix = tuple(a // b for a, b in zip([total, *steps], steps, strict=False))
    sizes = {s: n for s, n, _ in moving}
    cuts = []
    for step, base in zip(steps, radix, strict=True):
        digit, start = divmod(start, step)
        cuts.append((digit, sizes.get(step, 1)))
        if digit + cuts[-1][1] > base:
            return None
    by_dim = sorted(range(len(moving)), key=lambda k: moving[k][2])
    places_of = [steps.index(moving[k][0]) for k in by_dim]
    rest = [k for k in range(len(steps)) if k not in places_of]
    return _Way(radix, cuts, [*places_of, *rest], flipped)


def _dense_order(meta: TensorMeta) -> list[int] | None:
    """The dimensions from the outermost in memory on; None where elements leave gaps or overlap."""
    order = list(range(meta.ndim))
    if meta.contiguous or not meta.numel:
        return order
    order.sort(key=lambda d: (-meta.stride[d], -meta.shape[d], d))
    step = 1
    for d in reversed(order):
        if meta.shape[d] != 1:
            if meta.stride[d] != step:
                return None
            step *= meta.shape[d]
    return order


def places(operand: Operand) -> Array:
    """Return, for each element of the operand, the index of its element in the storage."""
    meta = operand.meta
    indices = np.zeros(tuple(meta.shape), np.int64) + operand.offset // meta.dtype.itemsize
    for d, (n, s) in enumerate(zip(meta.shape, meta.stride, strict=True)):
        along = np.arange(n, dtype=np.int64) * s
        indices += along.reshape([-1 if k == d else 1 for k in range(meta.ndim)])
    return indices
