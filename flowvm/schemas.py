"""Schemas of ops: the text "ns::name(Tensor x, int k=2, *, float? z=None) -> Tensor", its
parameters, and checks of arguments.  See `flowvm.library`.
"""

from __future__ import annotations

import ast
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.meta.device import Device
from flowvm.meta.dtype import DType

_NUMBERS: Final = {
    "int": (int,), "SymInt": (int,), "float": (float, int), "bool": (bool,), "str": (str,),
    "Scalar": (int, float, bool, complex), "ScalarType": (DType,), "Device": (Device, str),
    "Tensor": (Tensor,),
}  # fmt: skip
# the schema type of an annotation, by its text without spaces
_ANNOTATED: Final = {
    Tensor: "Tensor", int: "SymInt", float: "float", bool: "bool", str: "str", DType: "ScalarType",
    Device: "Device",
}  # fmt: skip
_PARAMETER = re.compile(
    r"(?P<kind>\w+)(?P<alias>\([a-z|*]+!?\))?(?P<list>\[\d*\])?(?P<maybe>\?)?\s+(?P<name>\w+)"
    r"(?:\s*=\s*(?P<default>.+))?$"
)


class Parameter(NamedTuple):
    """A parameter of a schema."""

    name: str
    kind: str  # "Tensor", "int", ...
    several: bool = False
    optional: bool = False
    written: bool = False
    keyword: bool = False
    default: object = inspect.Parameter.empty

    @property
    def type_name(self) -> str:
        """Return the name of the type in messages and schemas."""
        mark = "(a!)" if self.written else ""
        return f"{self.kind}{mark}{'[]' * self.several}{'?' * self.optional}"

    def takes(self, value: object) -> bool:
        """Return True if the parameter accepts the value."""
        if value is None:
            return self.optional
        if not self.several:
            return self._is_one(value)
        if self.kind in ("int", "SymInt") and self._is_one(value):
            return True  # one for each
        return isinstance(value, (list, tuple)) and all(map(self._is_one, value))

    def _is_one(self, value: object) -> bool:
        if self.kind in ("int", "SymInt", "float") and isinstance(value, bool):
            return self.kind == "float"
        return isinstance(value, _NUMBERS.get(self.kind, (object,)))


class Schema(NamedTuple):
    """A schema: `str` of it is its text."""

    name: str
    parameters: tuple[Parameter, ...]
    returns: str

    def __str__(self) -> str:
        return self.name + self.signature()

    def signature(self) -> str:
        """The text behind the op's name."""
        parts, keyword = [], False
        for p in self.parameters:
            if p.keyword and not keyword:
                parts.append("*")
                keyword = True
            empty = p.default is inspect.Parameter.empty
            shown = f'"{p.default}"' if isinstance(p.default, str) else repr(p.default)
            parts.append(f"{p.type_name} {p.name}" + ("" if empty else f"={shown}"))
        return f"({', '.join(parts)}) -> {self.returns}"

    def arguments(self, args: Sequence[object], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the value of each parameter; ArgumentTypeError if one is missing or does not
        fit.
        """
        places = [p for p in self.parameters if not p.keyword]
        if len(args) > len(places):
            raise ArgumentTypeError(
                f"{self.name}() expected at most {len(places)} positional arguments, got "
                f"{len(args)}; its schema is {self}"
            )
        values = {p.name: value for p, value in zip(places, args, strict=False)}
        for name, value in kwargs.items():
            if name in values or all(p.name != name for p in self.parameters):
                why = "is given twice" if name in values else "is unknown"
                raise ArgumentTypeError(
                    f"{self.name}(): argument {name!r} {why}; its schema is {self}"
                )
            values[name] = value
        for p in self.parameters:
            if p.name not in values:
                if p.default is inspect.Parameter.empty:
                    raise ArgumentTypeError(
                        f"{self.name}() is missing value for argument {p.name!r}; its schema is "
                        f"{self}"
                    )
                values[p.name] = p.default
            elif not p.takes(values[p.name]):
                raise ArgumentTypeError(
                    f"{self.name}(): expected a value of type {p.type_name!r} for argument "
                    f"{p.name!r}, got {type(values[p.name]).__name__}; its schema is {self}"
                )
        return {p.name: values[p.name] for p in self.parameters}


def parsed(text: str) -> Schema:
    """Return the schema of a text; ArgumentError if the text is no schema."""
    matched = re.fullmatch(r"\s*([\w:.]+)\s*\((.*)\)\s*->\s*(.+?)\s*", text, re.DOTALL)
    if matched is None:
        raise ArgumentError(
            f"{text!r} is not a schema; one is 'name(Tensor x, int k=2, *, float? z=None) -> "
            "Tensor'"
        )
    name, inside, returns = matched.groups()
    parameters, keyword = [], False
    for part in _parts(inside):
        if part == "*":
            keyword = True
            continue
        match = _PARAMETER.match(part)
        if match is None:
            raise ArgumentError(f"{text!r} is not a schema: {part!r} is not a parameter")
        default = match["default"]
        parameters.append(Parameter(
            match["name"], match["kind"], match["list"] is not None, match["maybe"] is not None,
            "!" in (match["alias"] or ""), keyword,
            inspect.Parameter.empty if default is None else _literal(default),
        ))  # fmt: skip
    return Schema(name, tuple(parameters), returns)


def _parts(text: str) -> Iterable[str]:
    """Yield the texts between commas that are outside of brackets."""
    depth, part = 0, ""
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            yield part.strip()
            part = ""
        else:
            part += letter
    if part.strip():
        yield part.strip()


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def infer_schema(
    prototype_function: Callable[..., object], /, *, mutates_args: Any, op_name: str | None = None
) -> str:
    """Return the schema of a function with annotations; `mutates_args` are the names of tensors
    that it changes.

    ArgumentError for a parameter without annotation, or of a type that no schema has.

    >>> def scaled(x: flow.Tensor, by: float = 2.0) -> flow.Tensor:
    ...     return x * by
    >>> flow.library.infer_schema(scaled, mutates_args=())
    '(Tensor x, float by=2.0) -> Tensor'
    """
    signature = inspect.signature(prototype_function)
    hints = typing.get_type_hints(prototype_function)
    if isinstance(mutates_args, str) and mutates_args != "unknown":
        raise ArgumentError(
            f'mutates_args is a sequence of names or "unknown", got {mutates_args!r}'
        )
    unknown = set() if mutates_args == "unknown" else set(mutates_args) - set(signature.parameters)
    if unknown:
        raise ArgumentError(f"infer_schema: mutates_args has {unknown}, which {signature} lacks")
    parameters = []
    for p in signature.parameters.values():
        if p.name not in hints:
            raise ArgumentError(
                f"infer_schema: parameter {p.name} must have a type annotation, got {signature}"
            )
        kind, several, optional = _annotated(hints[p.name], p.name)
        changed = kind == "Tensor" and (mutates_args == "unknown" or p.name in mutates_args)
        if p.name in mutates_args and mutates_args != "unknown" and not changed:
            raise ArgumentError(f"infer_schema: {p.name} is not a tensor, and cannot be changed")
        keyword = p.kind is inspect.Parameter.KEYWORD_ONLY
        parameters.append(Parameter(p.name, kind, several, optional, changed, keyword, p.default))
    if "return" not in hints:
        raise ArgumentError(
            f"infer_schema: no return type annotation was provided, got {signature}"
        )
    schema = Schema(op_name or "", tuple(parameters), _returned(hints["return"]))
    return str(schema)


def _annotated(hint: object, name: str) -> tuple[str, bool, bool]:
    """Return (kind, is it several, may it be None) of an annotation."""
    args = typing.get_args(hint)
    if type(None) in args:
        rest = tuple(a for a in args if a is not type(None))
        kind, several, _ = _annotated(rest[0] if len(rest) == 1 else frozenset(rest), name)
        return kind, several, True
    if typing.get_origin(hint) in (list, Sequence):
        return _annotated(args[0], name)[0], True, False
    if isinstance(hint, frozenset) or typing.get_origin(hint) is not None:
        args = tuple(hint) if isinstance(hint, frozenset) else args
        if {int, float, bool} >= set(args):
            return "Scalar", False, False
    elif hint in _ANNOTATED:
        return _ANNOTATED[hint], False, False
    raise ArgumentError(
        f"infer_schema: parameter {name} has the unsupported type {hint}; a Tensor, int, float, "
        f"bool, str, dtype, device, and lists of them and Optional"
    )


def _returned(hint: Any) -> str:
    if hint is type(None) or hint is None:
        return "()"
    if typing.get_origin(hint) is tuple:
        return f"({', '.join(map(_returned, typing.get_args(hint)))})"
    kind, several, _ = _annotated(hint, "return")
    return kind + "[]" * several
