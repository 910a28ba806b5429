"""Rows on a device: a kernel that holds rows in registers reads and writes through programs.

A softmax or a norm is a row program (`ops/rows/parts/row_program.py`).  Where threads hold its rows
(`ops/rows/cuda/register_plans.py`) and an elementwise program makes what it reads, that program is
called instead of reading; where one takes its result, it is called before that is stored.  So
scale, mask and softmax, or a residual and the norm behind it, are one kernel, and what only they
need is never stored.  What rows a kernel does not hold (longer ones, sums, losses) stay kernels of
their own.

Results may differ in the last place: within one kernel a product and a sum may become a fused
multiply-add.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flowvm.eager.declaration import Invocation, Kernel
from flowvm.eager.interpreter import Operator
from flowvm.errors import DeviceError
from flowvm.graph.passes.epilogues import REAL
from flowvm.graph.passes.fusion_program import is_program, operator_by
from flowvm.graph.passes.row_layout import Part, Ref, RowParts, merged_dims
from flowvm.graph.passes.row_parts import PARTS, check_parts
from flowvm.launch import View
from flowvm.loading.lazy import lazy
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.recipes import maker
from flowvm.ops.declare.scalar_launch import ScalarLaunch, broadcast_stride
from flowvm.ops.rows.cpu.row_launch import Rows
from flowvm.ops.rows.parts.row_program import Definitions

if TYPE_CHECKING:
    from flowvm.cuda import launch as cuda
    from flowvm.cuda.launch import CudaLaunch
    from flowvm.ops.declare.cuda import lowering
    from flowvm.ops.rows.cuda import register_plans, register_rows
else:
    cuda = lazy("flowvm.cuda.launch")
    lowering = lazy("flowvm.ops.declare.cuda.lowering")
    register_rows = lazy("flowvm.ops.rows.cuda.register_rows")
    register_plans = lazy("flowvm.ops.rows.cuda.register_plans")


def holds(operator: Operator, metas: tuple[TensorMeta, ...], attrs: object) -> bool:
    """Return True if a kernel of this call holds rows, and does nothing else."""
    return _held(operator, metas, attrs) is not None


@functools.lru_cache(maxsize=4096)
def _held(operator: Operator, metas: tuple[TensorMeta, ...], attrs: Attrs) -> CudaLaunch | None:
    """The launch of such a call, else None."""
    if operator.signature.scalars or metas[0].dtype.name not in REAL:
        return None
    launch = lowering.launch_of(operator, metas, attrs)
    if len(launch.steps) != 1:
        return None
    maker, _ = getattr(getattr(launch.steps[0], "kernel", None), "recipe", ("", ()))
    return launch if maker.endswith(":held_kernel") else None


@functools.lru_cache(maxsize=1024)
def held_launch(program: RowParts) -> CudaLaunch | None:
    """Return the CudaLaunch of a program of one call that `holds` rows.

    At most one program is in front of it and at most one behind; return None for other programs.
    """
    own = [k for k, part in enumerate(program.parts) if not is_program(part.operator)]
    if len(own) != 1 or own[0] > 1 or len(program.parts) > own[0] + 2:
        return None
    row = program.parts[own[0]]
    launch = _held(row.operator, tuple(m for _, m in row.ins), row.attrs)
    if launch is None:
        return None
    kernel = _Kernel(row, launch.steps[0])
    before = own[0] == 0 or kernel.reads_through(program.parts[0])
    behind = own[0] + 1 == len(program.parts) or kernel.writes_through(program.parts[-1])
    return kernel.launch(program.outputs) if before and behind else None


@maker("held", *PARTS, together=check_parts)
@functools.cache
def held_operator(
    name: str, parts: tuple[Any, ...], outputs: int, inputs: int, scalars: int
) -> Operator:
    """The operator of a program on rows that are held: its parts' (operator, attributes,
    references, numbers).
    """
    program = RowParts(tuple(Part(*part) for part in parts), outputs)

    def lower(metas: tuple[TensorMeta, ...], attrs: tuple[object, ...]) -> Invocation:
        raise DeviceError(f"{name} was made for a device, and its tensors are on the CPU")

    return operator_by(
        ("held", (name, parts, outputs, inputs, scalars)),
        (inputs, outputs, scalars),
        ("metas", "blocks"),
        Kernel(
            lower,
            infer=lambda metas, attrs: None,
            cuda=lambda launch, metas, attrs: held_launch(program),
        ),
        scalar_kinds="d" * scalars,
    )


class _Kernel:
    """The kernel of a row's call, and the programs that it is to call.

    Operands are those of the whole; own ones have numbers below 0.
    """

    def __init__(self, row: Part, step: Any) -> None:
        assert row.operator.kernel.infer is not None
        self.row, self.step = row, step
        self.of: Rows = row.operator.kernel.infer(
            tuple(meta for _, meta in row.ins), row.attrs
        ).plan
        plan, self.dtype, self.lanes, self.each = step.kernel.recipe[1]
        *params, rows, n = step.params
        self.rows, self.n, self.outputs = rows.value, n.value, plan.outputs
        self.numbers = dict(zip((*plan.outputs, *plan.inputs, *plan.numbers), params, strict=True))
        self.arrays: dict[str, Any] = {}
        self.place_of: dict[str, int] = {}
        for name in (*plan.outputs, *plan.inputs):
            array = self.numbers.pop(name)
            place = row.refs[array.k][0]
            self.arrays[name], self.place_of[name] = replace(array, k=place), place
        self.definitions: Definitions = ()  # what is called instead of reading
        self.side_outputs: Definitions = ()
        self.behind = ""
        self.stored: Definitions = ()
        if row.refs[0][0] >= 0:
            self.stored = ((plan.outputs[0], "result"),)
        self.programs: list[Any] = []
        self.more: dict[str, Ref] = {}  # outputs of programs that are stored

    def reads_through(self, part: Part) -> bool:
        """Call `part` where the row is read that it makes; whether that can be."""
        places = [place for place, _ in part.outs]
        fed = [k for k, (place, _) in enumerate(self.row.ins) if place in places]
        if len(fed) != 1:
            return False
        place, meta = self.row.ins[fed[0]]
        which, p = places.index(place), self.of.program
        names = [name for name in (*p.rows, *p.weights) if self.place_of[name] == place]
        if not self._whole(meta) or part.outs[which][1] != meta or not names:
            return False
        call = self._called("before", part, ())
        if call is None or not all(self._whole(m) for _, m in part.outs):
            return False
        self.definitions = ((names[0], _result(call, part, which)),)
        del self.arrays[names[0]]
        for k, (to, out) in enumerate(part.outs):
            if to >= 0:
                self.more[f"kept_{k}"] = to, out
                self.side_outputs += ((f"kept_{k}", _result(call, part, k)),)
        return True

    def writes_through(self, part: Part) -> bool:
        """Call `part` on the row's result; return True if this is possible."""
        place, meta = self.row.outs[0]
        inside = {p for p, _ in self.row.outs} | {p for p, _ in self.more.values()}
        others = {p for p, _ in part.ins} - {place}
        if others & inside or min(others, default=0) < 0 or (place, meta) not in part.ins:
            return False
        if not self._whole(meta) or not all(self._whole(m) for _, m in part.outs):
            return False
        call = self._called("behind", part, (place, meta))
        if call is None:
            return False
        self.behind = call
        for k, (to, out) in enumerate(part.outs):
            if to >= 0:
                self.more[f"made_{k}"] = to, out
                self.stored += ((f"made_{k}", _result("last", part, k)),)
        return True

    def _whole(self, meta: TensorMeta) -> bool:
        return (
            meta.contiguous and meta.numel == self.rows * self.n and meta.dtype.name == self.dtype
        )

    def _called(self, name: str, part: Part, result: Ref | tuple[()]) -> str | None:
        """Return a call of the part's program, as an expression of the element's `place`.

        `result` is the row's result.
        """
        assert part.operator.kernel.infer is not None
        metas = tuple(meta for _, meta in part.ins)
        launch: ScalarLaunch = part.operator.kernel.infer(metas, part.attrs)
        shape, arguments = launch.outputs[0].shape, []
        inputs, scalars = iter(part.ins), iter(part.scalars)
        for argument, kind in zip(launch.args, launch.compute, strict=True):
            called = f"{name}_{argument}"
            if kind not in (self.dtype, "bool"):
                return None
            if argument in launch.numbers:
                self.numbers[called] = cuda.Scalar(next(scalars), "f")
                arguments.append(f"kind({called})")
                continue
            ref = next(inputs)
            if ref == result:
                arguments.append("result")
                continue
            index = None if ref[0] < 0 else self._index(ref[1], shape)
            if index is None:
                return None
            self.arrays[called] = self._array(ref)
            arguments.append(f"{called}[{index}]")
        self.programs.append((name, launch.expr, launch.args, launch.compute))
        return f"{name}({', '.join(arguments)})"

    def _array(self, ref: Ref) -> object:
        """An operand as one dimension of all that it spans."""
        place, meta = ref
        return cuda.Operand(place, View(meta.dtype, (meta.span // meta.dtype.itemsize,)))

    def _index(self, meta: TensorMeta, shape: Sequence[int]) -> str | None:
        """Return the index of the input's element at `place` in the rows; `m` is the row."""
        strides = broadcast_stride(meta, shape)
        across, split = 1, len(shape)
        while split and across < self.n:
            split -= 1
            across *= shape[split]
        columns = merged_dims(shape[split:], strides[split:])
        lead = merged_dims(shape[:split], strides[:split])
        if across != self.n or len(columns) > 1:
            return None
        step = columns[0][1] if columns else 0
        if step == 1 and (not lead or lead == [(self.rows, self.n)]):
            return "place" if lead or self.rows == 1 else None
        terms, inner = [], 1
        for size, stride in reversed(lead):
            row = "m" if inner == 1 else f"(m // {inner})"
            if stride:
                outermost = inner * size == self.rows
                terms.append(f"{row if outermost else f'({row} % {size})'} * {stride}")
            inner *= size
        if step:
            terms.append("(place - first)" + f" * {step}" * (step != 1))
        return " + ".join(terms) or "0"

    def launch(self, outputs: int) -> CudaLaunch:
        """The launch, whose first `outputs` operands are outputs."""
        used = {name: array for name, array in self.arrays.items() if array.k >= 0}
        outs = {name: array for name, array in used.items() if name in self.outputs}
        outs |= {name: self._array(ref) for name, ref in self.more.items()}
        ins = {name: array for name, array in used.items() if name not in outs}
        around = register_plans.Around(
            tuple(outs), tuple(ins), tuple(self.numbers), self.definitions, self.side_outputs,
            self.behind, self.stored, tuple(self.programs),
        )  # fmt: skip
        plan = register_plans.held_plan(self.of.program, self.of.period > 1, around)
        metas = dict(self.row.outs) | dict(self.more.values())
        step = replace(
            self.step,
            kernel=register_rows.held_kernel(plan, self.dtype, self.lanes, self.each),
            params=(*outs.values(), *ins.values(), *self.numbers.values(), *self.step.params[-2:]),
        )
        return cuda.CudaLaunch(tuple(metas[k] for k in range(outputs)), (step,))


def _result(call: str, part: Part, which: int) -> str:
    """One of what a program's call gives."""
    return f"{call}[{which}]" if len(part.outs) > 1 else call
