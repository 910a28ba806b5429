"""The declaration of an op: once, in one place, with everything that is made from it.

    @op("x -> out", saves="out", grad=...)    an op with a kernel body; the decorated function is
                                              its infer
    elementwise("exp", "exp(x)", ...)         an op of scalars; the expression is its kernel
    samples(function, generate, reference)    what the generated tests call it with, and what must
                                              come out

From a declaration flowvm makes the call function, the VM entry, the CPU kernel, the autograd node,
in-place and `out=` forms (elementwise), reduced floats (float16, bfloat16) through float32, and the
tests in `tests/ops`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flowvm.config import config, say
from flowvm.eager.autocast import autocasting
from flowvm.eager.declaration import Invocation, Kernel, Rules, Signature
from flowvm.eager.interpreter import Operator, check_kernels
from flowvm.eager.tensor import Tensor
from flowvm.errors import ModeError, ShapeError
from flowvm.launch import ARENA_BYTES, Launch, View
from flowvm.meta.device import cpu
from flowvm.meta.dtype import DType
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.cpu.body_kernel import Operand, body_layout, body_of, kernel_of, kind_of
from flowvm.ops.declare.cpu.stand_in import short_kernel
from flowvm.ops.declare.kinds import Inferred, Takes
from flowvm.ops.declare.letters import Rule
from flowvm.ops.declare.scalar_launch import ScalarLaunch
from flowvm.vm.callers.hot import hot
from flowvm.vm.watch.narrate import kernel_text


def _lower(
    inferred: Inferred, scalar_kinds: str, counts: bool
) -> Callable[[tuple[TensorMeta, ...], Attrs], Invocation]:
    def lower(metas: tuple[TensorMeta, ...], attrs: Attrs) -> Invocation:
        launch = inferred(metas, attrs)
        if isinstance(launch, ScalarLaunch):
            return launch.on_cpu()
        if launch.arena > ARENA_BYTES:
            raise ValueError(
                f"{inferred.name}: an arena has {ARENA_BYTES} bytes, got {launch.arena}"
            )
        views = launch.views or tuple(View.of(m) for m in (*launch.outputs, *metas))
        operands = [Operand.of(v) for v in views]
        if config.debug >= 4:
            arrays = [o[:3] for o in operands]
            say(4, kernel_text(inferred.name, launch.body, arrays, scalar_kinds))
        kinds = [kind_of(c) for c in launch.consts]
        scalars = scalar_kinds.replace("d", "f").replace("q", "i")
        body = body_of(
            launch.body, operands, kinds, scalars, reassociate=launch.reassociate, counts=counts
        )
        short = None if launch.stand_in is None else short_kernel(body, launch.stand_in)
        kernel = kernel_of(body) if short is None else short
        grain = launch.grain if short is None else launch.units
        layout = body_layout(views, launch.consts, launch.scratch)
        return Invocation(
            launch.outputs, kernel, layout, launch.units, grain, launch.scratch,
            phases=tuple((units, max(1, grain)) for units, grain in launch.phases),
            blocks=launch.blocks, arena=launch.arena, stream=launch.stream,
        )  # fmt: skip

    return lower


_operators: dict[Callable[..., object], Operator] = {}


def operator_of(function: Callable[..., object]) -> Operator:
    """The Operator behind a function that `op` or `elementwise` made, and `with_out` maybe gave
    its `out=`.
    """
    return _operators[getattr(function, "__wrapped__", function)]


def op(
    signature: str,
    *,
    name: str | None = None,
    saves: str = "",
    constants: str = "",
    grad: Callable[..., object] | None = None,
    scalars: str = "",
    dense: bool = True,
    half: str = "upcast",
    refills: bool = False,
    complex: bool = False,
    letters: Rule | None = None,
    amp: str = "",
    shaped: str = "",
    takes: Takes | None = None,
    cuda: str | Callable[..., object] = "",
) -> Callable[[Callable[..., Launch | ScalarLaunch]], Callable[..., Any]]:
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
    half        "upcast": reduced floats go through float32; "native": infer takes them;
                "bits": it takes them, those of 8 bits too, as `bits`, which it moves; "cuda": it
                takes them for CUDA, whose rule does, and not for the CPU
    refills     nothing of what an input with ! held goes into what is written there
    complex     it takes complex numbers; else these are an error at the call
    letters     the rule of its SBP letters (`flowvm.ops.declare.letters`), by which calls on global
                tensors are split; without one, every rank computes all of everything
    amp         what autocast converts its inputs to (`flowvm.eager.autocast`): "half", "full",
                "widest", or "" for as they are
    takes       `takes(metas, attributes by name)`: what operands and attributes are to each other,
                where infer and kernel rely on it and a file could say otherwise
    shaped      the attribute that says the shape of the first output: of a split one, its part's
    cuda        the rule that makes the op's CUDA launch of its Launch (`flowvm/cuda/launch.py`), a
                function, or "module:function" where the module is one of the `cuda` folder beside
                the declaration, or a whole dotted name; without one, the body itself is compiled
                for CUDA

    The infer function takes the inputs' metas and the attributes (hashable), checks them, and
    returns a Launch, or a ScalarLaunch of operands that are dense.  Its annotations say what kinds
    of attributes flowvm's own ops take (`flowvm.ops.declare.kinds`).

    >>> def doubled(out, x, lo, hi):
    ...     for i in range(lo, hi):
    ...         out[i] = 2 * x[i]
    >>> @flow.ops.op("x -> out")
    ... def double(x):
    ...     meta = x.with_shape((x.numel,))
    ...     return flow.ops.Launch(outputs=(meta,), body=doubled, units=x.numel)
    >>> double(flow.tensor([1, 2]))
    tensor([2, 4])
    """
    left, right = signature.split("->")
    inputs, writes = _names(left, "!")
    outputs, unsized = _names(right, "?")
    pairs = [s.split(":") for s in _names(scalars)[0]]
    kinds = "".join({"float": "d", "int": "q"}[kind.strip()] for _, kind in pairs)

    def declare(infer: Callable[..., Launch | ScalarLaunch]) -> Callable[..., object]:
        attrs = tuple(inspect.signature(infer).parameters)[len(inputs) :]
        ours = infer.__module__.startswith("flowvm.")
        called = name or infer.__name__
        inferred = Inferred(infer, called, attrs if ours else (), ours and dense, takes)
        operator = Operator(
            called,
            Signature(
                inputs=inputs,
                outputs=outputs,
                attrs=attrs,
                scalars=tuple(n.strip() for n, _ in pairs),
                scalar_kinds=kinds,
                writes=writes,
                unsized=unsized,
                shaped=shaped,
            ),
            Kernel(
                lower=_lower(inferred, kinds, bool(unsized)),
                infer=inferred,
                cuda=cuda if callable(cuda) else _in_room(cuda, infer.__module__),
                dense=dense,
                refills=refills,
                complex=complex,
                minifloats=half == "bits",
            ),
            grad=grad,
            saves=_names(saves)[0],
            constants=frozenset(_names(constants)[0]),
            rules=Rules(amp, letters),
        )
        operator.rules.fallback = _prepared(operator, dense, half)
        operator.twin.__doc__ = infer.__doc__
        operator.twin.__module__ = infer.__module__
        _operators[operator.call] = operator
        return operator.call

    return declare


def _names(text: str, mark: str = "!") -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the names that a text lists, with commas between them, and those with the mark."""
    stripped = text.strip()
    if not stripped:
        return (), frozenset()
    names = [n.strip() for n in stripped.split(",")]
    if mark not in text:
        return tuple(names), frozenset()
    marked = frozenset([n[:-1] for n in names if n[-1:] == mark])
    return tuple([n.rstrip(mark) for n in names]), marked


def _in_room(rule: str, declared_in: str) -> str:
    """The rule's module by its whole name: one without a dot lies in the room of the declaration,
    `flowvm.ops.<room>.cuda`.
    """
    room = ".".join(declared_in.split(".")[:3])
    return f"{room}.cuda.{rule}" if rule and "." not in rule else rule


def _prepared(operator: Operator, dense: bool, half: str) -> Callable[..., object]:
    """The fallback of a body op: upcast reduced floats, copy strided ones, then call again."""

    def fallback(*args: Any) -> Any:
        tensors = args[: len(operator.signature.inputs)]
        if not all(isinstance(t, Tensor) for t in tensors):
            return None  # the miss says which one is not
        upcast = half == "upcast" or (half == "cuda" and tensors[0]._meta.device is cpu)
        low = {t._meta.dtype for t in tensors if t._meta.dtype.reduced} if upcast else set()
        for dtype in low:
            if dtype.minifloat:
                check_kernels(operator, dtype, [tensors[0]._meta.device])
        if not low and not (dense and any(not t._meta.contiguous for t in tensors)):
            return None
        ready = [t.to(t._meta.dtype.compute) if t._meta.dtype in low else t for t in tensors]
        if dense:
            ready = [t.contiguous() for t in ready]
            if not all(t._meta.contiguous for t in ready):  # or the call would come here again
                raise ModeError(
                    f"{operator.name}: not for sparse tensors; work on x.values(), or on "
                    f"x.to_dense()"
                )
        if hot["autocast"]:  # it has said what it wants: these are its inputs
            with autocasting(None):
                result = operator.call(*ready, *args[len(tensors) :])
        else:
            result = operator.call(*ready, *args[len(tensors) :])
        for n, before, after in zip(operator.signature.inputs, tensors, ready, strict=True):
            if n in operator.signature.writes and before is not after:
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

    >>> flow.Sample((np.ones(3),), {"dim": 0}).kwargs
    {'dim': 0}
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OpSamples:
    """The samples of a public function, for the generated tests."""

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
    """Register a public function for the generated tests; see `OpSamples`.

    >>> square = flow.elementwise("own_square", "x * x", doc="x squared.")
    >>> def inputs(rng):
    ...     return [flow.ops.Sample((rng.standard_normal(shape),)) for shape in [(), (3, 4)]]
    >>> flow.ops.samples(square, inputs, np.square)
    >>> _ = flow.ops.SAMPLES.pop()  # here alone: the tests go through them
    """
    name = options.pop("name", None) or getattr(function, "__name__", None) or repr(function)
    SAMPLES.append(OpSamples(name, function, generate, reference, **options))
