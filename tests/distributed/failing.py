"""Ranks that do not do the same, or end: run by `flowvm launch -n N failing.py HOW`.

Each rank says what it made of it, and that its VM still computes.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import flowvm as flow
from flowvm.commands.cli import main
from flowvm.cuda.driver import driver
from flowvm.ops.collectives import collectives as c
from flowvm.ranks.world import rank
from flowvm.vm.engine.engine import engine

RANK, HOW = rank(), sys.argv[1]
DEVICE = f"cuda:{RANK}" if flow.config.cuda_driver else "cpu"  # a simulated one of its own
x = flow.ones(3, device=DEVICE)
c.all_reduce(x).numpy()  # all are there
SECONDS = 250  # a hang, not a target
has_failed = threading.Event()  # whether this rank has heard that something failed
watcher = c.world().watcher
raise_alert = watcher.raise_alert


def hear(cause: str) -> None:
    raise_alert(cause)
    has_failed.set()


watcher.raise_alert = hear


def other_op():
    return c.all_reduce(x, "max" if RANK == 1 else "sum")


def other_shape():
    return c.all_reduce(flow.ones(3 + RANK, device=DEVICE))


def other_collective():
    return c.all_gather(x) if RANK == 0 else c.broadcast(x, 0)


def one_less():
    return c.all_reduce(x) if RANK == 0 else x + 1


def raises():
    if RANK == 1:
        raise ValueError("a sum that is none")
    return c.all_reduce(x)


def bad_index():
    table = x[flow.tensor([5 if RANK == 1 else 0])]
    for _ in range(3):
        table = c.all_reduce(table)
    return table


def killed():
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return c.all_reduce(x)


def interrupted():
    if RANK == 1:
        signal.raise_signal(signal.SIGINT)
    return c.all_reduce(x)


def exits():
    if RANK == 1:
        sys.exit(3)
    return c.all_reduce(x)


def nobody_reads():
    """Rank 0 waits for an exchange that does not come, and reads nothing of it."""
    if RANK == 0:
        c.all_reduce(x)
    return flow.ones(2)


def stopped():
    """Rank 1 stops when it has begun all that rank 0 has, until rank 0 has given up."""
    flow.config.distributed_timeout = 0.5
    if RANK == 1:
        process = os.getpid()
        Path(sys.argv[2]).write_text(str(process))
        os.kill(process, signal.SIGSTOP)
        return x
    while not Path(sys.argv[2]).exists() or state(Path(sys.argv[2]).read_text()) != "T":
        time.sleep(0.01)
    try:
        return c.all_reduce(x).numpy()
    finally:
        os.kill(int(Path(sys.argv[2]).read_text()), signal.SIGCONT)


def state(process):
    return Path(f"/proc/{process or 'self'}/stat").read_text().rpartition(")")[2].split()[0]


def tensor_of(**what):
    """A global tensor that is another one on rank 1."""
    where = flow.placement("cpu", what.get("ranks", [0, 1]))
    sbp = what.get("sbp", flow.sbp.split(0))
    tensor = flow.ones(what.get("shape", (8, 8)), placement=where, sbp=sbp)
    return tensor.sum()


def other_global_shape():
    return tensor_of(shape=(8, 8 + RANK))


def other_global_sbp():
    tensor_of(sbp=(flow.sbp.split(0), flow.sbp.broadcast)[RANK])
    return c.all_reduce(x)


def other_placement():
    return tensor_of(ranks=([0, 1], [1, 0])[RANK])


def other_global_op():
    x = flow.ones(8, 8, placement=flow.placement("cpu", [0, 1]), sbp=flow.sbp.split(0))
    return (x * 2 if RANK == 0 else x + 3).sum()


def other_number():
    where = flow.placement("cpu", [0, 1])
    weight = flow.nn.Parameter(flow.ones(8, placement=where, sbp=flow.sbp.broadcast))
    weight.sum().backward()
    flow.optim.SGD([weight], lr=0.1 + RANK).step()
    return weight.to_global(where, flow.sbp.partial_sum).to_global(where, flow.sbp.broadcast)


def other_draws():
    if RANK == 1:
        flow.rand(1)
    where = flow.placement("cpu", [0, 1])
    return flow.randn(8, placement=where, sbp=flow.sbp.split(0)).sum()


def nccl_fails():
    if RANK == 1:
        driver.driver().fake.fail("ncclAllReduce", 1, 2)
    return c.all_reduce(x)


def network_fails():
    if RANK == 1:
        (comm,) = driver.driver().fake.communicators.values()
        comm.error = 6
        assert has_failed.wait(SECONDS)
    return c.all_reduce(x)


def late():
    flow.config.distributed_timeout = 0.5
    if RANK == 1:  # it ends when rank 0 has given up
        assert has_failed.wait(SECONDS)
    return c.all_reduce(x)


def cancelled():
    y = c.all_reduce(x) if RANK == 0 else None
    if RANK == 1:
        z = flow.rand(600, 600)
        for _ in range(300):  # none of them is done when what follows is cancelled
            z = z @ z
        y = c.all_reduce(x + z.sum())
        flow.vm.cancel()
    return y


def not_joined():
    group = c.Group.of([0, 1])
    other = c.Group.of([1, 0])  # another one, which rank 0 waits for in vain
    return c.all_reduce(x, group=other) if RANK == 0 else group.size * x


class Pipeline(flow.nn.Graph):
    """Two stages, the second of which looks words up; a micro-batch for each row."""

    def __init__(self):
        super().__init__()
        places = [flow.placement("cpu", [k]) for k in range(2)]
        self.first, self.second = flow.nn.Linear(4, 4), flow.nn.Embedding(3, 4)
        for k, module in enumerate((self.first, self.second)):
            module.to_global(places[k], flow.sbp.broadcast).config.set_stage(k)
        parameters = [*self.first.parameters(), *self.second.parameters()]
        self.add_optimizer(flow.optim.SGD(parameters, lr=0.1))
        self.config.set_gradient_accumulation_steps(6)
        self.x = flow.ones(6, 4, placement=places[0], sbp=flow.sbp.broadcast)

    def build(self, x, words):
        x = self.first(x).to_global(placement=self.second.config.stage.placement)
        loss = (x * self.second(words)).sum()
        loss.backward()
        return loss

    def step(self, *words):
        where = self.second.config.stage.placement
        return self(self.x, flow.tensor(words, placement=where, sbp=flow.sbp.broadcast))


def begun():
    """A pipeline that is captured, and nothing of it in flight."""
    pipeline = Pipeline()
    for _ in range(2):
        pipeline.step(0, 1, 2, 0, 1, 2)
    flow.vm.sync()
    return pipeline


def stage_fails():
    """Fail in the fourth micro-batch, while the other stage has its own in flight."""
    pipeline = begun()
    if RANK == 0:
        pipeline.step(0, 1, 2, 0, 1, 2)
        flow.vm.sync()
        return x
    return pipeline.step(0, 1, 2, 5, 1, 2).to_local()


def stage_dies():
    pipeline = begun()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    pipeline.step(0, 1, 2, 0, 1, 2)
    flow.vm.sync()
    return x


def in_a_circle():
    """Rank 0 waits for a message, in a graph, and rank 1 for a collective: each says so in a dump,
    `flowvm top` and the watchdog, then they go on.
    """
    source, target = flow.placement("cpu", [1]), flow.placement("cpu", [0])

    class Moves(flow.nn.Graph):
        def build(self, y):
            return y.to_global(placement=target) * 2

    graph, y = Moves(), flow.ones(2, 3, placement=source, sbp=flow.sbp.broadcast)
    flow.config.watchdog = 0  # it says each wait once: not while this rank waits for a busy machine
    graph(y)
    flow.vm.sync()  # or rank 1 sees rank 0 in the first message, and says so of the second
    c.all_reduce(x).numpy()  # which rank 1 begins once more when rank 0 waits for the graph
    results = [graph(y)] if RANK == 0 else [c.all_reduce(x)]
    expected = ("for rank 1, which is in all_reduce", "last and is in recv")[RANK]
    while expected not in flow.vm.dump():
        time.sleep(0.01)
    assert main(["top", str(os.getpid()), "--dump"]) == 0
    flow.config.watchdog = 0.1
    while not engine.watch.has_reported:
        time.sleep(0.01)
    sys.stdout.flush()
    Path(sys.argv[2], f"{RANK}").touch()
    while not Path(sys.argv[2], f"{1 - RANK}").exists():
        time.sleep(0.01)
    results.append(c.all_reduce(x) if RANK == 0 else graph(y))
    flow.vm.sync()
    return x


def runs():
    """Until a Ctrl-C."""
    print("running", flush=True)
    while True:
        c.all_reduce(x).numpy()


try:
    globals()[HOW]().numpy()
except Exception as error:
    if isinstance(error, ValueError) and HOW == "raises":
        raise  # nobody handles it; one that is handled is nobody else's business
    print(f"{type(error).__name__}: {error}", flush=True)
    assert (flow.ones(2) + 1).tolist() == [2, 2]  # the VM is usable
    try:
        c.all_reduce(x).numpy()
    except flow.errors.CommunicationError:
        print("nothing is exchanged any more", flush=True)
    raise
