"""Ranks that do not do the same, or end: run by `flowvm launch -n N failing.py HOW`.

Each rank says what it made of it, and that its VM still computes.
"""

import os
import signal
import sys
import time

import flowvm as flow
from flowvm.ops.collectives import collectives as c
from flowvm.ranks.words import ROW
from flowvm.ranks.world import rank

RANK, HOW = rank(), sys.argv[1]
x = flow.ones(3)
c.all_reduce(x).numpy()  # all are there


def other_op():
    return c.all_reduce(x, "max" if RANK == 1 else "sum")


def other_shape():
    return c.all_reduce(flow.ones(3 + RANK))


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


def late():
    flow.config.distributed_timeout = 0.5
    if RANK == 1:  # it ends when rank 0 has given up
        while not c.Group.of().joined() or not alert():
            time.sleep(0.01)
    return c.all_reduce(x)


def alert() -> bool:
    """Whether this rank has heard that something failed."""
    return bool(c.world().fault)


def cancelled():
    y = c.all_reduce(x) if RANK == 0 else None
    if RANK == 1:
        z = flow.rand(600, 600)
        for _ in range(30):
            z = z @ z
        y = c.all_reduce(x + z.sum())
        flow.vm.cancel()
    return y


def not_joined():
    group = c.Group.of([0, 1])
    other = c.Group.of([1, 0])  # another one, which rank 0 waits for in vain
    return c.all_reduce(x, group=other) if RANK == 0 else group.size * x


def seen():
    """Rank 1 comes when rank 0 has looked at what it waits for."""
    if RANK == 1:
        c.recv(x._meta, 0).numpy()
        return c.all_reduce(x)
    y = c.all_reduce(x)
    own = c.Group.of().joined()
    row = c.world().row(own.row)
    while row[ROW.SEQ] == row[ROW.DONE]:  # until it has begun
        os.sched_yield()
    print(flow.vm.dump(), flush=True)
    c.send(x, 1)
    return y


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
