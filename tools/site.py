"""Hooks of mkdocs: a link of docs/ to another file of the repository leads to a copy of it.

    make docs

On GitHub `[vm](../../flowvm/vm/small.py)` shows the file.  The site has docs/ alone, so each file
that a page links to is `source/PATH.txt` there.  In the place of a folder stands its `__init__.py`
or `README.md`, else a list of its files.

`<!-- names of flowvm.nn, level 2 -->` on a page becomes the public names of that module or class,
with their signatures and docstrings.  Python is asked for them, because `flowvm.ops`,
`flowvm.autograd` and `flowvm.graph` lie where tools that read sources do not look.
"""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
from pathlib import Path
from typing import Any

from tools.doctests import names

__all__ = ["on_files", "on_page_markdown"]

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
NAMES = re.compile(r"<!-- names of ([\w.]+)(?:, level (\d))? -->")
BINARY = (".svg", ".png")


def outside(page: Path, target: str) -> Path | None:
    """Return the file that a link of `page` shows; None for pages of the site and for addresses."""
    if ":" in target:
        return None
    path = (page.parent / target).resolve()
    if path.is_relative_to(DOCS) or not path.exists():
        return None
    if path.is_dir():
        path = next((path / n for n in ("__init__.py", "README.md") if (path / n).exists()), path)
    return path


def place(path: Path) -> str:
    """Return the path of a copied file in the site."""
    end = "" if path.suffix in BINARY else ".txt"  # which a browser shows and does not store
    return f"source/{path.relative_to(ROOT)}{end}"


def content(path: Path) -> bytes:
    """Return a file's bytes; for a folder, the names of the files in it."""
    if path.is_file():
        return path.read_bytes()
    return "".join(f"{name}\n" for name in sorted(os.listdir(path))).encode()


def on_files(files: Any, config: Any) -> Any:
    """Add the files that pages link to."""
    from mkdocs.structure.files import File

    linked = {
        path
        for page in DOCS.rglob("*.md")
        for _, target, _ in LINK.findall(page.read_text())
        if (path := outside(page, target)) is not None
    }
    for path in sorted(linked):
        files.append(File.generated(config, place(path), content=content(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn the links of a page that leave docs/ to the copies."""
    page_path = Path(page.file.abs_src_path)

    def turned(match: re.Match[str]) -> str:
        path = outside(page_path, match[2])
        if path is None:
            return match[0]
        copy = os.path.relpath(DOCS / place(path), page_path.parent)
        return f"{match[1]}{copy})"

    text = LINK.sub(turned, markdown)
    return NAMES.sub(lambda match: reference(match[1], int(match[2] or 2)), text)


def reference(path: str, level: int) -> str:
    """Return the public names of a module or class as Markdown, with headings of a level."""
    members = names(pkgutil.resolve_name(path))
    return "\n".join(_entry(name, value, level) for name, value in members)


def _entry(name: str, value: Any, level: int) -> str:
    text = inspect.getdoc(value) or "No description."
    return f"{'#' * level} {name}\n\n```\n{name}{_signature(value)}\n```\n\n{described(text)}\n"


def _signature(value: Any) -> str:
    if isinstance(value, property):
        return ""
    try:
        return str(inspect.signature(value)).replace("'", "")
    except (TypeError, ValueError):  # of a built-in class
        return "(...)"


def described(docstring: str) -> str:
    """Return a docstring as Markdown: its examples and indented parts are code."""
    parts = []
    for part in re.split(r"\n\s*\n", docstring):
        if part.lstrip().startswith(">>>"):
            parts.append(f"```pycon\n{inspect.cleandoc(part)}\n```")
        elif part.startswith((" ", "\t")):
            parts.append(f"```\n{part}\n```")
        else:
            prose, *example = re.split(r"^(?=\s*>>>)", part, maxsplit=1, flags=re.M)
            parts.append(_escaped(prose))
            parts += [f"```pycon\n{inspect.cleandoc(text)}\n```" for text in example]
    return "\n\n".join(parts)


def _escaped(text: str) -> str:
    """Return text in which characters of Markdown mean themselves, outside of backticks."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(p if p[:1] == "`" else re.sub(r"([*_<\[\]#])", r"\\\1", p) for p in pieces)
