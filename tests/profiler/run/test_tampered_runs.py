"""Files of recorded runs that somebody has changed: refused before anything is indexed by them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.profiler.run.run import Run


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(header, columns) of a run."""
    model = flow.nn.Linear(4, 4)
    graph = flow.compile(lambda x: (x * 2).tanh())
    with flow.profiler.profile() as p:
        model(flow.ones(2, 4)).sum().backward()
        graph(flow.ones(3)).tolist()
    path = tmp_path_factory.mktemp("runs") / "run"
    p.save(path)
    with np.load(path) as file:
        columns = {name: file[name] for name in file.files}
    return json.loads(str(columns.pop("header"))), columns


def refuse(tmp_path, header, columns, match=""):
    path = tmp_path / "changed"
    text = header if isinstance(header, str) else json.dumps(header)
    with open(path, "wb") as file:
        np.savez(file, header=np.array(text), **columns)
    if match is None:
        return Run.load(path)
    with pytest.raises(ArgumentError, match=match or "damaged|not whole"):
        Run.load(path)
    return None


def test_what_was_not_changed_loads(whole, tmp_path):
    run = refuse(tmp_path, *whole, match=None)
    assert len(run) == len(whole[1]["seq"]) > 0


def changed(column, value, place=0):
    copy = column.copy()
    copy.flat[place] = value
    return copy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("op", -1), ("op", 1 << 30), ("line", 1 << 30), ("line", -2), ("stream", 999),
        ("spot", 1 << 30), ("module", 1 << 30), ("forward", -3), ("kind", 100), ("access", -1),
        ("tensor", 1 << 30), ("tensor", -1), ("size", -1), ("source", -1), ("source", 1 << 30),
        ("target", 1 << 30), ("hazard", 99), ("operand", 1 << 30), ("task_launch", -1),
        ("task_op", 1 << 30), ("task_number", 1 << 30), ("offsets", 1), ("offsets", -1),
        ("seq", 1 << 62), ("times", -(1 << 62)), ("clock", 9),
    ],
)  # fmt: skip
def test_an_index_points_to_what_is_there(whole, tmp_path, name, value):
    header, columns = whole
    assert columns[name].size, f"{name} has nothing to change"
    refuse(tmp_path, header, {**columns, name: changed(columns[name], value)}, name)


def test_an_edge_points_back_in_time(whole, tmp_path):
    header, columns = whole
    turned = {**columns, "source": columns["target"]}
    refuse(tmp_path, header, turned, "target")


@pytest.mark.parametrize("name", ["seq", "times", "tensor", "source", "task_op"])
def test_columns_are_as_long_as_each_other_and_of_their_dtype(whole, tmp_path, name):
    header, columns = whole
    for wrong in (
        columns[name][:-1],
        columns[name].astype(np.float64),
        columns[name].astype(object),
        columns[name][None],
        np.array(3),
    ):
        refuse(tmp_path, header, {**columns, name: wrong})
    refuse(tmp_path, header, {k: v for k, v in columns.items() if k != name}, "columns")
    refuse(tmp_path, header, {**columns, "more": columns["seq"]}, "columns")


class Bomb:
    def __reduce__(self):
        return print, ("it ran",)


def test_a_pickle_in_it_is_not_opened(whole, tmp_path, capsys):
    header, columns = whole
    bomb = np.array([Bomb()] * len(columns["seq"]), dtype=object)
    refuse(tmp_path, header, {**columns, "seq": bomb})
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("begun", "now"), ("begun", 1.5), ("names", "abc"), ("names", [1]), ("names", []),
        ("streams", []), ("spots", [["text"]]), ("stacks", [[0, 1 << 20]]), ("stacks", [[1 << 20]]),
        ("marks", [["m", 0, 1, 0, 5, 2]]), ("marks", [["m"]]), ("info", []),
        ("info", {"held": [[0, 1, "param"]]}), ("info", {"spaces": ["cpu"] * 99}),
        ("info", {"unknown": 1}), ("info", {"live": {"cpu": "much"}}),
        ("info", {"plans": {"p": {}}}), ("info", {"recording": [0]}),
    ],
)  # fmt: skip
def test_names_and_marks_are_checked(whole, tmp_path, key, value):
    header, columns = whole
    refuse(tmp_path, {**header, key: value}, columns)


def test_the_header_is_json_that_one_can_trust(whole, tmp_path):
    header, columns = whole
    text = json.dumps(header)
    for wrong in ("[]", "", "[" * 50_000, text[:-1], text.replace("{", '{"begun": 1, ', 1)):
        refuse(tmp_path, wrong, columns)
