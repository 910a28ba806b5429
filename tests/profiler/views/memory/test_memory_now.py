"""The census of memory: kinds, owners, names; `flow.memory`, and the census in an error."""

from __future__ import annotations

import gc
import json
import re
import weakref
from typing import Any

import pytest

import flowvm as flow
from flowvm import nn
from flowvm.eager.tensor import Tensor
from flowvm.profiler.analysis.census import Held, census
from flowvm.profiler.grammar import View
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL, OPERAND
from tests.vm.live import script


def of(operand: int) -> Held:
    """Return the census's entry of an operand's storage: a tensor would have a name here."""
    return next(h for h in census() if h.storage == operand & OPERAND.STORAGE_MASK)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(24)
        self.fc = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(x)).tanh()


def test_what_modules_and_optimizers_have() -> None:
    net = Net()
    optimizer = flow.optim.Adam(net.parameters())
    net(flow.ones(8, 24)).sum().backward()
    optimizer.step()
    flow.vm.sync()
    weight = of(net.fc.weight._ref)
    assert (weight.kind, weight.nbytes) == ("param", 24 * 24 * 4)
    path = weight.keeper.removesuffix("fc.weight")
    assert re.fullmatch(r"Net(\(\d+\))?\.", path)
    assert of(net.norm.running_mean._ref) == Held(
        net.norm.running_mean._ref & OPERAND.STORAGE_MASK, 96, "param", f"{path}norm.running_mean"
    )
    assert net.fc.bias.grad is not None
    grad = of(net.fc.bias.grad._ref)
    assert (grad.kind, grad.keeper) == ("grad", f"grad of {path}fc.bias")
    state = of(optimizer.state[net.fc.weight]["exp_avg"]._ref)
    assert (state.kind, state.keeper) == ("optim", f"Adam exp_avg of {path}fc.weight")
    alone = nn.Parameter(flow.zeros(2, 3) + 1)
    flow.vm.sync()
    assert of(alone._ref).kind == "param"


KEPT = {}


def test_by_what_names_code_keeps_the_rest() -> None:
    class Holder:
        pass

    holder, many, x = Holder(), [], flow.ones(4, 4)
    alone, holder.cache, KEPT["a"] = x + 1, {"x": [x + 2]}, x + 3  # type: ignore[attr-defined]
    many += [x + k for k in range(3)]
    flow.vm.sync()
    where = f"in {test_by_what_names_code_keeps_the_rest.__name__}()"
    assert of(alone._ref).keeper == f"alone {where}"
    assert of(holder.cache["x"][0]._ref).keeper == f"holder {where}"  # type: ignore[attr-defined]
    assert of(KEPT["a"]._ref).keeper == f"dict KEPT (1) in {__name__}"
    assert of(many[2]._ref).keeper == f"list many (3) {where}"
    assert {of(k).kind for k in (alone._ref, KEPT["a"]._ref, many[0]._ref)} == {"other"}
    KEPT.clear()


def test_looking_keeps_nothing_alive_and_changes_nothing() -> None:
    x = flow.ones(4, 4)
    alive = weakref.ref(y := x + 1)
    flow.vm.sync()  # it has its memory now
    gc.disable()  # it would end cycles, and there may be none
    try:
        assert of(y._ref).keeper == "y in test_looking_keeps_nothing_alive_and_changes_nothing()"
        with flow.profiler.profile():
            y.sum().item()
        del y
        assert alive() is None
    finally:
        gc.enable()

    def mine() -> dict[str, object]:
        z = x + 2
        variables = locals()
        assert of(z._ref).keeper == "z in mine()"
        return variables

    assert {"z", "x"} <= set(mine())

    class Body:
        z = x + 3
        keeper = of(z._ref).keeper

    assert Body.z is not None
    assert Body.keeper == ""


def test_objects_whose_attributes_misbehave_are_passed_by() -> None:
    class Odd:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    class Slots:
        __slots__ = ("a",)

    odd, slots, x = Odd(), Slots(), flow.ones(4, 4) * 2
    flow.vm.sync()
    assert of(x._ref).keeper.startswith("x in ")
    del odd, slots


def test_what_autograd_saves_is_kept_by_what_leads_to_it() -> None:
    x = flow.ones(4, 4, requires_grad=True)
    losses = [x.exp().sum()]
    flow.vm.sync()
    holder = of(losses[0].grad_fn.edges[0].saved[0]._ref)
    assert holder.kind == "activation"
    assert holder.keeper.startswith("autograd of list losses (1) in ")
    node = losses[0].grad_fn
    losses.clear()
    names = [h.keeper for h in census() if h.kind == "activation"]
    assert any(re.fullmatch(r"autograd of exp, test_memory_now\.py:\d+", n) for n in names), names
    del node


def test_memory_of_pythons_and_what_has_none_yet_is_not_counted() -> None:
    import numpy as np

    array = flow.from_dlpack(np.ones(100_000))
    ids = {h.storage for h in census()}
    assert array._ref & OPERAND.STORAGE_MASK not in ids


def test_the_summary_adds_up() -> None:
    tensors = [flow.ones(64, 64) * k for k in range(20)]
    flow.vm.sync()
    summary = flow.memory.summary()
    assert summary.live == flow.memory.allocated() == engine.words[CTL.LIVE_BYTES]
    assert flow.memory.allocated() <= flow.memory.max_allocated()
    assert flow.memory.allocated() <= flow.memory.reserved()
    assert sum(n for _, n in summary.kinds) + summary.rest == summary.live
    row = next(r for r in summary.rows if r.name == "mul" and "tensors (20)" in r.keeper)
    assert (row.kind, row.count, row.nbytes) == ("other", 20, 20 * 64 * 64 * 4)
    assert row.line.startswith("test_memory_now.py:")
    assert isinstance(summary, View)
    for width in (80, 100, 160):
        text = summary.screen(width).plain()
        assert max(map(len, text.split("\n"))) <= width
        summary.screen(width).plain(ascii_only=True).encode("ascii")
    json.dumps(summary.to_dict())
    del tensors


def test_an_out_of_memory_error_says_who_has_the_memory() -> None:
    """Run in a process of its own, whose address space is limited."""
    process = script(
        """
        import resource
        import flowvm as flow

        net = flow.nn.Linear(512, 512)
        def train():
            kept = [net(flow.ones(256, 512)) for _ in range(4)]
            flow.vm.sync()
            pages = int(open("/proc/self/statm").read().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (300 << 20),) * 2)
            large = flow.zeros(1 << 14, 1 << 14)
            try:
                (large + kept[0][0, 0]).sum().item()
            except MemoryError as error:
                print("\\n".join(error.__notes__))
        train()
        """
    )
    text = process.stdout
    lines = text.splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("    memory    "))
    assert re.match(r"    memory    \d+\.\d MiB live · peak .* reserved, .* of it free", lines[at])
    assert "params 1.0 MiB" in lines[at + 1]
    assert re.search(r"2\.0 MiB .* 4  other +linear .* list kept \(4\) in train\(\)", text)
    assert re.search(r"1\.0 MiB .* 2  param .* Linear\.weight and 1", text)
    assert "next  1. list kept (4) in train() keeps 2.0 MiB" in text
    assert lines[-1].startswith("    The VM is usable.")


def test_an_error_whose_memory_cannot_be_looked_at_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from flowvm.vm.watch.notes import _memory

    def fails(stream: int) -> str:
        raise MemoryError("none left")

    monkeypatch.setattr(engine.failures, "about_memory", fails)
    assert _memory(engine, 0) == ["    memory    could not be looked at: MemoryError('none left')"]
