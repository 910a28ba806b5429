"""The lab: graphs of work, machines, policies; simulated, or run by the VM itself.

    d = flow.lab.Dag.of(p)                          # of a profile, a trace, a Plan; Dag.load(file)
    s = flow.lab.simulate(d, flow.lab.Machine(4), "heft")
    s.makespan, s.bounds, s.idle, s.profile         # every screen of the profiler works on it

Here: schedules and what makes them.  Not here: the scheduler of the VM, which takes a policy by
`flow.vm.schedule`.
"""

from __future__ import annotations

from flowvm.lab.allocation import Allocations, allocators
from flowvm.lab.comparison import Comparison, Sweep, compare, sweep
from flowvm.lab.exploration import Exploration, explore
from flowvm.lab.fits import Cost
from flowvm.lab.graphs import Dag
from flowvm.lab.machines import Bounds, Machine, bounds
from flowvm.lab.policies import (
    Policy,
    adversarial,
    cpop,
    critical_path,
    etf,
    fifo,
    heft,
    lifo,
    maxmin,
    mct,
    memory_aware,
    minmin,
    olb,
    pct,
    peft,
    priority,
    random,
    saga,
    sufferage,
    work_stealing,
)
from flowvm.lab.simulation import Schedule, optimal, simulate
from flowvm.lab.synthetic import launches, synthetic
from flowvm.loading.listing import listing

__all__ = [
    "Allocations",
    "Bounds",
    "Comparison",
    "Cost",
    "Dag",
    "Exploration",
    "Machine",
    "Policy",
    "Schedule",
    "Sweep",
    "adversarial",
    "allocators",
    "bounds",
    "compare",
    "cpop",
    "critical_path",
    "etf",
    "explore",
    "fifo",
    "heft",
    "launches",
    "lifo",
    "maxmin",
    "mct",
    "memory_aware",
    "minmin",
    "olb",
    "optimal",
    "pct",
    "peft",
    "priority",
    "random",
    "saga",
    "simulate",
    "sufferage",
    "sweep",
    "synthetic",
    "work_stealing",
]
__dir__ = listing(globals())
