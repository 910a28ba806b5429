"""Classes of Numba and LLVM that code for intrinsics is written with, for annotations alone.

Numba and llvmlite have no types of their own for mypy: the names say which object is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from llvmlite import ir
from numba import core, types

Builder: TypeAlias = ir.IRBuilder
Value: TypeAlias = ir.Value
ValueType: TypeAlias = ir.Type
Function: TypeAlias = ir.Function
Module: TypeAlias = ir.Module
CodeContext: TypeAlias = core.base.BaseContext
TypingContext: TypeAlias = core.typing.context.BaseContext
Signature: TypeAlias = core.typing.templates.Signature
Type: TypeAlias = types.Type
# generates the code of a call from the values of its arguments
Generator = Callable[[CodeContext, Builder, Signature, Sequence[Value]], Value]
# what `numba.extending.intrinsic` takes: from types, the signature and the code; None refuses
Typing = Callable[..., tuple[Signature, Generator] | None]
