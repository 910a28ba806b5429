"""Plain Python functions as LLVM modules, by way of Numba; Numba is imported by the first call of
`lower` and not before.

Any plain Python function that a compiled one reaches through its globals, its closure or a module
is compiled with it: it needs no decorator.  What Python has no word for is an `Intrinsic`: a Python
function with the same meaning, and a function that makes the compiled form when it is first needed.
An `Overloaded` picks one of several plain functions by the dtypes it is called with.  All three
keep their Python meaning where Python runs them.

A module whose `INLINE_ALWAYS` is true has its functions inlined wherever they are called; one whose
`REASSOCIATE` is true lets LLVM reorder the sums written in them, which vectorizes these.

Invariants
- Numba treats plain functions this way only while `lower` runs; other users of Numba in the process
  see no change.
- Callees are typed and lowered, never optimized on their own: that happens once, after the link
  (`flowvm.compiler.jit`).

Long because all that is private to Numba is in this one place.
"""

from __future__ import annotations

import functools
import types as pytypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from flowvm.compiler.shortcuts import pipeline, settled_flags, shortcuts
from flowvm.errors import CompileError

__all__ = [
    "Intrinsic",
    "LoweredFunction",
    "Overloaded",
    "dispatcher",
    "intrinsic",
    "lower",
]


class Intrinsic:
    """A function that is `python` where Python runs it, and `define()`'s code where it is compiled.

    `define` is called at most once, on the first compilation, and returns what
    `numba.extending.intrinsic` takes or, for a C function, a `numba.types.ExternalFunction`.
    `cuda` is what CUDA kernels have for `define`: another such function, or `python` itself where
    that can be compiled.
    """

    def __init__(
        self,
        python: Callable[..., Any],
        define: Callable[[], Any],
        cuda: Callable[..., Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, python)
        self.python = python
        self.define = define
        self.cuda = cuda or define

    def __call__(self, *args: Any) -> Any:
        return self.python(*args)

    @functools.cached_property
    def numba(self) -> Any:
        """The form that Numba knows."""
        from numba import types
        from numba.extending import intrinsic as numba_intrinsic

        defined = self.define()
        return defined if isinstance(defined, types.Type) else numba_intrinsic(defined)

    def jit_parts(self) -> tuple[Any, ...]:
        return (self.define,) if self.cuda is self.define else (self.define, self.cuda)


class Overloaded:
    """A function with one implementation for each dtype name, chosen by the widest argument; others
    convert to it.

    A float64 argument is wider than a float32, which is wider than any integer, which is wider than
    a bool. `implementations` has some of float32, float64, int64, int32 (for integers of 32 bits
    and fewer) and bool; a dtype without an implementation uses the next wider one.
    """

    WIDTHS = ("bool", "int32", "int64", "float32", "float64")

    def __init__(self, name: str, implementations: Mapping[str, Any], doc: str = "") -> None:
        self.__name__ = self.__qualname__ = name
        self.__doc__ = doc
        self.implementations = dict(implementations)

    def choose(self, dtypes: list[str]) -> tuple[str, Any]:
        """The dtype that arguments of these dtypes are converted to, and its implementation."""
        widest = max((self._width(name) for name in dtypes), default=0)
        for name in self.WIDTHS[widest:]:
            if name in self.implementations:
                return name, self.implementations[name]
        raise TypeError(f"{self.__name__} does not take {', '.join(dtypes)}")

    def _width(self, name: str) -> int:
        if "int" in name:
            name = "int64" if name.endswith("64") else "int32"
        elif name == "float16":
            name = "float32"
        return self.WIDTHS.index(name)

    def __call__(self, *args: Any) -> Any:
        names = [_python_dtype(a) for a in args]
        return self.choose(names)[1](*args)

    def jit_parts(self) -> tuple[Any, ...]:
        return tuple(part for pair in self.implementations.items() for part in pair)


def _python_dtype(value: Any) -> str:
    if hasattr(value, "dtype"):
        return str(value.dtype)
    return {bool: "bool", int: "int64", float: "float64"}[type(value)]


def intrinsic(define: Callable[[], Any]) -> Callable[[Callable[..., Any]], Intrinsic]:
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
    function: Any, args: tuple[Any, ...], result: Any = None, *, reassociate: bool = False
) -> LoweredFunction:
    """Type and lower `function` for Numba types `args`; `result` None lets Numba infer it."""
    return _frontend().lower(function, args, result, reassociate)


def dispatcher(function: Any) -> Any:
    """`function` as a Numba dispatcher for compiled functions to call; Python cannot call it."""
    return _frontend().dispatcher(function)


@functools.cache
def _frontend() -> _Frontend:
    return _Frontend()


class _Frontend:
    """Numba's front end: typing and lowering, with the optimization of callees put off to our own
    link.

    Needed privately: `_FunctionCompiler`, a code library's `_final_module`, `_linking_libraries`,
    `_ensure_finalized` and `_get_module_for_linking`; `typeof_impl`, by which a plain function or
    an `Intrinsic` becomes typable while this compiles, and at no other time; and `_defns`, by which
    a range counts as `_next_in_range` says, likewise.
    """

    def __init__(self) -> None:
        from numba.core.registry import cpu_target

        self.target = cpu_target
        self.dispatchers: dict[Any, Any] = {}
        self.active = 0  # inside `lower`, on the thread that holds _lock
        self.compiler = _device_compiler()
        self.target.target_context.refresh()
        self.next_of_kind = self.target.target_context._defns["iternext"]._cache
        self.next_in_range = _next_in_range()
        self._register()

    def options(self, reassociate: bool) -> dict[str, Any]:
        flags = {"contract", "reassoc"} if reassociate else {"contract"}
        return {"nopython": True, "nogil": True, "error_model": "numpy", "fastmath": flags}

    def _register(self) -> None:
        from numba.core.typing.typeof import typeof_impl

        plain = typeof_impl.dispatch(pytypes.FunctionType)

        def of_function(value: Any, c: Any) -> Any:
            if not self.active:
                return plain(value, c)
            known = self.target.typing_context._get_global_type(value)  # an @overload of Numba's
            if known is not None:
                return known
            return self._dispatcher_type(value)

        def of_intrinsic(value: Any, c: Any) -> Any:
            known = "numba" in vars(value)
            compiled = value.numba
            if not known:  # making it registered it, and the contexts look for news when told to
                self.target.typing_context.refresh()
                self.target.target_context.refresh()
            return self.target.typing_context.resolve_value_type(compiled)

        overloaded_type = _overloaded_type()

        def of_overloaded(value: Any, c: Any) -> Any:
            return overloaded_type(value)

        typeof_impl.register(pytypes.FunctionType, of_function)
        typeof_impl.register(Intrinsic, of_intrinsic)
        typeof_impl.register(Overloaded, of_overloaded)

    def _dispatcher_type(self, function: Any) -> Any:
        from numba import types

        return types.Dispatcher(self.dispatcher(function))

    def dispatcher(self, function: Any) -> Any:
        if function not in self.dispatchers:
            from numba.core.registry import CPUDispatcher

            options = self.options(bool(function.__globals__.get("REASSOCIATE")))
            made = CPUDispatcher(function, targetoptions=options)
            made._compiler = self.compiler(
                function, self.target, options, made._compiler.locals, pipeline()
            )
            self.dispatchers[function] = made
        return self.dispatchers[function]

    def lower(
        self, function: Any, args: tuple[Any, ...], result: Any, reassociate: bool
    ) -> LoweredFunction:
        from numba.core.compiler_lock import global_compiler_lock
        from numba.core.errors import NumbaError

        compiler = self.compiler(function, self.target, self.options(reassociate), {}, pipeline())
        with global_compiler_lock, self._compiling(), shortcuts():
            self.target.typing_context.refresh()
            self.target.target_context.refresh()
            try:
                compiled = compiler.compile(tuple(args), result)
            except NumbaError as error:
                raise CompileError(
                    f"{function.__qualname__} cannot be compiled: {error}"
                ) from error
        modules: list[Any] = []
        _collect(compiled.library, modules, set())
        name = compiled.fndesc.llvm_func_name
        types = [str(a.type) for a in modules[0].get_function(name).arguments]
        models = self.target.target_context.data_model_manager
        returns = str(models[compiled.signature.return_type].get_return_type())
        helpers = frozenset(
            cres.fndesc.llvm_func_name
            for made in self.dispatchers.values()
            if made.py_func.__globals__.get("INLINE_ALWAYS")
            for cres in made.overloads.values()
        )
        result_type = compiled.signature.return_type
        return LoweredFunction(name, modules, result_type, returns, types[2:], helpers)

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        from numba.core import config

        disabled, config.DISABLE_JIT = config.DISABLE_JIT, 0  # kernels cannot run uncompiled
        known = self.next_of_kind.copy()
        self.next_of_kind.update(self.next_in_range)
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1
            self.next_of_kind.clear()
            self.next_of_kind.update(known)
            config.DISABLE_JIT = disabled


def _device_compiler() -> Any:
    """Numba's function compiler, stopped after lowering: no wrappers, no optimization, no code."""
    from numba.core.dispatcher import _FunctionCompiler  # type: ignore[attr-defined]

    class DeviceCompiler(_FunctionCompiler):  # type: ignore[misc]
        def _customize_flags(self, flags: Any) -> Any:
            flags.no_cpython_wrapper = True
            flags.no_cfunc_wrapper = True
            flags.no_compile = True
            return settled_flags(flags)

        def _compile_core(self, args: Any, return_type: Any) -> Any:
            compiled = super()._compile_core(args, return_type)
            # Numba keys a callee by its entry point, which must be a builtin method, and would
            # finalize its library when a caller uses it.
            compiled = compiled._replace(entry_point=[].append)
            compiled.library._ensure_finalized = lambda: None
            compiled.library.flowvm_unfinished = True
            self.targetdescr.target_context.insert_user_function(
                compiled.entry_point, compiled.fndesc, [compiled.library]
            )
            return compiled

    return DeviceCompiler


def _next_in_range() -> dict[Any, Any]:
    """How a loop over a range counts, for the types of a range's iterator.

    As Numba has it, but the next number is said not to overflow.  It is used only if it is within
    the range, so that is true; and with it LLVM knows that x[i] has no negative i where the range
    begins at 0 or above, which it has to know to vectorize the loop.
    """
    from numba import types
    from numba.core import cgutils
    from numba.core.imputils import RefType, iternext_impl

    def made(kind: Any) -> Any:
        @iternext_impl(RefType.UNTRACKED)  # type: ignore[untyped-decorator]
        def advance(context: Any, builder: Any, signature: Any, args: Any, result: Any) -> None:
            state = cgutils.create_struct_proxy(kind)(context, builder, args[0])
            count = builder.load(state.count)
            result.set_valid(builder.icmp_signed(">", count, count.type(0)))
            with builder.if_then(result.is_valid()):
                value = builder.load(state.iter)
                result.yield_(value)
                builder.store(builder.sub(count, count.type(1), flags=["nsw"]), state.count)
                builder.store(builder.add(value, state.step, flags=["nsw"]), state.iter)

        return advance

    kinds = (types.range_iter32_type, types.range_iter64_type)
    return {(kind,): made(kind) for kind in kinds}


def _collect(library: Any, modules: list[Any], seen: set[int]) -> None:
    """The modules of `library` and of those it calls, each once, without Numba's runtime."""
    from numba.core.runtime import rtsys

    if id(library) in seen or library is getattr(rtsys, "library", None):
        return
    seen.add(id(library))
    if not getattr(library, "flowvm_unfinished", False):
        modules.append(library._get_module_for_linking())
        return
    modules.append(library._final_module)
    for callee in library._linking_libraries:
        _collect(callee, modules, seen)


def _overloaded_type() -> Any:
    """Numba's type for an `Overloaded`, which has no value at run time."""
    from numba import types
    from numba.core.imputils import lower_constant
    from numba.extending import models, register_model

    class OverloadedType(types.Callable, types.Opaque):  # type: ignore[misc]
        def __init__(self, value: Overloaded) -> None:
            self.value = value
            super().__init__(f"overloaded({value.__name__}, {id(value)})")

        def _chosen(self, context: Any, args: Any) -> tuple[Any, tuple[Any, ...]]:
            name, implementation = self.value.choose([types.unliteral(a).name for a in args])
            wanted = getattr(types, "boolean" if name == "bool" else name)
            return context.resolve_value_type(implementation), (wanted,) * len(args)

        def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
            implementation, wanted = self._chosen(context, args)
            return implementation.get_call_type(context, wanted, kws)

        def get_call_signatures(self) -> Any:
            return (), True

        def get_impl_key(self, signature: Any) -> Any:
            from numba.core.registry import cpu_target

            context = cpu_target.typing_context
            implementation, _ = self._chosen(context, signature.args)
            return implementation.get_impl_key(signature)

    register_model(OverloadedType)(models.OpaqueModel)

    def no_value(context: Any, builder: Any, kind: Any, value: Any) -> Any:
        return context.get_dummy_value()

    lower_constant(OverloadedType)(no_value)
    return OverloadedType
