"""Shortcuts in Numba's front end: answers that it computes again and again, computed once.

A cold start spends most of its time in Numba, and much of that on the same few questions.  Which of
twenty templates types `int64 + int64`?  What is the hash of a set of flags?  Which variables does a
statement name?  How large is an LLVM type?  It also counts references to memory that kernels never
own.  LLVM gets code of equal meaning with and without the shortcuts.

Invariants
- Answers are Numba's own: what is remembered is a function of what it is remembered by.
- Numba has its own code back where `shortcuts()` ends, and other threads of Numba wait for the
  compiler lock meanwhile, so other users of Numba in the process see no change.

- A shortcut is taken only where Numba reads as it did when the shortcut was written
  (`flowvm.private.table`); without it, the same code is compiled slower, or where functions are
  simplified twice (`function_passes`), code that means the same.

Private to Numba are the shortcuts in the table of `flowvm.private.numba`, the attributes that are
replaced here, and `_impl_keys` and `_values` of what they are replaced on.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator
from opcode import opmap
from types import BuiltinFunctionType, CodeType
from typing import TYPE_CHECKING, Any

from flowvm.guards.regions import reverting
from flowvm.private.numba import NUMBA

if TYPE_CHECKING:
    from flowvm.private.code_types import Builder, CodeContext, Value


# Passes that have nothing to do in most functions of ours: closures made inside are few, and
# whole-array arithmetic needs memory of Numba's, which native code may not have.
CLOSURES = "InlineClosureLikes"
ARRAY_EXPRESSIONS = "NopythonRewrites"


def shortcuts() -> reverting:
    """Let Numba take the shortcuts inside.  Call with Numba's compiler lock held."""
    before = [(owner, name, owner.__dict__.get(name)) for owner, name, _ in _replacements()]

    def switch() -> None:
        for owner, name, quick in _replacements():
            setattr(owner, name, quick)

    def undo() -> None:
        for owner, name, plain in reversed(before):
            if plain is not None:
                setattr(owner, name, plain)
            elif name in owner.__dict__:
                delattr(owner, name)

    return reverting(undo, switch)


@functools.cache
def _replacements() -> tuple[tuple[object, str, object], ...]:
    """(class or object, name of its attribute, what that is inside `shortcuts`)."""
    return tuple(r for name, quick in _SHORTCUTS if NUMBA.usable(name) for r in quick())


def _no_count(self: object, builder: Builder, kind: object, value: Value) -> None:
    """Count no references: kernels own no memory of Numba's, see `flowvm.compiler.jit`."""


def _remembering_call_types(plain: Callable[..., Any]) -> Callable[..., object]:
    """Typing of a call of an operator or a builtin on numbers, arrays and tuples of them.

    Numba tries every template of `+`, of arrays, lists, strings and sets, each time.
    """
    from numba import types

    flags_now = NUMBA.flags_stack.top_or_none
    known: dict[object, tuple[Any, object]] = {}
    simple = (types.Number, types.Boolean, types.Literal, types.Array)

    def get_call_type(self: Any, context: CodeContext, args: Any, kws: object) -> Any:
        if kws or not all(isinstance(a, simple) for a in args):
            return plain(self, context, args, kws)
        key = (self, args, flags_now())
        if key in known:
            signature, self._impl_keys[signature.args] = known[key]
            return signature
        signature = plain(self, context, args, kws)
        known[key] = signature, self._impl_keys[signature.args]
        return signature

    return get_call_type


def _variables_of(ir: Any) -> Callable[..., list[object]]:
    """Return the variables that a part of a statement names, by the part's class."""
    kinds: dict[type, int] = {}

    def kind_of(kind: type) -> int:
        cases = (ir.Var, ir.Inst, (list, tuple), dict)
        return next((k for k, case in enumerate(cases) if issubclass(kind, case)), len(cases))

    def list_vars(self: object, value: Any) -> list[object]:
        kind = kinds.get(value.__class__)
        if kind is None:
            kind = kinds[value.__class__] = kind_of(value.__class__)
        if kind == 4:
            return []
        if kind == 0:
            return [value]
        if kind == 1:
            variables: list[object] = value.list_vars()
            return variables
        parts = value if kind == 2 else value.values()
        return [variable for part in parts for variable in list_vars(self, part)]

    return list_vars


def _remembering_sizes(plain: Callable[[object], int]) -> Callable[[object], int]:
    """The size of an LLVM type, for which llvmlite makes and parses a module."""
    known: dict[str, int] = {}

    def get_abi_sizeof(kind: object) -> int:
        text = str(kind)
        if text not in known:
            known[text] = plain(kind)
        return known[text]

    return get_abi_sizeof


def _late_lifetimes(numba: Any) -> Callable[..., None]:
    """Return a replacement of Numba's pass that follows each change of a function.  It leaves out
    the lifetimes of variables, which only written deletions need.

    Deletions are left out, too; they are half of all statements.  References are not counted, and
    nothing reads a deleted variable.  So a deletion would only make LLVM forget a value that it has
    just read.
    """
    plain = numba.PostProcessor.run

    def run(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        function = self.func_ir
        if (emit_dels and not NUMBA.usable("counts")) or function.is_generator:
            plain(self, emit_dels, extend_lifetimes)
            return
        function.blocks = numba.transforms.canonicalize_cfg(function.blocks)
        function.variable_lifetime = numba.VariableLifetime(function.blocks)  # computed on demand
        function.generator_info = None

    return run


class _Context:
    """The context that Numba would add to an error raised inside, made only if there is one."""

    __slots__ = ("args", "named", "plain")

    def __init__(self, plain: Callable[..., Any], args: tuple[object, ...], named: Any) -> None:
        self.plain, self.args, self.named = plain, args, named

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> Any:
        if error is None:
            return None
        context = self.plain(*self.args, **self.named)
        context.__enter__()
        return context.__exit__(kind, error, trace)


def _late_context(plain: Callable[..., object]) -> Callable[..., _Context]:
    """Return a replacement of the error context of each statement and constraint: there is hardly
    ever an error.
    """

    def new_error_context(*args: object, **named: object) -> _Context:
        return _Context(plain, args, named)

    return new_error_context


def _quiet_statements(assign: type) -> Callable[..., Iterator[object]]:
    """Statements as an SSA handler changes them; a line of a log for each of them is not written,
    and not made ready either.
    """

    def run(states: object, block: Any, handler: Any) -> Iterator[object]:
        on_assign, on_other = handler.on_assign, handler.on_other
        for statement in block.body:
            visit = on_assign if isinstance(statement, assign) else on_other
            yield visit(states, statement)

    return run


def _plainly_run(new_error_context: Callable[..., Any]) -> Callable[..., None]:
    """Run one pass, without measuring its time, raising an event or printing it."""

    def run_pass(self: Any, index: int, step: Any, state: object) -> None:
        step.analysis = self._analysis
        with new_error_context("Pass {name}", name=step.name()):
            step.run_initialization(state)
            step.run_pass(state)
            step.run_finalizer(state)

    return run_pass


def _put_off(self: object, module: object) -> None:
    """Run no passes here; the caller says which functions have passes of their own."""


def _knowing_arrays(plain: Callable[..., object]) -> Callable[..., object]:
    """Remember, for each type of array, that it has no `__array__`."""
    known = set()

    def get_function(self: object, fn: object, sig: Any, _firstcall: bool = True) -> object:
        if fn.__class__ is not str or fn != "__array__":
            return plain(self, fn, sig, _firstcall)
        key = (id(self), sig.args)
        if key in known:
            raise NotImplementedError(f"No definition for lowering {fn}{sig}")
        try:
            return plain(self, fn, sig, _firstcall)
        except NotImplementedError:
            known.add(key)
            raise

    return get_function


def _prune_phis(self: object, runner: Any) -> None:
    """Find the possible values of each phi in use, and the states they come from.

    Numba joins the sites of every phi, used or not, until nothing changes.  If it finds several
    values of one state, it takes any of them; here it is the nearest.
    """
    phis: set[str] = set()
    needed: set[str] = set()
    for state in runner.finished:
        phis.update(state._phis)
        needed.update(set(state._phis).intersection(state._used_regs))
    sites: dict[str, list[tuple[str, Any]]] = {}
    for state in runner.finished:
        for phi, value in state._outgoing_phis.items():
            sites.setdefault(phi, []).append((value, state))
        state._outgoing_phis.clear()
    for phi in sorted(needed):
        todo, visited = [phi], {phi}
        for one in todo:  # which grows
            for value, state in sites.get(one, ()):
                if value not in phis:
                    if phi not in state._outgoing_phis:
                        state._outgoing_phis[phi] = value
                elif value not in visited:
                    visited.add(value)
                    todo.append(value)


# What is typed as itself, by its value; and what Numba may know by its identity alone.
NUMBERS = frozenset({int, float, bool, type(None)})
NAMED = frozenset({BuiltinFunctionType, type})


def _remembering_values(plain: Callable[..., object]) -> Callable[..., object]:
    """Types of constants.  Of a number it is remembered; of an operator, a builtin and a class,
    that it has none as a value, so that it is looked for among the functions at once.
    """
    known: dict[tuple[type, object], object] = {}
    functions = set()

    def resolve_value_type(self: Any, value: object) -> object:
        kind = value.__class__
        if kind in NUMBERS:
            answer = known.get((kind, value))
            if answer is None:
                answer = known[kind, value] = plain(self, value)
            return answer
        if kind not in NAMED:
            return plain(self, value)
        if value in functions:
            answer = self._get_global_type(value)
            return plain(self, value) if answer is None else answer
        answer = plain(self, value)
        if answer is self._get_global_type(value):
            functions.add(value)
        return answer

    return resolve_value_type


def _quick_literals(types: Any, plain: Callable[[object], object]) -> Callable[[object], object]:
    """Types of arguments that are constants, without an error for those that are no literals."""
    kinds = types.Literal.ctor_map

    def literal_or_omitted(value: object) -> object:
        literal = value.__class__ in kinds or isinstance(value, types.Literal)
        return plain(value) if literal else types.Omitted(value)

    return literal_or_omitted


WITHS = frozenset(
    opmap[name]
    for name in ("SETUP_WITH", "BEFORE_WITH", "BEFORE_ASYNC_WITH", "LOAD_SPECIAL")
    if name in opmap
)


def _if_it_has_withs(plain: Callable[[object], object]) -> Callable[[object], object]:
    """Skip Numba's two searches for the rest of a with statement in functions that have none."""

    def deleted(function: Any) -> object:
        has = WITHS.intersection(function.func_id.code.co_code[::2])
        return plain(function) if has else function

    return deleted


def unloaded_scipy() -> contextlib.AbstractContextManager[Any]:
    """Load Numba's parts inside the with statement without loading SciPy's BLAS.  If SciPy exists,
    its BLAS is taken to exist, and is loaded at the first need.
    """
    if not NUMBA.usable("blas"):
        return contextlib.nullcontext()
    owner = NUMBA.blas
    put = functools.partial(setattr, owner, "ensure_blas")
    return reverting(functools.partial(put, owner.ensure_blas), functools.partial(put, _has_scipy))


def _has_scipy() -> None:
    if importlib.util.find_spec("scipy") is None:
        raise ImportError("SciPy is not installed")


# --- the table ------------------------------------------------------------------------------

Replacement = tuple[object, str, object]


def _call_types() -> list[Replacement]:
    if not NUMBA.usable("flags_stack"):
        return []
    owner = NUMBA.call_types
    return [(owner, "get_call_type", _remembering_call_types(owner.get_call_type))]


def _variables() -> list[Replacement]:
    return [(NUMBA.variables.Inst, "_rec_list_vars", _variables_of(NUMBA.variables))]


def _counts() -> list[Replacement]:
    return [(NUMBA.counts, name, _no_count) for name in ("incref", "decref")]


def _locations() -> list[Replacement]:
    owner = NUMBA.locations
    return [(owner, "_has_loc", functools.lru_cache(4096)(owner._has_loc))]


def _sizes() -> list[Replacement]:
    context = NUMBA.target.target_context
    return [(context, "get_abi_sizeof", _remembering_sizes(context.get_abi_sizeof))]


def _lifetimes() -> list[Replacement]:
    return [(NUMBA.lifetimes.PostProcessor, "run", _late_lifetimes(NUMBA.lifetimes))]


def _contexts() -> list[Replacement]:
    late = _late_context(NUMBA.contexts.new_error_context)
    return [(owner, "new_error_context", late) for owner in (NUMBA.typing, NUMBA.lowering)]


def _statements() -> list[Replacement]:
    quiet = _quiet_statements(NUMBA.statements.ir.Assign)
    return [(NUMBA.statements, "_run_ssa_block_pass", quiet)]


def _passes() -> list[Replacement]:
    machinery = NUMBA.passes
    return [(machinery.PassManager, "_runPass", _plainly_run(machinery.errors.new_error_context))]


def _function_passes() -> list[Replacement]:
    return [(NUMBA.function_passes, "_optimize_functions", _put_off)]


def _array_likes() -> list[Replacement]:
    return [(NUMBA.array_likes, "get_function", _knowing_arrays(NUMBA.array_likes.get_function))]


def _triple() -> list[Replacement]:
    triple = NUMBA.triple.get_process_triple()
    return [(NUMBA.triple, "get_process_triple", lambda: triple)]


def _constants() -> list[Replacement]:
    from llvmlite import ir

    constant = ir.Constant
    return [(NUMBA.constants, "__call__", lambda kind, value: constant(kind, value))]


def _phis() -> list[Replacement]:
    return [(NUMBA.phis, "_prune_phis", _prune_phis)]


def _values() -> list[Replacement]:
    owner = NUMBA.values
    return [(owner, "resolve_value_type", _remembering_values(owner.resolve_value_type))]


def _literals() -> list[Replacement]:
    owner, name = NUMBA.literals, "_lit_or_omitted"
    return [(owner, name, _quick_literals(owner.types, getattr(owner, name)))]


def _withs() -> list[Replacement]:
    owner, name = NUMBA.withs, "peep_hole_delete_with_exit"
    return [(owner, name, _if_it_has_withs(getattr(owner, name)))]


_SHORTCUTS: tuple[tuple[str, Callable[[], list[Replacement]]], ...] = (
    ("call_types", _call_types),
    ("variables", _variables),
    ("counts", _counts),
    ("locations", _locations),
    ("sizes", _sizes),
    ("lifetimes", _lifetimes),
    ("contexts", _contexts),
    ("statements", _statements),
    ("passes", _passes),
    ("function_passes", _function_passes),
    ("array_likes", _array_likes),
    ("triple", _triple),
    ("constants", _constants),
    ("phis", _phis),
    ("values", _values),
    ("literals", _literals),
    ("withs", _withs),
)


# --- passes and flags -----------------------------------------------------------------------


@functools.cache
def pipeline() -> Any:
    """Numba's compiler without the passes that have nothing to do."""
    if not NUMBA.usable("pipeline"):
        return NUMBA.Compiler
    numba = NUMBA.pipeline

    class ShortPipeline(numba.CompilerBase):  # type: ignore[misc, name-defined]
        def define_pipelines(self) -> list[object]:
            idle = {ARRAY_EXPRESSIONS}
            if not _has_closures(self.state.func_id.code):
                idle.add(CLOSURES)
            short = numba.PassManager("flowvm")
            for kind, why in numba.DefaultPassBuilder.define_nopython_pipeline(self.state).passes:
                if getattr(kind, "__name__", "") not in idle:
                    short.add_pass(kind, why)
            short.finalize()
            return [short]

    return ShortPipeline


def _has_closures(code: CodeType) -> bool:
    """Return True if the code contains functions or comprehensions."""
    return any(isinstance(constant, CodeType) for constant in code.co_consts)


def settled_flags(flags: object) -> object:
    """Return equal flags that remember their hash: Numba's flags take 40 look-ups for each
    comparison.
    """
    return _settled()(flags) if NUMBA.usable("flags") else flags


@functools.cache
def _settled() -> Any:
    flags: Any = NUMBA.flags

    class Watched(dict[str, Any]):
        """The values of flags; a change forgets the hash."""

        def __init__(self, owner: Any) -> None:
            super().__init__()
            self.owner = owner

        def __setitem__(self, name: str, value: object) -> None:
            self.owner.forget()
            super().__setitem__(name, value)

        def __delitem__(self, name: str) -> None:
            self.owner.forget()
            super().__delitem__(name)

        def pop(self, *args: Any) -> Any:
            self.owner.forget()
            return super().pop(*args)

    class SettledFlags(flags):  # type: ignore[misc]
        __slots__ = ("hashed", "members")

        result: object
        hashed: int | None

        def __init__(self, copy_from: Any = None) -> None:
            self.forget()
            self._values = Watched(self)  # type: ignore[misc]  # Numba's slot
            if copy_from is not None:
                self._values.update(copy_from._values)

        def forget(self) -> None:
            self.members = self.hashed = None

        def values(self) -> None:
            if self.members is None:
                self.members = super().values()
            return self.members

        def __eq__(self, other: object) -> Any:
            return True if other is self else super().__eq__(other)

        def __hash__(self) -> int:
            if self.hashed is None:
                self.hashed = super().__hash__()
            return self.hashed

    return SettledFlags
