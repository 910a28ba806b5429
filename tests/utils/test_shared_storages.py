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


def check_same(actual: dict[str, flow.Tensor], expected: dict[str, flow.Tensor]) -> None:
    assert list(actual) == list(expected)
    for name, t in expected.items():
        again = actual[name]
        assert again.dtype is t.dtype, name
        np.testing.assert_array_equal(again.detach().numpy(), t.detach().numpy(), err_msg=name)


@pytest.mark.parametrize("way", WAYS)
def test_views_share_their_storage(way: str) -> None:
    base = flow.arange(48.0).reshape(6, 8)
    expected = views_of(base)
    tensors = WAYS[way](expected)
    check_same(tensors, expected)
    for name, t in expected.items():
        if name != "empty":
            assert tensors[name].stride() == t.stride(), name
            assert tensors[name].storage_offset() == t.storage_offset(), name
            assert tensors[name].untyped_storage() == tensors["whole"].untyped_storage(), name
    base[3] = -1.0
    tensors["row"].fill_(-1.0)
    check_same(tensors, expected)
    base.view(flow.int32)[5, 7] = 7
    tensors["bits"][5, 7] = 7
    check_same(tensors, expected)


@pytest.mark.parametrize("way", WAYS)
def test_views_of_a_storage_that_none_fills(way: str) -> None:
    whole = flow.arange(100.0)
    expected = {"a": whole[10:20], "b": whole[15:31:3], "other": flow.ones(2)}
    tensors = WAYS[way](expected)
    check_same(tensors, expected)
    assert tensors["a"].untyped_storage() == tensors["b"].untyped_storage()
    assert tensors["a"].untyped_storage() != tensors["other"].untyped_storage()
    whole[18] = -5.0
    tensors["b"][1] = -5.0
    check_same(tensors, expected)


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
    model_again = WAYS[way](model)
    assert model_again.head.weight is model_again.embedding.weight
    with flow.no_grad():
        model_again.row.fill_(2.5)
        model_again.seen.fill_(1.5)
    assert model_again.embedding.weight[2].tolist() == [2.5] * 3
    assert model_again.head.weight[0].tolist() == [1.5] * 3
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
    tensors = saved({"a": x, "b": x[:, 1:], "c": x.t()})
    assert tensors["a"].tolist() == x.tolist()
    assert tensors["b"].tolist() == x[:, 1:].tolist()
    tensors["b"].zero_()
    assert tensors["c"].tolist()[1:] == flow.zeros(2, 1).to(dtype).tolist()


def test_the_order_of_dimensions_is_kept() -> None:
    images = flow.rand(2, 3, 4, 5).to(memory_format=flow.channels_last)
    tensors = saved({"images": images, "t": flow.rand(3, 4).t(), "part": flow.rand(4, 4)[:, ::2]})
    assert tensors["images"].stride() == images.stride()
    assert tensors["images"].tolist() == images.tolist()
    assert tensors["t"].stride() == (1, 4)
    assert tensors["part"].is_contiguous()  # a copy of the part, not of what it was a part of


def test_map_location_keeps_what_is_shared() -> None:
    x = flow.ones(4)
    file = io.BytesIO()
    flow.save((x, x[1:]), file)
    for place in ("cpu", {"cpu": "cpu"}, lambda storage, where: storage):
        a, b = flow.load(io.BytesIO(file.getvalue()), map_location=place)
        b.fill_(5.0)
        assert a.tolist() == [1.0, 5.0, 5.0, 5.0]


def test_tensors_require_gradients_that_did() -> None:
    torch = pytest.importorskip("torch")
    for lib in (flow, torch):
        base: Any = lib.arange(4.0)
        expected = {
            "base": base, "view": base[1:].detach().requires_grad_(),
            "parameter": lib.nn.Parameter(base[:2]), "result": lib.ones(1, requires_grad=True) * 2,
            "frozen": lib.nn.Parameter(base, requires_grad=False), "whole": lib.arange(2),
        }  # fmt: skip
        file = io.BytesIO()
        lib.save(expected, file)
        loaded = flow.load(io.BytesIO(file.getvalue()))
        requires_grad = {name: t.requires_grad for name, t in loaded.items()}
        assert requires_grad == {name: t.requires_grad for name, t in expected.items()}
        assert all(t.is_leaf for t in loaded.values())
        (loaded["view"][:2] * loaded["parameter"]).sum().backward()
        assert loaded["view"].grad.tolist() == [0, 1, 0]
        assert loaded["parameter"].grad.tolist() == [1, 2]


@pytest.mark.parametrize("names", [["b"], [3], ["a", "whole"], {"a": 1}, None])
def test_gradients_of_what_cannot_have_them(names: Any) -> None:
    data = save_bytes({"a": flow.ones(1, requires_grad=True), "whole": flow.arange(2)})
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    key = next(iter(header["__metadata__"]))
    message = json.loads(header["__metadata__"][key]) | {"grads": names}
    header["__metadata__"][key] = json.dumps(message)
    text = json.dumps(header).encode()
    damaged = len(text).to_bytes(8, "little") + text + data[8 + length :]
    with pytest.raises(RuntimeError, match="cannot require gradients"):
        flow.load(io.BytesIO(damaged))


def save_bytes(value: Any) -> bytes:
    file = io.BytesIO()
    flow.save(value, file)
    return file.getvalue()


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
    expected = {
        "whole": base, "transposed": base.t(), "slice": base[2:5, 1:7:2], "row": base[3],
        "repeated": base[:, :1].expand(6, 5), "parameter": torch.nn.Parameter(base[1]),
        "again": base.detach(), "same": base, "alone": torch.ones(3), "empty": base[6:],
    }  # fmt: skip
    file = io.BytesIO()
    torch.save(expected, file, _use_new_zipfile_serialization=new)
    loaded = flow.load(io.BytesIO(file.getvalue()))

    def check() -> None:
        for name, t in expected.items():
            held = loaded[name].detach().numpy()
            np.testing.assert_array_equal(held, t.detach().numpy(), err_msg=name)
            assert loaded[name].stride() == t.stride() or name == "empty", name
            assert loaded[name].requires_grad == t.requires_grad, name

    check()
    assert loaded["same"] is loaded["whole"] is not loaded["again"]
    for name in ("row", "again", "slice", "transposed"):
        with torch.no_grad():
            expected[name][0] = -3.0
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
    message = {"version": 2, "tree": {"a": {"$tensor": "a"}, "b": {"$tensor": "b"}}, **change}
    header = {
        "a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        "__metadata__": {"flowvm": json.dumps(message)},
    }
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + bytes(16)
    with pytest.raises(flow.errors.FileError, match=r"flow\.load"):
        flow.load(io.BytesIO(data))
