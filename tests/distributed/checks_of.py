"""The names of the checks in `checks.py` and the files that it runs, which run on ranks and are not
imported here.
"""

import ast
from pathlib import Path

FILES = ("checks.py", "meshes.py", "sharded.py", "checkpoints.py")


def names() -> list[str]:
    """In their order."""
    files = [(Path(__file__).parent / name).read_text() for name in FILES]
    bodies = [node for text in files for node in ast.parse(text).body]
    functions = [node.name for node in bodies if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if name.startswith("check_")]
