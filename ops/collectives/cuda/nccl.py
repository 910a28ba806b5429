"""Exchanges by NCCL: the function and the arguments for each kind.

`NCCL` is the table: from an Exchange to steps.  What parts differ in is done by several functions
in a group, which NCCL makes one of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flowvm.cuda.lanes import NUMBERS
from flowvm.cuda.launch import Address, Const, Held, LibraryStep, Param, StreamWord
from flowvm.errors import DTypeError
from flowvm.ops.collectives.exchanges import Exchange, places

STREAM = StreamWord("stream")
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3}
BOOL_OPS = {"sum": 2, "prod": 3, "max": 2, "min": 3}  # of 0 and 1
MOVED = {1: "uint8", 2: "float16", 4: "int32", 8: "int64"}  # what is not reduced, by its bytes


def _call(name: str, *params: Param | int) -> LibraryStep:
    return LibraryStep(name, tuple(Const(p) if isinstance(p, int) else p for p in params))


def _grouped(steps: Iterable[LibraryStep]) -> list[LibraryStep]:
    return [_call("ncclGroupStart"), *steps, _call("ncclGroupEnd")]


def _sent(e: Exchange, elements: int = 0) -> Address:
    return Address(0 if e.same else 1, elements * e.dtype.itemsize)


def _bytes_address(e: Exchange, elements: int = 0) -> Address:
    return Address(0, elements * e.dtype.itemsize)


def _comm(e: Exchange) -> Held:
    return Held(e.joined.wire.address)


def _reduced(e: Exchange) -> tuple[int, int]:
    """The dtype that is reduced, and the reduction."""
    if e.dtype.is_bool:
        return NUMBERS["uint8"], BOOL_OPS[e.how]
    if e.dtype.name not in NUMBERS:
        raise DTypeError(f"NCCL has no {e.how} of {e.dtype.name}; convert the tensor to int32")
    return NUMBERS[e.dtype.name], OPS[e.how]


def _moved(e: Exchange) -> int:
    return NUMBERS[MOVED[e.dtype.itemsize]]


def _all_reduce(e: Exchange) -> list[LibraryStep]:
    kind, op = _reduced(e)
    return [
        _call("ncclAllReduce", _sent(e), _bytes_address(e), e.elements, kind, op, _comm(e), STREAM)
    ]


def _reduce(e: Exchange) -> list[LibraryStep]:
    kind, op = _reduced(e)
    return [
        _call(
            "ncclReduce",
            _sent(e),
            _bytes_address(e),
            e.elements,
            kind,
            op,
            e.root,
            _comm(e),
            STREAM,
        )
    ]


def _all_gather(e: Exchange) -> list[LibraryStep]:
    kind = _moved(e)
    comm = _comm(e)
    if len({*e.receive_sizes}) == 1:
        return [_call("ncclAllGather", _sent(e), _bytes_address(e), e.elements, kind, comm, STREAM)]
    return _grouped(
        _call("ncclBroadcast", _sent(e), _bytes_address(e, at), n, kind, root, comm, STREAM)
        for root, (n, at) in enumerate(zip(e.receive_sizes, places(e.receive_sizes), strict=True))
        if n
    )


def _reduce_scatter(e: Exchange) -> list[LibraryStep]:
    kind, op = _reduced(e)
    comm, own = _comm(e), e.send_sizes[e.own]
    if len({*e.send_sizes}) == 1:
        return [
            _call("ncclReduceScatter", _sent(e), _bytes_address(e), own, kind, op, comm, STREAM)
        ]
    return _grouped(
        _call("ncclReduce", _sent(e, at), _bytes_address(e), n, kind, op, root, comm, STREAM)
        for root, (n, at) in enumerate(zip(e.send_sizes, places(e.send_sizes), strict=True))
        if n
    )


def _all_to_all(e: Exchange) -> list[LibraryStep]:
    kind = _moved(e)
    comm, steps = _comm(e), []
    sends, receives = (zip(n, places(n), strict=True) for n in (e.send_sizes, e.receive_sizes))
    for peer, ((gives, at), (takes, to)) in enumerate(zip(sends, receives, strict=True)):
        if gives:
            steps.append(_call("ncclSend", _sent(e, at), gives, kind, peer, comm, STREAM))
        if takes:
            steps.append(_call("ncclRecv", _bytes_address(e, to), takes, kind, peer, comm, STREAM))
    return _grouped(steps) if steps else []


def _broadcast(e: Exchange) -> list[LibraryStep]:
    kind = _moved(e)
    sent, target = _sent(e), _bytes_address(e)
    return [_call("ncclBroadcast", sent, target, e.elements, kind, e.root, _comm(e), STREAM)]


def _send(e: Exchange) -> list[LibraryStep]:  # of a pair, the first one sends
    kind = _moved(e)
    return [_call("ncclSend", _sent(e), e.elements, kind, 1, _comm(e), STREAM)]


def _recv(e: Exchange) -> list[LibraryStep]:
    kind = _moved(e)
    return [_call("ncclRecv", _bytes_address(e), e.elements, kind, 0, _comm(e), STREAM)]


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
