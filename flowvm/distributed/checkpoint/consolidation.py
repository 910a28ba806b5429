"""Whole tensors of the files that ranks wrote: PyTorch's `_consolidate_hf_safetensors`."""

from __future__ import annotations

from pathlib import Path

from flowvm.distributed.checkpoint.hf_storage import consolidate
from flowvm.files.shards import together
from flowvm.loading.listing import listing, own_names
from flowvm.ranks.world import rank

__dir__ = listing(globals())


def consolidate_safetensors_files(
    input_dir: str, output_dir: str, fqn_to_index_mapping: dict[str, int], num_threads: int = 1
) -> None:
    """Make safetensors files of whole tensors, and their index, of a folder of parts that a
    `HuggingFaceStorageWriter(save_distributed=True)` wrote; one process calls it.

    fqn_to_index_mapping   in which file each tensor goes, numbers from 1

    >>> import tempfile
    >>> import flowvm.distributed.checkpoint as dcp
    >>> from flowvm.distributed.checkpoint.consolidation import consolidate_safetensors_files
    >>> with tempfile.TemporaryDirectory() as parts, tempfile.TemporaryDirectory() as whole:
    ...     writer = dcp.HuggingFaceStorageWriter(parts, save_distributed=True)
    ...     dcp.save({"w": flow.ones(2)}, storage_writer=writer)
    ...     consolidate_safetensors_files(parts, whole, {"w": 1})
    ...     flow.load(whole + "/model-00001-of-00001.safetensors")
    {'w': tensor([1., 1.])}
    """
    consolidate(Path(input_dir), Path(output_dir), fqn_to_index_mapping)


def consolidate_safetensors_files_on_every_rank(
    input_dir: str,
    output_dir: str,
    fqn_to_index_mapping: dict[str, int],
    num_threads: int = 1,
    process_group: object = None,
) -> None:
    """Consolidate safetensors files as `consolidate_safetensors_files` does.  All ranks call this;
    the first rank does the work and the others wait.

    >>> from flowvm.distributed.checkpoint.consolidation import (
    ...     consolidate_safetensors_files_on_every_rank,
    ... )
    """

    def first() -> None:
        if rank() == 0:
            consolidate(Path(input_dir), Path(output_dir), fqn_to_index_mapping)

    together(f"consolidate: {input_dir!r}", first)


__all__ = own_names(globals())
