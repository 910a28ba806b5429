"""save and load: objects come out as they went in, in a file that other readers open."""

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn, optim
from flowvm.errors import ArgumentError, ArgumentTypeError


def same(a: Any, b: Any) -> None:
    """Check that two objects have the same structure, types and values."""
    if isinstance(a, flow.Tensor):
        assert isinstance(b, flow.Tensor)
        assert a.dtype == b.dtype
        assert tuple(a.shape) == tuple(b.shape)
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())
        return
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert a == b


def around(obj: Any) -> Any:
    file = io.BytesIO()
    flow.save(obj, file)
    file.seek(0)
    return flow.load(file)


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
)
def test_every_dtype(dtype: str, rng: np.random.Generator) -> None:
    tensors = {
        "matrix": flow.tensor((rng.normal(size=(3, 4)) * 9).astype(dtype)),
        "scalar": flow.tensor(np.array(1, dtype=dtype)),
        "empty": flow.tensor(np.zeros((0, 2), dtype=dtype)),
    }
    same(around(tensors), tensors)


@pytest.mark.parametrize(
    "obj",
    [
        {"a": {"b": [1, 2.5, None, True, "text"], "c": (1, (2,))}, "t": flow.ones(2)},
        {0: flow.ones(1), 1.5: "x", "s": {True: 1, None: 2}},
        [flow.ones(2), {"deep": [[flow.zeros(1)]]}],
        {"a.b": flow.ones(1), "a": {"b": flow.zeros(2)}, "__metadata__": flow.ones(3)},
        {"$tensor": "not a tensor", "ok": flow.ones(1)},
        {"nan-free": [float("inf"), -0.0], "dtype": flow.float16},
        flow.ones(2, 2),
        {},
        "just text",
    ],
)
def test_structures(obj: Any) -> None:
    same(around(obj), obj)


def test_a_tensor_that_occurs_twice_is_one_again() -> None:
    shared = flow.ones(2)
    copy = around({"a": shared, "nested": [shared], "other": flow.ones(2)})
    assert copy["a"] is copy["nested"][0]
    assert copy["a"] is not copy["other"]


def test_strided_tensors_and_parameters(rng: np.random.Generator) -> None:
    base = flow.tensor(rng.normal(size=(4, 6)))
    obj = {"t": base.t(), "slice": base[1:3, ::2], "param": nn.Parameter(base)}
    copy = around(obj)
    same(copy, {**obj, "param": base})
    assert type(copy["param"]) is flow.Tensor


def test_a_state_dict_is_a_plain_safetensors_file(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    net, path = nn.Linear(3, 2), tmp_path / "net.safetensors"
    flow.save(net.state_dict(), path)
    arrays = load_file(path)
    assert sorted(arrays) == ["bias", "weight"]
    np.testing.assert_array_equal(arrays["weight"], net.weight.detach().numpy())
    save_file({"weight": np.ones((2, 3), np.float32), "bias": np.zeros(2, np.float32)}, path)
    net.load_state_dict(flow.load(str(path)))
    assert net.weight.sum().item() == 6.0


def test_training_resumes_from_a_checkpoint(tmp_path: Path, rng: np.random.Generator) -> None:
    x = flow.tensor(rng.normal(size=(8, 3)).astype(np.float32))

    def build() -> tuple[nn.Module, optim.Optimizer, Any]:
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        opt = optim.AdamW(net.parameters(), lr=0.1)
        return net, opt, optim.lr_scheduler.OneCycleLR(opt, 0.2, total_steps=10)

    def train(net: nn.Module, opt: optim.Optimizer, schedule: Any, steps: int) -> None:
        for _ in range(steps):
            opt.zero_grad()
            net(x).square().mean().backward()
            opt.step()
            schedule.step()

    first = build()
    train(*first, 3)
    checkpoint = {name: part.state_dict() for name, part in zip("nos", first, strict=True)}
    flow.save({**checkpoint, "epoch": 3}, tmp_path / "last.ckpt")
    loaded = flow.load(tmp_path / "last.ckpt")
    assert loaded["epoch"] == 3
    second = build()
    for name, part in zip("nos", second, strict=True):
        part.load_state_dict(loaded[name])
    train(*first, 3)
    train(*second, 3)
    same(second[0].state_dict(), first[0].state_dict())


def test_writing_replaces_or_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    flow.save({"t": flow.ones(1)}, path)
    with pytest.raises(TypeError, match=r"cannot store a object at 'bad.0'"):
        flow.save({"bad": [object()]}, path)
    assert list(flow.load(path)) == ["t"]
    assert [p.name for p in tmp_path.iterdir()] == ["a.ckpt"]
    with pytest.raises(FileNotFoundError, match="no folder"):
        flow.save({}, tmp_path / "missing" / "a.ckpt")
    with pytest.raises(TypeError, match="a dict key must be"):
        flow.save({(1, 2): flow.ones(1)}, path)


def header_only(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a safetensors file, or is cut short"),
        (b"short", "cut short"),
        (pickle.dumps({"a": 1}), "is a pickle, and none that torch.save wrote"),
        (b"PK\x03\x04 and more", "is damaged: File is not a zip file"),
        (header_only(b"not json"), "not a safetensors file"),
        (header_only(b"[1]"), "not a safetensors file"),
        (
            header_only(b'{"w":{"dtype":"F6_E2M3","shape":[1],"data_offsets":[0,1]}}') + b"\0",
            "dtype F6_E2M3, which flowvm lacks",
        ),
        (
            header_only(b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}') + b"\0",
            "is damaged",
        ),
        (
            header_only(b'{"__metadata__":{"flowvm":"{\\"version\\":9,\\"tree\\":1}"}}'),
            "structure version 9",
        ),
    ],
    ids=["empty", "short", "pickle", "zip", "text", "list", "dtype", "truncated", "newer"],
)
def test_files_that_are_not_ours(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises((ValueError, TypeError), match=message):
        flow.load(path)


def test_a_missing_file() -> None:
    with pytest.raises(FileNotFoundError):
        flow.load("there-is-no-such-file")


def whole_file(header: dict[str, Any], rest: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + rest


def entry(shape: Any, begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "header",
    [
        {"a": entry([2], -8, 0)},
        {"a": entry([2], 0, 8), "b": entry([2], 0, 8)},
        {"a": entry([2], 0, 8), "b": entry([2], 4, 12)},
        {"a": entry([1], 0, 4), "b": entry([1], 8, 12)},
        {"a": entry([1 << 40], 0, 8)},
        {"a": entry([1 << 62, 4], 0, 0)},
        {"a": entry([-2], 0, 8)},
        {"a": entry([2.0], 0, 8)},
        {"a": entry([True], 0, 4)},
        {"a": entry("2", 0, 8)},
        {"a": entry([2], 0, 1 << 63)},
        {"a": entry([2], 0, 8, 3)},
        {"a": 3},
        {"a": {"dtype": "F32"}},
        {"__metadata__": 3},
        {"__metadata__": {"flowvm": 3}},
        {"__metadata__": {"flowvm": "[" * 90_000}},
        {"__metadata__": {"flowvm": "3"}},
        {"__metadata__": {"flowvm": '{"version": 1}'}},
        *[
            {"__metadata__": {"flowvm": '{"version": 1, "tree": ' + tree + "}"}}
            for tree in (
                '{"$tensor": "no"}', '{"$tensor": []}', '{"$tuple": 3}', '{"$dict": [[[], 1]]}',
                '{"$dict": [[1]]}', '{"$dtype": "os"}', '{"$dtype": []}', '{"$else": 1}',
                '{"a": 1, "a": 2}', "[" * 200 + "]" * 200,
            )
        ],
    ],
)  # fmt: skip
def test_a_changed_file_is_refused(header: dict[str, Any]) -> None:
    data = whole_file(header, b"" if "__metadata__" in header else b"\0" * 12)
    with pytest.raises((ArgumentError, ArgumentTypeError), match=r"flow\.load"):
        flow.load(io.BytesIO(data))


def test_a_header_with_a_key_twice_is_refused() -> None:
    one = json.dumps(entry([1], 0, 4))
    text = f'{{"a": {one}, "a": {one}}}'.encode()
    with pytest.raises(ArgumentError, match="twice"):
        flow.load(io.BytesIO(header_only(text) + bytes(4)))


def test_a_header_may_have_any_length(tmp_path):
    """The header's length comes first: one of 128 bytes and 256 more begins as a pickle, one of
    19,280 as a zip file.
    """
    path = tmp_path / "w"
    for length in (*range(1, 300, 7), *range(19_000, 19_400, 8)):
        flow.save({"w" * length: flow.ones(1)}, path)
        (read,) = flow.load(path).values()
        assert read.tolist() == [1.0]
    begins = set()
    for length in range(1, 300):
        flow.save({"w" * length: flow.ones(1)}, path)
        begins.add(path.read_bytes()[0])
        flow.load(path)
    assert 0x80 in begins
