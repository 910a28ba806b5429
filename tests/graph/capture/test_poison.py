"""Instructions in place of captured operations: kernels that fail, an entry for each shape."""

import pytest

import flowvm as flow
from flowvm.errors import CaptureError, Status
from flowvm.graph.capture import poison
from flowvm.graph.capture.capture import capturing
from flowvm.vm.engine.engine import engine


def test_kernels_fail_with_the_status_of_captures():
    assert poison.no_value(0, 0, 0, 0) == poison.CAPTURED == Status.CAPTURED


def test_entries_are_made_once_and_forgotten_with_the_vms():
    entry = poison.entry_instead(2, "split of a test")
    assert poison.entry_instead(2, "split of a test") == entry
    assert poison.entry_instead(1, "split of a test") != entry
    assert engine.entries.info[entry][0] == "split of a test"
    assert poison._instead.cache_clear in engine.entries.on_full


def test_the_error_of_each_output_is_its_own():
    with capturing("f", []) as capture:
        low, high = flow.arange(4.0).chunk(2)
        total = low + high
        capture.output(total)
        with pytest.raises(CaptureError, match="add"):
            total.tolist()
