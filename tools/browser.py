"""A browser without a window, where one is installed: for tests of the profiler's page, and for the
pictures of it.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["CHROMIUM", "browse", "opened"]

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def browse(url: str, profile: Path, *options: str, patience: float = 120) -> str:
    """Return the text that Chromium prints for a page; `profile` is a new folder of its own.

    Chromium asks only the page's server.  `options` are its command line, as `--dump-dom`.
    """
    process = subprocess.run(
        _command(url, profile, *options),
        capture_output=True, text=True, timeout=patience, check=False,
    )  # fmt: skip
    if process.returncode:
        raise RuntimeError(f"Chromium ended with {process.returncode}: {process.stderr[-2000:]}")
    return process.stdout


@contextmanager
def opened(url: str, profile: Path) -> Iterator[None]:
    """Show a page in Chromium, in real time, until the block ends."""
    command = _command(url, profile, "--remote-debugging-port=0")  # or it ends by itself
    shown = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        shown.kill()
        shown.wait()


def _command(url: str, profile: Path, *options: str) -> list[str]:
    assert CHROMIUM, "no Chromium is installed"
    return [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={profile}", *options, url,
    ]  # fmt: skip
