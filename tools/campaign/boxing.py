"""Boxing between random placements: each rank holds the part that the sbp say.

A case is a tensor's shape, and a walk of up to eight placements, each an array of one to three
dimensions of some of the ranks in any order, with an sbp for each dimension.  Ranks are threads
(`tests.ops.helpers.ranks`).  The parts that all ranks hold are compared with NumPy's slices of the
whole, after every change; the last gradient goes all the way back.
"""

from __future__ import annotations

import importlib
import math
import random
from collections import Counter
from typing import Any

import numpy as np

import flowvm as flow
from tools.campaign._steps import left_out, ranges

ranks: Any = importlib.import_module("tests.ops.helpers.ranks")
AMOUNTS: Counter[str] = Counter()
BATCH = 400
PATIENCE = 60
Case = dict[str, Any]


def case(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    size = rng.choice((1, 2, 3, 4, 4, 5, 6))
    shape = [rng.choice((0, 1, 2, 3, 5, 7)) for _ in range(rng.randint(1, 3))]
    walk = [_state(rng, size, len(shape)) for _ in range(rng.randint(2, 8))]
    return {"size": size, "shape": shape, "walk": walk, "seed": seed}


def _state(rng: random.Random, size: int, ndim: int) -> list[Any]:
    """An array of ranks, and an sbp for each of its dimensions: -2 P, -1 B, 0 and more S."""
    grids = [g for n in range(1, size + 1) for g in _grids(n)]
    grid = rng.choice(grids)
    flat = rng.sample(range(size), math.prod(grid))
    if rng.random() < 0.5:
        flat.sort()
    return [np.reshape(flat, grid).tolist(), [rng.randint(-2, ndim - 1) for _ in grid]]


def _grids(n: int) -> list[tuple[int, ...]]:
    """The shapes of one to three dimensions that `n` ranks have."""
    two = [(a, n // a) for a in range(1, n + 1) if n % a == 0]
    three = [(a, b // c, c) for a, b in two for c in range(1, b + 1) if b % c == 0]
    return [(n,), *two, *three]


def kind(case: Case) -> str:
    """The number of ranks."""
    return f"{case['size']} ranks"


def parts(case: Case) -> list[Any]:
    """Runs of the walk."""
    return ranges(len(case["walk"]))


def without(case: Case, k: int) -> Case:
    """The case without a run of its walk."""
    walk = left_out(case["walk"], *ranges(len(case["walk"]))[k])
    return {**case, "walk": walk or case["walk"][:1]}


def check(case: Case) -> str:
    """Walk, compare the parts behind each change, and go backward."""
    rng = np.random.default_rng(case["seed"])
    values, upstream = rng.standard_normal((2, *case["shape"]))

    def rank(k: int) -> Any:
        states = [
            (
                flow.placement("cpu", grid),
                tuple(flow.sbp.split(d) if d >= 0 else SBP[d] for d in sbp),
            )
            for grid, sbp in case["walk"]
        ]
        held = [ranks.held(values, *states[0]).detach().requires_grad_()]
        for where, sbp in states[1:]:
            held.append(held[-1].to_global(where, sbp))
        upstream_whole = ranks.whole(upstream, states[-1][0])
        gradient: Any = flow.autograd.grad(held[-1], held[0], upstream_whole)[0]
        return states, [_part(x) for x in held], (gradient.sbp, _part(gradient))

    results = ranks.run(case["size"], rank)
    states = results[0][0]
    for step, (where, sbp) in enumerate(states):
        ranks.check_parts([local[step] for _, local, _ in results], values, where, sbp)
        AMOUNTS["changes"] += step > 0
    gradients = [gradient for _, _, (_, gradient) in results]
    ranks.check_parts(gradients, upstream, states[0][0], results[states[0][0].flat[0]][2][0])
    return "right"


def _part(x: Any) -> Any:
    """The part of a global tensor that is here, None outside of its placement."""
    return x.detach().to_local().numpy() if x._meta.inside else None


SBP = {-1: flow.sbp.broadcast, -2: flow.sbp.partial_sum}
