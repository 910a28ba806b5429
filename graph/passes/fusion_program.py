"""The program of a group of elementwise nodes, and the operator that runs it.

Every elementwise op is declared by a scalar expression, so a group is a list of assignments.  Names
go by position and sizes are not in it, so a program that repeats from layer to layer is compiled
once.

Values are stored as float16 and bfloat16, and computed in float32.  Each result that eager code
would have stored is rounded, so fusion changes no value.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from flowvm.eager.declaration import Invocation, Kernel, Origin, Signature
from flowvm.eager.interpreter import Operator
from flowvm.eager.live import Live
from flowvm.errors import ArgumentError
from flowvm.files.schema import integer, one_of, several, text
from flowvm.graph.logical.nodes import Operand, OpNode
from flowvm.meta.dtype import ALL_DTYPES, DType
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.core import CASTS
from flowvm.ops.declare.grammar import MOST_CHARACTERS, check_program
from flowvm.ops.declare.recipes import maker
from flowvm.ops.declare.registry import broadcast_shapes
from flowvm.ops.declare.scalar_launch import ScalarLaunch

COMPUTED = {d.name: d.compute.name for d in ALL_DTYPES if d.is_floating_point}
ROUNDED = {"float16": "half", "bfloat16": "bfloat"}  # the functions that round to them
MOST_NAMES = 6  # of ops in the name of a fused one
MOST_TITLE = 1000  # characters of it, in a graph that was saved
MOST_ARGUMENTS = 256  # of a program, likewise
RECIPE = "fused"


class _Form(NamedTuple):
    """An expression, its arguments, and which of them are tensors ("t") and numbers ("s")."""

    args: tuple[str, ...]
    expr: str
    pattern: str


def _form_of(node: OpNode) -> _Form | None:
    if node.operator in CASTS:
        from_bool = node.inputs[0].meta.dtype.is_bool
        return _Form(("x",), "1.0 if x else 0.0" if from_bool else "x", "t")
    if node.operator.origin.form is None:
        return None
    form, pattern = node.operator.origin.form
    return _Form(tuple(form.args), form.expr, pattern)


@functools.lru_cache(maxsize=4096)
def _types(form: Any, metas: tuple[TensorMeta, ...], kinds: tuple[type, ...]) -> Any:
    elementwise, pattern = form
    return elementwise.types_of(pattern, metas, kinds)


def real_of(node: OpNode) -> str | None:
    """Return the dtype of a node's arithmetic, "" for bools, None if no program can have it."""
    if any(not isinstance(s, Live) and not math.isfinite(s) for s in node.scalars):
        return None  # no literal of Python says it
    metas = tuple(operand.meta for operand in node.inputs)
    (out,) = node.outputs
    if node.operator in CASTS:
        names = {out.meta.dtype.name, *({m.dtype.name for m in metas} - {"bool"})}
        return _common(names)
    compute, result = _types(node.operator.origin.form, metas, node.attrs)
    if out.meta.dtype is not result:
        return None
    tensors = iter(metas)
    for p, c in zip(node.operator.origin.form[1], compute, strict=True):
        if p == "s":
            continue
        kind = next(tensors).dtype
        if kind is not c and COMPUTED.get(kind.name) != COMPUTED.get(c.name, ""):
            return None
    return _common({c.name for c in (*compute, result)} - {"bool"})


def _common(names: set[str]) -> str | None:
    if not names:
        return ""
    reals = {COMPUTED.get(name) for name in names}
    return reals.pop() if len(reals) == 1 else None


class _Renamed(ast.NodeTransformer):
    """An expression with its arguments' names replaced."""

    def __init__(self, names: dict[str, ast.expr]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self.names.get(node.id, node)


class Program(NamedTuple):
    """A group as one node: its operator and the numbers that change from replay to replay."""

    operator: Operator
    lives: tuple[Live, ...]


def program_text(
    members: Sequence[OpNode], inputs: Sequence[Operand], outputs: Sequence[Operand]
) -> tuple[str, tuple[Live, ...]]:
    """Return the program of these nodes: assignments, then the results; and its live numbers.

    Inputs are named x0 and so on, live numbers n0 and so on.
    """
    names = {operand: f"x{k}" for k, operand in enumerate(inputs)}
    lives: list[Live] = []
    lines: list[str] = []
    for member in members:
        form = _form_of(member)
        assert form is not None
        tensors, numbers = iter(member.inputs), iter(member.scalars)
        places: dict[str, ast.expr] = {}
        for argument, p, dtype in zip(form.args, form.pattern, _computes(member), strict=True):
            if p == "t":
                places[argument] = ast.Name(names[next(tensors)], ast.Load())
            else:
                places[argument] = _number(next(numbers), lives, dtype.is_bool)
        (out,) = member.outputs
        names[out] = f"t{len(lines)}"
        tree = _Renamed(places).visit(ast.parse(form.expr, mode="eval"))
        text = ast.unparse(ast.fix_missing_locations(tree))
        if out.meta.dtype.reduced:
            text = f"{ROUNDED[out.meta.dtype.name]}({text})"
        lines.append(f"{names[out]} = {text}")
    results = ", ".join(names[o] for o in outputs)
    lines.append(f"({results})" if len(outputs) > 1 else results)
    return "\n".join(lines), tuple(lives)


def program_of(
    members: Sequence[OpNode], inputs: Sequence[Operand], outputs: Sequence[Operand]
) -> Program:
    """The program of these nodes, which reads and gives these operands."""
    text, lives = program_text(members, inputs, outputs)
    operator = fused_operator(
        title([m.operator.name for m in members]),
        text,
        tuple(o.meta.dtype.name for o in inputs),
        len(outputs),
        len(lives),
        max(map(str, map(real_of, members))) or "float64",
    )
    return Program(operator, lives)


def _computes(node: OpNode) -> tuple[DType, ...]:
    """The dtypes that a node's arguments are computed in."""
    metas = tuple(operand.meta for operand in node.inputs)
    if node.operator.origin.form is None:  # a cast
        return tuple(meta.dtype for meta in metas)
    compute: tuple[DType, ...] = _types(node.operator.origin.form, metas, node.attrs)[0]
    return compute


def _number(value: Any, lives: list[Live], is_bool: bool) -> ast.expr:
    if is_bool:  # numbers of a program are floats
        return ast.Compare(_number(value, lives, False), [ast.NotEq()], [ast.Constant(0.0)])
    if not isinstance(value, Live):
        return ast.Constant(float(value))
    if not any(value is v for v in lives):
        lives.append(value)
    return ast.Name(f"n{next(i for i, v in enumerate(lives) if v is value)}", ast.Load())


def title(names: Sequence[str]) -> str:
    """Return the name of a node made of nodes of these names: `fused[mul,add,tanh]`."""
    more = f",{len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"fused[{','.join(names[:MOST_NAMES])}{more}]"


def operator_by(
    recipe: tuple[str, tuple[Any, ...]],
    counts: tuple[int, int, int],
    attrs: tuple[str, ...],
    kernel: Kernel,
    scalar_kinds: str = "",
) -> Operator:
    """The operator of a program, whose `counts` inputs, outputs and numbers go by their places.

    `recipe` makes it again where a graph is loaded: a maker's name, and its arguments, of which the
    first is the operator's name.
    """
    inputs, outputs, scalars = counts
    signature = Signature(
        tuple(f"x{k}" for k in range(inputs)),
        tuple(f"out{k}" for k in range(outputs)),
        attrs,
        tuple(f"n{k}" for k in range(scalars)),
        scalar_kinds,
    )
    return Operator(recipe[1][0], signature, kernel, origin=Origin(recipe=recipe))


def _check_text(
    name: str, program: str, dtypes: tuple[str, ...], outputs: int, lives: int, real: str
) -> None:
    names = [f"x{k}" for k in range(len(dtypes))] + [f"n{k}" for k in range(lives)]
    check_program(program, names, outputs, "the program of a fused node")


@maker(
    RECIPE,
    text(MOST_TITLE),
    text(MOST_CHARACTERS),
    several(one_of(*(d.name for d in ALL_DTYPES)), most=MOST_ARGUMENTS, kind=tuple),
    integer(1, MOST_ARGUMENTS),
    integer(0, MOST_ARGUMENTS),
    one_of("float32", "float64"),
    together=_check_text,
)
@functools.cache
def fused_operator(
    name: str, program: str, dtypes: tuple[str, ...], outputs: int, lives: int, real: str
) -> Operator:
    """The operator of a program: inputs of `dtypes`, `lives` numbers, computed in `real`."""

    def infer(metas: tuple[TensorMeta, ...], attrs: Attrs) -> ScalarLaunch:
        inputs = metas[-len(dtypes) :] if dtypes else ()
        _check_metas(operator, attrs[0], inputs)
        return _launch(operator, attrs[0], inputs)

    def lower(metas: tuple[TensorMeta, ...], attrs: tuple[object, ...]) -> Invocation:
        return infer(metas, attrs).on_cpu()

    operator = operator_by(
        (RECIPE, (name, program, dtypes, outputs, lives, real)),
        (len(dtypes), outputs, lives),
        ("metas",),
        Kernel(lower, infer, aliases=True),
    )
    return operator


def _check_metas(
    operator: Operator, outs: Sequence[TensorMeta], metas: Sequence[TensorMeta]
) -> None:
    """ArgumentError unless a program of these dtypes gives outputs of one shape from inputs that
    are repeated to it.
    """
    assert operator.origin.recipe is not None
    dtypes, shape = operator.origin.recipe[1][2], tuple(outs[0].shape)
    fits = len(outs) == len(operator.signature.outputs) and all(
        tuple(o.shape) == shape for o in outs
    )
    fits = fits and tuple(m.dtype.name for m in metas) == dtypes
    if not fits or broadcast_shapes(shape, *(m.shape for m in metas)) != shape:
        raise ArgumentError(
            f"{operator.name} takes inputs of the dtypes {list(dtypes)} and makes outputs of one "
            f"shape, got inputs {list(metas)} and outputs {list(outs)}"
        )


def is_program(operator: Operator) -> bool:
    """Return True if `fused_operator` made it."""
    return operator.origin.recipe is not None and operator.origin.recipe[0] == RECIPE


def program_kernel(operator: Operator, outs: Sequence[TensorMeta], pattern: int) -> int:
    """The kernel of a program, for plans of one pattern."""
    return _launch(operator, outs, ()).kernel(pattern)


def _launch(
    operator: Operator, outs: Sequence[TensorMeta], metas: tuple[TensorMeta, ...]
) -> ScalarLaunch:
    assert operator.origin.recipe is not None
    _, program, dtypes, _, lives, real = operator.origin.recipe[1]
    numbers = tuple(f"n{k}" for k in range(lives))
    return ScalarLaunch(
        tuple(outs),
        metas,
        program,
        (*operator.signature.inputs, *numbers),
        (*dtypes, *["float64"] * lives),
        (*(COMPUTED.get(dtype, dtype) for dtype in dtypes), *[real] * lives),
        numbers,
        "d" * lives,
        repeats=True,
    )
