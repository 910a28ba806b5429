"""`flow.distributed`: processes that compute together, under PyTorch's names, by MPI.

    import flowvm.distributed as dist

    dist.init_process_group("mpi")            # in a program run by `flowvm launch -n 4 train.py`
    dist.all_reduce(gradient, op=dist.ReduceOp.AVG)

Here: groups, collectives that change their arguments, objects, messages.  They issue instructions
and return.  A reader of a tensor waits for it, and so does `Work.wait`.

Not here: how ranks exchange (`flowvm.ops.collectives`), ranks themselves (`flowvm.ranks`), modules
that train in parallel (`flowvm.nn.parallel`).
"""

from flowvm.errors import CommunicationError
from flowvm.loading.listing import listing

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.distributed.collectives import (
    all_gather, all_gather_into_tensor, all_reduce, all_to_all, all_to_all_single, barrier,
    broadcast, gather, monitored_barrier, reduce, reduce_scatter, reduce_scatter_tensor, scatter,
)
from flowvm.distributed.groups import (
    Backend, GroupMember, ProcessGroup, ReduceOp, destroy_process_group, get_backend,
    get_default_backend_for_device, get_global_rank, get_group_rank, get_node_local_rank,
    get_process_group_ranks, get_rank, get_world_size, group, init_process_group, is_available,
    is_backend_available, is_gloo_available, is_initialized, is_mpi_available, is_nccl_available,
    is_torchelastic_launched, is_ucc_available, is_xccl_available, new_group,
)
from flowvm.distributed.messages import P2POp, batch_isend_irecv, irecv, isend, recv, send
from flowvm.distributed.objects import (
    all_gather_object, broadcast_object_list, gather_object, scatter_object_list,
)
from flowvm.distributed.restarts import Restart, restart
from flowvm.distributed.works import Work
from flowvm.nn.parallel.distributed import GradBucket

__all__ = [
    "Backend", "DistError", "GradBucket", "GroupMember", "P2POp", "ProcessGroup", "ReduceOp",
    "Restart", "Work", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce",
    "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast",
    "broadcast_object_list", "destroy_process_group", "gather", "gather_object", "get_backend",
    "get_default_backend_for_device", "get_global_rank", "get_group_rank", "get_node_local_rank",
    "get_process_group_ranks", "get_rank", "get_world_size", "group", "init_process_group", "irecv",
    "is_available", "is_backend_available", "is_gloo_available", "is_initialized",
    "is_mpi_available", "is_nccl_available", "is_torchelastic_launched", "is_ucc_available",
    "is_xccl_available", "isend", "monitored_barrier", "new_group", "recv", "reduce",
    "reduce_scatter", "reduce_scatter_tensor", "restart", "scatter", "scatter_object_list", "send",
]
# fmt: on
# isort: on
# --- by hand

DistError = CommunicationError
__dir__ = listing(globals())
