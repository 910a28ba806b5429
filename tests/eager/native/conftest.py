"""What tests of native calls share."""

from __future__ import annotations

import pytest

from flowvm.vm.callers.hot import hot


@pytest.fixture(autouse=True)
def no_device():
    """Where a device was used, by whichever test, every call is Python's: it asks where to."""
    departed = hot["departed"]
    used = "devices" in departed
    departed.discard("devices")
    yield
    if used:
        departed.add("devices")
