"""Keys of compiled code: each changes with all that the code is made of, and with nothing else.

What a key covers is asked of `flowvm.compiler.dependencies`, and each part of it is changed in
turn.  That it is all there is is asked of who compiles: which code of flowvm runs, which functions
and constants Numba is given.
"""

import enum
import functools
import importlib
import os
import subprocess
import sys
import types
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from flowvm.compiler import dependencies, jit
from flowvm.errors import CompileError
from flowvm.loading.lazy import lazy
from flowvm.ops.declare.cpu import blocks, body_kernel, element_tiles, elementwise_kernel
from flowvm.ops.planes.cpu import conv_plan, conv_strips
from flowvm.ops.products.cpu import gemm_kernels, tile
from flowvm.vm.machine import lang
from flowvm.vm.workers import shell

FLOAT = "float32"


# --- kernels of all kinds, as far as their keys ---------------------------------------------------


class Made:
    """A stand-in for compilation that notes, by name, the roots of each key."""

    def __init__(self):
        self.roots = {}

    def load(self, make, name, facts=()):
        self.roots[name] = make, facts
        return 0


def elementwise(expr, *args):
    floats = (FLOAT,) * len(args)
    program = element_tiles.Program(expr, args, floats, (FLOAT,), floats, frozenset(), 2, "", ())
    elementwise_kernel.elementwise_kernel.__wrapped__(program)


PLAN = tuple((name, "i") for name in gemm_kernels.Plan._fields)


def product():
    kinds = (PLAN,)
    operands = (body_kernel.Operand(FLOAT, 1, True),) * 4
    body = body_kernel.Body(gemm_kernels.product_body, operands, kinds, (), False, False)
    body_kernel.kernel_of.__wrapped__(body)


def convolution():
    shape = conv_plan.Shape(1, 2, 3, 1, *((1, n, n) for n in (5, 3, 3, 1)), (0, 0, 0), (1, 1, 1))
    plan = conv_plan.strips_of(shape, FLOAT, False)
    consts = body_kernel.kind_of(plan), body_kernel.kind_of(conv_plan.taps_of(plan))
    operands = (body_kernel.Operand(FLOAT, 1, True),) * 4
    body = body_kernel.Body(conv_strips.strips_body, operands, consts, (), False, False)
    body_kernel.kernel_of.__wrapped__(body)


def loops():
    for name in ("scheduler_loop", "worker_loop", "helper_loop", "device_loop"):
        lang.address_of(getattr(shell, name), "int64(int64, int64)")


KINDS = {
    "loops": loops,
    "expression": lambda: elementwise("x + 1", "x"),
    "functions": lambda: elementwise("sin(x) * erf(y)", "x", "y"),
    "fused": lambda: elementwise("a = x * y\nb = tanh(a)\nb + x", "x", "y"),
    "guarded": lambda: elementwise("sin(x)", "x"),
    "blocks": blocks._kernel.__wrapped__,
    "product": product,
    "product's walk": lambda: gemm_kernels.walker.__wrapped__(PLAN, gemm_kernels.walk_blocks),
    "tiles": lambda: [
        tile._address.__wrapped__(name, FLOAT) for name in tile.TileFunctions._fields
    ],
    "convolution": convolution,
}


def roots_of(kind):
    loader = Made()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "load", loader.load)
        patch.setattr(elementwise_kernel, "provide", lambda: None)
        KINDS[kind]()
    return loader.roots


def cuda_roots():
    """The roots of a CUDA kernel's key."""
    from flowvm.cuda.compiler import compilation
    from flowvm.ops.rows.cuda import class_loss

    kernel = next(f for n, f in sorted(vars(class_loss).items()) if _is_kernel(f))
    batches = []

    def key(*roots):
        batches.append(roots)
        raise CompileError("that is all")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compilation, "source_key", key)
        with pytest.raises(CompileError, match="all"):
            compilation.ptx(kernel, ("int64",), (8, 0))
    return {kernel.__name__: batches[0]}


def _is_kernel(value):
    return isinstance(value, types.FunctionType) and "cuda" in value.__code__.co_names


ALL = [*KINDS, "cuda"]


def all_roots(kind):
    return cuda_roots() if kind == "cuda" else roots_of(kind)


def modules_of(facts):
    return {fact.place for fact in facts if fact.kind == "file"}


def key_without(places, roots):
    """The key, made again as far as it depends on these places."""
    for item, parts in list(dependencies._remembered.items()):
        if any(f"\0{place}\0" in parts.lines for place in places):
            del dependencies._remembered[item]
    dependencies._settled_keys.clear()
    dependencies._named_in.clear()
    return dependencies.source_key(*roots)


@pytest.fixture(autouse=True)
def _nothing_stays():
    yield
    for memory in (dependencies._remembered, dependencies._settled_keys, dependencies._named_in):
        memory.clear()


# --- each thing reached changes the key -------------------------------------------------------


def changed(path):
    """The digests of files, were this one another."""
    read = dependencies.file_digest
    return lambda p: read(p) + "changed" * (p == path)


@pytest.mark.parametrize("kind", ALL)
def test_a_change_of_any_file_reached_changes_the_key(kind, monkeypatch):
    for name, roots in all_roots(kind).items():
        key, modules = dependencies.source_key(*roots), modules_of(dependencies.key_facts(*roots))
        for module in sorted(modules):
            path = importlib.util.find_spec(module).origin
            with monkeypatch.context() as patch:
                patch.setattr(dependencies, "file_digest", changed(path))
                assert key_without({module}, roots) != key, (name, module)
            assert key_without({module}, roots) == key, (name, module)


def another(value):
    if isinstance(value, (str, tuple, list)):
        return value + type(value)("x")
    if isinstance(value, (bool, np.bool_)):
        return not value
    if isinstance(value, (int, float, np.number)):
        return value + type(value)(1)
    return {**value, "another": 1} if isinstance(value, dict) else None


@pytest.mark.parametrize("kind", ALL)
def test_a_change_of_any_constant_reached_changes_the_key(kind, monkeypatch):
    for name, roots in all_roots(kind).items():
        key, changed = dependencies.source_key(*roots), 0
        for fact in sorted(dependencies.key_facts(*roots)):
            module, _, constant = fact.place.rpartition(".")
            if fact.kind != "constant" or module not in sys.modules:
                continue
            value = getattr(sys.modules[module], constant)
            if (changed_to := another(value)) is None:
                continue
            with monkeypatch.context() as patch:
                patch.setattr(sys.modules[module], constant, changed_to)
                assert key_without({fact.place}, roots) != key, (name, fact)
            key_without({fact.place}, roots)
            changed += 1
        assert changed or name == "x + 1, float32 -> float32", name
        assert dependencies.source_key(*roots) == key


@pytest.mark.parametrize("kind", ALL)
def test_constants_that_could_change_are_named_as_constants(kind):
    for name, roots in all_roots(kind).items():
        for fact in dependencies.key_facts(*roots):
            if fact.kind == "constant" and fact.text.startswith(("list(", "dict(", "set(", "an ")):
                module, _, constant = fact.place.rpartition(".")
                value = getattr(sys.modules.get(module), constant, None)
                assert constant.isupper() or not dependencies._can_change(value), (name, fact)


# --- nothing is missing -------------------------------------------------------------------------

FACTS = {
    "loops": [
        "flowvm.compiler.words",
        "flowvm.vm.machine.texts",
        "flowvm.vm.machine.machine",
        "flowvm.vm.workers.allocator",
        "HEAD",
        "flowvm.vm.machine.device_words.CALL.WORDS",
        "STOP",
        "flowvm.compiler.native",
        "flowvm.compiler.shortcuts",
        "ticks_are_tsc",
    ],
    "expression": [
        "flowvm.ops.declare.cpu.elementwise_kernel",
        "flowvm.ops.declare.cpu.expressions",
        "flowvm.ops.declare.cpu.text",
        "OPERANDS_AT",
        "WALK",
        "IN_MEMORY",  # which has the scalars' own
        "PASSED",
    ],
    "functions": [
        "flowvm.ops.scalar.trig",
        "flowvm.ops.scalar.erf",
        "flowvm.ops.scalar.intrinsics",
    ],
    "fused": ["flowvm.ops.scalar.exp"],
    "guarded": ["flowvm.ops.scalar.trig", "flowvm.ops.scalar.bits"],
    "product": ["ARENA_BYTES", "SCRATCH_AT", "OPERANDS_AT"],
    "product's walk": ["flowvm.ops.products.cpu.tile", "flowvm.ops.products.cpu.gemm_kernels"],
    "tiles": [
        "flowvm.ops.products.cpu.tile_code",
        "flowvm.ops.declare.cpu.vector_code",
        "flowvm.ops.products.cpu.tile_thin",
        "flowvm.ops.products.cpu.tile_packing",
        "flowvm.ops.scalar.half",
    ],
    "convolution": [
        "flowvm.ops.declare.cpu.body_kernel",
        "flowvm.ops.declare.cpu.body_arrays",
        "flowvm.ops.declare.cpu.vector_code",
        "flowvm.ops.planes.cpu.conv_strips",
        "flowvm.ops.planes.cpu.conv_tile",
    ],
    "blocks": ["OPERANDS_AT", "HEADER", "flowvm.ops.declare.cpu.moves", "STAGE_WORDS"],
    "cuda": [
        "flowvm.cuda.compiler.compilation",
        "flowvm.cuda.compiler.frontend",
        "flowvm.cuda.compiler.indices",
        "flowvm.compiler.native",
        "flowvm.ops.scalar.half",
    ],
}


@pytest.mark.parametrize("kind", ALL)
def test_what_is_known_to_matter_is_covered(kind):
    for_all = [dependencies.key_facts(*roots) for roots in all_roots(kind).values()]
    covered = {f.place for facts in for_all for f in facts}
    covered |= {place.rpartition(".")[2] for place in covered}  # whoever imports a constant
    assert not set(FACTS[kind]) - covered


class Watched:
    """A tracer of code that makes kernels.

    It notes the modules of flowvm whose code runs, the functions that are lowered, and the names
    and values of the constants in them.
    """

    def __init__(self):
        from numba.core import ir

        from flowvm.compiler import native

        self.modules, self.functions, self.constants = set(), [], []
        self.lowers = native._Frontend.dispatcher.__code__
        self.names = {ir.Global.__init__.__code__, ir.FreeVar.__init__.__code__}

    def __call__(self, frame, event, argument):
        if event != "call":
            return
        module = frame.f_globals.get("__name__", "")
        if module.startswith("flowvm.") and frame.f_code.co_name != "<module>":
            self.modules.add(module)
        if frame.f_code is self.lowers:
            self.functions.append(frame.f_locals["function"])
        elif frame.f_code in self.names:
            self.constants.append((frame.f_locals["name"], frame.f_locals["value"]))


# the engine's longest loops take seconds to lower; these are of them
WATCHED = [kind for kind in KINDS if kind != "loops"]


def wakes():
    lang.address_of(shell.wake_scheduler, "int64(int64)")
    lang.address_of(shell.read_clocks, "int64(int64)")


@pytest.mark.parametrize("kind", [*WATCHED, "wakes"])
def test_all_that_runs_and_all_that_is_compiled_is_covered(kind, monkeypatch):
    monkeypatch.setitem(KINDS, "wakes", wakes)
    for name, roots in roots_of(kind).items():
        watched = Watched()
        sys.setprofile(watched)
        try:
            roots[0]()
        finally:
            sys.setprofile(None)
        facts = dependencies.key_facts(*roots) | dependencies.key_facts(jit._object)
        assert watched.modules <= modules_of(facts), name
        for function in watched.functions:
            module, line = function.__globals__.get("__name__"), function.__code__.co_firstlineno
            place = f"{module or ''}.{function.__qualname__}"
            texts = [f.text for f in facts if f.kind == "function" and f.place == place]
            from_text = function.__code__.co_filename.startswith("<")
            assert texts if from_text else f"line {line}" in " ".join(texts), (name, place)
        texts = {(f.place.rpartition(".")[2], f.text) for f in facts}
        for constant, value in watched.constants:
            if isinstance(value, (bool, int, float, str, tuple, np.generic)):
                assert (constant, dependencies._text_of(value, [])) in texts, (name, constant)


# --- rules ------------------------------------------------------------------------------------

FACTOR = 3
TABLE = {"a": [1, 2], "b": (3, np.float32(0.5))}
_values = {"a": 1}
names = types.SimpleNamespace(WORD=4)


class Colour(enum.Enum):
    RED = 1


class Words:
    FIRST = 5
    counted: ClassVar[list[int]] = [0]

    def method(self):
        return FACTOR


@dataclass(frozen=True)
class Shape:
    rows: int
    columns: tuple[int, ...]


SHAPE = Shape(2, (3, 4))
ARRAY = np.arange(3)


def reaches():
    return TABLE, _values, names.WORD, Colour.RED, Words.FIRST, SHAPE, ARRAY, helper(1)


@functools.cache
def helper(x, more=FACTOR):
    return x + FACTOR


def same_module():
    return sys.modules[__name__]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FACTOR", 4),
        ("FACTOR", 3.0),
        ("FACTOR", True),
        ("TABLE", {"a": [1, 3], "b": (3, np.float32(0.5))}),
        ("TABLE", {"a": [1, 2], "b": (3, np.float64(0.5))}),
        ("names", types.SimpleNamespace(WORD=5)),
        ("SHAPE", Shape(2, (3, 5))),
        ("ARRAY", np.arange(3, dtype=np.int32)),
        ("helper", lambda x: x),
    ],
)
def test_constants_count_wherever_they_stand(monkeypatch, name, value):
    key = dependencies.source_key(reaches)
    monkeypatch.setattr(same_module(), name, value)
    assert dependencies.source_key(reaches) != key


def test_what_classes_hold_counts(monkeypatch):
    key = dependencies.source_key(reaches)
    monkeypatch.setattr(Words, "FIRST", 6)
    assert dependencies.source_key(reaches) != key


def test_the_state_of_the_process_does_not_count(monkeypatch):
    key = dependencies.source_key(reaches)
    monkeypatch.setitem(_values, "b", 2)
    monkeypatch.setattr(Words, "counted", [1])
    helper(1)
    assert dependencies.source_key(reaches) == key


def test_what_a_function_is_given_counts():
    def key_of(value, default=None):
        def inner(x, y=default):
            return value

        return inner

    def key(*args):
        return dependencies.source_key(key_of(*args))

    assert key([1, {2: 3}]) == key([1, {2: 3}]) != key([1, {2: 4}])
    assert key(helper) == key(helper) != key(key_of(1))
    assert key(1, 2) != key(1, 3)
    assert dependencies.source_key(functools.partial(key_of, 1)) != dependencies.source_key(
        functools.partial(key_of, 2)
    )
    assert key({3, 1, 2}) == key({2, 3, 1})


def test_a_module_that_is_imported_late_counts(tmp_path, monkeypatch):
    (tmp_path / "counted_late.py").write_text("def f(x):\n    return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    scope = {"later": lazy("counted_late")}
    exec("def g(x):\n    return later.f(x)\n", scope)
    try:
        key = dependencies.source_key(scope["g"])
        assert "counted_late" in modules_of(dependencies.key_facts(scope["g"]))
        path = str(tmp_path / "counted_late.py")
        monkeypatch.setattr(dependencies, "file_digest", changed(path))
        assert dependencies.source_key(scope["g"]) != key
    finally:
        sys.modules.pop("counted_late", None)


def test_lambdas_of_one_line_differ():
    one, two = (lambda x: x + 1), (lambda x: x + 2)
    assert dependencies.source_key(one) != dependencies.source_key(two)


def test_code_without_a_file_counts_by_itself():
    def key(text):
        scope = {}
        exec(compile(text, "<typed>", "exec"), scope)
        return dependencies.source_key(scope["f"])

    nested = "def f(x):\n    return [y + {} for y in x] or (lambda: {})"
    assert key(nested.format(1, 2)) == key(nested.format(1, 2))
    assert len({key(nested.format(*k)) for k in ((1, 2), (1, 3), (2, 2))}) == 3


def test_a_module_that_is_reloaded_counts_as_it_is_now(tmp_path):
    path = tmp_path / "edited.py"

    def key(text):
        path.write_text(text)
        scope = {"__name__": "edited"}
        exec(compile(text, str(path), "exec"), scope)
        return dependencies.source_key(scope["f"])

    assert key("def f(x): return x + 1") != key("def f(x): return x + 2")


@pytest.mark.parametrize("kind", ALL)
def test_no_key_is_given_an_object_that_it_cannot_tell(kind):
    """Check closures, defaults and arguments of `partial`, which could hold any object."""
    for name, roots in all_roots(kind).items():
        for fact in dependencies.key_facts(*roots):
            if fact.kind == "given" and "an object of flowvm" in fact.text:
                assert not fact.text.endswith(" tuple()"), (name, fact)


def test_a_file_that_is_gone_is_an_error(tmp_path):
    path = tmp_path / "gone.py"
    scope = {"__name__": "gone"}
    exec(compile("def f(x): return x", str(path), "exec"), scope)
    with pytest.raises(CompileError, match=r"gone\.f was read from .*gone\.py"):
        dependencies.source_key(scope["f"])
    path.write_text("def f(x): return x")
    assert dependencies.source_key(scope["f"])


def keys_program(order, prepare=""):
    return f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
{prepare}
import test_keys
from flowvm.compiler import jit
from flowvm.compiler import dependencies
for kind in {order!r}:
    for name, roots in sorted(test_keys.roots_of(kind).items()):
        print(kind, name, dependencies.source_key(*roots))
print(dependencies.source_key(jit._object))
assert {bool(prepare)} or "numba" not in sys.modules
"""


def test_keys_are_the_same_in_every_process():
    """Keys do not depend on string hashes, the order, other imports, or Numba."""
    cold = "import numba, flowvm.vm.machine.intrinsics, flowvm.ops.products.cpu.tile_code"
    programs = [
        (keys_program(list(KINDS)), "1"),
        (keys_program(list(KINDS)[::-1]), "2"),
        (keys_program(list(KINDS), cold), "3"),
    ]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", text],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for text, seed in programs
    ]
    first, *others = [sorted(p.communicate()[0].splitlines()) for p in running]
    assert len(first) > 15
    assert all(other == first for other in others)
