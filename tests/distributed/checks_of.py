"""The names of the checks in a program that runs on ranks and is not imported here."""

import ast
from pathlib import Path


def names(program: str = "checks.py") -> list[str]:
    """In their order."""
    tree = ast.parse((Path(__file__).parent / program).read_text())
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if name.startswith("check_")]
