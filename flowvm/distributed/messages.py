"""Messages between two ranks: `send`, `recv`, `isend`, `irecv`."""

from __future__ import annotations

from collections.abc import Callable

from flowvm.distributed.groups import members, peer
from flowvm.distributed.works import Work
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.ops.collectives import collectives
from flowvm.ranks.lanes import lane_for
from flowvm.vm.engine.engine import engine

# public: distributed

MOST_TAG = 32767


def _checked(name: str, tensor: Tensor, tag: int) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(f"{name}: tensor must be a Tensor, got {type(tensor).__name__}")
    if not isinstance(tag, int) or not 0 <= tag <= MOST_TAG:
        raise ArgumentError(f"{name}: tag is from 0 to {MOST_TAG}, got {tag!r}")
    return tensor


def isend(
    tensor: Tensor,
    dst: int | None = None,
    group: object = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work:
    """Send `tensor`, as it is now, to rank `dst`."""
    among = members("isend", group)
    to = peer("isend", "dst", among, dst, group_dst)
    collectives.send(_checked("isend", tensor, tag).detach(), to, among, tag)
    return Work(lane_for("send", to, tensor._meta.device), ())


def irecv(
    tensor: Tensor,
    src: int | None = None,
    group: object = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work:
    """Receive a message of rank `src` into `tensor`."""
    among = members("irecv", group)
    if src is None and group_src is None:
        raise ArgumentError("irecv: say src, the rank that sends: any rank will not do")
    source = peer("irecv", "src", among, src, group_src)
    collectives.recv_(_checked("irecv", tensor, tag), source, among, tag)
    return Work(lane_for("recv", source, tensor._meta.device), (tensor,))


def send(
    tensor: Tensor,
    dst: int | None = None,
    group: object = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Send `tensor`, as it is now, to rank `dst`; nothing waits for it."""
    isend(tensor, dst, group, tag, group_dst)


def recv(
    tensor: Tensor,
    src: int | None = None,
    group: object = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receive a message of rank `src` into `tensor`.  Return the number of that rank.  A reader of
    the tensor waits for the message.
    """
    among = members("recv", group)
    work = irecv(tensor, src, group, tag, group_src)
    if engine.lending.holds(tensor._ref):  # other owners of its memory cannot wait
        work.wait()
    return peer("recv", "src", among, src, group_src)


class P2POp:
    """One message for `batch_isend_irecv`: `P2POp(isend, tensor, 1)`."""

    def __init__(
        self,
        op: Callable[..., Work],
        tensor: Tensor,
        peer: int | None = None,
        group: object = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op not in (isend, irecv):
            raise ArgumentError("P2POp: op is flow.distributed.isend or irecv")
        self.op, self.tensor, self.peer = op, tensor, peer
        self.group, self.tag, self.group_peer = group, tag, group_peer


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Work]:
    """Issue all messages of a list."""
    if not p2p_op_list or not all(isinstance(p, P2POp) for p in p2p_op_list):
        raise ArgumentError("batch_isend_irecv: expected a list of P2POp")
    return [p.op(p.tensor, p.peer, p.group, p.tag, p.group_peer) for p in p2p_op_list]
