"""`flowvm lab`: a table of makespans of a graph in a file."""

import argparse
import json

import pytest

from flowvm import lab
from flowvm.commands import lab as command
from flowvm.errors import ArgumentError


@pytest.fixture
def path(tmp_path):
    """Two chains of 2 ms each, as a graph of the simulator's own file format."""
    dag = lab.Dag([1e-3] * 4, [(0, 1, 0), (2, 3, 0)])
    to = tmp_path / "chains.json"
    dag.save(to)
    return str(to)


def run(path, *more):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.main(parser.parse_args([path, *more]))


def test_makespans_are_a_table(path, capsys):
    assert run(path, "--workers", "1, 2", "--policy", "fifo, lifo") == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head == "4 tasks, 2 edges: work 4 ms, span 2 ms, width 2"
    assert rows[0].split() == ["workers", "1", "2", "ms"]
    assert rows[1].split() == ["fifo", "4", "2"]
    assert rows[2].split() == ["lifo", "4", "2"]
    assert rows[3].split() == ["bound", "4", "2"]


def test_the_table_as_json_and_files(path, tmp_path, capsys):
    csv, svg = tmp_path / "t.csv", tmp_path / "t.svg"
    run(path, "--workers", "2", "--policy", "fifo", "--json", "--csv", str(csv), "--svg", str(svg))
    read = json.loads(capsys.readouterr().out)
    assert read["tasks"] == 4
    assert read["makespan"]["fifo"]["2"] == pytest.approx(2e-3)
    assert read["bound"]["2"] == pytest.approx(2e-3)
    assert len(csv.read_text().splitlines()) == 2
    assert svg.read_text().startswith(("<svg", "<?xml"))


@pytest.mark.parametrize("workers", ["0", "-1", "two", "1,,2", ""])
def test_workers_are_counts(path, workers):
    with pytest.raises(ArgumentError, match="--workers: numbers from 1 up"):
        run(path, f"--workers={workers}")
