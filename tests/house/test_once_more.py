"""A failed test is run once more alone, and named where it passes then."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os
from pathlib import Path

def test_passes():
    pass

def test_fails_at_first():
    mark = Path(__file__).with_suffix(".mark")
    seen = mark.exists()
    mark.touch()
    assert seen

def test_fails():
    assert os.environ["ALWAYS"] == "0"
"""


@pytest.mark.parametrize(("always", "code"), [("0", 0), ("1", 1)])
def test_a_failed_test_is_run_again_alone(tmp_path, always, code):
    script = tmp_path / "test_program.py"
    script.write_text(PROGRAM)
    known = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "ALWAYS": always}
    known["FLOWVM_TEST_LOOPS"] = "python"  # nothing is computed
    known.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-q"]
    process = subprocess.run(
        [*command, "--import-mode=importlib", "--rootdir", str(tmp_path), "--once-more",
         script.name], capture_output=True, text=True, cwd=tmp_path, env=known,
    )  # fmt: skip
    lines = process.stdout.splitlines()
    assert "FLAKY test_program.py::test_fails_at_first" in lines, process.stdout + process.stderr
    assert ("FAILED TWICE test_program.py::test_fails" in lines) is bool(code)
    assert process.returncode == code
