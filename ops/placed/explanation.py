"""`flow.sbp.explain`: the signatures by which a function's calls on global tensors were made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flowvm.eager.interpreter import operators
from flowvm.ops.placed.boxing import bytes_of, cost, steps
from flowvm.ops.placed.choice import Choice, watched
from flowvm.profiler import markup

if TYPE_CHECKING:
    from flowvm.eager.interpreter import Operator
    from flowvm.meta.global_meta import GlobalMeta


@dataclass(frozen=True)
class Line:
    """One call: the op, its operands' sbp, the chosen signatures, the boxing, and the ties."""

    op: str
    held: tuple[str, ...]
    choice: Choice
    boxing: tuple[str, ...]

    def __str__(self) -> str:
        chosen = " | ".join(map(repr, self.choice.signatures))
        held, moved = ", ".join(self.held), bytes_of(self.choice.bytes)
        text = f"{self.op:<16} {held:<16} by {chosen:<24} {moved}"
        for step in self.boxing:
            text += f"\n    {step}"
        for tie in self.choice.ties:
            text += f"\n    as cheap: {tie!r}"
        return text


@dataclass(frozen=True)
class Explanation:
    """The result of `explain`; printed, it is one line for each call."""

    lines: tuple[Line, ...]
    result: Any = field(repr=False)

    @property
    def bytes(self) -> float:
        """The bytes that a rank receives in all calls."""
        return sum(line.choice.bytes for line in self.lines)

    def __str__(self) -> str:
        total = f"each rank receives {bytes_of(self.bytes)} in {len(self.lines)} calls"
        return "\n".join([*map(str, self.lines), total])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return markup.indented(str(self).split("\n"))


# public: sbp
def explain(function: Callable[..., object], *args: object, **kwargs: object) -> Explanation:
    """Call `function` and explain each call on global tensors inside.

    An explanation has the operands' sbp, the cheapest signature, the boxing to it, and the
    signatures that are as cheap.  Boxing counts the bytes that each rank receives.  All ranks call
    it together.
    """
    lines: list[Line] = []

    def see(op: Operator, metas: Sequence[GlobalMeta], choice: Choice) -> None:
        moves = tuple(
            f"{name}: {' then '.join(map(repr, steps(m.sbp, s)))}  {bytes_of(cost(m, s))}"
            for name, m, s in zip(op.signature.inputs, metas, choice.inputs, strict=True)
            if m.sbp != s
        )
        held = tuple(",".join(s.short for s in m.sbp) for m in metas)
        lines.append(Line(op.name, held, choice, moves))

    for op in tuple(operators):  # what has an entry of its own would not be asked about
        op.lru.forget()
    with watched.within(see):
        result = function(*args, **kwargs)
    return Explanation(tuple(lines), result)
