"""Kinds of memory: parameters, optimizer state, gradients, activations, workspace.

What is alive is known exactly: modules register parameters, optimizers have state, autograd saves
(`flowvm.profiler.analysis.census`, taken when a run is collected: `info["held"]`).  Of what is gone
by then it is known whether it was made for a parameter or the state of an optimizer
(`info["purposes"]`, of `flowvm.vm.watch.purposes`), and the records say the rest: what backward
made is a gradient, what something else made and backward read is an activation.  What neither says
is "other": inputs, what code keeps, temporaries.
"""

from __future__ import annotations

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.profiler.run.run import Run
from flowvm.vm.machine.words import KIND, OPERAND
from flowvm.vm.watch.spaces import HOST

PARAM, OPTIM, OTHER, ACTIVATION, GRAD = range(5)
# name -> what it is
KINDS: dict[str, str] = {
    "param": "parameters and buffers of modules",
    "optim": "state of optimizers",
    "other": "inputs, what code keeps, temporaries",
    "activation": "what forward made and backward reads",
    "grad": "gradients, of parameters and on their way there",
}
_NUMBERS = {name: number for number, name in enumerate(KINDS)}


def kinds_of(run: Run) -> Array:
    """For each tensor of the run its kind, an index into KINDS."""
    owner = run.owner
    count = int(run.tensor.max(initial=-1)) + 1
    kinds = np.full(count, OTHER)
    if not count:
        return kinds
    allocates = (run.access & OPERAND.ALLOCATE) != 0
    backward = run.forward[owner] != -1
    read = ~allocates & (run.access & 3 == OPERAND.CONST) & (run.kind[owner] != KIND.RELEASE)
    of_backward = np.zeros(count, bool)
    of_backward[run.tensor[allocates & backward]] = True
    is_born_here = np.zeros(count, bool)
    is_born_here[run.tensor[allocates & ~backward]] = True
    saved = np.zeros(count, bool)
    saved[run.tensor[read & backward]] = True
    kinds[is_born_here & saved] = ACTIVATION
    kinds[of_backward] = GRAD
    for tensor, kind, _ in run.info.get("purposes", ()):
        if 0 <= tensor < count and kind in _NUMBERS:
            kinds[tensor] = _NUMBERS[kind]
    for tensor, _, kind, *_ in run.info.get("held", ()):
        if 0 <= tensor < count and kind != "other" and kind in _NUMBERS:
            kinds[tensor] = _NUMBERS[kind]
    return kinds


def held_before(run: Run, space: str = HOST) -> list[tuple[int, int, str]]:
    """List the memory from before the run that is alive at its end: kind, bytes, what keeps it."""
    tensors = np.zeros(int(run.tensor.max(initial=-1)) + 1, bool)
    tensors[run.tensor[(run.access & OPERAND.ALLOCATE) != 0]] = True
    return [
        (_NUMBERS.get(kind, OTHER), nbytes, keeper)
        for tensor, nbytes, kind, keeper, *of in run.info.get("held", ())
        if (tensor < 0 or (tensor < len(tensors) and not tensors[tensor])) and of in ([], [space])
    ]
