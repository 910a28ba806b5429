"""Checkpoints of one process: storage, planners, formats, whole tensors, consolidated files."""

import numpy as np
import pytest

import flowvm as flow
import flowvm.distributed.checkpoint as dcp
from flowvm import distributed as dist
from flowvm import nn
from flowvm.distributed.algorithms.ddp_comm_hooks import default_hooks
from flowvm.distributed.checkpoint import consolidation, format_utils, storage, whole_tensors
from flowvm.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from flowvm.distributed.checkpoint.stateful import Stateful
from flowvm.distributed.checkpoint.storage import FileSystemReader, FileSystemWriter
from flowvm.errors import ArgumentError, FileError
from flowvm.meta.meta import TensorMeta


@pytest.fixture(autouse=True)
def group():
    """A test that begins a process group ends it."""
    before = dist.is_initialized()
    yield
    if dist.is_initialized() and not before:
        dist.destroy_process_group()


def state():
    return {"w": flow.arange(6.0).reshape(2, 3), "more": [{"b": flow.tensor([1, 2])}, "text"],
            "step": 3}  # fmt: skip


def test_paths_of_nested_values():
    tree = {"a": [1, {"b": 2}], "c": (), 3: "x"}
    assert storage.leaves(tree) == [("a.0", 1), ("a.1.b", 2), ("3", "x")]
    assert storage.leaves(5) == [("", 5)]
    assert storage.joined("", "a") == "a"
    assert storage.joined("a", 0) == "a.0"


def test_a_folder_is_described_and_read(tmp_path):
    writer = FileSystemWriter(tmp_path / "one")
    writer.write(state())
    reader = FileSystemReader(tmp_path / "one")
    known = reader.read_metadata().state_dict_metadata
    assert set(known) == {"w", "more.0.b", "more.1", "step"}
    assert (known["step"], known["more.1"]) == (3, "text")
    assert (known["w"].size, known["w"].dtype) == ((2, 3), flow.float32)
    name = known["more.0.b"].name
    tensors = reader.read({name: TensorMeta.of((2,), flow.int64)})
    assert tensors[name].tolist() == [1, 2]
    with pytest.raises(FileError, match="there is no checkpoint in"):
        FileSystemReader(tmp_path / "none").read_metadata()


def test_folders_are_overwritten_or_not(tmp_path):
    FileSystemWriter(tmp_path).write({"a": flow.ones(1)})
    for write in (FileSystemWriter(tmp_path, overwrite=False).write,
                  FileSystemWriter(tmp_path, overwrite=False).prepared):  # fmt: skip
        with pytest.raises(FileError, match="is there already, and overwrite=False"):
            write({"a": flow.zeros(1)})
    FileSystemWriter(tmp_path).write({"a": flow.full((1,), 7.0)})
    assert flow.load(tmp_path)["a"].item() == 7


def test_writes_in_the_background_have_the_values_of_the_call(tmp_path):
    x = flow.ones(2)
    rest = FileSystemWriter(tmp_path / "late").prepared({"x": x})
    x.fill_(9)
    rest(10.0)
    assert flow.load(tmp_path / "late")["x"].tolist() == [1, 1]
    for base in (storage.StorageWriter(), storage.StorageReader()):
        with pytest.raises(NotImplementedError):
            base.write({}) if hasattr(base, "write") else base.read_metadata()


def test_checkpoints_may_lack_entries_where_the_planner_says_so(tmp_path):
    dcp.save({"a": flow.ones(2)}, checkpoint_id=tmp_path, planner=DefaultSavePlanner())
    wanted = {"a": flow.zeros(2), "b": flow.full((1,), 5.0)}
    with pytest.raises(ArgumentError, match="b"):
        dcp.load(wanted, checkpoint_id=tmp_path, planner=DefaultLoadPlanner())
    dcp.load(wanted, checkpoint_id=tmp_path, planner=DefaultLoadPlanner(allow_partial_load=True))
    assert (wanted["a"].tolist(), wanted["b"].tolist()) == ([1, 1], [5])
    assert not DefaultLoadPlanner().allow_partial_load


def test_one_file_and_a_folder_are_made_of_each_other(tmp_path):
    folder, file, again = tmp_path / "many", tmp_path / "one", tmp_path / "again"
    dcp.save(state(), checkpoint_id=folder)
    format_utils.dcp_to_torch_save(folder, file)
    format_utils.torch_save_to_dcp(file, again)
    for path in (file, again):
        read = flow.load(path)
        assert read["step"] == 3
        assert read["more"][1] == "text"
        np.testing.assert_array_equal(read["w"].numpy(), state()["w"].numpy())
        assert read["more"][0]["b"].tolist() == [1, 2]
    with pytest.raises(FileError, match="dcp_to_torch_save: there is no checkpoint in"):
        format_utils.dcp_to_torch_save(tmp_path / "none", file)


@pytest.mark.parametrize("every", [False, True])
def test_parts_become_files_of_whole_tensors(tmp_path, every):
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    parts.mkdir()
    whole.mkdir()
    tensors = {"a": flow.ones(2, 2), "b": flow.arange(3), "c": flow.zeros(1)}
    writer = dcp.HuggingFaceStorageWriter(parts, save_distributed=True)
    dcp.save(tensors, storage_writer=writer)
    make = (consolidation.consolidate_safetensors_files_on_every_rank if every
            else consolidation.consolidate_safetensors_files)  # fmt: skip
    make(str(parts), str(whole), {"a": 1, "b": 2, "c": 2})
    first, second = (flow.load(whole / f"model-0000{k}-of-00002.safetensors") for k in (1, 2))
    assert (set(first), set(second)) == ({"a"}, {"b", "c"})
    assert second["b"].tolist() == [0, 1, 2]


def test_whole_tensors_are_cut_as_others_are():
    where = flow.placement("cpu", [0])
    like = flow.zeros(2, 3, placement=where, sbp=flow.sbp.split(0))
    x = flow.arange(6.0).reshape(2, 3)
    cut = whole_tensors.held_as(x, like)
    assert cut.sbp == like.sbp
    np.testing.assert_array_equal(cut.numpy(), x.numpy())
    for value, other in ((3, like), (x, x), (cut, like), (x[:1], like)):
        assert whole_tensors.held_as(value, other) is value


def test_the_first_ranks_values_are_everybodys():
    given = {"a": flow.arange(6.0).reshape(2, 3).t(), "b": {"c": [flow.tensor(3), "x"]}, "d": 1}
    got = whole_tensors.from_first(given)
    assert (got["d"], got["b"]["c"][1], got["b"]["c"][0].item()) == (1, "x", 3)
    np.testing.assert_array_equal(got["a"].numpy(), given["a"].numpy())
    got["a"].zero_()
    assert given["a"].sum().item() == 15


def test_objects_with_a_state_dict():
    assert isinstance(nn.Linear(1, 1), Stateful)
    assert isinstance(flow.optim.SGD([flow.nn.Parameter(flow.ones(1))]), Stateful)
    assert not isinstance({}, Stateful)
    assert not isinstance(object(), Stateful)


class Bucket:
    def __init__(self, value):
        self.value = value

    def buffer(self):
        return self.value

    def set_buffer(self, value):
        self.value = value


def test_hooks_average_in_the_dtype_that_they_say():
    x = flow.tensor([1.0, 1.0 + 2**-12, 3.0])
    assert default_hooks.allreduce_hook(None, Bucket(x)).value().tolist() == x.tolist()
    for hook, dtype in ((default_hooks.fp16_compress_hook, flow.float16),
                        (default_hooks.bf16_compress_hook, flow.bfloat16)):  # fmt: skip
        out = hook(None, Bucket(x)).value()
        assert out.dtype is flow.float32
        assert out.tolist() == x.to(dtype).float().tolist()
    for wrapper in (default_hooks.fp16_compress_wrapper, default_hooks.bf16_compress_wrapper):
        bucket = Bucket(x.clone())
        out = wrapper(default_hooks.allreduce_hook)(None, bucket).value()
        assert out.dtype is flow.float32
        assert bucket.value.dtype.itemsize == 2
        assert out.tolist() == bucket.value.float().tolist()
