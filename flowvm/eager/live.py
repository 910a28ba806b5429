"""Numbers that a captured graph finds anew for each replay: learning rates, step counts, seeds.

While a graph is captured, Python code computes with them as with the numbers that they stand for,
and what it computes is live again: `lr * (1 - decay) ** step` is remembered as that expression.
Where code decides by one (`if step > 10`), the outcome is a guard: a replay for which it would be
another one is not made.

A live number is a Leaf (a place where Python keeps a number: `group["lr"]`) or a function of others
and of plain numbers.  Equal expressions of a capture are one object.  So they can be printed,
stored, and written out as the Python code that finds all numbers of a replay at once
(`live_lines`).

They are neither floats nor ints, on purpose: C code (`2.0 * n`) takes the value out of a subclass
of those and forgets where it came from.  But `isinstance` says that they are, so whatever checks
its numbers takes them.  Where a plain number is demanded (`float()`, `math.sqrt`, a size, an
index), it is `fixed`: the number of now, with a guard that it stays that.
Outside a capture there are none: everything here is made by `flowvm.graph`.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Iterable
from struct import pack, unpack
from types import CodeType
from typing import Any, NamedTuple, Protocol

import numpy as np

from flowvm.errors import CaptureError

NO_ANSWER = (ArithmeticError, ValueError, TypeError)  # of an expression of numbers

# name -> (the function, how it is written, how tightly that binds: 1 a comparison .. 9 a call)
FUNCTIONS: dict[str, tuple[Callable[..., object], str, int]] = {
    "lt": (operator.lt, "{} < {}", 1),
    "le": (operator.le, "{} <= {}", 1),
    "gt": (operator.gt, "{} > {}", 1),
    "ge": (operator.ge, "{} >= {}", 1),
    "eq": (operator.eq, "{} == {}", 1),
    "ne": (operator.ne, "{} != {}", 1),
    "add": (operator.add, "{} + {}", 2),
    "sub": (operator.sub, "{} - {}", 2),
    "mul": (operator.mul, "{} * {}", 3),
    "truediv": (operator.truediv, "{} / {}", 3),
    "floordiv": (operator.floordiv, "{} // {}", 3),
    "mod": (operator.mod, "{} % {}", 3),
    "neg": (operator.neg, "-{}", 4),
    "pos": (operator.pos, "+{}", 4),
    "pow": (operator.pow, "{} ** {}", 5),
    "abs": (abs, "abs({})", 9),
    "round": (round, "round({})", 9),
    "ceil": (math.ceil, "ceil({})", 9),
    "floor": (math.floor, "floor({})", 9),
    "trunc": (math.trunc, "trunc({})", 9),
    "bool": (bool, "bool({})", 9),
    "signed": (lambda value: math.copysign(1.0, value), "signed({})", 9),
    "is_float": (lambda value: value.__class__ is float, "{}.__class__ is float", 1),
    "single": (lambda value: unpack("f", pack("f", value))[0], "single({})", 9),
}


class Condition(Protocol):
    """A condition of a replay: code went by something that may be another thing then."""

    def holds(self) -> bool:
        """Return True if it is as it was at the capture."""

    def difference(self) -> str:
        """Return the change in words, where it does not hold."""

    def lines(self, own: dict[str, Any], known: dict[int, str]) -> list[str]:
        """Lines of Python that return MISS where it does not hold; `own` and `known` are those of
        `live_lines`.
        """


class Decisions(list[Condition]):
    """The conditions of one capture, and its expressions, each of which is made once.

    open  whether code is captured still: afterwards nothing that is asked is a guard
    """

    def __init__(self, guards: Iterable[Condition] = ()) -> None:
        super().__init__(guards)
        self.open = True
        self.known: dict[object, Live] = {}
        self.places: dict[
            int, tuple[CodeType | None, int]
        ] = {}  # of each question: the user's expression
        self.user: Callable[[], tuple[CodeType | None, int]] = lambda: (
            None,
            0,
        )  # which that is now


class Live:
    """A number that is found anew for each replay: `find()` gives that of the present one.

    function   a name of FUNCTIONS; operands: live and plain numbers
    guards     takes every decision that Python code makes by it
    """

    __slots__ = ("function", "guards", "kind_kept", "operands")

    def __init__(self, function: str, operands: tuple[object, ...], guards: Decisions) -> None:
        self.function, self.operands, self.guards = function, operands, guards
        self.kind_kept = False  # whether a guard says that it is a float, or none

    def find(self) -> Any:
        """The number of the present replay."""
        return FUNCTIONS[self.function][0](*map(now, self.operands))

    __call__ = find

    @property
    def drawn(self) -> bool:
        """True if the value comes from a draw of a random generator."""
        return any(isinstance(v, Live) and v.drawn for v in self.operands)

    # `isinstance` asks for it, everywhere a number is taken; `type()` says the truth
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        if self.guards.open:
            self._keep_kind()
        return _LiveFloat if isinstance(self.find(), float) else _LiveInt

    def _computed(self, function: str, *values: object) -> object:
        if not all(isinstance(v, (Live, int, float)) for v in values):
            if not all(isinstance(v, numbers.Number) for v in values):
                return NotImplemented
            return FUNCTIONS[function][0](*map(plain_number, values))  # complex, NumPy's, fractions
        marks = [id(v) if isinstance(v, Live) else (type(v), repr(v)) for v in values]
        key = (function, *marks)
        known = self.guards.known.get(key)
        if known is None:
            known = self.guards.known[key] = Live(function, values, self.guards)
        return known

    def _decided(self, function: str, *values: object) -> object:
        value = self._computed(function, *values)
        if not isinstance(value, Live):
            return value
        outcome = value.find()
        if self.guards.open and id(value) not in self.guards.places:
            self.guards.append(Decision(value, outcome))
            self.guards.places[id(value)] = self.guards.user()
        return outcome

    def fixed(self) -> Any:
        """Return the plain number of now.  A replay for which it would be another one is not made.

        CaptureError for what is drawn, which is another number each time.
        """
        value = self.find()
        if not self.guards.open:
            return value
        if self.drawn:
            raise CaptureError(
                f"a draw of a random generator ({self}) is another number in each replay, and "
                f"this code needs a plain one: compute with tensors"
            )
        self._keep_kind()
        if value != value:
            self._decided("ne", self, self)
        else:
            self._decided("eq", self, value)
            if value == 0 and isinstance(value, float):
                self._decided("signed", self)
        return value

    def _keep_kind(self) -> None:
        """Guard whether it is a float or an int, by which code chooses dtypes and kernels."""
        if self.kind_kept or self.drawn:
            return
        self.kind_kept = True
        for operand in self.operands:
            if isinstance(operand, Live):
                operand._keep_kind()
        if self.function in ("", "pow"):  # 2 ** -1 is a float
            self._decided("is_float", self)

    def __float__(self) -> float:
        return float(self.fixed())

    def __int__(self) -> int:
        return int(self.fixed())

    def __index__(self) -> int:
        return operator.index(self.fixed())

    def __complex__(self) -> complex:
        return complex(self.fixed())

    def __array__(self, dtype: Any = None, copy: object = None) -> Any:
        return np.asarray(self.fixed(), dtype)

    def __array_ufunc__(
        self, ufunc: object, method: str, *inputs: object, **options: object
    ) -> object:
        return getattr(ufunc, method)(*map(plain_number, inputs), **options)

    def __getattr__(self, name: str) -> Any:
        """Look up what numbers have (`is_integer`, `bit_length`) in the number of now."""
        if name.startswith("_") or not (hasattr(float, name) or hasattr(int, name)):
            raise AttributeError(f"a number has no attribute {name!r}")
        return getattr(self.fixed(), name)

    def __copy__(self) -> Live:
        return self

    def __deepcopy__(self, memo: object) -> Live:
        return self

    def __repr__(self) -> str:
        return self._written(0)

    def _written(self, around: int) -> str:
        """The expression, in parentheses where what is around it binds more tightly."""
        _, form, tight = FUNCTIONS[self.function]
        if tight == 9:
            return form.format(", ".join(_written(v, 0) for v in self.operands))
        parts = [_written(v, tight + (k == (0 if tight == 5 else 1)))
                 for k, v in enumerate(self.operands)]  # fmt: skip
        text = form.format(*parts)
        return f"({text})" if tight < around else text

    def __format__(self, spec: str) -> str:
        return format(self.find(), spec) if spec else repr(self)

    def __hash__(self) -> int:
        return hash(self.fixed()) if self.guards.open and not self.drawn else id(self)


class _LiveFloat(float):
    """The class that a live number has for `isinstance` while it is a float."""


class _LiveInt(int):
    """The class that a live number has for `isinstance` while it is an int."""


class Leaf(Live):
    """A number that Python keeps: `owner[names[0]][names[1]]...`.

    key     says which one, in plain values: ("option", optimizer, group, "lr"); () for none
    others  owners of numbers that were equal at the capture, so that one expression serves for
            all; see `Alike`
    held    what it stands for while code is captured that puts live numbers in its place
    """

    __slots__ = ("held", "key", "names", "others", "owner", "text")

    def __init__(
        self,
        owner: Any,
        names: tuple[Any, ...],
        guards: Decisions | None = None,
        key: tuple[object, ...] = (),
        text: str = "",
    ) -> None:
        super().__init__("", (), Decisions() if guards is None else guards)
        self.owner, self.names, self.key = owner, names, key
        self.text = text or ".".join(map(str, names))
        self.others: list[Any] = []
        self.held = self.find()

    def find(self) -> object:
        """The number of the present replay."""
        value = self.owner
        for name in self.names:
            value = value[name]
        return self.held if isinstance(value, Live) else value

    __call__ = find

    @property
    def drawn(self) -> bool:
        """True if the value is a draw of a random generator."""
        return self.key[:1] == ("draw",)

    def _written(self, around: int) -> str:
        return self.text


def single(value: object) -> Any:
    """A number rounded to float32, live if it is."""
    if isinstance(value, Live):
        return value._computed("single", value)
    return FUNCTIONS["single"][0](value)


def now(value: object) -> Any:
    """The number itself: of a live one, that of the present replay."""
    return value.find() if isinstance(value, Live) else value


def plain_number(value: object) -> object:
    """A number as a plain one: of a live one that of now, which is then `fixed`."""
    return value.fixed() if isinstance(value, Live) else value


def _written(value: object, around: int) -> str:
    if isinstance(value, Live):
        return value._written(around)
    text = repr(value)
    return f"({text})" if text.startswith("-") and around > 4 else text


def _binary(function: str) -> tuple[Callable[..., object], Callable[..., object]]:
    def method(self: Live, other: object) -> object:
        return self._computed(function, self, other)

    def reflected(self: Live, other: object) -> object:
        return self._computed(function, other, self)

    return method, reflected


def _whole(function: str) -> tuple[Callable[..., object], Callable[..., object]]:
    """Methods of an operation on ints that is for sizes and masks: of numbers that are fixed."""
    of = getattr(operator, function)

    def method(self: Live, other: object) -> object:
        return of(self.fixed(), plain_number(other))

    def reflected(self: Live, other: object) -> object:
        return of(plain_number(other), self.fixed())

    return method, reflected


def _unary(function: str) -> Callable[..., object]:
    return lambda self, *more: self._computed(function, self, *more)


def _decision(function: str) -> Callable[..., object]:
    return lambda self, *others: self._decided(function, self, *others)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _method, _reflected = _binary(_name)
    setattr(Live, f"__{_name}__", _method)
    setattr(Live, f"__r{_name}__", _reflected)
for _name in ("lshift", "rshift", "and_", "or_", "xor"):
    _method, _reflected = _whole(_name)
    setattr(Live, f"__{_name.strip('_')}__", _method)
    setattr(Live, f"__r{_name.strip('_')}__", _reflected)
for _name in ("neg", "pos", "abs", "round", "ceil", "floor", "trunc"):
    setattr(Live, f"__{_name}__", _unary(_name))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Live, f"__{_name}__", _decision(_name))
Live.__bool__ = _decision("bool")  # type: ignore[attr-defined]
setattr(Live, "__invert__", lambda self: ~self.fixed())  # noqa: B010 - as those above
setattr(Live, "__divmod__", lambda self, other: (self // other, self % other))  # noqa: B010
setattr(Live, "__rdivmod__", lambda self, other: (other // self, other % self))  # noqa: B010


# --- as Python code -----------------------------------------------------------------------------


def live_lines(
    values: Iterable[object], own: dict[str, object], known: dict[int, str] | None = None
) -> tuple[list[str], list[str]]:
    """Lines of Python that find these numbers, each expression once, and what they are then called.

    `own` gets what the lines name.  `known` has the names of live numbers that are found already,
    by their ids, and gets those of the new ones.
    """
    names = {} if known is None else known
    lines: list[str] = []

    def named(value: object) -> str:
        if not isinstance(value, Live):
            own[f"c{len(own)}"] = value  # not its text: inf and numpy's numbers have none
            return f"c{len(own) - 1}"
        if id(value) not in names:
            if isinstance(value, Leaf):
                place = f"c{len(own)}"
                own[place] = value.owner
                text = place + "".join(f"[{name!r}]" for name in value.names)
            else:
                parts = [named(v) for v in value.operands]
                function, form, tight = FUNCTIONS[value.function]
                if tight == 9:
                    parts = [", ".join(parts)]
                    own[form.split("(")[0]] = function
                text = form.format(*parts)
            names[id(value)] = f"v{len(names)}"
            lines.append(f"v{len(names) - 1} = {text}")
        return names[id(value)]

    value_names = [named(value) for value in values]
    return lines, value_names


# --- conditions by numbers ----------------------------------------------------------------------


class Decision(NamedTuple):
    """A decision that code made by a live number."""

    question: Live
    outcome: object

    def holds(self) -> bool:
        """Return True if the outcome is the same now.

        Return False if there is none, such as for a division by 0: then the code runs again, and
        raises its own error.
        """
        try:
            return bool(self.question.find() == self.outcome)
        except NO_ANSWER:
            return False

    def difference(self) -> str:
        """See Condition."""
        try:
            now = str(self.question.find())
        except NO_ANSWER as error:
            now = f"{type(error).__name__}: {error}"
        return f"decision `{self.question!r}` {self.outcome} -> {now}"

    def lines(self, own: dict[str, Any], known: dict[int, str]) -> list[str]:
        """See Condition."""
        lines, (name,) = live_lines([self.question], own, known)
        outcome = f"outcome{len(own)}"
        own[outcome] = self.outcome
        return [*lines, f"if {name} != {outcome}: return MISS"]


class Alike(NamedTuple):
    """The equality of a number with those of its `others`."""

    leaf: Leaf

    def holds(self) -> bool:
        """Return True if the numbers are still equal."""
        (name,) = self.leaf.names
        value = self.leaf.owner[name]
        return isinstance(value, Live) or all(other[name] == value for other in self.leaf.others)

    def difference(self) -> str:
        """See Condition."""
        return f"{self.leaf.text} is not the same for all parameters any more"

    def lines(self, own: dict[str, Any], known: dict[int, str]) -> list[str]:
        """See Condition."""
        lines, (name,) = live_lines([self.leaf], own, known)
        others = f"others{len(own)}"
        own[others] = self.leaf.others
        return [
            *lines,
            f"for other in {others}:",
            f"    if other[{self.leaf.names[0]!r}] != {name}: return MISS",
        ]


# --- in a call ----------------------------------------------------------------------------------


class Frozen:
    """A live number as the plain number that it is now, on its way into an instruction."""

    live: Live


class FrozenInt(int, Frozen):
    """See Frozen."""


class FrozenFloat(float, Frozen):
    """See Frozen."""


def freeze(value: Live | Frozen) -> object:
    """The plain number that `value` is now, which remembers `value`."""
    if isinstance(value, Frozen):
        return value
    plain = value.find()
    if value.guards.open and not isinstance(plain, float):  # a float's word takes an int, too
        value._keep_kind()
    frozen = FrozenFloat(plain) if isinstance(plain, float) else FrozenInt(plain)
    frozen.live = value
    return frozen


def plain_type(value: object) -> type:
    """int or float for a frozen number, else its type."""
    if isinstance(value, Frozen):
        return float if isinstance(value, float) else int
    return type(value)
