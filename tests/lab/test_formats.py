"""Graphs of work in files of other programs."""

import pytest

from flowvm.errors import ArgumentError
from flowvm.lab import Dag, formats


@pytest.mark.parametrize("end", sorted(set(formats.WRITERS) & set(formats.READERS)))
def test_formats_read_what_they_wrote(tmp_path, end):
    dag = Dag(cost=[1.0, 2.0, 3.0], edges=[(0, 1), (1, 2), (0, 2)])
    path = tmp_path / f"graph{end}"
    formats.write(dag, path)
    parts = formats.read(path)
    assert parts.cost == pytest.approx([1.0, 2.0, 3.0])
    assert {(a, b) for a, b, _ in parts.edges} == {(0, 1), (1, 2), (0, 2)}


def test_formats_that_are_unknown_or_broken_are_errors(tmp_path):
    path = tmp_path / "graph.json"
    path.write_text("{")
    with pytest.raises(ArgumentError, match="graph"):
        formats.read(path)
    with pytest.raises(ArgumentError, match="png"):
        formats.read(tmp_path / "graph.png")
