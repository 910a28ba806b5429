"""`oneflow.support.env_var_util`: switches that are environment variables."""

from __future__ import annotations

import os


def string_to_bool(env_str: str) -> bool:
    """Return True for "1", "true", "yes", "on" and "y", in any case."""
    return env_str.lower() in ("1", "true", "yes", "on", "y")


def parse_boolean_from_env(env_var: str, default: bool) -> bool:
    """Return the switch that an environment variable is; `default` where it is not set."""
    text = os.environ.get(env_var)
    return default if text is None else string_to_bool(text)
