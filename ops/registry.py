"""How an op is declared: once, in one place, with everything that is made from it.

    @op("x -> out", saves="out", grad=...)    an op with a kernel body; the decorated function is
                                              its infer
    elementwise("exp", "exp(x)", ...)         an op of scalars; the expression is its kernel
    samples(function, generate, reference)    what the generated tests call it with, and what must
                                              come out

From a declaration flowvm makes the call function, the VM entry, the CPU kernel, the autograd node,
in-place and `out=` forms (elementwise), reduced floats (float16, bfloat16) through float32, and the
tests in `tests/ops`.

Long because the keywords of a declaration are explained here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flowvm.autocasting import switch_autocast
from flowvm.config import config, say
from flowvm.device import cpu
from flowvm.dtype import DType, dtype_named
from flowvm.errors import ShapeError
from flowvm.interpreter import Invocation, Operator, lowerings
from flowvm.meta import TensorMeta, dense_stride
from flowvm.ops import codegen
from flowvm.tensor import Tensor
from flowvm.vm.layout import ARENA_BYTES, PHASE_BITS
from flowvm.vm.narrate import kernel_text

__all__ = [
    "ARENA_BYTES",
    "PHASE_BITS",
    "SAMPLES",
    "Launch",
    "OpSamples",
    "Sample",
    "View",
    "bits",
    "broadcast_shapes",
    "elsewhere",
    "op",
    "operator_of",
    "power_below",
    "samples",
]

# elements of a chunk: small enough to share, large enough that a chunk outweighs its hand-over
GRAIN = 1 << 15


@dataclass(frozen=True)
class View:
    """An operand as the kernel body sees it; `stride` is in elements, None is C order."""

    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None

    @staticmethod
    def of(meta: TensorMeta) -> View:
        """The operand as it is."""
        return View(meta.dtype, tuple(meta.shape), meta.stride)

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements."""
        return dense_stride(self.shape) if self.stride is None else self.stride

    @property
    def dense(self) -> bool:
        """Whether it is C-contiguous."""
        return self.stride is None or self.stride == dense_stride(self.shape)


def bits(meta: TensorMeta, shape: Sequence[int] | None = None) -> View:
    """A view of the elements as integers of their size, for kernels that only move them."""
    name = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}[meta.dtype.itemsize]
    if shape is not None:
        return View(dtype_named(name), tuple(shape))
    return View(dtype_named(name), tuple(meta.shape), meta.stride)


@dataclass(frozen=True)
class Launch:
    """What an infer function answers.

    `body(arrays..., consts..., scalars..., [scratch], [arena], lo, hi, [details])` works on the
    range [lo, hi) of `units`; arrays are the outputs, then the inputs, as `views` says (default: as
    they are).  It returns None or a Status.  A mut2 op's body is called with lo = hi = -1 first and
    leaves the rows of output k in details[k]; then with the range, and leaves the rows again.
    `reassociate` lets LLVM reorder the sums that are written in `body` itself, which vectorizes
    them.

    `phases` are the (units, grain) of further passes: a phase begins when all of the one before is
    done, and its units are numbered from `p << PHASE_BITS` (the first `phases[0]` is phase 1).
    `scratch` bytes are shared by all ranges of an instruction and live from the first phase to the
    last: partial sums or packed panels go there.  `arena` bytes (at most ARENA_BYTES) belong to the
    thread that runs a range, and hold nothing when it begins.

    `blocks` says that unit u of the first phase reads or writes, of operand k, the elements from
    u * blocks[k] to (u + 1) * blocks[k] in C order and no others, and that no other phase touches
    them; 0 for an operand that is not cut so.  A graph can then make and use up such operands block
    by block (`ops/blocks.py`).

    `for i in range(lo, hi): out[i] = ...` vectorizes, as do slices x[lo:hi]: lo is known not to be
    negative.  Where LLVM cannot know that of a range's begin (a const), loop from zero.
    """

    outputs: tuple[TensorMeta, ...]
    body: Callable[..., Any]
    views: tuple[View, ...] = ()
    consts: tuple[int | float | bool, ...] = ()
    units: int = 1
    grain: int = 1
    scratch: int = 0
    reassociate: bool = False
    phases: tuple[tuple[int, int], ...] = ()
    arena: int = 0
    blocks: tuple[int, ...] = ()
    plan: Any = None  # for a rule of another device: what it needs to know besides metas and attrs


def elsewhere(outputs: tuple[TensorMeta, ...], plan: Any) -> Launch:
    """What an infer function answers that will not plan a kernel for the CPU in vain."""
    return Launch(outputs, _no_body, plan=plan)


def _no_body() -> None:
    raise NotImplementedError("this call runs on another device")


def _kind(value: float) -> str:
    return "b" if isinstance(value, (bool, np.bool_)) else "f" if isinstance(value, float) else "i"


def _lower(
    infer: Callable[..., Launch], scalar_kinds: str, counts: bool
) -> Callable[[tuple[TensorMeta, ...], tuple[Any, ...]], Invocation]:
    def lower(metas: tuple[TensorMeta, ...], attrs: tuple[Any, ...]) -> Invocation:
        launch = infer(*metas, *attrs)
        if launch.arena > ARENA_BYTES:
            raise ValueError(
                f"{infer.__name__}: an arena has {ARENA_BYTES} bytes, got {launch.arena}"
            )
        views = launch.views or tuple(View.of(m) for m in (*launch.outputs, *metas))
        operands = [(v.dtype.name, len(v.shape), v.dense) for v in views]
        if config.debug >= 4:
            say(4, kernel_text(infer.__name__, launch.body, operands, scalar_kinds))
        kernel = codegen.body_kernel(
            launch.body,
            operands,
            "".join(_kind(c) for c in launch.consts),
            scalar_kinds.replace("d", "f").replace("q", "i"),
            launch.scratch > 0,
            launch.arena > 0,
            reassociate=launch.reassociate,
            counts=counts,
        )
        layout = codegen.body_layout(
            [(v.shape, v.strides) for v in views], launch.consts, launch.scratch
        )
        return Invocation(
            launch.outputs, kernel, layout, launch.units, launch.grain, launch.scratch,
            phases=tuple((units, max(1, grain)) for units, grain in launch.phases),
            blocks=launch.blocks, arena=launch.arena,
        )  # fmt: skip

    return lower


def _lower_for_cuda(
    made: Operator, metas: tuple[TensorMeta, ...], attrs: tuple[Any, ...]
) -> Invocation:
    from flowvm.ops.cuda.lowering import lower  # and with it, what needs CUDA

    return lower(made, metas, attrs)


lowerings["cuda"] = _lower_for_cuda

_operators: dict[Callable[..., Any], Operator] = {}


def operator_of(function: Callable[..., Any]) -> Operator:
    """The Operator behind a function that `op` or `elementwise` made."""
    return _operators[function]


def op(
    signature: str,
    *,
    name: str | None = None,
    saves: str = "",
    constants: str = "",
    grad: Callable[..., Any] | None = None,
    scalars: str = "",
    dense: bool = True,
    half: str = "upcast",
    cuda: str | Callable[..., Any] = "",
) -> Callable[[Callable[..., Launch]], Callable[..., Any]]:
    """Declare an op whose infer function is decorated; the result is the function that calls it.

    signature   "x, y! -> out, rows?": inputs left, those written in place with !; fresh outputs
                right, mut2 ones with ?
    saves       names of the operands that `grad` gets as `c.saved`
    constants   names of outputs, the last ones, that have no gradient (an op's own notes)
    grad        `grad(c, *gradients of the other outputs)` -> one gradient or None for each input;
                written in flowvm ops
    scalars     "lr: float, step: int": numbers that change from call to call and are no part of the
                cache key
    dense       copy inputs that are not C-contiguous first; False: the body (or infer) takes any
                strides
    half        "upcast": reduced floats go through float32; "native": infer takes them (as
                `bits`); "cuda": it does for CUDA, whose rule takes them, and not for the CPU
    cuda        the rule that makes the op's CUDA launch of its Launch (`ops/cuda/launch.py`), a
                function, or "module:function" in flowvm.ops.cuda; without one, the body itself is
                compiled for CUDA

    The infer function takes the inputs' metas and the attributes (hashable), checks them, and
    returns a Launch.
    """
    left, right = signature.split("->")
    inputs = [n.strip() for n in left.split(",") if n.strip()]
    outputs = [n.strip() for n in right.split(",") if n.strip()]
    writes = frozenset(n[:-1] for n in inputs if n.endswith("!"))
    unsized = frozenset(n[:-1] for n in outputs if n.endswith("?"))
    inputs = [n.rstrip("!") for n in inputs]
    outputs = [n.rstrip("?") for n in outputs]
    pairs = [s.split(":") for s in scalars.split(",") if s.strip()]
    kinds = "".join({"float": "d", "int": "q"}[kind.strip()] for _, kind in pairs)

    def declare(infer: Callable[..., Launch]) -> Callable[..., Any]:
        attrs = tuple(inspect.signature(infer).parameters)[len(inputs) :]
        made = Operator(
            name=name or infer.__name__,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            lower=_lower(infer, kinds, bool(unsized)),
            attrs=attrs,
            scalars=tuple(n.strip() for n, _ in pairs),
            scalar_kinds=kinds,
            writes=writes,
            unsized=unsized,
            saves=tuple(n.strip() for n in saves.split(",") if n.strip()),
            constants=frozenset(n.strip() for n in constants.split(",") if n.strip()),
            grad=grad,
            infer=lambda metas, attrs: infer(*metas, *attrs),
            cuda=cuda,
        )
        made.fallback = _prepared(made, dense, half)
        made.call.__doc__ = infer.__doc__
        made.call.__module__ = infer.__module__
        _operators[made.call] = made
        return made.call

    return declare


def _prepared(made: Operator, dense: bool, half: str) -> Callable[..., Any]:
    """The fallback of a body op: upcast reduced floats, copy strided ones, then call again."""

    def fallback(*args: Any) -> Any:
        tensors = args[: len(made.inputs)]
        if not all(isinstance(t, Tensor) for t in tensors):
            return None  # the miss says which one is not
        upcast = half == "upcast" or (half == "cuda" and tensors[0]._meta.device is cpu)
        low = {t._meta.dtype for t in tensors if t._meta.dtype.reduced} if upcast else set()
        if not low and not (dense and any(not t._meta.contiguous for t in tensors)):
            return None
        ready = [t.to(t._meta.dtype.compute) if t._meta.dtype in low else t for t in tensors]
        if dense:
            ready = [t.contiguous() for t in ready]
        region = switch_autocast(None)  # it has said what it wants: these are its inputs
        try:
            result = made.call(*ready, *args[len(tensors) :])
        finally:
            switch_autocast(region)
        for n, before, after in zip(made.inputs, tensors, ready, strict=True):
            if n in made.writes and before is not after:
                before.copy_(after)
                result = before if result is after else result
        if len(low) != 1:  # none, or float16 and bfloat16, which are float32 together
            return result
        (dtype,) = low
        if isinstance(result, tuple):
            return tuple(_narrowed(r, dtype) for r in result)
        return _narrowed(result, dtype)

    return fallback


def _narrowed(t: Tensor, dtype: DType) -> Tensor:
    return t.to(dtype) if t._meta.dtype is dtype.compute else t


def power_below(number: int) -> int:
    """The largest power of two that is not larger, 1 at least."""
    return 1 << max(0, number.bit_length() - 1)


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that tensors of these shapes have together, by NumPy's rules; else ShapeError."""
    rank = max(map(len, shapes), default=0)
    out = [1] * rank
    for shape in shapes:
        for i, d in enumerate(reversed(shape), 1):
            if d != 1 and out[-i] not in (1, d):
                listed = " and ".join(str(tuple(s)) for s in shapes)
                raise ShapeError(
                    f"shapes {listed} do not broadcast: dimension {rank - i} is {out[-i]} and {d}"
                )
            if d != 1:
                out[-i] = d
    return tuple(out)


# --- samples for the generated tests ---------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """One call: NumPy arrays stand for tensors.

    Float ones are also tried in other dtypes and strides.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OpSamples:
    """What the generated tests know of a public function."""

    name: str
    function: Callable[..., Any]
    generate: Callable[[np.random.Generator], Iterable[Sample]]
    reference: Callable[..., Any]  # on NumPy arrays (float64): arrays or numbers
    grad: bool = True  # gradcheck and gradgradcheck the float arguments
    grad2: bool = True
    # dtypes that float arrays are tried in
    floats: tuple[str, ...] = ("float64", "float32", "float16")
    rtol: float = 0.0  # 0: by dtype
    atol: float = 0.0
    # (call on flow, what it must raise)
    errors: tuple[tuple[Callable[..., Any], type[Exception]], ...] = ()


SAMPLES: list[OpSamples] = []


def samples(
    function: Callable[..., Any],
    generate: Callable[[np.random.Generator], Iterable[Sample]],
    reference: Callable[..., Any],
    **options: Any,
) -> None:
    """Register a public function for the generated tests; see `OpSamples`."""
    name = options.pop("name", None) or getattr(function, "__name__", repr(function))
    SAMPLES.append(OpSamples(name, function, generate, reference, **options))
