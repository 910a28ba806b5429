"""The origin of an instruction: the user's line, with carets under the expression; the module; and,
for instructions of backward, the line of the forward call.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowvm.profiler.grammar import Line
from flowvm.profiler.run.run import Run


@dataclass(frozen=True)
class Spot:
    """A line's text, the columns [first, last) of the expression in it, and the function that it is
    in; "" what is not known.
    """

    text: str
    first: int
    last: int
    function: str

    def lines(self, indent: int, width: int) -> list[Line]:
        """The text, and carets under the expression; of a long line what is around it."""
        room = width - indent
        if not self.text or room < 8:
            return []
        text, first, last = self.text, self.first, self.last
        if len(text) > room:
            begin = max(0, min(first - 4, len(text) - room))
            text, first, last = text[begin : begin + room], first - begin, last - begin
        pad = " " * indent
        carets = "^" * max(0, min(last, len(text)) - first)
        shown: list[Line] = [[(pad + text, "")]]
        if carets and carets != "^" * len(text):
            shown.append([(pad + " " * first, ""), (carets, "critical")])
        return shown


@dataclass(frozen=True)
class Origin:
    """The origin of an instruction besides its own line: the path of the module, and for one of
    backward the line of the forward call; "" for an unknown one.
    """

    module: str
    forward: str
    spot: Spot  # of the forward call

    def known(self) -> dict[str, str]:
        """`module` and `forward`, where they are known."""
        parts = {"module": self.module, "forward": self.forward}
        return {name: text for name, text in parts.items() if text}

    def lines(self, indent: int, width: int) -> list[Line]:
        """`forward  model.py:21`, the text below, and `module   Net.fc1`."""
        pad = " " * indent
        shown: list[Line] = []
        if self.forward:
            shown.append([(pad + "forward  ", "head"), (self.forward, "line")])
            shown += self.spot.lines(indent + 9, width)
        if self.module:
            shown.append([(pad + "module   ", "head"), (self.module, "")])
        return shown


def origin_of(run: Run, i: int) -> Origin:
    """Return the origin of an instruction."""
    line, spot = int(run.forward[i]), int(run.forward_spot[i])
    return Origin(
        run.modules[run.module[i]] if run.modules else "",
        run.lines[line] if line >= 0 else "",
        Spot(*run.spots[spot]) if spot >= 0 else Spot("", 0, 0, ""),
    )


def spot_of(run: Run, i: int) -> Spot:
    """Return the place of an instruction's expression in its source."""
    if i < len(run.spot) and run.spots:
        return Spot(*run.spots[run.spot[i]])
    return Spot("", 0, 0, "")
