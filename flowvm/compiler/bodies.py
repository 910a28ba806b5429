"""Kernel bodies as LLVM's code, without Numba: `words` with numbers of every dtype, and arrays.

Numba types and lowers a body of two hundred lines in half a second, as long as LLVM takes for it.
The bodies of a module whose `WORDS_ONLY` is true are translated here in a tenth of that, and LLVM
has less to take apart.  Code comes out that means the same, to the last bit: kinds of numbers,
conversions, the order of operations and what LLVM may contract or reorder are Numba's.

Beside what `words` has there are

    numbers      of NumPy's dtypes but float16 and complex; two of different kinds meet in int64, or
                 in float64, as Numba has it; a dtype called converts, `real = x.dtype.type`, too
    arrays       of one dimension, dense: `len`, items, slices without a step, `view`, `dtype`,
                 `itemsize`, `array_in`
    tuples       of all of these
    functions    plain ones, each translated for the kinds of its arguments; an `Intrinsic` with a
                 `build`, an `Overloaded`; they may be arguments, or come from a closure
    conditions   that a closure's constants decide, of which one branch is translated

A variable has one kind in all branches and loops; another one from a statement outside of them on.
An index counts from the front: negative ones are
undefined, and as literals a CompileError, like all that is not said above.
"""

from __future__ import annotations

import ast
import inspect
import struct
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from flowvm.compiler.native import ARRAYS, DTYPE, MEMORY, Intrinsic, Overloaded
from flowvm.compiler.words import _FLOATS, _INTS, _TESTS, FLOAT, INT, Record, Word, _Function
from flowvm.compiler.words import _STATEMENTS as _OF_WORDS
from flowvm.compiler.words import _Program as _OfWords
from flowvm.errors import CompileError

SINGLE, BOOL = "float", "i1"
MOST_PLACES = 16  # digits of a float in LLVM's text


class Unsigned(NamedTuple):
    """The kind of an integer without a sign."""

    bits: int

    def __str__(self) -> str:
        return f"i{self.bits}"


class Line(NamedTuple):
    """The kind of an array: a pointer and a length."""

    dtype: str


class Tuple(NamedTuple):
    """The kind of a tuple."""

    kinds: tuple[Any, ...]


class Known(NamedTuple):
    """The kind of what is known before the program runs: a dtype, a function, None; and itself."""

    value: Any

    @property
    def kind(self) -> Known:
        return self


class Group(NamedTuple):
    """Several values that are one: an array, or a tuple."""

    parts: tuple[Any, ...]
    kind: Line | Tuple


Value = Word | Group | Known

KINDS: dict[str, Any] = {
    "bool": BOOL, "int8": "i8", "int16": "i16", "int32": "i32", "int64": INT,
    "uint8": Unsigned(8), "uint16": Unsigned(16), "uint32": Unsigned(32), "uint64": Unsigned(64),
    "float32": SINGLE, "float64": FLOAT,
}  # fmt: skip
DTYPES = {kind: name for name, kind in KINDS.items()}
_REALS = (SINGLE, FLOAT)
_BUILTINS = (len, min, max, abs, int, float, bool)


def bits_of(kind: Any) -> int:
    """Return the number of bits of a kind of numbers in a register."""
    return {SINGLE: 32, FLOAT: 64}.get(kind) or int(str(kind)[1:])


def leaves_of(value: Value) -> Iterator[Word]:
    """Yield the words that a value is passed as."""
    if isinstance(value, Group):
        for part in value.parts:
            yield from leaves_of(part)
    elif isinstance(value, Word):
        yield value


def leaf_kinds(kind: Any) -> list[str]:
    """Return LLVM's types of the words that a value of this kind is passed as."""
    if isinstance(kind, Line):
        return ["ptr", INT]
    if isinstance(kind, Tuple):
        return [leaf for one in kind.kinds for leaf in leaf_kinds(one)]
    return [] if isinstance(kind, Known) else [str(kind)]


def of_leaves(kind: Any, leaves: Iterator[str]) -> Value:
    """Return the value of a kind whose words have these names."""
    if isinstance(kind, Line):
        return Group((Word(next(leaves), "ptr"), Word(next(leaves))), kind)
    if isinstance(kind, Tuple):
        return Group(tuple(of_leaves(one, leaves) for one in kind.kinds), kind)
    return kind if isinstance(kind, Known) else Word(next(leaves), kind)


class Program(_OfWords):
    """Functions that call one another.  `reassociate`: LLVM may reorder the sums of the first."""

    functions: dict[tuple[Any, ...], _Body]  # type: ignore[assignment]

    def __init__(self, reassociate: bool = False) -> None:
        super().__init__()
        self.reassociate = reassociate
        self.built: dict[tuple[Any, ...], tuple[str, Any, str]] = {}  # of intrinsics
        self.module = ir.Module()  # of intrinsics, and of what they call

    def function(self, function: Callable[..., Any], kinds: Sequence[Any]) -> _Body:
        key = (function, *kinds)
        if key not in self.functions:
            if not isinstance(function, FunctionType):
                raise CompileError(f"{function!r} is no plain function")
            reorders = bool(function.__globals__.get("REASSOCIATE"))
            if not self.functions:
                reorders = self.reassociate
            number = len(self.functions)
            self.functions[key] = one = _Body(self, function, kinds, number, reorders)
            one.translate()
        return self.functions[key]

    def text(self) -> Iterator[str]:
        yield from super().text()
        yield from (head for _, _, head in self.built.values())

    def modules(self, text: str) -> list[Any]:
        """Return LLVM's modules of the program, whose entry is `text`."""
        own = llvm.parse_assembly("\n".join([*self.text(), text]))
        return [own, llvm.parse_assembly(str(self.module))] if self.built else [own]

    def inlined(self) -> Iterator[str]:
        """Yield the names of functions that are inlined whatever their size."""
        yield next(iter(self.functions.values())).name  # the entry only passes on
        yield from (one.name for one in self.functions.values() if one.inlined)
        yield from (name for name, _, _ in self.built.values())

    def intrinsic(self, of: Intrinsic, kinds: Sequence[Any], flags: str) -> tuple[str, Any, str]:
        """Return the name, the result's kind, and the declaration of an intrinsic's function."""
        key = (of, *kinds, flags)
        if key not in self.built:
            self.built[key] = self._build(of, kinds, flags)
        return self.built[key]

    def _build(self, of: Intrinsic, kinds: Sequence[Any], flags: str) -> tuple[str, Any, str]:
        assert of.build is not None, "the caller has looked"
        types = {SINGLE: ir.FloatType(), FLOAT: ir.DoubleType()}
        takes, dtypes = [], []
        for kind in kinds:
            line = isinstance(kind, Line)
            dtype = kind.dtype if line else DTYPES[kind]
            number = types.get(KINDS[dtype]) or ir.IntType(8 if dtype == "bool" and line else
                                                           bits_of(KINDS[dtype]))  # fmt: skip
            takes.append(number.as_pointer() if line else number)
            dtypes.append(dtype)
        name = f"{of.__name__}.of.{len(self.built)}"
        # the result's type is known when the code is there
        draft = ir.Function(self.module, ir.FunctionType(ir.VoidType(), takes), name)
        builder = ir.IRBuilder(draft.append_basic_block("entry"))
        result, dtype = of.build(builder, list(draft.args), dtypes)
        for block in draft.blocks:
            for one in block.instructions:
                if one.opname in ("fadd", "fsub", "fmul", "fdiv", "frem", "fcmp"):
                    one.flags = one.flags or flags.split()
                elif one.opname == "call" and str(one.type) in _REALS:
                    one.fastmath.update(flags.split())
        if dtype:
            builder.ret(result)
            draft.ftype.return_type = draft.return_value.type = result.type
        else:
            builder.ret_void()
        parameters = ", ".join(leaf_kinds(kind)[0] for kind in kinds)
        returns = str(KINDS[dtype]) if dtype else "void"
        return name, KINDS.get(dtype), f'declare {returns} @"{name}"({parameters})'


class _Body(_Function):
    """A function and its translation, for kinds of this module."""

    program: Program
    kind: Any

    def __init__(
        self, program: Program, function: FunctionType, kinds: Sequence[Any], number: int,
        reassociate: bool,
    ) -> None:  # fmt: skip
        super().__init__(program, function, kinds, number)
        self.flags = "reassoc contract" if reassociate else "contract"
        self.bound: dict[str, Known] = {}  # variables that are known
        self.slots: dict[str, str] = {}  # of variables that have changed their kinds
        self.depth = 0  # of blocks around the statement

    def results(self) -> int:
        return 1  # of several, a tuple

    # --- values that are several ------------------------------------------------------------------

    @property
    def returns(self) -> str:
        kinds = leaf_kinds(self.kind)
        return kinds[0] if len(kinds) == 1 else f"{{{', '.join(kinds)}}}"

    def translate(self) -> None:
        parameters = []
        for name, kind in self.arguments.items():
            own = [f"%a.{name}.{k}" for k in range(len(leaf_kinds(kind)))]
            self.store(self.node, name, of_leaves(kind, iter(own)))
            parameters += [f"{k} {n}" for k, n in zip(leaf_kinds(kind), own, strict=True)]
        self.block(self.node.body)
        self.put(f"ret {self.returns} zeroinitializer")
        head = f"define internal {self.returns} @{self.name}({', '.join(parameters)}) {{"
        self.lines = [head, *self.entry, *self.body, "}"]

    def block(self, statements: list[ast.stmt]) -> None:
        self.depth += 1
        self.statements(statements)
        self.depth -= 1

    def statements(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            if (way := _STATEMENTS.get(type(statement))) is None:
                self.refuse(statement)
            way(self, statement)

    def store(self, node: ast.AST, name: str, value: Any) -> None:
        slot = self.slots.get(name, name)
        if self.depth == 1 and self.places.get(slot, value.kind) != value.kind:
            self.slots[name] = f"{name}.of.{len(self.slots)}"  # all that follows sees this one
            slot = self.slots[name]
        self.store_in(node, slot, value)

    def store_in(self, node: ast.AST, name: str, value: Any) -> None:
        """Set a variable at its place."""
        if isinstance(value, Known):
            if name in self.places or self.bound.get(name, value) != value:
                self.refuse(node, f"another {name}")
            self.bound[name] = value
        elif isinstance(value, Group):
            places: dict[str, Any] = self.places
            if places.setdefault(name, value.kind) != value.kind:
                self.refuse(node, f"{name} of another kind")
            for k, part in enumerate(value.parts):
                self.store_in(node, f"{name}.{k}", part)
        elif name in self.bound:
            self.refuse(node, f"another {name}")
        else:
            super().store(node, name, value)

    def load(self, name: str) -> Any:
        return self.load_from(self.slots.get(name, name))

    def load_from(self, name: str) -> Any:
        """The value of a variable at its place."""
        kind: Any = self.places.get(name)
        if kind is None:
            return self.bound[name]
        if isinstance(kind, Line):
            return Group((self.load_from(f"{name}.0"), self.load_from(f"{name}.1")), kind)
        if isinstance(kind, Tuple):
            places = (f"{name}.{k}" for k in range(len(kind.kinds)))
            return Group(tuple(map(self.load_from, places)), kind)
        return super().load(name)

    def parts_of(self, node: ast.AST, value: Any, count: int) -> tuple[Any, ...]:
        if not isinstance(value.kind, Tuple) or len(value.kind.kinds) != count:
            self.refuse(node)
        parts: tuple[Any, ...] = value.parts
        return parts

    # --- statements -------------------------------------------------------------------------------

    def _expression(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.value(node.value)

    def _assignment(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self.assign(target, value)

    def _annotated(self, node: ast.AnnAssign) -> None:
        if node.value is None:
            self.refuse(node)
        self.assign(node.target, self.value(node.value))

    def assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Tuple):
            parts = self.parts_of(target, value, len(target.elts))
            for one, part in zip(target.elts, parts, strict=True):
                self.assign(one, part)
        elif isinstance(target, ast.Name):
            self.store(target, target.id, value)
        elif isinstance(target, ast.Subscript):
            place, dtype = self.place(target)
            self.write(target, place, dtype, value)
        else:
            self.refuse(target)

    def _change(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name) and node.target.id in self.places:
            before = self.load(node.target.id)
            value = self.combined(node, node.op, before, self.value(node.value))
            self.store(node, node.target.id, value)
        elif isinstance(node.target, ast.Subscript):
            place, dtype = self.place(node.target)
            before = self.read(place, dtype)
            value = self.combined(node, node.op, before, self.value(node.value))
            self.write(node, place, dtype, value)
        else:
            self.refuse(node)

    def _return(self, node: ast.Return) -> None:
        value: Any = Word("0") if node.value is None else self.value(node.value)
        if isinstance(value, Known):
            self.refuse(node)
        if not self.returned:
            self.kind, self.returned = value.kind, True
        if value.kind != self.kind:
            self.refuse(node, f"a result of {value.kind}, and of {self.kind},")
        leaves = list(leaves_of(value))
        if len(leaves) == 1:
            result = leaves[0].name
        else:
            result = "zeroinitializer"
            for k, leaf in enumerate(leaves):
                result = self.new(f"insertvalue {self.returns} {result}, {leaf}, {k}").name
        self.put(f"ret {self.returns} {result}")
        self.start(*self.labels("never"))

    def _if(self, node: ast.If) -> None:
        fixed = self.fixed(node.test)
        if fixed is None:
            super()._if(node)
        else:
            self.statements(node.body if fixed else node.orelse)

    def fixed(self, test: ast.expr) -> bool | None:
        """Return what a condition is that is known before the program runs; else None."""
        if isinstance(test, ast.BoolOp):
            stops = isinstance(test.op, ast.Or)
            parts = [self.fixed(part) for part in test.values]
            if stops in parts:
                return stops
            return None if None in parts else not stops
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.fixed(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.Name) and test.id not in self.places:
            value = self.bound[test.id].value if test.id in self.bound else self.known(test)
            return bool(value) if value is None or isinstance(value, (bool, int)) else None
        return bool(test.value) if isinstance(test, ast.Constant) else None

    # --- numbers ----------------------------------------------------------------------------------

    def converted(self, word: Word, kind: Any) -> Word:
        """A number as one of another kind, as NumPy's dtypes convert."""
        if word.kind == kind:
            return word
        if kind == BOOL:
            return Word(self.truth(word), BOOL)
        unsigned = word.kind == BOOL or isinstance(word.kind, Unsigned)
        before, after = bits_of(word.kind), bits_of(kind)
        if kind in _REALS:
            if word.kind in _REALS:
                way = "fpext" if after > before else "fptrunc"
            else:
                way = "uitofp" if unsigned else "sitofp"
        elif word.kind in _REALS:
            way = "fptoui" if isinstance(kind, Unsigned) else "fptosi"
        elif before == after:
            return Word(word.name, kind)
        else:
            way = "trunc" if after < before else "zext" if unsigned else "sext"
        if word.name.lstrip("-").isdecimal() and way in ("sext", "trunc"):
            return Word(word.name, kind)
        return self.new(f"{way} {word} to {kind}", kind)

    def cast(self, node: ast.AST, word: Any, kind: Any) -> Word:
        """A number as a variable's kind: equal, or a wider integer."""
        if not isinstance(word, Word):
            self.refuse(node)
        if word.kind == kind:
            return word
        if kind != INT or not isinstance(word.kind, str) or word.kind not in ("i8", "i16", "i32"):
            self.refuse(node, f"`{ast.unparse(node)}`: {word.kind} in place of {kind}")
        return self.converted(word, kind)

    def together(self, node: ast.AST, *words: Any) -> list[Word]:
        """Numbers as those of one kind in which Numba computes."""
        kinds = {word.kind for word in words}
        if not all(isinstance(word, Word) and word.kind in DTYPES for word in words):
            self.refuse(node)
        if kinds & set(_REALS):
            kind: Any = SINGLE if kinds == {SINGLE} else FLOAT
            if SINGLE in kinds and not kinds <= {SINGLE, FLOAT, INT, "i32"}:
                self.refuse(node, f"`{ast.unparse(node)}`: a short integer and a float32")
        elif all(isinstance(k, Unsigned) for k in kinds):
            kind = Unsigned(64)
        elif Unsigned(64) in kinds:
            return self.refuse(node, f"`{ast.unparse(node)}`: integers with and without a sign")
        else:
            kind = INT
        return [self.converted(word, kind) for word in words]

    def number(self, node: ast.AST, value: object) -> Any:
        """A constant."""
        if isinstance(value, (bool, np.bool_)):
            return Word("true" if value else "false", BOOL)
        if isinstance(value, np.generic):
            kind = KINDS.get(value.dtype.name)
            if kind is None:
                self.refuse(node)
            if kind in _REALS:
                return Word(self.number(node, float(value)).name, kind)
            return Word(str(int(value)), kind)
        if isinstance(value, int):
            return Word(str(int(value)))
        if isinstance(value, float):
            (bits,) = struct.unpack("Q", struct.pack("d", value))
            return Word(f"0x{bits:0{MOST_PLACES}X}", FLOAT)
        return Known(value)

    def truth(self, word: Any) -> str:
        if not isinstance(word, Word) or word.kind not in DTYPES:
            raise CompileError(f"{self.file}:{self.first}: the truth of what is no number")
        if word.kind == BOOL:
            return word.name
        test, none = ("fcmp une", "0.0") if word.kind in _REALS else ("icmp ne", "0")
        return self.new(f"{test} {word}, {none}").name

    def compared(self, node: ast.AST, op: ast.cmpop, left: Any, right: Any) -> str:
        if type(op) not in _TESTS:
            self.refuse(node)
        left, right = self.together(node, left, right)
        test = _TESTS[type(op)][left.kind in _REALS]
        if isinstance(left.kind, Unsigned):
            test = test.replace(" s", " u")
        if left.kind in _REALS:
            test = test.replace("fcmp", f"fcmp {self.flags}")
        return self.new(f"{test} {left}, {right.name}").name

    def signed(self, node: ast.UnaryOp, word: Any) -> Word:
        if isinstance(node.op, ast.USub) and word.kind in _REALS:
            return self.new(f"fneg {word}", word.kind)
        if word.kind == BOOL and isinstance(node.op, ast.Invert):
            self.refuse(node)
        return super().signed(node, *self.together(node, word))

    def combined(self, node: ast.AST, op: ast.operator, a: Any, b: Any) -> Word:
        if a.kind == b.kind == BOOL and isinstance(op, (ast.BitAnd, ast.BitOr, ast.BitXor)):
            return self.new(f"{_INTS[type(op)]} {a}, {b.name}", BOOL)
        a, b = self.together(node, a, b)
        if isinstance(op, ast.Div) and a.kind not in _REALS:
            a, b = self.converted(a, FLOAT), self.converted(b, FLOAT)
        if a.kind in _REALS:
            if type(op) not in _FLOATS:
                self.refuse(node)
            way = _FLOATS[type(op)].replace("contract", self.flags)
            return self.new(f"{way} {a}, {b.name}", a.kind)
        if isinstance(a.kind, Unsigned):
            if isinstance(op, (ast.FloorDiv, ast.Mod)):
                way = "udiv" if isinstance(op, ast.FloorDiv) else "urem"
            else:
                way = _INTS[type(op)].replace("ashr", "lshr")
            kind: Any = a.kind
            return self.new(f"{way} {a}, {b.name}", kind)
        return super().combined(node, op, a, b)

    # --- expressions ------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            if node.id in self.places or node.id in self.bound:
                return self.load(node.id)
            return self.number(node, self.known(node))
        if isinstance(node, ast.Constant):
            return self.number(node, node.value)
        if isinstance(node, ast.Tuple):
            parts = tuple(self.value(one) for one in node.elts)
            return Group(parts, Tuple(tuple(part.kind for part in parts)))
        if isinstance(node, ast.Attribute):
            return self.attribute(node)
        if isinstance(node, ast.Subscript):
            return self.subscript(node)
        if isinstance(node, ast.Call):
            return self.result(node)
        if isinstance(node, ast.Compare):
            return Word(self.condition(node), BOOL)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            bit = self.truth(self.value(node.operand))
            return self.new(f"xor i1 {bit}, true", BOOL)
        if isinstance(node, ast.IfExp):
            fixed = self.fixed(node.test)
            if fixed is not None:
                return self.value(node.body if fixed else node.orelse)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            return self.number(node, self.static(node.left) ** self.static(node.right))
        return super().value(node)

    def static(self, node: ast.expr) -> Any:
        """A Python number that is written as one."""
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.static(node.operand)
        return self.refuse(node, "what is no literal")

    def attribute(self, node: ast.Attribute) -> Any:
        whole = self.value(node.value)
        if isinstance(whole, Known):
            if not hasattr(whole.value, node.attr):
                self.refuse(node)
            return self.number(node, getattr(whole.value, node.attr))
        if isinstance(whole.kind, Record):
            return self.field(node, whole)
        if isinstance(whole.kind, Line):
            dtype = np.dtype(whole.kind.dtype)
            if node.attr == "dtype":
                return Known(dtype)
            if node.attr == "itemsize":
                return Word(str(dtype.itemsize))
        return self.refuse(node)

    def subscript(self, node: ast.Subscript) -> Any:
        if isinstance(node.slice, ast.Slice):
            return self.slice(node, node.slice)
        whole = self.value(node.value)
        if isinstance(whole, Known) and isinstance(whole.value, tuple):
            return self.number(node, whole.value[self.static(node.slice)])
        if isinstance(whole.kind, Tuple):
            at = self.known(node.slice) if isinstance(node.slice, ast.Constant) else None
            if not isinstance(at, int) or not 0 <= at < len(whole.kind.kinds):
                self.refuse(node)
            return whole.parts[at]
        place, dtype = self.place(node, whole)
        return self.read(place, dtype)

    def place(self, node: ast.Subscript, whole: Any = None) -> tuple[str, str]:
        """The address of an item, and its dtype."""
        whole = self.value(node.value) if whole is None else whole
        if not isinstance(whole.kind, Line):
            self.refuse(node)
        at = self.index(node, node.slice)
        memory = leaf_in_memory(whole.kind.dtype)
        return self.new(f"getelementptr {memory}, {whole.parts[0]}, {at}").name, whole.kind.dtype

    def index(self, node: ast.AST, of: ast.expr) -> Word:
        at = self.value(of)
        if not isinstance(at, Word) or at.kind in _REALS or at.name.startswith("-"):
            self.refuse(node)
        return self.converted(at, INT)

    def read(self, place: str, dtype: str) -> Word:
        kind, memory = KINDS[dtype], leaf_in_memory(dtype)
        align = np.dtype(dtype).itemsize
        word = self.new(f"load {memory}, ptr {place}, align {align}", kind)
        if kind == BOOL:
            return self.new(f"icmp ne i8 {word.name}, 0", BOOL)
        return word

    def write(self, node: ast.AST, place: str, dtype: str, value: Any) -> None:
        if not isinstance(value, Word) or value.kind not in DTYPES:
            self.refuse(node)
        word = self.converted(value, KINDS[dtype])
        if dtype == "bool":
            word = self.new(f"zext {word} to i8", "i8")
        self.put(f"store {word}, ptr {place}, align {np.dtype(dtype).itemsize}")

    def slice(self, node: ast.Subscript, bounds: ast.Slice) -> Group:
        """array[start:stop], as long as the array has elements there."""
        whole = self.value(node.value)
        if not isinstance(whole.kind, Line) or bounds.step is not None:
            self.refuse(node)
        data, length = whole.parts
        start = self.bound_of(node, bounds.lower, Word("0"), length)
        stop = self.bound_of(node, bounds.upper, length, length)
        count = self.limit("smax", self.new(f"sub {stop}, {start.name}"), Word("0"))
        memory = leaf_in_memory(whole.kind.dtype)
        place = self.new(f"getelementptr {memory}, {data}, {start}", "ptr")
        return Group((place, count), whole.kind)

    def bound_of(self, node: ast.AST, bound: ast.expr | None, default: Word, length: Word) -> Word:
        if bound is None or (isinstance(bound, ast.Constant) and bound.value == 0):
            return default if bound is None else Word("0")
        at = self.limit("smax", self.index(node, bound), Word("0"))
        return self.limit("smin", at, length)

    def limit(self, which: str, a: Word, b: Word) -> Word:
        self.program.declared[f"declare i64 @llvm.{which}.i64(i64, i64)"] = None
        return self.new(f"call i64 @llvm.{which}.i64({a}, {b})")

    # --- calls ------------------------------------------------------------------------------------

    def result(self, node: ast.Call) -> Any:
        """The value of a call."""
        if isinstance(node.func, ast.Attribute) and node.func.attr == "view":
            return self.view(node)
        callee = self.value(node.func)
        if not isinstance(callee, Known):
            self.refuse(node)
        called = callee.value
        values = [self.value(a) for a in node.args]
        if isinstance(called, FunctionType):
            return self.called(node, called, values)
        if node.keywords:
            self.refuse(node)
        if isinstance(called, Intrinsic):
            return self.built(node, called, values)
        if isinstance(called, Overloaded):
            return self.overloaded(node, called, values)
        if isinstance(called, type) and issubclass(called, np.generic) and len(values) == 1:
            return self.of_dtype(node, called, values[0])
        if called is np.sqrt and len(values) == 1:
            return self.root(node, values[0])
        return self.builtin(node, called, values)

    def of_dtype(self, node: ast.Call, dtype: type[np.generic], value: Any) -> Word:
        kind = KINDS.get(np.dtype(dtype).name)
        if kind is None or not isinstance(value, Word) or value.kind not in DTYPES:
            self.refuse(node)
        return self.converted(value, kind)

    def root(self, node: ast.Call, value: Any) -> Word:
        (value,) = self.together(node, value)
        word = value if value.kind in _REALS else self.converted(value, FLOAT)
        name = f"llvm.sqrt.f{bits_of(word.kind)}"
        self.program.declared[f"declare {word.kind} @{name}({word.kind})"] = None
        return self.new(f"call {self.flags} {word.kind} @{name}({word})", word.kind)

    def builtin(self, node: ast.Call, called: object, values: list[Any]) -> Word:
        if called is len and len(values) == 1:
            kind = values[0].kind
            if isinstance(kind, Tuple):
                return Word(str(len(kind.kinds)))
            if isinstance(kind, Line):
                length: Word = values[0].parts[1]
                return length
        if called in (min, max) and len(values) > 1:
            alike = len({value.kind for value in values}) == 1
            first, *others = values if alike else self.together(node, *values)
            op = ast.Lt() if called is max else ast.Gt()  # of equals the first, as Python has it
            for other in others:
                second = self.compared(node, op, first, other)
                first = self.new(f"select i1 {second}, {other}, {first}", first.kind)
            return first
        if called in (int, float, bool) and len(values) == 1 and isinstance(values[0], Word):
            return self.converted(values[0], KINDS[np.dtype(called).name])
        if called is abs and len(values) == 1 and isinstance(values[0], Word):
            return self.magnitude(node, values[0])
        return self.refuse(node)

    def magnitude(self, node: ast.Call, word: Word) -> Word:
        (word,) = self.together(node, word)
        if word.kind not in (INT, *_REALS):
            return word
        if word.kind == INT:
            self.program.declared["declare i64 @llvm.abs.i64(i64, i1)"] = None
            return self.new(f"call i64 @llvm.abs.i64({word}, i1 false)")
        name = f"llvm.fabs.f{bits_of(word.kind)}"
        self.program.declared[f"declare {word.kind} @{name}({word.kind})"] = None
        return self.new(f"call {self.flags} {word.kind} @{name}({word})", word.kind)

    def view(self, node: ast.Call) -> Group:
        """array.view(dtype): the same bytes."""
        assert isinstance(node.func, ast.Attribute), "the caller has looked"
        whole = self.value(node.func.value)
        if not isinstance(whole.kind, Line) or len(node.args) != 1:
            self.refuse(node)
        (dtype,) = node.args
        return self.viewed(node, whole, self.value(dtype))

    def dtype_of(self, node: ast.AST, value: Any) -> str:
        if isinstance(value.kind, Line):
            return str(value.kind.dtype)
        if not isinstance(value, Known):
            self.refuse(node)
        name: str = np.dtype(value.value).name
        return name if name in KINDS else self.refuse(node)

    def viewed(self, node: ast.AST, whole: Group, like: Any) -> Group:
        dtype = self.dtype_of(node, like)
        assert isinstance(whole.kind, Line), "the caller has looked"
        before, after = np.dtype(whole.kind.dtype).itemsize, np.dtype(dtype).itemsize
        count = whole.parts[1]
        if before != after:
            size = self.new(f"mul nuw nsw {count}, {before}")
            count = self.new(f"udiv exact {size}, {after}")
        return Group((whole.parts[0], count), Line(dtype))

    def called(self, node: ast.Call, called: FunctionType, values: list[Any]) -> Any:
        names = list(inspect.signature(called).parameters.values())
        by_name = {keyword.arg: self.value(keyword.value) for keyword in node.keywords}
        for parameter in names[len(values) :]:
            if parameter.name in by_name:
                values.append(by_name.pop(parameter.name))
            elif parameter.default is parameter.empty:
                self.refuse(node)
            else:
                values.append(self.number(node, parameter.default))
        if by_name or len(values) != len(names):
            self.refuse(node)
        function = self.program.function(called, [value.kind for value in values])
        passed = ", ".join(str(leaf) for value in values for leaf in leaves_of(value))
        whole = self.new(f"call {function.returns} @{function.name}({passed})")
        kinds = leaf_kinds(function.kind)
        if len(kinds) == 1:
            return of_leaves(function.kind, iter([whole.name]))
        leaves = [
            self.new(f"extractvalue {function.returns} {whole.name}, {k}").name
            for k in range(len(kinds))
        ]
        return of_leaves(function.kind, iter(leaves))

    def built(self, node: ast.Call, called: Intrinsic, values: list[Any]) -> Any:
        """The value of an intrinsic."""
        if called.takes == MEMORY:
            return self.array_in(node, *values)
        if called.text is not None and called.build is None:
            words = [v.parts[0] if isinstance(v.kind, Line) else v for v in values]
            if not all(isinstance(w, Word) for w in words):
                self.refuse(node)
            return self.written(node, called, words)
        if called.build is None:
            self.refuse(node)
        if called.takes == DTYPE:
            values = [self.zero_of(node, value) for value in values]
        arrays = called.takes == ARRAYS
        words = [v.parts[0] if arrays and isinstance(v.kind, Line) else v for v in values]
        if not all(isinstance(w, Word) and (w.kind in DTYPES or w.kind == "ptr") for w in words):
            self.refuse(node)
        kinds = [value.kind for value in values]
        name, kind, _ = self.program.intrinsic(called, kinds, self.flags)
        passed = ", ".join(map(str, words))
        if kind is None:
            self.put(f'call void @"{name}"({passed})')
            return Word("0")
        return self.new(f'call {kind} @"{name}"({passed})', kind)

    def zero_of(self, node: ast.AST, value: Any) -> Word:
        kind = KINDS[self.dtype_of(node, value)]
        return Word("0.0" if kind in _REALS else "0", kind)

    def array_in(self, node: ast.AST, memory: Any, at: Any, count: Any, like: Any) -> Group:
        if memory.kind != Line("uint8") or at.kind != INT or count.kind != INT:
            self.refuse(node)
        place = self.new(f"getelementptr i8, {memory.parts[0]}, {at}", "ptr")
        return Group((place, count), Line(self.dtype_of(node, like)))

    def overloaded(self, node: ast.Call, called: Overloaded, values: list[Any]) -> Any:
        if not all(isinstance(v, Word) and v.kind in DTYPES for v in values):
            self.refuse(node)
        name, implementation = called.choose([DTYPES[value.kind] for value in values])
        values = [self.converted(value, KINDS[name]) for value in values]
        if isinstance(implementation, Intrinsic):
            return self.built(node, implementation, values)
        return self.called(node, implementation, values)


def leaf_in_memory(dtype: str) -> str:
    """Return LLVM's type of an element in memory."""
    return "i8" if dtype == "bool" else str(KINDS[dtype])


_STATEMENTS: dict[type[ast.stmt], Callable[[Any, Any], None]] = {
    **_OF_WORDS,
    ast.Expr: _Body._expression,
    ast.Assign: _Body._assignment,
    ast.AnnAssign: _Body._annotated,
    ast.AugAssign: _Body._change,
    ast.Return: _Body._return,
    ast.If: _Body._if,
}
