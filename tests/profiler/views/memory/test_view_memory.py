"""The memory screen: its text for made-up runs, and for a real one that leaks."""

from __future__ import annotations

import dataclasses
import gc
import json
import re

import numpy as np
import pytest

import flowvm as flow
from flowvm.profiler import Profile, profile
from flowvm.profiler.run.kinds import KINDS, kinds_of
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import KIND, OPERAND
from flowvm.vm.watch.purposes import purposes
from tests.profiler.synthetic import of_rows, synthetic

MADE = OPERAND.MUT | OPERAND.ALLOCATE


@pytest.fixture
def waiting():
    """1000 bytes whose release is issued at 2 and runs at 40, 100 that nobody frees; 7 of scratch;
    of 50 bytes from before the run, 20 are released.
    """
    run = of_rows(
        [
            (0, KIND.OP_CALL, 0, 0, 0, 10),
            (1, KIND.OP_CALL, 0, 1, 10, 40),
            (2, KIND.RELEASE, 0, 2, 40, 41),
            (2, KIND.RELEASE, 0, 50, 60, 61),
        ],
        [[(1, MADE)], [(2, MADE), (1, OPERAND.CONST)], [(1, OPERAND.MUT)], [(3, OPERAND.MUT)]],
        ended=100,
    )
    run.names, run.lines = ["relu", "matmul", "release"], ["a.py:1", "a.py:2"]
    run.size[:] = [1000, 100, 0, 1000, 20]
    run.scratch[1] = 7
    run.info["live"] = {"cpu": 130}
    return Profile(run)


def test_parts_at_the_peak(waiting):
    view = waiting.memory()
    assert (view.peak, view.peak_time, view.before, view.scratch) == (1157, 10, 50, 7)
    assert view.during == "#101 matmul  a.py:2"
    assert [(p.name, p.nbytes, p.kept, p.made) for p in view.places] == [
        ("relu", 1000, 0, 1), ("matmul", 100, 1, 1)
    ]  # fmt: skip
    assert view.waiting == (1000, 1)
    assert view.waits_for == "matmul"
    assert view.end == 130


def test_the_course_has_parts_that_sum_to_the_level(waiting):
    view = waiting.memory()
    course = np.array(view.course)
    assert course.min() >= 0
    # from 2 on the first is to be released, until 41; of what was before, 30 are left from 61 on
    assert course[:1].tolist() == [[0, 0, 1050, 0, 0, 0, 0]]
    assert course[20].tolist() == [0, 0, 150, 0, 0, 7, 1000]
    assert course[60].tolist() == [0, 0, 150, 0, 0, 0, 0]
    assert course[-1].tolist() == [0, 0, 130, 0, 0, 0, 0]
    assert view.at_peak == (0, 0, 150, 0, 0, 7, 1000)
    assert view.most_waiting == 1000


def test_the_course_of_any_run_stays_below_the_peak(seed):
    p = Profile(synthetic(seed))
    p.run.size[:] = 64 * (1 + p.run.tensor)
    view = p.memory()
    course = np.array(view.course)
    assert course.min() >= 0
    assert course.sum(axis=1).max() == view.peak
    known = sum(q.nbytes for q in view.places)
    assert view.before + view.scratch + known <= view.peak


def test_what_lives_on_is_suspected_and_what_does_not_is_not():
    results, x = [], flow.ones(64, 64)
    flow.relu(x).numpy()
    with profile() as p:
        for _ in range(12):
            y = flow.relu(x)
            results.append(flow.exp(y))
            y.sum().item()
    view = p.memory()
    suspects = [q for q in view.places if q.suspect]
    assert [(q.name, q.kept, q.made) for q in suspects] == [("exp", 12, 12)]
    assert suspects[0].kept_bytes == 12 * 64 * 64 * 4
    assert "12 of 12 tensors of exp at test_view_memory.py" in view.advice[0]
    assert "a leak?" in view.screen(100).plain()


def test_gradients_of_the_last_step_and_layers_of_one_are_no_leak():
    weights = [flow.ones(64, 64).requires_grad_() for _ in range(6)]
    x = flow.ones(32, 64)
    losses = []
    with profile() as p:
        for _ in range(6):
            with flow.profiler.span("step"):
                y = x
                for v in weights:
                    v.grad = None
                    y = flow.tanh(y @ v)
                loss = y.sum()
                loss.backward()
                losses.append(loss.detach())
        losses[-1].item()
    one = p.part("step", 2)
    bare = Profile(dataclasses.replace(one.run, marks=[]))
    for q in (p, one, p.part("step"), bare, Profile(dataclasses.replace(p.run, marks=[]))):
        assert [v.name for v in q.memory().places if v.suspect] == []


class Net(flow.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = flow.nn.Linear(64, 64), flow.nn.Linear(64, 1)

    def forward(self, x):
        return self.second(self.first(x).tanh())


def test_what_memory_is_for():
    with profile() as p:  # tests before this one may have left models behind
        flow.ones(2).sum().item()
    others = dict(zip(("param", "optim"), p.memory().at_peak, strict=False))
    net, x = Net(), flow.ones(32, 64)
    optimizer = flow.optim.Adam(net.parameters())
    losses = []
    with profile() as p:
        for k in range(3):
            loss = net(x).square().mean()
            optimizer.zero_grad()
            if k < 2:
                loss.backward()
                optimizer.step()
            else:
                losses.append(loss)  # its graph keeps activations
            del loss
        spare = flow.zeros(128, 128) + 1
        flow.vm.sync()
    view = p.memory()
    weights = 4 * (64 * 64 + 64 + 64 + 1)
    parts = dict(zip(("param", "optim", "other", "activation"), view.at_peak, strict=False))
    assert parts["param"] - others["param"] == weights
    assert parts["optim"] - others["optim"] == 2 * weights
    assert parts["activation"] >= 32 * 64 * 4
    kinds = {(q.name, q.kind): q for q in view.places}
    assert (
        kinds["tanh", "activation"].keeper
        == "autograd of list losses (1) in test_what_memory_is_for()"
    )
    assert kinds["add", "other"].keeper == "spare in test_what_memory_is_for()"
    assert {q.kind for q in view.places if q.name == "_matmul_tn"} <= {"grad"}
    earlier = view.earlier[0]
    assert (earlier.kind, earlier.nbytes) == ("param", weights + others["param"])
    assert others["param"] or earlier.keeper.endswith("first.weight and 3 more")
    text = view.screen(160).plain()
    assert "█ params" in text
    assert "autograd of list losses (1)" in text
    del spare


def test_gradients_and_activations_that_are_gone_are_told_by_who_used_them():
    w_in = flow.ones(64, 64, requires_grad=True)
    with profile() as p:
        y = flow.relu(w_in)
        z = flow.exp(y).sum()
        del y
        z.backward()
        w_in.grad = None
        z.item()
    kind = {row: set() for row in ("relu", "exp", "relu_backward")}
    for name, of in zip(p.run.names, range(len(p.run.names)), strict=True):
        operands = (p.run.op[p.run.owner] == of) & ((p.run.access & OPERAND.ALLOCATE) != 0)
        if name in kind:
            kind[name] = {list(KINDS)[k] for k in kinds_of(p.run)[p.run.tensor[operands]]}
    assert kind == {"relu": {"activation"}, "exp": {"activation"}, "relu_backward": {"grad"}}


@pytest.mark.parametrize("width", [80, 100, 160])
def test_it_fits(seed, width, waiting):
    for p in (Profile(synthetic(seed)), waiting, Profile()):
        text = p.memory().screen(width).plain()
        assert max(map(len, text.split("\n"))) <= width
        p.memory().screen(width).plain(ascii_only=True).encode("ascii")
        json.dumps(p.memory().to_dict())


def test_a_part_of_a_run_has_the_level_of_its_own_end():
    x = flow.ones(256, 256)
    keep = []
    with profile() as p:
        for name in ("a", "b"):
            with flow.profiler.span(name):
                keep.append(flow.exp(x))
                keep[-1].sum().item()
    first, both = p.part("a").memory_of(), p.memory_of()
    assert both.nbytes[-1] - first.nbytes[-1] >= 256 * 256 * 4 - 64  # the sum may live yet
    assert abs(int(first.before) - int(both.before)) < 64


def test_what_is_gone_is_known_by_what_it_was_made_for():
    """A whole program inside of a function: nothing of it lives when the run is collected."""

    def main():
        net, x = Net(), flow.ones(32, 64)
        optimizer = flow.optim.Adam(net.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()

    with flow.vm.sequential(), profile() as p:  # not ahead of the VM, where what is gone waits
        main()
    kinds = {}
    for place in p.memory().places:
        kinds.setdefault(place.kind, []).append(place)
    weights = 4 * (64 * 64 + 64 + 64 + 1)
    allocated = (p.run.access & OPERAND.ALLOCATE) != 0  # at the peak not all of it need be there
    of = np.array(list(KINDS))[kinds_of(p.run)[p.run.tensor[allocated]]]
    assert p.run.size[allocated][of == "optim"].sum() == 2 * weights
    assert p.run.size[allocated][of == "param"].sum() == weights
    assert kinds["optim"][0].keeper.startswith("was Adam exp_avg")
    assert ".first.weight" in kinds["optim"][0].keeper
    assert "first.weight" in kinds["param"][0].keeper
    text = p.memory().screen(160).plain()
    assert "\n the peak while #" in text
    assert re.search(r" was \d+ % [a-z ]+[,;] .*made\s+most, ", text), text


def test_a_number_that_is_used_again_is_for_nothing():
    """Other storages have a gone model's numbers: storages from before the run, and from it."""
    model = Net()
    optimizer = flow.optim.Adam(model.parameters())
    model(flow.ones(2, 64)).sum().backward()
    optimizer.step()
    del model, optimizer
    gc.collect()
    flow.vm.sync()
    engine.storages.reclaim()
    before = [flow.ones(4) for _ in range(200)]
    with profile() as p:
        after = [x + 1 for x in before]
        flow.vm.sync()
    mine = {x._ref & OPERAND.STORAGE_MASK for x in (*before, *after)}
    assert mine & {note.storage for note in purposes if note.kind}
    assert set(kinds_of(p.run)[p.run.tensor]) <= {list(KINDS).index("other")}
