"""The calls of NCCL, noted by a driver: run by `flowvm launch -n N nccl_calls.py FOLDER`.

Each rank leaves a file if all calls were right.
"""

import sys
from pathlib import Path

import flowvm as flow
from flowvm.cuda.driver import driver
from flowvm.cuda.driver.streams import block_of
from flowvm.ops.collectives import collectives as c
from flowvm.ranks.lanes import lane, lane_for
from flowvm.ranks.world import rank, world_size
from flowvm.vm.machine.device_words import DEV

RANK, SIZE = rank(), world_size()
DEVICE = flow.device("cuda:0")
FLOAT, HALF, BFLOAT, BYTE, INT, LONG = 7, 6, 9, 1, 2, 4
SUM, PROD, MAX, MIN = range(4)
x = flow.ones(3, 2, device=DEVICE)
c.all_reduce(x)
flow.vm.sync()
fake = driver.driver().fake


def handle(of):
    """The driver's stream of a lane."""
    return int(block_of(of.stream.number)[DEV.STREAM])


def calls_of(run, at=None):
    """NCCL's functions that `run` comes to: name and arguments without addresses, on the lane's
    stream and by one communicator.
    """
    before = len(fake.calls)
    run()
    flow.vm.sync()
    results = [call for call in fake.calls[before:] if call.name.startswith("nccl")]
    results = [call for call in results if "Async" not in call.name and "Init" not in call.name
            and "Unique" not in call.name]  # fmt: skip
    enqueued = [call for call in results if "Group" not in call.name]
    assert {call.stream for call in enqueued} == {handle(at or lane(device=DEVICE))}
    assert len({call.arguments[-2] for call in enqueued}) == 1
    numbers = {"ncclSend": slice(1, -2), "ncclRecv": slice(1, -2)}
    return [(call.name[4:], *call.arguments[numbers.get(call.name, slice(2, -2))])
            for call in results]  # fmt: skip


assert calls_of(lambda: c.all_reduce(x)) == [("AllReduce", 6, FLOAT, SUM)]
assert calls_of(lambda: c.all_reduce(x.half(), "max")) == [("AllReduce", 6, HALF, MAX)]
assert calls_of(lambda: c.all_reduce_(x.bfloat16(), "prod")) == [("AllReduce", 6, BFLOAT, PROD)]
assert calls_of(lambda: c.all_reduce(x > 0)) == [("AllReduce", 6, BYTE, MAX)]
assert calls_of(lambda: c.reduce_(x.long(), 1, "min")) == [("Reduce", 6, LONG, MIN, 1)]
assert calls_of(lambda: c.all_gather(x)) == [("AllGather", 6, INT)]
assert calls_of(lambda: c.broadcast(x.bfloat16(), 1)) == [("Broadcast", 6, HALF, 1)]
rows = flow.ones(2 * SIZE, 2, device=DEVICE)
assert calls_of(lambda: c.reduce_scatter(rows)) == [("ReduceScatter", 4, FLOAT, SUM)]
group = [("GroupStart",), ("GroupEnd",)]
sizes = [0, 3, *range(1, SIZE - 1)]  # of what one rank has there is nothing to be said
assert calls_of(lambda: c.all_gather(rows[: sizes[RANK]], sizes=sizes)) == [
    group[0], *(("Broadcast", 2 * n, INT, r) for r, n in enumerate(sizes) if n), group[1]
]  # fmt: skip
parts = flow.ones(sum(sizes), 2, device=DEVICE)
assert calls_of(lambda: c.reduce_scatter(parts, sizes=sizes)) == [
    group[0], *(("Reduce", 2 * n, FLOAT, SUM, r) for r, n in enumerate(sizes) if n), group[1]
]  # fmt: skip
assert calls_of(lambda: c.all_to_all(rows)) == [
    group[0], *(call for r in range(SIZE) for call in (("Send", 4, INT, r), ("Recv", 4, INT, r))),
    group[1],
]  # fmt: skip
if RANK == 0:
    to = lane_for("send", 1, DEVICE)
    assert calls_of(lambda: c.send(x, 1), to) == [("Send", 6, INT, 1)]  # the pair's second one
if RANK == 1:
    of = lane_for("recv", 0, DEVICE)
    assert calls_of(lambda: c.recv(x._meta, 0), of) == [("Recv", 6, INT, 0)]

# each rank has its own communicators: of all, and one for each direction of a pair
arguments = [call.arguments[1:2] + call.arguments[3:] for call in fake.named("ncclCommInitRank")]
assert arguments == [(SIZE, RANK), *([(2, RANK)] if RANK < 2 else [])], arguments

# the device computes what is sent before that, and what reads it afterwards
y = x + 1
z = c.all_reduce(y) * 2
flow.vm.sync()
first, last = fake.launches("elementwise")[-2:]
exchange, counted = fake.named("ncclAllReduce")[-1], fake.launches("_passed")[-1]
assert fake.ordered(first, exchange)
assert fake.ordered(exchange, counted)
assert fake.ordered(counted, last)
assert not fake.ordered(last, exchange)

Path(sys.argv[1], f"{RANK}.done").touch()
