"""Gradients of random compositions against differences of float64 numbers, and against PyTorch.

A case is a sample of a declared op with things done to its inputs first: views and back, in-place
steps on copies, broadcast factors and summands, a tensor used twice, checkpoints, hooks, pieces cut
and joined.  What comes out is weighted with fixed numbers and summed.  The gradients of the inputs
and of the factors are held

- along random directions against central differences of two widths: where these two do not agree
  there is a kink, or too few digits are left, and nothing is said;
- where there is an op of that name and PyTorch is installed, against what it computes for the same
  steps;
- in some cases once more, by the gradient of a function of the gradients.

What was changed in place after it was saved must be refused, or not matter.

Shapes are the samples' own, so kernels are those that the generated tests have in the cache.
"""

from __future__ import annotations

import functools
import itertools
import random
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import flowvm as flow
from flowvm.errors import AutogradError, FlowError
from flowvm.ops.declare.registry import SAMPLES

Case = dict[str, Any]
Array = np.ndarray[Any, Any]
SEED_OF_SAMPLES = 7
MOST_ELEMENTS = 400
PATIENCE = 150  # seconds: a second gradient may have a dozen kernels to compile
AMOUNTS: Counter[str] = Counter()
CHANGED = "changed behind"  # the step after which backward is refused
DIRECTIONS = 2
WIDTH = 1e-5  # of a difference
AGREE = 1e-4  # the two widths', relative to the size of what is compared
CLOSE, CLOSE2 = 1e-5, 1e-4
STEPS = (
    "factor", "summand", "column", "transposed", "reshaped", "in place", "row in place", "twice",
    "through a view", "checkpoint", "hook", "cut and joined", "expanded", "curve", "detached",
    "saved by two",
)  # fmt: skip


# --- cases ----------------------------------------------------------------------------------------


@functools.cache
def table() -> list[tuple[str, int]]:
    """Samples whose gradients can be looked at: an op's name, and the sample's number."""
    _torch()  # whose import may take longer than a case may
    rows = []
    for op in SAMPLES:
        if op.grad:
            rng = np.random.default_rng(SEED_OF_SAMPLES)
            for number, sample in enumerate(itertools.islice(op.generate(rng), 8)):
                sizes = [a.size for a in _arrays(sample)]
                floats = [a.size for a in _arrays(sample) if a.dtype.kind == "f"]
                if floats and 0 not in sizes and sum(sizes) <= MOST_ELEMENTS:
                    rows.append((op.name, number))
    return rows


def case(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    name, number = rng.choice(table())
    steps = [
        [rng.choice(STEPS), rng.randrange(1 << 20)] for _ in range(rng.choice([0, 1, 2, 3, 4]))
    ]
    if steps and rng.random() < 0.03:
        steps[0][0] = CHANGED
    after = [rng.choice(["factor", "curve", "transposed", "checkpoint", "in place"])
             for _ in range(rng.choice([0, 0, 1]))]  # fmt: skip
    return {
        "op": name,
        "sample": number,
        "steps": steps,
        "after": after,
        "second": rng.random() < 0.25,
        "seed": seed,
    }


def kind(case: Case) -> str:
    """Return the kind of a case."""
    return "second" if case["second"] else "first"


def parts(case: Case) -> list[Any]:
    """Return the parts that a case may leave out: steps, and the second gradient."""
    return [*case["steps"], *case["after"], *(["second"] if case["second"] else [])]


def without(case: Case, k: int) -> Case:
    """The case without its k-th part."""
    steps, after = list(case["steps"]), list(case["after"])
    if k < len(steps):
        return {**case, "steps": steps[:k] + steps[k + 1 :]}
    k -= len(steps)
    if k < len(after):
        return {**case, "after": after[:k] + after[k + 1 :]}
    return {**case, "second": False}


# --- programs -------------------------------------------------------------------------------------


def _arrays(sample: Any) -> list[Array]:
    arrays: list[Array] = []

    def keep(a: Array) -> Array:
        arrays.append(a)
        return a

    _mapped((sample.args, sample.kwargs), keep)
    return arrays


def _mapped(value: Any, f: Callable[[Array], Any]) -> Any:
    """`value` with `f` of each array in it."""
    if isinstance(value, np.ndarray):
        return f(value)
    if isinstance(value, dict):
        return {k: _mapped(v, f) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(v, f) for v in value)
    return value


class Library:
    """The library with which steps are written: flowvm, or PyTorch under the same names."""

    def __init__(self, lib: Any, checkpoint: Callable[..., Any]) -> None:
        self.lib, self.checkpoint = lib, checkpoint

    def tensor(self, a: Array) -> Any:
        """A tensor of its own."""
        return self.lib.from_numpy(np.array(a))


class Program:
    """A case with its numbers: the arguments of its op, and the numbers that are inputs."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.op = next(op for op in SAMPLES if op.name == case["op"])
        rng = np.random.default_rng(SEED_OF_SAMPLES)
        self.sample = next(itertools.islice(self.op.generate(rng), case["sample"], None))
        arrays = _arrays(self.sample)
        self.inputs = [a.astype(np.float64) for a in arrays if a.dtype.kind == "f"]
        self.factors: list[Array] = []  # of steps, which are inputs too
        self.places = [
            len(self.inputs) and number % len(self.inputs) for _, number in case["steps"]
        ]
        for (_, number), place in zip(case["steps"], self.places, strict=True):
            own = np.random.default_rng(number)
            shape = self.inputs[place].shape
            self.factors.append(own.uniform(0.9, 1.1, shape[-1:]))

    @property
    def numbers(self) -> list[Array]:
        """Everything that gradients are taken of."""
        return [*self.inputs, *self.factors]

    def run(self, library: Library, function: Callable[..., Any], leaves: list[Any]) -> list[Any]:
        """The floating results for these leaves."""
        xs, factors = leaves[: len(self.inputs)], leaves[len(self.inputs) :]
        for (name, number), place, factor in zip(
            self.case["steps"], self.places, factors, strict=True
        ):
            xs[place] = _step(library, name, number, xs[place], factor)
        arrays = iter(xs)

        def converted(a: Array) -> Any:
            return next(arrays) if a.dtype.kind == "f" else library.tensor(a)

        args = _mapped(self.sample.args, converted)
        results = _results(function(*args, **_mapped(self.sample.kwargs, converted)))
        outs = [
            r for r in results if hasattr(r, "requires_grad") and r.dtype == library.lib.float64
        ]
        for name in self.case["after"]:
            outs = [_after(library, name, r) for r in outs]
        return outs


def _results(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [r for v in value for r in _results(v)]
    return [value]


def _step(library: Library, name: str, number: int, x: Any, factor: Any) -> Any:
    """Apply a step to an input; it hardly changes the numbers, so they stay valid."""
    lib = library.lib
    match name:
        case "factor":
            return x * factor
        case "summand":
            return x + (factor - 1) * 0.01
        case "column" if x.ndim > 0:
            return x * factor.sum() / factor.numel()
        case "transposed" if x.ndim > 1:
            return x.transpose(0, -1).contiguous().transpose(0, -1)
        case "reshaped":
            return x.reshape(-1).reshape(x.shape)
        case "in place":
            y = x * 1.0
            y.mul_(factor)
            y += 0.001 * factor
            return y
        case "row in place" if x.ndim > 0 and x.shape[0] > 0:
            y = x.clone()
            y[number % x.shape[0]] *= factor if x.ndim > 1 else factor[0]
            return y
        case "through a view" if x.ndim > 0:
            y = x.clone()
            y.reshape(-1)[: max(1, y.numel() // 2)].mul_(factor[0])
            return y
        case "twice":
            return x * 0.5 + x * factor * 0.5
        case "checkpoint":
            return library.checkpoint(lambda x, f: x * f * f, x, factor)
        case "hook":
            y = x * factor
            if y.requires_grad:
                y.register_hook(lambda g: g * 1.0)
                y.register_hook(lambda g: None)
            return y
        case "cut and joined" if x.ndim > 0 and x.shape[0] > 1:
            at = 1 + number % (x.shape[0] - 1)
            rest = x[at:] * factor if x.ndim > 1 else x[at:] * factor[0]
            return lib.cat([x[:at], rest])
        case "expanded" if x.ndim > 0:
            return x + (factor.mean() - 1).expand(x.shape) * 0.01
        case "curve":
            return x + 0.01 * (x * factor).tanh()
        case "detached":
            return x * (1 + 0.01 * x.detach().tanh() * 0) * factor
        case "changed behind":  # what is saved: an error is due, or the right gradient
            y = x * factor
            z = y * y
            y.mul_(1.5)
            return x + 0.01 * z
        case "saved by two":
            y = x * factor
            return y + 0.001 * y * y - 0.001 * y * y
    return x


def _after(library: Library, name: str, r: Any) -> Any:
    match name:
        case "factor":
            return r * 1.5
        case "curve":
            return r + 0.1 * r.tanh()
        case "transposed" if r.ndim > 1:
            return r.transpose(0, -1)
        case "checkpoint":
            return library.checkpoint(lambda r: r.tanh() + r, r)
        case "in place":
            y = r * 1.0
            y.add_(r)
            return y
    return r


def _weights(shape: Any, salt: int) -> Array:
    own = np.random.default_rng(zlib.crc32(repr((tuple(shape), salt)).encode()))
    return own.uniform(-1, 1, tuple(shape))


def _loss(library: Library, outs: list[Any]) -> Any:
    """One number of all results."""
    return sum(
        ((r * library.tensor(_weights(r.shape, k))).sum() for k, r in enumerate(outs)),
        start=library.tensor(np.zeros(())),
    )


# --- checking -------------------------------------------------------------------------------------

FLOWVM = Library(flow, flow.utils.checkpoint.checkpoint)


def check(case: Case) -> str:
    """ "right", or why nothing was compared."""
    if case["seed"] % 8:  # else on threads, where each number is waited for
        with flow.vm.sequential():
            return _checked(Program(case))
    return _checked(Program(case))


def _checked(program: Program) -> str:
    case, value = program.case, functools.partial(_value, program)
    with np.errstate(all="ignore"):
        try:
            result = value(program.numbers)
        except FlowError as error:
            return f"refused: {type(error).__name__}"
        if not np.isfinite(result) or value(program.numbers) != result:
            return "not finite, or random"
        try:
            gradients = _gradients(FLOWVM, program, program.op.function, False)
        except AutogradError:
            if any(name == CHANGED for name, _ in case["steps"]):
                return "refused: changed behind"
            raise
        AMOUNTS["gradients"] += 1
        _compare(program, value, gradients, CLOSE, "gradient")
        if case["second"] and program.op.grad2:
            AMOUNTS["second gradients"] += 1
            twice = _gradients(FLOWVM, program, program.op.function, True)
            _compare(program, functools.partial(_slope, program), twice, CLOSE2, "second gradient")
    _against_torch(program, gradients)
    return "right"


def _leaves(library: Library, numbers: list[Array], grad: bool = True) -> list[Any]:
    return [library.tensor(a).requires_grad_(grad) for a in numbers]


def _value(program: Program, numbers: list[Array]) -> float:
    """The loss, without gradients."""
    with flow.no_grad():
        outs = program.run(FLOWVM, program.op.function, _leaves(FLOWVM, numbers, False))
        return float(_loss(FLOWVM, outs).item()) if outs else float("nan")


def _slope(program: Program, numbers: list[Array]) -> float:
    """Return the number that `_gradients` differentiates for the second time."""
    leaves = _leaves(FLOWVM, numbers)
    return float(_of_gradients(FLOWVM, program, program.op.function, leaves).item())


def _of_gradients(library: Library, program: Program, function: Any, leaves: list[Any]) -> Any:
    loss = _loss(library, program.run(library, function, list(leaves)))
    if not loss.requires_grad:
        return loss
    first = library.lib.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
    return sum(
        (
            (g * library.tensor(_weights(g.shape, 100 + k))).sum()
            for k, g in enumerate(first)
            if g is not None
        ),
        start=library.tensor(np.zeros(())),
    )


def _gradients(library: Library, program: Program, function: Any, second: bool) -> list[Array]:
    """Return the gradients of the loss, or of a function of them; zeros where there are none."""
    leaves = _leaves(library, program.numbers)
    if second:
        loss = _of_gradients(library, program, function, leaves)
    else:
        loss = _loss(library, program.run(library, function, list(leaves)))
    if loss.requires_grad:
        loss.backward()
    return [
        np.zeros(a.shape) if t.grad is None else t.grad.detach().numpy().copy()
        for t, a in zip(leaves, program.numbers, strict=True)
    ]


def _compare(
    program: Program,
    value: Callable[[list[Array]], float],
    gradients: list[Array],
    tolerance: float,
    what: str,
) -> None:
    """Hold gradients against differences along random directions of each input."""
    base = program.numbers
    size = max([1.0, abs(value(base)), *(float(np.abs(g).max(initial=0)) for g in gradients)])
    if not np.isfinite(size) or size > 1e6:
        AMOUNTS["too steep"] += 1
        return
    for place in range(len(base)):
        own = np.random.default_rng(program.case["seed"] + place)
        for _ in range(DIRECTIONS):
            way = np.asarray(own.uniform(-1, 1, base[place].shape))
            slopes = [_difference(value, base, place, way, w) for w in (WIDTH, 2 * WIDTH)]
            if not abs(slopes[0] - slopes[1]) <= AGREE * size:
                AMOUNTS["kinks"] += 1
                continue
            slope = float((gradients[place] * way).sum())
            AMOUNTS["directions"] += 1
            wrong = abs(slope - slopes[0])
            assert wrong <= (tolerance + 10 * abs(slopes[0] - slopes[1]) / size) * size, (
                f"{what} of input {place} of {program.op.name}: {slope} along a direction, the "
                f"difference is {slopes[0]} (and {slopes[1]} for twice its width)\n"
                f"  steps {program.case['steps']} {program.case['after']}"
            )


def _difference(
    value: Callable[[list[Array]], float], base: list[Array], place: int, way: Array, width: float
) -> float:
    moved = [
        value([a + sign * width * way if k == place else a for k, a in enumerate(base)])
        for sign in (1, -1)
    ]
    return (moved[0] - moved[1]) / (2 * width)


# where differences say that the gradient is ours, and PyTorch has another
OTHER_GRADIENTS = {
    "cholesky_inverse": "the triangle that is not read has a gradient there",
    "cholesky_solve": "likewise",
    "as_strided_scatter": "what was replaced has a gradient there",
    "ldexp": "by whole numbers below 0 it is 0 there",
}


def _against_torch(program: Program, gradients: list[Array]) -> None:
    """Check the gradients against PyTorch, if it has the op and gives the same number."""
    library, function = _torch(), _twin(program.op.name)
    if library is None or function is None or program.op.name in OTHER_GRADIENTS:
        return
    leaves = functools.partial(_leaves, library, program.numbers)
    try:
        with library.lib.no_grad():
            outs = program.run(library, function, _leaves(library, program.numbers, False))
            value = float(_loss(library, outs).item())
        if not any(r.requires_grad for r in program.run(library, function, leaves())):
            AMOUNTS["no gradient in PyTorch"] += 1
            return
        theirs = _gradients(library, program, function, False)
    except Exception:
        AMOUNTS["not PyTorch's"] += 1  # other arguments, or a case that it does not take
        return
    ours = _value(program, program.numbers)
    if not abs(value - ours) <= 1e-6 * max(1.0, abs(ours)):
        AMOUNTS["not PyTorch's"] += 1  # another function of that name
        return
    AMOUNTS["against PyTorch"] += 1
    for place, (a, b) in enumerate(zip(gradients, theirs, strict=True)):
        if not np.allclose(a, b, 1e-5, 1e-6, equal_nan=True):
            if _at_a_kink(program, place):
                AMOUNTS["kinks"] += 1
                continue
            raise AssertionError(
                f"gradient of input {place} of {program.op.name}:\n{a}\nPyTorch has\n{b}"
            )


def _at_a_kink(program: Program, place: int) -> bool:
    """Return True if an input's differences to both sides differ.

    Then either gradient is right.
    """
    value = functools.partial(_value, program)
    base, own = program.numbers, np.random.default_rng(program.case["seed"])
    at = value(base)
    for _ in range(8):
        way = own.uniform(-1, 1, base[place].shape) * WIDTH
        up, down = (
            value([a + sign * way if k == place else a for k, a in enumerate(base)])
            for sign in (1, -1)
        )
        if abs((up - at) - (at - down)) > 1e-3 * abs(up - at) + 1e-9:
            return True
    return False


@functools.cache
def _torch() -> Library | None:
    try:
        import torch
        from torch.utils.checkpoint import checkpoint
    except ImportError:
        return None
    torch.set_num_threads(1)
    return Library(torch, functools.partial(checkpoint, use_reentrant=False))


@functools.cache
def _twin(name: str) -> Callable[..., Any] | None:
    library = _torch()
    if library is None:
        return None
    torch = library.lib
    places = (torch.nn.functional, torch, torch.linalg, torch.special, torch.Tensor)
    return next((getattr(p, name) for p in places if hasattr(p, name)), None)
