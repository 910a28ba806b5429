"""Batches of sparse matrices beside PyTorch's: made, printed, converted, multiplied, saved."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import FlowError

torch = pytest.importorskip("torch")

BATCH, ROWS, COLUMNS = 2, 4, 6
LAYOUTS = ("csr", "csc", "bsr", "bsc")
PARTS = {"csr": ("crow", "col"), "csc": ("ccol", "row"), "bsr": ("crow", "col"),
         "bsc": ("ccol", "row")}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """PyTorch warns that its layouts are in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def batch(rng: np.random.Generator, dense: int = 0) -> Any:
    """Matrices with as many elements each, and as many blocks, none of them zero."""
    shape = (BATCH, ROWS, COLUMNS)
    mask = np.zeros(shape, bool)
    mask[0, [0, 0, 1, 3], [0, 5, 1, 2]] = True
    mask[1, [2, 3, 0, 1], [1, 0, 4, 2]] = True
    x = np.abs(rng.standard_normal((*shape, *(2,) * dense))) + 1
    return (x * mask.reshape(*shape, *(1,) * dense)).astype(np.float32)


def made(lib: Any, x: Any, layout: str, dense: int = 0) -> Any:
    """A batch in a layout of a library."""
    convert = getattr(lib.tensor(x), f"to_sparse_{layout}")
    options = {"dense_dim": dense} if dense else {}
    return convert((2, 3), **options) if layout.startswith("bs") else convert(**options)


def same(ours: Any, theirs: Any) -> None:
    """Equal in layout and in parts."""
    layout = str(theirs.layout).split(".")[1]
    assert str(ours.layout).split(".")[1] == layout
    assert tuple(ours.shape) == tuple(theirs.shape)
    kind = layout.removeprefix("sparse_")
    if kind in PARTS:
        names = [f"{name}_indices" for name in PARTS[kind]]
        for name in names:
            assert getattr(ours, name)().tolist() == getattr(theirs, name)().tolist()
        assert (ours.sparse_dim(), ours.dense_dim(), ours._nnz()) == (
            theirs.sparse_dim(), theirs.dense_dim(), theirs._nnz(),
        )  # fmt: skip
        ours, theirs = ours.values(), theirs.values()
    ours, theirs = (t.detach().to_dense().numpy() for t in (ours, theirs))
    np.testing.assert_allclose(ours, theirs, 1e-5, 1e-6)


@pytest.mark.parametrize("dense", [0, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_are_made_as_pytorchs(layout: str, dense: int, rng: np.random.Generator) -> None:
    x = batch(rng, dense)
    ours, theirs = (made(lib, x, layout, dense) for lib in (flow, torch))
    same(ours, theirs)
    np.testing.assert_array_equal(ours.to_dense().numpy(), x)
    same(ours.to_sparse(), theirs.to_sparse())
    parts = [getattr(ours, f"{name}_indices")() for name in PARTS[layout]]
    again = flow.sparse_compressed_tensor(
        *parts, ours.values(), x.shape, layout=ours.layout, check_invariants=True
    )
    np.testing.assert_array_equal(again.to_dense().numpy(), x)


@pytest.mark.parametrize("to", LAYOUTS)
@pytest.mark.parametrize("layout", ["csr", "bsc"])
def test_layouts_are_converted(layout: str, to: str, rng: np.random.Generator) -> None:
    x = batch(rng)
    convert = getattr(made(flow, x, layout), f"to_sparse_{to}")
    out = convert((2, 3)) if to.startswith("bs") else convert()
    if layout == "csr":  # of blocks, zeros are stored, too
        same(out, made(torch, x, to))
    assert out.layout is getattr(flow, f"sparse_{to}")
    np.testing.assert_array_equal(out.to_dense().numpy(), x)


# name, f(library, batch), the layouts that PyTorch has it for
CASES: tuple[tuple[str, Callable[..., Any], tuple[str, ...]], ...] = (
    ("clone", lambda lib, x: x.clone(), LAYOUTS),
    ("times a number", lambda lib, x: x * 2.5, LAYOUTS),
    ("sin", lambda lib, x: x.sin(), LAYOUTS),
    ("sum", lambda lib, x: x.sum(), ("csr", "bsr")),
    ("zeros_like", lambda lib, x: lib.zeros_like(x), LAYOUTS),
    ("matrix", lambda lib, x: x[1], LAYOUTS),
    ("select", lambda lib, x: x.select(0, -1), ("csr",)),
    ("transpose", lambda lib, x: x.transpose(1, 2), LAYOUTS),
    ("twice itself", lambda lib, x: x + x, ("csr",)),
    ("sparse_mask", lambda lib, x: lib.ones(BATCH, ROWS, COLUMNS).sparse_mask(x), ("csr",)),
    ("double", lambda lib, x: x.to(lib.float64), ("csr", "bsr")),
)


@pytest.mark.parametrize(
    ("function", "layout"),
    [pytest.param(f, k, id=f"{name}-{k}") for name, f, layouts in CASES for k in layouts],
)
def test_function_gives_what_pytorch_gives(
    function: Callable[..., Any], layout: str, rng: np.random.Generator
) -> None:
    x = batch(rng)
    same(function(flow, made(flow, x, layout)), function(torch, made(torch, x, layout)))


@pytest.mark.parametrize("layout", [*LAYOUTS, "coo"])
def test_products_with_dense_matrices(layout: str, rng: np.random.Generator) -> None:
    x, y = batch(rng), rng.standard_normal((BATCH, COLUMNS, 3)).astype(np.float32)
    dense, sparse = flow.tensor(x, requires_grad=True), made(flow, x, layout).requires_grad_()
    theirs, ours = (flow.tensor(y, requires_grad=True) for _ in range(2))
    pairs = (
        (dense @ theirs, flow.bmm(sparse, ours)),
        (dense @ theirs, sparse @ ours),
        (dense @ theirs[0], sparse @ ours[0]),
        (dense @ theirs[0, :, 0], sparse @ ours[0, :, 0]),
        (theirs.mT @ dense.mT, ours.transpose(1, 2) @ sparse.transpose(1, 2)),
        (flow.baddbmm(flow.ones(BATCH, ROWS, 3), dense, theirs, beta=0.5, alpha=2),
         flow.baddbmm(flow.ones(BATCH, ROWS, 3), sparse, ours, beta=0.5, alpha=2)),
    )  # fmt: skip
    for expected, actual in pairs:
        assert tuple(expected.shape) == tuple(actual.shape)
        np.testing.assert_allclose(actual.detach().numpy(), expected.detach().numpy(), 1e-5, 1e-5)
        slope = flow.tensor(rng.standard_normal(tuple(expected.shape)).astype(np.float32))
        (dg, yg) = flow.autograd.grad((expected * slope).sum(), (dense, theirs))
        (sg, og) = flow.autograd.grad((actual * slope).sum(), (sparse, ours))
        assert sg.layout is sparse.layout
        np.testing.assert_allclose(og.numpy(), yg.numpy(), 1e-5, 1e-5)
        at = dg.sparse_mask(sparse)
        np.testing.assert_allclose(sg.to_dense().numpy(), at.to_dense().numpy(), 1e-5, 1e-5)


def test_samples_of_products(rng: np.random.Generator) -> None:
    x = batch(rng)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((2, 4, 3), (2, 3, 6)))
    out = flow.sparse.sampled_addmm(
        made(flow, x, "csr"), flow.tensor(a), flow.tensor(b), beta=0.5, alpha=2.0
    )
    np.testing.assert_allclose(
        out.to_dense().numpy(), (x != 0) * (0.5 * x + 2 * (a @ b)), 1e-5, 1e-5
    )


def test_text_is_laid_out_as_pytorchs(rng: np.random.Generator) -> None:
    for layout, x in (("csr", batch(rng)), ("bsr", batch(rng)), ("csr", np.ones((2, 3, 7), "f"))):
        x = np.round(x * 100) / 64
        if x.shape[-1] == 7:
            texts = [repr(lib.tensor(x).to_sparse_csr()) for lib in (flow, torch)]
        else:
            texts = [repr(made(lib, x, layout)) for lib in (flow, torch)]
        assert texts[0] == texts[1].replace("torch.", "flow.")


def test_a_batch_is_kept_by_files_and_graphs(tmp_path: Path, rng: np.random.Generator) -> None:
    x = made(flow, batch(rng), "csr")
    flow.save(x, tmp_path / "file")
    same(flow.load(tmp_path / "file"), made(torch, x.to_dense().numpy(), "csr"))
    assert copy.deepcopy(x).shape == x.shape

    @flow.compile
    def step(x: Any, y: Any) -> Any:
        return x @ y, x * 2

    y = flow.randn(BATCH, COLUMNS, 2)
    product, twice = step(x, y)
    np.testing.assert_allclose(product.numpy(), (x @ y).numpy(), 1e-6)
    assert twice.values().tolist() == (x * 2).values().tolist()


ERRORS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("uneven numbers of elements", lambda lib: lib.tensor(
        [[[1.0, 1.0]], [[0.0, 1.0]]]).to_sparse_csr()),
    ("coordinates of three dimensions", lambda lib: lib.ones(2, 2, 2).to_sparse().to_sparse_csr()),
    ("a batch with a dimension of matrices", lambda lib: lib.ones(
        2, 3, 4).to_sparse_csr().transpose(0, 1)),
    ("another batch of values", lambda lib: lib.sparse_csr_tensor(
        lib.tensor([[0, 1], [0, 1]]), lib.tensor([[0], [0]]), lib.ones(3, 1), (2, 1, 1),
        check_invariants=True)),
    ("another size", lambda lib: lib.sparse_csr_tensor(
        lib.tensor([[0, 1], [0, 1]]), lib.tensor([[0], [0]]), lib.ones(2, 1), (3, 1, 1),
        check_invariants=True)),
    ("bounds that end early", lambda lib: lib.sparse_csr_tensor(
        lib.tensor([[0, 1], [0, 0]]), lib.tensor([[0], [0]]), lib.ones(2, 1), (2, 1, 1),
        check_invariants=True)),
    ("a factor that does not fit", lambda lib: lib.bmm(
        lib.ones(2, 3, 4).to_sparse(), lib.ones(2, 3, 4))),
)  # fmt: skip


@pytest.mark.parametrize("function", [pytest.param(f, id=name) for name, f in ERRORS])
def test_what_pytorch_refuses_is_an_error(function: Callable[..., Any]) -> None:
    with pytest.raises((RuntimeError, IndexError, TypeError, ValueError)):
        function(torch)
    with pytest.raises(FlowError):
        function(flow)


# --- reductions and masks -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sum", "prod", "amax", "amin", "mean"])
def test_masked_reductions_are_of_what_is_stored(name: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 4)).astype(np.float32)
    x[1], x[0, 2] = 0, 0
    mask = rng.random((3, 4)) < 0.6
    mask[0, 0] = True
    for layout, dim in (("csr", 0), ("csr", 1), ("csr", (0, 1)), ("coo", 0), ("coo", 1)):
        if name == "mean" and layout == "coo":
            continue
        results = []
        for lib in (flow, torch):
            parts = [getattr(lib.tensor(t), f"to_sparse_{layout}")() for t in (x, mask)]
            results.append(
                getattr(lib.masked, name)(parts[0], dim, keepdim=True, mask=parts[1])
                if lib is flow
                else getattr(torch.masked, name)(parts[0], dim, keepdim=True, mask=parts[1])
            )
        ours, theirs = (r.to_sparse().coalesce() for r in results)
        assert tuple(ours.shape) == tuple(theirs.shape)
        assert ours.indices().tolist() == theirs.indices().tolist()
        np.testing.assert_allclose(ours.values().numpy(), theirs.values().numpy(), 1e-5)


@pytest.mark.parametrize("reduce", ["mean", "amax", "amin"])
def test_products_are_joined_otherwise_than_by_sums(reduce: str, rng: np.random.Generator) -> None:
    x, y = batch(rng)[0], rng.standard_normal((COLUMNS, 3)).astype(np.float32)
    outs, slopes = [], []
    for lib in (flow, torch):
        a, b = lib.tensor(x).to_sparse_csr(), lib.tensor(y, requires_grad=True)
        out = lib.sparse.mm(a.requires_grad_(), b, reduce)
        (out * out).sum().backward()
        outs.append(out.detach().numpy())
        slopes.append(b.grad.numpy())
    np.testing.assert_allclose(*outs, 1e-5)
    np.testing.assert_allclose(*slopes, 1e-5, 1e-6)


def test_random_tensors_lie_in_the_same_places(rng: np.random.Generator) -> None:
    x = made(flow, batch(rng), "csr")
    for name in ("rand_like", "randn_like"):
        y = getattr(flow, name)(x)
        assert y.col_indices().tolist() == x.col_indices().tolist()
        assert y.values().shape == x.values().shape
        assert len(set(y.values().flatten().tolist())) > 4
