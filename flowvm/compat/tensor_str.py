"""`torch._tensor_str`: the options of printing, from `flow.set_printoptions`."""

from __future__ import annotations

from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.interop import printing


class _Options:
    """PyTorch's record of the options of set_printoptions; reading it asks flowvm."""

    def __getattr__(self, name: str) -> Any:
        return getattr(printing._options, name)


PRINT_OPTS = _Options()


def _tensor_str(self: Tensor, indent: int = 0) -> str:
    return repr(self)


def _str(self: Tensor, *, tensor_contents: str | None = None) -> str:
    return repr(self)
