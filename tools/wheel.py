"""A wheel with code inside: `make wheel`.

It holds the VM and the usual kernels (`flowvm warmup`'s), compiled for levels of x86-64: a process
whose cache is empty loads from it what its processor runs, and compiles the rest.  A key that
covers the sources, Python, NumPy, Numba and LLVM decides whether an object fits, so with other
versions of these the wheel is one of pure Python.

    python -m tools.wheel                       all levels that this processor runs
    python -m tools.wheel --levels x86-64-v3    some of them
    python -m tools.wheel --ops add relu        the VM and these ops, instead of the usual ones

The wheel is tried where a user would: installed into a new environment, with an empty cache.  There
a first op and the demo's first training step run, and the seconds of the step are printed.  A wheel
that has the demo's kernels must not compile any for it.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

from flowvm.compiler.target import LEVELS, levels_here

ROOT = Path(__file__).parent.parent
SOURCES = ("flowvm", "ops", "graph", "autograd", "pyproject.toml", "README.md", "LICENSE", "NOTICE")


def main(argv: Sequence[str] | None = None) -> int:
    """Build, and say where it is."""
    parser = argparse.ArgumentParser(prog="tools.wheel", description="A wheel with code inside.")
    parser.add_argument("--levels", nargs="*", choices=list(LEVELS), default=None)
    parser.add_argument("--ops", nargs="*", default=[], help="instead of the usual ones")
    parser.add_argument(
        "--platform", default="", help="an index's name of it: manylinux_2_28_x86_64"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    args = parser.parse_args(argv)
    own_levels = levels_here()
    levels = own_levels if args.levels is None else args.levels
    if beyond := sorted(set(levels) - set(own_levels)):
        parser.error(
            f"this processor does not run {', '.join(beyond)}, so what it would compile cannot be "
            f"tried; it has {', '.join(own_levels) or 'none of the levels'}"
        )
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder), levels, args.ops, args.out, args.platform)
        python = environment(wheel, Path(folder))
        result = tried(python, Path(folder), whole=bool(levels) and DEMO in (args.ops or [DEMO]))
    print(f"{wheel}, {wheel.stat().st_size / 2**20:.1f} MiB; {result}")
    return 0


def build_wheel(
    folder: Path, levels: Sequence[str], ops: Sequence[str], out: Path, plat: str = ""
) -> Path:
    """Make a wheel in `out`, by way of `folder`."""
    tree = folder / "tree"
    copy_sources(tree)
    for level in levels:
        began = time.perf_counter()
        objects = compile_for(level, tree / "flowvm" / "objects" / level, ops)
        size = sum(path.stat().st_size for path in objects) / 2**20
        seconds = time.perf_counter() - began
        print(f"{level}: {len(objects)} objects, {size:.1f} MiB, {seconds:.0f} s", flush=True)
    return build(tree, out, plat or f"linux_{platform.machine()}")


def unpacked(wheel: Path, folder: Path) -> Path:
    """Unpack a wheel, to be imported; return the folder of its files."""
    tree = folder / "installed"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tree)
    compileall.compile_dir(tree, quiet=1)  # as pip does
    return tree


def copy_sources(tree: Path) -> None:
    """Copy the files from which a wheel is built."""
    tree.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "objects")
            shutil.copytree(source, tree / name, ignore=ignored)
        else:
            shutil.copy(source, tree / name)


def compile_for(level: str, folder: Path, ops: Sequence[str]) -> list[Path]:
    """Fill `folder` with the objects that `flowvm warmup` compiles for a level."""
    folder.mkdir(parents=True)
    folder.chmod(0o700)  # as a cache must be
    variables = {**os.environ, "FLOWVM_TARGET": level, "FLOWVM_CACHE_DIR": str(folder)}
    command = [sys.executable, "-m", "flowvm", "warmup", *ops]
    subprocess.run(command, env=variables, cwd=ROOT, check=True)
    folder.chmod(0o755)
    objects = sorted(folder.glob("*.o"))
    for path in folder.iterdir():
        if path.suffix != ".o":
            path.unlink()
    for path in objects:
        path.chmod(0o644)
    return objects


def build(tree: Path, out: Path, plat: str) -> Path:
    """A wheel for this Python and the platform `plat`, of a tree with objects."""
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    (tree / "setup.cfg").write_text(f"[bdist_wheel]\npython_tag = {tag}\nplat_name = {plat}\n")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet",
               "--no-deps", "--wheel-dir", str(out), str(tree)]  # fmt: skip
    subprocess.run(command, check=True)
    return max(out.glob("flowvm-*.whl"), key=lambda path: path.stat().st_mtime)


def environment(wheel: Path, folder: Path) -> Path:
    """Return the Python of a new environment with this wheel.  What flowvm needs of other packages
    is this environment's, or it would be fetched anew.
    """
    place = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    python = place / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python),
               "install", "--quiet", "--no-deps", str(wheel)]  # fmt: skip
    subprocess.run(command, check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    # a path alone: an editable flowvm there is a file of its own, which is not read
    needed = (importlib.util.find_spec(name) for name in DEPENDENCIES)
    places = {str(Path(spec.origin).parents[1]) for spec in needed if spec and spec.origin}
    (packages / "dependencies.pth").write_text("\n".join(sorted(places)) + "\n")
    return python


DEPENDENCIES = ("numpy", "numba", "llvmlite", "scipy", "rich", "safetensors")
DEMO = "demo"  # the piece of `flowvm warmup`
SAID = """
from flowvm.compiler import jit
from flowvm.vm.engine.engine import engine
print(flow.__file__, engine.threads.running, jit.stats().compiled, jit.stats().loaded)
"""
FIRST = """
import flowvm as flow
x = flow.tensor([1.0, 2.0])
assert (x + x).tolist() == [2.0, 4.0]
"""
STEP = """
import flowvm as flow
from flowvm.commands.demo import first_step
first_step([])
flow.vm.sync()
"""


def tried(python: Path, folder: Path, whole: bool) -> str:
    """Return what a first op and the demo's first training step load and compile, each with an
    empty cache, and the seconds of the step's process.  RuntimeError if something else than the
    wheel is run, or if it is `whole`, and the step compiles a kernel.
    """
    _, native, compiled, loaded, _ = _run(python, folder, "first", FIRST)
    how = "the VM is native at once" if native == "True" else "the VM is not in it"
    result = (
        f"with an empty cache, {how}; a first op loads {loaded} objects and compiles {compiled}"
    )
    _, _, compiled, loaded, seconds = _run(python, folder, "step", STEP)
    result += f"; a first training step takes {seconds} s, loads {loaded} and compiles {compiled}"
    if whole and compiled != "0":
        raise RuntimeError(f"the wheel has the demo's kernels, but {result}")
    return result


def _run(python: Path, folder: Path, name: str, code: str) -> list[str]:
    """Return the words of SAID behind `code`, and the seconds that the process took."""
    cache = folder / f"cache of {name}"
    variables = {**os.environ, "FLOWVM_CACHE_DIR": str(cache)}
    command = [str(python), "-P", "-c", code + SAID]
    began = time.perf_counter()
    process = subprocess.run(
        command, env=variables, check=True, capture_output=True, text=True, cwd=folder
    )
    seconds = time.perf_counter() - began
    words = process.stdout.split()
    if not words[0].startswith(str(python.parents[1])):
        raise RuntimeError(f"{words[0]} was tried, and not the wheel")
    return [*words, f"{seconds:.2f}"]


if __name__ == "__main__":
    sys.exit(main())
