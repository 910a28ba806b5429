"""Switches that are environment variables."""

import pytest

from flowvm.compat.environment import parse_boolean_from_env


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("TRUE", True), ("yes", True), ("0", False), ("no", False)]
)
def test_environment_switches(monkeypatch, text, value):
    monkeypatch.setenv("A_SWITCH", text)
    assert parse_boolean_from_env("A_SWITCH", not value) is value


def test_environment_switch_that_is_not_set(monkeypatch):
    monkeypatch.delenv("A_SWITCH", raising=False)
    assert parse_boolean_from_env("A_SWITCH", True) is True
