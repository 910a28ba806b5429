"""The quick tier on other Pythons, and with the oldest and newest packages that flowvm supports.

    python -m tools.versions                       every Python there is with the newest packages,
                                                   and the oldest packages on the oldest of them
    python -m tools.versions 3.12/newest 3.11/oldest     these alone
    python -m tools.versions --ends                the oldest packages on the oldest Python, and the
                                                   newest on the newest
    python -m tools.versions --list                what there is

Pythons are looked for on the PATH and among pyenv's.  "oldest" is the lower bound of each
dependency in pyproject.toml, "newest" what pip chooses, "middle" has MIDDLE.  Environments are made
in build/versions and used again while pyproject.toml stays the same; kernels are compiled anew for
each, since an entry of their cache is of one Python and one Numba.

A table comes last: what ran on what.  The exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "versions"
MINORS = (11, 12, 13, 14)
TESTS = (
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "greenlet>=3.1",
    "hypothesis>=6.100",
    "mpmath>=1.3",
)
# the simulator needs them, and greenlet
CUDA = "numba-cuda>=0.30.4,<0.31", "nvidia-cuda-runtime>=13,<14"
MIDDLE = ("numpy==2.2.*", "numba==0.67.*", "scipy==1.15.*")
SHOWN = ("numpy", "numba", "llvmlite", "scipy", "rich", "safetensors", "numba-cuda")


class Outcome(NamedTuple):
    """A row of the table."""

    name: str
    python: str
    versions: tuple[str, ...]
    tests: str
    seconds: float
    good: bool


def main() -> int:
    """Parse the command line, make environments, run, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.versions")
    parser.add_argument("names", nargs="*", help="such as 3.12/newest")
    parser.add_argument("--list", action="store_true", help="print the Pythons that there are")
    parser.add_argument("--processes", default="2", help="that the tests run in (2)")
    parser.add_argument("--ends", action="store_true", help="the oldest and the newest of both")
    options = parser.parse_args()
    pythons = interpreters()
    if options.list:
        print("\n".join(f"{minor}: {path}" for minor, path in pythons.items()))
        return 0
    minors = list(pythons)
    names = options.names or [f"{m}/newest" for m in minors] + [f"{minors[0]}/oldest"]
    if options.ends:
        names = [f"{minors[0]}/oldest", f"{minors[-1]}/newest"]
    for name in names:
        minor, _, packages = name.partition("/")
        if packages not in ("oldest", "middle", "newest") or minor not in pythons:
            installed = ", ".join(pythons)
            parser.error(f"{name!r}: expected one of {installed}, then /newest, /middle or /oldest")
    rows = [outcome(name, pythons, options.processes) for name in names]
    print(table(rows))
    return 0 if all(row.good for row in rows) else 1


def interpreters() -> dict[str, str]:
    """The Pythons that flowvm is for and that are here, by minor version: "3.11" and so on."""
    paths: dict[str, str] = {}
    for minor in MINORS:
        for path in _candidates(f"3.{minor}"):
            if path and _version(path).startswith(f"3.{minor}."):
                paths[f"3.{minor}"] = path
                break
    return paths


def _candidates(minor: str) -> Iterator[str]:
    if sys.version_info[:2] == tuple(map(int, minor.split("."))):
        yield sys.executable
    own = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    yield from (str(p / "bin" / "python") for p in sorted(own.glob(f"{minor}.*"), reverse=True))
    yield shutil.which(f"python{minor}") or ""


def _version(python: str) -> str:
    command = [python, "-c", "import platform; print(platform.python_version())"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()
    except OSError:
        return ""


def requirements(packages: str) -> list[str]:
    """Return pip's requirements: the dependencies of pyproject.toml, or their lower bounds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    newest = [*project["dependencies"], *CUDA]
    if packages == "oldest":
        return [*map(lowest, project["dependencies"]), *CUDA]
    return [*newest, *MIDDLE] if packages == "middle" else newest


def lowest(requirement: str) -> str:
    """`numpy==1.26.*` of `numpy>=1.26,<2.6`."""
    match = re.match(r"([\w-]+)>=([\d.]+)", requirement)
    if match is None:
        raise ValueError(f"pyproject.toml: {requirement!r} has no lower bound")
    return f"{match[1]}=={match[2]}.*"


def environment(name: str, python: str) -> Path:
    """The Python of an environment, made if it is not there."""
    folder = FOLDER / name.replace("/", "-")
    own, stamp = folder / "bin" / "python", folder / "made-for"
    packages = [*requirements(name.partition("/")[2]), *TESTS]
    content = "\n".join([_version(python), *packages])
    if stamp.exists() and stamp.read_text() == content:
        return own
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    pip = [str(own), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    subprocess.run([*pip, "--only-binary", ":all:", *packages], check=True)
    subprocess.run([*pip, "--no-deps", "--editable", str(ROOT)], check=True)
    stamp.write_text(content)
    return own


def outcome(name: str, pythons: dict[str, str], processes: str) -> Outcome:
    """Make the environment, run the quick tier in it."""
    print(f"== {name}", flush=True)
    began = time.monotonic()
    try:
        python = environment(name, pythons[name.partition("/")[0]])
    except subprocess.CalledProcessError as error:
        return Outcome(name, "", ("",) * len(SHOWN), f"no environment: {error}", 0.0, False)
    tests = [
        line
        for line in (ROOT / "tests" / "quick.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    process = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-n", processes, "-p", "no:cacheprovider", *tests],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    lines = [line for line in process.stdout.splitlines() if line]
    if process.returncode:
        print("\n".join(lines[-60:]) + process.stderr[-2000:], flush=True)
    summary = lines[-1].strip("= ") if lines else f"exit code {process.returncode}"
    print(f"{summary}, {time.monotonic() - began:.0f} s in all", flush=True)
    seconds = time.monotonic() - began
    return Outcome(
        name, _version(str(python)), versions(python), summary, seconds, process.returncode == 0
    )


def versions(python: Path) -> tuple[str, ...]:
    """The versions of the packages in `SHOWN`."""
    code = f"import importlib.metadata as m; print(*(m.version(n) for n in {SHOWN!r}))"
    process = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return tuple(process.stdout.split())


def table(rows: list[Outcome]) -> str:
    """The rows under a head, in columns."""
    lines: list[tuple[str, ...]] = [("", "Python", *SHOWN, "quick tier")]
    lines += [(r.name, r.python, *r.versions, r.tests) for r in rows]
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


if __name__ == "__main__":
    sys.exit(main())
