"""A test that takes too long ends its process, which says where each thread is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SLOW = """
import threading
import pytest

def test_of_the_past():
    pass

@pytest.mark.timeout(0.5, func_only=True)
def test_without_end():
    print("this was printed")
    threading.Event().wait()
"""


def test_late_test_leaves_stacks(tmp_path):
    path = tmp_path / "test_slow.py"
    path.write_text(SLOW)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--rootdir", str(ROOT)]
    command += ["--timeout", "600", "--timeout-method", "thread", str(path)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 1, process.stderr
    assert "+ Timeout +" in process.stderr
    assert "this was printed" in process.stderr
    assert "in test_without_end" in process.stderr
    assert "no end within 0.5 s" in process.stderr
