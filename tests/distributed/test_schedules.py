"""Schedules of pipelines: orders of ranks that never wait for each other in a circle."""

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

import flowvm as flow
from flowvm.distributed.fsdp import policies
from flowvm.distributed.pipelining import schedules
from flowvm.distributed.pipelining.schedules import Action
from flowvm.errors import ArgumentError

KINDS = {"gpipe": schedules.ScheduleGPipe, "1f1b": schedules.Schedule1F1B}
MANY = {"interleaved": schedules.ScheduleInterleaved1F1B, "looped": schedules.ScheduleLoopedBFS}


def schedule(kind, ranks, n, each=1, rank=0):
    one = object.__new__((KINDS | MANY)[kind])
    one.n, one.count, one.each = n, ranks * each, each
    one.group = SimpleNamespace(size=ranks, rank=rank)
    one.merge, one.args_spec, one.kwargs_spec = None, None, {}
    one.orders = [one.order(place) for place in range(ranks)]
    return one


def play(one, ranks):
    """Take each rank's next step as soon as what it needs is there; the most that were ahead."""
    done, at, ahead, most = set(), [0] * ranks, [0] * ranks, [0] * ranks
    while any(at[r] < len(one.orders[r]) for r in range(ranks)):
        moved = False
        for r in range(ranks):
            while at[r] < len(one.orders[r]):
                a = one.orders[r][at[r]]
                if a.kind == "F":
                    needs = {Action("F", a.stage - 1, a.number)} if a.stage else set()
                else:
                    last = a.stage == one.count - 1
                    needs = {Action("F", a.stage, a.number)}
                    needs |= set() if last else {Action("B", a.stage + 1, a.number)}
                if not needs <= done:
                    break
                done.add(a)
                ahead[r] += 1 if a.kind == "F" else -1
                most[r] = max(most[r], ahead[r])
                at[r] += 1
                moved = True
        assert moved, (
            f"ranks wait in a circle: {[o[k:][:1] for o, k in zip(one.orders, at, strict=True)]}"
        )
    return done, most


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("n", [1, 3, 8])
def test_orders_are_played_through(kind, ranks, n):
    one = schedule(kind, ranks, n)
    done, most = play(one, ranks)
    assert done == {Action(k, s, i) for k in "FB" for s in range(ranks) for i in range(n)}
    for place in range(ranks):
        assert most[place] == min(n, one.credits(place))
    if kind == "1f1b":
        assert most[-1] == 1


@pytest.mark.parametrize("kind", MANY)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("each", [2, 3])
def test_several_stages_of_a_rank_are_played_through(kind, ranks, each):
    one = schedule(kind, ranks, 2 * ranks, each)
    done, _ = play(one, ranks)
    assert len(done) == 2 * ranks * each * 2 * ranks


def test_messages_come_in_the_senders_order():
    for rank in range(3):
        one = schedule("1f1b", 3, 4, rank=rank)
        comes = one._comes(True)
        for place, actions in comes.items():
            assert actions == [a for a in one.orders[place] if a in actions]
            assert all((a.stage + (1 if a.kind == "F" else -1)) == rank for a in actions)
        assert all(a.kind == "F" for actions in one._comes(False).values() for a in actions)


def test_arguments_are_cut_and_repeated():
    one = schedule("gpipe", 1, 3)
    x = flow.arange(7.0)
    parts = one._cut((x, "flag"), {"k": flow.arange(3)})
    assert [p[0][0].tolist() for p in parts] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [p[0][1] for p in parts] == ["flag"] * 3
    assert [p[1]["k"].tolist() for p in parts] == [[0], [1], [2]]
    one.args_spec = (schedules.TensorChunkSpec(1),)
    (first, *_) = one._cut((flow.zeros(2, 6),), {})
    assert first[0][0].shape == (2, 2)
    with pytest.raises(ArgumentError, match="args_chunk_spec is for 1 arguments, got 2"):
        one._cut((x, x), {})
    one.args_spec = None
    with pytest.raises(ArgumentError, match=r"argument 0 of shape \(2,\) has 2 rows for 3"):
        one._cut((flow.ones(2),), {})


class Pair(NamedTuple):
    a: object
    b: object


def test_outputs_are_joined_as_they_are_nested():
    one = schedule("gpipe", 1, 2)
    parts = [flow.ones(1, 2), flow.zeros(1, 2)]
    whole = one._merged(parts)
    np.testing.assert_array_equal(whole.numpy(), [[1, 1], [0, 0]])
    assert one._merged([{"k": [p]} for p in parts])["k"][0].shape == (2, 2)
    assert one._merged([(p, "x") for p in parts])[1] == ["x", "x"]
    pair = one._merged([Pair(p, p) for p in parts])
    assert isinstance(pair, Pair)
    assert pair.a.shape == (2, 2)
    assert one._merged([flow.tensor(1.0), flow.tensor(2.0)])[1].item() == 2  # of no dimension
    one.merge = (1,)
    assert one._merged(parts).shape == (1, 4)


def test_policies_are_values():
    policy = policies.MixedPrecisionPolicy(param_dtype=flow.bfloat16)
    assert policy == policies.MixedPrecisionPolicy(flow.bfloat16)
    with pytest.raises(AttributeError):
        policy.param_dtype = None
    assert policies.FullStateDictConfig(rank0_only=True).offload_to_cpu is False
    assert issubclass(policies.FullOptimStateDictConfig, policies.FullStateDictConfig)
    assert [s.value for s in policies.ShardingStrategy] == [1, 2, 3, 4, 5]
