"""Ranks as threads of one process, with collectives that meet in a table.

They run global tensors on several ranks without a transport.
"""

import itertools
import threading

import numpy as np

import flowvm as flow
from flowvm.eager.tensor import Tensor
from flowvm.errors import CommunicationError
from flowvm.meta import placements
from flowvm.ops.placed import boxing
from flowvm.ops.placed import calls as calls_of_ops

_local = threading.local()
PATIENCE = 100  # seconds that a rank waits for the others: then one of them has gone another way


class _Meeting:
    """The table of arrays at which ranks meet: each adds its own, and takes the arrays of all."""

    def __init__(self, size):
        self.size = size
        self.lock = threading.Condition()
        self.slots = {}
        self.error = None

    def meet(self, key, rank, ranks, value):
        with self.lock:
            table = self.slots.setdefault(key, {})
            assert rank not in table, f"rank {rank} came to {key} twice"
            table[rank] = value
            self.lock.notify_all()
            whole = self.lock.wait_for(
                lambda: self.error is not None or len(table) == len(ranks), PATIENCE
            )
            if self.error is not None or not whole:
                raise RuntimeError(f"rank {rank} waits at {key} for others") from self.error
            return [table[r] for r in ranks]

    def put(self, key, rank, value):
        """Leave an array at the table, and wait for nobody."""
        with self.lock:
            self.slots.setdefault(key, {})[rank] = value
            self.lock.notify_all()

    def fail(self, error):
        with self.lock:
            self.error = self.error or error
            self.lock.notify_all()


def _next_key(name, ranks):
    state = _local.state
    state.calls += [(name, ranks)]
    count = state.counts[ranks] = state.counts.get(ranks, 0) + 1
    return ranks, count


def _meet(name, ranks, value):
    state = _local.state
    return state.meeting.meet(_next_key(name, ranks), state.rank, ranks, (name, value))


def _arrays(name, x, ranks, *more):
    met = _meet(name, ranks, (x.numpy().copy(), *more))  # others read it later
    assert {n for n, _ in met} == {name}, f"ranks {ranks} are at {[n for n, _ in met]}"
    return [v for _, v in met]


def _tensor(array, like):
    return flow.tensor(np.ascontiguousarray(array), dtype=like.dtype)


def all_reduce(x, op="sum", group=None):
    total = {"sum": sum, "max": lambda arrays: np.max([*arrays], 0)}[op]
    return _tensor(total(a for (a,) in _arrays("all_reduce", x, group)), x)


def all_gather(x, group=None, sizes=None, dim=0):
    parts = [a for (a,) in _arrays("all_gather", x, group)]
    assert sizes is None or [a.shape[dim] for a in parts] == list(sizes)
    return _tensor(np.concatenate(parts, dim), x)


def reduce_scatter(x, op="sum", group=None, sizes=None, dim=0):
    total = sum(a for (a,) in _arrays("reduce_scatter", x, group))
    ends = np.cumsum(sizes)[:-1]
    return _tensor(np.split(total, ends, dim)[group.index(_local.state.rank)], x)


def all_to_all(x, group=None, split_dim=0, concat_dim=0, split_sizes=None, concat_sizes=None):
    k = group.index(_local.state.rank)
    ends = np.cumsum(split_sizes)[:-1]
    parts = [np.split(a, ends, split_dim)[k] for (a,) in _arrays("all_to_all", x, group)]
    assert [p.shape[concat_dim] for p in parts] == list(concat_sizes)
    return _tensor(np.concatenate(parts, concat_dim), x)


def broadcast(x, src, group=None, meta=None):
    met = _meet("broadcast", group, None if x is None else x.detach().clone())
    value = met[group.index(src)][1]
    return _tensor(value.numpy(), value)


def send(x, dst, group=None):
    state, pair = _local.state, (_local.state.rank, dst)
    state.meeting.put(_next_key("send", pair), state.rank, ("send", x.detach().clone()))


def recv(meta, src, group=None):
    value = _meet("recv", (src, _local.state.rank), None)[0][1]
    assert tuple(value.shape) == tuple(meta.shape)
    return _tensor(value.numpy(), value)


def barrier(group=None, text="barrier()"):
    state = _local.state
    count = state.counts[group, "barrier"] = state.counts.get((group, "barrier"), 0) + 1
    texts = state.meeting.meet((group, "barrier", count), state.rank, group, text)
    if len({*texts}) > 1:
        raise CommunicationError(f"ranks do not do the same: {texts}")


TRANSPORT = boxing.Transport(
    all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, recv, barrier,
    lambda ranks: ranks,
)  # fmt: skip


def _unheard(*_):
    """Nothing: these ranks share each op's table of choices, so one op is new to one of them."""


class _State:
    def __init__(self, rank, size, meeting):
        self.rank, self.size, self.meeting = rank, size, meeting
        self.counts, self.calls = {}, []


def _world():
    state = getattr(_local, "state", None)
    return (0, 1) if state is None else (state.rank, state.size)


def run(size, function):
    """Return the results of `function(rank)` on `size` ranks, which all run at the same time.

    An error on one ends all.
    """
    meeting, results, errors = _Meeting(size), [None] * size, []

    def rank(k):
        _local.state = _State(k, size, meeting)
        try:
            results[k] = function(k)
        except BaseException as error:
            errors.append(error)
            meeting.fail(error)

    placements.world.append(_world)
    boxing.transport.append(lambda: TRANSPORT)
    noted, calls_of_ops.note = calls_of_ops.note, _unheard
    try:
        threads = [threading.Thread(target=rank, args=(k,)) for k in range(size)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        placements.world.pop()
        boxing.transport.pop()
        calls_of_ops.note = noted
    if errors:
        raise errors[0]
    return results


def calls():
    """The collectives that this rank has made: (name, ranks)."""
    return _local.state.calls


def whole(array, where, requires_grad=False):
    """A global tensor that each rank of `where` holds whole."""
    tensor = flow.tensor(array).to(device=placements.placed_device(where))
    return tensor.requires_grad_() if requires_grad else tensor


def held(array, where, sbp):
    """A global tensor of `array`; summands of a partial sum are all but zero."""
    x = whole(array, where)
    if any(s is placements.partial_sum for s in sbp) and x._meta.inside and x.dtype.inexact:
        place = where.place_of(x._meta.device.rank)
        share = 1.0
        for s, n, k in zip(sbp, where.shape, place, strict=True):
            if s is placements.partial_sum:
                share *= -0.5 if k else 1 + 0.5 * (n - 1)
        solid = tuple(placements.broadcast if s is placements.partial_sum else s for s in sbp)
        parts = boxing.part_of(boxing.boxed(x, solid))
        return boxing.global_of(parts * share, x._meta.with_sbp(sbp))
    return x.to_global(sbp=sbp)


def check_parts(parts, values, where, sbp):
    """Compare the ranks' parts, `parts` by rank, with `values`; summands are added up first."""
    sums = {}
    for rank, place in zip(where.flat, np.ndindex(where.shape), strict=True):
        summand = [s is placements.partial_sum for s in sbp]
        others = tuple(0 if one else k for one, k in zip(summand, place, strict=True))
        bounds = placements.part(values.shape, where, sbp, place)
        sums.setdefault((others, bounds), []).append(parts[rank])
    for (_, bounds), summands in sums.items():
        expected = values[tuple(slice(*b) for b in bounds)]
        assert all(s.shape == expected.shape for s in summands)
        np.testing.assert_allclose(sum(summands), expected, atol=1e-12)


def barriers():
    """Return how many barriers this rank has come to."""
    return sum(n for key, n in _local.state.counts.items() if key[-1] == "barrier")


def each_sbp(ndim, axes=1):
    """Return every sbp of a tensor of `ndim` dimensions, for each of `axes`."""
    one = [placements.broadcast, *(placements.split(d) for d in range(ndim))]
    return list(itertools.product([*one, placements.partial_sum], repeat=axes))


_ = Tensor
