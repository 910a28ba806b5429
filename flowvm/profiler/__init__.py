"""The profiler: what bound a piece of code, from what the flight recorder has of it.

    with flow.profiler.profile() as p:      # or afterwards: p = flow.profiler.last()
        step()
    print(p)

The recorder is always on (`flow.profiler.level`, FLOWVM_PROFILE; what each level records is listed
in `flowvm.vm.watch.flight`) and remembers the last 65,536 instructions.  A `Profile` is a value:
columns (`p.run`, see `flowvm.profiler.run.run`) and pure functions over them.

    p.summary()    the screen that `print(p)` shows
    p.waits        what each instruction waited for
    p.lanes        what each stream did at every moment, and why it did nothing
    p.observed     the path that sums to the wall time; `p.bound` has its shares
    p.floor        the longest path of dependences; `p.what_if(op)` without an operator
    p.table(by)    sums by op, line, module or stream
    p.tree()       modules, each with what all below it took; flow.summary(model, x) of a model
    p.memory()     bytes over time, who had them at the peak, and what lives on
    p.plan()       what replays of graphs did: actors, registers, credits, or their tasks
    p.graph()      the instruction DAG as lanes; collapse="line" or "module" for long runs
    p.why(311)     what an instruction waited for, and what waits for it
    p.query(text)  those that an expression is true of: "op == 'matmul' and wait.dep > 0.1"
    p.instr[311]   all that is known of one
    p.at(1.5)      the VM at a moment (ms): queues, access lists, actors; p.step() goes on, or back
    p.verify()     was every order kept?
    p.save(path)   one file; `flow.profiler.load(path)` reads it

`flow.profiler.roofline()` measures what the machine can do, and the summary says from then on what
share of it was reached.  `flow.profiler.overhead(fn)` says what recording costs
a function, and `overhead()` an instruction, from which every summary says it of its run.
`with flow.profiler.span("step"):` and `flow.profiler.mark("epoch 3")` name times, and
`p.part("step", 3)` is the fourth of those spans alone.  `with flow.profiler.live():` shows a
screen while the block runs, and `flowvm top PID` that of another process; `serve()` and `flowvm top
PID --web` show it in a browser.

`flow.profiler.gather(p)`, which all ranks of a launched program call, has what each of them
recorded: who was late, what part of the communication was hidden, one trace of all.

The rooms: `run` has columns, `analysis` functions of them, `views` screens, `export` files, `front`
what one calls.  Not here: the recorder (`flowvm.vm.watch.flight`).
"""

from __future__ import annotations

import sys
import types

from flowvm.config import config
from flowvm.loading.listing import listing
from flowvm.profiler.front.live import live, serve
from flowvm.profiler.front.profiles import Profile, last, load, profile
from flowvm.profiler.front.ranks import Ranks, gather
from flowvm.profiler.run.columns import COLUMNS
from flowvm.profiler.run.costs import overhead
from flowvm.profiler.run.roof import roofline
from flowvm.profiler.run.run import SCHEMA, Run
from flowvm.profiler.run.spans import mark, range_pop, range_push, span

__all__ = [
    "COLUMNS",
    "SCHEMA",
    "Profile",
    "Ranks",
    "Run",
    "gather",
    "last",
    "level",
    "live",
    "load",
    "mark",
    "overhead",
    "profile",
    "range_pop",
    "range_push",
    "roofline",
    "serve",
    "span",
]
__dir__ = listing(globals())

level: int


class _Module(types.ModuleType):
    """`flow.profiler.level` is the setting, so that assigning to it changes it."""

    @property
    def level(self) -> int:
        """The level of recording, 0 to 3."""
        return config.profile

    @level.setter
    def level(self, value: int) -> None:
        config.profile = value


sys.modules[__name__].__class__ = _Module
