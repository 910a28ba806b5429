"""Training with parameters, gradients and optimizer state cut among ranks: PyTorch's `fully_shard`,
and `FullyShardedDataParallel`, a module around a module by the same mechanism.

Not here: what a global tensor is (`flowvm.ops.placed`), ZeRO of graphs (`flowvm.nn.graph`).
"""

from flowvm.loading.listing import listing

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.distributed.fsdp.policies import (
    BackwardPrefetch, CPUOffload, CPUOffloadPolicy, FullOptimStateDictConfig, FullStateDictConfig,
    MixedPrecision, MixedPrecisionPolicy, OffloadPolicy, OptimStateDictConfig,
    ShardedOptimStateDictConfig, ShardedStateDictConfig, ShardingStrategy, StateDictConfig,
    StateDictSettings, StateDictType,
)
from flowvm.distributed.fsdp.sharding import (
    FSDPModule, UnshardHandle, fully_shard, register_fsdp_forward_method, share_comm_ctx,
)
from flowvm.distributed.fsdp.wrapper import FullyShardedDataParallel

__all__ = [
    "BackwardPrefetch", "CPUOffload", "CPUOffloadPolicy", "FSDPModule", "FullOptimStateDictConfig",
    "FullStateDictConfig", "FullyShardedDataParallel", "MixedPrecision", "MixedPrecisionPolicy",
    "OffloadPolicy", "OptimStateDictConfig", "ShardedOptimStateDictConfig",
    "ShardedStateDictConfig", "ShardingStrategy", "StateDictConfig", "StateDictSettings",
    "StateDictType", "UnshardHandle", "fully_shard", "register_fsdp_forward_method",
    "share_comm_ctx",
]
# fmt: on
# isort: on
# --- by hand


__dir__ = listing(globals())
