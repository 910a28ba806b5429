"""`oneflow.unittest`: tests that need so many hosts and ranks."""

import unittest

import pytest

from flowvm.compat import testcases
from flowvm.errors import MissingNameError
from flowvm.ranks.world import world, world_size


def test_cases_need_hosts_and_ranks(monkeypatch):
    decorator = testcases.skip_unless_1n1d
    assert not hasattr(decorator()(lambda: None), "__unittest_skip__")
    for name in ("skip_unless_1n2d", "skip_unless_2n4d"):  # this is one rank
        skipped = getattr(testcases, name)()(type("Case", (unittest.TestCase,), {}))
        assert skipped.__unittest_skip__
        hosts, each = name[12], name[14]
        assert f"needs {hosts} host(s) with {each} rank(s) each" in skipped.__unittest_skip_why__
        assert skipped.__unittest_skip_why__.endswith("there are 1 on 1")
    monkeypatch.setattr(testcases, "world_size", lambda: 8)
    monkeypatch.setattr(world(), "hosts", 2, raising=False)
    assert world_size() == 1  # only the module's own question is answered otherwise
    assert not hasattr(testcases.skip_unless_2n4d()(lambda: None), "__unittest_skip__")
    for name in ("skip_unless_1n8d", "skip_unless_2n2d", "skip_unless_1n1d"):
        assert getattr(testcases, name)()(lambda: None).__unittest_skip__


def test_cases_are_pythons():
    assert testcases.TestCase is unittest.TestCase
    assert testcases.env.eager_execution_enabled() is True


def test_other_names_are_missing():
    with pytest.raises(MissingNameError, match="has no 'skip_unless_nd'"):
        _ = testcases.skip_unless_nd


def test_folders_of_data_sets(monkeypatch):
    monkeypatch.delenv("ONEFLOW_TEST_DATASET_DIR", raising=False)
    assert testcases.dataset_dir("mnist") == "/dataset/mnist"
    monkeypatch.setenv("ONEFLOW_TEST_DATASET_DIR", "/data")
    assert testcases.dataset_dir("mnist") == "/data/mnist"
