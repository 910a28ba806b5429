"""A run takes the same ops of all products, and all cases where it is asked for them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import pytest

OPS = [f"op{n}" for n in range(40)]

@pytest.mark.parametrize("op", OPS)
@pytest.mark.product(4)
def test_values(op):
    pass

@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.product(4, always=("float32",))
def test_dtypes(op, dtype):
    pass

@pytest.mark.parametrize("op", OPS)
def test_plain(op):
    pass
"""


def collected(folder: Path, *options: str) -> dict[str, list[str]]:
    """Return the cases that pytest collects, by test."""
    (folder / "test_program.py").write_text(PROGRAM)
    known = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    known.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-q"]
    process = subprocess.run(
        [*command, "--import-mode=importlib", "--collect-only", "--rootdir", str(folder), *options],
        capture_output=True, text=True, cwd=folder, env=known,
    )  # fmt: skip
    cases: dict[str, list[str]] = {}
    for line in process.stdout.splitlines():
        if "::" in line:
            test, _, case = line.partition("::")[2].partition("[")
            cases.setdefault(test, []).append(case.rstrip("]"))
    return cases


def test_all_products_share_the_ops_of_a_sample(tmp_path: Path) -> None:
    cases = collected(tmp_path)
    values = cases["test_values"]
    assert 0 < len(values) < 40
    doubles = [case for case in cases["test_dtypes"] if "float64" in case]
    assert [case.split("-")[0] for case in doubles] == values
    assert len(cases["test_dtypes"]) == 40 + len(doubles)
    assert len(cases["test_plain"]) == 40


@pytest.mark.parametrize(
    "options", [["--whole"], ["-k", "values"], ["test_program.py::test_values"]]
)
def test_whole_products_are_had_by_asking(tmp_path: Path, options: list[str]) -> None:
    assert len(collected(tmp_path, *options)["test_values"]) == 40
