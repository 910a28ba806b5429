"""Tutorial 13: research a scheduler: a recorded step on other machines, and a policy of your own.

`flow.lab` takes what was recorded as a graph of work, and runs it on machines that are not there;
`flow.vm.schedule` has the VM itself run by the same policy, with real kernels.
"""

# %% A training step of a small transformer, recorded.
import contextlib
from typing import Any

import flowvm as flow
from flowvm import lab, nn

flow.manual_seed(0)
model = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
sgd = flow.optim.SGD(model.parameters(), lr=0.01)
x = flow.randn(8, 32, 128)


def step() -> Any:
    sgd.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    sgd.step()
    return loss


for _ in range(3):  # kernels are compiled by then
    step().item()


def profile_of(around: Any = None) -> Any:
    """Run five steps, each in a block of its own; return the profile of the shortest one."""
    runs = []
    for _ in range(5):
        block = around() if around is not None else contextlib.nullcontext()
        with flow.profiler.profile() as p, block:
            step()
            flow.vm.sync()
        runs.append(p)
    return min(runs, key=lambda p: p.run.wall)


recording = profile_of()

# %% Its graph: what the tasks cost, what waits for what. Nobody is faster than the longest path
# (`span`), nor than all work over all workers.
dag = lab.Dag.of(recording)
print(dag)
print(f"work {dag.work * 1e3:.2f} ms, span {dag.span * 1e3:.2f} ms, width {dag.width}")

# %% On 1 to 16 workers, by what the VM does (first come, first served), by the critical path, by
# HEFT. `flowvm lab run.flowtrace --workers 1,2,4,8,16` prints the same of a saved run.
names = ("fifo", "critical_path", "heft")
print(f"{'workers':>8s}", *(f"{name:>14s}" for name in names), f"{'bound':>14s}", "  ms")
for workers in (1, 2, 4, 8, 16):
    schedules = [lab.simulate(dag, workers, name) for name in names]
    values = [s.makespan for s in schedules] + [schedules[0].bounds.best]
    print(f"{workers:8d}", *(f"{value * 1e3:14.3f}" for value in values))

# %% A policy of one's own, in ten lines: of what is ready, the task whose followers cost most. Give
# each task a number (the least goes first), and it runs compiled.


class Followers(lab.Policy):
    """A policy: the instruction that lets most work go comes first."""

    def key(self, dag: lab.Dag, machine: lab.Machine) -> Any:
        follows = dag.cost * 0
        for source, target in zip(dag.source, dag.target, strict=True):
            follows[source] += dag.cost[target]
        return -follows


mine = lab.simulate(dag, 2, Followers)
print(mine, f"idle {mine.idle:.0%}", mine.verify())

# %% On many graphs, not on one: its makespan over the bound.
graphs = {
    name: (lambda seed, name=name: lab.synthetic(name, n=8, seed=seed, cost="lognormal"))
    for name in ("cholesky", "lu", "transformer", "stencil")
}
print(lab.sweep(graphs, [2, 4, 8], [*names, Followers], seeds=range(3), progress=False))

# %% For real, on two streams that share the work. Values are those of program order, whatever the
# policy; `sched.order` is the order that it was.
side = flow.Stream("side")
blocks: list[Any] = []


def by_mine() -> Any:
    blocks.append(flow.vm.schedule(Followers, streams=[None, side], like=dag))
    return blocks[-1]


measurement = profile_of(by_mine)
sched = blocks[-1]
print(sched.order)
print(measurement.verify())

# %% Predicted and measured, and where they part: other costs, another order, Python that issued
# later, wake-ups of this machine's workers; the rest is cores that others had.
here = lab.Machine.here(2)
print(here)
prediction = lab.simulate(dag, here, Followers)
print(lab.compare(prediction, measurement))

# %% Both, drawn: a simulated run is a Profile, so every screen has it. `prediction.profile.export(
# "run.html")` is the page.
print(prediction.profile.timeline())
print(measurement.timeline())

# %% The same order once more. It can be saved, and attached to a report of a bug.
with flow.vm.replay(sched.order, streams=[None, side]) as again:
    step()
print(again.order == sched.order)

# %% Does any order break the step? Each try is another order, one instruction at a time; what
# fails is brought down to the few instructions that it takes. Here none does.


def product() -> Any:
    a = flow.ones(8, 8)
    b = a + 1
    a.mul_(2)
    return a @ b


print(lab.explore(product, tries=20))
