"""graph.config: the values that it takes and refuses; it decides which Plan a call gets."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, ArgumentTypeError, RecaptureWarning
from flowvm.graph.passes.passes import PASSES
from flowvm.nn.graph.config import GraphConfig

nn = flow.nn


def test_every_pass_has_a_switch_and_is_on():
    config = GraphConfig()
    assert config.passes == dict.fromkeys(PASSES, True)
    config.disable("fusion", "dead")
    assert [name for name, on in config.passes.items() if not on] == [
        name for name in PASSES if name in ("fusion", "dead")
    ]
    assert set(config.without) == {"fusion", "dead"}
    config.enable("dead")
    assert config.without == ("fusion",)


@pytest.mark.parametrize("switch", ["enable", "disable"])
def test_a_name_that_is_no_pass_is_refused_and_changes_nothing(switch):
    config = GraphConfig()
    config.disable("dead")
    with pytest.raises(ArgumentError, match=r"no pass \['fuse'\]; there are .*fusion"):
        getattr(config, switch)("fusion", "fuse")
    assert config.without == ("dead",)


def test_the_table_of_passes_is_a_copy():
    config = GraphConfig()
    config.passes["fusion"] = False
    assert config.passes["fusion"]


def test_a_setting_that_changes_is_captured_again_and_one_put_back_is_found():
    graph = flow.compile(lambda x: (x * 2 + 1).relu())
    x = flow.arange(-3.0, 3.0)
    fused = graph(x).numpy()
    assert len(graph.plan.tasks) == 1
    graph.config.disable("fusion")
    with pytest.warns(RecaptureWarning, match=r"graph.config was as it comes, is without fusion"):
        np.testing.assert_array_equal(graph(x).numpy(), fused)
    assert len(graph.plan.tasks) == 3
    graph.config.enable("fusion")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(graph(x).numpy(), fused)
    assert len(graph.plans) == 2


def test_graphs_have_settings_of_their_own():
    one, other = flow.compile(lambda x: x + 1), flow.compile(lambda x: x + 1)
    one.config.disable("dead")
    assert not other.config.without


@pytest.mark.parametrize(
    ("set_it", "error", "message"),
    [
        (lambda c: c.set_gradient_accumulation_steps(0), ArgumentError, "at least 1, got 0"),
        (lambda c: c.set_gradient_accumulation_steps(2.0), ArgumentTypeError, "int, got float"),
        (lambda c: c.set_gradient_accumulation_steps(True), ArgumentTypeError, "int, got bool"),
        (lambda c: c.enable_amp(1), ArgumentTypeError, "mode must be bool, got int"),
        (lambda c: c.enable_amp(dtype="half"), ArgumentTypeError, "dtype must be DType, got str"),
        (
            lambda c: c.enable_amp(dtype=flow.float64),
            ArgumentError,
            "flow.float16 or flow.bfloat16, got",
        ),
        (lambda c: c.allow_fuse_add_to_output(0), ArgumentTypeError, "mode must be bool, got int"),
        (lambda c: c.enable_straighten_algorithm("Fast"), ArgumentError, "SpeedFirst, Memory"),
        (lambda c: c.checkpoint(3), ArgumentTypeError, "str or Module, got int"),
        (lambda c: setattr(c, "order", "random"), ArgumentError, "order must be one of"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(set_it, error, message):
    config = GraphConfig()
    before = config.key
    with pytest.raises(error, match=message):
        set_it(config)
    assert config.key == before


def test_oneflows_names_switch_what_ours_do():
    config = GraphConfig()
    config.allow_fuse_model_update_ops(False)
    config.allow_fuse_add_to_output(False)
    assert set(config.without) == {"updates", "accumulate"}
    config.enable_multi_tensor_update()
    assert config.without == ("accumulate",)
    for mode, order in (("MemoryFirst", "memory"), ("Disable", "program"), ("SpeedFirst", "speed")):
        config.enable_straighten_algorithm(mode)
        assert config.order == order


def test_the_print_names_what_is_not_as_it_comes():
    config = GraphConfig()
    assert repr(config) == "(CONFIG: as it comes)"
    config.disable("fusion")
    assert repr(config) == "(CONFIG: without fusion)"


def test_settings_of_equal_meaning_are_equal_keys():
    one, other = GraphConfig(), GraphConfig()
    one.disable("dead")
    one.disable("fusion")
    other.disable("fusion", "dead", "dead")
    assert one.key == other.key
    assert one.key != GraphConfig().key
