"""Programs in processes of their own, for faults that end a device, a process or both."""

import os
import subprocess
import sys
import textwrap

__all__ = ["run"]


def run(program, *, quiet=False, **settings):
    """Return the output of a program in a new process; `quiet`: check that stderr is empty."""
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert not (quiet and process.stderr), process.stderr
    return process.stdout
