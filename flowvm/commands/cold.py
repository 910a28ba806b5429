"""`flowvm doctor --cold`: the first minute of a program on a machine that has compiled nothing.

The program runs in a process of its own with an empty cache, the demo's first training step unless
another is named.  Then what was compiled for it is drawn: by whom, for how long, in which phase.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from flowvm.compiler import record, waterfall
from flowvm.errors import ArgumentError
from flowvm.guards import processes


def main(script: str) -> int:
    """Run `script`, or the demo's first step if it is "", and draw.  Return its exit code."""
    if script and not Path(script).is_file():
        raise ArgumentError(f"there is no script {script!r} to run: give the path of a file")
    own = processes.own("flowvm.commands.demo:first_step")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else waterfall.WIDTH)
    with tempfile.TemporaryDirectory() as folder:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        process = processes.start(
            processes.program(script) if script else own,
            env={**os.environ, "FLOWVM_CACHE_DIR": folder},
        )
        code = process.wait()
        passed = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        rows = waterfall.of(process.pid, record.read(Path(folder)))
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    compilations = sum(bool(row.digest and row.seconds) for row in rows)
    console.print(
        f"{script or 'the first training step of the demo'}, with an empty cache: {passed:.1f} s, "
        f"and {busy:.1f} s of a processor with its helpers; {compilations} functions compiled\n"
    )
    for table in waterfall.tables(rows):
        console.print(table)
    if text := waterfall.warning(rows):
        console.print(text, style="yellow")
    return code
