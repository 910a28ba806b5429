"""`import torch` means flowvm for a while."""

import importlib
import sys

import pytest

import flowvm as flow
from flowvm import mock_torch


@pytest.fixture(autouse=True)
def _ends_as_it_began():
    yield
    assert not mock_torch.is_enabled()
    assert not any(type(m).__name__ == "_Mirror" for m in sys.modules.values())


def named(name="torch"):
    return importlib.import_module(name)


def test_a_block():
    with mock_torch.enable(lazy=True, verbose=False):
        assert mock_torch.is_enabled()
        assert named().nn.Module is flow.nn.Module
        assert named("torch.nn.functional").relu is flow.nn.functional.relu
        assert named("oneflow").Tensor is flow.Tensor
        with mock_torch.disable():
            assert not mock_torch.is_enabled()
        assert mock_torch.is_enabled()
        with mock_torch.enable():
            pass
        assert mock_torch.is_enabled()


def test_what_was_bound_keeps_its_meaning():
    with mock_torch.enable():
        torch = named()
    assert torch.nn.functional.relu is flow.nn.functional.relu
    assert torch.utils.data.DataLoader is flow.utils.data.DataLoader


def test_calls():
    mock_torch.enable()
    try:
        assert named().ones is flow.ones
    finally:
        mock_torch.disable()
    mock_torch.disable()  # a second time is nothing


def test_an_error_inside_turns_it_off():
    with pytest.raises(ModuleNotFoundError, match="no_such"), mock_torch.enable():
        named("torch.no_such_module")


def test_pytorch_stands_aside():
    theirs = pytest.importorskip("torch")
    before = {name for name in sys.modules if name.partition(".")[0] == "torch"}
    with mock_torch.enable():
        assert named() is not theirs
        with mock_torch.disable():
            assert named() is theirs
        assert named().Tensor is flow.Tensor
    assert named() is theirs
    assert named("torch.nn.functional") is theirs.nn.functional
    assert before <= set(sys.modules)


def test_other_packages_are_not_stood_in_for():
    with pytest.raises(ValueError, match="extra_dict stands in for tensorflow"):
        mock_torch.enable(extra_dict={"tensorflow": "oneflow"})
