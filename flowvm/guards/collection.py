"""Python's garbage collector during work that makes many lasting objects."""

from __future__ import annotations

import gc


def settle() -> None:
    """Move all objects to the oldest generation without a collection, by a freeze and an unfreeze.

    Repeated collections over the objects of an import would take an eighth of its time.
    """
    if not gc.get_freeze_count():  # objects that a program has frozen stay frozen
        gc.freeze()
        gc.unfreeze()
