"""Kernels from scalar expressions, in the one form that the VM calls (`body_kernel`).

Only the expression goes through Numba.  What surrounds it (reading words, converting dtypes, the
loops over a tile) is LLVM text made here: it costs no type inference, and it can tell LLVM what
Python cannot say, namely that iterations are independent even when an output is an input.  Which
tiles there are is the plan's (`plan`), and one call of `walk` goes through them.

Invariant: an output shares memory with an operand element for element or not at all.
"""

from __future__ import annotations

import functools

from flowvm.compiler import jit
from flowvm.compiler.native import LoweredFunction
from flowvm.ops.declare.cpu.element_tiles import LOOP_METADATA, Program, Tiles
from flowvm.ops.declare.cpu.expressions import lowered_expression, lowered_guarded, scope_of
from flowvm.ops.declare.cpu.text import IN_MEMORY, Text
from flowvm.ops.declare.cpu.walk import WALK, provide


@functools.cache
def elementwise_kernel(p: Program, pattern: int | None = None) -> int:
    """The address of a kernel that computes the program's expression for every element.

    `pattern` is that of the only plans it is for (`ops/declare/cpu/tile_plan.py`); None: of all.
    """
    if not len(p.args) == len(p.in_dtypes) == len(p.compute):
        raise ValueError(
            f"{p.expr!r}: {len(p.args)} args, in_dtypes={p.in_dtypes}, compute={p.compute}"
        )
    if unknown := {*p.in_dtypes, *p.out_dtypes, *p.compute} - IN_MEMORY.keys():
        raise ValueError(f"{p.expr!r}: no kernel can read or write {', '.join(sorted(unknown))}")
    provide()
    scope = scope_of(f"{p.once}\n{p.expr}")

    def make() -> jit.Lowered:
        inner = lowered_expression(p.expr, p.args, p.compute, scope)
        rare = lowered_guarded(p.expr, p.args, p.compute, scope)
        before = _lowered_once(p, scope)
        text = _text(p, inner, rare, before, pattern)
        return jit.linked(_joined(inner, *rare, *before), text, loops_only=True)

    name = f"{p.expr}, {' '.join(p.in_dtypes)} -> {' '.join(p.out_dtypes)}"
    return jit.load(make, name)


def _lowered_once(p: Program, scope: dict[str, object]) -> tuple[LoweredFunction, ...]:
    """Return the lowered program to evaluate before a tile, if there is one."""
    names = tuple(p.args[k] for k in p.scalars)
    kinds = tuple(p.in_dtypes[k] for k in p.scalars)
    return (lowered_expression(p.once, names, kinds, scope),) if p.once else ()


def _joined(inner: LoweredFunction, *more: LoweredFunction) -> LoweredFunction:
    """`inner` with the modules of others, to be linked as one program."""
    modules = {id(m): m for f in (inner, *more) for m in f.modules}
    helpers = inner.helpers.union(*(f.helpers | {f.name} for f in more))
    return inner._replace(modules=list(modules.values()), helpers=helpers)


def _text(
    p: Program,
    inner: LoweredFunction,
    rare: tuple[LoweredFunction, ...],
    before: tuple[LoweredFunction, ...],
    only: int | None,
) -> str:
    """A function for a tile of each kind that can be met, their table, and the entry, which is one
    call of `walk`.

    "dense" is for rows whose strides are all 1, "single<k>" for a stride of 0 in tensor input k and
    1 elsewhere; the plan (`declare/cpu/plan.py`) makes one of these of all others.  `only` is the
    pattern of the one kind that is wanted, None for all of them.
    """
    outs, count = p.outs, len(p.stored)
    kinds = [("dense", 0), *((f"single{k}", 1 << k) for k in range(outs, count))]
    kinds = [kind for kind in kinds if only in (None, kind[1])]
    whole = Tiles(p, inner, before)
    functions = []
    for name, pattern in kinds:
        functions.append(whole.tile(f"whole_{name}" if rare else name, pattern))
        if rare:
            fits, near = rare
            functions.append(Tiles(p, fits, before, stores=False).tile(f"check_{name}", pattern))
            functions.append(Tiles(p, near, before, check=fits).tile(f"near_{name}", pattern))
            functions.append(_choice(p, name))
    table = ", ".join(
        f"i64 {pattern}, i64 ptrtoint (ptr @tile_{name} to i64)" for name, pattern in kinds
    )
    passed = "i64 %args, i64 %layout, i64 %lo, i64 %hi"
    return "\n".join(
        [
            *map(_declared, (inner, *rare, *before)),
            f"declare i32 @{WALK}(i64, i64, i64, i64, i64, i64, ptr)",
            f"@table = internal constant [{2 * len(kinds)} x i64] [{table}]",
            *functions,
            f"""
define i32 @entry(i64 %args, i64 %layout, i64 %lo, i64 %hi) {{
  %s = call i32 @{WALK}({passed}, i64 {outs}, i64 {count}, ptr @table)
  ret i32 %s
}}""",
            LOOP_METADATA,
        ]
    )


def _declared(function: LoweredFunction) -> str:
    return f'declare i32 @"{function.name}"(ptr, ptr{"".join(f", {a}" for a in function.args_ir)})'


def _choice(p: Program, name: str) -> str:
    """The function of a tile that has a rare case: computes it as if there were none, and anew if
    one was met.  Where an input is lost by that, asks first.
    """
    passed = "ptr %pointers, ptr %steps, i64 %rows, i64 %columns, ptr %args"
    t = Text()
    to = t.word("%pointers", p.targets[0])
    lost = "false"
    for k in range(p.outs, len(p.stored)):
        same = t.new(f"icmp eq i64 {t.word('%pointers', k)}, {to}")
        lost = t.new(f"or i1 {lost}, {same}")
    return f"""define internal i32 @tile_{name}({passed}) {{
{t}
  br i1 {lost}, label %ask, label %near
ask:
  %met = call i32 @tile_check_{name}({passed})
  %none = icmp eq i32 %met, 0
  br i1 %none, label %near, label %whole
near:
  %bad = call i32 @tile_near_{name}({passed})
  %fits = icmp eq i32 %bad, 0
  br i1 %fits, label %done, label %whole
whole:
  %status = call i32 @tile_whole_{name}({passed})
  ret i32 %status
done:
  ret i32 0
}}"""
