"""The names of the checks in a program, and in the files that it runs, which run on ranks and are
not imported here.
"""

import ast
from pathlib import Path

FILES = ("checks.py", "meshes.py", "sharded.py", "captured.py", "checkpoints.py", "divided.py")


def names(program: str = "checks.py") -> list[str]:
    """Return the checks in their order."""
    names = FILES if program == FILES[0] else (program,)
    files = [(Path(__file__).parent / name).read_text() for name in names]
    bodies = [node for text in files for node in ast.parse(text).body]
    functions = [node.name for node in bodies if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if name.startswith("check_")]
