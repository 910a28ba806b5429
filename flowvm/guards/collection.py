"""Python's garbage collector, where much is made that stays."""

from __future__ import annotations

import gc


def settle() -> None:
    """All objects go to the oldest generation unseen, as what was frozen does when it thaws.

    To look over what an import made, again and again, would be an eighth of its time.
    """
    if not gc.get_freeze_count():  # what a program has frozen stays so
        gc.freeze()
        gc.unfreeze()
