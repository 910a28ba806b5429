"""Checkpoints of ranks as one file, and back; one process calls these."""

from __future__ import annotations

import os
from pathlib import Path

from flowvm import serialization
from flowvm.distributed.checkpoint.checkpoint_io import save
from flowvm.errors import ArgumentError, FileError
from flowvm.files import shards
from flowvm.loading.listing import listing, own_names
from flowvm.meta.dtype import dtype_named
from flowvm.meta.meta import TensorMeta
from flowvm.ranks.world import world_size

__dir__ = listing(globals())


def dcp_to_torch_save(
    dcp_checkpoint_dir: str | os.PathLike[str], torch_save_path: str | os.PathLike[str]
) -> None:
    """Write a checkpoint's whole tensors, and all else that it has, as one file that `flow.load`
    reads.  FileError if there is no checkpoint.

    >>> import tempfile
    >>> import flowvm.distributed.checkpoint as dcp
    >>> from flowvm.distributed.checkpoint.format_utils import dcp_to_torch_save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dcp.save({"w": flow.ones(2), "step": 3}, checkpoint_id=folder)
    ...     dcp_to_torch_save(folder, folder + "/one")
    ...     flow.load(folder + "/one")
    {'w': tensor([1., 1.]), 'step': 3}
    """
    folder = Path(dcp_checkpoint_dir)
    if not shards.is_shards(folder):
        raise FileError(f"dcp_to_torch_save: there is no checkpoint in {str(folder)!r}")
    tree, index = shards.contents(folder)
    metas: dict[str, TensorMeta] = {
        name: TensorMeta.of(tuple(about["shape"]), dtype_named(about["dtype"]))
        for name, about in index.items()
    }
    tensors = shards.gathered(folder, index, metas, serialization.load)
    structure = serialization.structure_of(tree, tensors, repr(str(folder)))
    serialization.save(structure, torch_save_path)


def torch_save_to_dcp(
    torch_save_path: str | os.PathLike[str], dcp_checkpoint_dir: str | os.PathLike[str]
) -> None:
    """Write a file's contents as a checkpoint.  The file is one that `flow.load` reads, of
    torch.save too.

    ArgumentError in a program of several ranks, which read and save together.

    >>> import tempfile
    >>> from flowvm.distributed.checkpoint.format_utils import torch_save_to_dcp
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     flow.save({"w": flow.ones(2)}, folder + "/one")
    ...     torch_save_to_dcp(folder + "/one", folder + "/many")
    ...     flow.load(folder + "/many")
    {'w': tensor([1., 1.])}
    """
    if world_size() > 1:
        raise ArgumentError("torch_save_to_dcp: in a program of several ranks, load and save")
    save(serialization.load(torch_save_path), checkpoint_id=dcp_checkpoint_dir)


__all__ = own_names(globals())
