"""Operations counted, and the hooks' handle."""

import flowvm as flow
from flowvm import nn
from flowvm.utils.flop_counter import FlopCounterMode
from flowvm.utils.hooks import RemovableHandle


def test_flop_counter_counts_two_a_multiplication():
    with FlopCounterMode(display=False) as counter:
        _ = flow.ones(2, 3) @ flow.ones(3, 4)
    assert counter.get_total_flops() == 48
    assert list(counter.get_flop_counts()["Global"].values()) == [48]
    assert counter.get_table().splitlines()[-1].split() == ["in", "all", "48", "FLOP"]


def test_hooks_are_removed_by_their_handle():
    calls, layer = [], nn.Identity()
    handle = layer.register_forward_hook(lambda *args: calls.append(1))
    assert isinstance(handle, RemovableHandle)
    layer(flow.ones(1))
    handle.remove()
    layer(flow.ones(1))
    assert calls == [1]
