"""Hooks that average gradients, in their own dtype or in a shorter one.

    ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)

The state is a group, None for all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.futures import Future
from flowvm.loading.listing import listing, own_names
from flowvm.meta.dtype import DType, bfloat16, float16
from flowvm.nn.parallel.distributed import GradBucket
from flowvm.ops.collectives.collectives import all_reduce_
from flowvm.ranks.world import Group

__dir__ = listing(globals())
Hook = Callable[[Any, GradBucket], Future[Tensor]]


def _completed(value: Tensor) -> Future[Tensor]:
    """A Future of a tensor that is issued: who reads it waits."""
    future: Future[Tensor] = Future()
    future.set_result(value)
    return future


def allreduce_hook(process_group: Any, bucket: GradBucket) -> Future[Tensor]:
    """Average the gradients, as without a hook.

    >>> from flowvm.distributed.algorithms.ddp_comm_hooks import default_hooks
    >>> ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    >>> ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    """
    return _completed(all_reduce_(bucket.buffer(), "mean", Group.of(process_group)))


def _compressed(process_group: Any, bucket: GradBucket, dtype: DType) -> Future[Tensor]:
    members, buffer = Group.of(process_group), bucket.buffer()
    # divided first: the sum of many ranks may be beyond float16
    sent = (buffer / members.size).to(dtype)
    return _completed(all_reduce_(sent, "sum", members).to(buffer.dtype))


def fp16_compress_hook(process_group: object, bucket: GradBucket) -> Future[Tensor]:
    """Average the gradients in float16: half the bytes are sent.

    >>> from flowvm.distributed.algorithms.ddp_comm_hooks import default_hooks
    >>> ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    >>> ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    """
    return _compressed(process_group, bucket, float16)


def bf16_compress_hook(process_group: object, bucket: GradBucket) -> Future[Tensor]:
    """Average the gradients in bfloat16: half the bytes are sent.

    >>> from flowvm.distributed.algorithms.ddp_comm_hooks import default_hooks
    >>> ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    >>> ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    """
    return _compressed(process_group, bucket, bfloat16)


def _wrapped(hook: Hook, dtype: DType) -> Hook:
    def short(state: object, bucket: GradBucket) -> Future[Tensor]:
        whole = bucket.buffer()
        bucket.set_buffer(whole.to(dtype))

        def back(future: Future[Tensor]) -> Tensor:
            value: Any = future.value()
            reduced: Tensor = value[0] if isinstance(value, (list, tuple)) else value
            long: Tensor = reduced.to(whole.dtype)
            return long

        return hook(state, bucket).then(back)

    return short


def fp16_compress_wrapper(hook: Hook) -> Hook:
    """Return `hook` with gradients in float16.

    >>> from flowvm.distributed.algorithms.ddp_comm_hooks import default_hooks
    >>> callable(default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook))
    True
    """
    return _wrapped(hook, float16)


def bf16_compress_wrapper(hook: Hook) -> Hook:
    """Return `hook` with gradients in bfloat16.

    >>> from flowvm.distributed.algorithms.ddp_comm_hooks import default_hooks
    >>> callable(default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook))
    True
    """
    return _wrapped(hook, bfloat16)


__all__ = own_names(globals())
