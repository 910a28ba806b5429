"""Records of words: numbers follow from the declarations, whose promises are checked here."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from flowvm.vm.machine import words
from flowvm.vm.machine.record import LINE, Record, field, fields_of, line, record, shown
from flowvm.vm.machine.words import CTL, INS, POL, REGIONS, RING, STR, name_of

MODULES = ("words", "device_words", "plan_words", "sample_words", "wait_words")


def records():
    """Every record that there is, by its name."""
    modules = [importlib.import_module(f"flowvm.vm.machine.{name}") for name in MODULES]
    return {
        value.__name__: value
        for module in modules
        for value in vars(module).values()
        if hasattr(value, "__fields__")
    }


@record(words=24, by="a test")
class ROW(Record):
    """One of these."""

    MARK = field("its number")
    TIMES = field("when", words=2)
    ALONE = line("futex word", by="all")
    AFTER = field("the rest", at=17)

    FACTOR = 3


def test_numbers_follow_from_the_order():
    assert (ROW.MARK, ROW.TIMES, ROW.ALONE, ROW.AFTER) == (0, 1, 8, 17)
    assert (ROW.FACTOR, ROW.WORDS, ROW.__doc__) == (3, 24, "One of these.")
    assert [f.by for f in fields_of(ROW)] == ["a test", "a test", "all", "a test"]


def test_fields_do_not_overlap_and_fit():
    with pytest.raises(ValueError, match="LATE: word 1 has another field"):

        @record()
        class ONE(Record):
            FIRST = field("two words", words=2)
            LATE = field("within the first", at=1)

    with pytest.raises(ValueError, match="9 words do not fit into 8"):

        @record(words=8)
        class OTHER(Record):
            LAST = field("behind the end", at=8)


def test_control_words_of_policies_lie_behind_the_others():
    last, first = fields_of(CTL)[-1], fields_of(POL)[0]
    assert first.at >= last.at + last.words
    assert max(f.at + f.words for f in fields_of(POL)) <= CTL.WORDS


@pytest.mark.parametrize("name", records())
def test_a_record_is_as_it_promises(name):
    table = records()[name]
    assert table.__doc__, "says what it is"
    end, alone = 0, -1
    for part in fields_of(table):
        assert part.at >= end, f"{part.name} overlaps"
        assert part.meaning, f"{part.name}: what is it?"
        assert part.by, f"{part.name}: who writes it?"
        assert part.at // LINE != alone, f"{part.name} shares a cache line"
        end = part.at + part.words
    assert end <= getattr(table, "WORDS", end)


def test_words_of_several_writers_have_cache_lines_of_their_own():
    """In CTL all, in STR those that other threads poll."""
    assert all(part.at % LINE == 0 for part in fields_of(CTL))
    lines = {}
    for part in fields_of(CTL):
        assert lines.setdefault(part.at // LINE, part.name) == part.name
    polled = {"TAIL", "DONE", "SLEEPS", "COLLECTED", "JOB", "LEFT", "TEAM_SLEEPS", "TEAM", "NEWS"}
    for part in fields_of(STR):
        if part.name in polled | {"LAUNCHED"}:
            others = [f for f in fields_of(STR) if f.at // LINE == part.at // LINE]
            assert others == [part]


def test_regions_lie_behind_each_other():
    end = 0
    for table in REGIONS:
        assert table.AT == end
        assert table.AT % words.PAGE == 0
        end = table.AT + (table.LENGTH * table.WORDS + words.PAGE - 1) // words.PAGE * words.PAGE
    assert end == words.ARRAY.WORDS
    assert CTL.AT == 0, "control words are addressed by their own index"


def test_a_word_has_a_name():
    assert name_of(CTL.HEAD) == "CTL.HEAD"
    assert name_of(INS.AT + 7 * INS.WORDS + INS.T_END) == "INS[7].T_END"
    assert name_of(STR.AT + STR.CLASSES + 3) == "STR[0].CLASSES+3"
    assert name_of(RING.AT + RING.WORDS) == "RING[1]"
    assert name_of(RING.AT + 2) == "RING[0]+2"


def test_a_record_can_be_shown():
    text = shown(ROW, memoryview(np.arange(100)), 10)
    assert text.splitlines() == [
        "MARK      10  its number",
        "TIMES  11 12  when",
        "ALONE     18  futex word",
        "AFTER     27  the rest",
    ]
