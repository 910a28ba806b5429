"""`oneflow._oneflow_internal`: the few names of OneFlow's C++ module that programs use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from flowvm import cuda, vm
from flowvm.eager.tensor import Tensor as Tensor
from flowvm.errors import FlowError
from flowvm.loading.listing import own_names
from flowvm.loading.missing_names import other_names
from flowvm.ops.collectives.texts import broadcast_bytes


def cpu_broadcast(data: bytes | None, src: int) -> bytes:
    """Return the bytes that rank `src` has, on every rank."""
    return broadcast_bytes(data or b"", src)


eager = SimpleNamespace(Sync=vm.sync, multi_client=SimpleNamespace(Sync=vm.sync))
exception = SimpleNamespace(Exception=FlowError)
flags = SimpleNamespace(with_cuda=cuda.is_available, with_rdma=lambda: False)


def __getattr__(name: str) -> Any:
    return other_names("_oneflow_internal", lambda: own_names(globals()))(name)
