"""The profiler on devices: a lane for each stream of each device, times that are possible ones and,
at level 3, the device's own; memory of each device apart.
"""

import itertools
import json

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.profiler import profile
from flowvm.profiler.export.html import html
from flowvm.profiler.export.trace_rules import problems
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL, KIND
from flowvm.vm.watch import device_times as devices

OWN, SEEN = "by the device's clock", "as the host saw it"


@pytest.fixture
def work(device, rng):
    """A step with copies both ways, a stream of the user's, and another device if there is one."""
    others = flow.cuda.device_count() > 1
    weight = flow.tensor(rng.standard_normal((4, 4)).astype(np.float32), device=device)
    batch = flow.tensor(rng.standard_normal((3, 4)).astype(np.float32))
    side = flow.cuda.Stream(name="mine")

    def step():
        x = batch.to(device)
        with flow.cuda.stream(side):
            scale = (x * x).mean()
        y = (x @ weight).relu() * scale
        if others:
            (y.to("cuda:1") + 1).sum().item()
        return y.sum().item()

    step()  # kernels are compiled
    return step


def recorded(work, level):
    with profile(level) as p:
        work()
        work()
    return p


@pytest.mark.parametrize("level", [1, 2, 3])
def test_times_are_possible_and_said(work, level):
    run = (p := recorded(work, level)).run
    on_device = run.clock != devices.HOST
    names = {run.streams[s] for s in run.stream[on_device].tolist()}
    assert names >= {"cuda:0", "cuda:0 h2d", "cuda:0 d2h", "cuda:0 mine"}
    started, ended = run.time("started"), run.time("ended")
    assert (run.opened[on_device] <= started[on_device]).all()
    assert (started <= ended).all()
    assert (ended[on_device] <= run.time("released")[on_device]).all()
    assert not run.opened[~on_device].any()
    releases = on_device & (run.kind == KIND.RELEASE)
    assert releases.any()
    assert (started[releases] == ended[releases]).all()
    for stream in np.unique(run.stream[on_device]).tolist():
        own = np.flatnonzero(on_device & (run.stream == stream))
        own = own[np.lexsort((own, ended[own]))]
        # the device's times are floats: two neighbours may seem to overlap by their grain
        assert (started[own[1:]] + 2000 >= ended[own[:-1]]).all(), run.streams[stream]
    ran = on_device & ~releases
    expected = devices.DEVICE if level == 3 else devices.SEEN
    assert (run.clock[ran] == expected).all()
    if level < 3:  # else clocks of two devices are compared
        assert p.floor.length <= run.wall
    assert sum(s.end - s.begin for s in p.observed) == run.wall
    assert p.verify().pairs > 0 or level == 1  # at which reading a value is no instruction
    i = int(np.flatnonzero(ran)[-1])
    reason = p.why(int(run.seq[i])).screen(160).plain()
    assert "handed over" in reason
    assert (OWN if level == 3 else SEEN) in reason
    assert (OWN if level == 3 else SEEN) in str(p.instr[int(run.seq[i])])
    message = "their own (clock known to" if level == 3 else "as the host saw them"
    for view in (p.summary(), p.timeline(), p.critical_path(), p.graph(), p.query("run >= 0")):
        text = " ".join(view.screen(100).plain().split())
        assert f"times {message}" in text, text


def test_lanes_stand_by_device(work):
    p = recorded(work, 2)
    with flow.cuda.stream(flow.cuda.Stream(name="late")), profile() as q:
        work()
        flow.ones(2, device="cuda").add_(1)
    for one in (p, q):
        names = [one.run.streams[lane.stream] for lane in one.lanes]
        groups = [name.partition(" ")[0] for name, _ in itertools.groupby(names)]
        order = [g for g, _ in itertools.groupby(groups)]
        assert order == sorted(order, key=lambda g: (g.startswith("cuda"), g)), names
    assert "cuda:0 late" in names
    view = p.timeline().screen(160).plain()
    assert all(name in view for name in ("cuda:0 h2d", "cuda:0 d2h", "cuda:0 mine"))


def test_time_on_the_device_is_not_time_on_the_host(work):
    """The roofline is the host's; a share of it that a device reached would mean nothing."""
    p = recorded(work, 2)
    p.run.info["roofline"] = {"cpu": "here", "threads": 1, "gigabytes": 1e-6, "gigaflops": 1e-6}
    rows = dict(zip((r.name for r in p.summary().rows), p.summary().roof, strict=True))
    assert "matmul" in p.run.names
    assert rows.get("matmul", 0) == 0  # rows of less than 0.05 % are left out


def test_memory_of_each_device_is_apart(work):
    flow.vm.sync()
    tensors, before = [], int(engine.words[CTL.LIVE_BYTES])
    with profile() as p:
        work()
        tensors.append(flow.zeros(1 << 16, device="cuda"))
    view = p.memory()
    assert view.space == "cuda:0"
    assert view.peak >= 4 << 16
    assert any(place.name == "fill" and place.kept == 1 for place in view.places)
    assert p.memory("cuda").peak == view.peak
    assert p.memory("cpu").peak < before + (4 << 16)
    assert "cuda:0" in p.memory("cpu").screen(100).plain()
    with pytest.raises(ArgumentError, match=r"cuda:7.*there is cpu, cuda:0"):
        p.memory("cuda:7")
    with profile() as q:
        with flow.profiler.span("first"):
            more = flow.zeros(1 << 17, device="cuda")
            flow.vm.sync()  # or it is given back before it is written
        del more
        flow.vm.sync()
    assert q.part("first").run.info["live"]["cuda:0"] >= 4 << 17
    assert q.run.info["live"]["cuda:0"] < q.memory_of("cuda:0").peak


def test_exports_have_devices(work, tmp_path):
    p = recorded(work, 3)
    trace = json.loads(p.export(tmp_path / "a.json").read_text())
    assert problems(trace) == []
    named = {
        e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"
    }
    tracks = {
        e["args"]["name"]: e["pid"] for e in trace["traceEvents"] if e["name"] == "thread_name"
    }
    assert named[tracks["cuda:0 h2d"]] == "cuda:0"
    assert named[tracks["critical path"]] == "flowvm"
    counted = {e["pid"] for e in trace["traceEvents"] if e["ph"] == "C" and e["name"] == "memory"}
    assert {named[pid] for pid in counted} >= {"flowvm", "cuda:0"}
    page = html(p)
    assert '"space":"cuda:0"' in page
    assert "their own (clock known to" in page


def test_a_graph_on_a_device(device, rng):
    weight = flow.tensor(rng.standard_normal((4, 4)).astype(np.float32), device=device)
    graph = flow.compile(lambda x: (x @ weight).relu().sum())
    x = flow.ones(2, 4, device=device)
    for _ in range(3):
        graph(x).item()
    with profile(3) as p:
        graph(x).item()
    view = p.plan()
    assert view.launches == 1
    assert view.each > 0
    assert {t.stream for t in view.tasks} == {"cuda:0"}
    assert not any(t.each for t in view.tasks)
    assert "graph.explain()" in view.notes[0]
    assert f'"launches":1,"tasks":[{{"task":{view.tasks[0].number}' in html(p)


def test_a_trace_of_devices_keeps_its_order(work):
    """The oracle compares starts and ends, which overlap while instructions are handed over."""
    trace = flow.vm.trace(work)
    assert flow.vm.verify(trace).pairs > 0
    assert all(ins.started <= ins.ended for ins in trace.instructions)


def test_a_look_from_outside_knows_devices(work):
    from flowvm.profiler.front.watcher import Watcher

    watcher = Watcher()
    watcher.look()
    work()
    flow.vm.sync()
    run = watcher.ring(200)
    assert (run.clock != devices.HOST).any()
    assert (run.time("started") <= run.time("ended")).all()
    view = watcher.look()
    assert {"cpu", "cuda:0"} <= {space.name for space in view.memory}
    assert "mem cuda:0" in view.screen(100).plain()


# --- what it costs the driver -----------------------------------------------------------------


def _clock_calls(recorder, level):
    """Return the driver's calls for ten instructions."""
    with engine.flight.at_least(level):
        x = flow.ones(8, device="cuda")
        flow.cuda.synchronize()
        before = len(recorder.calls)
        for _ in range(10):
            x.mul_(1.5)
        flow.cuda.synchronize()
        flow.vm.sync()
        return recorder.calls[before:]


def test_one_event_more_an_instruction_and_no_wait(recorder):
    def count(calls, name):
        return sum(c.name == name for c in calls)

    calls = {level: _clock_calls(recorder, level) for level in (1, 2, 3)}
    assert count(calls[2], "cuEventRecord") == 10
    assert count(calls[3], "cuEventRecord") == 20
    assert count(calls[3], "cuEventElapsedTime") == 20
    for level in (1, 2):
        assert count(calls[level], "cuEventElapsedTime") == 0
    for some in calls.values():
        assert not count(some, "cuEventSynchronize") + count(some, "cuStreamSynchronize")
        assert all(c.result in (0, 600) for c in some)


def test_a_driver_that_does_not_say_leaves_the_workers_times(recorder):
    with profile(3) as p:
        x = flow.ones(8, device="cuda")
        flow.cuda.synchronize()
        recorder.fail("cuEventElapsedTime", 1, 600)
        x.mul_(1.5)
        flow.cuda.synchronize()
        x.mul_(2.5)
    first, last = np.flatnonzero((p.run.kind == KIND.OP_CALL) & (p.run.clock > 0))[-2:]
    assert p.run.clock[[first, last]].tolist() == [devices.SEEN, devices.DEVICE]
    assert "what was forgotten of them as the host saw them" in p.summary().devices
