"""Policies of one's own, compiled: `ready(task, now)` and `pick(worker, now)` as one C function.

    native = compiled(policy)       # behind policy.begin(dag, machine)
    native.why                      # "", or why it is asked in Python

The methods are read as source.  What they say of `self` becomes words of one array
(`flowvm.lab.policy_state`), the rest stays.  Numba compiles it without Python or its runtime; the
cache has it as it has kernels.  Attributes may be numbers, arrays, lists (and deques) of integers,
of floats or of tuples whose first is a number and whose others are integers, and lists of such
lists. Lists have append, pop, popleft, insert, remove, clear, sort, heapq's push and pop; `in`,
`len`, `for`, `min` and `max` with a key.  Attributes of `self.dag`, `self.machine` and other
objects are numbers and arrays.  Other methods may be called.

Whatever is more than this is no error: `why` says what it is, and Python steps the policy.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import deque
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple, get_type_hints

import numpy as np

from flowvm.compiler import jit
from flowvm.errors import CompileError
from flowvm.lab import policy_state
from flowvm.lab.policies import Policy
from flowvm.meta.arrays import Array
from flowvm.vm.machine.lang import load_word, store_word, words_at

ROOM = 1 << 16  # elements that a list has room for at least
_SIGNATURE = "int32(int64, int64, int64, int64, int64)"
_HELPERS = {
    f"_vm_{name}": getattr(policy_state, name)
    for name in ("whole", "number", "word_of", "place", "place_of_pair", "row", "element", "grow",
                 "insert", "take", "find", "remove", "clear", "rise", "sink")
} | {"_vm_load": load_word, "_vm_store": store_word, "_vm_words_at": words_at}  # fmt: skip


class Native(NamedTuple):
    """A compiled policy: the address of its function and of its state; `why` it is none, else "".

    The function has (state, READY | PICK | ENDED, task or worker, the worker whose task ended last,
    nanoseconds or -1: the time is in the state).  It answers 0, or -1 where Python would raise.
    """

    why: str
    address: int = 0
    state: Array = np.zeros(0, np.int64)
    references: tuple[object, ...] = ()  # whose addresses stand in the state


class _Beyond(Exception):  # noqa: N818 - caught here: no error
    """A part of a class that is not compiled."""


class _Slot(NamedTuple):
    """An attribute: `kind` is int, bool, float, array, floats (an array of them), list or lists.
    `words` are those of an element.
    """

    kind: str
    at: int
    words: str = "i"  # of a list, what an element's words are: i, f, or several
    dimensions: int = 1


def compiled(policy: Policy, tasks: int) -> Native:
    """The function and the state of a policy that has begun, for graphs of so many tasks."""
    if not policy.is_compiled:
        return Native(f"{type(policy).__name__}.is_compiled is False")
    try:
        return _Policy(policy, max(ROOM, tasks + 2)).native()
    except _Beyond as beyond:
        return Native(f"{type(policy).__name__}: {beyond}")
    except (CompileError, TypeError) as error:  # a float where an integer belongs is a TypeError
        return Native(f"{type(policy).__name__}: {str(error).splitlines()[0]}")


class _Policy:
    """A policy's methods as source, and its attributes as words."""

    def __init__(self, policy: Policy, room: int) -> None:
        self.policy, self.room = policy, room
        self.slots = {"by": _Slot("int", policy_state.BY)}
        self.words: list[int] = [0] * policy_state.FIRST
        self.words[policy_state.BY] = -1
        self.references: list[object] = []
        self.texts: dict[str, str] = {}  # functions by name, in the order that they need each other
        self.scope: dict[str, object] = {}
        self.lists: set[str] = set()  # of which there are functions
        self.count = 0

    def native(self) -> Native:
        methods = [("ready", "task, now"), ("pick", "worker, now")]
        if hasattr(self.policy, "ended"):
            methods.append(("ended", "task, now"))
        for name, _ in methods:
            self.method(name)
        lines = [
            "def entry(state, what, who, by, ns):",
            f"    _vm_m = _vm_words_at(state, {policy_state.MOST})",
            f"    now = ns * 1e-9 if ns >= 0 else _vm_number(_vm_m[{policy_state.NOW}])",
            f"    if what == {policy_state.PICK}:",
            f"        _vm_m[{policy_state.RESULT}] = _vm_whole(_vm_do_pick(_vm_m, who, now))",
            f"    elif what == {policy_state.READY}:",
            f"        _vm_m[{policy_state.BY}] = by",
            "        _vm_do_ready(_vm_m, who, now)",
        ]
        if len(methods) > 2:
            lines += ["    else:", "        _vm_do_ended(_vm_m, who, now)"]
        text = "\n".join([*self.texts.values(), *lines, "    return 0", ""])
        scope = {**self.scope, **_HELPERS, "__name__": "policy", "__builtins__": __builtins__}
        exec(compile(text, "<flowvm policy>", "exec"), scope)
        address = jit.native(scope["entry"], _SIGNATURE)
        return Native("", address, np.array(self.words, np.int64), tuple(self.references))

    # --- attributes -------------------------------------------------------------------------------

    def slot(self, path: str) -> _Slot:
        """The words of an attribute: "tasks", or "dag.cost"."""
        if path not in self.slots:
            value: Policy = self.policy
            for name in path.split("."):
                if not hasattr(value, name):
                    raise _Beyond(f"self.{path} is not there when it begins")
                value = getattr(value, name)
            self.slots[path] = self.lay_out(path, value)
        return self.slots[path]

    def lay_out(self, path: str, value: Policy) -> _Slot:
        at = len(self.words)
        if isinstance(value, (bool, np.bool_)):
            self.words.append(int(value))
            return _Slot("bool", at)
        if isinstance(value, (int, np.integer)):
            self.words.append(int(value))
            return _Slot("int", at)
        if isinstance(value, (float, np.floating)):
            self.words.append(policy_state.word_of(float(value)))
            return _Slot("float", at)
        if isinstance(value, np.ndarray) and value.ndim in (1, 2) and value.dtype.kind in "biuf":
            floats = value.dtype.kind == "f"
            array = np.ascontiguousarray(value, np.float64 if floats else np.int64)
            self.references.append(array)
            self.words += [array.ctypes.data, *array.shape, *[1] * (3 - array.ndim)]
            return _Slot("floats" if floats else "array", at, dimensions=array.ndim)
        if isinstance(value, (list, deque)):
            return self.laid_list(path, list(value), at)
        raise _Beyond(f"self.{path} is of {type(value).__name__}")

    def laid_list(self, path: str, value: list[Any], at: int) -> _Slot:
        if value and all(isinstance(one, (list, deque)) for one in value):
            words = self.words_of(path, [item for one in value for item in one])
            self.words += [0, len(value), 0, 0]
            for one in value:
                self.header(list(one), words)
            return _Slot("lists", at, words)
        words = self.words_of(path, value)
        self.header(value, words)
        return _Slot("list", at, words)

    def words_of(self, path: str, items: Sequence[object]) -> str:
        """Return the kinds of a list's words, by its contents, its writers or its annotation."""
        if items and isinstance(items[0], tuple):
            return "f" + "i" * (len(items[0]) - 1)
        if items:
            return "f" if any(isinstance(one, (float, np.floating)) for one in items) else "i"
        if width := self.puts().get(path):
            return "f" + "i" * (width - 1)
        return "f" if "float" in str(self.hints().get(path, "")) else "i"

    def header(self, items: Sequence[object], words: str) -> None:
        width = len(words)
        room = np.zeros((self.room + len(items), width), np.int64)
        for k, item in enumerate(items):
            parts = item if isinstance(item, tuple) else (item,)
            if len(parts) != width or not all(
                isinstance(p, (int, float, np.number)) for p in parts
            ):
                raise _Beyond(f"a list with {item!r} in it")
            room[k] = [policy_state.word_of(float(p)) if w == "f" else int(p)
                       for p, w in zip(parts, words, strict=True)]  # fmt: skip
        self.references.append(room)
        self.words += [room.ctypes.data, len(items), len(room), 0]

    def hints(self) -> dict[str, object]:
        try:
            return get_type_hints(type(self.policy))
        except Exception:  # names that are not there at run time: nobody needs these
            return {}

    def puts(self) -> dict[str, int]:
        """Return the lengths of the tuples that methods put into lists."""
        widths: dict[str, int] = {}
        for kind in type(self.policy).__mro__:
            for function in vars(kind).values():
                if kind in (Policy, object) or not inspect.isfunction(function):
                    continue
                for node in ast.walk(_parsed(function)):
                    if isinstance(node, ast.Call) and node.args:
                        put = node.args[-1]
                        target = node.args[0] if len(node.args) == 2 else node.func
                        if isinstance(put, ast.Tuple) and (path := _path(target)):
                            widths.setdefault(path.split(".")[0], len(put.elts))
        return widths

    # --- methods ----------------------------------------------------------------------------------

    def method(self, name: str) -> str:
        """Make a method a function, once; its name."""
        name_of_native = f"_vm_do_{name}"
        if name_of_native in self.scope:
            return name_of_native
        function = inspect.getattr_static(type(self.policy), name, None)
        if not inspect.isfunction(function):
            raise _Beyond(f"self.{name} is no plain method")
        self.scope[name_of_native] = None  # while it is made: it may call itself
        self.take_scope(function)
        tree = _parsed(function)
        known = {one.arg for one in tree.args.args} | {
            node.id for node in ast.walk(tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }  # fmt: skip
        if tree.args.vararg or tree.args.kwarg or tree.args.kwonlyargs or tree.args.defaults:
            raise _Beyond(f"{name} has arguments of other kinds")
        rewriter = _Rewriter(self, tree.args.args[0].arg, known)
        body = [new for line in tree.body for new in rewriter.lines(line)]
        arguments = ", ".join(["_vm_m", *(one.arg for one in tree.args.args[1:])])
        self.add(name_of_native, arguments, body or [ast.Pass()])
        del self.scope[name_of_native]  # the text has it
        self.scope.setdefault(name_of_native, 0)
        return name_of_native

    def take_scope(self, function: FunctionType) -> None:
        """The names that a method sees: its module's, and those of functions around it."""
        variables = dict(function.__globals__)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            if name != "__class__":
                variables[name] = cell.cell_contents
        for name in function.__code__.co_names + function.__code__.co_freevars:
            if name in variables:
                if self.scope.get(name, variables[name]) is not variables[name]:
                    raise _Beyond(f"{name} means two things in its methods")
                self.scope[name] = variables[name]

    def add(self, name: str, arguments: str, body: list[ast.stmt]) -> None:
        text = "\n".join(ast.unparse(ast.fix_missing_locations(line)) for line in body)
        self.texts[name] = f"def {name}({arguments}):\n{textwrap.indent(text, '    ')}\n"

    def access(self, words: str) -> None:
        """The functions that read and write an element."""
        if words in self.lists:
            return
        self.lists.add(words)
        parts = [f"_vm_load(address + {8 * k})" for k in range(len(words))]
        parts = [f"_vm_number({p})" if w == "f" else p for p, w in zip(parts, words, strict=True)]
        parameters = ", ".join(f"x{k}" for k in range(len(words)))
        value = parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
        lines = [f"def _vm_read_{words}(address):", f"    return {value}",
                 f"def _vm_write_{words}(address, {parameters}):"]  # fmt: skip
        for k, w in enumerate(words):
            convert = "_vm_word_of" if w == "f" else "_vm_whole"
            lines.append(f"    _vm_store(address + {8 * k}, {convert}(x{k}))")
        self.texts[f"_vm_{words}"] = "\n".join([*lines, ""])

    def unique(self, what: str) -> str:
        self.count += 1
        return f"_vm_{what}{self.count}"


def _parsed(function: Callable[..., object]) -> ast.FunctionDef:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, SyntaxError, TypeError) as error:
        raise _Beyond(f"the source of {function.__qualname__} is not there") from error
    if not isinstance(tree, ast.FunctionDef) or tree.decorator_list:
        raise _Beyond(f"{function.__qualname__} is no plain method")
    return tree


def _path(node: ast.AST) -> str:
    """Return the name of the list in an expression: "tasks" of self.tasks or self.tasks[k]."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return node.attr
        node = node.value
    return ""


def _call(name: str, *args: ast.expr | int) -> ast.expr:
    arguments = [ast.Constant(a) if isinstance(a, int) else a for a in args]
    return ast.Call(ast.Name(name, ast.Load()), arguments, [])


_STATE = ast.Name("_vm_m", ast.Load())


class _List(NamedTuple):
    """A list that an expression names: where its words are, and what an element is."""

    at: ast.expr | int
    words: str

    @property
    def width(self) -> int:
        return len(self.words)

    @property
    def floats(self) -> int:
        return sum(1 << k for k, w in enumerate(self.words) if w == "f")


class _Rewriter(ast.NodeTransformer):
    """A method's statements with words in the place of `self`."""

    def __init__(self, policy: _Policy, me: str, known: set[str]) -> None:
        self.policy, self.me, self.known = policy, me, known
        self.before: list[ast.stmt] = []

    def lines(self, line: ast.stmt) -> list[ast.stmt]:
        new = self.visit(line)
        return new if isinstance(new, list) else [new]

    # --- what an expression names -----------------------------------------------------------------

    def of_self(self, node: ast.AST) -> str:
        """The path of self.x or self.dag.x, or ""."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        return (
            ".".join(reversed(names)) if isinstance(node, ast.Name) and node.id == self.me else ""
        )

    def listed(self, node: ast.AST) -> _List | None:
        """The list that an expression names, if it names one."""
        if path := self.of_self(node):
            if "." in path or not isinstance(self.value(path), (list, deque)):
                return None
            slot = self.policy.slot(path)
            if slot.kind == "list":
                self.policy.access(slot.words)
                return _List(slot.at, slot.words)
        elif isinstance(node, ast.Subscript) and (path := self.of_self(node.value)):
            if not isinstance(self.value(path), (list, deque)):
                return None
            slot = self.policy.slot(path)
            if slot.kind == "lists":
                self.policy.access(slot.words)
                return _List(_call("_vm_row", _STATE, slot.at, self.visit(node.slice)), slot.words)
        return None

    def value(self, path: str) -> object:
        value: object = self.policy.policy
        for name in path.split("."):
            value = getattr(value, name, None)
        return value

    def read(self, one: _List, address: ast.expr) -> ast.expr:
        return _call(f"_vm_read_{one.words}", address)

    def length(self, node: ast.expr) -> ast.expr | None:
        """Return the length of self.x or of a list."""
        at: ast.expr | int
        if (one := self.listed(node)) is not None:
            at = one.at
        elif path := self.of_self(node):
            if path == "dag":
                path = "dag.cost"
            slot = self.policy.slot(path)
            if slot.kind not in ("array", "floats", "lists"):
                return None
            at = slot.at
        else:
            return None
        place = ast.BinOp(ast.Constant(at) if isinstance(at, int) else at, ast.Add(),
                          ast.Constant(1))  # fmt: skip
        return ast.Subscript(_STATE, place, ast.Load())

    # --- expressions ------------------------------------------------------------------------------

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        path = self.of_self(node)
        if not path:
            return self.generic_visit(node)  # type: ignore[return-value]
        slot = self.policy.slot(path)
        word = ast.Subscript(_STATE, ast.Constant(slot.at), ast.Load())
        if slot.kind == "int":
            return word
        if slot.kind == "bool":
            return ast.Compare(word, [ast.NotEq()], [ast.Constant(0)])
        if slot.kind == "float":
            return _call("_vm_number", word)
        raise _Beyond(f"{self.me}.{path} is used as a whole (line {node.lineno})")

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id == self.me:
            raise _Beyond(f"{self.me} is used as a whole (line {node.lineno})")
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if (one := self.listed(node.value)) is not None:
            if isinstance(node.slice, ast.Slice):
                raise _Beyond(f"a slice of a list (line {node.lineno})")
            return self.read(one, _call("_vm_element", _STATE, one.at, one.width,
                                        self.visit(node.slice)))  # fmt: skip
        if self.of_self(node.value):
            floats, address = self.placed(node)
            word = _call("_vm_load", address)
            return _call("_vm_number", word) if floats else word
        return self.generic_visit(node)  # type: ignore[return-value]

    def placed(self, node: ast.Subscript) -> tuple[bool, ast.expr]:
        """The address of an array's element, and whether that is a float."""
        path = self.of_self(node.value)
        slot = self.policy.slot(path)
        index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        wrong = any(isinstance(i, ast.Slice) for i in index) or len(index) != slot.dimensions
        if slot.kind not in ("array", "floats") or wrong:
            raise _Beyond(f"{self.me}.{path}[...] is no number (line {node.lineno})")
        name = "_vm_place" if slot.dimensions == 1 else "_vm_place_of_pair"
        return slot.kind == "floats", _call(name, _STATE, slot.at, *map(self.visit, index))

    def truth(self, node: ast.expr) -> ast.expr:
        """An expression that is asked for its truth: a list is true if something is in it."""
        if isinstance(node, ast.BoolOp):
            return ast.BoolOp(node.op, [self.truth(value) for value in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ast.UnaryOp(node.op, self.truth(node.operand))
        if self.listed(node) is not None and (length := self.length(node)) is not None:
            return ast.Compare(length, [ast.Gt()], [ast.Constant(0)])
        return self.visit(node)  # type: ignore[no-any-return]

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if isinstance(node.op, ast.Not):
            return self.truth(node)
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        return ast.IfExp(self.truth(node.test), self.visit(node.body), self.visit(node.orelse))

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if isinstance(node.ops[0], (ast.In, ast.NotIn)) and len(node.ops) == 1:
            one = self.listed(node.comparators[0])
            if one is not None and one.words == "i":
                value = _call("_vm_whole", self.visit(node.left))
                place = _call("_vm_find", _STATE, one.at, value)
                op = ast.GtE() if isinstance(node.ops[0], ast.In) else ast.Lt()
                return ast.Compare(place, [op], [ast.Constant(0)])
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "len" and (length := self.length(node.args[0])) is not None:
            return length
        one = self.listed(node.args[0]) if len(node.args) == 1 else None
        if name in ("min", "max") and one is not None:
            return self.extreme(node, one)
        if name == "super":
            raise _Beyond(f"super() (line {node.lineno})")
        is_method = isinstance(node.func, ast.Attribute) or name in ("heappush", "heappop")
        new = self.method_call(node) if is_method else None
        return new or self.generic_visit(node)  # type: ignore[return-value]

    def method_call(self, node: ast.Call) -> ast.expr | None:
        """self.tasks.append(x), heapq.heappush(self.heap, x), self.other(x)."""
        func = node.func
        name = func.attr if isinstance(func, ast.Attribute) else func.id  # type: ignore[attr-defined]
        if name in ("heappush", "heappop") and (one := self.listed(node.args[0])) is not None:
            if name == "heappush":
                return _call(
                    self.put(one, name, [node.args[1]], []), *self.parts(one, node.args[1])
                )
            return self.read(one, _call("_vm_sink", _STATE, one.at, one.width, one.floats))
        if not isinstance(func, ast.Attribute):
            return None
        if (one := self.listed(func.value)) is not None:
            return self.list_call(one, name, node)
        if self.of_self(func) == name and callable(getattr(self.policy.policy, name, None)):
            if node.keywords:
                raise _Beyond(f"{self.me}.{name} by keywords (line {node.lineno})")
            return _call(self.policy.method(name), _STATE, *map(self.visit, node.args))
        return None

    def list_call(self, one: _List, name: str, node: ast.Call) -> ast.expr:
        args = node.args
        if name == "append" and len(args) == 1:
            return _call(self.put(one, name, args, []), *self.parts(one, args[0]))
        if name == "appendleft" and len(args) == 1:
            return _call(
                self.put(one, "insert", args, [ast.Constant(0)]), *self.parts(one, args[0])
            )
        if name == "insert" and len(args) == 2:
            return _call(
                self.put(one, name, args, [self.visit(args[0])]), *self.parts(one, args[1])
            )
        if name in ("pop", "popleft") and len(args) <= 1:
            place = self.visit(args[0]) if args else ast.Constant(0 if name == "popleft" else -1)
            return self.read(one, _call("_vm_take", _STATE, one.at, one.width, place))
        if name == "remove" and one.words == "i":
            return _call("_vm_remove", _STATE, one.at, _call("_vm_whole", self.visit(args[0])))
        if name == "clear" and not args:
            return _call("_vm_clear", _STATE, one.at)
        if name == "sort" and not args:
            return self.sorting(node, one)
        raise _Beyond(f"list.{name} (line {node.lineno})")

    def parts(self, one: _List, value: ast.expr) -> list[ast.expr | int]:
        """The arguments of what `put` makes: the state, the list, the words."""
        items = value.elts if isinstance(value, ast.Tuple) else [value]
        if len(items) != one.width:
            raise _Beyond(f"elements of a list that differ (line {value.lineno})")
        return [_STATE, one.at, *map(self.visit, items)]

    def put(self, one: _List, how: str, args: Sequence[ast.expr], where: list[ast.expr]) -> str:
        """The function that puts an element into a list."""
        kind, name = ("insert" if how == "insert" else "grow"), f"_vm_{how}_{one.words}"
        if where and not (isinstance(where[0], ast.Constant) and where[0].value == 0):
            raise _Beyond("list.insert elsewhere than in front")
        if name not in self.policy.texts:
            parameters = ", ".join(f"x{k}" for k in range(one.width))
            spot = ", 0" if where else ""
            lines = [f"def {name}(_vm_m, at, {parameters}):",
                     f"    address = _vm_{kind}(_vm_m, at, {one.width}{spot})",
                     f"    _vm_write_{one.words}(address, {parameters})"]  # fmt: skip
            if how == "heappush":
                lines.append(f"    _vm_rise(_vm_m, at, {one.width}, {one.floats})")
            self.policy.texts[name] = "\n".join([*lines, ""])
        return name

    def keyed(self, node: ast.Call, one: _List) -> tuple[str, list[str], list[ast.stmt]]:
        """The key of min, max or sort: (the name of the element, names of the method that it uses,
        a function's body that answers the key).
        """
        key = next((k.value for k in node.keywords if k.arg == "key"), None)
        if key is None:
            return "_vm_x", [], [ast.Return(ast.Name("_vm_x", ast.Load()))]
        if not isinstance(key, ast.Lambda) or len(key.args.args) != 1:
            raise _Beyond(f"a key that is no lambda (line {node.lineno})")
        item = key.args.args[0].arg
        used = {n.id for n in ast.walk(key.body) if isinstance(n, ast.Name)}
        return (
            item,
            sorted((used & self.known) - {item, self.me}),
            [ast.Return(self.visit(key.body))],
        )

    def extreme(self, node: ast.Call, one: _List) -> ast.expr:
        """min(self.tasks, key=lambda t: ...), and max."""
        item, used, body = self.keyed(node, one)
        default = next((k.value for k in node.keywords if k.arg == "default"), None)
        key, name = self.policy.unique("key"), self.policy.unique("extreme")
        more = "".join(f", {u}" for u in used)
        self.policy.add(key, f"_vm_m, {item}{more}", body)
        sign = ">" if isinstance(node.func, ast.Name) and node.func.id == "max" else "<"
        empty = "raise ValueError('empty')" if default is None else "return _vm_default"
        get = f"_vm_read_{one.words}(_vm_element(_vm_m, at, {one.width}, "
        self.policy.texts[name] = (
            f"def {name}(_vm_m, at, _vm_default{more}):\n"
            f"    if _vm_m[at + 1] == 0:\n        {empty}\n"
            f"    best = {get}0))\n    value = {key}(_vm_m, best{more})\n"
            f"    for k in range(1, _vm_m[at + 1]):\n"
            f"        other = {get}k))\n        its = {key}(_vm_m, other{more})\n"
            f"        if its {sign} value:\n            best, value = other, its\n"
            f"    return best\n"
        )
        start = ast.Constant(0) if default is None else self.visit(default)
        return _call(name, _STATE, one.at, start, *(ast.Name(u, ast.Load()) for u in used))

    def sorting(self, node: ast.Call, one: _List) -> ast.expr:
        """self.tasks.sort(key=lambda t: ..., reverse=True), by insertion: most of it is sorted."""
        item, used, body = self.keyed(node, one)
        back = next((k.value for k in node.keywords if k.arg == "reverse"), ast.Constant(False))
        if not isinstance(back, ast.Constant) or one.width != 1:
            raise _Beyond(f"list.sort of these (line {node.lineno})")
        key, name = self.policy.unique("key"), self.policy.unique("sort")
        more = "".join(f", {u}" for u in used)
        self.policy.add(key, f"_vm_m, {item}{more}", body)
        sign = "<" if back.value else ">"
        at = "_vm_element(_vm_m, at, 1, "
        self.policy.texts[name] = (
            f"def {name}(_vm_m, at{more}):\n"
            f"    for k in range(1, _vm_m[at + 1]):\n"
            f"        word = _vm_load({at}k))\n"
            f"        its = {key}(_vm_m, _vm_read_{one.words}({at}k)){more})\n"
            f"        j = k\n"
            f"        while j > 0 and "
            f"{key}(_vm_m, _vm_read_{one.words}({at}j - 1)){more}) {sign} its:\n"
            f"            _vm_store({at}j), _vm_load({at}j - 1)))\n            j -= 1\n"
            f"        _vm_store({at}j), word)\n"
        )
        return _call(name, _STATE, one.at, *(ast.Name(u, ast.Load()) for u in used))

    # --- statements -------------------------------------------------------------------------------

    def body(self, lines: list[ast.stmt]) -> list[ast.stmt]:
        return [new for line in lines for new in self.lines(line)]

    def visit_If(self, node: ast.If) -> ast.stmt:
        return ast.If(self.truth(node.test), self.body(node.body), self.body(node.orelse))

    def visit_While(self, node: ast.While) -> ast.stmt:
        return ast.While(self.truth(node.test), self.body(node.body), self.body(node.orelse))

    def visit_For(self, node: ast.For) -> ast.stmt:
        source, counted = node.iter, None
        match node:
            case ast.For(
                target=ast.Tuple(elts=[number, _]),
                iter=ast.Call(func=ast.Name(id="enumerate"), args=[inner]),
            ):
                counted, source = number, inner
        one, element = self.listed(source), None
        place = ast.Name(self.policy.unique("k"), ast.Load())
        if one is not None:
            element = self.read(one, _call("_vm_element", _STATE, one.at, one.width, place))
        elif self.of_self(source) and self.length(source) is not None:
            element = self.visit(ast.Subscript(source, place, ast.Load()))
        if element is None:
            return self.generic_visit(node)  # type: ignore[return-value]
        target = node.target if counted is None else node.target.elts[1]  # type: ignore[attr-defined]
        first: list[ast.stmt] = [ast.Assign([target], element)]
        if counted is not None:
            first.append(ast.Assign([counted], place))
        length = self.length(source)
        assert length is not None
        return ast.For(ast.Name(place.id, ast.Store()), _call("range", length),
                       [*first, *self.body(node.body)], self.body(node.orelse))  # fmt: skip

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        if not any(_of(target, self.me) for target in node.targets):
            return self.generic_visit(node)  # type: ignore[return-value]
        if len(node.targets) > 1:
            raise _Beyond(f"one value for several names (line {node.lineno})")
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Tuple):
            if not isinstance(value, ast.Tuple) or len(value.elts) != len(target.elts):
                raise _Beyond(f"values taken apart into attributes (line {node.lineno})")
            names = [ast.Name(self.policy.unique("v"), ast.Load()) for _ in value.elts]
            lines: list[ast.stmt] = [
                ast.Assign([ast.Name(n.id, ast.Store())], self.visit(v))
                for n, v in zip(names, value.elts, strict=True)
            ]
            for name, part in zip(names, target.elts, strict=True):
                lines.append(self.stored(part, name) if _of(part, self.me)
                             else ast.Assign([part], name))  # fmt: skip
            return lines
        if (one := self.listed(target)) is not None:
            if isinstance(value, ast.List) and not value.elts:
                return ast.Expr(_call("_vm_clear", _STATE, one.at))
            raise _Beyond(f"a list made anew (line {node.lineno})")
        return self.stored(target, self.visit(value))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt | list[ast.stmt]:
        if node.value is None or not _of(node.target, self.me):
            return self.generic_visit(node)  # type: ignore[return-value]
        return self.visit_Assign(ast.Assign([node.target], node.value, lineno=node.lineno))

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        if not _of(node.target, self.me):
            return self.generic_visit(node)  # type: ignore[return-value]
        if self.listed(node.target) is not None:
            raise _Beyond(f"a list made longer by += (line {node.lineno})")
        value = ast.BinOp(self.visit(node.target), node.op, self.visit(node.value))
        return self.stored(node.target, value)

    def visit_Delete(self, node: ast.Delete) -> list[ast.stmt]:
        lines: list[ast.stmt] = []
        for target in node.targets:
            one = self.listed(target.value) if isinstance(target, ast.Subscript) else None
            if one is None or isinstance(target.slice, ast.Slice):  # type: ignore[attr-defined]
                raise _Beyond(f"del (line {node.lineno})")
            place = self.visit(target.slice)  # type: ignore[attr-defined]
            lines.append(ast.Expr(_call("_vm_take", _STATE, one.at, one.width, place)))
        return lines

    def stored(self, target: ast.expr, value: ast.expr) -> ast.stmt:
        """Return the statement that stores a rewritten value in an attribute or an element."""
        if isinstance(target, ast.Subscript):
            if (one := self.listed(target.value)) is not None and one.width == 1:
                address = _call("_vm_element", _STATE, one.at, 1, self.visit(target.slice))
                return ast.Expr(_call(f"_vm_write_{one.words}", address, value))
            floats, address = self.placed(target)
            word = _call("_vm_word_of" if floats else "_vm_whole", value)
            return ast.Expr(_call("_vm_store", address, word))
        path = self.of_self(target)
        if not path or "." in path:
            raise _Beyond(f"an assignment to a part of {self.me} (line {target.lineno})")
        slot = self.policy.slot(path)
        if slot.kind not in ("int", "bool", "float"):
            raise _Beyond(f"{self.me}.{path} is made anew (line {target.lineno})")
        word = _call("_vm_word_of" if slot.kind == "float" else "_vm_whole", value)
        return ast.Assign([ast.Subscript(_STATE, ast.Constant(slot.at), ast.Store())], word)


def _of(node: ast.AST, me: str) -> bool:
    """Return True if a target of an assignment is an attribute or element of `self`."""
    if isinstance(node, ast.Tuple):
        return any(_of(one, me) for one in node.elts)
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
        if isinstance(node, ast.Name):
            return node.id == me
    return False
