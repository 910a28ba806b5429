"""Checks of checkpoints that ranks write and read together: `checks.py` runs them."""

import atexit
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import sharded

import flowvm as flow
import flowvm.distributed as dist
import flowvm.distributed.checkpoint as dcp
import flowvm.distributed.checkpoint.state_dict as sd
import flowvm.distributed.tensor as dt
from flowvm import nn
from flowvm.distributed.checkpoint.consolidation import (
    consolidate_safetensors_files,
    consolidate_safetensors_files_on_every_rank,
)
from flowvm.distributed.fsdp import fully_shard
from flowvm.distributed.tensor import DTensor, Partial, Replicate, Shard
from flowvm.ranks.world import rank, world_size

RANK, SIZE = rank(), world_size()


def folder() -> Path:
    """A new one, the first rank's, on all ranks."""
    mesh()
    results = [tempfile.mkdtemp(prefix="flowvm-checkpoint-") if RANK == 0 else None]
    dist.broadcast_object_list(results, 0)
    if RANK == 0:
        atexit.register(shutil.rmtree, results[0])
    return Path(results[0])


def mesh():
    return dt.init_device_mesh("cpu", (SIZE,))


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def distributed(a: np.ndarray, *placements) -> flow.Tensor:
    return dt.distribute_tensor(flow.tensor(a), mesh(), list(placements))


class Counter:
    """Stateful."""

    def __init__(self, count: int) -> None:
        self.count = count

    def state_dict(self):
        return {"count": self.count, "square": flow.tensor(float(self.count**2))}

    def load_state_dict(self, state):
        self.count, self.square = state["count"], state["square"].item()


def check_checkpoints_are_read_as_they_are_wanted():
    where = folder() / "new" / "step"
    a, b = numbers(2 * SIZE + 1, 3), numbers(4, 4, seed=1)
    state = {
        "a": distributed(a, Shard(0)), "nested": {"b": [distributed(b, Shard(1)), 7]},
        "same": distributed(b, Replicate()), "local": flow.arange(3), "counter": Counter(5),
        "text": "x",
    }  # fmt: skip
    dcp.save(state, checkpoint_id=where)
    again = {
        "a": distributed(0 * a, Shard(1)).to(flow.float64),
        "nested": {"b": [flow.zeros(4, 4), 0]}, "same": distributed(0 * b, Shard(0)),
        "local": flow.zeros(3, dtype=flow.int64), "counter": Counter(0),
    }  # fmt: skip
    held = again["a"]
    dcp.load(again, checkpoint_id=where)
    assert again["a"] is held
    assert (held.placements, held.dtype) == ((Shard(1),), flow.float64)
    assert np.array_equal(held.full_tensor().numpy(), a)
    assert np.array_equal(again["nested"]["b"][0].numpy(), b)
    assert again["nested"]["b"][1] == 7
    assert np.array_equal(again["same"].full_tensor().numpy(), b)
    assert again["local"].tolist() == [0, 1, 2]
    assert (again["counter"].count, again["counter"].square) == (5, 25.0)
    assert "text" not in again
    read = flow.load(where, placement=mesh().flow_placement)
    assert np.array_equal(read["a"].full_tensor().numpy(), a)
    for expected, says in (
        ({"c": flow.zeros(1)}, "has no c"),
        ({"local": flow.zeros(4)}, r"shape \(4,\) here, and \(3,\)"),
        ({"text": flow.zeros(4)}, "is a tensor here, and none"),
    ):
        with pytest.raises(flow.errors.ArgumentError, match=says):
            dcp.load(expected, checkpoint_id=where)
    part = {"c": flow.ones(1), "local": flow.zeros(3)}
    planner = dcp.DefaultLoadPlanner(allow_partial_load=True)
    dcp.load(part, storage_reader=dcp.FileSystemReader(where), planner=planner)
    assert (part["c"].item(), part["local"].tolist()) == (1.0, [0.0, 1.0, 2.0])
    with pytest.raises(flow.errors.FileError, match="no checkpoint"):
        dcp.load({"a": held}, checkpoint_id=where / "elsewhere")
    with pytest.raises(flow.errors.ArgumentError, match="say where"):
        dcp.save({"a": held})
    with pytest.raises(flow.errors.ArgumentError, match="partial sum"):
        dcp.load({"a": dt.DTensor.from_local(flow.tensor(a), mesh(), [Partial()])},
                 checkpoint_id=where)  # fmt: skip


def check_what_is_written_on_the_side_is_what_was():
    where = folder()
    x, y = distributed(numbers(2 * SIZE, 2), Shard(0)), flow.ones(3)
    before = x.full_tensor().numpy().copy()
    finished = dcp.async_save({"x": x, "y": y}, checkpoint_id=where)
    x.zero_()
    y.zero_()
    finished.result()
    dist.barrier()
    state = {"x": x, "y": y}
    dcp.load(state, checkpoint_id=where)
    assert np.array_equal(x.full_tensor().numpy(), before)
    assert y.tolist() == [1.0] * 3
    dist.barrier()
    if SIZE > 1:  # a rank that cannot write: it says so, the first too, and what was there stays
        index = (where / "index.json").read_text()

        def fails(*args):
            raise OSError("the disk is full")

        with pytest.MonkeyPatch.context() as patch:
            if RANK == SIZE - 1:
                patch.setattr("flowvm.serialization.save", fails)
                patch.setattr(Path, "write_text", fails)  # not in parts: another rank may look
            finished = dcp.async_save({"x": x * 2}, checkpoint_id=where)
            if RANK in (0, SIZE - 1):
                kind = OSError if RANK else flow.errors.CommunicationError
                says = "full" if RANK else f"rank {SIZE - 1} could not write"
                with pytest.raises(kind, match=says):
                    finished.result()
            else:
                finished.result()
        dist.barrier()
        assert (where / "index.json").read_text() == index


def check_training_goes_on_from_a_checkpoint():
    x, y = sharded.batches()[0]

    def steps(net, optimizer, count):
        for _ in range(count):
            optimizer.zero_grad()
            sharded.loss_of(net, sharded.own(x), sharded.own(y)).backward()
            optimizer.step()

    def whole():
        net = sharded.model()
        return net, flow.optim.AdamW(net.parameters(), lr=0.02)

    for flat in (False, True):
        where = folder()
        options = sd.StateDictOptions(flatten_optimizer_state_dict=flat)
        net, _ = whole()
        sharded.shard(net)
        optimizer = flow.optim.AdamW(net.parameters(), lr=0.02)
        steps(net, optimizer, 2)
        model_state, state = sd.get_state_dict(net, optimizer, options=options)
        dcp.save({"model": model_state, "optimizer": state}, checkpoint_id=where)
        steps(net, optimizer, 2)

        other, _ = whole()
        fully_shard(other, shard_placement_fn=lambda p: Shard(p.ndim - 1))
        second = flow.optim.AdamW(other.parameters(), lr=0.5)
        into = dict(zip(("model", "optimizer"), sd.get_state_dict(other, second, options=options),
                        strict=True))  # fmt: skip
        dcp.load(into, checkpoint_id=where)
        sd.set_state_dict(
            other, second, model_state_dict=into["model"], optim_state_dict=into["optimizer"],
            options=options,
        )  # fmt: skip
        steps(other, second, 2)
        for (name, p), q in zip(net.named_parameters(), other.parameters(), strict=True):
            np.testing.assert_allclose(
                sharded.whole(p), sharded.whole(q), atol=1e-5, err_msg=f"{name} {flat}"
            )


def check_whole_state_dicts():
    net = sharded.shard(sharded.model())
    optimizer = flow.optim.AdamW(net.parameters(), lr=0.02)
    x, y = sharded.batches()[0]
    sharded.loss_of(net, sharded.own(x), sharded.own(y)).backward()
    optimizer.step()
    whole = sd.StateDictOptions(full_state_dict=True)
    state, steps = sd.get_state_dict(net, optimizer, options=whole)
    assert not any(isinstance(v, DTensor) for v in state.values())
    assert not isinstance(steps["state"]["head.weight" if "head.weight" in steps["state"]
                                         else "table.weight"]["exp_avg"], DTensor)  # fmt: skip
    first = sd.StateDictOptions(full_state_dict=True, cpu_offload=True)
    assert bool(sd.get_model_state_dict(net, options=first)) == (RANK == 0)
    plain = sharded.model()
    assert str(sd.set_model_state_dict(plain, state)).startswith("<All keys")
    other = sharded.shard(sharded.model())
    second = flow.optim.AdamW(other.parameters(), lr=0.5)
    sent = sd.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    sd.set_state_dict(
        other, second, model_state_dict=state if RANK == 0 else {},
        optim_state_dict=steps if RANK == 0 else {}, options=sent,
    )  # fmt: skip
    for (name, p), q, r in zip(
        net.named_parameters(), other.parameters(), plain.parameters(), strict=True
    ):
        assert np.array_equal(sharded.whole(p), sharded.whole(q)), name
        assert np.array_equal(sharded.whole(p), r.detach().numpy()), name
        for key, value in optimizer.state[p].items():
            entry = second.state[q][key]
            if isinstance(value, flow.Tensor):
                assert isinstance(entry, DTensor) == isinstance(value, DTensor), (name, key)
                value, entry = sharded.whole(value), sharded.whole(entry)
            assert np.array_equal(value, entry), (name, key)
    assert second.param_groups[0]["lr"] == 0.02
    bare = sd.StateDictOptions(keep_submodule_prefixes=False)
    below = sd.get_model_state_dict(net, submodules={net.blocks[0].norm}, options=bare)
    assert list(below) == ["weight", "bias"]
    ddp = nn.parallel.DistributedDataParallel(sharded.model())
    assert list(sd.get_model_state_dict(ddp)) == list(plain.state_dict())
    net.head.weight.requires_grad_(False)
    some = sd.get_model_state_dict(net, options=sd.StateDictOptions(ignore_frozen_params=True))
    assert "head.weight" not in some
    assert "blocks.0.up.weight" in some
    with pytest.raises(flow.errors.ArgumentError, match="full_state_dict must be True"):
        sd.StateDictOptions(broadcast_from_rank0=True)


def check_safetensors_for_others():
    numpy_of = pytest.importorskip("safetensors.numpy").load_file
    a, b = numbers(2 * SIZE + 1, 3), numbers(4, 4, seed=1)
    state = {"a": distributed(a, Shard(0)), "b": distributed(b, Shard(1)).to(flow.bfloat16),
             "c": flow.arange(4)}  # fmt: skip
    whole, parts, joined, side = (folder() for _ in range(4))
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(whole, {"a": 1, "b": 2, "c": 2}))
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(parts, save_distributed=True))
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(
        joined, save_distributed=True, enable_consolidation=True))  # fmt: skip
    if RANK == 0:
        consolidate_safetensors_files(str(parts), str(side), dict.fromkeys(state, 1))
    consolidate_safetensors_files_on_every_rank(str(parts), str(side), dict.fromkeys(state, 1))
    index = json.loads((whole / "model.safetensors.index.json").read_text())
    assert index["weight_map"]["c"] == "model-00002-of-00002.safetensors"
    assert index["metadata"]["total_size"] == a.nbytes + b.nbytes // 2 + 32
    assert np.array_equal(numpy_of(whole / "model-00001-of-00002.safetensors")["a"], a)
    one = flow.load(side / "model-00001-of-00001.safetensors")
    assert one["c"].tolist() == [0, 1, 2, 3]
    names = [f"shard-{r + 1:05}-model-00001-of-00001.safetensors" for r in range(SIZE)]
    assert sorted(p.name for p in parts.iterdir()) == names
    for place in (whole, parts, joined, side):
        again = {"a": distributed(0 * a, Shard(1)), "b": flow.zeros(4, 4, dtype=flow.bfloat16),
                 "c": flow.zeros(4)}  # fmt: skip
        dcp.load(again, storage_reader=dcp.HuggingFaceStorageReader(place))
        assert np.array_equal(again["a"].full_tensor().numpy(), a), place
        assert flow.equal(again["b"], flow.tensor(b).to(flow.bfloat16))
        assert again["c"].tolist() == [0, 1, 2, 3]
    with pytest.raises(flow.errors.ArgumentTypeError, match="'d' is a int, no tensor"):
        dcp.save({"d": 3}, storage_writer=dcp.HuggingFaceStorageWriter(whole))
    with pytest.raises(flow.errors.FileError, match="no safetensors files"):
        dcp.load({"a": state["a"]}, storage_reader=dcp.HuggingFaceStorageReader(folder()))
