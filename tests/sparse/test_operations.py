"""Functions of sparse tensors beside PyTorch's: a table of functions by layouts."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import FlowError

torch = pytest.importorskip("torch")

ROWS, COLUMNS = 4, 6
LAYOUTS = ("coo", "csr", "csc", "bsr")
BLOCK = (2, 2)


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """PyTorch warns that its layouts are in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def matrix(rng: np.random.Generator, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> Any:
    """A matrix of which some elements are zeros, and one row; the last two are not."""
    x = rng.standard_normal(shape).astype(np.float32)
    x[rng.random(shape) < 0.6] = 0
    x[1], x[2:, 0] = 0, 1
    return x


def tensor_of(lib: Any, x: Any, layout: str, grad: bool = False) -> Any:
    """A sparse leaf of a library."""
    dense = lib.tensor(x)
    if layout == "uncoalesced":
        whole = dense.to_sparse()
        i, v = whole.indices(), whole.values()
        out = lib.sparse_coo_tensor(lib.cat([i, i], 1), lib.cat([v, 2 * v]), dense.shape)
    elif layout in ("bsr", "bsc"):
        out = getattr(dense, f"to_sparse_{layout}")(BLOCK)
    else:
        out = getattr(dense, f"to_sparse_{layout}")()
    return out.requires_grad_() if grad else out


def dense(x: Any) -> Any:
    """The elements as NumPy's."""
    if not isinstance(x, (flow.Tensor, torch.Tensor)):
        return np.asarray(x)
    return x.detach().to_dense().numpy() if x.layout is not strided(x) else x.detach().numpy()


def strided(x: Any) -> Any:
    return flow.strided if isinstance(x, flow.Tensor) else torch.strided


def same(ours: Any, theirs: Any, rtol: float = 1e-5) -> None:
    """Equal in layout, parts and elements."""
    if isinstance(theirs, torch.Tensor):
        assert str(ours.layout).split(".")[1] == str(theirs.layout).split(".")[1]
        assert tuple(ours.shape) == tuple(theirs.shape)
        assert str(ours.dtype).split(".")[1] == str(theirs.dtype).split(".")[1]
        if theirs.is_sparse and theirs.is_coalesced():
            a, b = ours.coalesce(), theirs.coalesce()
            assert a.indices().tolist() == b.indices().tolist()
    np.testing.assert_allclose(dense(ours), dense(theirs), rtol=rtol, atol=1e-5)


Case = tuple[str, Callable[..., Any], tuple[str, ...]]
ALL, COO = ("coo", "uncoalesced", "csr", "csc", "bsr"), ("coo", "uncoalesced")
COMPRESSED = ("csr", "csc")

# name, f(library, sparse), the layouts that PyTorch has it for
CASES: tuple[Case, ...] = (
    ("number", lambda lib, x: x * 2.5, ALL),
    ("number in front", lambda lib, x: 2.5 * x, ALL),
    ("quotient", lambda lib, x: x / 4, COO),
    ("0-d tensor", lambda lib, x: lib.mul(x, lib.tensor(3.0)), COO),
    ("power", lambda lib, x: x**2, COO),
    ("neg", lambda lib, x: -x, ALL),
    ("abs", lambda lib, x: abs(x), ("coo", "csr")),
    ("relu", lambda lib, x: lib.relu(x), ("coo", "csr")),
    ("F.relu", lambda lib, x: lib.nn.functional.relu(x), ("coo",)),
    ("sin", lambda lib, x: x.sin(), ("uncoalesced", "csr")),
    ("tanh", lambda lib, x: lib.tanh(x), ("coo", "csr")),
    ("sqrt of abs", lambda lib, x: x.abs().sqrt(), ("coo", "csr")),
    ("log1p", lambda lib, x: x.abs().log1p(), ("coo",)),
    ("isnan", lambda lib, x: lib.isnan(x), ("coo", "csr")),
    ("sign", lambda lib, x: x.sign(), ("coo", "csr")),
    ("neg_", lambda lib, x: x.clone().neg_(), ("coo", "csr")),
    ("sum", lambda lib, x: x.sum(), ("coo", "uncoalesced", "csr")),
    ("sum 0", lambda lib, x: x.sum(0), COO),
    ("sum -1 keepdim", lambda lib, x: x.sum(-1, keepdim=True), ("coo",)),
    ("csr sum keepdim", lambda lib, x: x.sum(1, keepdim=True), ("csr",)),
    ("sparse.sum", lambda lib, x: lib.sparse.sum(x, 1), COO),
    ("sparse.sum of both", lambda lib, x: lib.sparse.sum(x, [0, 1]), COO),
    ("softmax", lambda lib, x: lib.sparse.softmax(x, 1), COO),
    ("softmax 0", lambda lib, x: lib.sparse.softmax(x, 0), ("coo",)),
    ("log_softmax", lambda lib, x: lib.sparse.log_softmax(x, 1), COO),
    ("t", lambda lib, x: x.t(), ("coo", "uncoalesced", "csr", "csc", "bsr")),
    ("T", lambda lib, x: x.T, ("coo",)),
    ("transpose", lambda lib, x: lib.transpose(x, 0, 1), ("coo", "csr")),
    ("permute", lambda lib, x: x.permute(1, 0), ("coo",)),
    ("unsqueeze", lambda lib, x: x.unsqueeze(1), ("coo",)),
    ("select", lambda lib, x: x.select(0, 2), ("coo",)),
    ("row", lambda lib, x: x[2], ("coo", "csr")),
    ("column", lambda lib, x: x[:, 1], ("coo",)),
    ("element", lambda lib, x: x[2, 3], ("coo",)),
    ("narrow_copy", lambda lib, x: x.narrow_copy(1, 1, 3), ("coo",)),
    ("index_select", lambda lib, x: x.index_select(0, lib.tensor([3, 0, 3])), COO),
    ("index_select 1", lambda lib, x: lib.index_select(x, 1, lib.tensor([5, 2])), ("coo",)),
    ("cat", lambda lib, x: lib.cat([x, x * 2]), COO),
    ("cat 1", lambda lib, x: lib.cat([x, x * 2], 1), ("coo",)),
    ("stack", lambda lib, x: lib.stack([x, x]), ("coo",)),
    ("x + x", lambda lib, x: x + x.clone(), ("coo", "uncoalesced", "csr")),
    ("x - 2x", lambda lib, x: lib.sub(x, x * 2), ("coo",)),
    ("add alpha", lambda lib, x: lib.add(x, x.t().t(), alpha=0.5), ("coo",)),
    ("dense + x", lambda lib, x: lib.ones(ROWS, COLUMNS) + x, ("coo", "uncoalesced", "csr")),
    ("dense - x", lambda lib, x: lib.ones(ROWS, COLUMNS) - x, ("coo",)),
    ("x * dense", lambda lib, x: x * ramp(lib, ROWS, COLUMNS), ("coo", "csr")),
    ("dense * x", lambda lib, x: ramp(lib, ROWS, COLUMNS) * x, ("coo",)),
    ("x * x", lambda lib, x: x * x.clone(), ("coo", "uncoalesced", "csr")),
    ("x * turned", lambda lib, x: x[:, :ROWS] * x[:, :ROWS].t() if lib is flow else
     x.narrow_copy(1, 0, ROWS) * x.narrow_copy(1, 0, ROWS).t(), ("coo",)),
    ("@ dense", lambda lib, x: x @ ramp(lib, COLUMNS, 5), ALL),
    ("dense @", lambda lib, x: ramp(lib, 3, ROWS) @ x, ("coo", "csr")),
    ("mm", lambda lib, x: lib.mm(x, ramp(lib, COLUMNS, 2)), ("coo", "csr", "csc")),
    ("sparse.mm", lambda lib, x: lib.sparse.mm(x, ramp(lib, COLUMNS, 2)), COO),
    ("mv", lambda lib, x: x.mv(ramp(lib, COLUMNS)), ("coo", "csr")),
    ("@ vector", lambda lib, x: x @ ramp(lib, COLUMNS), ("coo",)),
    ("addmm", lambda lib, x: lib.addmm(ramp(lib, ROWS, 2), x, ramp(lib, COLUMNS, 2), beta=0.5,
                                       alpha=2), ("coo", "csr")),
    ("sparse.addmm", lambda lib, x: lib.sparse.addmm(ramp(lib, ROWS, 2), x, ramp(lib, COLUMNS, 2)),
     ("coo",)),
    ("@ sparse", lambda lib, x: x @ x.t(), ("coo", "uncoalesced")),
    ("sparse.mm of sparse", lambda lib, x: lib.sparse.mm(x, x.t()), ("coo",)),
    ("linear", lambda lib, x: lib.nn.functional.linear(x, ramp(lib, 3, COLUMNS)), ("coo",)),
    ("sampled_addmm", lambda lib, x: lib.sparse.sampled_addmm(
        x, ramp(lib, ROWS, 3), ramp(lib, 3, COLUMNS), beta=0.5, alpha=2.0), ("csr",)),
    ("sparse_mask", lambda lib, x: ramp(lib, ROWS, COLUMNS).sparse_mask(x), ("coo", "csr")),
    ("to_dense", lambda lib, x: x.to_dense(), ALL),
    ("coalesce", lambda lib, x: x.coalesce(), COO),
    ("to float64", lambda lib, x: x.to(lib.float64), ("coo", "csr")),
    ("double", lambda lib, x: x.double(), ("coo",)),
    ("zeros_like", lambda lib, x: lib.zeros_like(x), ("coo",)),
    ("norm", lambda lib, x: x.norm(), ("coo",)),
    ("any", lambda lib, x: x.any(), ("coo",)),
    ("to csr", lambda lib, x: x.to_sparse_csr(), ALL[:4]),
    ("to csc", lambda lib, x: x.to_sparse_csc(), ("coo", "csr", "csc")),
    ("to bsr", lambda lib, x: x.to_sparse_bsr(BLOCK), ("coo", "csr")),
    ("to bsc", lambda lib, x: x.to_sparse_bsc(BLOCK), ("coo", "csc")),
    ("to coo", lambda lib, x: x.to_sparse(), ("csr", "csc", "bsr")),
)  # fmt: skip


def ramp(lib: Any, *shape: int) -> Any:
    """Numbers that are the same for both libraries."""
    return lib.tensor(np.linspace(-1, 2, int(np.prod(shape)), dtype=np.float32).reshape(shape))


@pytest.mark.parametrize(
    ("function", "layout"),
    [pytest.param(f, k, id=f"{name}-{k}") for name, f, layouts in CASES for k in layouts],
)
def test_function_gives_what_pytorch_gives(
    function: Callable[..., Any], layout: str, rng: np.random.Generator
) -> None:
    x = matrix(rng)
    same(function(flow, tensor_of(flow, x, layout)), function(torch, tensor_of(torch, x, layout)))


def masked(x: Any) -> Any:
    """The rows of a dense matrix, zeros of which count as -infinity."""
    return torch.where(x.detach() == 0, torch.tensor(-1e9), x)


# f(sparse leaf, dense leaf (COLUMNS, 3)) of flowvm, the same of PyTorch's dense matrices, layouts
GRADIENTS: tuple[tuple[str, Callable[..., Any], Callable[..., Any], tuple[str, ...]], ...] = (
    ("@", lambda x, y: x @ y, lambda x, y: x @ y, ("coo", "uncoalesced", "csr", "csc", "bsr")),
    ("dense @", lambda x, y: y.t() @ x.t(), lambda x, y: y.t() @ x.t(), ("coo", "csr")),
    ("sparse.mm", lambda x, y: flow.sparse.mm(x, y), lambda x, y: x @ y, ("coo",)),
    ("addmm", lambda x, y: flow.sparse.addmm(y[:ROWS], x, y, alpha=2),
     lambda x, y: y[:ROWS] + 2 * (x @ y), ("coo",)),
    ("mv", lambda x, y: x.mv(y[:, 0]), lambda x, y: x.mv(y[:, 0]), ("csr",)),
    ("to_dense", lambda x, y: x.to_dense() @ y, lambda x, y: x @ y, ("uncoalesced", "bsr")),
    ("sum", lambda x, y: x.sum(0).to_dense() * y[:, 0], lambda x, y: x.sum(0) * y[:, 0], ("coo",)),
    ("softmax", lambda x, y: flow.sparse.softmax(x, 1).to_dense()[2:] @ y,
     lambda x, y: masked(x).softmax(1)[2:] @ y, ("coo", "csr")),
    ("log_softmax", lambda x, y: flow.sparse.log_softmax(x, 1).to_dense()[2:] @ y,
     lambda x, y: ((x != 0) * masked(x).log_softmax(1))[2:] @ y, ("coo",)),
    ("functions", lambda x, y: (flow.relu(x * 3).sin() + x) @ y,
     lambda x, y: (torch.relu(x * 3).sin() + x) @ y, ("coo", "csr")),
    ("dense +", lambda x, y: (y.t() @ y + x.select(0, 2).to_dense()[:3]) ** 2,
     lambda x, y: (y.t() @ y + x[2][:3]) ** 2, ("coo",)),
    ("@ sparse", lambda x, y: (x @ x.t()).to_dense() @ y[:ROWS],
     lambda x, y: x @ x.t() @ y[:ROWS], ("coo", "csr")),
    ("* dense", lambda x, y: (x * y[:, 0]) @ y, lambda x, y: (x * y[:, 0]) @ y, ("coo", "csr")),
    ("* sparse", lambda x, y: (x * x.clone()) @ y, lambda x, y: (x * x) @ y, ("coo",)),
    ("index_select", lambda x, y: x.index_select(0, flow.tensor([2, 0, 2])) @ y,
     lambda x, y: x[[2, 0, 2]] @ y, ("coo",)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("function", "reference", "layout"),
    [pytest.param(f, g, k, id=f"{name}-{k}") for name, f, g, kinds in GRADIENTS for k in kinds],
)
def test_gradient_is_that_of_the_dense_matrix_at_the_places(
    function: Callable[..., Any],
    reference: Callable[..., Any],
    layout: str,
    rng: np.random.Generator,
) -> None:
    x, start = matrix(rng), rng.standard_normal((COLUMNS, 3)).astype(np.float32)
    ours, y = tensor_of(flow, x, layout, grad=True), flow.tensor(start, requires_grad=True)
    theirs = torch.tensor(dense(ours), requires_grad=True)
    z = torch.tensor(start, requires_grad=True)
    for lib, out in ((flow, function(ours, y)), (torch, reference(theirs, z))):
        (out * ramp(lib, *out.shape)).sum().backward()
    assert ours.grad.layout is ours.layout
    assert theirs.grad is not None
    at = flow.tensor(theirs.grad.numpy()).sparse_mask(ours)
    np.testing.assert_allclose(dense(ours.grad._data), dense(at._data), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(y.grad.numpy(), z.grad.numpy(), rtol=1e-4, atol=1e-5)


ERRORS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("a function without a row", lambda lib, x: lib.cos(x)),
    ("a number added", lambda lib, x: x + 1),
    ("divided by a matrix", lambda lib, x: x / lib.ones(ROWS, COLUMNS)),
    ("another shape", lambda lib, x: x @ lib.ones(COLUMNS + 1, 2)),
    ("another dtype", lambda lib, x: x @ lib.ones(COLUMNS, 2, dtype=lib.float64)),
    ("view", lambda lib, x: x.view(-1)),
    ("numpy", lambda lib, x: x.numpy()),
    ("rows of coordinates", lambda lib, x: x.crow_indices()),
    ("values of a dense tensor", lambda lib, x: x.to_dense().values()),
    ("indices that are not coalesced", lambda lib, x: lib.cat([x, x], 1).add(x).indices()),
    ("blocks that do not fit", lambda lib, x: x.to_sparse_bsr((3, 3))),
    ("an index outside", lambda lib, x: lib.sparse_coo_tensor([[0], [9]], [1.0], (2, 2),
                                                              check_invariants=True)),
    ("a negative index", lambda lib, x: lib.sparse_coo_tensor([[-1], [0]], [1.0], (2, 2),
                                                              check_invariants=True)),
    ("too few indices", lambda lib, x: lib.sparse_coo_tensor([[0], [0]], [1.0, 2.0], (2, 2))),
    ("another size", lambda lib, x: lib.sparse_coo_tensor([[0], [0]], [1.0], (2,))),
    ("bounds that fall", lambda lib, x: lib.sparse_csr_tensor([0, 2, 1], [0], [1.0], (2, 2),
                                                              check_invariants=True)),
    ("a column outside", lambda lib, x: lib.sparse_csr_tensor([0, 1], [5], [1.0], (1, 2),
                                                              check_invariants=True)),
    ("sampled_addmm of coordinates", lambda lib, x: lib.sparse.sampled_addmm(
        x, lib.ones(ROWS, 1), lib.ones(1, COLUMNS))),
)  # fmt: skip


@pytest.mark.parametrize("function", [pytest.param(f, id=name) for name, f in ERRORS])
def test_what_pytorch_refuses_is_an_error(
    function: Callable[..., Any], rng: np.random.Generator
) -> None:
    x = matrix(rng)
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        function(torch, tensor_of(torch, x, "coo"))
    with pytest.raises(FlowError):
        function(flow, tensor_of(flow, x, "coo"))


def test_maps_over_the_dense_factor():
    matrix = flow.sparse_coo_tensor([[0, 1, 1], [1, 0, 2]], [1.0, 2.0, 3.0], (2, 3)).coalesce()
    x = flow.arange(12.0).reshape(4, 3)
    expected = (x @ matrix.to_dense().t()).tolist()
    flow.func.explain()
    assert flow.func.vmap(lambda v: matrix @ v)(x).tolist() == expected
    assert flow.func.vmap(lambda s, v: s @ v, in_dims=(None, 0))(matrix, x).tolist() == expected
    assert not [name for name in flow.func.explain() if "sparse_product" in name]
    slopes = flow.func.vmap(flow.func.grad(lambda v: (matrix @ v).square().sum()))(x)
    dense = matrix.to_dense()
    assert slopes.tolist() == (2 * (x @ dense.t()) @ dense).tolist()
    with pytest.raises(ValueError, match="not mapped over"):
        flow.func.vmap(lambda s: s @ x[0])(matrix)
