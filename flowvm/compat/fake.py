"""`torch._subclasses.fake_tensor`: tensors without values are on the meta device here, and are of
no class of their own.
"""

from __future__ import annotations

from typing import Any

from flowvm.errors import ModeError
from flowvm.fx import make_fx as make_fx


class FakeTensor:
    """No tensor is one."""


class FakeTensorMode:
    """Not here: make tensors on the meta device, `with flow.device("meta"):`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise ModeError(
            "FakeTensorMode: tensors without values are made by `with flow.device('meta'):`"
        )


def get_proxy_mode() -> Any:
    """None: make_fx records calls, and no mode is seen."""
    return None


def is_fake(x: object) -> bool:
    """False."""
    return False
