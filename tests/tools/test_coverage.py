"""docs/reference/coverage.md agrees with the tree."""

import pytest

import flowvm as flow
from flowvm.ops import SAMPLES
from tools import coverage


def test_the_page_is_the_trees():
    assert coverage.PAGE.read_text() == coverage.page(), "run python -m tools.coverage"


def test_names_are_looked_up_where_they_stand():
    spaces = coverage.names()
    assert coverage.place_of("torch.Tensor") is flow.Tensor
    assert coverage.place_of("torch.nn.functional") is flow.nn.functional
    assert "relu" in spaces["torch.nn.functional"]
    assert {"add", "cat", "quantile"} <= set(spaces["torch"])


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("add", ("ops", "ops", "yes", "yes", "yes")),
        ("exp", ("element", "element", "yes", "yes", "yes")),
        ("matmul", ("kernel", "kernel", "yes", "yes", "yes")),
        ("nonzero", ("ops", "ops", "–", "–", "waits")),
    ],
)
def test_a_row_is_the_declarations(name, row):
    samples = {id(s.function): s for s in reversed(SAMPLES)}
    assert coverage.row_of(name, getattr(flow, name), samples)[:5] == row
