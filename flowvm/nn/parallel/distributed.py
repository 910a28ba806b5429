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

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from flowvm.autograd.hooks import RemovableHandle
from flowvm.eager.modes import grad_enabled, recording
from flowvm.eager.nodes import OutputEdge
from flowvm.eager.tensor import Tensor, alias
from flowvm.errors import ArgumentError, AutogradError, CommunicationError, ModeError
from flowvm.futures import Future
from flowvm.guards.regions import reverting
from flowvm.meta.formats import strided
from flowvm.nn.module import Module
from flowvm.nn.parallel.joins import Join, Joinable, JoinHook
from flowvm.ops.collectives.collectives import all_reduce_, broadcast_
from flowvm.ops.shapes.create import tensor as new_tensor
from flowvm.ops.shapes.fill import zeros, zeros_like
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

    def reduce(self, average: Callable[[Tensor], Tensor]) -> None:
        """Average the gradients over the ranks.  They are views of one tensor afterwards."""
        grads = [zeros_like(p) if p.grad is None else p.grad.detach() for p in self.members]
        if any(g.layout is not strided for g in grads):
            raise ModeError(
                "DistributedDataParallel does not average sparse gradients; give the embedding "
                "sparse=False"
            )
        grads = [g.contiguous() for g in grads]
        parts = [alias(g, flat) for g, flat in zip(grads, self.flat, strict=True)]
        whole = average(cat(parts) if len(parts) > 1 else parts[0])
        for p, meta, start in zip(self.members, self.metas, self.starts, strict=True):
            p.grad = alias(whole, meta, start)

    def zeros(self) -> Tensor:
        """Return zeros for a rank without gradients."""
        whole: Tensor = zeros(sum(meta.numel for meta in self.metas), dtype=self.metas[0].dtype,
                              device=self.metas[0].device)  # fmt: skip
        return whole


# public: distributed
class GradBucket:
    """The gradients of some parameters, as a hook of `register_comm_hook` gets them.

    >>> ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    >>> bucket = flow.distributed.GradBucket(ddp._buckets, 0, flow.arange(3.0))
    >>> bucket.index(), bucket.is_last(), [g.shape for g in bucket.gradients()]
    (0, True, [flow.Size([1, 2]), flow.Size([1])])
    """

    def __init__(self, buckets: Sequence[Bucket], number: int, buffer: Tensor) -> None:
        self._all, self._number, self._buffer = buckets, number, buffer

    def index(self) -> int:
        """The number of the bucket, in the order in which they are reduced."""
        return self._number

    def is_last(self) -> bool:
        """Return True if no bucket of this backward follows."""
        return self._number == len(self._all) - 1

    def buffer(self) -> Tensor:
        """All gradients in one tensor of one dimension."""
        return self._buffer

    def set_buffer(self, buffer: Tensor) -> None:
        """Replace the gradients."""
        self._buffer = buffer

    def parameters(self) -> list[Tensor]:
        """The parameters whose gradients they are."""
        return list(self._all[self._number].members)

    def gradients(self) -> list[Tensor]:
        """The gradients, as views of the buffer."""
        own = self._all[self._number]
        return [alias(self._buffer, m, at) for m, at in zip(own.metas, own.starts, strict=True)]


class _Backward:
    """Progress of the present backward; captured graphs do not watch it."""

    def __init__(self) -> None:
        self.waited: set[int] = set()  # parameters whose gradients are to come, by id
        self.unused: set[int] = set()  # those that the output does not depend on
        self.reduced = 0  # buckets
        self.expected = False  # whether a forward has prepared it


# public: nn.parallel
class DistributedDataParallel(Module, Joinable):
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
        parameters = [p for p in module.parameters() if p.requires_grad]
        if not parameters and next(module.buffers(), None) is None:
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
        kind = parameters[0].device.type if parameters else "cpu"
        cap = MOST_MB[kind] if bucket_cap_mb is None else bucket_cap_mb
        count = bucket_size if use_bucket else 1
        self._buckets = _buckets(parameters, min(FIRST_MB, cap), cap, count) if parameters else []
        self._bucket_of = {id(p): k for k, b in enumerate(self._buckets) for p in b.members}
        self._backward = _Backward()
        self._grad_hooks: list[RemovableHandle] = []
        self._divides_by_all = True  # in a region of `join`
        self._comm_hook: tuple[Any, Callable[[Any, GradBucket], Any]] | None = None
        if self.process_group.size > 1:
            if init_sync:
                own = module.buffers() if broadcast_buffers else ()
                self._copy_from_first([*module.parameters(), *own])
            hook = partial(_arrived, self)
            self._grad_hooks = [p.register_post_accumulate_grad_hook(hook) for p in parameters]

    def _copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        self._copy_from(self.process_group.ranks[0], tensors)

    def _copy_from(self, rank: int, tensors: Iterable[Tensor]) -> None:
        for t in tensors:
            broadcast_(t.detach(), rank, self.process_group)

    def _copy_buffers(self) -> None:
        first = self.process_group.ranks[0]
        self._copy_from(first if self._join is None else self._join.authority,
                        self.module.buffers())  # fmt: skip

    def register_comm_hook(self, state: object, hook: Callable[[Any, GradBucket], Any]) -> None:
        """Let `hook(state, bucket)` reduce each bucket: it returns the gradients of all ranks, one
        tensor like `bucket.buffer()`, or a Future of it.  What it returns is not divided.

        `flow.distributed.algorithms.ddp_comm_hooks` has some.  ArgumentError for a second hook, or
        one that cannot be called.
        """
        if not callable(hook):
            raise ArgumentError(f"register_comm_hook: hook is a function, got {hook!r}")
        if self._comm_hook is not None:
            raise ArgumentError("register_comm_hook: there is a hook already")
        self._comm_hook = (state, hook)

    def _average(self, number: int, whole: Tensor) -> Tensor:
        """The mean of a bucket's gradients over the ranks, or what the hook makes of them."""
        if self._comm_hook is not None:
            state, hook = self._comm_hook
            reduced = hook(state, GradBucket(self._buckets, number, whole))
            reduced = reduced.wait() if isinstance(reduced, Future) else reduced
            reduced = reduced[0] if isinstance(reduced, (list, tuple)) else reduced
            if not isinstance(reduced, Tensor) or reduced._meta.numel != whole._meta.numel:
                raise ArgumentError(
                    f"register_comm_hook: the hook returns a tensor of {whole._meta.numel} "
                    f"elements, or a Future of one, got {reduced!r}"
                )
            mean: Tensor = reduced.detach().to(whole.dtype).contiguous()
            return mean
        if self._join is None or self._divides_by_all:
            return all_reduce_(whole, "mean", self.process_group)
        total: Tensor = all_reduce_(whole, "sum", self.process_group)
        return total.div_(sum(self._join.active))

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """Return a region in which ranks may have different numbers of inputs: see `Join`.

        divide_by_initial_world_size  gradients are divided by the number of all ranks; False: by
                                      the number of those that still compute
        """
        return Join(
            [self], enable, throw_on_early_termination,
            divide_by_initial_world_size=divide_by_initial_world_size,
        )  # fmt: skip

    def join_hook(self, **kwargs: object) -> JoinHook:
        """The hook of a rank that is done: buckets of zeros, then the last rank's values."""
        self._divides_by_all = bool(kwargs.get("divide_by_initial_world_size", True))
        return _Joined(self)

    @property
    def join_process_group(self) -> Group:
        """The group whose ranks average gradients."""
        return self.process_group

    @property
    def join_device(self) -> Any:
        """The device of the parameters."""
        return next(self.module.parameters()).device

    def no_sync(self) -> reverting:
        """Inside, `forward` prepares no reduction: its gradients add up on this rank alone, and are
        reduced with those of the first forward and backward behind it.
        """
        before = self.require_backward_grad_sync
        return reverting(
            partial(setattr, self, "require_backward_grad_sync", before),
            partial(setattr, self, "require_backward_grad_sync", False),
        )

    def forward(self, *inputs: object, **kwargs: object) -> Any:
        syncs = self.require_backward_grad_sync and self.process_group.size > 1
        recorded = syncs and grad_enabled()
        if recorded:
            self._check_finished()
            if self._join is not None:
                Join.notify_join_context(self)
        if syncs and self.broadcast_buffers and self.training:
            self._copy_buffers()
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
            self._reduce(bucket, self._backward.reduced - 1)
        self._backward.expected = False

    def _reduce(self, bucket: Bucket, number: int) -> None:
        average = partial(self._average, number)
        with recording(False):
            if not self.find_unused_parameters:
                bucket.reduce(average)
                return
            # what no rank has used has no gradient, so each rank must know who has
            gradients = [p.grad for p in bucket.members]
            used = new_tensor([int(id(p) not in self._backward.unused) for p in bucket.members])
            anywhere = all_reduce_(used, "max", self.process_group).tolist()
            bucket.reduce(average)
            for p, grad, known in zip(bucket.members, gradients, anywhere, strict=True):
                if not known and not self._zeros_unused:
                    p.grad = grad

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__.get("_modules", {}).get("module")
        if module is None or name.startswith("_"):
            return super().__getattribute__(name)
        return getattr(module, name)

    def __getstate__(self) -> dict[str, Any]:
        raise ArgumentError("a DistributedDataParallel is not copied; copy its .module")


class _Joined(JoinHook):
    """The exchanges of a step of a DistributedDataParallel on a rank without an input."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.ddp = ddp

    def main_hook(self) -> None:
        """Make a step's exchanges with zeros."""
        ddp = self.ddp
        join: Any = ddp._join
        with recording(False):
            if ddp.broadcast_buffers and ddp.training:
                ddp._copy_from(join.authority, ddp.module.buffers())
            for number, bucket in enumerate(ddp._buckets):
                if ddp.find_unused_parameters:
                    all_reduce_(new_tensor([0] * len(bucket.members)), "max", ddp.process_group)
                ddp._average(number, bucket.zeros())

    def post_hook(self, is_last_joiner: bool) -> None:
        """Take the parameters and buffers of the last rank that has computed."""
        ddp = self.ddp
        join: Any = ddp._join
        ddp._copy_from(join.last, [*ddp.module.parameters(), *ddp.module.buffers()])


def _arrived(ddp: DistributedDataParallel, p: Tensor) -> None:
    ddp._arrive(p)


def _buckets(
    parameters: Sequence[Tensor], first: float, most: float, count: int | None
) -> list[Bucket]:
    """The last parameters first, of one dtype each; `count` of them at most."""
    buckets: list[Bucket] = []
    members: list[Tensor] = []
    size, room = 0, int(first * (1 << 20))
    for p in reversed(parameters):
        full = len(members) == count or size + p._meta.nbytes > room
        if members and (full or p.dtype is not members[0].dtype):
            buckets.append(Bucket(members))
            members, size, room = [], 0, int(most * (1 << 20))
        members.append(p)
        size += p._meta.nbytes
    return [*buckets, Bucket(members)]


def tensors_in(value: object) -> Iterator[Tensor]:
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
    visited: set[int] = set()
    leaves: set[int] = set()
    while waiting:
        node: Any = waiting.pop()
        node = node.node if isinstance(node, OutputEdge) else node
        if id(node) in visited:
            continue
        visited.add(id(node))
        if node.is_leaf:
            leaves.add(id(node.tensor()))
        waiting += [edge for edge in node.edges if edge is not None]
    return leaves
