"""Exchanges by MPI: the function and the arguments for each kind.

`MPI` is the table.  Ranks of one host meet, and reduce few bytes, without MPI: `nearby`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowvm.launch import Launch
from flowvm.meta.meta import TensorMeta
from flowvm.ops.collectives.cpu import nearby
from flowvm.ops.collectives.cpu.exchange import IN, OUT, Argument, Program, value
from flowvm.ops.collectives.exchanges import Exchange, places
from flowvm.ranks.library import in_place, moved_type, number_type, reduction

TO, FROM = Argument(OUT, 0), Argument(IN, 0)


def launched(
    e: Exchange, body: Any, outputs: Sequence[TensorMeta], operands: Sequence[TensorMeta]
) -> Launch:
    """Return the Launch of an exchange; `operands`: outputs, then inputs, without `order`."""
    if nearby.is_nearby(e):
        return nearby.launched(e, outputs, operands)
    program = Program(e)
    MPI[e.kind](program, e)
    return program.launch(body, outputs, operands)


def _reduced(e: Exchange) -> tuple[Argument, Argument]:
    return value(number_type(e.dtype)), value(reduction(e.how, e.dtype))


def _moved(e: Exchange) -> Argument:
    return value(moved_type(e.dtype.itemsize))


def _comm(e: Exchange) -> Argument:
    return value(e.joined.handle)


def _all_reduce(p: Program, e: Exchange) -> None:
    sent = value(in_place()) if e.same else FROM
    p.call("MPI_Iallreduce", sent, TO, value(e.elements), *_reduced(e), _comm(e))


def _reduce(p: Program, e: Exchange) -> None:
    sent = value(in_place()) if e.own == e.root else TO
    p.call("MPI_Ireduce", sent, TO, value(e.elements), *_reduced(e), value(e.root), _comm(e))


def _all_gather(p: Program, e: Exchange) -> None:
    kind, sent = _moved(e), value(e.elements)
    if len({*e.receive_sizes}) == 1:
        p.call("MPI_Iallgather", FROM, sent, kind, TO, sent, kind, _comm(e))
    else:
        counts, at = p.numbers(e.receive_sizes), p.numbers(places(e.receive_sizes))
        p.call("MPI_Iallgatherv", FROM, sent, kind, TO, counts, at, kind, _comm(e))


def _reduce_scatter(p: Program, e: Exchange) -> None:
    p.call("MPI_Ireduce_scatter", FROM, TO, p.numbers(e.send_sizes), *_reduced(e), _comm(e))


def _all_to_all(p: Program, e: Exchange) -> None:
    kind = _moved(e)
    lists = [
        p.numbers(n) for counts in (e.send_sizes, e.receive_sizes) for n in (counts, places(counts))
    ]
    p.call("MPI_Ialltoallv", FROM, *lists[:2], kind, TO, *lists[2:], kind, _comm(e))


def _broadcast(p: Program, e: Exchange) -> None:
    if not e.same and e.own == e.root:
        p.copied = e.elements * e.dtype.itemsize
    p.call("MPI_Ibcast", TO, value(e.elements), _moved(e), value(e.root), _comm(e))


def _send(p: Program, e: Exchange) -> None:
    p.call("MPI_Isend", TO, value(e.elements), _moved(e), value(e.root), value(e.tag), _comm(e))


def _recv(p: Program, e: Exchange) -> None:
    p.call("MPI_Irecv", TO, value(e.elements), _moved(e), value(e.root), value(e.tag), _comm(e))


def _barrier(p: Program, e: Exchange) -> None:
    p.call("MPI_Ibarrier", _comm(e))


MPI: dict[str, Callable[[Program, Exchange], None]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "send": _send,
    "recv": _recv,
    "barrier": _barrier,
}
