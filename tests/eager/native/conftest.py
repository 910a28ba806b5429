"""Fixtures that tests of native calls share."""

from __future__ import annotations

import pytest

from flowvm.vm.callers.hot import hot


@pytest.fixture(autouse=True)
def no_device():
    """Forget devices: after a device was used, every call is Python's, which chooses the stream."""
    departed = hot["departed"]
    used = "devices" in departed
    departed.discard("devices")
    yield
    if used:
        departed.add("devices")
