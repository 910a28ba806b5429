"""The records of an operator (`flowvm.eager.interpreter`), as declarations fill them.

    Signature    the names of what a call takes and gives
    Kernel       how a call becomes an instruction, and what its kernels can do
    Rules        what is done about a call elsewhere: autocast, ranks, other ways to make it
    Origin       what the operator was made of

What an autograd node asks of its operator (`grad`, `saves`) is in none of them, nor are the facts
of single rooms: they stand in the operator itself, as in whatever else has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from flowvm.meta.arrays import Array
from flowvm.meta.meta import Attrs, TensorMeta

Value = TypeVar("Value")


@dataclass(frozen=True)
class Invocation:
    """The kernel, layout and sizes for one (operator, metas, attributes)."""

    outputs: tuple[TensorMeta, ...]  # a mut2 output's meta has in shape[0] the most it can be
    kernel: int
    layout: Array
    units: int = 1
    grain: int = 1
    scratch: int = 0
    scalar_pack: str = ""  # struct codes of the dynamic scalars, "q" or "d" each
    phases: tuple[tuple[int, int], ...] = ()  # (units, grain) of those after the first
    blocks: tuple[int, ...] = ()  # elements of each operand that a unit is alone with: see Launch
    arena: int = 0  # bytes of it that are used
    stream: int = 0  # of a device's instructions, or a lane's: where they go by default


class Signature(NamedTuple):
    """The names of what a call takes and gives, in the order of its arguments."""

    inputs: tuple[str, ...]  # those in `writes` are mut
    outputs: tuple[str, ...] = ()  # fresh ones
    attrs: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()  # dynamic numbers
    scalar_kinds: str = ""  # "d" float or "q" int each
    writes: frozenset[str] = frozenset()
    unsized: frozenset[str] = frozenset()  # mut2 outputs
    shaped: str = ""  # the attribute that is the shape of the first output
    keywords: tuple[str, ...] = ()  # of calls, if not the names of inputs, attributes and scalars

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of a call's arguments, in their order."""
        return (*self.inputs, *self.attrs, *self.scalars)

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of an instruction's operands, in their order."""
        return (*self.outputs, *self.inputs)

    def written(self, values: Iterable[Value]) -> list[Value]:
        """Return those of the inputs' values that a call writes."""
        return [v for n, v in zip(self.inputs, values, strict=True) if n in self.writes]


@dataclass(slots=True)
class Kernel:
    """The way from a call to an instruction, and what the kernels can do."""

    lower: Callable[[tuple[TensorMeta, ...], Attrs], Invocation]
    # what `lower` makes the CPU's call of: infer(metas, attrs) gives a Launch or the like
    infer: Callable[..., Any] | None = None
    everywhere: bool = False  # `lower` is for every device: it copies between them
    # the CUDA rule, or where that is, if it has one: see ops.registry.op
    cuda: str | Callable[..., Any] = ""
    # an output may lie exactly where an input does that has its arrangement: the kernel reads each
    # element before it writes it.  Of some kernels, only these (output, input) may
    aliases: bool | frozenset[tuple[int, int]] = False
    dense: bool = False  # infer and kernel rely on inputs that are contiguous
    refills: bool = False  # in place, it makes nothing of what was there
    complex: bool = False  # takes complex numbers
    minifloats: bool = False  # takes floats of 8 bits: it moves, converts or compares elements


def no_fallback(*args: object) -> None:
    """Make no call some other way."""


@dataclass(slots=True)
class Rules:
    """Rules for what surrounds a call."""

    amp: str = ""  # by which autocast converts its inputs, "" for none
    # the rule of its SBP letters, of (metas, attrs, outs), None if it says none: see
    # flowvm.ops.declare.letters
    letters: Callable[[Any, Any, Any], Any] | None = None
    # called on a miss with the call's arguments: a result if the call must be made some other way
    # (numbers among the tensors, float16, strides that the kernel does not take), else None
    fallback: Callable[..., object] = no_fallback


@dataclass(slots=True)
class Origin:
    """The source of an operator, for who wants to know it again, or to make more of it."""

    form: Any = None  # what it was made of: see ops.elementwise
    # of an operator made at run time: (maker, arguments), which makes it again; see ops.recipes
    recipe: tuple[str, tuple[Any, ...]] | None = None
