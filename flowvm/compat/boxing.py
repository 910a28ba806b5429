"""`oneflow.boxing.nccl`: settings of how OneFlow's graphs fuse exchanges of CUDA devices.

Each is taken and changes nothing that a program can see: exchanges are planned by the passes of a
graph (`docs/global-tensors.md`).
"""

from __future__ import annotations


class nccl:  # noqa: N801 - OneFlow's name of a module
    """The settings, by OneFlow's names."""

    @staticmethod
    def _ignore(value: object = True) -> None:
        """Take a setting."""

    set_fusion_threshold_mbytes = set_fusion_max_ops_num = set_stream_num = _ignore
    allow_fuse_all_reduce = enable_use_buffer_to_fuse_all_reduce = enable_all_to_all = _ignore
    enable_use_compute_stream = disable_group_boxing_by_dst_parallel = _ignore
    allow_mixed_fuse = enable_fused_all_reduce = _ignore
