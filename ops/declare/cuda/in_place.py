"""CUDA kernels of programs in place: a thread for each element of dense operands.

What is computed once is worked out by one thread of each block and left in shared memory, for all.
The kernel is made of a `part`, so that in a graph the operands of many launches are one launch's
(`flowvm.ops.updates.cuda.multi_tensor`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from flowvm.cuda.launch import CudaLaunch, Operand, Param
from flowvm.launch import View
from flowvm.ops.declare.cpu.expressions import expression_function
from flowvm.ops.declare.cuda.elementwise import SCOPE, converted, numbers_of
from flowvm.ops.declare.cuda.steps import elements_step, written
from flowvm.ops.declare.scalar_launch import ScalarLaunch


def in_place(launch: ScalarLaunch) -> CudaLaunch:
    """The CUDA launch of a program whose results replace its operands."""
    part = part_of(
        launch.expr, launch.args, launch.stored, launch.compute[0], launch.numbers, launch.into,
        launch.hoisted, launch.prelude,
    )  # fmt: skip
    views = [View(m.dtype, (m.numel,)) for m in launch.inputs]
    params: list[Param] = [Operand(k, view) for k, view in enumerate(views)]
    step = elements_step(part, views[0].shape[0], *params, *numbers_of(launch))
    return CudaLaunch((), (step,))


@functools.cache
def part_of(
    expr: str, args: tuple[str, ...], stored: tuple[str, ...], compute: str,
    numbers: tuple[str, ...], into: tuple[int, ...], hoisted: tuple[str, ...], prelude: str,
) -> Callable[..., object]:  # fmt: skip
    """part(start, stride, arrays..., numbers...): every `stride`-th element from `start` on."""
    kinds = dict(zip(args, stored, strict=True))
    tensors = [a for a in args if a not in numbers]
    arrays = [f"a_{n}" for n in tensors]
    parameters = [f"n_{n}" for n in numbers]
    elements = [
        converted(f"{a}[i]", kinds[n], compute) for a, n in zip(arrays, tensors, strict=True)
    ]
    values = ", ".join([*elements, *(f"v_{n}" for n in (*numbers, *hoisted))])
    results = ["r"] if len(into) == 1 else [f"r[{k}]" for k in range(len(into))]
    lines = [
        f"def in_place({', '.join(['start', 'stride', *arrays, *parameters])}):",
        *(f"    v_{n} = {converted(f'n_{n}', kinds[n], compute)}" for n in numbers),
        *(_once(hoisted, parameters, arrays[0]) if hoisted else ()),
        f"    for i in range(start, len({arrays[0]}), stride):",
        f"        r = expression({values})",
        *(f"        {arrays[k]}[i] = {r}" for k, r in zip(into, results, strict=True)),
        "",
    ]
    function, _ = expression_function(expr, (*args, *hoisted), (compute,) * len(args + hoisted))
    function.__globals__["INLINE_ALWAYS"] = True
    space = {**SCOPE, "expression": function}
    if prelude:
        space["once"], _ = expression_function(prelude, numbers, tuple(kinds[n] for n in numbers))
    arguments = (expr, args, stored, compute, numbers, into, hoisted, prelude)
    return written("\n".join(lines), "in_place", space, f"{__name__}:part_of", *arguments)


def _once(hoisted: tuple[str, ...], arguments: list[str], array: str) -> list[str]:
    """Lines that have one thread of the block compute these; all threads come by them."""
    places = ", ".join(f"held[{k}]" for k in range(len(hoisted)))
    return [
        f"    held = cuda.shared.array({len(hoisted)}, {array}.dtype)",
        "    if cuda.threadIdx.x == 0:",
        f"        {places}{',' * (len(hoisted) == 1)} = once({', '.join(arguments)})",
        "    cuda.syncthreads()",
        *(f"    v_{n} = held[{k}]" for k, n in enumerate(hoisted)),
    ]
