"""`torch.utils.flop_counter`: operations of products, convolutions and attention, counted."""

from __future__ import annotations

from typing import Any

from flowvm.guards.regions import Switched
from flowvm.loading.listing import listing
from flowvm.profiler.front.profiling import profile

__all__ = ["FlopCounterMode"]
__dir__ = listing(globals())


class FlopCounterMode(Switched):
    """Counts the floating point operations of what is issued inside, 2 a multiplication.

    display   print the table at the end, as PyTorch does

    The other arguments are taken: counts are by operator, and `flow.summary(model, x)` has them by
    module.

    >>> from flowvm.utils.flop_counter import FlopCounterMode
    >>> with FlopCounterMode(display=False) as counter:
    ...     y = flow.ones(2, 3) @ flow.ones(3, 4)
    >>> counter.get_total_flops()
    48
    """

    def __init__(
        self, mods: Any = None, depth: int = 2, display: bool = True, custom_mapping: Any = None
    ) -> None:
        self._display = display
        self._profile: profile | None = None

    def _switch(self) -> FlopCounterMode:
        self._profile = profile(level=1)
        self._profile.__enter__()
        return self

    def _undo(self) -> None:
        assert self._profile is not None
        self._profile.__exit__(None, None, None)
        if self._display:
            print(self.get_table())

    def get_flop_counts(self) -> dict[str, dict[str, int]]:
        """Operations by operator, under "Global"."""
        if self._profile is None:
            return {"Global": {}}
        return {"Global": {r.name: r.flops for r in self._profile.table("op") if r.flops}}

    def get_total_flops(self) -> int:
        """All of them."""
        return sum(self.get_flop_counts()["Global"].values())

    def get_table(self, depth: int | None = None) -> str:
        """A line for each operator."""
        counts = {**self.get_flop_counts()["Global"], "in all": self.get_total_flops()}
        return "\n".join(f"{name:<24}{count:>20,} FLOP" for name, count in counts.items())
