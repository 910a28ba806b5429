"""`flow.mock_torch`: let `import torch` mean flowvm for a while, under OneFlow's names.

    with flow.mock_torch.enable():
        import torch                  # flowvm
    import torch                      # PyTorch, where it is installed

It is `flowvm.compat.torch`, which may be turned off again, and on while PyTorch is imported: its
modules stand aside meanwhile.  Names that are bound already keep their meaning, and what PyTorch
itself imports late, while it stands aside, is flowvm's.  It is for the whole process.
"""

from __future__ import annotations

import sys
from types import ModuleType, TracebackType

from flowvm.compat import torch as compat
from flowvm.errors import ArgumentError
from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())

_aside: dict[str, ModuleType] = {}  # the modules that the mirrors stand in for


def is_enabled() -> bool:
    """Return True if `import torch` means flowvm now.

    >>> flow.mock_torch.is_enabled()
    False
    """
    return compat.is_installed()


class _Switch:
    """A switch of the meaning of `import torch`.  A call lasts until the opposite call; a with
    statement lasts until its end.
    """

    def __init__(self, on: bool, report: bool) -> None:
        self._before = is_enabled()
        _turn(on, report)

    def __enter__(self) -> None:
        """Do nothing: the switch was made with the object."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _turn(self._before, False)


class enable(_Switch):  # noqa: N801 - OneFlow's name
    """Let `import torch` and `import oneflow` mean flowvm from now on, or inside `with enable():`.

    lazy         is taken: names are looked up when they are asked for, whatever it says
    verbose      list on stderr, when Python ends, what was asked for and is not there
    extra_dict   ArgumentError: other packages keep their names

    >>> with flow.mock_torch.enable():
    ...     import torch
    >>> torch.nn.Module is nn.Module
    True
    """

    def __init__(
        self,
        lazy: bool | None = None,
        verbose: bool | None = None,
        extra_dict: dict[str, str] | None = None,
    ) -> None:
        if extra_dict:
            raise ArgumentError(
                f"mock_torch.enable: extra_dict stands in for {', '.join(extra_dict)}, and only "
                f"torch and oneflow can be stood in for; put modules into sys.modules instead"
            )
        super().__init__(True, bool(verbose))


class disable(_Switch):  # noqa: N801 - OneFlow's name
    """Restore the meaning of `import torch` and `import oneflow` from now on, or inside `with
    disable():`.

    >>> with flow.mock_torch.enable():
    ...     with flow.mock_torch.disable():
    ...         inner = flow.mock_torch.is_enabled()
    >>> inner
    False
    """

    def __init__(self) -> None:
        super().__init__(False, False)


def _turn(on: bool, report: bool) -> None:
    if on == is_enabled():
        return
    if on:
        for name in [n for n in sys.modules if n.partition(".")[0] in compat.ROOTS]:
            _aside[name] = sys.modules.pop(name)
        compat.install(report=report)
        return
    compat.uninstall()
    modules = {**_aside}
    _aside.clear()
    sys.modules.update(modules)


__all__ = own_names(globals())
