"""Numba-CUDA's front end and code generator, for kernels that are plain Python functions.

The contexts, in which Numba looks up what names mean and how types are laid out, are subclasses of
its own and belong to `Frontend` alone.  What of Numba-CUDA is private stands in
`flowvm.private.numba_cuda`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import types as pytypes
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

from flowvm.compiler.native import Intrinsic, Overloaded
from flowvm.cuda.compiler.indices import special
from flowvm.errors import CompileError
from flowvm.ops.scalar.half import narrowed, widened
from flowvm.private.numba_cuda import (
    NUMBA_CUDA,
    compiling,
    cuda_target,
    enter_at,
    global_type,
    type_of,
)

if TYPE_CHECKING:
    from flowvm.private.code_types import (
        Builder,
        CodeContext,
        Signature,
        Type,
        TypingContext,
        Value,
    )


# the lowered code is equal for all capabilities that flowvm supports
LOWERED_FOR = (7, 0)


@functools.cache
def frontend() -> Frontend:
    """Return the one front end of this process."""
    return Frontend()


class Frontend:
    """Types, lowers and generates code; use it under the lock of `compiling`."""

    def __init__(self) -> None:
        self.target = cuda_target(_typing_context(self), _target_context)
        self.dispatcher_class = _dispatcher_class(self)
        self.overloaded_type = _overloaded_type(self)
        self.dispatchers: dict[object, object] = {}
        self.intrinsics: dict[Intrinsic, object] = {}

    @functools.lru_cache(maxsize=8)  # noqa: B019  the front end lives as long as the process
    def library(self, kernel: Any, signature: Any) -> tuple[Any, Any]:
        """`kernel` lowered, ready for code of any capability; with the name of its entry."""
        from numba.cuda import types

        args = tuple(_numba_type(kind) for kind in signature)
        try:
            compiled = self.lower(kernel, args, types.void)
        except Exception as error:  # Numba's own, a driver that it looks for, anything
            raise CompileError(
                f"{kernel.__qualname__} cannot be compiled for {', '.join(map(str, args))}: {error}"
                f" ({_versions()})"
            ) from error
        library = compiled.library
        name = compiled.fndesc.llvm_func_name
        enter_at(library, name)
        return library, name

    def compile(self, kernel: Any, signature: Any, cc: tuple[int, int]) -> tuple[str, str]:
        """PTX, and the name of its entry."""
        library, name = self.library(kernel, signature)
        try:
            return _generate(library.llvm_strs, cc), name
        except CompileError as error:
            raise CompileError(f"{kernel.__qualname__} cannot be compiled: {error}") from error

    def lower(self, function: Any, args: tuple[object, ...], result: object = None) -> Any:
        """Numba's compile result of `function`, without machine code."""
        compiler, flags = NUMBA_CUDA.compiler, NUMBA_CUDA.CUDAFlags()
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        flags.error_model = "numpy"
        flags.forceinline = bool(function.__globals__.get("INLINE_ALWAYS"))
        flags.nvvm_options = {"opt": 3, "fastmath": False}  # fma is NVVM's default
        flags.compute_capability = LOWERED_FOR
        typing, target = self.target.typing_context, self.target.target_context
        with NUMBA_CUDA.lock, NUMBA_CUDA.utils.numba_target_override():
            typing.refresh()
            target.refresh()
            compiled = compiler.compile_extra(
                typingctx=typing, targetctx=target, func=function, args=args, return_type=result,
                flags=flags, locals={}, pipeline_class=compiler.CUDACompiler,
                call_conv=NUMBA_CUDA.CUDACallConv(target), abi_info={},
            )  # fmt: skip
            compiled.library.finalize()
        return compiled

    def type_of(self, value: object) -> Any:
        """Return the type of a value that only flowvm knows, or None."""
        if isinstance(value, pytypes.FunctionType):
            return self.function_type(value)
        if isinstance(value, Overloaded):
            return self.overloaded_type(value)
        if isinstance(value, Intrinsic):
            return self.intrinsic_type(value)
        return None

    def function_type(self, function: FunctionType) -> Any:
        if function not in self.dispatchers:
            self.dispatchers[function] = self.dispatcher_class(function, {"device": True})
        return type_of(self.dispatchers[function])

    def intrinsic_type(self, value: Intrinsic) -> Any:
        context = self.target.typing_context
        if value not in self.intrinsics:
            self.intrinsics[value] = self._intrinsic(value)
            context.refresh()  # making it registered it
            self.target.target_context.refresh()
        intrinsic = self.intrinsics[value]
        if isinstance(intrinsic, pytypes.FunctionType):
            return self.function_type(intrinsic)
        return context.resolve_value_type(intrinsic)

    def _intrinsic(self, value: Intrinsic) -> Any:
        from numba.cuda import types
        from numba.cuda.extending import intrinsic

        if value.cuda is value.python:
            return value.python
        if value.cuda is None:
            raise CompileError(f"{value.__name__} is for functions of a module with WORDS_ONLY")
        defined = value.cuda()
        if isinstance(defined, types.Type):
            raise CompileError(f"{defined} is a C function, which CUDA kernels cannot call")
        return intrinsic(defined)


def _generate(modules: list[str], cc: tuple[int, int]) -> str:
    """Return the PTX of a program's modules; the first module has the kernel.

    NVVM's verifier is not asked: it refuses functions (llvm.fabs, llvm.rint) that its compiler has
    instructions for; broken modules are found by the compiler itself.
    """
    from cuda.bindings import nvvm

    names = NUMBA_CUDA.nvvm
    try:
        options = [f"-arch={NUMBA_CUDA.get_arch_option(*cc)}", "-opt=3"]
    except Exception as error:  # the toolkit knows no such device, or none so old any more
        raise CompileError(f"{error} ({_versions()})") from error
    program = nvvm.create_program()
    try:
        for module in modules:
            text = names.llvm_replace(module).encode()
            nvvm.add_module_to_program(program, text, len(text), "")
        if any('@"__nv_' in module or "@__nv_" in module for module in modules):
            library = names.LibDevice().get()
            nvvm.lazy_add_module_to_program(program, library, len(library), "")
        nvvm.compile_program(program, len(options), options)
        image = bytearray(nvvm.get_compiled_result_size(program))
        nvvm.get_compiled_result(program, image)
    except nvvm.nvvmError as error:
        log = bytearray(nvvm.get_program_log_size(program))
        nvvm.get_program_log(program, log)
        raise CompileError(f"{error}: {log.decode(errors='replace').strip()}") from error
    finally:
        nvvm.destroy_program(program)
    return image.decode().strip("\x00").strip()


def _versions() -> str:
    """Return the versions of the compiler's packages, for a message: versions that do not match
    fail in many ways.
    """
    names = ("numba-cuda", "numba", "numpy", "cuda-bindings")
    versions = []
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join(versions)


def _numba_type(kind: Any) -> Any:
    from numba.cuda import types

    def scalar(name: str) -> Any:
        return getattr(types, "boolean" if name == "bool" else name)

    if isinstance(kind, str):
        return scalar(kind)
    if isinstance(kind[0], type):
        return types.BaseTuple.from_types(tuple(map(scalar, kind[1])), kind[0])
    dtype, dimensions, layout = kind
    return types.Array(scalar(dtype), dimensions, layout)


def _typing_context(owner: Frontend) -> object:
    from numba.cuda import types

    base: Any = NUMBA_CUDA.TypingContext

    class TypingContext(base):  # type: ignore[misc]
        def resolve_value_type(self, value: object) -> object:
            if isinstance(value, pytypes.FunctionType):
                known = global_type(self, value)  # an @overload of Numba's
                return owner.type_of(value) if known is None else known
            return owner.type_of(value) or super().resolve_value_type(value)

        def can_convert(self, fromty: object, toty: object) -> object:
            if toty == types.bfloat16 and fromty == types.boolean:
                return NUMBA_CUDA.Conversion.unsafe  # Numba knows it of every other dtype
            return super().can_convert(fromty, toty)

    return TypingContext()


def _target_context(typing: object) -> object:
    from llvmlite import ir
    from numba.cuda import types

    base: Any = NUMBA_CUDA.TargetContext
    model: Any = NUMBA_CUDA.BooleanModel
    reduced = {types.float16: "float16", types.bfloat16: "bfloat16"}

    class AnyNonzero(model):  # type: ignore[misc]
        """A bool in memory: one byte, true if any of its bits is set."""

        def from_data(self, builder: Builder, value: Value) -> object:
            return builder.icmp_unsigned("!=", value, value.type(0))

    class TargetContext(base):  # type: ignore[misc]
        data_model_manager: object

        def __init__(self) -> None:
            super().__init__(typing)
            ours = NUMBA_CUDA.DataModelManager()
            ours.register(types.Boolean, AnyNonzero)
            self.data_model_manager = ours.chain(self.data_model_manager)

        def get_function(self, fn: object, sig: object, _firstcall: bool = True) -> object:
            return special(self, fn, sig) or super().get_function(fn, sig, _firstcall)

        def cast(self, builder: Builder, value: object, source: object, target: object) -> Value:
            if source == target:
                return super().cast(builder, value, source, target)
            if source in reduced:
                single = widened(builder, value, reduced[source])
                return self.cast(builder, single, types.float32, target)
            if target in reduced:
                single = self.cast(builder, value, source, types.float32)
                stored = narrowed(builder, single, reduced[target])
                return builder.bitcast(stored, ir.IntType(16))
            return super().cast(builder, value, source, target)

    return TargetContext()


def _dispatcher_class(owner: Frontend) -> Any:
    base: Any = NUMBA_CUDA.CUDADispatcher

    class DeviceFunction(base):  # type: ignore[misc]
        """A function that kernels call: compiled by `owner` for the types it is called with."""

        targetdescr = owner.target

        def compile_device(self, args: Any, return_type: object = None) -> object:
            if args not in self.overloads:
                with compiling(self):
                    compiled = owner.lower(self.py_func, args, return_type)
                self.overloads[args] = compiled
                compiled.target_context.insert_user_function(
                    compiled.entry_point, compiled.fndesc, [compiled.library]
                )
            return self.overloads[args]

    return DeviceFunction


def _overloaded_type(owner: Frontend) -> Any:
    """Numba's type for an `Overloaded`, which has no value at run time."""
    from numba.cuda import types
    from numba.cuda.extending import core_models, register_model

    class OverloadedType(types.Callable, types.Opaque):  # type: ignore[misc]
        def __init__(self, value: Overloaded) -> None:
            self.value = value
            super().__init__(f"overloaded({value.__name__}, {id(value)})")

        def _chosen(self, args: Any) -> tuple[Any, tuple[object, ...]]:
            name, implementation = self.value.choose([_name_of(a) for a in args])
            kind = getattr(types, "boolean" if name == "bool" else name)
            context = owner.target.typing_context
            return context.resolve_value_type(implementation), (kind,) * len(args)

        def get_call_type(self, context: object, args: object, kws: object) -> object:
            implementation, kind = self._chosen(args)
            return implementation.get_call_type(context, kind, kws)

        def get_call_signatures(self) -> tuple[tuple[()], bool]:
            return (), True

        def get_impl_key(self, signature: Any) -> object:
            implementation, _ = self._chosen(signature.args)
            return implementation.get_impl_key(signature)

    register_model(OverloadedType)(core_models.OpaqueModel)

    @NUMBA_CUDA.imputils.lower_constant(OverloadedType)  # type: ignore[untyped-decorator]
    def no_value(context: CodeContext, builder: Builder, kind: object, value: Value) -> Value:
        return context.get_dummy_value()

    return OverloadedType


def _name_of(kind: object) -> str:
    from numba.cuda import types

    if kind == types.bfloat16:
        return "float32"  # which kernels reckon it in; Numba's name is a C type's
    return str(types.unliteral(kind).name)


def _attempted(
    context: CodeContext,
    builder: Builder,
    function: Value,
    called: Value,
    arguments: Value,
    kinds: Sequence[Type],
) -> tuple[Value, Value]:
    """Call a function without passing its status on.  Return the status and the result."""
    compiled = function.dispatcher.overloads[tuple(called.args)]
    passed = [
        context.cast(builder, value, kind, to)
        for value, kind, to in zip(
            NUMBA_CUDA.cgutils.unpack_tuple(builder, arguments), kinds, called.args, strict=True
        )
    ]
    context.active_code_library.add_linking_library(compiled.library)
    convention = compiled.fndesc.call_conv
    status, result = convention.call_internal_no_propagate(builder, compiled.fndesc, called, passed)
    return status, result


def define_attempt() -> Callable[..., object]:
    """Define the lowering of `compilation.attempt`."""
    from numba.cuda import types

    def attempt(typingctx: TypingContext, function: Type, arguments: Type) -> object:
        called = typingctx.resolve_function_type(function, arguments.types, {})
        result = types.Tuple([types.boolean, called.return_type])

        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> object:
            status, value = _attempted(
                context, builder, function, called, values[1], arguments.types
            )
            return context.make_tuple(builder, result, [builder.not_(status.is_error), value])

        return result(function, arguments), codegen

    return attempt


def define_status() -> Callable[..., object]:
    """Define the lowering of `compilation.status_of`."""
    from llvmlite import ir
    from numba.cuda import types

    def status_of(
        typingctx: TypingContext, function: Type, arguments: Type, raised: object
    ) -> object:
        called = typingctx.resolve_function_type(function, arguments.types, {})
        kind = getattr(called.return_type, "type", called.return_type)  # of an optional

        def codegen(
            context: CodeContext, builder: Builder, signature: Signature, values: Sequence[Value]
        ) -> object:
            status, result = _attempted(
                context, builder, function, called, values[1], arguments.types
            )
            number = ir.IntType(64)(0)
            if kind != types.none:
                number = builder.select(
                    status.is_none, number, context.cast(builder, result, kind, types.int64)
                )
            return builder.select(status.is_error, values[2], number)

        return types.int64(function, arguments, types.int64), codegen

    return status_of
