"""Messages between two ranks: what is checked before anything is sent, by a group of one."""

import pytest

import flowvm as flow
from flowvm import distributed as dist
from flowvm.distributed import messages, rpc
from flowvm.errors import ArgumentError, ArgumentTypeError, MissingNameError


@pytest.fixture(autouse=True)
def group():
    if dist.is_initialized():  # another test's, in this process
        dist.destroy_process_group()
    dist.init_process_group()
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("tag", [-1, messages.MOST_TAG + 1, 1.5, "1"])
def test_tags_are_small_numbers(tag):
    with pytest.raises(ArgumentError, match=r"tag is from 0 to 32767, got"):
        messages._checked("isend", flow.ones(1), tag)
    assert messages._checked("isend", flow.ones(1), messages.MOST_TAG).shape == (1,)


def test_a_message_has_another_rank_at_its_end():
    x = flow.ones(2)
    for call in (messages.send, messages.recv, messages.isend, messages.irecv):
        with pytest.raises(ArgumentError, match="rank 0 is this rank itself"):
            call(x, 0)
        with pytest.raises(ArgumentError, match="ranks are 0 to 0, got"):
            call(x, 1)
    with pytest.raises(ArgumentError, match="say src, the rank that sends"):
        messages.irecv(x)
    with pytest.raises(ArgumentError, match="give dst or group_dst, and not both"):
        messages.isend(x, 0, group_dst=0)
    with pytest.raises(ArgumentTypeError, match="isend: tensor must be a Tensor, got list"):
        messages.isend([1], 0)


def test_lists_of_messages_are_issued_in_order(monkeypatch):
    calls = []
    for name in ("isend", "irecv"):
        monkeypatch.setattr(messages, name, lambda *args, n=name: calls.append((n, args[1:])) or n)
    x = flow.ones(1)
    listed = [messages.P2POp(messages.isend, x, 1, tag=3), messages.P2POp(messages.irecv, x, 2)]
    assert messages.batch_isend_irecv(listed) == ["isend", "irecv"]
    assert calls == [("isend", (1, None, 3, None)), ("irecv", (2, None, 0, None))]
    with pytest.raises(ArgumentError, match=r"op is flow\.distributed\.isend or irecv"):
        messages.P2POp(messages.send, x, 1)
    for wrong in ([], [listed[0], "other"]):
        with pytest.raises(ArgumentError, match="expected a list of P2POp"):
            messages.batch_isend_irecv(wrong)


def test_there_are_no_calls_of_other_ranks_functions():
    with pytest.raises(MissingNameError, match=r"flowvm\.distributed\.rpc has no 'rpc_sync'"):
        _ = rpc.rpc_sync
    assert not hasattr(rpc, "init_rpc")
