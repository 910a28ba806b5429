"""Matrix products against NumPy in float64: every way, size, layout and epilogue; and the vector
code under them, compiled for this processor and for others.
"""

import functools
import re

import llvmlite.binding as llvm
import numpy as np
import pytest
from layouts import LAYOUTS, laid_out, tensor

import flowvm as flow
from flowvm.compiler.target import Target
from flowvm.ops.declare.registry import op
from flowvm.ops.products.cpu import gemm
from flowvm.ops.products.cpu.gemm import Epilogue, product
from flowvm.ops.products.cpu.gemm_in_place import is_in_place
from flowvm.ops.products.cpu.gemm_kernels import DOTS, STREAM, TILES
from flowvm.ops.products.cpu.gemm_plan import Product, cut_up
from flowvm.ops.products.cpu.tile import (
    START_COLUMN,
    START_NONE,
    START_ROWS,
    TileFunctions,
    copy_panel,
    dot_columns,
    emitted,
    multiply_dots,
    multiply_stream,
    multiply_tile,
    tile_functions,
    transpose_block,
)
from flowvm.ops.products.cpu.tile_shape import ROWS_VECTORS, TileShape, tile_shape
from flowvm.ops.scalar import functions as scalar
from flowvm.vm.machine.words import ARG

FLOATS = ("float32", "float64")


def close(actual, want, scale, depth, dtype):
    """Every sum of `depth` products, whose sizes sum to `scale`, is within its error bound."""
    bound = (depth + 8) * np.finfo(dtype).eps * (scale + np.abs(want)) + np.finfo(dtype).tiny
    assert actual.shape == want.shape
    worst = np.max(np.abs(actual - want) - bound, initial=-1)
    assert worst <= 0, f"beyond its error bound by {worst}"


def check(a, b, dtype, layouts=("rows", "rows")):
    a, b = a.astype(dtype), b.astype(dtype)
    actual = (laid_out(a, layouts[0]) @ laid_out(b, layouts[1])).numpy()
    a, b = a.astype("float64"), b.astype("float64")
    close(actual, a @ b, np.abs(a) @ np.abs(b), a.shape[-1], dtype)


def plan_of(a, b):
    launch = product("test", a._meta, b._meta)
    return launch.consts[0], launch


# --- products -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_small_sizes_in_all_layouts(rng, dtype):
    for _ in range(150):
        m, k, n = rng.integers(1, 41, 3)
        layouts = rng.choice(LAYOUTS, 2)
        check(rng.standard_normal((m, k)), rng.standard_normal((k, n)), dtype, layouts)


SIZES = [
    (300, 500, 200),  # blocks of rows
    (100, 1100, 70),  # blocks of depth
    (150, 90, 1100),  # blocks of columns
    (210, 1030, 600),  # all of them
    (16, 700, 300),  # a thin left side
    (500, 300, 9),
    (1, 600, 1100),  # vectors
    (3, 601, 1100),
    (700, 600, 1),
    (1100, 65, 4),
    (1, 5000, 1),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes_in_all_layouts(rng, size, dtype):
    m, k, n = size
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    for left in LAYOUTS:
        for right in LAYOUTS:
            check(a, b, dtype, (left, right))


def test_every_way_is_taken():
    def way(a, b):
        plan, launch = plan_of(a, b)
        return plan.way, plan.swap, bool(launch.phases)

    ones = flow.ones
    assert way(ones(200, 200), ones(200, 200)) == (TILES, 0, False)
    assert way(ones(512, 512), ones(512, 512)) == (TILES, 0, True)  # packed by all threads
    assert way(ones(32, 64), ones(64, 64).t()) == (TILES, 0, False)
    assert way(ones(32, 784), ones(128, 784).t()) == (TILES, 1, True)
    assert way(ones(1, 1024), ones(1024, 1024).t()) == (DOTS, 0, False)
    assert way(ones(1024, 1024), ones(1024)) == (DOTS, 1, False)
    assert way(ones(1, 1024), ones(1024, 1024)) == (STREAM, 0, False)
    assert way(ones(1024, 1024).t(), ones(1024, 1)) == (STREAM, 1, False)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "shapes",
    [
        ((6, 1, 30, 20), (5, 20, 30)),
        ((7, 130, 64), (7, 64, 130)),
        ((7, 130, 64), (64, 130)),  # more rows
        ((2, 3, 1, 700), (3, 700, 600)),
        ((9, 0, 3), (9, 3, 2)),
        ((0, 4, 3), (0, 3, 2)),
        ((2, 4, 0), (2, 0, 3)),
    ],
    ids=str,
)
def test_batches(rng, shapes, dtype):
    a, b = (rng.standard_normal(s) for s in shapes)
    for layouts in (("rows", "rows"), ("rows", "columns"), ("columns", "gaps")):
        check(a, b, dtype, layouts)


@pytest.mark.parametrize(
    "shapes",
    [((9, 8), (8, 7)), ((200, 700), (700, 90)), ((1, 50), (50, 700)), ((700, 60), (60, 5)),
     ((3, 20, 30), (3, 30, 40)), ((40,), (40,)), ((3, 0), (0, 2))],
    ids=str,
)  # fmt: skip
def test_float16_is_summed_in_float32_whatever_its_layout(rng, shapes):
    a, b = (rng.standard_normal(s).astype("float16") for s in shapes)
    want = a.astype("float64") @ b.astype("float64")
    for left in LAYOUTS if a.ndim > 1 else ("rows", "gaps"):
        for right in LAYOUTS if b.ndim > 1 else ("rows", "gaps"):
            actual = laid_out(a, left) @ laid_out(b, right)
            assert actual.dtype is flow.float16
            error = np.abs(actual.numpy().astype("float64") - want)
            assert (error <= 1.01 * 2**-11 * np.abs(want) + 1e-4).all()


def test_blocks_fit_the_arena(rng, monkeypatch):
    shapes = [(size, have[0], *tile) for have, tile in ROWS_VECTORS.items() for size in (4, 8)]
    for size, vector, rows, vectors in shapes:
        tile = TileShape(rows, vectors, vector // size)
        for first in (16, 32, 48, 64, 128):
            sizes = {1: first << 10, 2: first << 15}
            monkeypatch.setattr("flowvm.ops.products.cpu.gemm_plan.cache_bytes", sizes.get)
            for _ in range(40):
                m, n, k = (int(x) for x in 2 ** rng.uniform(0, 13, 3))
                strides = rng.choice([(k, 1, n, 1), (1, m, 1, k), (k, 2, n, 2)])
                p = Product(m, n, k, *(int(x) for x in strides))
                items, half = int(rng.choice([1, 100])), bool(rng.integers(2)) and size == 4
                cut = cut_up(p, TILES, items, tile, size, half)
                a = -(-cut.tall // rows) * rows * cut.deep if cut.pack_a else 0
                panels = -(-cut.wide // tile.columns) * tile.columns
                b = panels * cut.deep if cut.pack_b and not cut.shared else 0
                elements = a + b + cut.tall * panels
                assert cut.wide % tile.columns == 0 or cut.wide >= n, (p, cut)
                assert elements * size <= ARG.ARENA_BYTES, (p, cut)


def test_heads_of_attention_are_multiplied_where_they_lie(rng):
    x = rng.standard_normal((2, 50, 3, 16)).astype("float32")
    heads = tensor(x).transpose(1, 2)
    actual = (heads @ heads.transpose(-1, -2)).numpy()
    np.testing.assert_allclose(actual, np.einsum("bqhd,bkhd->bhqk", x, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [(5, 6, 7), (40, 300, 50), (1, 40, 600), (9, 600, 2)], ids=str)
def test_nan_and_infinity_are_not_skipped(size):
    m, k, n = size
    for right in ("rows", "columns"):
        a, b = np.zeros((m, k), "float32"), np.ones((k, n), "float32")
        b[k // 2, n // 2] = np.inf
        actual = (tensor(a) @ laid_out(b, right)).numpy()
        assert np.isnan(actual[:, n // 2]).all()
        assert not np.isnan(np.delete(actual, n // 2, 1)).any()
        a[m // 2, k - 1] = np.nan
        actual = (tensor(a) @ laid_out(np.ones((k, n), "float32"), right)).numpy()
        assert np.isnan(actual[m // 2]).all()
        assert (np.delete(actual, m // 2, 0) == 0).all()


@pytest.mark.parametrize(
    "shapes",
    [
        ((300, 700), (700, 520)),
        ((5, 129, 64), (5, 64, 129)),
        ((1, 1000), (1000, 2000)),
        ((2000, 1000), (1000, 1)),
    ],
    ids=str,
)
def test_the_same_bits_with_any_number_of_workers(rng, shapes):
    a, b = (tensor(rng.standard_normal(s).astype("float32")) for s in shapes)
    results = []
    for workers in (1, 2, 3):
        with flow.config(workers=workers):
            results.append((a @ b).numpy())
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@functools.cache
def added(name):
    @op("a, b, addend -> out", name=name, dense=False)
    def own(a, b, addend):
        return product(name, a, b, False, False, addend, Epilogue())

    return own


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_short_walk_gives_the_same_bits(rng, monkeypatch, dtype):
    cases = []
    for m, k, n, batch in (
        (4, 4, 4, ()),
        (37, 50, 43, ()),
        (130, 300, 100, ()),
        (9, 8, 70, (3, 2)),
    ):
        a, b = rng.standard_normal((*batch, m, k)), rng.standard_normal((*batch, k, n))
        for layout in ("rows", "columns"):
            for shape in ((n,), (m, 1), (*batch, m, n)):
                addend = rng.standard_normal(shape)
                sides = laid_out(a.astype(dtype), layout), laid_out(b.astype(dtype), "rows")
                cases.append((*sides, tensor(addend.astype(dtype))))
    results = [added("in_place")(*case).numpy() for case in cases]
    short = []
    monkeypatch.setattr(gemm, "is_in_place", lambda plan: short.append(is_in_place(plan)))
    for case, actual in zip(cases, results, strict=True):
        np.testing.assert_array_equal(added("by_blocks")(*case).numpy(), actual, strict=True)
    assert any(short)


# --- epilogues ----------------------------------------------------------------------------------


@functools.cache
def fused(act, alpha, beta):
    epilogue = Epilogue(alpha, beta, act) if act else Epilogue(alpha, beta)

    @op("a, b, addend -> out", name="fused", dense=False)
    def with_addend(a, b, addend):
        return product("fused", a, b, False, False, addend, epilogue)

    @op("a, b -> out", name="fused_alone", dense=False)
    def alone(a, b):
        return product("fused", a, b, False, False, None, epilogue)

    return with_addend, alone


ACTS = {
    "none": (None, lambda x: x),
    "relu": (lambda x: x if x > 0 else 0 * x, lambda x: np.maximum(x, 0)),
    "tanh": (scalar.functions()["tanh"], np.tanh),
    "sigmoid": (scalar.functions()["sigmoid"], lambda x: 1 / (1 + np.exp(-x))),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, -2.0)])
def test_epilogues(rng, act, alpha, beta):
    compiled, exact = ACTS[act]
    with_addend, alone = fused(compiled, alpha, beta)
    for m, k, n in ((7, 9, 40), (130, 40, 70), (32, 300, 100), (1, 100, 600), (4, 300, 200)):
        a = rng.standard_normal((m, k)) / np.sqrt(k)
        for right in ("rows", "columns"):
            b = rng.standard_normal((k, n))
            left, other = tensor(a), laid_out(b, right)
            np.testing.assert_allclose(
                alone(left, other).numpy(), exact(alpha * (a @ b)), rtol=1e-9, atol=1e-12
            )
            for shape in ((n,), (m, 1), (1, 1), (m, n)):
                for layout in ("rows", "columns", "gaps") if len(shape) == 2 else ("rows",):
                    c = rng.standard_normal(shape)
                    actual = with_addend(left, other, laid_out(c, layout)).numpy()
                    want = exact(alpha * (a @ b) + beta * c)
                    np.testing.assert_allclose(actual, want, rtol=1e-9, atol=1e-12)


def test_addends_of_batches(rng):
    a, b = rng.standard_normal((3, 20, 30)), rng.standard_normal((3, 30, 40))
    for shape in ((3, 20, 40), (3, 1, 40), (20, 40), (40,), (3, 20, 1), ()):
        c = rng.standard_normal(shape)
        actual = flow.baddbmm(tensor(c), tensor(a), tensor(b)).numpy()
        np.testing.assert_allclose(actual, c + a @ b, rtol=1e-9, atol=1e-12)
        actual = flow.baddbmm(tensor(c), tensor(a), tensor(b), beta=0.5, alpha=-1).numpy()
        np.testing.assert_allclose(actual, 0.5 * c - a @ b, rtol=1e-9, atol=1e-12)


def test_linear_of_any_shape(rng):
    w, bias = rng.standard_normal((70, 33)), rng.standard_normal(70)
    for shape in ((33,), (1, 33), (5, 33), (2, 3, 33), (0, 33), (200, 33)):
        x = rng.standard_normal(shape)
        actual = flow.linear(tensor(x), tensor(w), tensor(bias)).numpy()
        np.testing.assert_allclose(actual, x @ w.T + bias, rtol=1e-9, atol=1e-12)
        spread = flow.linear(tensor(x), tensor(w), tensor(bias[:1]).expand(70)).numpy()
        np.testing.assert_allclose(spread, x @ w.T + bias[0], rtol=1e-9, atol=1e-12)


def test_no_depth_gives_the_addend():
    a, b = flow.ones(3, 0), flow.ones(0, 4)
    assert (a @ b).tolist() == [[0.0] * 4] * 3
    assert flow.addmm(flow.ones(4), a, b, beta=2).tolist() == [[2.0] * 4] * 3


# --- the functions under them -------------------------------------------------------------------

# tiles of other processors, as far as this one can run them, and its own
SHAPES = {"own": None, "vectors of 4": TileShape(8, 3, 4), "vectors of 8": TileShape(4, 3, 8)}


@functools.cache
def functions(shape, dtype):
    """Return TileFunctions for `shape`, and the objects that keep them in memory."""
    if shape is None:
        return tile_functions(dtype), None
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    addresses = []
    for name in TileFunctions._fields:
        text = re.sub(r'@"?entry"?', f"@{name}", str(emitted(name, dtype, shape)))
        engine.add_module(llvm.parse_assembly(text))
        engine.finalize_object()
        addresses.append(engine.get_function_address(name))
    return TileFunctions(*addresses), engine


def at(array, index=0):
    return array.ctypes.data + index * array.itemsize


@pytest.fixture(params=SHAPES)
def vector_code(request):
    def of(dtype):
        shape = SHAPES[request.param]
        return functions(shape, dtype)[0], shape or tile_shape(dtype)

    return of


@pytest.mark.parametrize("dtype", FLOATS)
def test_tiles(rng, vector_code, dtype):
    f, shape = vector_code(dtype)
    widths = {1, shape.lanes - 1, shape.lanes, shape.lanes + 1, shape.columns - 1, shape.columns}
    for rows in range(1, shape.rows + 1):
        for columns in widths:
            for kind in (START_NONE, START_ROWS, START_COLUMN):
                depth, turned = int(rng.choice([0, 1, 4, 7, 9])), rng.integers(2)
                a = rng.standard_normal((rows, depth)).astype(dtype)
                b = rng.standard_normal((depth, columns)).astype(dtype)
                start = rng.standard_normal((rows, columns)).astype(dtype)
                want = a.astype("float64") @ b.astype("float64")
                if kind == START_ROWS:
                    want += start
                elif kind == START_COLUMN:
                    want += start[:, :1]
                stored = np.ascontiguousarray(a.T if turned else a)
                c = np.full(rows * columns + 3, 7, dtype)
                multiply_tile(
                    f.tile, depth, at(stored), 1 if turned else depth, rows if turned else 1,
                    at(b), columns, 0, at(c), columns, kind, at(start), columns, rows, columns,
                )  # fmt: skip
                assert (c[-3:] == 7).all()
                actual = c[:-3].reshape(rows, columns)
                np.testing.assert_allclose(actual, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
def test_thin_products(rng, vector_code, dtype):
    f, _ = vector_code(dtype)
    for rows in (1, 2, 3, 4):
        for depth in (0, 1, 16, 37):
            a = rng.standard_normal((rows, depth)).astype(dtype)
            for columns in range(1, dot_columns(rows) + 1):
                b = rng.standard_normal((columns, depth)).astype(dtype)
                c = np.full((rows, columns), 7, dtype)
                multiply_dots(
                    f.dots, depth, at(a), depth, at(b), depth, at(c), columns, 1, rows, columns
                )
                np.testing.assert_allclose(c, a @ b.T, rtol=1e-4, atol=1e-5)
            for columns in (1, 16, 45):
                b = rng.standard_normal((depth, columns)).astype(dtype)
                c = np.full(rows * columns + 3, 7, dtype)
                multiply_stream(
                    f.stream, depth, at(a), depth, 1, at(b), columns, at(c), columns, rows, columns
                )
                assert (c[-3:] == 7).all()
                np.testing.assert_allclose(
                    c[:-3].reshape(rows, columns), a @ b, rtol=1e-4, atol=1e-5
                )


@pytest.mark.parametrize("dtype", FLOATS)
def test_packing(rng, vector_code, dtype):
    f, shape = vector_code(dtype)
    lanes, most = shape.lanes, shape.columns
    for rows in (1, 3, lanes):
        for columns in (1, lanes - 1, lanes):
            for width in {rows, lanes}:
                x = rng.standard_normal((rows, columns)).astype(dtype)
                y = np.full(columns * width + 3, 7, dtype)
                transpose_block(f.transpose, at(x), columns, rows, columns, at(y), width, width)
                want = np.zeros((columns, width), dtype)
                want[:, :rows] = x.T
                np.testing.assert_array_equal(y[:-3].reshape(columns, width), want)
                assert (y[-3:] == 7).all()
    for rows in (0, 1, 5):
        for columns in (1, lanes, most - 1, most):
            for width in {columns, most}:
                for gap in (1, 2):
                    x = rng.standard_normal((rows, columns * gap)).astype(dtype)
                    y = np.full(rows * width + 3, 7, dtype)
                    copy_panel(
                        f.copy, at(x), columns * gap, gap, rows, columns, at(y), width, width
                    )
                    want = np.zeros((rows, width), dtype)
                    want[:, :columns] = x[:, ::gap]
                    np.testing.assert_array_equal(y[:-3].reshape(rows, width), want)
                    assert (y[-3:] == 7).all()


OTHERS = {
    "haswell": ("x86_64-unknown-linux-gnu", "haswell", "+avx", "vfmadd", "zmm"),
    "skylake": ("x86_64-unknown-linux-gnu", "skylake-avx512", "+avx512f", "zmm", "callq"),
    "neoverse": ("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon", "fmla", "bl\t"),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("cpu", OTHERS)
def test_the_largest_tile_stays_in_registers_elsewhere(cpu, dtype):
    triple, name, features, has, has_not = OTHERS[cpu]
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=name, opt=3)
    module = llvm.parse_assembly(
        str(emitted("tile", dtype, tile_shape(dtype, Target(name, features))))
    )
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(2))
    builder.getModulePassManager().run(module, builder)
    text = machine.emit_assembly(module)
    loop = hottest_loop(text, has if has != "zmm" else "vfmadd")
    assert has in loop
    assert has_not not in loop
    spilled = r"mov[ua]p[sd]\s.*\(%[re]sp\)|(ldr|ldp|str|stp)\s+[qv]\d+.*\[sp"
    assert not re.search(spilled, loop), "a vector is spilled"


def hottest_loop(assembly, instruction):
    """The block with the most multiplications."""
    blocks = re.split(r"^\.?L\w+:", assembly, flags=re.M)
    return max(blocks, key=lambda block: block.count(instruction))


def test_python_calls_the_compiled_functions():
    x, y = np.arange(6.0).reshape(2, 3), np.zeros((3, 2))
    transpose_block(tile_functions("float64").transpose, at(x), 3, 2, 3, at(y), 2, 2)
    np.testing.assert_array_equal(y, x.T)
