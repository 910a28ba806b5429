"""Exchanges by NCCL: which of its functions carries out which, and with what.

`NCCL` is the table: from an Exchange to steps.  What parts differ in is done by several functions
in a group, which NCCL makes one of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flowvm.cuda.lanes import NUMBERS
from flowvm.cuda.launch import Address, Const, Held, LibraryStep, Param, StreamWord
from flowvm.errors import DTypeError
from flowvm.meta.dtype import DType
from flowvm.ops.collectives.exchanges import Exchange, places

STREAM = StreamWord("stream")
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3}
BOOL_OPS = {"sum": 2, "prod": 3, "max": 2, "min": 3}  # of 0 and 1
# of what is moved alone, by the bytes of an element: the dtype, how many stand for one
MOVED = {1: ("uint8", 1), 2: ("float16", 1), 4: ("int32", 1), 8: ("int64", 1), 16: ("int64", 2)}


def _call(name: str, *params: Param | int) -> LibraryStep:
    return LibraryStep(name, tuple(Const(p) if isinstance(p, int) else p for p in params))


def _grouped(steps: Iterable[LibraryStep]) -> list[LibraryStep]:
    return [_call("ncclGroupStart"), *steps, _call("ncclGroupEnd")]


def _sent(e: Exchange, elements: int = 0) -> Address:
    return Address(0 if e.same else 1, elements * e.dtype.itemsize)


def _taken(e: Exchange, elements: int = 0) -> Address:
    return Address(0, elements * e.dtype.itemsize)


def _comm(e: Exchange) -> Held:
    return Held(e.joined.wire.address)


def _reduced(e: Exchange) -> tuple[int, int, int]:
    """The dtype that is reduced, how many of it stand for an element, and the reduction."""
    kind: DType = e.dtype
    name, each = kind.name, 1
    if kind.is_complex and e.how == "sum":
        name, each = ("float32" if kind.itemsize == 8 else "float64"), 2
    if kind.is_bool:
        return NUMBERS["uint8"], 1, BOOL_OPS[e.how]
    if name not in NUMBERS:
        raise DTypeError(
            f"NCCL has no {e.how} of {name}; convert the tensor first"
            + ("" if kind.is_complex else ", to int32 perhaps")
        )
    return NUMBERS[name], each, OPS[e.how]


def _moved(e: Exchange) -> tuple[int, int]:
    name, each = MOVED[e.dtype.itemsize]
    return NUMBERS[name], each


def _all_reduce(e: Exchange) -> list[LibraryStep]:
    kind, each, op = _reduced(e)
    count = e.count * each
    return [_call("ncclAllReduce", _sent(e), _taken(e), count, kind, op, _comm(e), STREAM)]


def _reduce(e: Exchange) -> list[LibraryStep]:
    kind, each, op = _reduced(e)
    count = e.count * each
    return [_call("ncclReduce", _sent(e), _taken(e), count, kind, op, e.root, _comm(e), STREAM)]


def _all_gather(e: Exchange) -> list[LibraryStep]:
    kind, each = _moved(e)
    comm = _comm(e)
    if len({*e.taken}) == 1:
        return [_call("ncclAllGather", _sent(e), _taken(e), e.count * each, kind, comm, STREAM)]
    return _grouped(
        _call("ncclBroadcast", _sent(e), _taken(e, at), n * each, kind, root, comm, STREAM)
        for root, (n, at) in enumerate(zip(e.taken, places(e.taken), strict=True))
        if n
    )


def _reduce_scatter(e: Exchange) -> list[LibraryStep]:
    kind, each, op = _reduced(e)
    comm, own = _comm(e), e.given[e.own] * each
    if len({*e.given}) == 1:
        return [_call("ncclReduceScatter", _sent(e), _taken(e), own, kind, op, comm, STREAM)]
    return _grouped(
        _call("ncclReduce", _sent(e, at), _taken(e), n * each, kind, op, root, comm, STREAM)
        for root, (n, at) in enumerate(zip(e.given, places(e.given), strict=True))
        if n
    )


def _all_to_all(e: Exchange) -> list[LibraryStep]:
    kind, each = _moved(e)
    comm, steps = _comm(e), []
    given, taken = (zip(n, places(n), strict=True) for n in (e.given, e.taken))
    for peer, ((gives, at), (takes, to)) in enumerate(zip(given, taken, strict=True)):
        if gives:
            steps.append(_call("ncclSend", _sent(e, at), gives * each, kind, peer, comm, STREAM))
        if takes:
            steps.append(_call("ncclRecv", _taken(e, to), takes * each, kind, peer, comm, STREAM))
    return _grouped(steps) if steps else []


def _broadcast(e: Exchange) -> list[LibraryStep]:
    kind, each = _moved(e)
    count = e.count * each
    sent, taken = _sent(e), _taken(e)
    return [_call("ncclBroadcast", sent, taken, count, kind, e.root, _comm(e), STREAM)]


def _send(e: Exchange) -> list[LibraryStep]:  # of a pair, the first one sends
    kind, each = _moved(e)
    return [_call("ncclSend", _sent(e), e.count * each, kind, 1, _comm(e), STREAM)]


def _recv(e: Exchange) -> list[LibraryStep]:
    kind, each = _moved(e)
    return [_call("ncclRecv", _taken(e), e.count * each, kind, 0, _comm(e), STREAM)]


NCCL: dict[str, Callable[[Exchange], list[LibraryStep]]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "send": _send,
    "recv": _recv,
}
