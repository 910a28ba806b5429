"""Bound of the memory for tensors: a share of the machine's, or of its cgroup's."""

from __future__ import annotations

import os
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def there_is() -> int:
    """Bytes that this process can have at most: those of the machine, or of the tightest cgroup
    that it is in.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_limits()])


def bound(memory: float | int) -> int:
    """Bytes that the VM may have, for a `config.memory`: bytes, or as a float a share of what
    there is.
    """
    return int(memory * there_is()) if isinstance(memory, float) else memory


def _limits() -> list[int]:
    """The limits of this process's cgroups, of both versions; those that can be read."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    limits: list[int] = []
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if not kinds:
            root, name = _GROUPS, "memory.max"
        elif "memory" in kinds.split(","):
            root, name = _GROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        for place in (group, *group.parents):  # a container may see its own as the root
            limits += _limit(place / name)
            if place == root:
                break
    return limits


def _limit(path: Path) -> list[int]:
    try:
        text = path.read_text().strip()
    except OSError:
        return []
    return [int(text)] if text.isdecimal() else []
