"""flowvm's version, for all layers; and the names of `torch.version`.

`cuda`, `hip` and `xpu` are what a build was made for: None, flowvm is built for none of them and
finds a CUDA driver when it is first asked (`flow.cuda.is_available()`).
"""

from __future__ import annotations

import re
from typing import Final


class Version(str):
    """A version as a text, compared by its numbers, also with tuples: "0.10" > "0.9"."""

    __slots__ = ()

    def __lt__(self, other: str | tuple[object, ...]) -> bool:
        return _key(self) < _key(other)

    def __le__(self, other: str | tuple[object, ...]) -> bool:
        return _key(self) <= _key(other)

    def __gt__(self, other: str | tuple[object, ...]) -> bool:
        return _key(self) > _key(other)

    def __ge__(self, other: str | tuple[object, ...]) -> bool:
        return _key(self) >= _key(other)


def _key(version: str | tuple[object, ...]) -> tuple[tuple[int, ...], bool]:
    """Return the numbers, and True for a release: "1.2.0rc1+cpu" comes before "1.2"."""
    if isinstance(version, tuple):
        version = ".".join(map(str, version))
    public = str.partition(version, "+")[0]
    numbers = tuple(map(int, re.findall(r"\d+", re.split(r"[a-z]", public)[0])))
    while numbers and numbers[-1] == 0:
        numbers = numbers[:-1]
    return numbers, not re.search(r"[a-z]", public)


VERSION: Final = Version("0.1.0")
__version__: Final = VERSION
debug: Final = False
cuda: Final = None
hip: Final = None
xpu: Final = None
git_version: Final = "Unknown"
