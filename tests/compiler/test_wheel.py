"""Objects that came with flowvm are loaded where they fit, and only there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from flowvm.compiler import target
from flowvm.compiler.target import Target, level
from flowvm.errors import ConfigError

HERE = target.levels_here()
pytestmark = pytest.mark.skipif(not HERE, reason="no level of x86-64 is this processor's")

PROGRAM = """
import json, sys
from pathlib import Path
from flowvm.compiler import jit
jit.SHIPPED = Path(sys.argv[1])

def twice(x):
    return x + x

import ctypes
run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(jit.native(twice, "int64(int64)"))
assert run(21) == 42
print(json.dumps([jit.stats().compiled, jit.stats().loaded]))
"""


def compiled(tmp_path: Path, shipped: Path, cache: str, of: str = "") -> list[int]:
    """[compiled, loaded] by a process of its own."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    env = {**os.environ, "FLOWVM_CACHE_DIR": str(tmp_path / cache), "FLOWVM_TARGET": of}
    process = subprocess.run(
        [sys.executable, str(program), str(shipped)], env=env, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    data: list[int] = json.loads(process.stdout)
    return data


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a wheel has it, with the function for the lowest level."""
    folder = tmp_path_factory.mktemp("made")
    assert compiled(folder, folder / "none", f"objects/{HERE[-1]}", HERE[-1]) == [1, 0]
    return folder / "objects"


@pytest.fixture
def shipped(objects: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(objects, tmp_path / "objects"))


def only(folder: Path) -> Path:
    (path,) = folder.rglob("*.o")
    return path


def test_what_came_with_flowvm_is_loaded(tmp_path: Path, shipped: Path) -> None:
    assert compiled(tmp_path, shipped, "empty") == [0, 1]
    assert not list((tmp_path / "empty").glob("*.o"))
    assert compiled(tmp_path, tmp_path / "none", "empty") == [1, 0]
    assert compiled(tmp_path, shipped, "empty") == [0, 1]


def test_what_is_made_for_a_level_does_not_come_from_another_wheel(
    tmp_path: Path, shipped: Path
) -> None:
    assert compiled(tmp_path, shipped, "empty", HERE[-1]) == [1, 0]


def test_a_damaged_object_is_not_loaded(tmp_path: Path, shipped: Path) -> None:
    path = only(shipped)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert compiled(tmp_path, shipped, "empty") == [1, 0]


@pytest.mark.skipif(len(HERE) < 2, reason="this processor has one level")
def test_an_object_of_another_level_is_not_loaded(tmp_path: Path, shipped: Path) -> None:
    (shipped / HERE[-1]).rename(shipped / HERE[0])
    assert compiled(tmp_path, shipped, "empty") == [1, 0]


def test_another_programs_object_is_not_loaded(tmp_path: Path, shipped: Path) -> None:
    path = only(shipped)
    path.rename(path.with_name("0" * 40 + ".o"))
    assert compiled(tmp_path, shipped, "empty") == [1, 0]


@pytest.mark.parametrize("which", ["object", "folder"])
def test_who_may_write_there_may_write_flowvm_too(
    tmp_path: Path, shipped: Path, which: str
) -> None:
    path = only(shipped) if which == "object" else only(shipped).parent
    path.chmod(0o777)
    assert compiled(tmp_path, shipped, "empty") == [1, 0]


def test_a_level_that_is_not_this_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "config", SimpleNamespace(target="x86-64-v4"))
    monkeypatch.setattr(target, "levels_here", lambda: ["x86-64-v2"])
    with pytest.raises(
        ConfigError, match=r"FLOWVM_TARGET=x86-64-v4 .*this processor has x86-64-v2"
    ):
        target.target.__wrapped__()


def test_features_are_those_of_the_level() -> None:
    assert level("x86-64-v3").has("avx2")
    assert not level("x86-64-v3").has("avx512f")
    assert not Target("some", "-avx,+avx2").has("avx")
    for name in HERE:
        assert all(map(target.host().has, target.LEVELS[name]))
