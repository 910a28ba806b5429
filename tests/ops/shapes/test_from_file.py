"""`from_file`: a file's bytes as a tensor, shared with it or not."""

import numpy as np
import pytest

import flowvm as flow


def test_shared_with_the_file(tmp_path):
    path = tmp_path / "numbers"
    x = flow.from_file(path, shared=True, size=4, dtype=flow.float32)
    assert x.tolist() == [0.0] * 4
    x.fill_(2)
    flow.vm.sync()
    assert np.fromfile(path, np.float32).tolist() == [2.0] * 4
    longer = flow.from_file(str(path), True, 6, dtype=flow.float32)
    assert longer.tolist() == [2.0] * 4 + [0.0] * 2
    assert path.stat().st_size == 24


def test_its_own(tmp_path):
    path = tmp_path / "numbers"
    np.arange(5, dtype=np.int16).tofile(path)
    x = flow.from_file(path, size=3, dtype=flow.int16)
    x.add_(1)
    assert x.tolist() == [1, 2, 3]
    assert np.fromfile(path, np.int16).tolist() == [0, 1, 2, 3, 4]
    leaf = flow.from_file(path, size=2, requires_grad=True)
    (leaf * 2).sum().backward()
    assert leaf.grad.tolist() == [2.0, 2.0]
    assert flow.from_file(path, size=0).shape == (0,)


def test_bad_input(tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(b"abc")
    with pytest.raises(ValueError, match="has 3 bytes, and 2 elements of float32 are 8"):
        flow.from_file(path, size=2)
    with pytest.raises(ValueError, match="at least 0, got -1"):
        flow.from_file(path, size=-1)
    with pytest.raises(ValueError, match="NumPy has no bfloat16"):
        flow.from_file(path, size=1, dtype=flow.bfloat16)
    with pytest.raises(FileNotFoundError):
        flow.from_file(tmp_path / "none", size=1)
