"""Checks of ranks on two hosts, two on each: `checks.py` runs them there."""

from pathlib import Path

import pytest

import flowvm as flow
import flowvm.distributed as dist
import flowvm.distributed.checkpoint as dcp
from flowvm.errors import CommunicationError, FileError
from flowvm.ranks.launch_env import launch_name
from flowvm.ranks.world import rank, world, world_size

RANK, SIZE = rank(), world_size()


def check_ranks_know_their_hosts():
    if not dist.is_initialized():
        dist.init_process_group()
    assert (world().hosts, SIZE) == (2, 4)
    assert dist.get_node_local_rank() == RANK % 2
    assert sorted(world().boards) == [RANK // 2 * 2, RANK // 2 * 2 + 1]
    common = [None] * SIZE
    dist.all_gather_object(common, (launch_name(), flow.initial_seed()))
    assert len({*common}) == 1


def check_a_folder_of_one_host_is_refused():
    dist.barrier()
    where = Path("/dev/shm/step")  # each host has its own
    kind = FileError if RANK >= 2 else CommunicationError
    for save in (dcp.save, dcp.async_save):
        with pytest.raises(kind, match="does not see" if RANK >= 2 else "rank 3 raised an error"):
            save({"x": flow.ones(2)}, checkpoint_id=where)
        dist.barrier()
    assert where.exists() == (RANK < 2)
    assert not [*where.parent.glob("step/*")]
