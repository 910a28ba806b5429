"""A browser without a window, where one is installed: for tests of the profiler's page, and for the
pictures of it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

__all__ = ["CHROMIUM", "browse"]

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def browse(url: str, profile: Path, *options: str, patience: float = 120) -> str:
    """Return the text that Chromium prints for a page; `profile` is a new folder of its own.

    Chromium asks only the page's server.  `options` are its command line, as `--dump-dom`.
    """
    assert CHROMIUM, "no Chromium is installed"
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         f"--user-data-dir={profile}", *options, url],
        capture_output=True, text=True, timeout=patience, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"Chromium ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout
