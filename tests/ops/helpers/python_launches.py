"""Run a launch's body as Python on NumPy arrays, its units in pieces and in either order."""

import inspect
import itertools

import numpy as np

from flowvm.launch import PHASE_BITS, View

HALVES = {"bfloat16": np.uint16}


def dtype_of(view):
    return np.dtype(HALVES.get(view.dtype.name, view.dtype.name))


def python_outputs(launch, *inputs, pieces=3, backwards=False, scalars=()):
    """Return the outputs of a launch on these inputs, as arrays of the outputs' shapes.

    Each phase goes over its units in some pieces, from behind if `backwards`: no order may matter.
    """
    views = launch.views or tuple(View(m.dtype, tuple(m.shape)) for m in launch.outputs)
    count = len(launch.outputs)
    outs = [np.zeros(v.shape, dtype_of(v)) for v in views[:count]]
    given = [np.ascontiguousarray(a).reshape(-1)[: int(np.prod(v.shape))].reshape(v.shape)
             for a, v in zip(inputs, views[count:], strict=True)]  # fmt: skip
    consts = [
        np.array(c, np.int64) if type(c) is tuple else c for c in launch.consts
    ]  # a NamedTuple stays one argument
    names = inspect.signature(launch.body).parameters
    details = np.zeros(6, np.int64)
    scratch = np.zeros(launch.scratch, np.uint8)
    with np.errstate(all="ignore"):
        for phase, (units, _) in enumerate(((launch.units, launch.grain), *launch.phases)):
            ends = sorted({0, units, *(units * k // pieces for k in range(1, pieces))})
            ranges = [*itertools.pairwise(ends)]
            for lo, hi in ranges[::-1] if backwards else ranges:
                memory = {"scratch": scratch, "arena": np.zeros(launch.arena, np.uint8)}
                more = [*scalars, *(memory[n] for n in ("scratch", "arena") if n in names)]
                at = phase << PHASE_BITS
                last = [details] if "details" in names else []
                status = launch.body(*outs, *given, *consts, *more, at + lo, at + hi, *last)
                if status:
                    raise RuntimeError((status, details.tolist()))
    return [o.reshape(tuple(m.shape)) for o, m in zip(outs, launch.outputs, strict=True)]
