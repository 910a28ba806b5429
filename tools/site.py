"""Hooks of mkdocs: a link of docs/ to another file of the repository leads to a copy of it.

    make docs

On GitHub `[vm](../../flowvm/vm/small.py)` shows the file. The site has docs/ alone, so each file
that a page links to becomes `source/PATH.txt` there, and each folder its `__init__.py`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

__all__ = ["on_files", "on_page_markdown"]

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
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
    return path if path.is_file() else None


def place(path: Path) -> str:
    """Return the path of a copied file in the site."""
    end = "" if path.suffix in BINARY else ".txt"  # which a browser shows and does not store
    return f"source/{path.relative_to(ROOT)}{end}"


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
        files.append(File.generated(config, place(path), content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn the links of a page that leave docs/ to the copies."""
    here = Path(page.file.abs_src_path)

    def turned(match: re.Match[str]) -> str:
        path = outside(here, match[2])
        if path is None:
            if not (here.parent / match[2]).is_dir():
                return match[0]
            return f"{match[1]}{match[2].rstrip('/')}/README.md{match[3]}"  # GitHub shows it
        copy = os.path.relpath(DOCS / place(path), here.parent)
        return f"{match[1]}{copy})"

    return LINK.sub(turned, markdown)
