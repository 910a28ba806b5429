"""Ranks that record their work: run by `flowvm launch -n 2 recorded.py FOLDER`."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import CommunicationError
from flowvm.ops.collectives import collectives as c
from flowvm.profiler.analysis.across import exchanges_of
from flowvm.profiler.export import trace_rules
from flowvm.ranks.clocks import measured_shifts
from flowvm.ranks.world import rank, world

RANK, FOLDER = rank(), Path(sys.argv[1])
x, big = flow.ones(1 << 16), flow.rand(400, 400)


def late(which: int, turn: int) -> flow.Tensor:
    """An all-reduce to which one rank comes late: it computes much when the other has come."""
    y, mark = x, FOLDER / f"turn{turn}"
    if which == RANK:
        while not mark.exists():
            time.sleep(0.001)
        z = big
        for _ in range(12):
            z = z @ big * 1e-3
        y = x + z.sum() * 0
    reduced = c.all_reduce(y)
    if which != RANK:
        while not world().watcher.waiting():  # issued, and not begun: this rank may be late itself
            time.sleep(0.001)
        mark.touch()
    return reduced


late(0, 0).numpy()
with flow.profiler.profile() as p:
    c.barrier()
    late(1, 1).numpy()
    late(0, 2).numpy()
    late(1, 3).numpy()
profiles = flow.profiler.gather(p)
summary = profiles.summary()
print(profiles)
assert len(profiles) == 2
assert profiles.shifts == [0, 0]
assert [row.rank for row in summary.ranks] == [0, 1]
assert len(profiles[RANK]) == len(p)
rows = {row.name: row for row in summary.exchanges}
assert rows["all_reduce"].count == 3
assert rows["barrier"].count == 1
assert rows["all_reduce"].waited > 0 < rows["all_reduce"].bandwidth
first, second = summary.ranks
assert first.late + second.late == 4
assert second.late >= 2 and first.late >= 1  # noqa: PT018 - of the barrier nobody knows
assert all(0 <= row.hidden <= 1 and 0 < row.exchanging <= row.wall for row in summary.ranks)

trace = profiles.export(FOLDER / f"{RANK}.json")
read = json.loads(trace.read_text())
assert not trace_rules.problems(read), trace_rules.problems(read)[:5]
names = {e["args"]["name"] for e in read["traceEvents"] if e["name"] == "process_name"}
assert any(n.startswith("rank 0") for n in names) and any(n.startswith("rank 1") for n in names)  # noqa: PT018
arrows = [e for e in read["traceEvents"] if e.get("cat") == "ranks"]
assert len(arrows) == 2 * 4

page = profiles.export(FOLDER / f"{RANK}.html").read_text()
assert "rank 1 comm" in page
tied = profiles.joined.tied
assert tied is not None
assert tied.names == ["barrier"] + ["all_reduce"] * 3
assert [int(one.late) for one in summary.ranks] == np.bincount(tied.late, minlength=2).tolist()
late_at = (int(tied.last[1]) - profiles.joined.run.begun) / 1e6
(met,) = profiles.at(late_at - 1e-5).meetings  # rank 1 has much to compute, and rank 0 waits
assert met.awaited == tied.late[1]
assert met.ranks[1 - met.awaited][0] == "waits"
assert any("rank 1 came last" in text and "at recorded.py:" in text for text in summary.late)

assert abs(measured_shifts(world())[1]) < 1e9  # one clock: how far is what the exchange took

with flow.profiler.profile() as p:  # groups of one rank each exchange other things
    if RANK == 0:
        c.send(x, 1)
    else:
        c.recv(x._meta, 0).numpy()
    c.all_reduce(x).numpy()
profiles = flow.profiler.gather(p)
assert {"send", "recv"} == {
    n for one in profiles for n in exchanges_of(one.run).names if n != "all_reduce"
}
assert [row.count for row in profiles.summary().exchanges] == [1]

if RANK == 1:  # a rank that does not come
    while not world().fault:
        time.sleep(0.01)
else:
    flow.config.distributed_timeout = 0.3
    with pytest.raises(CommunicationError, match=r"waited .* for others") as raised:
        flow.profiler.gather(p)
    world().watcher.fail(raised.value)
    print("said so")
