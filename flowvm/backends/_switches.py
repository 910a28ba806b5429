"""Modules with switches as attributes: setting one calls its owner."""

from __future__ import annotations

import sys
import types
from typing import Any

from flowvm.cuda.options import Switches


class SwitchModule(types.ModuleType):
    """A module with the switches of `_switches` among its attributes."""

    _switches: Switches

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_switches":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._switches, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_") or isinstance(value, types.ModuleType):
            super().__setattr__(name, value)
        else:
            setattr(self._switches, name, value)


def with_switches(module: str, switches: Switches) -> None:
    """Give a module's switches their names in it."""
    package = sys.modules[module]
    package.__dict__["_switches"] = switches
    package.__class__ = SwitchModule
