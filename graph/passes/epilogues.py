"""Epilogues: elementwise nodes behind a matrix product become part of the product.

The product's sums go through them while they are in the first-level cache, and what the product
alone gives is never stored.  Any program of elementwise nodes serves that needs nothing but the
product and one more operand: an activation, a bias, a residual, scale and mask, ReLU's gradient.
A layer's bias is that operand, so nothing else can join a layer that has one.  A bias or residual
that comes first is what the sums start with, which costs nothing at all.

Functions that take many operations (exp, tanh) stay outside: a panel of sums is too short to keep
several vectors of them in flight, so a product with tanh-form GELU takes 1.03 to 1.06 of the time
that the two kernels take (128 x 512 x 128).

Results may differ from eager ones in the last places: a sum starts with the bias, and a product
and a sum may become a fused multiply-add.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from flowvm.eager.interpreter import Operator
from flowvm.eager.live import Live
from flowvm.errors import ArgumentError, DTypeError, ShapeError
from flowvm.files.schema import flag, text
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.graph.logical.nodes import Operand, OpNode
from flowvm.graph.passes.fusion import is_elementwise
from flowvm.graph.passes.fusion_program import MOST_TITLE, program_text, real_of, title
from flowvm.graph.passes.groups import Groups
from flowvm.launch import Launch
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.cpu.expressions import TypedLiterals
from flowvm.ops.declare.grammar import MOST_CHARACTERS, check_program
from flowvm.ops.declare.recipes import maker
from flowvm.ops.declare.registry import op, operator_of
from flowvm.ops.products.cpu.gemm import Epilogue, product
from flowvm.ops.products.cpu.gemm_epilogue import unchanged
from flowvm.ops.products.matmul import _affine, _matmul_nt, _matmul_tn, matmul
from flowvm.ops.scalar import functions as scalar

REAL = ("float32", "float64")
TRANSPOSED = {  # which operands of a product are
    operator_of(matmul): (False, False),
    operator_of(_matmul_nt): (False, True),
    operator_of(_matmul_tn): (True, False),
    operator_of(_affine): (False, True),
}
# functions that join
QUICK = {"abs", "maximum", "minimum", "half", "bfloat", "copysign", "sign", "sqrt"}


def fuse_epilogues(graph: LogicalGraph) -> LogicalGraph:
    """Join each product with the elementwise nodes behind it that alone read its result."""
    groups = Groups(graph)

    def joins(node: OpNode) -> bool:
        return node.operator in TRANSPOSED or is_elementwise(node)

    def complete(members: list[OpNode]) -> bool:
        return _epilogue(groups, members) is not None

    chosen = []
    for group in groups.search(joins, lambda members: _others(members) is not None):
        if groups.shrunk(group, complete):
            epilogue = _epilogue(groups, groups.members(group))
            assert epilogue is not None
            chosen.append((group, epilogue))
    return groups.joined(chosen)


def _others(members: list[OpNode]) -> list[Operand] | None:
    """Return the operands of an epilogue besides the product; None if there is no epilogue."""
    products = [m for m in members if m.operator in TRANSPOSED]
    rest = [m for m in members if m.operator not in TRANSPOSED]
    out, values = members[0].outputs[0], {m.outputs[0] for m in members}
    others = list(dict.fromkeys(o for m in rest for o in m.inputs if o not in values))
    operands = [*(o for m in products for o in m.inputs[2:]), *others]
    inside = {o.buffer for o in values}
    read = [*others, *(o for m in products for o in m.inputs)]
    if len(products) > 1 or len(operands) > 1 or any(o.buffer in inside for o in read):
        return None
    if any(
        (m.outputs[0].meta.shape, m.outputs[0].meta.stride) != (out.meta.shape, out.meta.stride)
        or any(isinstance(s, Live) for s in m.scalars)
        for m in members
    ):
        return None
    return others


def _epilogue(groups: Groups, members: list[OpNode]) -> OpNode | None:
    """The product with its epilogue as one node; None if these nodes are no such thing."""
    others = _others(members)
    products = [m for m in members if m.operator in TRANSPOSED]
    rest = [m for m in members if m.operator not in TRANSPOSED]
    if others is None or not products:
        return None
    (node,), (_, results) = products, groups.interface(members)
    (out,) = node.outputs
    real = out.meta.dtype.name
    if real not in REAL or len(results) != 1 or results[0].meta != out.meta:
        return None
    if any(real_of(m) not in (real, "") for m in rest):
        return None
    if any(o.meta.dtype is not out.meta.dtype for o in others):
        return None
    if others and min(o.meta.ndim for o in node.inputs[:2]) < 2:
        return None  # a vector's product has no rows or columns to add by
    program, _ = program_text(rest, [out, *others], results)
    if not _called(program) <= QUICK:
        return None
    kind = _kind(program, bool(node.inputs[2:]), bool(others))
    operator = product_operator(
        node.operator.name + title([m.operator.name for m in rest]).removeprefix("fused"),
        *TRANSPOSED[node.operator],
        *kind,
    )
    inputs = (*node.inputs, *others)
    try:
        operator.kernel.lower(tuple(o.meta for o in inputs), ())
    except ShapeError:  # strides of more batch dimensions than the kernel walks
        return None
    return replace(
        members[-1], operator=operator, inputs=inputs, outputs=tuple(results), attrs=(), scalars=()
    )


class _Kind(NamedTuple):
    """The form of an epilogue: a program of x0, or x0 and x1 if it `joins`; `added`: an addend."""

    program: str
    added: bool
    joins: bool


def _kind(program: str, biased: bool, other: bool) -> _Kind:
    """`program` as an epilogue; one that adds the other operand first starts with it instead."""
    first, _, rest = program.partition("\n")
    if other and _is_sum(first) and not ({"x0", "x1"} & _names(rest)):
        return _Kind("x0" if rest == "t0" else f"t0 = x0\n{rest}", True, False)
    return _Kind(program, biased or other, other)


def _is_sum(line: str) -> bool:
    """Return True if a program's line says that t0 is x0 + x1."""
    match ast.parse(line).body:
        case [ast.Assign([ast.Name("t0")], ast.BinOp(ast.Name(a), ast.Add(), ast.Name(b)))]:
            return {a, b} == {"x0", "x1"}
    return False


def _called(program: str) -> set[str]:
    calls = (n for n in ast.walk(ast.parse(program)) if isinstance(n, ast.Call))
    return {n.func.id for n in calls if isinstance(n.func, ast.Name)}


def _names(program: str) -> set[str]:
    return {n.id for n in ast.walk(ast.parse(program)) if isinstance(n, ast.Name)}


@functools.cache
def _activation(program: str, dtype: str, arguments: str) -> Callable[..., object]:
    """The scalar function of a program, computed in `dtype`."""
    if program == "x0":
        return unchanged
    tree = TypedLiterals(dtype).visit(ast.parse(program))
    *steps, result = ast.unparse(ast.fix_missing_locations(tree)).split("\n")
    lines = "".join(f"    {line}\n" for line in (*steps, f"return {result}"))
    scope = {
        **scalar.functions(), dtype: getattr(np, dtype), "INLINE_ALWAYS": True,
    }  # fmt: skip
    exec(compile(f"def act({arguments}):\n{lines}", f"<{program}>", "exec"), scope)
    act: Callable[..., object] = scope["act"]
    return act


def _check_epilogue(name: str, ta: bool, tb: bool, program: str, added: bool, joins: bool) -> None:
    check_program(program, ["x0", "x1"] if joins else ["x0"], 1, "the epilogue of a product")
    if joins and not added:
        raise ArgumentError(
            "the epilogue of a product uses a second operand, and the product has one"
        )


@maker(
    "product", text(MOST_TITLE), flag, flag, text(MOST_CHARACTERS), flag, flag,
    together=_check_epilogue,
)  # fmt: skip
@functools.cache
def product_operator(
    name: str, ta: bool, tb: bool, program: str, added: bool, joins: bool
) -> Operator:
    """The operator of a product, of operands transposed or not, with a program as its epilogue.

    `added`: there is a third operand, which the sums start with, or which the program has as x1 if
    it `joins`.
    """

    def launch(a: TensorMeta, b: TensorMeta, *addend: TensorMeta) -> Launch:
        if a.dtype.name not in REAL:
            raise DTypeError(f"{name}: a product of {a.dtype.name} has no epilogue")
        act = _activation(program, a.dtype.name, "x0, x1" if joins else "x0")
        extra = addend[0] if addend else None
        return product(name, a, b, ta, tb, extra, Epilogue(act=act, joins=joins))

    def alone(a: TensorMeta, b: TensorMeta) -> Launch:
        return launch(a, b)

    def with_addend(a: TensorMeta, b: TensorMeta, addend: TensorMeta) -> Launch:
        return launch(a, b, addend)

    signature = "a, b, addend -> out" if added else "a, b -> out"
    operator = operator_of(
        op(signature, name=name, dense=False, cuda="flowvm.ops.products.cuda.products:product")(
            with_addend if added else alone
        )
    )
    operator.origin.recipe = ("product", (name, ta, tb, program, added, joins))
    return operator
