"""Elementwise ops: the scalar expression is written once, everything else is made here.

    add = elementwise("add", "x + y", types="promote", grad=lambda c, g: (sum_to(g, ...), ...))

gives a function on tensors and Python numbers with broadcasting and type promotion, its `out=`
form, the in-place form `add.into`, the kernel for every mixture of dtypes and strides, and the
gradient's node.  A Python number is a dynamic scalar: another value is not another kernel.

`types` says in what the expression computes and what it gives:

    promote   the result type of the arguments, for both
    number    the same, but a bool tensor among the arguments is an error
    float     the same, but integers and bools compute as the default dtype
    bool      computes in the result type, gives bool
    logical   like bool, but every argument is first taken as true or false
    int       the result type, which must not be a floating point one
    first     computes in the widest dtype of the arguments, gives the first one's

`complex` is the expression for complex numbers, True where it is the same one; without it they are
an error at the call.  A call that computes in complex numbers is made by a *twin*: the op of that
expression.  Its gradients are PyTorch's, the conjugates of the derivatives: `grad` says the
derivative of a holomorphic function, and the twin's is conj(grad(conj(g))).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.config import config, say
from flowvm.eager.declaration import Kernel, Origin, Rules, Signature
from flowvm.eager.global_calls import is_placed
from flowvm.eager.interpreter import Operator, call_into, going_over
from flowvm.eager.live import Frozen, FrozenInt, Live, freeze, plain_type
from flowvm.eager.modes import grad_enabled
from flowvm.eager.native.install import Function, fronted
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.nodes import Node
from flowvm.eager.overrides import hint
from flowvm.eager.tensor import Tensor, alias, base_of
from flowvm.eager.values import adopt_array
from flowvm.errors import (
    ArgumentError,
    ArgumentTypeError,
    AutogradError,
    DTypeError,
    FlowError,
    ShapeError,
)
from flowvm.meta.batched_meta import is_batched
from flowvm.meta.dtype import (
    DType,
    bool_,
    can_cast,
    float64,
    get_default_dtype,
    int64,
    result_type,
    result_type_of,
    uint64,
)
from flowvm.meta.formats import result_stride
from flowvm.meta.meta import Attrs, Size, TensorMeta
from flowvm.meta.unique import Unique
from flowvm.ops.declare.expression_letters import pointwise
from flowvm.ops.declare.halves import gradient_in_float32
from flowvm.ops.declare.rebase import check_base, rebase
from flowvm.ops.declare.registry import _operators, broadcast_shapes
from flowvm.ops.declare.renewal import fitted
from flowvm.ops.declare.scalar_launch import ScalarLaunch
from flowvm.ops.declare.transfers import together
from flowvm.vm.callers.hot import hot
from flowvm.vm.callers.tracebacks import cut

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.eager.tensor import Tensor


NUMBERS = (bool, int, float, np.generic)
COMPLEX = (complex, np.complexfloating)
TYPES = ("promote", "number", "float", "bool", "logical", "int", "first")
NUMPYS = {"x": "input", "a": "input", "x1": "input", "x2": "other"}  # which PyTorch takes, too
USUAL_NAMES = {1: ("input",), 2: ("input", "other")}  # PyTorch's, by how many there are


class Elementwise(Unique):
    """An elementwise op; calling it is the op.

    Attributes: `name`, `call` (fast, tensors only), `into`.

    >>> flow.mul.name, flow.mul.types
    ('mul', 'promote')
    """

    def __init__(
        self,
        name: str,
        expr: str,
        args: dict[str, str],
        types: str,
        saves: tuple[str, ...],
        grad: Callable[..., object] | None,
        complex: bool = False,
        real: bool = False,
        of_numbers: bool = False,
        minifloats: bool = False,
        amp: str = "",
        names: tuple[str, ...] = (),
        c_order: bool = False,
    ) -> None:
        self.c_order = c_order  # the result's elements, however the operands lie
        self.names = names or USUAL_NAMES.get(len(args)) or tuple(args)  # as keywords of a call
        self.of_numbers = of_numbers  # no tensor is needed
        self.minifloats = minifloats  # floats of 8 bits are taken
        self.amp = amp  # what autocast converts to
        self.facts: dict[Any, Any] = {}  # of single rooms: flowvm.ops.declare.facts
        self.twin: Elementwise | None = None  # what computes in complex numbers
        self.complex = complex  # it is a twin itself
        self.real = real  # and gives real numbers
        self.__name__ = self.name = name
        self.expr, self.args, self.types = expr, args, types
        pairs = [s.partition(" for ") for s in saves]
        self.saves, self.grad = tuple(s for s, _, _ in pairs), grad
        self.saved_for = {s: whom for s, _, whom in pairs if whom}
        self.variants: dict[str, Operator] = {}
        self.overs: dict[str, Operator] = {}  # of calls in place that nothing is recorded of
        self.operator = self._variant("t" * len(args))
        self.call = self.operator.call
        _operators[self.call] = self.operator

    def __reduce__(self) -> tuple[Callable[[str, int], Elementwise], tuple[str, int]]:
        return declared, (self.name, _named(self.name).index(self))

    # --- calling ------------------------------------------------------------------------------

    def __call__(self, *args: object, out: Tensor | None = None, **named: object) -> Any:
        """The op on tensors and Python numbers; `out` is an existing tensor for the result."""
        if named:
            args = self.placed(args, named)
        if out is None:
            try:
                return self.call(*args)
            except FlowError as error:
                cut(error)
                raise
        changed: Tensor = self._steadily_into(out, *args)
        return changed

    def placed(self, args: Sequence[object], named: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments by position, of a call with keywords; ArgumentTypeError for unknown ones,
        and if one is missing or is there twice.
        """
        rest = {NUMPYS.get(n, n) if n not in self.names else n: a for n, a in named.items()}
        placed = (*args, *(rest.pop(n) for n in self.names[len(args) :] if n in rest))
        if rest or len(placed) != len(self.names):
            raise ArgumentTypeError(
                f"{self.name}() got {len(args)} arguments by position and {', '.join(named)} by "
                f"keyword; it takes each of {', '.join(self.names)} once"
            )
        return placed

    @cached_property
    def _steadily_into(self) -> Callable[..., Tensor]:
        def into(out: Tensor, *args: object) -> Tensor:
            if len(args) != len(self.args):
                raise self._wrong_count(args)
            needs_grad = any(isinstance(a, Tensor) and a.requires_grad for a in (*args, out))
            if needs_grad and grad_enabled():
                raise AutogradError(
                    f"{self.name}(..., out=...) cannot be differentiated; leave out= away or use "
                    f"flow.no_grad()"
                )
            if isinstance(out, Tensor):
                self._fit(out, args)
            return self.into(out, *args)

        into.__name__ = self.name
        return steady(into)

    def _fit(self, out: Tensor, args: Sequence[object]) -> None:
        """Resize `out`, which is no argument, if the result has another shape."""
        metas = [a._meta for a in args if isinstance(a, Tensor)]
        if all(m.shape == out._meta.shape for m in metas) or any(a is out for a in args):
            return
        shape = Size(broadcast_shapes(*(m.shape for m in metas)))
        if shape != out._meta.shape:
            stride = None if self.c_order else result_stride(shape, metas)
            fitted(self.name, out, TensorMeta.of(shape, out._meta.dtype, out._meta.device, stride))

    def into(self, out: Tensor, *args: object) -> Tensor:
        """Write the result into `out`, which may be one of the arguments: the in-place form.

        ShapeError unless `out` has the result's shape, DTypeError if the result's category does not
        fit it.
        """
        if args and out is args[0]:
            changed: Tensor | None = self._over(args)
            if changed is not None:
                return changed
        if not isinstance(out, Tensor):
            raise ArgumentTypeError(f"{self.name}: out must be a Tensor, got {type(out).__name__}")
        if not self.complex and self._is_complex(args):
            return self._complex_twin().into(out, *args)
        pattern, tensors, numbers, kinds = self._sorted(args)
        if any(map(_may_not_fit, numbers)):
            tensors, numbers = self._fitting(pattern, tensors, numbers, kinds)
        variant = self._variant(pattern)
        tensors = tuple(_apart(out, t) for t in together(tensors, out._meta.device))
        node = record_in_place(self.name, variant, out, tensors, (*kinds, *numbers))
        seq = call_into(variant, (out,), tensors, kinds, numbers, traced=node is None)
        out.bump()
        if node is not None:
            node.node.seq = seq
            node.finish(out)
        return out

    def _over(self, args: Sequence[Any]) -> Any:
        """A call in place that nothing is to be recorded of, of tensors with memory of their own
        and maybe a number that stands for itself, none of them complex or global; None of others.
        """
        if hot["departed"] or len(args) != len(self.args) or self.complex:
            return None
        kind = type(args[-1])
        simple = kind is float or (kind is int and 0 <= args[-1] <= 127)
        number = simple and len(args) == 2
        out, recorded = args[0], grad_enabled()
        for a in args[:1] if number else args:
            if not isinstance(a, Tensor) or a._meta.dtype.is_complex or is_placed(a._meta):
                return None
            if is_batched(a._meta):
                return None
            if a._meta.device is not out._meta.device or (recorded and a._node is not None):
                return None
            if a._storage is not None and a is not out and a._storage is out._storage:
                return None
        if recorded and base_of(out)._node is not None:
            return None
        if number:
            return self.going_over("ts").call(out, kind, args[1])
        return self.going_over("t" * len(args)).call(*args)

    def going_over(self, pattern: str) -> Operator:
        """The operator of the calls that `_over` makes."""
        over = self.overs.get(pattern)
        if over is None:
            over = going_over(self._variant(pattern))
            if pattern == "tt":
                over.numbered = lambda: self.going_over("ts")
            over = self.overs.setdefault(pattern, over)
        return over

    def _wrong_count(self, args: Sequence[object]) -> ArgumentTypeError:
        return ArgumentTypeError(f"{self.name} takes {len(self.args)} arguments, got {len(args)}")

    def _sorted(
        self, args: Sequence[object]
    ) -> tuple[str, tuple[Tensor, ...], Any, tuple[type, ...]]:
        if len(args) != len(self.args):
            raise self._wrong_count(args)
        if self.complex:
            args = self._complex_numbers(args)
        pattern = "".join("t" if isinstance(a, Tensor) else "s" for a in args)
        if "t" not in pattern:
            raise ArgumentTypeError(
                f"{self.name} needs a Tensor among its arguments, got "
                + ", ".join(type(a).__name__ for a in args)
                + next(filter(None, map(hint, args)), "")
            )
        numbers = []
        for name, a in zip(self.args, args, strict=True):
            if isinstance(a, Tensor):
                continue
            if isinstance(a, Live):
                a = freeze(a)
            if not isinstance(a, NUMBERS):
                other = (
                    "; flow.from_numpy makes a Tensor of it" if isinstance(a, np.ndarray) else ""
                )
                raise ArgumentTypeError(
                    f"{self.name}: argument {name!r} must be a Tensor or a number, "
                    f"got {type(a).__name__}{other}{hint(a)}"
                )
            numbers.append(a.item() if isinstance(a, np.generic) else a)
        kinds = tuple(plain_type(n) for n in numbers)
        return pattern, tuple(a for a in args if isinstance(a, Tensor)), tuple(numbers), kinds

    def _with_numbers(self, *args: Any) -> object:
        """A call's fallback: None if all are tensors of one device, else the call with numbers as
        scalars, and with 0-d tensors of the CPU where the others are.
        """
        kind = type(args[-1])  # first what is most common, x + 1.5: it is on the path of every call
        simple = kind is float or (kind is int and 0 <= args[-1] <= 127)
        if simple and len(args) == 2 and isinstance(args[0], Tensor):
            return self._variant("ts").call(args[0], kind, args[1])
        if not all(isinstance(a, Tensor) for a in args):
            return self._steadily_with_numbers(*args)
        if not self.complex and self._is_complex(args):
            return self._complex_twin().call(*args)
        moved = together(args)
        return None if moved is args else self.call(*moved)

    @cached_property
    def _steadily_with_numbers(self) -> Callable[..., Any]:
        """The call of tensors and numbers, whose variant and dtypes follow from their kinds."""

        def with_numbers(*args: Any) -> Any:
            return self._mixed(args)

        with_numbers.__name__ = self.name
        return steady(with_numbers)

    def _mixed(self, args: tuple[Any, ...]) -> Any:
        """A call with a number among its arguments, or none but numbers."""
        if not self.complex and self._is_complex(args):
            return self._complex_twin().call(*args)
        if self.of_numbers and all(isinstance(a, NUMBERS) for a in args):
            return self.call(number_tensor(args[0], result_type(args[0])), *args[1:])
        pattern, tensors, numbers, kinds = self._sorted(args)
        tensors = together(tensors)
        if any(map(_may_not_fit, numbers)):
            tensors, numbers = self._fitting(pattern, tensors, numbers, kinds)
        return self._variant(pattern).call(*tensors, *kinds, *numbers)

    # --- complex numbers ------------------------------------------------------------------------

    def _is_complex(self, args: Sequence[object]) -> bool:
        """Return True if an argument is complex, so that the call is the complex twin's."""
        for a in args:
            if isinstance(a, Tensor):
                if a._meta.dtype.is_complex:
                    return True
            elif isinstance(a, COMPLEX):
                return True
        return False

    def _complex_twin(self) -> Elementwise:
        if self.twin is None:
            raise DTypeError(
                f"{self.name} is not defined for complex numbers; take .real, .imag or abs() first"
            )
        return self.twin

    def _complex_numbers(self, args: Sequence[object]) -> tuple[Any, ...]:
        """The arguments, complex numbers as 0-d tensors of the dtype that they make the result."""
        if not any(isinstance(a, COMPLEX) for a in args):
            return tuple(args)
        facts = [
            (a._meta.dtype, a._meta.ndim == 0) if isinstance(a, Tensor) else type(a)
            for a, rule in zip(args, self.args.values(), strict=True)
            if rule == ""
        ]
        if not any(isinstance(a, Tensor) for a in args):
            return tuple(args)  # an error, which `_sorted` raises
        dtype = result_type_of(*facts)
        return tuple(number_tensor(a, dtype) if isinstance(a, COMPLEX) else a for a in args)

    def _elsewhere(self, pattern: str) -> Callable[..., Any]:
        """The fallback of a call with numbers: the twin's where a tensor is complex."""
        count = pattern.count("t")

        def fallback(*args: object) -> object:
            if self.complex or not self._is_complex(args[:count]):
                return None
            return self._complex_twin()._variant(pattern).call(*args)

        return fallback

    def _fitting(
        self,
        pattern: str,
        tensors: tuple[Tensor, ...],
        numbers: Sequence[Any],
        kinds: tuple[type, ...],
    ) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        """The tensors in a dtype that holds the numbers, and the numbers as an instruction's words.

        Comparisons widen to int64 (uint64 with numbers below 0 to float64, where these are less
        than all it has), other ops raise ArgumentError.
        """
        compute, _ = self.types_of(pattern, [t._meta for t in tensors], kinds)
        compares = self.types == "bool"
        number, words = iter(numbers), list(numbers)
        for name, p, dtype in zip(self.args, pattern, compute, strict=True):
            value = next(number) if p == "s" else 0
            if dtype.category != 1 or isinstance(value, float):
                continue
            bound = 1 << 8 * dtype.itemsize - dtype.is_signed
            lowest = 0 if compares and not dtype.is_signed else -bound
            plain: Any = value.live if isinstance(value, Frozen) else value  # then these are guards
            if lowest <= plain < bound:
                if plain >= 1 << 63:  # a uint64: the word of the same bits
                    word = plain - (1 << 64)
                    word = freeze(word) if isinstance(word, Live) else word
                    words = [word if n is value else n for n in words]
                continue
            if not compares or not -(1 << 63) <= plain < 1 << 63:
                raise ArgumentError(
                    f"{self.name}: {name} = {value} does not fit {dtype.name}, the dtype that "
                    f"these arguments compute in; convert a tensor to a wider one"
                )
            wider = float64 if dtype is uint64 else int64
            tensors = tuple(t.to(wider) for t in tensors)
        return tensors, tuple(words)

    # --- variants: which arguments are tensors, which are numbers -------------------------------

    def _variant(self, pattern: str) -> Operator:
        variant = self.variants.get(pattern)
        if variant is None:
            variant = self.variants.setdefault(pattern, self._make(pattern))
        return variant

    def _make(self, pattern: str) -> Operator:
        tensors = [n for n, p in zip(self.args, pattern, strict=True) if p == "t"]
        numbers = [n for n, p in zip(self.args, pattern, strict=True) if p == "s"]
        grad = self.grad
        if grad is not None and numbers:
            grad = self._partial_grad(pattern, grad)
        operator = Operator(
            self.name,
            Signature(
                inputs=tuple(tensors),
                outputs=("out",),
                attrs=tuple(f"{n}_type" for n in numbers),
                scalars=tuple(numbers),
                keywords=() if numbers else self.names,
            ),
            Kernel(
                lower=lambda metas, attrs: self._infer(pattern, metas, attrs).on_cpu(),
                infer=lambda metas, attrs: self._infer(pattern, metas, attrs),
                aliases=True,
                refills=next(iter(self.args)) not in _names_in(self.expr, self.name),
                complex=self.complex,
                minifloats=self.minifloats,
            ),
            grad=grad,
            saves=self._saved_names(tensors),
            rules=Rules(
                amp=self.amp,
                letters=lambda metas, attrs, outs: pointwise(self, pattern, metas, outs),
                fallback=self._elsewhere(pattern) if numbers else self._with_numbers,
            ),
            origin=Origin((self, pattern)),
            facts=self.facts,
        )
        if pattern == "tt":
            operator.numbered = lambda: self._variant("ts")
        return operator

    def _saved_names(self, tensors: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the values to save if only `tensors` are tensors, and not numbers."""
        return tuple(
            s
            for s in self.saves
            if (s == "out" or s in tensors) and self.saved_for.get(s, tensors[0]) in tensors
        )

    def _partial_grad(self, pattern: str, grad: Callable[..., Any]) -> Callable[..., Any]:
        """The gradient when some arguments are numbers: they stand where tensors would."""

        def partial(c: Node, *gradients: Any) -> tuple[Any, ...]:
            results = grad(_Numbered(self, pattern, c), *gradients)
            return tuple(r for r, p in zip(results, pattern, strict=True) if p == "t")

        return partial

    # --- inference ----------------------------------------------------------------------------

    def types_of(
        self, pattern: str, metas: Sequence[TensorMeta], kinds: Sequence[type]
    ) -> tuple[list[DType], DType]:
        """The dtype each argument is computed in, and the result's."""
        tensor, number = iter(metas), iter(kinds)
        facts: list[tuple[DType, bool] | type] = []
        voters = []
        for (_, rule), p in zip(self.args.items(), pattern, strict=True):
            meta = next(tensor) if p == "t" else None
            fact = (meta.dtype, meta.ndim == 0) if meta is not None else next(number)
            facts.append(fact)
            if rule == "":
                voters.append(fact)
        if self.types == "first":
            voters = [(m.dtype, False) for m in metas]
        common = result_type_of(*voters)
        if self.types == "float" and not common.inexact:
            common = get_default_dtype()
        if self.types == "number" and (any(m.dtype is bool_ for m in metas) or bool in kinds):
            raise DTypeError(
                f"{self.name} of a bool, or of a bool tensor, is not defined; logical_not, "
                f"logical_xor or .to(flow.int64) may be meant"
            )
        if self.types == "int" and common.inexact:
            raise DTypeError(f"{self.name} is for integers and bools, got {common.name}")
        computing = bool_ if self.types == "logical" else common
        compute = [bool_ if rule == "bool" else computing for rule in self.args.values()]
        result = common.real if self.real else common
        if self.types == "first":
            result = metas[0].dtype
        return compute, bool_ if self.types in ("bool", "logical") else result

    def _infer(
        self, pattern: str, metas: tuple[TensorMeta, ...], kinds: tuple[type, ...]
    ) -> ScalarLaunch:
        if not all(isinstance(kind, type) and issubclass(kind, (int, float)) for kind in kinds):
            raise ArgumentTypeError(f"{self.name} takes bools, ints and floats, not {kinds}")
        count = pattern.count("t")
        into = metas[0] if len(metas) > count else None
        inputs = metas[-count:]
        compute, result = self.types_of(pattern, inputs, kinds)
        shape = Size(broadcast_shapes(*(m.shape for m in inputs)))
        if into is None:
            stride = None if self.c_order else result_stride(shape, inputs)
            out = TensorMeta.of(shape, result, inputs[0].device, stride)
        else:
            out = into
            self._fits(out, shape, result)
        tensor, number, inner, pack = iter(inputs), iter(kinds), [], ""
        for p, c in zip(pattern, compute, strict=True):
            if p == "t":
                inner.append(next(tensor).dtype.name)
            else:
                real = c.inexact or issubclass(next(number), float)
                inner.append("float64" if real else "int64")
                pack += "d" if real else "q"
        scalars = [n for n, p in zip(self.args, pattern, strict=True) if p == "s"]
        if config.debug >= 4:
            types = ", ".join(
                f"{n} {value} as {c.name}"
                for n, value, c in zip(self.args, inner, compute, strict=True)
            )
            say(4, f"kernel of {self.name}: out {out.dtype.name} = {self.expr}  of {types}")
        return ScalarLaunch(
            (out,), inputs, self.expr, tuple(self.args), tuple(inner),
            tuple(c.compute.name for c in compute),
            tuple(scalars), pack,
        )  # fmt: skip

    def _fits(self, out: TensorMeta, shape: Size, result: DType) -> None:
        if out.shape != shape:
            raise ShapeError(
                f"{self.name}: the result has shape {tuple(shape)}, and is to go into a tensor of "
                f"shape {tuple(out.shape)}"
            )
        if not can_cast(result, out.dtype):
            raise DTypeError(
                f"{self.name}: the result is {result.name} and cannot go into a {out.dtype.name} "
                f"tensor"
            )


class _Numbered:
    """`c` for a gradient function when some arguments were numbers."""

    def __init__(self, op: Elementwise, pattern: str, c: Node) -> None:
        count = pattern.count("s")
        numbers = dict(
            zip(
                [n for n, p in zip(op.args, pattern, strict=True) if p == "s"],
                c.attrs[count:],
                strict=True,
            )
        )
        tensor_names = [n for n, p in zip(op.args, pattern, strict=True) if p == "t"]
        values = dict(zip(op._saved_names(tensor_names), c.saved, strict=True))
        metas, needs = iter(c.metas), iter(c.needs)
        self.saved = tuple(values[s] if s in values else numbers.get(s) for s in op.saves)
        self.metas = tuple(next(metas) if p == "t" else None for p in pattern)
        self.needs = tuple(next(needs) if p == "t" else False for p in pattern)
        self.attrs = c.attrs
        self.out_metas = c.out_metas


def _apart(out: Tensor, t: Tensor) -> Tensor:
    """`t`, or a copy of it if it shares memory with `out` in some other arrangement."""
    if t._storage is None or t._storage is not out._storage or t is out:
        return t
    same = t._meta.stride == out._meta.stride and t._meta.shape == out._meta.shape
    if t._ref == out._ref and same:
        return t
    copy: Tensor = t.clone()
    return copy


class _InPlace:
    """An in-place call that is to be recorded: `finish` gives the tensor its new node."""

    def __init__(self, node: Node, saves_out: int | None) -> None:
        self.node = node
        self.saves_out = saves_out

    def finish(self, out: Tensor) -> None:
        if self.saves_out is not None:
            saved = list(self.node._saved or ())
            saved.insert(self.saves_out, alias(out, out._meta))
            versions = list(self.node.versions)
            versions.insert(self.saves_out, out.version)
            self.node._saved, self.node.versions = tuple(saved), tuple(versions)
        rebase(out, self.node)


def record_in_place(
    name: str, op: Operator, out: Tensor, tensors: tuple[Tensor, ...], attrs: Attrs
) -> _InPlace | None:
    """Before an in-place change of `out`: the node it will have, or None when nothing is recorded.

    AutogradError for a leaf that requires grad and for views of one, and where views could not
    learn of the change.
    """
    if not grad_enabled():
        return None
    if out._node is None and all(t._node is None for t in tensors):
        if out._storage is not None:
            check_base(name, out, recorded=False)
        return None
    if out._node is not None and out._node.is_leaf:
        raise AutogradError(
            f"{name}: a leaf tensor that requires grad cannot be changed in place; do it under "
            f"flow.no_grad(), or on a clone()"
        )
    if not out._meta.dtype.inexact:
        return None
    check_base(name, out, recorded=True)
    if op.grad is None:
        raise AutogradError(
            f"{name} has no gradient, so it cannot change a tensor that requires grad"
        )
    saved, versions, saves_out = [], [], None
    by_name = dict(zip(op.signature.inputs, tensors, strict=True))
    for i, s in enumerate(op.saves):
        if s == "out":
            saves_out = i
            continue
        t = by_name[s]
        if t is out or (t._storage is not None and t._storage is out._storage):
            old = t
            t = old.detach().clone()
            t._node = old._node  # what it was is what the gradient's gradient goes to
        saved.append(t)
        versions.append(t.version)
    node = Node(
        op,
        tuple(t._node for t in tensors),
        tuple(saved),
        tuple(versions),
        tuple(t._meta for t in tensors),
        attrs,
        (out._meta,),
    )
    return _InPlace(node, saves_out)


def _holomorphic(grad: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of a function whose derivative is `grad`'s factor: the factor's conjugate."""

    def conjugated(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
        return tuple(None if r is None else r.conj() for r in grad(c, g.conj()))

    return conjugated


def fronts_over(f: Elementwise) -> Callable[[Function], Function]:
    """Decorates a function that writes `f(x, ...)` into `x`: see `fronted`."""
    return lambda function: fronted(steady(function), partial(f.going_over, "t" * len(f.args)))


def _may_not_fit(number: object) -> bool:
    """Return True if a number is an int that a tensor's dtype may not hold."""
    return (type(number) is int and not 0 <= number <= 127) or type(number) is FrozenInt


def number_tensor(value: object, dtype: DType) -> Tensor:
    """A Python number as a 0-d tensor of the CPU."""
    return adopt_array(np.array(value, dtype.storage), dtype=dtype)


def elementwise(
    name: str,
    expr: str,
    *,
    args: str = "",
    types: str = "promote",
    saves: str = "",
    grad: Callable[..., object] | None = None,
    complex: bool | str = False,
    real: bool = False,
    complex_grad: Callable[..., object] | None = None,
    of_numbers: bool = False,
    minifloats: bool = False,
    several: bool | None = None,
    amp: str = "",
    names: str = "",
    c_order: bool = False,
    doc: str = "",
) -> Elementwise:
    """Declare an elementwise op.

    name    its name in messages and traces
    expr    Python expression over the arguments and the functions of `flowvm.ops.scalar.functions`
    args    "x, y" (default: as many of x, y, z as `expr` mentions); "mask: bool" is taken as true
            or false and has no say in the result type
    types   see the module
    saves   names among the arguments and "out" that `grad` gets as `c.saved` (a number stands where
            one was given); "x for y": x is needed for y's gradient alone, and not saved (None)
            where y is a number
    grad    `grad(c, g)`: one gradient or None for each argument, in flowvm ops.  Broadcast
            arguments: pass the gradient through `sum_to`.
    complex the expression for complex numbers, True if that is `expr`; see the module
    real    of complex numbers, gives real ones, and `grad` is the gradient as it is
    complex_grad  of complex numbers, where they have another gradient; that is taken as it is
    of_numbers  numbers alone are taken, too, as in PyTorch: the result is a tensor
    minifloats  floats of 8 bits are taken, too; else these are an error at the call
    amp     what autocast converts inputs to: "half", "full", "widest", or "" for as they are
    several `grad` takes several steps, so that of 16 bits it computes in float32; None: where
            `types` is "float"
    names   keywords of a call for the arguments; default: input, or input and other, else `args`
    c_order the result lies in C order, as PyTorch's does; else as its operands

    >>> cube = flow.elementwise("cube", "x * x * x", doc="x ** 3.")
    >>> cube(flow.tensor([1, 2, 3]))
    tensor([ 1,  8, 27])
    """
    if types not in TYPES:
        raise ArgumentTypeError(f"types is one of {', '.join(TYPES)}, not {types!r}")
    if not args:
        used = _names_in(expr, name)
        args = ", ".join([n for n in ("x", "y", "z") if n in used])
    rules = {}
    for part in args.split(","):
        arg, _, rule = part.partition(":")
        rules[arg.strip()] = rule.strip()
    saved = tuple(map(str.strip, saves.split(","))) if saves else ()
    keywords = tuple(names.split(", ")) if names else ()
    twin = None
    if complex:
        theirs = complex_grad or (grad if real or grad is None else _holomorphic(grad))
        text = complex if isinstance(complex, str) else expr
        twin = Elementwise(
            name,
            text,
            rules,
            types,
            saved,
            theirs,
            True,
            real,
            amp=amp,
            names=keywords,
            c_order=c_order,
        )
    if grad is not None and (types == "float" if several is None else several):
        grad = gradient_in_float32(grad)
    function = Elementwise(
        name, expr, rules, types, saved, grad, of_numbers=of_numbers, minifloats=minifloats,
        amp=amp, names=keywords, c_order=c_order,
    )  # fmt: skip
    function.twin = twin
    function.__doc__ = function.call.__doc__ = doc
    return function


def _named(name: str) -> list[Elementwise]:
    """Return the elementwise ops of this name, in the order of their declaration."""
    forms = [op.origin.form for op in _operators.values() if op.name == name and op.origin.form]
    return [form[0] for form in forms]


def declared(name: str, place: int) -> Elementwise:
    """The elementwise op that was declared by this name as number `place`, from 0; pickled ops are
    found so.

    ArgumentError where there is none: a process that unpickles must have declared it, too.

    >>> flow.ops.declare.elementwise.declared("tanh", 0) is flow.tanh
    True
    """
    ops = _named(name)
    if place >= len(ops):
        raise ArgumentError(f"no elementwise op {name!r} was declared in this process")
    return ops[place]


@cache
def _names_in(expr: str, name: str) -> tuple[str, ...]:
    """The arguments and functions that an expression mentions; SyntaxError, for file `name`."""
    return compile(expr, name, "eval").co_names
