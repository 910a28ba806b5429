"""`torch.profiler`'s ways of recording, over flowvm's recorder."""

import itertools
import json
import os

import pytest

import flowvm as flow
from flowvm.compat import profiler
from flowvm.compat.torch import _counterpart
from flowvm.errors import ArgumentError, ModeError


def work():
    return (flow.ones(3) + 1).exp()


def test_a_block_is_recorded_and_named(tmp_path):
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], record_shapes=True) as prof:
        for _ in range(3):
            with profiler.record_function("inference"):
                work()
    counts = {event.key: event.count for event in prof.key_averages()}
    assert counts["add"] == counts["exp"] == 3
    assert len(prof.run.part("inference")) >= 3
    table = prof.key_averages().table(sort_by="count", row_limit=2)
    assert table.startswith("Name")
    assert len(table.splitlines()) == 4
    total = prof.total_average()
    assert total.count == sum(counts.values())
    assert total.cpu_time_total == pytest.approx(
        sum(event.cpu_time * event.count for event in prof.events())
    )
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    assert json.loads((tmp_path / "trace.json").read_text())


def test_a_schedule_says_when(tmp_path):
    steps = []
    plan = profiler.schedule(wait=1, warmup=1, active=2, repeat=2)

    def ready(prof):
        exps = [event.count for event in prof.key_averages() if event.key == "exp"]
        steps.append((prof.step_num, exps))

    with profiler.profile(schedule=plan, on_trace_ready=ready) as prof:
        for _ in range(11):
            work()
            prof.step()
    assert steps == [(4, [2]), (8, [2])]
    handler = profiler.tensorboard_trace_handler(str(tmp_path / "logs"), "me")
    with profiler.profile(on_trace_ready=handler):
        work()
    assert os.listdir(tmp_path / "logs") == ["me.0.pt.trace.json"]


def test_calls_have_names_times_shapes_and_stacks(tmp_path):
    x = flow.rand(8, 4)

    def inner():
        return x @ x.T

    with (
        profiler.profile(record_shapes=True, with_stack=True) as prof,
        profiler.record_function("m"),
    ):
        inner().relu()
    matmul, relu = [e for e in prof.events() if e.name in ("matmul", "relu")]
    assert matmul.input_shapes == [[8, 4], [4, 8]]
    assert relu.input_shapes == [[8, 8]]
    assert matmul.stack[1:] == relu.stack  # the innermost first
    assert matmul.time_range.elapsed_us() == pytest.approx(matmul.cpu_time)
    assert relu.time_range.start >= matmul.time_range.end
    grouped = {e.key: e.cpu_time_total for e in prof.events().key_averages()}
    assert grouped["matmul"] == pytest.approx(matmul.self_cpu_time_total)
    prof.export_stacks(tmp_path / "stacks.txt")
    for line in (tmp_path / "stacks.txt").read_text().splitlines():
        stack, _, spent = line.rpartition(" ")
        assert relu.stack[0].replace(" ", "_") in stack.split(";")
        assert int(spent) > 0
    with pytest.raises(ArgumentError, match="metric='calls'"):
        prof.export_stacks(tmp_path / "stacks.txt", "calls")
    with profiler.profile() as plain:
        inner()
    with pytest.raises(ModeError, match="with_stack=True"):
        plain.export_stacks(tmp_path / "stacks.txt")


@pytest.mark.parametrize("numbers", [(1, 1, 2, 2, 0, 0), (0, 2, 1, 0, 3, 0), (2, 0, 1, 1, 1, 1)])
def test_schedules_are_pytorchs(numbers):
    torch = pytest.importorskip("torch")
    names = ("wait", "warmup", "active", "repeat", "skip_first", "skip_first_wait")
    options = dict(zip(names, numbers, strict=True))
    ours, theirs = profiler.schedule(**options), torch.profiler.schedule(**options)
    for step in range(14):
        assert ours(step).name == theirs(step).name


def test_what_is_not_recorded_is_an_error_and_functions_are_named():
    with pytest.raises(ValueError, match="nothing has been recorded"):
        profiler.profile(enabled=False).key_averages()
    with pytest.raises(ValueError, match="active"):
        profiler.schedule(wait=0, warmup=0, active=0)
    with profiler.profile(False):
        pass
    named = profiler.record_function("named")(lambda x: x + 1)
    with profiler.profile() as prof:
        assert list(itertools.islice(named(flow.ones(2)).tolist(), 1)) == [2.0]
    assert len(prof.run.part("named")) >= 1
    for path in ("profiler", "autograd.profiler"):
        assert _counterpart(path) is profiler
    assert profiler.span is flow.profiler.span
