"""`flow.backends.mkldnn`: flowvm uses no oneDNN.  `enabled` and the others are taken and kept."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from flowvm.backends._switches import with_switches
from flowvm.cuda import options
from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())

_own: Final = options.Switches(
    "flow.backends.mkldnn", {"enabled": False, "deterministic": True, "allow_tf32": False}
)


def is_available() -> bool:
    """Return False: flowvm does not use oneDNN."""
    return False


def is_acl_available() -> bool:
    """Return False: flowvm does not use oneDNN with the Arm Compute Library."""
    return False


def flags(
    enabled: bool = False, deterministic: bool = False, allow_tf32: bool = True, **others: object
) -> AbstractContextManager[object]:
    """Return a context manager that sets these switches; they change nothing."""
    settings = {"enabled": enabled, "deterministic": deterministic, "allow_tf32": allow_tf32}
    return options.Setting(_own, settings)


with_switches(__name__, _own)

__all__ = own_names(globals())
