"""Makes notebooks of the tutorials: `python -m tools.notebooks [NAME ...]`.

A tutorial is a script in cells (`# %%`): its docstring and what is said at the head of a cell
become text, the rest code. Each notebook is run from its first cell to its last, and written with
what came out into `tutorials/notebooks`. `--check` runs them all and writes nothing. A cell that
raises is an error.

Wants nbformat, nbclient and ipykernel (`pip install -e '.[notebooks]'`).
"""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = ROOT / "tutorials"
FOLDER = TUTORIALS / "notebooks"
SECONDS = 180  # for one cell
# a kernel's own words for the file of a cell, which are others in each run
CELL_FILE = re.compile(r"/tmp/ipykernel_\d+/\d+\.py")


def scripts() -> list[Path]:
    """Return all tutorials that are scripts of cells; the models are not, they are programs."""
    return sorted([*TUTORIALS.glob("*.py"), *TUTORIALS.glob("questions/*.py")])


def notebook_of(script: Path) -> Path:
    """Return the path of a script's notebook."""
    return FOLDER / script.relative_to(TUTORIALS).with_suffix(".ipynb")


def cells_of(text: str) -> list[tuple[str, str]]:
    """The cells of a script: ("markdown" or "code", source)."""
    head = ast.get_docstring(ast.parse(text)) or ""
    title, _, rest = head.partition("\n")
    cells = [("markdown", f"# {title.rstrip('.')}\n{rest}".strip())]
    _, *parts = re.split(r"(?m)^# %%[ ]?", text)
    for part in parts:
        lines = part.split("\n")
        words = [lines.pop(0)]
        while lines and lines[0].startswith("#"):
            words.append(lines.pop(0).lstrip("#").strip())
        cells += [("markdown", "\n".join(words).strip()), ("code", "\n".join(lines).strip("\n"))]
    return [(kind, source) for kind, source in cells if source.strip()]


def notebook(script: Path) -> Any:
    """The notebook of a script, with nothing come out yet."""
    nbformat: Any = importlib.import_module("nbformat")
    document = nbformat.v4.new_notebook()
    make = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    for k, (kind, source) in enumerate(cells_of(script.read_text())):
        document.cells.append(make[kind](source, id=f"cell-{k}"))
    document.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return document


def execute(notebook: Any, script: Path) -> None:
    """Run all cells, in the folder of the tutorials; an error in one is raised."""
    nbclient: Any = importlib.import_module("nbclient")
    context = {"metadata": {"path": str(TUTORIALS)}}
    client = nbclient.NotebookClient(notebook, timeout=SECONDS, resources=context)
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [_tidy(output) for output in _joined(cell.outputs)]
    del notebook.metadata["language_info"]
    notebook.metadata["language_info"] = {"name": "python"}


def _joined(outputs: list[Any]) -> list[Any]:
    """Outputs, with texts to one stream that come one behind the other as one."""
    joined: list[Any] = []
    for output in outputs:
        last = joined[-1] if joined else None
        name = output.get("name")  # stdout or stderr, where it is a stream
        if last is not None and name is not None and name == last.get("name"):
            last.text += output.text
        else:
            joined.append(output)
    return joined


def _tidy(output: Any) -> Any:
    """An output as any machine would have it: without folders of this one."""

    def tidied(value: Any) -> Any:
        if isinstance(value, str):
            return CELL_FILE.sub("cell.py", value).replace(f"{ROOT}/", "")
        if isinstance(value, list):
            return [tidied(item) for item in value]
        if isinstance(value, dict):
            for key in value:
                value[key] = tidied(value[key])
        return value

    return tidied(output)


def sources(notebook: Any) -> list[tuple[str, str]]:
    """Return the cells of a notebook, in the form of `cells_of` for its script."""
    return [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]


def main() -> int:
    """Parse the command line, and make notebooks."""
    parser = argparse.ArgumentParser(prog="python -m tools.notebooks", description=__doc__)
    parser.add_argument("names", nargs="*", help="stems of scripts; all else")
    parser.add_argument("--check", action="store_true", help="run them, and write nothing")
    options = parser.parse_args()
    try:
        nbclient: Any = importlib.import_module("nbclient")
        nbformat: Any = importlib.import_module("nbformat")
    except ImportError as error:
        print(f"notebooks want more than there is ({error}): pip install -e '.[notebooks]'")
        return 1

    unknown = set(options.names) - {script.stem for script in scripts()}
    if unknown:
        print(f"no tutorial is called {', '.join(sorted(unknown))}")
        return 1
    failed = 0
    for script in scripts():
        if options.names and script.stem not in options.names:
            continue
        document = notebook(script)
        print(f"{script.relative_to(ROOT)} ", end="", flush=True)
        try:
            execute(document, script)
        except nbclient.exceptions.CellExecutionError as error:
            print(f"failed\n{error}")
            failed += 1
            continue
        if not options.check:
            path = notebook_of(script)
            path.parent.mkdir(parents=True, exist_ok=True)
            nbformat.validate(document)
            nbformat.write(document, path)
        print("ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
