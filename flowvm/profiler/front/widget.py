"""`p.widget()`: the interactive page of a run inside a notebook."""

from __future__ import annotations

from flowvm.errors import ArgumentError
from flowvm.profiler.export.html import PageProfile, html
from flowvm.profiler.grammar import counted


class Widget:
    """A page in a frame of its own; see `Profile.widget`.

    The frame may run the page's program and nothing else: it cannot reach the notebook, and asks no
    server.
    """

    def __init__(self, profile: PageProfile, height: int, against: PageProfile | None) -> None:
        if not isinstance(height, int) or height < 100:
            raise ArgumentError(f"widget: height is pixels, 100 or more, got {height!r}")
        self._profile, self._height, self._against = profile, height, against

    def _repr_html_(self) -> str:
        page = html(self._profile, self._against)
        # all that could end the attribute, or begin a character's name, in a value in quotes
        page = page.replace("&", "&amp;").replace('"', "&quot;")
        look = f"width:100%;height:{self._height}px;border:0"
        return (
            f'<iframe sandbox="allow-scripts" title="a run of flowvm" style="{look}" '
            f'srcdoc="{page}"></iframe>'
        )

    def __repr__(self) -> str:
        count = counted(len(self._profile), "instruction")
        return f'<widget of {count}: a notebook shows it; p.export("run.html") is a file>'
