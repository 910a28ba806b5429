"""Numba's private names: its front end, which types and lowers what flowvm compiles for the CPU.

`NUMBA` is the table.  The functions below are all that touches private attributes of Numba's
objects, besides the shortcuts (`flowvm.compiler.shortcuts`), whose entries stand here.

Public are `numba.types`, `numba.extending` and `numba.config`, and of what the documents of Numba
tell who extends it, `_getvalue` of a structure.  Nothing here imports Numba before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowvm.private.llvmlite import free_passes
from flowvm.private.table import Package, Use

TESTED = ("0.66.0", "0.67.0", "0.68.1")

NUMBA = Package(
    "numba",
    TESTED,
    (
        Use(
            "target",
            "numba.core.registry:cpu_target",
            "holds what Numba knows of types and of code",
            ("typing_context", "target_context", "options"),
        ),
        Use(
            "CPUDispatcher",
            "numba.core.registry:CPUDispatcher",
            "is how a compiled function calls a plain one",
            ("_compiler", "py_func", "overloads"),
        ),
        Use(
            "FunctionCompiler",
            "numba.core.dispatcher:_FunctionCompiler",
            "types and lowers a function",
            ("_customize_flags", "_compile_core", "compile", "py_func", "targetdescr", "locals"),
        ),
        Use(
            "Compiler",
            "numba.core.compiler:Compiler",
            "is the order of the passes that type and lower",
        ),
        Use(
            "lock",
            "numba.core.compiler_lock:global_compiler_lock",
            "keeps other users of Numba out while flowvm compiles",
        ),
        Use("NumbaError", "numba.core.errors:NumbaError", "is what a wrong kernel raises"),
        Use(
            "TypingContext",
            "numba.core.typing.context:BaseContext",
            "says what a global name means",
            ("_get_global_type", "refresh", "resolve_value_type"),
        ),
        Use(
            "TargetContext",
            "numba.core.base:BaseContext",
            "holds how everything is lowered",
            (
                "_defns",
                "refresh",
                "insert_user_function",
                "data_model_manager",
                "pair_first",
                "pair_second",
            ),
        ),
        Use(
            "OverloadSelector",
            "numba.core.base:OverloadSelector",
            "says how an operation is lowered",
            ("find",),
        ),
        Use(
            "CodeLibrary",
            "numba.core.codegen:CPUCodeLibrary",
            "holds the LLVM module of a function and the libraries that it calls",
            (
                "_codegen",
                "_final_module",
                "_linking_libraries",
                "_ensure_finalized",
                "_get_module_for_linking",
            ),
        ),
        Use("runtime", "numba.core.runtime:rtsys", "is the library that native code may not need"),
        Use(
            "normalize_signature",
            "numba.core.sigutils:normalize_signature",
            "reads signatures that are written as text",
        ),
        Use(
            "imputils",
            "numba.core.imputils",
            "registers how a constant is lowered",
            ("lower_constant",),
        ),
        Use(
            "cgutils",
            "numba.core.cgutils",
            "makes the small parts of LLVM code",
            ("alloca_once", "create_struct_proxy", "get_or_insert_function", "pack_array"),
        ),
        Use("populate_array", "numba.np.arrayobj:populate_array", "makes an array of an address"),
        # --- shortcuts ----------------------------------------------------------------------
        Use(
            "flags_stack",
            "numba.core.targetconfig:ConfigStack",
            "says with which flags a call is typed",
            ("top_or_none",),
            optional=True,
        ),
        Use(
            "call_types",
            "numba.core.types.functions:BaseFunction",
            "is typed again and again with the same operators",
            ("get_call_type", "_impl_keys"),
            ("numba.core.types.functions:BaseFunction.get_call_type",),
            ("0fadc5ac86cec706",),
        ),
        Use(
            "variables",
            "numba.core.ir",
            "is asked which variables a statement names",
            ("Inst", "Var"),
            ("numba.core.ir:Inst._rec_list_vars",),
            ("2e8cb976be3c3b2f",),
        ),
        Use(
            "counts",
            "numba.core.runtime.context:NRTContext",
            "counts references to memory that kernels never own",
            ("incref", "decref"),
            (
                "numba.core.runtime.context:NRTContext.incref",
                "numba.core.runtime.context:NRTContext.decref",
            ),
            ("216a0e5cfecb53c3",),
        ),
        Use(
            "locations",
            "numba.core.base",
            "looks at the signature of each implementation it uses",
            ("_has_loc",),
            ("numba.core.base:_has_loc",),
            ("1acc23c46276e2e0",),
        ),
        Use(
            "sizes",
            "numba.core.base:BaseContext",
            "has LLVM parse a module to know the size of a type",
            ("get_abi_sizeof",),
            ("numba.core.base:BaseContext.get_abi_sizeof",),
            ("a3a1b29d2ca8f4fd",),
        ),
        Use(
            "pipeline",
            "numba.core.compiler",
            "runs passes that have nothing to do in most kernels",
            ("CompilerBase", "DefaultPassBuilder", "PassManager"),
            (
                "numba.core.untyped_passes:InlineClosureLikes.run_pass",
                "numba.core.typed_passes:NopythonRewrites.run_pass",
                "numba.core.compiler_machinery:PassManager.add_pass",
                "numba.core.compiler_machinery:PassManager.finalize",
            ),
            ("4ddb87d24dc91608",),
        ),
        Use(
            "flags",
            "numba.core.compiler:Flags",
            "is compared by all its values each time",
            ("_values", "values"),
            (
                "numba.core.targetconfig:TargetConfig.__init__",
                "numba.core.targetconfig:TargetConfig.__hash__",
                "numba.core.targetconfig:TargetConfig.__eq__",
                "numba.core.targetconfig:TargetConfig.values",
                "numba.core.targetconfig:TargetConfig.discard",
                "numba.core.targetconfig:TargetConfig.copy",
                "numba.core.targetconfig:_MetaTargetConfig.__init__",
            ),
            ("54fd17ee3759cf3d",),
        ),
        Use(
            "blas",
            "numba.np.linalg",
            "loads SciPy's linear algebra to know whether it is there, a quarter of loading Numba",
            ("ensure_blas",),
            ("numba.np.linalg:ensure_blas",),
            ("3f0ec24352aa7021", "ad7184373a922f73"),
        ),
        Use(
            "lifetimes",
            "numba.core.postproc",
            "finds out after each pass where variables live, and writes out where each ends",
            ("PostProcessor", "VariableLifetime", "transforms"),
            ("numba.core.postproc:PostProcessor.run", "numba.core.lowering:Lower.delvar"),
            ("7bd28ab243ed8b31",),
        ),
        Use(
            "typing",
            "numba.core.typeinfer",
            "makes a context of errors for each constraint",
            ("new_error_context",),
            optional=True,
        ),
        Use(
            "lowering",
            "numba.core.lowering",
            "makes a context of errors for each statement",
            ("new_error_context",),
            optional=True,
        ),
        Use(
            "contexts",
            "numba.core.errors",
            "makes a generator for each context of errors, of which few are asked for",
            ("new_error_context",),
            ("numba.core.errors:new_error_context",),
            ("a076b8a982af2619",),
        ),
        Use(
            "statements",
            "numba.core.ssa",
            "makes a line of a log ready for each statement",
            ("_run_ssa_block_pass", "ir"),
            ("numba.core.ssa:_run_ssa_block_pass",),
            ("47768154fe926bd0",),
        ),
        Use(
            "passes",
            "numba.core.compiler_machinery",
            "takes the time of each pass, announces and checks it",
            ("PassManager", "errors"),
            ("numba.core.compiler_machinery:PassManager._runPass",),
            ("ec1dc9b46a0685b0",),
        ),
        Use(
            "function_passes",
            "numba.core.codegen:CPUCodeLibrary",
            "runs LLVM's passes over every function, and the whole program has them again",
            ("_optimize_functions",),
            ("numba.core.codegen:CPUCodeLibrary._optimize_functions",),
            ("ca7ac205f58da4ef",),
        ),
        Use(
            "array_likes",
            "numba.core.base:BaseContext",
            "looks through all registries for how to make an array of an array",
            ("get_function",),
            ("numba.core.base:BaseContext.get_function", "numba.np.arrayobj:make_array"),
            ("f1bcd46bf793b17c",),
        ),
        Use(
            "triple",
            "llvmlite.binding",
            "asks LLVM for each module what this machine is",
            ("get_process_triple",),
            ("llvmlite.binding.targets:get_process_triple",),
            ("8c1cc517abe1a1cf",),
        ),
        Use(
            "constants",
            "llvmlite.ir.types:Type",
            "imports for each constant",
            ("__call__",),
            ("llvmlite.ir.types:Type.__call__",),
            ("48dfe00c9b31b6b5",),
        ),
        Use(
            "phis",
            "numba.core.byteflow:Flow",
            "joins the sites of all phis until nothing changes, for the few that are used",
            ("_prune_phis",),
            ("numba.core.byteflow:Flow._prune_phis",),
            ("dc6115c994089051",),
        ),
        Use(
            "values",
            "numba.core.typing.context:BaseContext",
            "asks of each operator whether it is a buffer, and colours an error that it is not",
            ("resolve_value_type", "_get_global_type"),
            (
                "numba.core.typing.context:BaseContext.resolve_value_type",
                "numba.core.typing.typeof:typeof",
            ),
            ("f41979923df50d50",),
        ),
        Use(
            "literals",
            "numba.core.lowering",
            "raises an error for each constant that is no literal",
            ("_lit_or_omitted", "types"),
            ("numba.core.lowering:_lit_or_omitted", "numba.core.types.misc:literal"),
            ("e2fe874e96df6196",),
        ),
        Use(
            "withs",
            "numba.core.interpreter",
            "looks in each function for what is left of a with statement",
            ("peep_hole_delete_with_exit",),
            ("numba.core.interpreter:peep_hole_delete_with_exit",),
            ("a66950f7060a5ada",),
        ),
    ),
)


def function_compiler(
    flags: Callable[[object], object], lowered: Callable[[object, object, object], object]
) -> type[Any]:
    """Return a subclass of Numba's compiler of one function.  `flags` changes the compiler's flags;
    `lowered(target, function, result)` returns the final result.
    """
    base: Any = NUMBA.FunctionCompiler

    class FunctionCompiler(base):  # type: ignore[misc]
        def _customize_flags(self, options: object) -> object:
            return flags(options)

        def _compile_core(self, args: object, return_type: object) -> object:
            compiled = super()._compile_core(args, return_type)
            return lowered(self.targetdescr.target_context, self.py_func, compiled)

    return FunctionCompiler


def compiled_by(
    function: object, options: dict[str, object], compiler: Callable[[object], object]
) -> Any:
    """A dispatcher of `function`, which `compiler(locals)` compiles: types of its variables."""
    dispatcher = NUMBA.CPUDispatcher(function, targetoptions=options)
    dispatcher._compiler = compiler(dispatcher._compiler.locals)
    return dispatcher


def global_type(context: Any, value: object) -> Any:
    """The type of a global that Numba has registered, such as what an @overload is for; or None."""
    NUMBA.require("TypingContext")
    return context._get_global_type(value)


def overloads_of(context: Any, name: object) -> Any:
    """Numba's selector among the ways to lower an operation."""
    NUMBA.require("TargetContext", "OverloadSelector")
    return context._defns[name]


def never_finalized(library: Any) -> None:
    """Mark a library so that no caller of it generates its code."""
    library._ensure_finalized = lambda: None


def forget_function(context: Any, entry_point: object) -> None:
    """Forget a compiled function that has no callers any more, so that its parts can be freed."""
    NUMBA.require("TargetContext")
    context._defns.pop(entry_point, None)


def simplify(library: Any) -> None:
    """Run LLVM's passes over the single functions of a library, as Numba would."""
    NUMBA.require("CodeLibrary")
    module, codegen = library._final_module, library._codegen
    module.data_layout = codegen._data_layout
    manager, builder = codegen._function_pass_manager()
    for function in module.functions:
        if not function.is_declaration:
            manager.run(function, builder)
    free_passes(manager)


def parts_of(library: Any, finished: bool) -> tuple[object, list[object]]:
    """The LLVM module of a library, and the libraries that it calls; a finished one has all of
    them in its module.
    """
    NUMBA.require("CodeLibrary")
    if finished:
        return library._get_module_for_linking(), []
    return library._final_module, list(library._linking_libraries)
