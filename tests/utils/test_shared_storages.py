"""Tensors that share a storage share one again: after load, from PyTorch's files, in copies."""

import copy
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn


def saved(obj: Any) -> Any:
    file = io.BytesIO()
    flow.save(obj, file)
    return flow.load(io.BytesIO(file.getvalue()))


WAYS: dict[str, Callable[[Any], Any]] = {
    "save": saved,
    "pickle": lambda obj: pickle.loads(pickle.dumps(obj)),
    "pickle 2": lambda obj: pickle.loads(pickle.dumps(obj, 2)),
    "deepcopy": copy.deepcopy,
}


def views_of(base: flow.Tensor) -> dict[str, flow.Tensor]:
    """Views of all kinds on a tensor (6, 8) of float32."""
    return {
        "whole": base,
        "same": base.detach(),
        "transposed": base.t(),
        "slice": base[2:5, 1:7:2],
        "row": base[3],
        "element": base[5, 7],
        "flat": base.view(-1)[5:],
        "bits": base.view(flow.int32),
        "bytes": base.view(flow.uint8)[1:3],
        "repeated": base[:, :1].expand(6, 5),
        "parameter": nn.Parameter(base[1]),
        "empty": base[3:3],
    }


def check_same(found: dict[str, flow.Tensor], wanted: dict[str, flow.Tensor]) -> None:
    assert list(found) == list(wanted)
    for name, t in wanted.items():
        again = found[name]
        assert again.dtype is t.dtype, name
        np.testing.assert_array_equal(again.detach().numpy(), t.detach().numpy(), err_msg=name)


@pytest.mark.parametrize("way", WAYS)
def test_views_share_their_storage(way: str) -> None:
    base = flow.arange(48.0).reshape(6, 8)
    wanted = views_of(base)
    found = WAYS[way](wanted)
    check_same(found, wanted)
    for name, t in wanted.items():
        if name != "empty":
            assert found[name].stride() == t.stride(), name
            assert found[name].storage_offset() == t.storage_offset(), name
            assert found[name].untyped_storage() == found["whole"].untyped_storage(), name
    base[3] = -1.0
    found["row"].fill_(-1.0)
    check_same(found, wanted)
    base.view(flow.int32)[5, 7] = 7
    found["bits"][5, 7] = 7
    check_same(found, wanted)


@pytest.mark.parametrize("way", WAYS)
def test_views_of_a_storage_that_none_fills(way: str) -> None:
    whole = flow.arange(100.0)
    wanted = {"a": whole[10:20], "b": whole[15:31:3], "other": flow.ones(2)}
    found = WAYS[way](wanted)
    check_same(found, wanted)
    assert found["a"].untyped_storage() == found["b"].untyped_storage()
    assert found["a"].untyped_storage() != found["other"].untyped_storage()
    whole[18] = -5.0
    found["b"][1] = -5.0
    check_same(found, wanted)


class Tied(nn.Module):
    """Tied weights: one Parameter of two names, and one on a part of its storage."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embedding.weight
        self.row = nn.Parameter(self.embedding.weight.detach()[2])
        self.register_buffer("seen", self.embedding.weight.detach()[0])


@pytest.mark.parametrize("way", ["pickle", "pickle 2", "deepcopy"])
def test_whole_modules(way: str) -> None:
    model = Tied()
    found = WAYS[way](model)
    assert found.head.weight is found.embedding.weight
    with flow.no_grad():
        found.row.fill_(2.5)
        found.seen.fill_(1.5)
    assert found.embedding.weight[2].tolist() == [2.5] * 3
    assert found.head.weight[0].tolist() == [1.5] * 3
    assert model.row.tolist() != [2.5] * 3  # a copy, and not the original's memory


def test_a_state_dict_of_tied_weights(tmp_path: Path) -> None:
    model, path = Tied(), tmp_path / "model"
    flow.save({"model": model.state_dict(), "step": 3}, path)
    loaded = flow.load(path)["model"]
    loaded["row"].fill_(7.0)
    assert loaded["head.weight"][2].tolist() == loaded["embedding.weight"][2].tolist() == [7.0] * 3
    assert path.stat().st_size < 2000  # stored once
    model.load_state_dict(loaded)
    assert model.head.weight is model.embedding.weight
    assert model.row.tolist() == [7.0] * 3


def test_a_storage_is_stored_once(tmp_path: Path) -> None:
    x = flow.rand(1000)
    flow.save([x, x.detach(), x[:10], x.view(10, 100)], tmp_path / "shared")
    flow.save(x, tmp_path / "alone")
    assert (tmp_path / "shared").stat().st_size < (tmp_path / "alone").stat().st_size + 1000
    flow.save([x[:10].clone(), x[5:8].clone()], tmp_path / "cloned")
    assert (tmp_path / "cloned").stat().st_size < 1000


@pytest.mark.parametrize("dtype", [flow.bool, flow.bfloat16, flow.complex64, flow.complex128])
def test_dtypes_that_the_file_lacks(dtype: Any) -> None:
    x = flow.tensor([[1.0, 0.0, 2.0]]).to(dtype)
    found = saved({"a": x, "b": x[:, 1:], "c": x.t()})
    assert found["a"].tolist() == x.tolist()
    assert found["b"].tolist() == x[:, 1:].tolist()
    found["b"].zero_()
    assert found["c"].tolist()[1:] == flow.zeros(2, 1).to(dtype).tolist()


def test_the_order_of_dimensions_is_kept() -> None:
    images = flow.rand(2, 3, 4, 5).to(memory_format=flow.channels_last)
    found = saved({"images": images, "t": flow.rand(3, 4).t(), "part": flow.rand(4, 4)[:, ::2]})
    assert found["images"].stride() == images.stride()
    assert found["images"].tolist() == images.tolist()
    assert found["t"].stride() == (1, 4)
    assert found["part"].is_contiguous()  # a copy of the part, not of what it was a part of


def test_map_location_keeps_what_is_shared() -> None:
    x = flow.ones(4)
    file = io.BytesIO()
    flow.save((x, x[1:]), file)
    for place in ("cpu", {"cpu": "cpu"}, lambda storage, where: storage):
        a, b = flow.load(io.BytesIO(file.getvalue()), map_location=place)
        b.fill_(5.0)
        assert a.tolist() == [1.0, 5.0, 5.0, 5.0]


def test_tensors_in_other_storages_stay_apart() -> None:
    x = flow.ones(3)
    for way in WAYS.values():
        a, b = way([x, x.clone()])
        a.fill_(2.0)
        assert b.tolist() == [1.0, 1.0, 1.0]


def test_global_tensors(tmp_path: Path) -> None:
    """Global tensors share memory again if they saw it in the same way; local ones as in a file."""
    where = flow.placement.all("cpu")
    whole = flow.ones(4, 2, placement=where, sbp=flow.sbp.split(0))
    x = flow.arange(4.0)
    flow.save({"a": whole, "b": whole.detach(), "c": whole, "x": x, "y": x[1:3]}, tmp_path / "f")
    for place in (None, where):
        loaded = flow.load(tmp_path / "f", placement=place)
        assert loaded["a"] is loaded["c"] is not loaded["b"]
        loaded["b"].fill_(3.0)
        loaded["y"].fill_(7.0)
        assert loaded["a"].numpy().tolist() == [[3.0] * 2] * 4
        assert loaded["x"].tolist() == [0.0, 7.0, 7.0, 3.0]


# --- PyTorch's files ------------------------------------------------------------------------------


@pytest.mark.parametrize("new", [True, False])
def test_pytorchs_files(new: bool) -> None:
    torch = pytest.importorskip("torch")
    base = torch.arange(48.0).reshape(6, 8)
    wanted = {
        "whole": base, "transposed": base.t(), "slice": base[2:5, 1:7:2], "row": base[3],
        "repeated": base[:, :1].expand(6, 5), "parameter": torch.nn.Parameter(base[1]),
        "again": base.detach(), "same": base, "alone": torch.ones(3), "empty": base[6:],
    }  # fmt: skip
    file = io.BytesIO()
    torch.save(wanted, file, _use_new_zipfile_serialization=new)
    loaded = flow.load(io.BytesIO(file.getvalue()))

    def check() -> None:
        for name, t in wanted.items():
            np.testing.assert_array_equal(loaded[name].numpy(), t.detach().numpy(), err_msg=name)
            assert loaded[name].stride() == t.stride() or name == "empty", name

    check()
    assert loaded["same"] is loaded["whole"] is not loaded["again"]
    for name in ("row", "again", "slice", "transposed"):
        with torch.no_grad():
            wanted[name][0] = -3.0
        loaded[name][0] = -3.0
        check()


def test_one_storage_as_several_dtypes() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(4).to(torch.uint32)
    file = io.BytesIO()
    torch.save({"long": x, "short": x.view(torch.uint16)}, file)
    loaded = flow.load(io.BytesIO(file.getvalue()))
    loaded["long"][1] = 1 << 16
    assert loaded["short"].tolist() == [0, 0, 0, 1, 2, 0, 3, 0]


def test_pytorchs_modules_state_dict_of_tied_weights() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Embedding(4, 3), torch.nn.Linear(3, 4, bias=False))
    model[1].weight = model[0].weight
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    loaded = flow.load(io.BytesIO(file.getvalue()))
    loaded["1.weight"].zero_()
    assert loaded["0.weight"].tolist() == [[0.0] * 3] * 4


# --- files that say more than there is ------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"views": {"b": ["no", "float32", 0, [2], [1]]}},
        {"views": {"b": ["a", "float32", 4, [4], [1]]}},
        {"views": {"b": ["a", "float32", 0, [4], [2]]}},
        {"views": {"b": ["a", "float32", 2, [1], [1]]}},
        {"views": {"b": ["a", "float64", 8, [2], [1]]}},
        {"views": {"b": ["a", "float32", -4, [1], [1]]}},
        {"views": {"b": ["a", "float32", 0, [1 << 40], [0]]}},
        {"views": {"b": ["a", "float32", 0, [0, 1 << 47, 1 << 47], [1, 1, 1]]}},
        {"views": {"b": ["a", "float32", 0, [1], [1, 1]]}},
        {"views": {"b": ["b", "float32", 0, [1], [1]]}},
        {"views": {"a": ["a", "float32", 0, [1], [1]]}},
        {"views": {"b": ["a", "object", 0, [1], [1]]}},
        {"views": {"b": ["a", "float32", 0, [1]]}},
        {"views": []},
        {"strides": {"a": [0]}},
        {"strides": {"a": [2]}},
        {"strides": {"a": [1, 1]}},
        {"strides": {"no": [1]}},
        {"strides": {"a": [1 << 63]}},
        {"other": 3},
        {"version": 3},
        {"version": "1"},
    ],
)
def test_damaged_views_are_refused(change: dict[str, Any]) -> None:
    said = {"version": 2, "tree": {"a": {"$tensor": "a"}, "b": {"$tensor": "b"}}, **change}
    header = {
        "a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        "__metadata__": {"flowvm": json.dumps(said)},
    }
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + bytes(16)
    with pytest.raises(flow.errors.FileError, match=r"flow\.load"):
        flow.load(io.BytesIO(data))
