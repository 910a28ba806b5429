"""The buffers of a capture.

A buffer stands for each storage that the code reaches; some results of operations can still be
named.

The tensors that operations make are kept until the capture ends, so a storage's id means one buffer
throughout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from flowvm.eager.global_calls import local_of
from flowvm.eager.interpreter import Operator
from flowvm.eager.tensor import Storage, Tensor
from flowvm.graph.capture.segments import Source
from flowvm.graph.logical.nodes import Buffer, BufferKind, Operand
from flowvm.meta.meta import TensorMeta
from flowvm.private.cpython import HELD, getrefcount
from flowvm.vm.machine.words import OPERAND


def storage_of(tensor: Tensor) -> int:
    """The number of its storage."""
    return tensor._ref & OPERAND.STORAGE_MASK


class Buffers:
    """The buffers of the present segment, by storage.

    whole     the metas of temporaries and of what crosses, whole
    sources   what the segment's inputs are
    rows      the sizes that are known of what mut2 instructions made, by storage
    used      storages that operations read or change; `changed`: those that they change
    owned     storages of constants that they change, for which temporaries stand
    twins     by storage: others that are one memory with it when the graph is called
    """

    def __init__(self) -> None:
        self.by_storage: dict[int, Buffer] = {}
        self.whole: dict[Buffer, TensorMeta] = {}
        self.sources: dict[Buffer, Source] = {}
        self.rows: dict[int, int] = {}
        self._inputs: dict[int, tuple[Source, Operand]] = {}  # of the call, by buffer number
        self.used: set[int] = set()
        self.changed: set[int] = set()
        self.owned: set[int] = set()
        self.twins: dict[int, list[Storage]] = {}
        self._steps: dict[Buffer, int] = {}  # of operands in these buffers, in repeated nodes
        self._owners: list[object] = []
        # by storage, what keeps them alive and their metas
        self._constants: dict[int, tuple[object, TensorMeta]] = {}

    def of(self, tensor: Tensor) -> Buffer | None:
        """The one that stands for `tensor`'s storage, if there is one."""
        return self.by_storage.get(storage_of(tensor))

    def new(self, kind: BufferKind, tensor: Tensor, name: str) -> Buffer:
        """Another one, for a storage that has none."""
        buffer = Buffer(len(self.by_storage), kind, 0, name)
        self.by_storage[storage_of(tensor)] = buffer
        return buffer

    def input(self, tensor: Tensor, name: str, number: int) -> Operand:
        """Make the operand of the call's input of this number, as a whole."""
        buffer = self.new(BufferKind.INPUT, tensor, name)
        self._owners.append(tensor.storage())
        operand = Operand(buffer, tensor._ref >> OPERAND.STORAGE_BITS, local_of(tensor._meta))
        buffer.nbytes = operand.end
        source = self.sources[buffer] = ("input", number)
        self._inputs[buffer.number] = source, operand
        return operand

    def fresh(self, tensor: Tensor, meta: TensorMeta) -> Operand:
        """Make the operand of an operation's output."""
        self._owners.append(tensor)
        buffer = self.new(BufferKind.TEMPORARY, tensor, "")
        buffer.nbytes = meta.span
        self.whole[buffer] = meta
        return Operand(buffer, 0, meta)

    def variable(self, tensor: Tensor, name: str) -> Buffer:
        """The one that stands for `tensor`, which is a variable of this name if it is new."""
        known = self.of(tensor)
        if known is not None:
            return known
        known_values = storage_of(tensor) in self._constants
        buffer = self.new(BufferKind.VARIABLE, tensor, name or ("constant" if known_values else ""))
        buffer.held = tensor.storage()
        buffer.nbytes = (tensor._ref >> OPERAND.STORAGE_BITS) + local_of(tensor._meta).span
        return buffer

    def constant(self, tensor: Tensor) -> None:
        """The values of `tensor` come from Python: see Capture."""
        self._constants[storage_of(tensor)] = tensor.storage(), tensor._meta

    def copied(self, tensor: Tensor) -> tuple[Operand, Operand] | None:
        """Return a constant that is changed for the first time, and the temporary in its place now.

        Return None if `tensor` is no constant, or was changed before.
        """
        storage = storage_of(tensor)
        known = self._constants.get(storage)
        if known is None:
            return None
        source = self.variable(tensor, "")
        del self._constants[storage]
        source.nbytes = max(source.nbytes, known[1].span)
        copy = self.fresh(tensor, known[1])
        self.by_storage[-1 - len(self.by_storage)] = source  # a number is given once
        self.owned.add(storage)
        return Operand(source, 0, known[1]), copy

    def place(self, tensor: Tensor) -> Operand:
        """Return the operand of `tensor`: in a buffer that exists, or in a variable from now on."""
        buffer = self.variable(tensor, "")
        step = self._steps.get(buffer, 0)
        meta = local_of(tensor._meta)
        operand = Operand(buffer, tensor._ref >> OPERAND.STORAGE_BITS, meta, step)
        if buffer.kind is not BufferKind.TEMPORARY:
            buffer.nbytes = max(buffer.nbytes, operand.end)
        return operand

    def move(self, tensor: Tensor, step: int) -> None:
        """See `Capture.move`."""
        self._steps[self.by_storage[storage_of(tensor)]] = step

    def stand_for(self, inputs: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
        """Let inputs stand for the tensors of a call, some of which may share memory.

        A change under one name counts a version of all names.
        """
        same: dict[int, list[Storage]] = {}
        for own, real in zip(inputs, tensors, strict=True):
            same.setdefault(storage_of(real), [real.storage()]).append(own.storage())
        for storages in same.values():
            for one in storages:
                self.twins[one.id] = [other for other in storages if other is not one]

    def is_repeated(self, tensor: Tensor) -> bool:
        """Return True if `tensor` is another one in each repetition."""
        buffer = self.of(tensor)
        return buffer is not None and (
            buffer.kind is BufferKind.TEMPORARY or self._steps.get(buffer, 0) != 0
        )

    def holds(self, tensor: Tensor) -> bool:
        """Return True if a captured operation made `tensor`."""
        buffer = self.of(tensor)
        return buffer is not None and (buffer.kind is BufferKind.TEMPORARY or buffer.crosses)

    def use(self, inputs: Iterable[Tensor], changed: Iterable[Tensor]) -> None:
        """An operation reads `inputs` and changes `changed` in place."""
        written = {storage_of(t) for t in changed}
        for storage in written:
            for other in self.twins.get(storage, ()):
                if other.id in self.by_storage:  # else nobody has reached it by that name
                    other.version += 1
        self.changed |= written
        self.used |= written | {storage_of(t) for t in inputs}

    def go_on(self, alive: set[int], rows: dict[int, int]) -> list[Operand]:
        """Make buffers for the segment behind one, with the values in `alive`; return its inputs.

        They are the inputs of the call and the values that cross. `rows` are the sizes found, by
        number.
        """
        inputs, metas = [], self.whole
        self.sources, self.whole = {}, {}
        for storage, old in self.by_storage.items():
            temporary = old.kind is BufferKind.TEMPORARY or old.crosses
            if temporary and old.number not in alive:
                continue
            buffer = self.by_storage[storage] = replace(old)
            if temporary:
                meta = metas[old]
                if old.number in rows:
                    self.rows[storage] = rows[old.number]
                    meta = meta.with_shape((rows[old.number], *meta.shape[1:]))
                buffer.kind, buffer.crosses, buffer.nbytes = BufferKind.INPUT, True, meta.span
                self.sources[buffer] = ("value", buffer.number)
                self.whole[buffer] = meta
                inputs.append(Operand(buffer, 0, meta))
            elif old.kind is BufferKind.INPUT:
                self.sources[buffer], operand = self._inputs[old.number]
                inputs.append(replace(operand, buffer=buffer))
        return inputs

    def reachable(self) -> set[Buffer]:
        """Return the buffers made by operations that code can still name: by tensors, views,
        autograd.

        Nothing else may hold the tensors that are kept: their references are counted.
        """
        values = set()
        for owner in self._owners:
            if isinstance(owner, Tensor):
                own = getrefcount(owner) > HELD
                if own or (owner._storage is not None and getrefcount(owner._storage) > HELD - 1):
                    values.add(self.by_storage[storage_of(owner)])
        return values


class Border:
    """The operands of the present segment's mut2 instructions, which run behind all others."""

    def __init__(self) -> None:
        self.reads: set[Buffer] = set()
        self.makes: set[Buffer] = set()

    def add(self, read: Iterable[Operand], outputs: Iterable[Operand]) -> None:
        """Add the operands of a mut2 instruction."""
        self.reads.update(operand.buffer for operand in read)
        self.makes.update(operand.buffer for operand in outputs)

    def clear(self) -> None:
        """Forget the operands: another segment begins."""
        self.reads.clear()
        self.makes.clear()

    def is_in_front_of(
        self,
        op: Operator,
        inputs: tuple[Tensor, ...],
        written: tuple[Tensor, ...],
        buffers: Buffers,
    ) -> bool:
        """Return True if an operation reads what mut2 instructions make, or changes their
        inputs.
        """
        if not self.makes:
            return False
        named = zip(op.signature.inputs, inputs, strict=True)
        changes = {
            buffers.of(t) for t in (*written, *(t for n, t in named if n in op.signature.writes))
        }
        reads = {buffers.of(t) for t in inputs}
        return bool(reads & self.makes or changes & (self.reads | self.makes))
