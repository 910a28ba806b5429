"""A bound on the time of a case or a test: past it, the process prints all stacks and ends.

`faulthandler.dump_traceback_later` reads frames that other threads go on changing and freeing, so a
process that is only late may die of it by a segmentation fault: one time in 400, measured with the
campaign of threads.  Here a thread that has the GIL prints the stacks, and meanwhile no other
thread of Python changes its own.  faulthandler's way remains for a thread that never gives the GIL
back, which is then the only one that runs.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

GRACE = 30.0  # seconds in which the printing thread gets the GIL, if anyone gives it back


@contextmanager
def patience(seconds: float, report: Callable[[], bool] | None = None) -> Iterator[None]:
    """End the process if the with statement takes longer than `seconds`.

    report    prints what there is beside the stacks, and says whether the process is to end
    """
    over = threading.Event()
    arguments = over, seconds, report
    watcher = threading.Thread(target=_watch, args=arguments, name="patience", daemon=True)
    faulthandler.dump_traceback_later(seconds + GRACE, exit=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        faulthandler.cancel_dump_traceback_later()


def _watch(over: threading.Event, seconds: float, report: Callable[[], bool] | None = None) -> None:
    if not over.wait(seconds) and (report is None or report()):
        print(f"no end within {seconds:g} s", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)
