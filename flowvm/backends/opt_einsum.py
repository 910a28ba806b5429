"""`flow.backends.opt_einsum`: einsum chooses the order of its products itself."""

from __future__ import annotations

from typing import Final

from flowvm.backends._switches import with_switches
from flowvm.cuda import options
from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())


def is_available() -> bool:
    """Return False: flowvm does not use the package opt_einsum."""
    return False


def get_opt_einsum() -> None:
    """Return None: the package is not used."""
    return


_own: Final = options.Switches("flow.backends.opt_einsum", {"enabled": False, "strategy": None})
with_switches(__name__, _own)

__all__ = own_names(globals())
