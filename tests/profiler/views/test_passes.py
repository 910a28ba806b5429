"""The screen of a graph's passes: what each did in words, and nodes beside what they became."""

import pytest

from flowvm.profiler.views.passes import NodeText, Pair, PassesView, PassText


def node(number, op, result="f32[4]", scope="", line=""):
    return NodeText(number, op, result, scope, line, "forward")


@pytest.mark.parametrize(
    ("made", "removed", "moved", "did"),
    [
        ((), (), False, ""),
        ((("fused", ("add", "mul")),), (), False, "fused ← add + mul"),
        ((("fused", ("add", "add")), ("fused", ("add", "add"))), (), False, "2× fused ← 2× add"),
        ((("copy", ()),), ("exp", "exp", "log"), True,
         "added copy; removed 2× exp + log; another order"),
        ((("f", tuple("abcdef")),), (), False, "f ← a + b + c + d + 2 more"),
    ],
)  # fmt: skip
def test_passes_say_what_they_did(made, removed, moved, did):
    assert PassText("p", 3, 2, made, removed, moved).did == did


def text(pairs, passes=(), idle=(), left_out=(), width=60):
    view = PassesView("g", 3, 2, passes, idle, left_out, tuple(pairs))
    lines = ["".join(span for span, _ in line) for line in view.screen(width).lines]
    assert max(map(len, lines)) <= width
    return lines


def test_merged_nodes_are_bracketed_to_their_heir():
    merged = Pair((node(0, "add"), node(1, "mul"), node(2, "exp")), node(0, "fused"), "")
    lines = text([merged], [PassText("fusion", 3, 1, (("fused", ("add",)),), (), False)])
    assert lines[0] == "g: 3 nodes captured, 2 after the passes"
    own = lines[-3:]
    assert [line[29] for line in own] == ["┐", "┤", "┘"]
    assert ["fused" in line for line in own] == [False, True, False]
    assert ["► " in line for line in own] == [False, True, False]


def test_single_nodes_are_kept_removed_or_added():
    pairs = [
        Pair((node(0, "add"),), node(0, "add"), ""),
        Pair((node(1, "exp"),), None, "unused"),
        Pair((), node(1, "copy"), ""),
        Pair((node(2, "mul"), node(3, "div")), None, "unused"),
    ]
    lines = text(pairs)[-5:]
    assert "─► " in lines[0]
    assert " × " in lines[1]
    assert "removed: unused" in lines[1]
    assert " + " in lines[2]
    assert lines[2].startswith(" " * 28)
    assert "┐× " in lines[3]
    assert "┘" in lines[4]


def test_notes_name_idle_passes_and_none():
    assert any("no pass ran here" in line for line in text([]))
    lines = text([], idle=("a", "b"), left_out=("c",))
    assert " nothing to do: a, b" in lines
    assert " switched off: c" in lines
    assert not any("no pass" in line for line in lines)


@pytest.mark.parametrize("width", [20, 33, 80, 200])
def test_screens_are_as_wide_as_they_may_be(width):
    pairs = [Pair((node(0, "an_operator_of_a_long_name", "f32[4,4]", "model.layer", "a.py:3"),),
                  node(0, "other"), "")]  # fmt: skip
    lines = text(pairs, width=width)
    if width == 200:
        assert "model.layer a.py:3" in lines[-1]
