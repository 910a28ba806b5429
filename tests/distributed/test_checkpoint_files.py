"""Files of checkpoints and PyTorch's: each library reads the other's."""

import warnings

import numpy as np
import pytest

import flowvm as flow
import flowvm.distributed.checkpoint as dcp
from flowvm.distributed.device_mesh import init_device_mesh
from flowvm.distributed.tensor import Shard, distribute_tensor

A = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)


@pytest.mark.parametrize("parts", [True, False])
def test_safetensors_of_checkpoints_and_pytorch(tmp_path, parts):
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("torch.distributed.checkpoint")
    mesh = init_device_mesh("cpu", (1,))
    ours, peer = tmp_path / "ours", tmp_path / "peer"
    dcp.save(
        {"a": distribute_tensor(flow.tensor(A), mesh, [Shard(0)]), "b": flow.arange(3)},
        storage_writer=dcp.HuggingFaceStorageWriter(ours, save_distributed=parts),
    )
    state = {"a": torch.zeros(5, 3), "b": torch.zeros(3, dtype=torch.int64)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.load(state, storage_reader=theirs.HuggingFaceStorageReader(str(ours)), no_dist=True)
        writer = theirs.HuggingFaceStorageWriter(str(peer), save_distributed=parts)
        theirs.save({"c": state["a"] * 2}, storage_writer=writer, no_dist=True)
    assert np.array_equal(state["a"].numpy(), A)
    assert state["b"].tolist() == [0, 1, 2]
    again = {"c": distribute_tensor(flow.zeros(5, 3), mesh, [Shard(1)])}
    dcp.load(again, storage_reader=dcp.HuggingFaceStorageReader(peer))
    assert np.array_equal(again["c"].full_tensor().numpy(), 2 * A)
