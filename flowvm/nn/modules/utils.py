"""Numbers as tuples of one to four, by PyTorch's names: what layers of one's own use."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def _ntuple(n: int, name: str) -> Callable[[object], tuple[object, ...]]:
    def parse(x: object) -> tuple[object, ...]:
        return tuple(x) if isinstance(x, Iterable) else (x,) * n

    parse.__name__ = parse.__qualname__ = name
    return parse


_single = _ntuple(1, "_single")
_pair = _ntuple(2, "_pair")
_triple = _ntuple(3, "_triple")
_quadruple = _ntuple(4, "_quadruple")


def _reverse_repeat_tuple(t: Iterable[object], n: int) -> tuple[object, ...]:
    """Each element n times, the last first: what `functional.pad` takes, of a padding."""
    return tuple(x for x in reversed(tuple(t)) for _ in range(n))
