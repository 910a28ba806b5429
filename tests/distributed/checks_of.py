"""The names of the checks in `checks.py`, which runs on ranks and is not imported here."""

import ast
from pathlib import Path


def names() -> list[str]:
    """In their order."""
    tree = ast.parse((Path(__file__).parent / "checks.py").read_text())
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if name.startswith("check_")]
