"""`DistributedDataParallel`: each rank runs the module on its part of a batch, and gradients are
averaged while backward still runs.

Parameters lie in buckets, the last ones first, as backward reaches them.  When the last gradient of
a bucket is there, its gradients become one tensor, whose sum over the ranks is one instruction on
the lane of collectives: it runs beside what backward computes next, and whoever reads a gradient
waits for it by its operands.  So nothing is to be done at the end of backward.

Buckets are reduced in their order, whatever the order in which they are complete, or ranks whose
backward differs would not meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from flowvm.autograd.hooks import RemovableHandle
from flowvm.eager.modes import grad_enabled, recording
from flowvm.eager.nodes import OutputEdge
from flowvm.eager.tensor import Tensor, alias
from flowvm.errors import ArgumentError, AutogradError, CommunicationError
from flowvm.guards.regions import reverting
from flowvm.nn.module import Module
from flowvm.ops.collectives.collectives import all_reduce_, broadcast_
from flowvm.ops.shapes.create import tensor as new_tensor
from flowvm.ops.shapes.fill import zeros_like
from flowvm.ops.shapes.join import cat
from flowvm.ranks.world import Group

FIRST_MB = 1.0  # of a bucket: the first is small, so that the others begin early
MOST_MB = {"cpu": 1.0, "cuda": 25.0}


class Bucket:
    """Parameters whose gradients are reduced together."""

    def __init__(self, members: list[Tensor]) -> None:
        self.members = members
        self.metas = [p._meta.dense() for p in members]
        self.flat = [meta.with_shape((meta.numel,)) for meta in self.metas]
        self.starts = [0, *accumulate(meta.nbytes for meta in self.metas)][:-1]

    def reduce(self, group: Group) -> None:
        """Average the gradients over the ranks.  They are views of one tensor afterwards."""
        grads = [zeros_like(p) if p.grad is None else p.grad.detach() for p in self.members]
        grads = [g.contiguous() for g in grads]
        if len(grads) == 1:
            self.members[0].grad = all_reduce_(grads[0], "mean", group)
            return
        parts = [alias(g, flat) for g, flat in zip(grads, self.flat, strict=True)]
        whole = all_reduce_(cat(parts), "mean", group)
        for p, meta, start in zip(self.members, self.metas, self.starts, strict=True):
            p.grad = alias(whole, meta, start)


class _Backward:
    """Progress of the present backward; captured graphs do not watch it."""

    def __init__(self) -> None:
        self.waited: set[int] = set()  # parameters whose gradients are to come, by id
        self.unused: set[int] = set()  # those that the output does not depend on
        self.reduced = 0  # buckets
        self.expected = False  # whether a forward has prepared it


# public: nn.parallel
class DistributedDataParallel(Module):
    """Calls `module`, which lies in it by that name; `backward` leaves the same gradients on every
    rank: the mean of what each has computed.

    process_group           a group of `flow.distributed.new_group`, None for all ranks
    broadcast_buffers       before each forward in training, buffers become those of the first rank
    init_sync               parameters become those of the first rank now, and with
                            `broadcast_buffers` the buffers
    bucket_cap_mb           how large a bucket is at most; where it is not given 25, as PyTorch has
                            it, for CUDA devices, and 1 for CPUs, where a larger exchange is no
                            quicker for its size and a small one begins before backward ends
    bucket_size             OneFlow's: parameters of a bucket at most, without `use_bucket` one;
                            then those that an output does not depend on have gradients of zeros
    find_unused_parameters  parameters that an output does not depend on count as done; with
                            static_graph, too.  The gradients of those that no rank has used stay
                            what they are

    The other arguments are taken: flowvm has one device a rank, and gradients are views of buckets
    anyway.  Attributes of the module are seen through this one.  ArgumentError for a module with
    neither parameters that require gradients nor buffers; a module that is another one on another
    rank is a CommunicationError where that is seen.

    >>> model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    >>> list(model.state_dict())
    ['module.weight', 'module.bias']
    """

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        process_group: Group | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        *,
        bucket_size: int | None = None,
        use_bucket: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(module, Module):
            raise ArgumentError(f"DistributedDataParallel: expected a Module, got {module!r}")
        wanted = [p for p in module.parameters() if p.requires_grad]
        if not wanted and next(module.buffers(), None) is None:
            raise ArgumentError(
                "DistributedDataParallel is not needed when a module doesn't have any parameters "
                "that require a gradient"
            )
        if bucket_cap_mb is not None and not bucket_cap_mb > 0:
            raise ArgumentError(f"bucket_cap_mb is above 0, got {bucket_cap_mb}")
        if bucket_size is not None and bucket_size < 1:
            raise ArgumentError(f"bucket_size is 1 or more, got {bucket_size}")
        if device_ids is not None and len(set(device_ids)) > 1:
            raise ArgumentError(
                f"DistributedDataParallel: a rank has one device, got device_ids {device_ids}"
            )
        self.module = module
        self.device_ids, self.output_device, self.dim = device_ids, output_device, dim
        self.broadcast_buffers = broadcast_buffers
        self._zeros_unused = bucket_size is not None
        self.find_unused_parameters = find_unused_parameters or static_graph or self._zeros_unused
        self.static_graph = static_graph
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.require_backward_grad_sync = True
        self.process_group = Group.of(process_group)
        kind = wanted[0].device.type if wanted else "cpu"
        cap = MOST_MB[kind] if bucket_cap_mb is None else bucket_cap_mb
        count = bucket_size if use_bucket else 1
        self._buckets = _buckets(wanted, min(FIRST_MB, cap), cap, count) if wanted else []
        self._bucket_of = {id(p): k for k, b in enumerate(self._buckets) for p in b.members}
        self._backward = _Backward()
        self._grad_hooks: list[RemovableHandle] = []
        if self.process_group.size > 1:
            if init_sync:
                own = module.buffers() if broadcast_buffers else ()
                self._copy_from_first([*module.parameters(), *own])
            hook = partial(_arrived, self)
            self._grad_hooks = [p.register_post_accumulate_grad_hook(hook) for p in wanted]

    def _copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        first = self.process_group.ranks[0]
        for t in tensors:
            broadcast_(t.detach(), first, self.process_group)

    def no_sync(self) -> reverting:
        """Inside, `forward` prepares no reduction: its gradients add up on this rank alone, and are
        reduced with those of the first forward and backward behind it.
        """
        before = self.require_backward_grad_sync
        return reverting(
            partial(setattr, self, "require_backward_grad_sync", before),
            partial(setattr, self, "require_backward_grad_sync", False),
        )

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        syncs = self.require_backward_grad_sync and self.process_group.size > 1
        recorded = syncs and grad_enabled()
        if recorded:
            self._check_finished()
        if syncs and self.broadcast_buffers and self.training:
            self._copy_from_first([*self.module.buffers()])
        out = self.module(*inputs, **kwargs)
        self._backward.expected = recorded
        if recorded:
            self._backward.waited, self._backward.reduced = set(self._bucket_of), 0
            self._backward.unused = set()
            if self.find_unused_parameters:
                self._backward.unused = self._backward.waited - _reached(out)
                self._backward.waited -= self._backward.unused
                self._reduce_complete()
        return out

    def _check_finished(self) -> None:
        if self._backward.expected and 0 < self._backward.reduced < len(self._buckets):
            names = [n for n, p in self.module.named_parameters() if id(p) in self._backward.waited]
            raise CommunicationError(
                "DistributedDataParallel: the last backward gave no gradients for "
                f"{', '.join(names[:5])}{', ...' * (len(names) > 5)}, so other gradients were not "
                "averaged; if the loss does not depend on all parameters, say "
                "find_unused_parameters=True"
            )

    def _arrive(self, p: Tensor) -> None:
        if not self._backward.expected:
            return
        if id(p) not in self._backward.waited:
            raise AutogradError(
                "DistributedDataParallel: a parameter has got a second gradient since forward, "
                "after the first was averaged; call forward before each backward, or keep "
                "gradients apart with no_sync()"
            )
        self._backward.waited.discard(id(p))
        self._reduce_complete()

    def _reduce_complete(self) -> None:
        """Reduce the buckets that are next and complete."""
        while self._backward.reduced < len(self._buckets):
            bucket = self._buckets[self._backward.reduced]
            if any(id(p) in self._backward.waited for p in bucket.members):
                return
            self._backward.reduced += 1
            self._reduce(bucket)
        self._backward.expected = False

    def _reduce(self, bucket: Bucket) -> None:
        with recording(False):
            if not self.find_unused_parameters:
                bucket.reduce(self.process_group)
                return
            # what no rank has used has no gradient, so each rank must know who has
            kept = [p.grad for p in bucket.members]
            used = new_tensor([int(id(p) not in self._backward.unused) for p in bucket.members])
            anywhere = all_reduce_(used, "max", self.process_group).tolist()
            bucket.reduce(self.process_group)
            for p, grad, known in zip(bucket.members, kept, anywhere, strict=True):
                if not known and not self._zeros_unused:
                    p.grad = grad

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__.get("_modules", {}).get("module")
        if module is None or name.startswith("_"):
            return super().__getattribute__(name)
        return getattr(module, name)

    def __getstate__(self) -> dict[str, Any]:
        raise ArgumentError("a DistributedDataParallel is not copied; copy its .module")


def _arrived(ddp: DistributedDataParallel, p: Tensor) -> None:
    ddp._arrive(p)


def _buckets(
    parameters: Sequence[Tensor], first: float, most: float, count: int | None
) -> list[Bucket]:
    """The last parameters first, of one dtype each; `count` of them at most."""
    made: list[Bucket] = []
    members: list[Tensor] = []
    size, room = 0, int(first * (1 << 20))
    for p in reversed(parameters):
        full = len(members) == count or size + p._meta.nbytes > room
        if members and (full or p.dtype is not members[0].dtype):
            made.append(Bucket(members))
            members, size, room = [], 0, int(most * (1 << 20))
        members.append(p)
        size += p._meta.nbytes
    return [*made, Bucket(members)]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists, dicts and objects with fields."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "__dataclass_fields__"):
        yield from tensors_in(vars(value))


def _reached(value: Any) -> set[int]:
    """The leaves, by id, that backward from the tensors in `value` can reach."""
    waiting = [t._node for t in tensors_in(value) if t._node is not None]
    seen: set[int] = set()
    leaves: set[int] = set()
    while waiting:
        node: Any = waiting.pop()
        node = node.node if isinstance(node, OutputEdge) else node
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.is_leaf:
            leaves.add(id(node.tensor()))
        waiting += [edge for edge in node.edges if edge is not None]
    return leaves
