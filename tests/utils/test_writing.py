"""Every function that writes a file: a regular one is replaced in one step, all else written to."""

import ast
import io
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import ArgumentTypeError
from flowvm.files import writer as file_writer

ROOT = Path(flow.__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def profile() -> Any:
    with flow.profiler.profile() as recorded:
        (flow.ones(4) * 2 + 1).sum().item()
    return recorded


def _graph(path: Any) -> None:
    class Double(nn.Graph):
        def build(self, x: flow.Tensor) -> flow.Tensor:
            return x * 2

    graph = Double()
    graph(flow.ones(2))
    graph.save(path)


def _onnx(path: Any) -> None:
    pytest.importorskip("onnx")
    flow.onnx.export(nn.Linear(2, 1), flow.ones(1, 2), path)


WRITERS: dict[str, Callable[[Any, Any], Any]] = {
    "save": lambda path, profile: flow.save({"a": flow.ones(2)}, path),
    "graph": lambda path, profile: _graph(path),
    "onnx": lambda path, profile: _onnx(path),
    "run": lambda path, profile: profile.save(path),
    "folded": lambda path, profile: profile.flame().save(path),
    **{
        ending: lambda path, profile: profile.export(path)
        for ending in (
            ".json", ".json.gz", ".speedscope.json", ".html", ".svg", ".dot", ".mmd", ".flowtrace",
        )
    },
}  # fmt: skip


@pytest.fixture(params=list(WRITERS))
def writer(request: pytest.FixtureRequest, profile: Any) -> tuple[str, Callable[[Path], Any]]:
    name: str = request.param
    return "file" + name * name.startswith("."), lambda path: WRITERS[name](path, profile)


def test_links_stay_and_permissions_too(writer: Any, tmp_path: Path) -> None:
    name, write = writer
    (tmp_path / "real").mkdir()
    real, link, other = tmp_path / "real" / name, tmp_path / name, tmp_path / f"2{name}"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link.symlink_to(other.name)
    other.symlink_to(os.path.join("real", name))
    before = real.stat()
    write(link)
    assert link.is_symlink()
    assert other.is_symlink()
    after = real.stat()
    assert after.st_size > 10
    assert stat.S_IMODE(after.st_mode) == 0o640
    assert after.st_ino != before.st_ino  # another file, moved over it
    assert [p.name for p in real.parent.iterdir()] == [name]


def test_pipes_are_written_to(writer: Any, tmp_path: Path) -> None:
    name, write = writer
    pipe = tmp_path / name
    os.mkfifo(pipe)
    read: list[bytes] = []
    thread = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    thread.start()
    write(pipe)
    thread.join(60)
    assert len(read[0]) > 10
    assert stat.S_ISFIFO(pipe.lstat().st_mode)


def test_devices_are_written_to(writer: Any, tmp_path: Path) -> None:
    name, write = writer
    device = tmp_path / name
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.open("wb").close()
    except PermissionError:
        pytest.skip("this user makes no devices")
    write(device)
    assert stat.S_ISCHR(device.lstat().st_mode)


def test_an_exception_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    unfinished = file_writer.writing(path, "test")
    unfinished.__enter__().write(b"half of the new o")
    assert not unfinished.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_new_files_have_the_permissions_that_open_gives(tmp_path: Path) -> None:
    flow.save(flow.ones(1), tmp_path / "saved")
    (tmp_path / "opened").open("wb").close()
    assert (tmp_path / "saved").stat().st_mode == (tmp_path / "opened").stat().st_mode


def test_the_owner_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    try:
        os.chown(path, 12345, 54321)
    except PermissionError:
        pytest.skip("this user gives no files away")
    path.chmod(0o600)
    flow.save(flow.ones(1), path)
    about = path.stat()
    assert (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)) == (12345, 54321, 0o600)


@pytest.mark.parametrize("call", ["open", "fchown", "replace"])
def test_what_cannot_be_replaced_is_written_to(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder without room for another, of an owner who cannot be kept, mounted by itself."""
    path = tmp_path / "file"
    path.write_bytes(b"old" * 10_000)
    before = path.stat().st_ino
    real = getattr(os, call)

    def refuse(*args: Any, **options: Any) -> Any:
        if call != "open" or "/." in str(args[0]):
            raise PermissionError(1, "not here")
        return real(*args, **options)

    def of_another(handle: int) -> os.stat_result:
        about = list(path.stat())
        return os.stat_result([*about[:4], about[4] + 1, *about[5:]])

    with monkeypatch.context() as patch:
        if call == "fchown":
            patch.setattr(os, "fstat", of_another)
        patch.setattr(os, call, refuse)
        flow.save(flow.ones(2), path)
    assert flow.load(path).tolist() == [1.0, 1.0]
    assert path.stat().st_ino == before
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_standard_output(name: str, kind: str, tmp_path: Path) -> None:
    path = name
    if name == "link":
        (tmp_path / "link").symlink_to("/dev/stdout")
        path = str(tmp_path / "link")
    code = (
        "from flowvm.files.writer import put\nimport sys\n"
        f"print('before')\nput({path!r}, b'text', 'test')\nprint(' after')"
    )
    out = tmp_path / "out"
    with out.open("wb") as file:
        process = subprocess.run(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE if kind == "pipe" else file,
            check=True,
            timeout=120,
        )
    text = process.stdout if kind == "pipe" else out.read_bytes()
    assert text == b"before\ntext after\n"


class Slow(io.RawIOBase):
    """A file that takes three bytes at a time."""

    def __init__(self) -> None:
        self.data = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += bytes(data[:3])
        return min(3, len(data))


def test_open_files(tmp_path: Path) -> None:
    slow = Slow()
    flow.save(flow.ones(2), slow)
    assert flow.load(io.BytesIO(slow.data)).tolist() == [1.0, 1.0]
    with (tmp_path / "text").open("w") as file, pytest.raises(ArgumentTypeError, match="text file"):
        flow.save(flow.ones(2), file)
    with pytest.raises(ArgumentTypeError, match="binary file, got int"):
        flow.save(flow.ones(2), 3)  # type: ignore[arg-type]
    with (tmp_path / "text").open() as file, pytest.raises(ArgumentTypeError, match="gave a str"):
        flow.load(file)  # type: ignore[arg-type]


def test_names_and_folders(tmp_path: Path) -> None:
    flow.save(flow.ones(1), tmp_path / ("n" * 255))
    flow.save(flow.ones(1), os.fsencode(tmp_path / "bytes"))  # type: ignore[arg-type]
    with pytest.raises(IsADirectoryError, match="a folder"):
        flow.save(flow.ones(1), tmp_path)
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="symbolic links"):
        flow.save(flow.ones(1), tmp_path / "round")
    (tmp_path / "nowhere").symlink_to(tmp_path / "new")
    flow.save(flow.ones(1), tmp_path / "nowhere")
    assert flow.load(tmp_path / "new").tolist() == [1.0]


# --- nobody writes files elsewhere ----------------------------------------------------------------

# what is flowvm's own: nobody names these paths
OWN = {
    "flowvm/commands/rank.py": "marks of ranks, in a folder of their own",
    "flowvm/compiler/cache.py": "the cache of kernels",
    "flowvm/compiler/zygote.py": "pipes between processes",
    "flowvm/cuda/simulator/exchange.py": "what simulated devices exchange",
    "flowvm/files/writer.py": "the one place",
    "flowvm/ranks/watcher.py": "marks of ranks, in a folder of their own",
    "flowvm/utils/event_files.py": "sound, into memory",
    "flowvm/utils/data/messages.py": "a socket between processes",
}
WRITES = {"write_text", "write_bytes", "savez", "savez_compressed", "tofile", "mkstemp", "replace"}


def _writes(tree: ast.AST) -> Iterator[int]:
    """Lines that open a file to write, or write one."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        texts = [a.value for a in node.args[:2] if isinstance(a, ast.Constant)]
        modes = [t for t in texts if isinstance(t, str) and set(t) <= set("rwxabt+") and t]
        opens = name in ("open", "_open", "fdopen") and any(set(m) & set("wxa+") for m in modes)
        on_os = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "os"
        if opens or (name in WRITES and (name != "replace" or on_os)):
            yield node.lineno


def test_files_are_written_in_one_place() -> None:
    results = set()
    for room in ("flowvm", "ops", "graph", "autograd"):
        for path in (ROOT / room).rglob("*.py"):
            if any(_writes(ast.parse(path.read_text()))):
                results.add(str(path.relative_to(ROOT)))
    # savez writes to what `writing` has opened
    assert results - {"flowvm/profiler/run/run.py"} == set(OWN)
