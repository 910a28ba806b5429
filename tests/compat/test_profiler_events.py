"""Events of `torch.profiler` made by hand: their sums, and the tables of them."""

import pytest

from flowvm.compat.profiler_events import EventList, FunctionEvent, Interval
from flowvm.errors import ArgumentError


def event(number, name, start, end, nbytes=0, flops=0):
    return FunctionEvent(number, name, Interval(start, end), [], [], nbytes, flops, "cpu")


EVENTS = EventList(
    [
        event(0, "mul", 0.0, 4.0, nbytes=8, flops=2),
        event(1, "add", 4.0, 5.0, nbytes=100),
        event(2, "mul", 5.0, 7.0, nbytes=8, flops=2),
        event(3, "exp", 7.0, 12.5, nbytes=4),
    ]
)


def test_events_are_summed_by_key():
    mul, add, exp = EVENTS.key_averages()
    assert [e.key for e in (mul, add, exp)] == ["mul", "add", "exp"]  # in order of the first call
    assert (mul.name, mul.count, mul.cpu_time_total, mul.cpu_time) == ("mul", 2, 6.0, 3.0)
    assert (mul.cpu_memory_usage, mul.flops, mul.self_cpu_time_total) == (16, 4, 6.0)
    total = EVENTS.total_average()
    assert (total.key, total.count, total.cpu_time_total) == ("Total", 4, 12.5)
    assert EVENTS.key_averages().total_average() == total  # sums of sums
    assert EVENTS[3].key == "exp"
    assert EVENTS[3].cpu_time == EVENTS[3].cpu_time_total == EVENTS[3].self_cpu_time_total == 5.5


def rows(*args, **kwargs):
    """The names in a table, from the top."""
    lines = EVENTS.key_averages().table(*args, **kwargs).splitlines()
    assert lines[0].split() == [
        "Name",
        "CPU",
        "%",
        "CPU",
        "total",
        "CPU",
        "mean",
        "#",
        "of",
        "Calls",
    ]
    assert lines[-1] == "Self CPU time total: 12.500us"
    return [line.split()[0] for line in lines[1:-1]]


@pytest.mark.parametrize(
    ("word", "order"),
    [
        (None, ["mul", "exp", "add"]),
        ("count", ["mul", "add", "exp"]),  # equal ones as they came
        ("cpu_time", ["exp", "mul", "add"]),
        ("cpu_time_total", ["mul", "exp", "add"]),
        ("self_cuda_time_total", ["mul", "exp", "add"]),
        ("self_device_memory_usage", ["add", "mul", "exp"]),
        ("flops", ["mul", "add", "exp"]),
    ],
)
def test_events_are_sorted_by_pytorchs_words(word, order):
    assert rows(word) == order


@pytest.mark.parametrize(("limit", "left"), [(0, 0), (2, 2), (100, 3), (-1, 3)])
def test_tables_have_at_most_so_many_events(limit, left):
    """-1 is PyTorch's word for all of them."""
    assert len(rows(row_limit=limit)) == left


def test_tables_of_a_wrong_word_are_an_error():
    with pytest.raises(ArgumentError, match=r"sort_by='time': .*cpu_time_total"):
        EVENTS.table(sort_by="time")


def test_tables_of_no_events_have_a_head():
    head, total = EventList[FunctionEvent]().table(header="mine").splitlines()[1:]
    assert head.startswith("Name")
    assert total == "Self CPU time total: 0.000us"


def test_long_names_are_cropped():
    text = EventList([event(0, "x" * 30, 0.0, 1.0)]).table(max_name_column_width=8)
    assert text.splitlines()[1].split()[:2] == ["x" * 8, "100.00%"]
