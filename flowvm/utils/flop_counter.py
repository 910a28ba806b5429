"""`torch.utils.flop_counter`: operations of products, convolutions and attention, counted."""

from __future__ import annotations

from typing import Any

from flowvm.loading.listing import listing, own_names
from flowvm.profiler.front.profiles import profile

__dir__ = listing(globals())


class FlopCounterMode(profile):
    """Counts the floating point operations of instructions issued inside, 2 a multiplication.

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
        self,
        mods: object = None,
        depth: int = 2,
        display: bool = True,
        custom_mapping: object = None,
    ) -> None:
        super().__init__(level=1)
        self._display = display

    def _on_exit(self, *error: Any) -> None:
        super()._on_exit(*error)
        if self._display:
            print(self.get_table())

    def get_flop_counts(self) -> dict[str, dict[str, int]]:
        """Operations by operator, under "Global"."""
        return {"Global": {row.name: row.flops for row in self.table("op") if row.flops}}

    def get_total_flops(self) -> int:
        """Return the number of all operations."""
        return sum(self.get_flop_counts()["Global"].values())

    def get_table(self, depth: int | None = None) -> str:
        """A line for each operator."""
        counts = {**self.get_flop_counts()["Global"], "in all": self.get_total_flops()}
        return "\n".join(f"{name:<24}{count:>20,} FLOP" for name, count in counts.items())


__all__ = own_names(globals())
