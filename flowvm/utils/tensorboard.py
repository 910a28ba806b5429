"""`flow.utils.tensorboard`: TensorBoard's SummaryWriter, through the package tensorboardX.

Tensors among the arguments are handed on as NumPy arrays.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import ConfigError
from flowvm.loading.listing import listing
from flowvm.meta.dtype import bfloat16, float32

__all__ = ["SummaryWriter"]
__dir__ = listing(globals())


class SummaryWriter:
    """tensorboardX's SummaryWriter, with its arguments and methods; with statements close it.

    ConfigError where that package is not installed.

    >>> writer = SummaryWriter("runs/first")
    >>> writer.add_scalar("loss", loss, step)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            package = importlib.import_module("tensorboardX")
        except ImportError as error:
            raise ConfigError(
                "flow.utils.tensorboard.SummaryWriter writes through tensorboardX, which is not "
                "installed: pip install tensorboardX (and tensorboard, to look at what it wrote)"
            ) from error
        self._writer = package.SummaryWriter(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_writer" not in vars(self):
            raise AttributeError(f"SummaryWriter has no {name!r}")
        found = getattr(self._writer, name)
        if not callable(found):
            return found

        @functools.wraps(found)
        def call(*args: Any, **kwargs: Any) -> Any:
            return found(*map(_plain, args), **{k: _plain(v) for k, v in kwargs.items()})

        return call

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _plain(value: Any) -> Any:
    """A value with arrays, or numbers, in place of tensors."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        array = (value.to(float32) if value.dtype is bfloat16 else value).numpy()
        return array.item() if array.ndim == 0 else array
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    return value
