"""Plain Python functions of words as LLVM's code, without Numba.

Numba takes half a second to import, and ten times as long for a function as LLVM does then.  A
session's first answer needs none of what it can do: its kernels are a walk and one operation.  The
VM and its calls are numbers, too.  So functions of words are translated here, each statement by
itself.

A word is an integer, a float, or the address of an array of integers or of a record, by the way it
comes about; several are a NamedTuple.  So are a function's parameters.  In a function that can be
translated there are: assignments to names, of several, and to items of arrays; `if`, `while`, `for`
over a `range`, `break`, `continue`,
`pass`, `return`; numbers, names, constants of modules and of classes; arithmetic but `**`,
comparisons, `in` with a tuple, `and`, `or`, `not`, conditional expressions; calls of `int`,
`float`, `bool`, `abs`, `min`, `max`, of functions that can be translated, and of an `Intrinsic`
with a `text`.  It returns a number, several, or nothing, which is 0.  Everything else is a
CompileError with the line.

Integers wrap at 64 bits, as hashes need.  A division by 0, an index outside, and a variable before
it has a value are undefined.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import struct
import textwrap
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, NamedTuple, NoReturn

import llvmlite.binding as llvm

from flowvm.compiler.native import Intrinsic
from flowvm.errors import CompileError

INT, FLOAT, ARRAY = "i64", "double", "ptr"  # kinds of words, as LLVM's types
C_TYPES = {
    "int64": "i64", "uint64": "i64", "int32": "i32", "uint32": "i32", "float64": "double",
    "void": "void",
}  # fmt: skip
_INTS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.LShift: "shl",
    ast.RShift: "ashr", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
}  # fmt: skip
_FLOATS = {
    ast.Add: "fadd contract", ast.Sub: "fsub contract", ast.Mult: "fmul contract",
    ast.Div: "fdiv contract",
}  # fmt: skip
_TESTS = {
    ast.Eq: ("icmp eq", "fcmp oeq"), ast.NotEq: ("icmp ne", "fcmp une"),
    ast.Lt: ("icmp slt", "fcmp olt"), ast.LtE: ("icmp sle", "fcmp ole"),
    ast.Gt: ("icmp sgt", "fcmp ogt"), ast.GtE: ("icmp sge", "fcmp oge"),
}  # fmt: skip


class Record(NamedTuple):
    """The kind of an address of words: of each field its name, and "f" for a float."""

    fields: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "ptr"


class Several(NamedTuple):
    """The kind of a NamedTuple of integers."""

    fields: tuple[str, ...]

    def __str__(self) -> str:
        return f"{{{', '.join([INT] * len(self.fields))}}}"


Kind = str | Record | Several


class Word(NamedTuple):
    """A value as LLVM names it, and its kind."""

    name: str
    kind: Kind = INT

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Translated(NamedTuple):
    """Modules of LLVM, the name of the C function, and those that are inlined: the first fields of
    `jit.Lowered`.
    """

    modules: list[object]
    entry: str
    inline: frozenset[str]


def lowered(function: Callable[..., object], signature: str) -> Translated:
    """Return the C function of a plain one.  `signature` is as in `jit.native`."""
    return lowered_for(function, *signature_of(signature))


def lowered_for(function: Callable[..., object], returns: str, takes: Sequence[Kind]) -> Translated:
    """Return the C function with LLVM's types; a parameter may be a Record."""
    program = _Program()
    parameters = [f"{kind} %a{k}" for k, kind in enumerate(takes)]
    words, lines = [], []
    for k, kind in enumerate(takes):
        words.append(Word(f"%a{k}", kind))
        if kind == "i32":
            lines.append(f"%w{k} = sext i32 %a{k} to i64")
            words[-1] = Word(f"%w{k}")
    entry = program.function(function, [word.kind for word in words])
    if entry.count != 1 or (FLOAT in (returns, entry.kind) and entry.kind != returns):
        raise CompileError(f"{function.__qualname__} returns {entry.returns}, and not {returns}")
    lines.append(f"%r = call {entry.returns} @{entry.name}({', '.join(map(str, words))})")
    value = "%r"
    if returns == "i32":
        lines.append("%low = trunc i64 %r to i32")
        value = "%low"
    lines.append("ret void" if returns == "void" else f"ret {returns} {value}")
    head = f"define {returns} @entry({', '.join(parameters)}) {{"
    text = "\n".join([*program.text(), head, *lines, "}"])
    inline = {f.name for f in program.functions.values() if f.inlined}
    return Translated([llvm.parse_assembly(text)], "entry", frozenset({entry.name, *inline}))


def source_of(function: FunctionType) -> tuple[str, int]:
    """Return a function's text, and the number of its first line.  Code that was written by a
    program has its text as `source`.
    """
    if (text := vars(function).get("source")) is not None:
        return str(text), 1
    lines, first = inspect.getsourcelines(function)
    return textwrap.dedent("".join(lines)), first


def signature_of(signature: str) -> tuple[str, list[str]]:
    """Return LLVM's types of a C function's result and parameters: "int32(int64, float64)"."""
    result, _, rest = signature.rstrip(")").partition("(")
    return C_TYPES[result], [C_TYPES[name.strip()] for name in rest.split(",") if name.strip()]


class _Program:
    """Functions that call one another."""

    def __init__(self) -> None:
        self.functions: dict[tuple[object, ...], _Function] = {}
        self.declared: dict[str, None] = {}  # C functions, as LLVM declares them

    def function(self, function: Callable[..., object], kinds: Sequence[Kind]) -> _Function:
        """Return a function for words of these kinds, which is translated at its first call."""
        key = (function, *kinds)
        if key not in self.functions:
            if not isinstance(function, FunctionType):
                raise CompileError(f"{function!r} is no plain function")
            self.functions[key] = one = _Function(self, function, kinds, len(self.functions))
            one.translate()
        return self.functions[key]

    def text(self) -> Iterator[str]:
        yield from self.declared
        for function in self.functions.values():
            yield from function.lines


class _Function:
    """A function and its translation: variables are places on the stack, which LLVM makes
    values.
    """

    def __init__(
        self, program: _Program, function: FunctionType, kinds: Sequence[Kind], number: int
    ) -> None:
        self.program = program
        self.scope = inspect.getclosurevars(function)
        self.name = f"{function.__name__}.{number}"
        self.inlined = bool(function.__globals__.get("INLINE_ALWAYS"))
        text, self.first = source_of(function)
        self.file = function.__code__.co_filename
        (node,) = ast.parse(text).body
        assert isinstance(node, ast.FunctionDef), "a plain function has a def statement"
        self.node = node
        self.parameters = [a.arg for a in node.args.args]
        if len(kinds) != len(self.parameters):
            self.refuse(node, f"{len(kinds)} arguments for {', '.join(self.parameters)}")
        self.arguments = dict(zip(self.parameters, kinds, strict=True))
        self.count = self.results()
        self.kind: Kind = INT  # of the only result
        self.returned = False
        if node.args.vararg or node.args.kwarg or node.args.kwonlyargs:
            self.refuse(node, "the parameters")
        self.entry: list[str] = []  # allocations
        self.body: list[str] = []
        self.lines: list[str] = []
        self.places: dict[str, Kind] = {}  # kinds of variables
        self.loops: list[tuple[str, str]] = []  # where `continue` and `break` go
        self.numbers = itertools.count()

    def results(self) -> int:
        """Return the number of results, which is that of every return statement."""
        counts = {
            len(n.value.elts) if isinstance(n.value, ast.Tuple) else 1
            for n in ast.walk(self.node)
            if isinstance(n, ast.Return)
        }
        if len(counts) > 1:
            self.refuse(self.node, "the numbers of results")
        return max(counts, default=1)

    @property
    def returns(self) -> str:
        """LLVM's type of the results."""
        return str(self.kind) if self.count == 1 else f"{{{', '.join([INT] * self.count)}}}"

    def translate(self) -> None:
        """Set the lines of the definition."""
        for name, kind in self.arguments.items():
            self.store(self.node, name, Word(f"%a.{name}", kind))
        self.block(self.node.body)
        self.put(f"ret {self.returns} zeroinitializer")
        parameters = ", ".join(f"{kind} %a.{name}" for name, kind in self.arguments.items())
        head = f"define internal {self.returns} @{self.name}({parameters}) {{"
        self.lines = [head, *self.entry, *self.body, "}"]

    def refuse(self, node: Any, what: str = "") -> NoReturn:
        message = what or f"`{ast.unparse(node)}`"
        line = self.first + getattr(node, "lineno", 1) - 1
        raise CompileError(f"{self.file}:{line}: {message} cannot be translated: no code of words")

    # --- text -------------------------------------------------------------------------------------

    def put(self, line: str) -> None:
        self.body.append(f"  {line}")

    def new(self, code: str, kind: Kind = INT) -> Word:
        name = f"%v{next(self.numbers)}"
        self.put(f"{name} = {code}")
        return Word(name, kind)

    def store(self, node: ast.AST, name: str, value: Word) -> None:
        """Set a variable, whose kind is that of its first value."""
        if name not in self.places:
            self.places[name] = value.kind
            self.entry.append(f"  %p.{name} = alloca {value.kind}, align 8")
        self.put(f"store {self.cast(node, value, self.places[name])}, ptr %p.{name}, align 8")

    def load(self, name: str) -> Word:
        kind = self.places[name]
        return self.new(f"load {kind}, ptr %p.{name}, align 8", kind)

    def labels(self, *names: str) -> list[str]:
        number = next(self.numbers)
        return [f"{name}{number}" for name in names]

    def go(self, label: str) -> None:
        """Leave for a label; what follows is reached from nowhere."""
        self.put(f"br label %{label}")
        self.start(*self.labels("never"))

    def start(self, label: str) -> None:
        self.body.append(f"{label}:")

    def enter(self, label: str) -> None:
        """Go on with a label, which others may leave for."""
        self.put(f"br label %{label}")
        self.start(label)

    # --- statements -------------------------------------------------------------------------------

    def block(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            if (way := _STATEMENTS.get(type(statement))) is None:
                self.refuse(statement)
            way(self, statement)

    def _nothing(self, node: ast.Pass) -> None:
        pass

    def _expression(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a text about the function
            self.several(node.value)

    def _assignment(self, node: ast.Assign) -> None:
        values = self.several(node.value)
        for target in node.targets:
            self.assign(target, values)

    def assign(self, target: ast.expr, values: Sequence[Word]) -> None:
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        if len(targets) != len(values):
            self.refuse(target)
        for one, value in zip(targets, values, strict=True):
            if isinstance(one, ast.Name):
                self.store(one, one.id, value)
            elif isinstance(one, ast.Subscript):
                place = self.item(one)
                self.put(f"store {self.cast(one, value, INT)}, ptr {place}, align 8")
            else:
                self.refuse(one)

    def _change(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name) and node.target.id in self.places:
            before = self.load(node.target.id)
            value = self.combined(node, node.op, before, self.value(node.value))
            self.store(node, node.target.id, value)
        elif isinstance(node.target, ast.Subscript):
            place = self.item(node.target)
            before = self.new(f"load i64, ptr {place}, align 8")
            value = self.combined(node, node.op, before, self.value(node.value))
            self.put(f"store {self.cast(node, value, INT)}, ptr {place}, align 8")
        else:
            self.refuse(node)

    def _return(self, node: ast.Return) -> None:
        values = [Word("0")] if node.value is None else self.several(node.value)
        if len(values) != self.count:
            self.refuse(node)
        if self.count == 1:
            if not self.returned:
                self.kind, self.returned = values[0].kind, True
            result = self.cast(node, values[0], self.kind).name
        else:
            result = "zeroinitializer"
            for k, value in enumerate(values):
                word = self.cast(node, value, INT)
                result = self.new(f"insertvalue {self.returns} {result}, {word}, {k}").name
        self.put(f"ret {self.returns} {result}")
        self.start(*self.labels("never"))

    def _if(self, node: ast.If) -> None:
        yes, no, end = self.labels("yes", "no", "end")
        self.branch(node.test, yes, no)
        self.start(yes)
        self.block(node.body)
        self.put(f"br label %{end}")
        self.start(no)
        self.block(node.orelse)
        self.enter(end)

    def _while(self, node: ast.While) -> None:
        again, inside, end = self.labels("again", "inside", "end")
        if node.orelse:
            self.refuse(node.orelse[0])
        self.enter(again)
        self.branch(node.test, inside, end)
        self.start(inside)
        self.loop(node.body, again, end)
        self.put(f"br label %{again}")
        self.start(end)

    def loop(self, body: list[ast.stmt], again: str, end: str) -> None:
        self.loops.append((again, end))
        self.block(body)
        self.loops.pop()

    def _for(self, node: ast.For) -> None:
        call, name = node.iter, node.target
        if not isinstance(call, ast.Call) or node.orelse or not isinstance(name, ast.Name):
            self.refuse(node.iter)
        if self.known(call.func) is not range or call.keywords:
            self.refuse(node.iter)
        values = [self.cast(node, self.value(a), INT).name for a in call.args]
        begin, end, step = (["0", *values, "1"] if len(values) == 1 else [*values, "1"])[:3]
        again, inside, more, end_label = self.labels("again", "inside", "more", "done")
        self.store(node, f".{again}", Word(begin))
        self.enter(again)
        k = self.load(f".{again}")
        on = self.new(f"icmp {'sgt' if step[0] == '-' else 'slt'} {k}, {end}").name
        if not step.lstrip("-").isdecimal():  # known where it runs
            down = self.new(f"icmp slt i64 {step}, 0").name
            back = self.new(f"icmp sgt {k}, {end}").name
            on = self.new(f"select i1 {down}, i1 {back}, i1 {on}").name
        self.put(f"br i1 {on}, label %{inside}, label %{end_label}")
        self.start(inside)
        self.store(node, name.id, k)
        self.loop(node.body, more, end_label)
        self.enter(more)
        self.store(node, f".{again}", self.new(f"add nsw {k}, {step}"))
        self.put(f"br label %{again}")
        self.start(end_label)

    def _continue(self, node: ast.Continue) -> None:
        self.go(self.loops[-1][0])

    def _break(self, node: ast.Break) -> None:
        self.go(self.loops[-1][1])

    # --- conditions -------------------------------------------------------------------------------

    def branch(self, test: ast.expr, yes: str, no: str) -> None:
        """Leave for one of two labels."""
        if isinstance(test, ast.BoolOp):
            for part in test.values[:-1]:
                (on,) = self.labels("on")
                both = isinstance(test.op, ast.And)
                self.branch(part, *((on, no) if both else (yes, on)))
                self.start(on)
            self.branch(test.values[-1], yes, no)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self.branch(test.operand, no, yes)
        else:
            self.put(f"br i1 {self.condition(test)}, label %{yes}, label %{no}")

    def condition(self, node: ast.expr) -> str:
        """The bit that an expression is, which is no `and`, `or` or `not`."""
        if not isinstance(node, ast.Compare):
            return self.truth(self.value(node))
        left = self.value(node.left)
        both = ""
        for op, other in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, (ast.In, ast.NotIn)):
                bit = self.among(node, left, other, isinstance(op, ast.NotIn))
            else:
                right = self.value(other)
                bit = self.compared(node, op, left, right)
                left = right
            both = self.new(f"and i1 {both}, {bit}").name if both else bit
        return both

    def truth(self, word: Word) -> str:
        """The bit that is 1 where a number is not 0."""
        if word.kind == FLOAT:
            return self.new(f"fcmp une {word}, 0.0").name
        if word.kind != INT:
            raise CompileError(f"{self.file}:{self.first}: the truth of an array")
        return self.new(f"icmp ne {word}, 0").name

    def compared(self, node: ast.AST, op: ast.cmpop, left: Word, right: Word) -> str:
        if type(op) not in _TESTS or not {left.kind, right.kind} <= {INT, FLOAT}:
            self.refuse(node)
        whole, real = _TESTS[type(op)]
        if FLOAT in (left.kind, right.kind):
            left, right = self.cast(node, left, FLOAT), self.cast(node, right, FLOAT)
            whole = real
        return self.new(f"{whole} {left}, {right.name}").name

    def among(self, node: ast.AST, word: Word, other: ast.expr, inverted: bool) -> str:
        if not isinstance(other, ast.Tuple):
            self.refuse(node)
        bit = "false"
        for one in other.elts:
            same = self.compared(node, ast.Eq(), word, self.value(one))
            bit = self.new(f"or i1 {bit}, {same}").name
        return self.new(f"xor i1 {bit}, true").name if inverted else bit

    # --- expressions ------------------------------------------------------------------------------

    def several(self, node: ast.expr) -> list[Word]:
        """The values of a tuple, of a call, or one."""
        if isinstance(node, ast.Tuple):
            return [self.value(n) for n in node.elts]
        if isinstance(node, ast.Call):
            return self.call(node)
        if isinstance(node, ast.IfExp) and isinstance(node.body, ast.Tuple):
            return self.choices(node, node.body, node.orelse)
        return [self.value(node)]

    def value(self, node: ast.expr) -> Word:
        """The word that an expression is."""
        if isinstance(node, ast.Name) and node.id in self.places:
            return self.load(node.id)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in self.places:
            return self.field(node, self.value(node.value))
        if isinstance(node, (ast.Constant, ast.Name, ast.Attribute)):
            return self.number(node, self.known(node))
        if isinstance(node, ast.BinOp):
            first = self.value(node.left)
            return self.combined(node, node.op, first, self.value(node.right))
        if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
            return self.signed(node, self.value(node.operand))
        if isinstance(node, ast.Compare):
            return self.new(f"zext i1 {self.condition(node)} to i64")
        if isinstance(node, ast.UnaryOp):
            return self.choice(node.operand, ast.Constant(0), ast.Constant(1))
        if isinstance(node, ast.IfExp):
            return self.choice(node.test, node.body, node.orelse)
        if isinstance(node, ast.BoolOp):
            return self.either(node)
        if isinstance(node, ast.Subscript):
            return self.new(f"load i64, ptr {self.item(node)}, align 8")
        if isinstance(node, ast.Call):
            results = self.call(node)
            if len(results) == 1:
                return results[0]
        return self.refuse(node)

    def number(self, node: ast.AST, value: object) -> Word:
        if isinstance(value, int):
            return Word(str(int(value)))
        if isinstance(value, float):
            (bits,) = struct.unpack("Q", struct.pack("d", value))
            return Word(f"0x{bits:016X}", FLOAT)
        return self.refuse(node)

    def cast(self, node: ast.AST, word: Word, kind: Kind) -> Word:
        """A word as one of a kind."""
        if word.kind == kind:
            return word
        if (word.kind, kind) != (INT, FLOAT):
            self.refuse(node)
        return self.new(f"sitofp {word} to double", FLOAT)

    def signed(self, node: ast.UnaryOp, word: Word) -> Word:
        if isinstance(node.op, ast.UAdd):
            return word
        if word.kind == FLOAT and isinstance(node.op, ast.USub):
            return self.new(f"fneg {word}", FLOAT)
        if word.kind != INT:
            self.refuse(node)
        if isinstance(node.op, ast.Invert):
            return self.new(f"xor {word}, -1")
        if word.name.isdecimal():
            return Word(f"-{word.name}")
        return self.new(f"sub i64 0, {word.name}")

    def choices(self, node: ast.IfExp, body: ast.Tuple, orelse: ast.expr) -> list[Word]:
        """The values of one of two tuples."""
        if not isinstance(orelse, ast.Tuple) or len(orelse.elts) != len(body.elts):
            self.refuse(node)
        yes, no, end = self.labels("yes", "no", "end")
        self.branch(node.test, yes, no)
        for label, parts in ((yes, body), (no, orelse)):
            self.start(label)
            for k, part in enumerate(parts.elts):
                self.store(part, f".{end}.{k}", self.value(part))
            self.put(f"br label %{end}")
        self.start(end)
        return [self.load(f".{end}.{k}") for k in range(len(body.elts))]

    def choice(self, test: ast.expr, body: ast.expr, orelse: ast.expr) -> Word:
        yes, no, end = self.labels("yes", "no", "end")
        self.branch(test, yes, no)
        for label, part in ((yes, body), (no, orelse)):
            self.start(label)
            self.store(part, f".{end}", self.value(part))
            self.put(f"br label %{end}")
        self.start(end)
        return self.load(f".{end}")

    def either(self, node: ast.BoolOp) -> Word:
        """The first value that decides, as Python has it."""
        (end,) = self.labels("end")
        for part in node.values[:-1]:
            (on,) = self.labels("on")
            value = self.value(part)
            self.store(part, f".{end}", value)
            ways = (on, end) if isinstance(node.op, ast.And) else (end, on)
            self.put(f"br i1 {self.truth(value)}, label %{ways[0]}, label %{ways[1]}")
            self.start(on)
        self.store(node, f".{end}", self.value(node.values[-1]))
        self.enter(end)
        return self.load(f".{end}")

    def combined(self, node: ast.AST, op: ast.operator, a: Word, b: Word) -> Word:
        if not {a.kind, b.kind} <= {INT, FLOAT}:
            self.refuse(node)
        if FLOAT in (a.kind, b.kind) or isinstance(op, ast.Div):
            if type(op) not in _FLOATS:
                self.refuse(node)
            a, b = self.cast(node, a, FLOAT), self.cast(node, b, FLOAT)
            return self.new(f"{_FLOATS[type(op)]} {a}, {b.name}", FLOAT)
        if type(op) in _INTS:
            return self.new(f"{_INTS[type(op)]} {a}, {b.name}")
        if not isinstance(op, (ast.FloorDiv, ast.Mod)):
            self.refuse(node)
        # rounded down: LLVM's is rounded to 0, one too many where the rest has the other sign
        rest = self.new(f"srem {a}, {b.name}")
        other = self.new(f"icmp slt {self.new(f'xor {rest}, {b.name}')}, 0")
        some = self.new(f"icmp ne {rest}, 0")
        down = self.new(f"and i1 {other.name}, {some.name}").name
        if isinstance(op, ast.Mod):
            more = self.new(f"select i1 {down}, {b}, i64 0")
            return self.new(f"add {rest}, {more.name}")
        whole = self.new(f"sdiv {a}, {b.name}")
        return self.new(f"sub {whole}, {self.new(f'zext i1 {down} to i64').name}")

    def field(self, node: ast.Attribute, whole: Word) -> Word:
        """A field of a record, or of several words."""
        if isinstance(whole.kind, Several) and node.attr in whole.kind.fields:
            at = whole.kind.fields.index(node.attr)
            return self.new(f"extractvalue {whole}, {at}")
        if isinstance(whole.kind, Record):
            for at, (name, kind) in enumerate(whole.kind.fields):
                if name == node.attr:
                    place = self.new(f"getelementptr i64, {whole}, i64 {at}").name
                    kind = FLOAT if kind == "f" else INT
                    return self.new(f"load {kind}, ptr {place}, align 8", kind)
        return self.refuse(node)

    def item(self, node: ast.Subscript) -> str:
        """The place of an item of an array."""
        array, at = self.value(node.value), self.value(node.slice)
        if (array.kind, at.kind) != (ARRAY, INT):
            self.refuse(node)
        return self.new(f"getelementptr i64, {array}, {at}").name

    def call(self, node: ast.Call) -> list[Word]:
        """The results of a call."""
        called, values = self.known(node.func), [self.value(a) for a in node.args]
        if isinstance(called, Intrinsic) and not node.keywords:
            return [self.written(node, called, values)]
        if isinstance(called, FunctionType):
            return self.called(node, called, values)
        if isinstance(called, type) and issubclass(called, tuple) and not node.keywords:
            return [self.joined(node, getattr(called, "_fields", ()), values)]
        kinds = {value.kind for value in values}
        if node.keywords or not kinds <= {INT, FLOAT}:
            self.refuse(node)
        if called is int and len(values) == 1 and kinds == {INT}:
            return values
        if called is float and len(values) == 1:
            return [self.cast(node, values[0], FLOAT)]
        if called is bool and len(values) == 1:
            return [self.new(f"zext i1 {self.truth(values[0])} to i64")]
        if called is abs and len(values) == 1 and kinds == {INT}:
            declared = "declare i64 @llvm.abs.i64(i64, i1)"
            self.program.declared[declared] = None
            return [self.new(f"call i64 @llvm.abs.i64({values[0]}, i1 true)")]
        if (called is min or called is max) and len(values) > 1 and len(kinds) == 1:
            op = ast.Lt() if called is max else ast.Gt()  # of equals the first, as Python has it
            first, *others = values
            for other in others:
                second = self.compared(node, op, first, other)
                first = self.new(f"select i1 {second}, {other}, {first}", first.kind)
            return [first]
        return self.refuse(node)

    def joined(self, node: ast.Call, fields: tuple[str, ...], values: list[Word]) -> Word:
        """A NamedTuple of words."""
        if len(fields) != len(values):
            self.refuse(node)
        kind = Several(fields)
        whole = Word("zeroinitializer", kind)
        for k, value in enumerate(values):
            whole = self.new(f"insertvalue {whole}, {self.cast(node, value, INT)}, {k}", kind)
        return whole

    def called(self, node: ast.Call, called: FunctionType, values: list[Word]) -> list[Word]:
        names = list(inspect.signature(called).parameters.values())
        by_name = {keyword.arg: self.value(keyword.value) for keyword in node.keywords}
        for parameter in names[len(values) :]:
            if parameter.name in by_name:
                values.append(by_name.pop(parameter.name))
            else:
                values.append(self.number(node, parameter.default))
        if by_name or len(values) != len(names):
            self.refuse(node)
        function = self.program.function(called, [value.kind for value in values])
        passed = ", ".join(map(str, values))
        result = self.new(f"call {function.returns} @{function.name}({passed})", function.kind)
        if function.count == 1:
            return [result]
        parts = range(function.count)
        return [self.new(f"extractvalue {function.returns} {result.name}, {k}") for k in parts]

    def known(self, node: ast.expr) -> Any:
        """The meaning of a name that is no variable, of an attribute of one, or of a constant."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Attribute):
            try:
                return getattr(self.known(node.value), node.attr)
            except AttributeError:
                self.refuse(node)
        if isinstance(node, ast.Name) and node.id not in self.places:
            for names in (self.scope.nonlocals, self.scope.globals, self.scope.builtins):
                if node.id in names:
                    return names[node.id]
        return self.refuse(node)

    def written(self, node: ast.Call, called: Intrinsic, values: list[Word]) -> Word:
        """The result of an intrinsic, whose text is put here."""
        if called.text is None:
            self.refuse(node)
        result = f"%v{next(self.numbers)}"
        text = called.text(result, *(value.name for value in values))
        for line in map(str.strip, text.strip().splitlines()):
            if line.startswith("declare "):
                self.program.declared[line] = None
            elif " = alloca " in line:  # once, and not for each turn of a loop
                self.entry.append(f"  {line}")
            else:
                self.put(line)
        return Word(result, called.gives)


_STATEMENTS: dict[type[ast.stmt], Callable[[_Function, Any], None]] = {
    ast.Pass: _Function._nothing,
    ast.Expr: _Function._expression,
    ast.Assign: _Function._assignment,
    ast.AugAssign: _Function._change,
    ast.Return: _Function._return,
    ast.If: _Function._if,
    ast.While: _Function._while,
    ast.For: _Function._for,
    ast.Continue: _Function._continue,
    ast.Break: _Function._break,
}
