"""Plain Python functions as LLVM modules, by way of Numba; Numba is imported by the first call of
`lower` and not before.

Any plain Python function that a compiled one reaches through its globals, its closure or a module
is compiled with it: it needs no decorator.  What Python has no word for is an `Intrinsic`: a Python
function with the same meaning, and a function that makes the compiled form when it is first needed.
An `Overloaded` picks one of several plain functions by the dtypes it is called with.  All three
keep their Python meaning where Python runs them.

A module whose `INLINE_ALWAYS` is true has its functions inlined wherever they are called; one whose
`REASSOCIATE` is true lets LLVM reorder the sums written in them, which vectorizes these.  A body
of a module whose `LOOPS_ONLY` is true is loops that become vectors: LLVM neither unrolls them nor
looks for vectors elsewhere, which takes longer than all else where there are many.  Functions of a
module whose `WORDS_ONLY` is true are compiled without Numba (`flowvm.compiler.words`), kernel
bodies, too (`flowvm.compiler.bodies`), with all that they call, wherever it stands.

Invariants
- Numba treats plain functions this way only while `lower` runs; other users of Numba in the process
  see no change.
- Callees are typed and lowered, and optimized once, after the link (`flowvm.compiler.jit`).  Those
  that are inlined always, before anything is looked at, are simplified on their own first, or LLVM
  would not find how to vectorize the loops that they end up in; it finds that of the others itself.

What of Numba is private stands in `flowvm.private.numba`.
"""

from __future__ import annotations

import functools
import types as pytypes
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from flowvm.compiler import lines, ranges, record
from flowvm.compiler.shortcuts import pipeline, settled_flags, shortcuts, unloaded_scipy
from flowvm.errors import CompileError
from flowvm.guards.collection import settle
from flowvm.guards.regions import reverting
from flowvm.private.llvmlite import mend_calls
from flowvm.private.numba import (
    NUMBA,
    compiled_by,
    forget_function,
    function_compiler,
    global_type,
    never_finalized,
    parts_of,
    simplify,
)

if TYPE_CHECKING:
    from flowvm.private.code_types import Builder, CodeContext, Value


# what an intrinsic takes: numbers; numbers and arrays, whose addresses `build` gets; an array or
# dtype of which the dtype counts; an array of bytes, the place and length of another in it, and
# what has its dtype
NUMBERS, ARRAYS, DTYPE, MEMORY = "numbers", "arrays", "dtype", "memory"


class Intrinsic:
    """A function that is `python` where Python runs it, and `define()`'s code where it is compiled.

    `define` is called at most once, at the first compilation.  It returns the argument of
    `numba.extending.intrinsic` or, for a C function, a `numba.types.ExternalFunction`; None: what
    Numba compiles may not call this.  `cuda`
    replaces `define` for CUDA kernels: another such function, or `python` itself if that can be
    compiled.  `text` is for code without Numba (`flowvm.compiler.words`): of the names of the
    result and of the arguments it makes lines of LLVM's code that set the result, which is of the
    type `gives`, where one is used; other names in them begin with the result's.  `build` is for
    bodies without Numba (`flowvm.compiler.bodies`): of llvmlite's builder, values and their dtypes
    it makes the result and its dtype, "" where there is none.  `takes` says what its arguments are.
    """

    __name__: str  # of `python`

    def __init__(
        self,
        python: Callable[..., object],
        define: Callable[[], object] | None,
        cuda: Callable[..., object] | None = None,
        text: Callable[..., str] | None = None,
        gives: str = "i64",
        build: Callable[..., tuple[Any, str]] | None = None,
        takes: str = NUMBERS,
    ) -> None:
        functools.update_wrapper(self, python)
        self.python = python
        self.define = define
        self.cuda = cuda or define
        self.text = text
        self.gives = gives
        self.build = build
        self.takes = takes

    def __call__(self, *args: object) -> Any:
        return self.python(*args)

    @functools.cached_property
    def numba(self) -> Any:
        """The form of the intrinsic for Numba."""
        from numba import types
        from numba.extending import intrinsic as numba_intrinsic

        if self.define is None:
            raise CompileError(
                f"{self.python.__name__} is for functions of a module with WORDS_ONLY"
            )
        defined = self.define()
        return defined if isinstance(defined, types.Type) else numba_intrinsic(defined)

    def jit_parts(self) -> tuple[Any, ...]:
        cuda = None if self.cuda is self.define else self.cuda
        parts = (self.define, cuda, self.text, self.build)
        return tuple(part for part in parts if part is not None)


class Overloaded:
    """A function with one implementation for each dtype name, chosen by the widest argument; others
    convert to it.

    A float64 argument is wider than a float32, which is wider than any integer, which is wider than
    a bool. `implementations` has some of float32, float64, int64, int32 (for integers of 32 bits
    and fewer), uint64 and bool; a dtype without an implementation uses the next wider one, and
    uint64 int64's.
    """

    WIDTHS = ("bool", "int32", "int64", "float32", "float64")

    def __init__(self, name: str, implementations: Mapping[str, Any], doc: str = "") -> None:
        self.__name__ = self.__qualname__ = name
        self.__doc__ = doc
        self.implementations = dict(implementations)

    def choose(self, dtypes: list[str]) -> tuple[str, Any]:
        """Return the dtype to which arguments of these dtypes are converted, and its
        implementation.
        """
        widest = max((self._width(name) for name in dtypes), default=0)
        whole = self.WIDTHS[widest] == "int64" and "uint64" in dtypes
        for name in ("uint64", *self.WIDTHS[widest:]) if whole else self.WIDTHS[widest:]:
            if name in self.implementations:
                return name, self.implementations[name]
        raise TypeError(f"{self.__name__} does not take {', '.join(dtypes)}")

    def _width(self, name: str) -> int:
        if "int" in name:
            name = "int64" if name.endswith("64") else "int32"
        elif name == "float16":
            name = "float32"
        return self.WIDTHS.index(name)

    def __call__(self, *args: object) -> Any:
        names = [_python_dtype(a) for a in args]
        return self.choose(names)[1](*args)

    def jit_parts(self) -> tuple[Any, ...]:
        return tuple(part for pair in self.implementations.items() for part in pair)


def _python_dtype(value: object) -> str:
    if hasattr(value, "dtype"):
        return str(value.dtype)
    return {bool: "bool", int: "int64", float: "float64"}[type(value)]


def intrinsic(define: Callable[[], object]) -> Callable[[Callable[..., Any]], Intrinsic]:
    """Decorates the Python meaning of an intrinsic whose compiled meaning is `define()`."""
    return lambda python: Intrinsic(python, define)


class LoweredFunction(NamedTuple):
    """A function as Numba lowered it: `name` takes (result*, error**, *flattened args)."""

    name: str
    modules: list[Any]
    result: Any  # Numba's type
    result_ir: str
    args_ir: list[str]
    helpers: frozenset[str]  # callees from modules that set INLINE_ALWAYS


def lower(
    function: object,
    args: tuple[object, ...],
    result: object = None,
    *,
    reassociate: bool = False,
    simplified: bool = False,
) -> LoweredFunction:
    """Type and lower `function` for Numba types `args`; `result` None lets Numba infer it.

    `simplified`: all that it calls is simplified on its own first, which takes a fifth longer and
    makes branches of a few nanoseconds quicker.
    """
    with record.phase(record.NUMBA):
        frontend = _frontend()
    return frontend.lower(function, args, result, reassociate, simplified)


def ready() -> None:
    """Import Numba and make its front end ready, before there is a function to lower."""
    _frontend()


def forget(names: frozenset[str]) -> None:
    """Lower callers of these LLVM functions anew for the next program, which has one of them."""
    _frontend().forget(names)


def dispatcher(function: object) -> Any:
    """`function` as a Numba dispatcher for compiled functions to call; Python cannot call it."""
    return _frontend().dispatcher(function)


@functools.cache
def _frontend() -> _Frontend:
    mend_calls()
    frontend = _Frontend()
    settle()
    return frontend


class _Frontend:
    """Numba's front end: typing and lowering, with the optimization of callees put off to our own
    link.

    Only while this compiles is a plain function or an `Intrinsic` typable, and are arrays read and
    ranges counted as `lines` and `ranges` of this package say.
    """

    def __init__(self) -> None:
        self.target = NUMBA.target
        self.dispatchers: dict[object, Any] = {}
        self.active = 0  # inside `lower`, on the thread that holds _lock
        self.simplified = False  # the argument of `lower`
        self.compiler = function_compiler(_flags, self._lowered)
        with NUMBA.lock, unloaded_scipy():
            self.target.target_context.refresh()
        context = self.target.target_context
        self.ways = [*lines.ways(context), *ranges.ways(context)]
        self._register()

    def options(self, reassociate: bool) -> dict[str, object]:
        flags = {"contract", "reassoc"} if reassociate else {"contract"}
        return {"nopython": True, "nogil": True, "error_model": "numpy", "fastmath": flags}

    def _register(self) -> None:
        from numba.extending import typeof_impl

        plain = typeof_impl.dispatch(pytypes.FunctionType)

        def of_function(value: object, c: object) -> object:
            if not self.active:
                return plain(value, c)
            known = global_type(self.target.typing_context, value)  # an @overload of Numba's
            if known is not None:
                return known
            return self._dispatcher_type(value)

        def of_intrinsic(value: Intrinsic, c: object) -> object:
            known = "numba" in vars(value)
            compiled = value.numba
            if not known:  # making it registered it; the contexts look for news on request
                self.target.typing_context.refresh()
                self.target.target_context.refresh()
            return self.target.typing_context.resolve_value_type(compiled)

        overloaded_type = _overloaded_type()

        def of_overloaded(value: object, c: object) -> object:
            return overloaded_type(value)

        typeof_impl.register(pytypes.FunctionType, of_function)
        typeof_impl.register(Intrinsic, of_intrinsic)
        typeof_impl.register(Overloaded, of_overloaded)

    def _dispatcher_type(self, function: object) -> object:
        from numba import types

        return types.Dispatcher(self.dispatcher(function))

    def dispatcher(self, function: Any) -> object:
        key = function, self.simplified
        if key not in self.dispatchers:
            options = self.options(bool(function.__globals__.get("REASSOCIATE")))
            self.dispatchers[key] = compiled_by(
                function,
                options,
                lambda types: self.compiler(function, self.target, options, types, pipeline()),
            )
        return self.dispatchers[key]

    def lower(
        self,
        function: Any,
        args: tuple[object, ...],
        result: object,
        reassociate: bool,
        simplified: bool,
    ) -> LoweredFunction:
        compiler = self.compiler(function, self.target, self.options(reassociate), {}, pipeline())
        with NUMBA.lock, self._compiling(simplified), shortcuts():
            self.target.typing_context.refresh()
            self.target.target_context.refresh()
            try:
                compiled = compiler.compile(tuple(args), result)
            except NUMBA.NumbaError as error:
                raise CompileError(
                    f"{function.__qualname__} cannot be compiled: {error}"
                ) from error
        # nobody calls a program: only its callers' copies stay of it
        forget_function(self.target.target_context, compiled.entry_point)
        if not self._is_simplified(function, simplified):  # the program's entry has it inlined
            _simplify(compiled.library)
        modules: list[Any] = []
        _collect(compiled.library, modules, set())
        name = compiled.fndesc.llvm_func_name
        types = [str(a.type) for a in modules[0].get_function(name).arguments]
        models = self.target.target_context.data_model_manager
        returns = str(models[compiled.signature.return_type].get_return_type())
        helpers = frozenset(
            cres.fndesc.llvm_func_name
            for dispatcher in self.dispatchers.values()
            if _inlined_always(dispatcher.py_func)
            for cres in dispatcher.overloads.values()
        )
        result_type = compiled.signature.return_type
        return LoweredFunction(name, modules, result_type, returns, types[2:], helpers)

    def forget(self, names: frozenset[str]) -> None:
        for key, dispatcher in list(self.dispatchers.items()):
            modules: list[Any] = []
            visited: set[int] = set()
            for compiled in dispatcher.overloads.values():
                _collect(compiled.library, modules, visited)
            called = (f.name for m in modules for f in m.functions if f.is_declaration)
            if not names.isdisjoint(called):
                del self.dispatchers[key]

    def _is_simplified(self, function: object, all_are: bool) -> bool:
        return all_are or _inlined_always(function)

    def _lowered(self, target: Any, function: object, compiled: Any) -> object:
        """A lowered function, ready to be called by others."""
        if self._is_simplified(function, self.simplified):
            _simplify(compiled.library)
        # Numba keys a callee by its entry point, which must be a builtin method, and would finalize
        # its library when a caller uses it. The types and calls it was lowered from are most of its
        # memory, and are not needed any more.
        compiled.fndesc.typemap, compiled.fndesc.calltypes = {}, {}
        compiled = compiled._replace(entry_point=[].append, type_annotation=None)
        never_finalized(compiled.library)
        compiled.library.flowvm_unfinished = True
        target.insert_user_function(compiled.entry_point, compiled.fndesc, [compiled.library])
        return compiled

    def _compiling(self, simplified: bool) -> reverting:
        from numba import config

        disabled, active, before = config.DISABLE_JIT, self.active, self.simplified

        def switch() -> None:
            config.DISABLE_JIT = 0  # kernels cannot run uncompiled
            for owner, name, own in self.ways:
                setattr(owner, name, own)
            self.active = active + 1
            self.simplified = simplified

        def undo() -> None:
            self.active, self.simplified = active, before
            for owner, name, _ in self.ways:
                owner.__dict__.pop(name, None)  # and Numba's own is the class's
            config.DISABLE_JIT = disabled

        return reverting(undo, switch)


@record.phase(record.PASSES)
def _simplify(library: object) -> None:
    simplify(library)


def _inlined_always(function: Any) -> bool:
    return bool(function.__globals__.get("INLINE_ALWAYS"))


def _flags(flags: Any) -> object:
    """Stop after lowering: no wrappers, no optimization, no code."""
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.no_compile = True
    return settled_flags(flags)


def _collect(library: object, modules: list[object], visited: set[int]) -> None:
    """Append the modules of `library` and of the libraries that it calls, each once, without
    Numba's runtime.
    """
    if id(library) in visited or library is getattr(NUMBA.runtime, "library", None):
        return
    visited.add(id(library))
    module, callees = parts_of(library, not getattr(library, "flowvm_unfinished", False))
    modules.append(module)
    for callee in callees:
        _collect(callee, modules, visited)


def _overloaded_type() -> Any:
    """Numba's type for an `Overloaded`, which has no value at run time."""
    from numba import types
    from numba.extending import models, register_model

    class OverloadedType(types.Callable, types.Opaque):  # type: ignore[misc]
        def __init__(self, value: Overloaded) -> None:
            self.value = value
            super().__init__(f"overloaded({value.__name__}, {id(value)})")

        def _chosen(self, context: CodeContext, args: Any) -> tuple[Any, tuple[object, ...]]:
            name, implementation = self.value.choose([types.unliteral(a).name for a in args])
            kind = getattr(types, "boolean" if name == "bool" else name)
            return context.resolve_value_type(implementation), (kind,) * len(args)

        def get_call_type(self, context: object, args: object, kws: object) -> object:
            implementation, kind = self._chosen(context, args)
            return implementation.get_call_type(context, kind, kws)

        def get_call_signatures(self) -> tuple[tuple[()], bool]:
            return (), True

        def get_impl_key(self, signature: Any) -> object:
            context = NUMBA.target.typing_context
            implementation, _ = self._chosen(context, signature.args)
            return implementation.get_impl_key(signature)

    register_model(OverloadedType)(models.OpaqueModel)

    def no_value(context: CodeContext, builder: Builder, kind: object, value: Value) -> Value:
        return context.get_dummy_value()

    NUMBA.imputils.lower_constant(OverloadedType)(no_value)
    return OverloadedType
