"""The types of Tensor's methods are those of the functions that are attached."""

import ast
import subprocess
import sys

import flowvm as flow
from tools import methods


def test_the_file_is_what_the_methods_are():
    """In a process of its own: other modules that tests import may attach more methods."""
    command = [sys.executable, "-m", "tools.methods", "--check"]
    done = subprocess.run(command, cwd=methods.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_tensors_have_what_the_file_has():
    (kind,) = [n for n in ast.parse(methods.FILE.read_text()).body if isinstance(n, ast.ClassDef)]
    typed = {node.name for node in kind.body if isinstance(node, ast.FunctionDef)}
    assert {"relu", "view", "backward", "__add__", "__eq__", "mT"} <= typed
    assert [name for name in typed if not hasattr(flow.Tensor, name)] == []


def test_a_type_that_lies_above_is_an_object():
    assert methods.typed("int | Sequence[int] | None", "Any").count("builtins.int") == 2
    assert methods.typed("return_types.sort", "Any") == "Any"
    assert methods.typed("dict[str, Generator]", "builtins.object") == "builtins.object"
