"""The `dir()` and completion of public modules: their own names without the names they import."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar


def listing(names: dict[str, Any]) -> Callable[[], list[str]]:
    """The `__dir__` of the module whose globals are `names`: its `__all__`, the modules below it
    that list something themselves, and names that begin with underscores.
    """
    package = f"{names['__name__']}."

    def shown(name: str, value: object) -> bool:
        below = isinstance(value, ModuleType) and value.__name__.startswith(package)
        return name.startswith("_") or (below and hasattr(value, "__all__"))

    def names_of_the_module() -> list[str]:
        more = {name for name, value in names.items() if shown(name, value)}
        return sorted({*names["__all__"], *more})

    return names_of_the_module


def own_names(names: dict[str, object]) -> list[str]:
    """The `__all__` of a module that says it by underscores alone: the functions, classes and their
    objects that the module whose globals are `names` defines.  It is called at the file's end.
    """
    own = names["__name__"]
    return sorted(
        name
        for name, value in names.items()
        if not name.startswith("_")
        if getattr(value, "__module__", None) == own and not isinstance(value, TypeVar)
    )
