"""The primitives of `flowvm.vm.machine.lang` for functions that Numba compiles: their text
(`flowvm.vm.machine.texts`) in the place of one instruction.

Imports Numba, so it is imported only to compile.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types

from flowvm.private.llvmlite import insert
from flowvm.private.numba import NUMBA

if TYPE_CHECKING:
    from flowvm.private.code_types import (
        Builder,
        CodeContext,
        Generator,
        Module,
        Signature,
        Type,
        TypingContext,
        Value,
    )


cgutils = NUMBA.cgutils
WORDS = types.Array(types.int64, 1, "C")
KINDS = {"Words": WORDS, "int": types.int64, "bool": types.boolean, "None": types.void}
I64 = ir.IntType(64)
LLVM_TYPES = {
    "i32": ir.IntType(32), "i64": I64, "ptr": I64.as_pointer(), "void": ir.VoidType(),
}  # fmt: skip
_DECLARATION = re.compile(r"declare (\w+) @([\w.]+)\((.*)\)")


class _Text(ir.Instruction):  # type: ignore[misc]
    """Lines of LLVM's text, which set the value of its name."""

    def __init__(self, parent: object, kind: object, operands: object, name: str) -> None:
        super().__init__(parent, kind, "text", operands, name=name)
        self.lines: list[str] = []

    def _to_string(self) -> str:
        return "\n  ".join(self.lines)


def intrinsic_of(
    text: Callable[..., str], takes: Sequence[str], gives: str
) -> Callable[..., tuple[Signature, Generator]]:
    """Return the argument of `numba.extending.intrinsic` that is this text.

    `takes`, `gives`: the annotations of the primitive's Python function, names of KINDS.
    """
    signature = KINDS[gives](*(KINDS[kind] for kind in takes))

    def define(typingctx: TypingContext, *kinds: Type) -> tuple[Signature, Generator]:
        return signature, generate

    def generate(
        context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
    ) -> Value:
        words = context.make_array(WORDS)
        passed = [
            words(context, builder, value).data if kind == "Words" else value
            for kind, value in zip(takes, values, strict=True)
        ]
        result = _written(builder, text, passed, gives)
        if gives == "None":
            return context.get_dummy_value()
        if gives == "bool":
            return builder.trunc(result, ir.IntType(1))
        return _array(context, builder, result, values[1]) if gives == "Words" else result

    names = ["typingctx", *(f"value{k}" for k in range(len(takes)))]
    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    vars(define)["__signature__"] = inspect.Signature(parameters)  # which Numba asks for
    return define


def _written(
    builder: Builder, text: Callable[..., str], values: Sequence[Value], gives: str
) -> Value:
    """Write a text with these values where the builder is; its result."""
    kind = {"None": ir.VoidType(), "Words": I64.as_pointer()}.get(gives, I64)
    result = _Text(builder.block, kind, values, "text")
    allocations = []
    for line in text(f"%{result.name}", *(v.get_reference() for v in values)).splitlines():
        if declared := _DECLARATION.fullmatch(line.strip()):
            _declare(builder.module, *declared.groups())
        elif " = alloca " in line:  # once, and not for each turn of a loop
            allocations.append(line.strip())
        elif line.strip():
            result.lines.append(line.strip())
    if allocations:
        with builder.goto_entry_block():
            before = _Text(builder.block, ir.VoidType(), (), "text")
            before.lines = allocations
            insert(builder, before)
    if result.lines:
        insert(builder, result)
    return result


def _declare(module: Module, returns: str, name: str, takes: str) -> None:
    """Declare a C function, unless the module has it."""
    kinds = [LLVM_TYPES[kind] for kind in takes.split(", ") if kind]
    kind = ir.FunctionType(LLVM_TYPES[returns], kinds)
    cgutils.get_or_insert_function(module, kind, name)


def _array(context: CodeContext, builder: Builder, data: Value, count: Value) -> Any:
    """An array of `count` words at an address."""
    array = context.make_array(WORDS)(context, builder)
    eight = context.get_constant(types.intp, 8)
    NUMBA.populate_array(
        array,
        data=data,
        shape=cgutils.pack_array(builder, [count]),
        strides=cgutils.pack_array(builder, [eight]),
        itemsize=eight,
        meminfo=None,
    )
    return array._getvalue()
