"""Texts of graphs."""

import pytest

from flowvm.graph.logical.printer import LONGEST, MOST_LISTED, listed, size_text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(512, "512 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 30, "5.0 GiB")],
)
def test_printer_writes_sizes_for_readers(nbytes, text):
    assert size_text(nbytes) == text


def test_printer_lists_the_first_texts_and_cuts_long_ones():
    assert listed(["a", "b"]) == "a, b"
    assert listed(["x"] * (MOST_LISTED + 2)).endswith("x, and 2 more")
    assert listed(["y" * (LONGEST + 1)]) == "y" * LONGEST + ".."
