"""The newest whole checkpoint in a folder of checkpoints, and parts of those that are not whole.

A checkpoint is a folder of shards (`flowvm.files.shards`): DIR itself, or a folder in it.  It is
whole when its index is there and the files fit it.  The index is written last, so a program that
was ended while it wrote leaves files without one.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from flowvm.errors import FileError
from flowvm.files.shards import INDEX, contents, is_shards, named_files

# files of a save: of a rank, its mark that it has written, and either while it is written
_PART = re.compile(r"[0-9a-f]{16}-\d{5}\.safetensors")
_BESIDE = re.compile(
    r"\.[0-9a-f]{16}-\d{5}\.done"
    r"|\.(?:[0-9a-f]{16}-\d{5}\.safetensors|index\.json)\.[0-9a-f]{12}"
)


def newest(folder: Path) -> Path | None:
    """Return the whole checkpoint in a folder whose index was written last, None if there is none.

    >>> import tempfile
    >>> from flowvm.files.newest import newest
    >>> import flowvm.distributed.checkpoint as dcp
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (9, 10):
    ...         dcp.save({"w": flow.ones(2)}, checkpoint_id=f"{folder}/step_{step}")
    ...     newest(folder).name
    'step_10'
    """
    checkpoints = [place for place in _places(Path(folder)) if is_shards(place)]
    checkpoints.sort(key=lambda place: (place / INDEX).stat().st_mtime_ns, reverse=True)
    return next((place for place in checkpoints if _is_whole(place)), None)


def swept(folder: Path) -> list[Path]:
    """Remove what saves that were not finished have left in a folder of checkpoints, and folders
    that are empty then.  Return the removed paths.  Nothing may be saved there meanwhile.
    """
    removed = []
    for place in _places(Path(folder)):
        try:
            named = named_files(place) if is_shards(place) else set()
        except FileError:  # an index that says nothing: somebody may want to look at it
            continue
        for path in list(place.iterdir()):
            dead = _PART.fullmatch(path.name) and path.name not in named
            if dead or _BESIDE.fullmatch(path.name):
                path.unlink(missing_ok=True)
                removed.append(path)
        if place != folder and any(path.parent == place for path in removed):
            with contextlib.suppress(OSError):  # there is something else
                place.rmdir()
                removed.append(place)
    return removed


def _places(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield folder
        yield from (path for path in sorted(folder.iterdir()) if path.is_dir())


def _is_whole(place: Path) -> bool:
    try:
        contents(place)
    except (FileError, OSError):
        return False
    return True
