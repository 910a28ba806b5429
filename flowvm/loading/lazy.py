"""Modules that are imported at the first use of an attribute.

    if TYPE_CHECKING:
        from flowvm.ops.declare.cuda import lowering
    else:
        lowering = lazy("flowvm.ops.declare.cuda.lowering")

`import flowvm` is to be light: what only some programs need (CUDA, profiler screens, what imports
Numba) is imported through this, and through nothing else. It is no way around the layers: the
names given here point down like every import (`tests/house/test_layout.py`), and keys of compiled
code follow them (`flowvm.compiler.dependencies`).
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from flowvm.guards.apart import apart

# modules of higher layers that a package shows, by the package's name: {"amp": the module};
# `flowvm.loading.providers` fills it
shown: dict[str, dict[str, object]] = {"flowvm.cuda": {}}


class Lazy:
    """A stand-in for a module that may not be imported yet; its attributes are the module's."""

    __slots__ = ("_module", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        if self._module is None:
            own = self._name.startswith("flowvm.")
            load = importlib.import_module
            self._module = load(self._name) if own else apart(load, self._name)
        return getattr(self._module, name)

    def __repr__(self) -> str:
        return f"<lazy {self._name!r}>"


def lazy(name: str) -> Lazy:
    """Return the module called `name`, which is imported at the first use of an attribute."""
    return Lazy(name)


def name_of(module: Lazy) -> str:
    """Return the full name of the module behind a Lazy."""
    return module._name
