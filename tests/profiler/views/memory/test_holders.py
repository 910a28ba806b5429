"""Holders of memory at a moment: everything alive, by module, line and purpose."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.profiler import Profile, profile
from flowvm.profiler.run.kinds import KINDS
from flowvm.profiler.views.memory.holders import BEFORE, module_of
from flowvm.profiler.views.memory.memory_parts import PARTS
from tests.profiler.synthetic import synthetic


class Net(flow.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = flow.nn.Linear(64, 128), flow.nn.Linear(128, 4)

    def forward(self, x: Any) -> Any:
        return self.fc2(flow.relu(self.fc1(x)))


@pytest.fixture(scope="module")
def trained() -> Profile:
    net = Net()
    optimizer = flow.optim.Adam(net.parameters())

    def step() -> None:
        loss = net(flow.rand(256, 64)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    step()
    with profile() as p:
        for _ in range(3):
            step()
    return p


def test_together_it_is_all_that_is_alive(trained: Profile, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = trained.memory_of()
    times = [data.time[0] - 1, data.peak_time, *rng.choice(data.time, 20)]
    for time in [int(t) for t in times]:
        holders = trained.holdings_of().at(time)
        assert sum(one.nbytes for one in holders) == data.level(time)
        assert list(holders) == sorted(holders, key=lambda one: -one.nbytes)
    at = trained.at((data.peak_time - trained.run.begun) / 1e6)
    assert dict(at.live)["cpu"] == data.peak  # a device may have what other tests left
    assert at.holders[0] == trained.holdings_of().at(data.peak_time)


def test_at_the_peak_it_is_who_the_memory_view_names(trained: Profile) -> None:
    data, names = trained.memory_of(), dict(zip(KINDS, (name for *_, name in PARTS), strict=False))
    expected: Counter[tuple[str, str]] = Counter()
    for owner in data.owners:
        expected[owner.name, owner.line] += owner.nbytes
    sizes: Counter[tuple[str, str]] = Counter()
    kinds = {}
    for one in trained.holdings_of().at(data.peak_time):
        if one.kind != "workspace" and one.op != BEFORE:
            sizes[one.op, one.line] += one.nbytes
            kinds[one.op, one.line] = one.kind
    assert sizes == expected
    for owner in data.owners:
        assert kinds[owner.name, owner.line] in (names[owner.kind], "to be released")


def test_it_says_module_kind_and_keeper(trained: Profile) -> None:
    holders = trained.holdings_of().at(trained.run.begun)
    params = {one.module: one for one in holders if one.kind == "params"}
    assert params["Net.fc1"].nbytes == (64 + 1) * 128 * 4
    assert params["Net.fc1"].keeper == "Net.fc1.weight and 1 more"
    assert params["Net.fc2"].count == 2
    optim = {one.module: one for one in holders if one.kind == "optim"}
    assert optim["Net.fc1"].nbytes == 2 * params["Net.fc1"].nbytes
    assert "Adam" in optim["Net.fc1"].keeper
    run = trained.run
    relu = [i for i in range(len(run)) if run.names[run.op[i]] == "relu"]
    later = trained.holdings_of().at(int(run.time("ended")[relu[-1]]))
    (own,) = [one for one in later if one.op == "relu"]
    assert own.module == "Net"
    assert own.kind in ("activations", "to be released")  # Python may have let go of it by then


def test_what_was_let_go_of_is_to_be_released(seed: int) -> None:
    p = Profile(synthetic(seed))
    own = p.holdings_of()
    for time in range(0, p.run.wall, max(1, p.run.wall // 20)):
        alive = (own.born <= time) & (time < own.died)
        waiting = int(own.size[alive & (own.freed <= time)].sum())
        nbytes = sum(one.nbytes for one in own.at(time) if one.kind == "to be released")
        assert nbytes == waiting


@pytest.mark.parametrize(
    ("keeper", "module"),
    [("Net.fc1.weight", "Net.fc1"), ("was Adam exp_avg of Net.fc1.weight and 3 more", "Net.fc1"),
     ("list outs (5) in train.main()", ""), ("autograd of loss in step()", ""), ("", "")],
)  # fmt: skip
def test_modules_in_keepers(keeper: str, module: str) -> None:
    assert module_of(keeper) == module


def test_a_run_without_memory() -> None:
    with profile() as p:
        pass
    assert sum(one.nbytes for one in p.holdings_of().at(p.run.begun)) == p.memory_of().peak
