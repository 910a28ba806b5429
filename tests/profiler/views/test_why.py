"""The `why` view and the critical path: producers, hazards, gating, sums."""

from __future__ import annotations

import pytest

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.profiler import Profile, profile
from flowvm.vm.machine.words import KIND, OPERAND
from tests.profiler.synthetic import of_rows, synthetic
from tests.vm.kernels import Gate, mix, tensor, update, wait_for_gate
from tests.vm.live import until


def test_the_gating_producer_is_the_one_that_ended_last():
    side = flow.Stream("why side")
    total, x = tensor([0]), tensor([1])
    with profile() as p, Gate() as gate:
        early = mix(x, x, 1)
        with flow.stream(side):
            wait_for_gate(total, x, gate.address)
        late = mix(early, total, 2)
        until(lambda: gate.is_reached, "the kernel waits")
        early.tolist()  # has ended before the gate opens
        gate.open()
        late.numpy()
    mixes = p.run.seq[p.run.op == p.run.names.index("mix")]
    reason = p.why(int(mixes[-1]))
    assert reason.op == "mix"
    assert [q.op for q in reason.producers] == ["wait_for_gate", "mix"]
    assert [q.gating for q in reason.producers] == [True, False]
    gating, other = reason.producers
    assert gating.held == reason.dep >= other.held
    assert gating.hazard == "RAW"
    assert gating.behind is not None
    text = reason.screen(100).plain()
    for part in ("[gating]", "[not gating]", "wait_for_gate", "what-if", "test_why.py"):
        assert part in text


def test_hazards_are_named():
    x, y = tensor(), tensor()
    with profile() as p:
        a = mix(x, y, 0)
        update(x, y, 1)
        update(x, a, 2)
        x.numpy()
    war, waw = (p.why(int(p.run.seq[k])) for k in (1, 2))
    assert [(q.op, q.hazard) for q in war.producers] == [("mix", "WAR")]
    assert ("update", "WAW") in [(q.op, q.hazard) for q in waw.producers]
    assert any("update" in text and "WAR" in text for text in p.why(int(p.run.seq[0])).blocks)


def test_what_there_is_not():
    with profile() as p:
        flow.ones(3).sum().item()
    with pytest.raises(ArgumentError, match=r"no operator 'conv'.*there are"):
        p.why("conv")
    with pytest.raises(ArgumentError, match="is not in this run"):
        p.why(10**9)
    with pytest.raises(ArgumentError, match="the number of an instruction"):
        p.why(1.5)


def test_the_critical_path_sums_to_the_wall_time():
    x = flow.randn(64, 64)
    with profile() as p:
        for _ in range(10):
            x = (x @ x).tanh()
        x.sum().item()
    path = p.critical_path()
    assert sum(q.end - q.begin for q in path.pieces) == path.wall == p.run.wall
    assert path.pieces[0].begin == 0
    assert path.floor == p.floor.length
    assert {op for op, _ in path.what_if} <= {"matmul", "tanh", "sum"}
    assert all(without <= path.floor for _, without in path.what_if)
    assert "observed path" in path.screen(100).plain()


@pytest.mark.parametrize("seed", range(5))
def test_any_run_can_be_shown_at_any_width(seed):
    p = Profile(synthetic(seed))
    for width in (80, 100, 160):
        for view in (p.critical_path(), p.graph(), p.why(int(p.run.seq[len(p) // 2]))):
            assert view.screen(width).plain()
            assert view.to_dict()


def test_the_slow_instruction_behind_a_chain():
    """The instruction that ran longest in a chain of waits is named, however far back it is."""
    rows = [(0, KIND.OP_CALL, 0, 1, 10, 5010)]
    rows += [(1, KIND.OP_CALL, 0, 2 + k, 5010 + 10 * k, 5020 + 10 * k) for k in range(9)]
    operands = [[(0, OPERAND.MUT)], *([[(0, OPERAND.MUT)]] * 9)]
    run = of_rows(rows, operands, (), 6000)
    run.names = ["matmul", "add"]
    view = Profile(run).why(109)
    assert view.slow.startswith(
        "#100 matmul ran 0.005 ms, 98 % of what was waited for, 9 of 9 back"
    )
    assert "├─ slow   #100 matmul" in view.screen(120).plain()
    assert Profile(run).why(100).slow == ""


def test_what_if_is_a_number_that_prints_as_a_sentence():
    run = of_rows(
        [(0, KIND.OP_CALL, 0, 1, 1, 4_000_001), (1, KIND.OP_CALL, 0, 1, 4_000_001, 6_000_001)],
        [[(0, OPERAND.MUT)], [(0, OPERAND.MUT)]], (), 8_000_000,
    )  # fmt: skip
    run.names = ["matmul", "add"]
    then = Profile(run).what_if("matmul", 0.5)
    assert then == 4_000_000
    assert then + 1 == 4_000_001
    assert (
        str(then)
        == repr(then)
        == (
            "if matmul took 0.5 times as long, the floor would be 4 ms instead of 6 (33 % less); "
            "the run took 8 ms"
        )
    )
    assert "if add took no time, the floor would be 4 ms" in str(Profile(run).what_if("add"))
