"""flowvm's version, where every layer can have it; the names that PyTorch has in `torch.version`.

`cuda`, `hip` and `xpu` are what a build was made for: None, flowvm is built for none of them and
finds a CUDA driver when it is first asked (`flow.cuda.is_available()`).
"""

from __future__ import annotations

import re
from typing import Any, Final


class Version(str):
    """A version as a text, which compares as versions do, also with tuples: "0.10" > "0.9"."""

    __slots__ = ()

    def __lt__(self, other: Any) -> bool:
        return _key(self) < _key(other)

    def __le__(self, other: Any) -> bool:
        return _key(self) <= _key(other)

    def __gt__(self, other: Any) -> bool:
        return _key(self) > _key(other)

    def __ge__(self, other: Any) -> bool:
        return _key(self) >= _key(other)


def _key(version: str | tuple[Any, ...]) -> tuple[tuple[int, ...], bool]:
    """The numbers, and whether it is a release: "1.2.0rc1+cpu" is in front of "1.2"."""
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
