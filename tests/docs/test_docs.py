"""Things that the documentation names exist: files, modules, names, links; and its programs run."""

import ast
import functools
import importlib
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import flowvm as flow
from flowvm import nn
from tools import pages, programs, reference, site, tour
from tools import prose as prose_of_code

ROOT = Path(__file__).parents[2]
ARCHITECTURE = ROOT / "docs" / "how-it-works"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page.exists()]
TOP = {path.name for path in ROOT.iterdir()}
FENCED = re.compile(r"^```.*?^```", re.M | re.S)
# what a page names that is made on the way: by the reader, by a build, by a script of CI
MADE = {".venv", "build"}


def each_page() -> Any:
    return pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])


@functools.cache
def prose(page: Path) -> str:
    """A page without its programs."""
    return FENCED.sub("", page.read_text())


def quoted(page: Path) -> list[str]:
    """Return the texts between backticks."""
    return [" ".join(text.split()) for text in re.findall(r"`([^`]+)`", prose(page))]


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ +(.+)$", prose(page), re.M)
    return {re.sub(r"[^\w -]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@each_page()
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{target}: there is no {path}"
        assert not anchor or anchor in anchors(path), f"{target}: no such heading"


@each_page()
def test_a_link_that_shows_a_path_leads_there(page: Path) -> None:
    for shown, target in re.findall(r"\[`?([\w./-]+/[\w./-]+)`?\]\(([^)\s#]+)\)", prose(page)):
        assert (page.parent / target).resolve() == (ROOT / shown).resolve()


@each_page()
def test_paths_that_are_named_exist(page: Path) -> None:
    wrong = []
    for text in quoted(page):
        for word in re.findall(r"[\w.*-]+(?:/[\w.*-]+)+/?", text):
            first = word.split("/")[0]
            is_file = word.endswith((".py", ".md", ".sh", ".svg", ".toml"))
            if first in MADE or (first not in TOP and not is_file):
                continue
            if not list(ROOT.glob(word)):
                wrong.append(word)
    assert not wrong, f"not there, counted from the repository's root: {wrong}"


def resolved(dotted: str) -> bool:
    """Return True if a dotted name is a module, or an attribute of one."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            at: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for name in parts[length:]:
            fields = {*getattr(at, "__dataclass_fields__", ()), *getattr(at, "__annotations__", ())}
            if not hasattr(at, name):
                return name in fields
            at = getattr(at, name)
        return True
    return False


@each_page()
def test_dotted_names_exist(page: Path) -> None:
    named = set()
    for text in quoted(page):
        named |= set(re.findall(r"(?<![\w./])(flowvm(?:\.[A-Za-z_]\w*)+)", text))
        flow = re.findall(r"(?<![\w./])flow((?:\.[A-Za-z_]\w*)+)", text)
        named |= {"flowvm" + rest for rest in flow}
    assert not (wrong := sorted(n for n in named if not resolved(n))), f"no such names: {wrong}"


@each_page()
def test_a_name_of_a_file_is_in_that_file(page: Path) -> None:
    """`name` of `path`, or: `name` in `path`."""
    text = prose(page)
    pairs = re.findall(r"`([\w.]+)`\s+(?:of|in)\s+\[`([\w./-]+\.py)`\]", text)
    for name, path in pairs:
        last = name.split(".")[-1]
        assert re.search(rf"\b{last}\b", (ROOT / path).read_text()), f"{name} is not in {path}"


TOUR = {match.group(2): match for match in tour.programs(tour.PAGE.read_text())}


@pytest.mark.parametrize("name", TOUR)
def test_the_tour_shows_what_its_programs_print(name: str) -> None:
    source, _, _, command, shown = TOUR[name].groups()
    assert f"python {name}" in command
    printed = tour.printed(source, name, command)
    assert tour.settled(printed) == tour.settled(shown), "make it again: python -m tools.tour"


def rows(page: Path, columns: int) -> list[list[str]]:
    """Return the cells of a page's tables of `columns` columns, without their heads."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if len(row) == columns and not row[0].startswith("---")]


def test_the_table_of_rooms_has_each_room() -> None:
    folders = [ROOT / name for name in ("flowvm", "ops", "autograd", "graph")]
    packages = {p.parent for folder in folders for p in folder.rglob("__init__.py")}
    rooms = {str(p.relative_to(ROOT)) for p in packages}
    named: set[str] = set()
    for room, _, _ in rows(ARCHITECTURE / "rooms.md", 3):
        for path in re.findall(r"`([\w/*]+)`", room):
            named |= {str(p.relative_to(ROOT)) for p in ROOT.glob(path)}
    assert rooms - named == set(), "these have no row"
    assert named - rooms == set(), "these are no rooms"


PARTS = [page.parent for page in sorted((ROOT / "docs").glob("*/README.md"))]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_each_page_is_in_the_index_of_its_part(part: Path) -> None:
    index = (part / "README.md").read_text()
    pages = {str(page.relative_to(part)) for page in part.rglob("*.md")} - {"README.md"}
    assert not {page for page in pages if f"({page})" not in index}


def test_the_site_has_each_page_once() -> None:
    """Read the navigation of mkdocs.yml, whose lines are pages or titles of groups."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r"^ +- ([\w/.-]+\.md)$", nav, re.M)
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages == set(named)
    assert len(named) == len(pages)
    assert not re.findall(r"^(?! +- (?:[\w/.-]+\.md|[A-Z][\w ]*:)$).+", nav, re.M)


def test_the_programs_are_those_of_the_records() -> None:
    records = json.loads(programs.RECORDS.read_text())
    assert programs.page(programs.PAGE.read_text(), records) == programs.PAGE.read_text()
    models = {path.stem for path in (ROOT / "tutorials" / "models").glob("*.py")} - {"curves"}
    assert models == set(programs.KINDS)
    assert all(r["agree"] <= r["of"] for r in records if r["of"])


WORDS = 900  # of a page, beside its programs and what they print
LISTS = {  # pages to look something up in
    "how-it-works/changes.md", "how-it-works/glossary.md", "how-it-works/rooms.md",
    "reference/coverage.md", "reference/programs.md", "reference/reliability/campaigns.md",
}  # fmt: skip


def test_pages_are_short() -> None:
    pages = {p: len(prose(p).split()) for p in (ROOT / "docs").rglob("*.md")}
    long = {str(p.relative_to(ROOT / "docs")): n for p, n in pages.items() if n > WORDS}
    assert not {page: n for page, n in long.items() if page not in LISTS}


@each_page()
def test_what_github_and_mkdocs_would_show_differently(page: Path) -> None:
    """A list or a table that follows a line of text is text for mkdocs; two anchors may be one."""
    text = prose(page)
    follows = re.findall(r"^(?![-|*\d>#\s]).+\n(?:- .*|\|.*)", text, re.M)
    assert not follows, "an empty line in front of it"
    headings = re.findall(r"^#+ +(.+)$", text, re.M)
    assert len(anchors(page)) == len(headings), "two headings of one name"
    assert len(re.findall(r"^# ", text, re.M)) == 1, "one title"


def test_made_pages_are_what_the_code_says() -> None:
    stale = [p.name for p, text in reference.pages().items() if p.read_text() != text]
    assert not stale, "make them again: python -m tools.reference"


def test_the_questions_of_a_newcomer_are_answered() -> None:
    """Each row of the page leads to a heading (test_links_lead_somewhere), not to a page."""
    answers = [row[2] for row in rows(ROOT / "docs" / "start" / "questions.md", 3)][1:]
    assert len(answers) == 15
    for answer in answers:
        assert all("#" in target for target in re.findall(r"\]\(([^)]+)\)", answer))


def test_the_output_on_a_page_is_compared(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    program = "```python\nprint(1 + {})\n```\n\n```text\n3\n```\n\n"
    program += "<!-- not run: it fails -->\n```python\n1 / 0\n```\n"
    page.write_text(program.format(2))
    assert pages.run(page) == (1, [])
    page.write_text(program.format(3))
    count, (failure,) = pages.run(page)
    assert (count, f"{page}:1: expected" in failure) == (1, True)
    page.write_text("# A page\n\n```python\nx = 1\n1 / 0\n```\n")
    assert "line 5" in pages.run(page)[1][0]


def test_links_that_leave_docs_lead_to_copies_in_the_site() -> None:
    page = SimpleNamespace(file=SimpleNamespace(abs_src_path=str(ROOT / "docs/start/install.md")))
    text = "[a](../../flowvm/vm/small.py) [b](../../ops) [c](ten-minutes.md#train) [d](https://x)"
    assert site.on_page_markdown(text, page, None, None) == (
        "[a](../source/flowvm/vm/small.py.txt) [b](../source/ops/__init__.py.txt) "
        "[c](ten-minutes.md#train) [d](https://x)"
    )


def test_the_site_shows_docstrings() -> None:
    shown = site.reference("flowvm.masked", 3)
    assert "### softmax\n\n```\nsoftmax(" in shown
    assert "```pycon\n>>> " in shown
    text = "Return a*b.\n\n    >>> 1 + 1\n    2\n\nUse `x*y`."
    assert site.described(text) == "Return a\\*b.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nUse `x*y`."


GLOSSARY = [row for row in rows(ARCHITECTURE / "glossary.md", 3) if row[0] != "word"]


def test_the_glossary_has_each_word_once_and_in_order() -> None:
    words = [row[0].lower() for row in GLOSSARY]
    assert words == sorted(set(words))


@pytest.mark.parametrize("row", GLOSSARY, ids=[row[0] for row in GLOSSARY])
def test_a_word_of_the_glossary_is_used_where_it_says(row: list[str]) -> None:
    word, message, where = row
    assert message.count(". ") <= 2, "one or two sentences"
    assert not prose_of_code.is_riddle(message), "a noun first"
    assert not re.search(r"\b[Aa]lso\b|\. (?:On|In) [\w ]+: ", message), "a row for each meaning"
    first = re.split(r"[ ,]", word.lower())[0].removesuffix("s")
    paths = re.findall(r"\[`([^`]+)`\]", where)
    assert paths
    for path in paths:
        text = (ROOT / path).read_text().lower()
        assert first in text or first.replace(" ", "_") in text, f"{word} is not in {path}"


def test_a_name_that_is_a_verb_is_counted() -> None:
    source = """
def count(made):
    rows = [found for found in made]
    class Row:
        told: int
    row = Row()
    row._found = row.found  # a load binds nothing
    return "told", lambda there: rows

def product(left, right):  # a side beside the other one
    for left_one, seen in zip(left, right):
        yield lambda left: left_one
"""
    names = [name.rpartition(".")[2] for _, name in prose_of_code.verbs_in(source)]
    assert sorted(names) == ["_found", "found", "left", "made", "seen", "there", "told"]
    assert list(prose_of_code.verbs_of_product()) == []


def test_what_make_quick_runs_is_there() -> None:
    listed = (ROOT / "tests" / "quick.txt").read_text().splitlines()
    for line in filter(None, listed):
        path, _, name = line.partition("::")
        if not line.startswith("#"):
            text = (ROOT / path).read_text()
            assert not name or f"def {name.partition('[')[0]}(" in text, line


# rooms whose first lines are what a user reads: they say what is there
FACES = {"flowvm", "flowvm/amp"}


def test_a_room_says_what_may_not_live_there() -> None:
    folders = [ROOT / name for name in ("flowvm", "ops", "autograd", "graph")]
    for path in (p for folder in folders for p in folder.rglob("__init__.py")):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        room = str(path.parent.relative_to(ROOT))
        assert "Not here:" in text or room in FACES, f"{room}: what belongs elsewhere?"


@pytest.mark.parametrize(
    "owner",
    [flow, flow.Tensor, nn, nn.functional, flow.optim, flow.linalg, flow.special],
    ids=lambda owner: owner.__name__,
)
def test_every_public_name_says_what_it_is(owner: Any) -> None:
    things = {n: getattr(owner, n) for n in dir(owner) if not n.startswith("_")}
    assert not [n for n, thing in things.items() if callable(thing) and not thing.__doc__]


def test_layers_are_listed_without_the_rooms_they_come_from() -> None:
    assert not {"module", "module_calls", "modules", "composites", "state"} & set(dir(nn))
