"""Record files, written here byte by byte, and what the layers that read them give."""

import struct
import sys

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import ArgumentError, ConfigError, FileError
from flowvm.files.records import parsed


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def record(**features) -> bytes:
    """A record: bytes, floats or integers by name."""
    out = b""
    for name, value in features.items():
        if isinstance(value, bytes):
            feature = field(1, field(1, value))
        elif isinstance(value, np.ndarray):
            feature = field(2, field(1, value.astype("<f4").tobytes()))
        else:
            feature = field(5, field(1, b"".join(map(varint, value))))
        out += field(1, field(1, name.encode()) + field(2, feature))
    return out


@pytest.fixture
def folder(tmp_path):
    """Two files of three records: `label` counts from -2."""
    for part in range(2):
        rows = [
            record(label=[3 * part + k - 2], x=np.arange(2.0) + k, image=b"none") for k in range(3)
        ]
        data = b"".join(struct.pack("<q", len(row)) + row for row in rows)
        (tmp_path / f"part-{part:03d}").write_bytes(data)
    return tmp_path


def reader(folder, **options) -> nn.Module:
    options = {"batch_size": 2, "data_part_num": 2, "part_name_suffix_length": 3, **options}
    return nn.OFRecordReader(str(folder), **options)


LABEL = nn.OFRecordRawDecoder("label", (), flow.int32)


def test_records_come_in_turn_and_without_end(folder):
    read = reader(folder)
    labels = [LABEL(read()).tolist() for _ in range(4)]
    assert labels == [[-2, -1], [0, 1], [2, 3], [-2, -1]]
    x = nn.OFRecordRawDecoder("x", (2,), flow.float32)(read())
    np.testing.assert_array_equal(x.numpy(), [[2, 3], [0, 1]])


def test_shuffled_records_are_the_same_ones(folder):
    read = reader(
        folder, random_shuffle=True, shuffle_buffer_size=4, shuffle_after_epoch=True, random_seed=1
    )
    results = [n for _ in range(60) for n in LABEL(read()).tolist()]
    assert set(results) == {-2, -1, 0, 1, 2, 3}
    assert results[:6] != [-2, -1, 0, 1, 2, 3]
    again = reader(
        folder, random_shuffle=True, shuffle_buffer_size=4, shuffle_after_epoch=True, random_seed=1
    )
    assert [n for _ in range(60) for n in LABEL(again()).tolist()] == results


def test_a_decoder_cuts_and_fills(folder):
    batch = reader(folder)()
    with pytest.raises(ArgumentError, match="'x' has 2 numbers"):
        nn.OFRecordRawDecoder("x", (3,), flow.float32)(batch)
    filled = nn.OFRecordRawDecoder("x", (3,), flow.float32, dim1_varying_length=True)(batch)
    np.testing.assert_array_equal(filled.numpy(), [[0, 1, 0], [1, 2, 0]])
    cut = nn.OFRecordRawDecoder("x", (1,), flow.float32, truncate=True)(batch)
    np.testing.assert_array_equal(cut.numpy(), [[0], [1]])
    with pytest.raises(ArgumentError, match="no 'y', but"):
        nn.OFRecordRawDecoder("y", (), flow.float32)(batch)
    (first, _) = nn.OFRecordBytesDecoder("image")(batch)
    assert first.tobytes() == b"none"


def test_files_that_are_damaged_are_refused(folder):
    with pytest.raises(FileError, match="there is no"):
        reader(folder, data_part_num=3)
    path = folder / "part-000"
    path.write_bytes(path.read_bytes()[:-1])
    read = reader(folder, data_part_num=1)
    with pytest.raises(FileError, match="cut short"):
        [read() for _ in range(3)]
    for data in (b"\x0a\xff", b"\x0a\x05ab", b"\x0f", b"\xff" * 11):
        with pytest.raises(FileError, match="damaged"):
            parsed(data)


def test_pillow_is_asked_for_where_it_is_needed(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ConfigError, match="pip install pillow"):
        nn.OFRecordImageDecoder("image")(reader(folder)())


def test_images_are_cut_turned_and_normalized(rng):
    images = rng.integers(0, 256, (3, 5, 7, 3), dtype=np.uint8)
    layer = nn.CropMirrorNormalize(
        "RGB", crop_h=3, crop_w=4, crop_pos_y=1.0, mean=[1.0, 2.0, 3.0], std=[2.0, 4.0, 5.0]
    )
    mirror = flow.tensor([1, 0, 1], dtype=flow.int8)
    result = layer(flow.tensor(images), mirror)
    expected = images[:, 2:5, 1:5].astype(np.float64)
    expected[[0, 2]] = expected[[0, 2], :, ::-1]
    expected = ((expected - [1, 2, 3]) / [2, 4, 5]).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)
    assert set(nn.CoinFlip(200, random_seed=3)().tolist()) == {0, 1}
    assert nn.CoinFlip(4, probability=0.0)().tolist() == [0] * 4
