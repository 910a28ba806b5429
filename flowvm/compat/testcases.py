"""`oneflow.unittest`: Python's TestCase, and decorators by how many hosts and ranks a test needs.

`skip_unless_2n4d` is for a test that needs two hosts of four ranks each.
"""

from __future__ import annotations

import os
import re
import unittest
from collections.abc import Callable
from typing import Any

from flowvm.errors import MissingNameError
from flowvm.ranks.world import world, world_size


class _Environment:
    """`oneflow.unittest.env`."""

    @staticmethod
    def eager_execution_enabled() -> bool:
        """Return True: calls run at once where no graph is captured."""
        return True


env = _Environment()
TestCase = unittest.TestCase
main = unittest.main
_NEEDED = re.compile(r"skip_unless_(\d+)n(\d+)d")


def __getattr__(name: str) -> Callable[[], Callable[[Any], Any]]:
    match = _NEEDED.fullmatch(name)
    if match is None:
        raise MissingNameError(f"oneflow.unittest has no {name!r}", name)
    hosts, each = int(match[1]), int(match[2])

    def decorator() -> Callable[[Any], object]:
        size = world_size()
        host_count = world().hosts if size > 1 else 1
        return unittest.skipUnless(
            (host_count, size) == (hosts, hosts * each),
            f"needs {hosts} host(s) with {each} rank(s) each, and there are {size} on {host_count}",
        )

    return decorator


def dataset_dir(name: str) -> str:
    """The folder of a data set: below `ONEFLOW_TEST_DATASET_DIR`, or `/dataset`."""
    return os.path.join(os.environ.get("ONEFLOW_TEST_DATASET_DIR", "/dataset"), name)
