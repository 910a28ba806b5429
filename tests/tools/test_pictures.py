"""The pictures of the documentation: the script that makes them runs, and each is shown."""

import html
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zlib
from pathlib import Path

import pytest

from tools import pictures
from tools.browser import CHROMIUM
from tools.drawings.__main__ import DRAWINGS, FOLDER
from tools.drawings.canvas import Canvas

ROOT = Path(__file__).parents[2]
SHOWING = ("rooms", "vm", "graphs")  # pages of docs/how-it-works with drawings
SHOWN = {
    "summary": ("bound by", "floor", "linear", "train.py:", "next  1."),
    "timeline": ("python", "scheduler", "cpu", "data", "run", "sync"),
    "dag": ("lanes 0=cpu 1=data", "RAW", "relu_backward", "━t", "◆ critical"),
    "why": ("relu_backward", "RAW", "what-if", "blocks", "train.py:"),
    "critical": ("observed path", "floor", "train.py:"),
    "memory": ("peak", "at the peak", "kept alive by", "params", "before it"),
    "trace": ("reads", "waits for", "index_select", "RAW"),
    "explain": ("f32[]", "mul", "◄─ #", "index_select", "train.py:", "^^^^"),
    "graph": ("GRAPH:Step", "MODULE:net.fc1", "OPTIMIZER:SGD", "OPERATOR:"),
    "error": (
        "OutOfRangeError: index 512 is out of bounds", "rows = table[index]", "^^^^^^^^^^^^",
        "← #", "poisoned  3 later instructions (first #", "flow.last_error()",
    ),
}  # fmt: skip


def text_of(path: Path) -> str:
    """The text of an SVG, a line for each height."""
    rows: dict[str, list[str]] = {}
    for node in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text"):
        rows.setdefault(node.get("y", ""), []).append(html.unescape(node.text or ""))
    return "\n".join("".join(row).replace("\xa0", " ") for row in rows.values())


@pytest.fixture(scope="module")
def folder_of_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("pictures")
    # a process of its own: what instructions are numbered from is part of the layout
    subprocess.run([sys.executable, "-m", "tools.pictures", str(folder)], cwd=ROOT, check=True)
    return folder


def test_every_picture_is_looked_at() -> None:
    assert set(SHOWN) == set(pictures.PICTURES)


@pytest.mark.parametrize("name", SHOWN)
def test_the_script_makes_it(folder_of_pictures: Path, name: str) -> None:
    text = text_of(folder_of_pictures / f"{name}.svg")
    for part in SHOWN[name]:
        assert part in text, f"{part!r} is not in\n{text}"
    assert "/" not in "".join(re.findall(r"\S+train\.py", text)), "a path of this machine"


@pytest.mark.parametrize("name", SHOWN)
def test_the_one_in_the_documentation_shows_what_it_must(name: str) -> None:
    path = pictures.FOLDER / f"{name}.svg"
    text = text_of(path)
    for part in SHOWN[name]:
        assert part in text, f"make it again: python -m tools.pictures ({part!r} is not in it)"
    assert "http" not in path.read_text().replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("tab", [*pictures.PAGES, "ranks"])
def test_the_page_has_pictures(folder_of_pictures: Path, tab: str) -> None:
    for folder in (
        pictures.FOLDER,
        *([folder_of_pictures] if CHROMIUM and tab in pictures.PAGES else []),
    ):
        raw = (folder / f"page-{tab}.png").read_bytes()
        assert raw.startswith(b"\x89PNG"), "make it again: python -m tools.pictures"
        assert struct.unpack(">2I", raw[16:24]) == (1200, 720)
        assert len(set(zlib.decompress(idat(raw)))) > 8, "it is empty"


def idat(png: bytes) -> bytes:
    """The compressed pixels of a PNG."""
    at, packed = 8, b""
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        packed += png[at + 8 : at + 8 + length] * (png[at + 4 : at + 8] == b"IDAT")
        at += length + 12
    return packed


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_what_the_code_makes(name: str) -> None:
    drawn = DRAWINGS[name]().svg()
    assert (FOLDER / f"{name}.svg").read_text() == drawn, "make it again: python -m tools.drawings"
    ElementTree.fromstring(drawn)
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "")


def test_text_that_does_not_fit_is_not_drawn() -> None:
    with pytest.raises(ValueError, match="needs"):
        Canvas(100, 100, "").labelled(0, 0, 60, 20, ["a long line of text"])


def test_boxes_do_not_overlap() -> None:
    canvas = Canvas(100, 100, "")
    canvas.labelled(0, 0, 60, 20, ["one"])
    with pytest.raises(ValueError, match="another box"):
        canvas.labelled(50, 10, 60, 20, ["two"])


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/reference/profiler/README.md",
        *(f"docs/how-it-works/{p}.md" for p in SHOWING),
    ],
)
def test_pictures_that_are_shown_are_there(page: str) -> None:
    path = ROOT / page
    named = re.findall(r"!\[[^]]+\]\(([^)]+\.(?:svg|png))\)", path.read_text())
    assert named
    for name in named:
        assert (path.parent / name).is_file(), name
