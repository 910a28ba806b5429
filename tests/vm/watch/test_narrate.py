"""Lines of FLOWVM_DEBUG: waits by hazards, sizes, kernels' sources, and what cannot be written."""

import io
import sys
from types import SimpleNamespace

import pytest

from flowvm.vm.machine.words import KIND
from flowvm.vm.watch import narrate
from flowvm.vm.watch.narrate import Narrator


def waits(*steps):
    """Return the steps that each step (number, kind, reads, writes) waits for."""
    narrator = Narrator(SimpleNamespace())
    out = []
    for seq, kind, reads, writes in steps:
        operands = [*reads, *writes]
        flags = [False] * len(reads) + [True] * len(writes)
        out.append(narrator._waits(seq, kind, operands, flags))
    return out


def test_waits_are_by_the_schedulers_rule():
    call = KIND.OP_CALL
    assert waits(
        (0, call, [], [1]),  # makes 1
        (1, call, [1], [2]),
        (2, call, [1], [3]),  # readers do not wait for each other
        (3, call, [2], [1]),  # writes 1: behind its writer and both readers
        (4, call, [1, 1], [4]),
        (5, call, [], [1]),
    ) == [
        [], ["#0 RAW"], ["#0 RAW"], ["#0 WAW", "#1 WAR", "#2 WAR"], ["#3 RAW"],
        ["#3 WAW", "#4 WAR"],
    ]  # fmt: skip


def test_an_operand_that_is_read_and_written_is_one_hazard():
    assert waits((0, KIND.OP_CALL, [], [1]), (1, KIND.OP_CALL, [1], [1])) == [[], ["#0 WAW"]]


def test_released_numbers_are_of_other_storages():
    assert waits(
        (0, KIND.OP_CALL, [], [1]), (1, KIND.RELEASE, [], [1]), (2, KIND.OP_CALL, [1], [2])
    ) == [[], ["#0 WAW"], []]


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, ""), (1, "1 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 20, "3.0 MiB"),
     (5 << 29, "2.5 GiB")],
)  # fmt: skip
def test_sizes_have_a_unit(nbytes, text):
    assert narrate._size(nbytes) == text


def test_kernels_are_shown_with_their_types():
    def body(out, x, n):
        out[:] = x * n

    text = narrate.kernel_text("scale", body, [("float32", 2, True), ("int64", 1, False)], "dq")
    head, *source = text.splitlines()
    assert head == "kernel of scale: array(float32, 2d, C), array(int64, 1d, A), float64, int64"
    assert source == ["    def body(out, x, n):", "        out[:] = x * n"]
    made = eval("lambda out: None", {})
    assert "(generated: <function" in narrate.kernel_text("f", made, [], "")


class Stream(io.StringIO):
    encoding = "ascii"


def test_lines_go_where_glyphs_can(monkeypatch):
    stream = Stream()
    monkeypatch.setattr(sys, "stderr", stream)
    narrate._write("mut out · const x\x1b[2J\n")
    assert stream.getvalue().startswith("mut out | const x")
    assert "\x1b" not in stream.getvalue()


def test_lines_without_a_reader_stop_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    narrate._write("lost\n")
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    narrate._write("lost\n")
