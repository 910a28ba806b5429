"""Whose code and whose objects: the user's, flowvm's, a library's; and which names a function
loads: globals, closure variables, attributes of those and of its first parameter, by its bytecode.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from types import CodeType, ModuleType
from typing import Any

from flowvm.nn.module import Module
from flowvm.private import cpython
from flowvm.private.cpython import CPYTHON
from flowvm.vm.callers.lines import is_internal

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def is_library(code: CodeType) -> bool:
    """Whether code is no user's: flowvm's own, or that of an installed package."""
    name = code.co_filename
    library = name.startswith((*_LIBRARIES, "<frozen")) or bool(_in_packages(name))
    return library or is_internal(name)


@functools.lru_cache(maxsize=4096)
def loads_of(code: CodeType) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """(kind, name, attributes behind it) of the names that code loads; kind is "global", "closure"
    or, for the first parameter, "self".
    """
    CPYTHON.require("loads")
    return tuple(dict.fromkeys(cpython.loads_of(code, code.co_varnames[:1])))


_STDLIB = sysconfig.get_path("stdlib") + os.sep
# Of the standard library, what keeps caches and locks of its own: nothing in it is a program's
# state.  Of installed packages, those that flowvm is made of, and those that run programs.
_UNSEEN_STDLIB = (
    "_strptime", "_weakrefset", "abc", "ast", "asyncio", "bdb", "codeop", "copyreg", "ctypes",
    "dis", "doctest", "encodings", "importlib", "inspect", "linecache", "locale",
    "multiprocessing", "pdb", "pickle", "random", "re", "sre_compile", "sre_parse", "threading",
    "token", "tokenize", "traceback", "typing", "unittest", "warnings",
)  # fmt: skip
_UNSEEN_PACKAGES = (
    "IPython", "_pytest", "coverage", "greenlet", "hypothesis", "ipykernel", "llvmlite", "mpi4py",
    "numba", "numba_cuda", "numpy", "pluggy", "pytest", "rich", "safetensors", "scipy", "torch",
    "xdist",
)  # fmt: skip


@functools.lru_cache(maxsize=4096)
def is_seen(filename: str) -> bool:
    """Whether reads of code in this file are recorded: all but flowvm's own, and of libraries what
    keeps only state that is nobody else's.
    """
    if is_internal(filename) or filename.startswith("<frozen importlib"):
        return False
    inside = _in_packages(filename)
    if inside:
        return inside.split(os.sep)[0].removesuffix(".py") not in _UNSEEN_PACKAGES
    if is_stdlib(filename):
        rest = filename.removeprefix(_STDLIB)
        return rest.split(os.sep)[0].removesuffix(".py") not in _UNSEEN_STDLIB
    return True


def _in_packages(filename: str) -> str:
    """The part of a path that is inside of a folder of installed packages, or ""."""
    for folder in ("site-packages", "dist-packages"):
        _, found, inside = filename.rpartition(f"{os.sep}{folder}{os.sep}")
        if found:
            return inside
    return ""


@functools.lru_cache(maxsize=4096)
def is_stdlib(filename: str) -> bool:
    """Whether a file is the standard library's."""
    if filename.startswith("<frozen"):
        return True
    return filename.startswith(_STDLIB) and not _in_packages(filename)


def is_internal_module(module: Module) -> bool:
    """Whether a layer's forward is flowvm's own code."""
    code = getattr(type(module).forward, "__code__", None)
    return code is None or is_internal(code.co_filename)


def is_ours(value: Any) -> bool:
    """Whether an object is flowvm's and no module: an optimizer, a generator, a graph."""
    if isinstance(value, (Module, ModuleType)):
        return False
    module = sys.modules.get(type(value).__module__)
    return is_internal(getattr(module, "__file__", None) or "")
