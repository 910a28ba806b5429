"""PyTorch's files: read where they hold tensors and containers, and never run."""

import contextlib
import dataclasses
import io
import os
import pickle
import random
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import serialization


class Bomb:
    """A pickle that runs a command."""

    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/flowvm-was-run",)


@pytest.mark.parametrize("new", [True, False])
def test_what_torch_saves_is_read(new: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(3, 2)
    opt = torch.optim.Adam(layer.parameters())
    layer(torch.ones(1, 3)).sum().backward()
    opt.step()
    base = torch.arange(12.0).reshape(3, 4)
    saved = {
        "model": layer.state_dict(),
        "optim": opt.state_dict(),
        "view": base.t()[1:],
        "half": torch.ones(2, dtype=torch.bfloat16),
        "ints": [torch.tensor([1, 2]), torch.tensor(True), torch.tensor(7, dtype=torch.uint8)],
        "empty": torch.zeros(0, 3),
        "param": torch.nn.Parameter(torch.ones(2)),
        "plain": (1, 2.5, "text", None, True, 1 << 80, {"a": {3, 4}}),
        "size": torch.Size([2, 3]),
        "dtype": torch.float16,
        "device": torch.device("cpu"),
        "number": np.float32(1.5),
    }
    path = tmp_path / "x.pt"
    torch.save(saved, path, _use_new_zipfile_serialization=new)
    loaded = flow.load(path)
    assert isinstance(loaded["model"], OrderedDict)
    for name, tensor in saved["model"].items():
        np.testing.assert_array_equal(loaded["model"][name].numpy(), tensor.numpy())
    np.testing.assert_array_equal(loaded["view"].numpy(), base.t()[1:].numpy())
    assert loaded["half"].dtype is flow.bfloat16
    assert loaded["half"].tolist() == [1.0, 1.0]
    assert [t.tolist() for t in loaded["ints"]] == [[1, 2], True, 7]
    assert [t.dtype for t in loaded["ints"]] == [flow.int64, flow.bool, flow.uint8]
    assert tuple(loaded["empty"].shape) == (0, 3)
    assert loaded["param"].tolist() == [1.0, 1.0]
    assert loaded["plain"] == saved["plain"]
    assert tuple(loaded["size"]) == (2, 3)
    assert loaded["dtype"] is flow.float16
    assert loaded["device"] == "cpu"
    assert loaded["number"] == 1.5
    ours = flow.nn.Linear(3, 2)
    adam = flow.optim.Adam(ours.parameters())
    ours.load_state_dict(loaded["model"])
    adam.load_state_dict(loaded["optim"])
    assert adam.state[ours.weight]["step"] == 1


def test_a_tensor_that_occurs_twice_is_one_again(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(3)
    torch.save({"a": x, "b": x, "c": x.view(3)}, tmp_path / "x.pt")
    loaded = flow.load(tmp_path / "x.pt")
    assert loaded["a"] is loaded["b"] is not loaded["c"]


@pytest.mark.parametrize("new", [True, False])
def test_models_are_refused_and_not_run(new: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save(torch.nn.Linear(1, 1), tmp_path / "x.pt", _use_new_zipfile_serialization=new)
    with pytest.raises(ValueError, match=r"names torch\S*Linear, .*state_dict"):
        flow.load(tmp_path / "x.pt")


def test_pickles_of_others_are_refused_and_not_run() -> None:
    marker = Path("/tmp/flowvm-was-run")
    marker.unlink(missing_ok=True)
    for protocol in range(6):
        plain = pickle.dumps(Bomb(), protocol)
        inner = io.BytesIO()
        with zipfile.ZipFile(inner, "w") as archive:
            archive.writestr("archive/data.pkl", plain)
        for data in (plain, inner.getvalue()):
            with pytest.raises(ValueError, match=r"flow\.load"):
                flow.load(io.BytesIO(data))
    assert not marker.exists()


def test_damaged_files_are_refused(rng: np.random.Generator) -> None:
    """Whatever bytes are changed: a value or an ArgumentError, and nothing else."""
    torch = pytest.importorskip("torch")
    for new in (True, False):
        file = io.BytesIO()
        saved = {"w": torch.ones(5), "n": [1, 2.0, "x"]}
        torch.save(saved, file, _use_new_zipfile_serialization=new)
        data = file.getvalue()
        chance = random.Random(int(rng.integers(1 << 31)))
        for _ in range(300):
            changed = bytearray(data)
            for _ in range(chance.randrange(1, 4)):
                changed[chance.randrange(len(data))] = chance.randrange(256)
            cut = bytes(changed[: chance.choice([len(data), chance.randrange(len(data))])])
            with contextlib.suppress(flow.FlowError):
                flow.load(io.BytesIO(cut))


def test_a_tensor_reaches_no_further_than_its_storage() -> None:
    torch = pytest.importorskip("torch")
    file = io.BytesIO()
    torch.save(torch.ones(3), file, _use_new_zipfile_serialization=True)
    source = zipfile.ZipFile(io.BytesIO(file.getvalue()))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("data.pkl"):
                assert content.count(b"K\x03\x85") == 1
                content = content.replace(b"K\x03\x85", b"K\x09\x85")
            archive.writestr(name, content)
    with pytest.raises(ValueError, match="reaches beyond its storage"):
        flow.load(io.BytesIO(out.getvalue()))


# --- what flow.save writes besides ---------------------------------------------------------------


@dataclasses.dataclass
class Settings:
    """A class of the program's own."""

    rate: float
    weights: flow.Tensor


def test_arrays_sets_bytes_and_classes_come_back() -> None:
    saved = {
        "array": np.arange(6).reshape(2, 3),
        "none": np.zeros((0, 2), np.float32),
        "set": {1, 2},
        "bytes": b"\x00\xff",
        "complex": 1 + 2j,
        "settings": Settings(0.5, flow.ones(2)),
        "seed": np.int64(3),
    }
    file = io.BytesIO()
    flow.save(saved, file)
    with pytest.raises(ValueError, match="no name of a file is looked up"):
        flow.load(io.BytesIO(file.getvalue()))
    serialization.add_safe_globals([Settings])
    try:
        loaded = flow.load(io.BytesIO(file.getvalue()))
    finally:
        serialization.clear_safe_globals()
    assert isinstance(loaded["array"], np.ndarray)
    np.testing.assert_array_equal(loaded["array"], saved["array"])
    assert loaded["none"].shape == (0, 2)
    assert loaded["set"] == {1, 2}
    assert loaded["bytes"] == b"\x00\xff"
    assert loaded["complex"] == 1 + 2j
    assert loaded["settings"].rate == 0.5
    assert loaded["settings"].weights.tolist() == [1.0, 1.0]
    assert loaded["seed"] == 3
    file = io.BytesIO()
    flow.save(np.ones(3), file)
    assert flow.load(io.BytesIO(file.getvalue())).tolist() == [1.0, 1.0, 1.0]


def test_oneflows_folders(tmp_path: Path) -> None:
    for name, array, kind in (
        ("fc.weight", np.ones((2, 3), np.float32), "kFloat"),
        ("steps", np.array(5), "kInt64"),
    ):
        (tmp_path / name).mkdir()
        dims = "".join(f"  dim: {n}\n" for n in array.shape)
        (tmp_path / name / "meta").write_text(f"shape {{\n{dims}}}\ndata_type: {kind}\n")
        (tmp_path / name / "out").write_bytes(array.tobytes())
    loaded = flow.load(tmp_path)
    assert loaded["fc.weight"].tolist() == [[1.0] * 3] * 2
    assert loaded["steps"].tolist() == 5
    (tmp_path / "steps" / "out").write_bytes(b"123")
    with pytest.raises(ValueError, match="is damaged: 3 bytes of shape"):
        flow.load(tmp_path)
