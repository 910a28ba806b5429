"""Programs in processes of their own, for faults that end a device, a process or both."""

import os
import subprocess
import sys
import textwrap

__all__ = ["run"]


def run(program, *, quiet=False, **settings):
    """Return the output of a program in a new process; `quiet`: check that stderr is empty."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not (quiet and done.stderr), done.stderr
    return done.stdout
