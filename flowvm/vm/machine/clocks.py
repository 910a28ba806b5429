"""The clock behind the recorder's `ticks`."""

from __future__ import annotations

import functools
import pathlib
import platform


@functools.cache
def ticks_are_tsc() -> bool:
    """Return True if `ticks` reads the processor's counter.  Linux uses it if it runs evenly and
    alike on all cores.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    source = pathlib.Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    try:
        return source.read_text().strip() == "tsc"
    except OSError:
        return False
