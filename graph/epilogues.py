"""Epilogues: an activation that alone reads a linear layer's result becomes part of the product.

The product's sums then go through the activation while they are in the first-level cache, and what
the layer gave before is never stored.  Any op of one argument serves whose declaration is a scalar
expression; the same expression is what the epilogue computes.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from flowvm.graph.logical import BufferKind, LogicalGraph, OpNode
from flowvm.graph.rewriting import is_pure, rebuilt, writers_of
from flowvm.meta import TensorMeta
from flowvm.ops import scalar
from flowvm.ops.codegen import TypedLiterals
from flowvm.ops.gemm import Epilogue, product
from flowvm.ops.registry import Launch, op, operator_of

__all__ = ["fuse_epilogues"]

REAL = ("float32", "float64")


@functools.cache
def _activation(expr: str, dtype: str) -> Callable[[Any], Any]:
    """The scalar function of an expression in x, computed in `dtype`."""
    tree = TypedLiterals(dtype).visit(ast.parse(expr, mode="eval"))
    source = f"def act(x):\n    return {ast.unparse(ast.fix_missing_locations(tree))}\n"
    scope: dict[str, Any] = {**scalar.functions(), dtype: getattr(np, dtype)}
    exec(compile(source, f"<{expr}>", "exec"), scope)
    act: Callable[[Any], Any] = scope["act"]
    return act


@op("input, weight, bias -> out", name="linear_act", dense=False)
def _linear_act(input: TensorMeta, weight: TensorMeta, bias: TensorMeta, expr: str) -> Launch:
    """`linear` and then a scalar expression in x."""
    act = _activation(expr, input.dtype.name)
    return product("linear", input, weight, False, True, bias, Epilogue(act=act))


def fuse_epilogues(graph: LogicalGraph) -> LogicalGraph:
    """Join each linear node with the activation behind it, where that is its only reader."""
    writers = writers_of(graph)
    shown = {operand.buffer for operand in graph.outputs}
    readers: dict[Any, list[OpNode]] = {}
    for node in graph.nodes:
        for operand in node.inputs:
            readers.setdefault(operand.buffer, []).append(node)
    joined: dict[int, OpNode] = {}
    gone: set[int] = set()
    for node in graph.nodes:
        if node.operator.name != "linear" or not is_pure(node):
            continue
        (out,) = node.outputs
        alone = len(readers.get(out.buffer, ())) == 1 and out.buffer not in shown
        stable = out.buffer.kind is BufferKind.TEMPORARY and writers[out.buffer] == 1
        if not (alone and stable and out.meta.dtype.name in REAL):
            continue
        (reader,) = readers[out.buffer]
        expr = _expression(reader)
        (result,) = reader.outputs if expr else (None,)
        if not expr or reader.inputs != (out,) or result is None or result.meta != out.meta:
            continue
        if writers[result.buffer] != 1:
            continue
        joined[node.number] = replace(
            node, operator=operator_of(_linear_act), outputs=(result,), attrs=(expr,)
        )
        gone.add(reader.number)
    nodes = [joined.get(n.number, n) for n in graph.nodes if n.number not in gone]
    return rebuilt(graph, nodes)


def _expression(node: OpNode) -> str:
    """The expression of an elementwise node of one tensor argument called x, else ""."""
    if node.operator.form is None or not is_pure(node):
        return ""
    made, pattern = node.operator.form
    if pattern != "t" or list(made.args) != ["x"] or made.types not in ("float", "promote"):
        return ""
    return str(made.expr)
