"""Timings of statements and tables of them."""

import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.utils.benchmark import Compare, Measurement, TaskSpec, Timer


def clock(step):
    """A clock that goes on by `step` each time that it is asked."""
    now = [0.0]

    def ask():
        now[0] += step
        return now[0]

    return ask


def test_a_timing_is_of_all_runs_and_of_kernels():
    x = flow.ones(8)
    timing = Timer("y = x + 1", globals={"x": x}, timer=clock(0.5), num_threads=1).timeit(10)
    assert timing.number_per_run == 10
    assert timing.times == [0.05]
    assert (timing.median, timing.mean, timing.iqr) == (0.05, 0.05, 0.0)
    assert Timer("x.sum()", globals={"x": x}).blocked_autorange(min_run_time=0.001).median > 0


def test_threads_are_given_back():
    before = flow.get_num_threads()
    with pytest.raises(ZeroDivisionError):
        Timer("1 / 0", num_threads=before + 1).timeit(1)
    assert flow.get_num_threads() == before


def test_ranges_end():
    timer = Timer("pass", timer=clock(1.0))
    assert len(timer.repeat(3, 2).times) == 3
    assert timer.adaptive_autorange(min_run_time=0.0).iqr == 0.0
    assert timer.autorange().number_per_run == 1


def measured(description, times, row="small"):
    return Measurement(1, times, TaskSpec("f", "pass", "", "f", row, description))


def test_a_table_has_a_column_for_each_description():
    table = Compare(
        [measured("old", [4e-6]), measured("new", [2e-6]), measured("new", [3e-6], "big")]
    )
    table.colorize()
    text = str(table)
    assert text.splitlines()[1].split() == ["|", "old", "|", "new"]
    assert "small  |  4.00*  |  2.00*" in text
    assert "big    |         |  3.00" in text
    assert text.endswith("Times are in microseconds (us).")


def test_measurements_of_one_statement_are_merged():
    (one,) = Measurement.merge([measured("a", [1.0]), measured("a", [3.0])])
    assert one.median == 2.0
    with pytest.raises(ArgumentError, match="no times"):
        _ = measured("a", []).median
    with pytest.raises(ArgumentError, match="Python's"):
        Timer("x", language="c++")
