"""The exit code of a process whose work failed unseen: 1 in the place of 0, and no other."""

import subprocess
import sys

import numpy as np
import pytest

from flowvm.vm.engine import exit_code

CODE = """
import sys
from flowvm.vm.engine import exit_code
exit_code.fail()
{end}
"""


@pytest.mark.parametrize(("end", "code"), [("", 1), ("sys.exit(3)", 3), ("raise ValueError", 1)])
def test_codes_of_processes(end, code):
    done = subprocess.run([sys.executable, "-c", CODE.format(end=end)], capture_output=True)
    assert done.returncode == code, done.stderr


def test_a_code_that_a_program_chose_stays(monkeypatch):
    called = []
    monkeypatch.setattr(exit_code, "call_address", lambda *args: called.append(args) or 0)
    leave = np.array([77, 1, 0, 0], np.int64)
    at = leave.ctypes.data
    for code in (3, 1, -1, 255):
        assert exit_code.ended(code, at) == 0
    assert called == []
    exit_code.ended(1 << 32, at)  # a word has 32 bits of the code
    exit_code.ended(0, at)
    assert called == [(77, at + 8)] * 2
