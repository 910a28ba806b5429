"""The README: its programs run wherever they are pasted, its sentences are short."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.pages import blocks

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()
PROGRAMS = blocks(TEXT)
WORDS = 25  # of a sentence
LINES = 45  # of the first screen
PROSE = re.sub(r"^```.*?^```", "", TEXT, flags=re.M | re.S)


def ran(command: list[str], folder: Path, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, input=typed, capture_output=True, text=True)


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: str(block.line))
def test_a_program_runs_as_a_file(block, tmp_path: Path) -> None:
    path = tmp_path / "pasted.py"
    path.write_text(block.text)
    process = ran([sys.executable, str(path)], tmp_path)
    assert process.returncode == 0, process.stderr
    assert block.shown is None or process.stdout == block.shown


def test_the_programs_can_be_pasted_into_pythons_prompt(tmp_path: Path) -> None:
    typed = "\n".join(block.text + "\n" for block in PROGRAMS) + "print('the', 'end')\n"
    process = ran([sys.executable, "-i", "-q"], tmp_path, typed)
    assert "Error" not in process.stderr, process.stderr
    assert process.stdout.endswith("the end\n")
    assert PROGRAMS[0].shown in process.stdout


IPYTHON = """
import sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for block in sys.stdin.read().split("\\x1e"):
    shell.run_cell(block).raise_error()
"""


@pytest.mark.skipif(importlib.util.find_spec("IPython") is None, reason="IPython is not installed")
def test_the_programs_can_be_pasted_into_ipython(tmp_path: Path) -> None:
    process = ran([sys.executable, "-c", IPYTHON], tmp_path, "\x1e".join(b.text for b in PROGRAMS))
    assert process.returncode == 0, process.stderr
    assert PROGRAMS[0].shown in process.stdout


def sentences(prose: str) -> list[str]:
    """Return the sentences of paragraphs, items, cells and headings, links as their texts."""
    prose = re.sub(r"!?\[((?:[^]`]|`[^`]*`)*)\]\([^)]*\)", r"\1", prose)
    parts = re.split(r"\n\s*\n|\n- |\n#+ |\n\||\|", prose)
    split = (re.split(r"(?<=[.!?])\**\s+(?=[A-Z`\[*])", part) for part in parts)
    return [" ".join(sentence.split()) for group in split for sentence in group]


def test_no_sentence_is_long() -> None:
    assert len(sentences(PROSE)) > 60
    long = [text for text in sentences(PROSE) if len(text.split()) > WORDS]
    assert not long, long


def test_a_long_sentence_is_seen() -> None:
    assert max(len(s.split()) for s in sentences("One two. " + "Word " * 30 + "end. A b.")) == 31


def test_the_first_screen_says_what_it_is() -> None:
    """One program, one picture of a DAG, two commands, three links."""
    first = TEXT.partition("\n## ")[0]
    assert first.count("\n") <= LINES
    assert len(blocks(first)) == 1
    assert re.findall(r"!\[[^]]+\]\(([^)]+)\)", first) == ["docs/pictures/dag.svg"]
    assert re.findall(r"^make (\w+)", first, re.M) == ["demo", "test"]
    assert len(re.findall(r"(?<!!)\[[^]]+\]\([^)]+\)", first)) == 3
